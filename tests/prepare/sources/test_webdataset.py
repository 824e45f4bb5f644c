"""WebDataset's tars as a source."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from source_files import JPEGS, extras, images, images_before_damage, labels, library, make_tar, problems, put

from picstore.errors import NotADataset
from picstore.prepare.sources.open import open_source, read_input


def test_shards_of_webdatasets_own_writer_are_read_with_label_and_texts(tmp_path: Path) -> None:
    webdataset = library("webdataset")
    with webdataset.ShardWriter(str(tmp_path / "train-%03d.tar"), maxcount=4, verbose=0) as sink:
        for k, data in enumerate(JPEGS):
            more = {"cls": k % 3, "json": {"caption": f"picture {k}"}, "txt": "text", "npy": np.zeros(3), "pyd": {k}}
            sink.write({"__key__": f"folder/{k:04d}", "jpg": data, **more})
    listing = open_source(tmp_path)
    assert listing.kind == "webdataset"
    assert images(listing) == JPEGS
    assert labels(listing) == [0, 1, 2, 0, 1, 2]
    assert listing.inputs[4].name == "train-001.tar/folder/0004.jpg"
    assert extras(listing)[3] == {"caption": "picture 3", "txt": "text"}
    assert listing.remarks == ["field .npy: left out of 6 samples", "field .pyd: left out of 6 samples"]
    assert images(open_source(tmp_path / "train-001.tar")) == JPEGS[4:]
    assert images(open_source(tmp_path / "train-{000..001}.tar")) == JPEGS
    with pytest.raises(NotADataset, match=r"train-002\.tar does not exist"):
        open_source(tmp_path / "train-{000..002}.tar")


def test_names_as_labels_become_sorted_classes_and_missing_ones_minus_1(tmp_path: Path) -> None:
    members = [("a.jpg", JPEGS[0]), ("a.cls", b"zebra\n"), ("b.jpg", JPEGS[1]), ("b.txt", b"no class")]
    members += [("c.jpg", JPEGS[2]), ("c.json", b'{"label": "ant"}'), ("d.jpg", JPEGS[3]), ("d.cls", b"")]
    listing = open_source(make_tar(tmp_path / "a.tar", members))
    assert listing.classes == ["ant", "zebra"]
    assert labels(listing) == [1, -1, 0, -1]


def test_further_images_of_a_sample_are_attachments_and_none_is_told(tmp_path: Path) -> None:
    members = [("1.seg.png", b"mask"), ("1.jpg", JPEGS[0]), ("2.cls", b"1"), ("2.txt", b"t"), ("__index__", b"x")]
    listing = open_source(make_tar(tmp_path / "a.tar", members), kind="webdataset")
    assert listing.attachments == ("seg",)
    first, second = listing.inputs
    assert read_input(first) == JPEGS[0]
    assert [(name, read_input(one)) for name, one in first.attachments] == [("seg", b"mask")]
    assert second.problem == "no image among .cls, .txt"


def test_a_tar_cut_off_or_compressed_ends_in_an_input_that_says_so(tmp_path: Path) -> None:
    members = [
        (f"{k}.{field}", data) for k, image in enumerate(JPEGS) for field, data in (("jpg", image), ("cls", b"1"))
    ]
    whole = make_tar(tmp_path / "a.tar", members).read_bytes()
    listing = open_source(put(tmp_path / "b.tar", whole[: 3 * len(whole) // 5]), kind="webdataset")
    assert images_before_damage(listing) == JPEGS[: len(listing.inputs) - 1]
    assert len(listing.inputs) > 1
    packed = open_source(put(tmp_path / "c.tar", gzip.compress(whole)), kind="webdataset")
    assert "unpack it" in packed.inputs[0].problem


def test_a_folder_whose_tar_is_cut_off_near_its_start_is_a_webdataset(tmp_path: Path) -> None:
    fields = [("jpg", JPEGS[0]), ("cls", b"1")]
    tar = make_tar(tmp_path / "a.tar", [(f"{k}.{field}", data) for k in range(4) for field, data in fields])
    begun = tar.read_bytes().index(b"2.jpg")
    tar.write_bytes(tar.read_bytes()[: begun + 600])
    listing = open_source(tmp_path)
    assert listing.kind == "webdataset"
    assert listing.inputs[0].label == 1


def test_tars_without_pairs_stay_imagenet(tmp_path: Path) -> None:
    make_tar(tmp_path / "n01.tar", [("n01_1.JPEG", JPEGS[0]), ("n01_2.JPEG", JPEGS[1])])
    assert open_source(tmp_path).kind == "imagenet"


def test_a_field_that_comes_twice_fails_each_image_of_its_sample(tmp_path: Path) -> None:
    for second in ("a.jpg", "a.JPG", "a.Jpg"):
        members = [("a.jpg", JPEGS[0]), ("a.cls", b"1"), (second, JPEGS[1]), ("b.jpg", JPEGS[2]), ("b.cls", b"2")]
        listing = open_source(make_tar(tmp_path / "a.tar", members), kind="webdataset")
        assert [one.name for one in listing.inputs] == ["a.tar/a.jpg", f"a.tar/{second}", "a.tar/b.jpg"]
        assert problems(listing) == [f"a field comes twice in this sample: a.jpg, {second}"] * 2
        assert labels(listing)[2] == 2
    members = [("a.jpg", JPEGS[0]), ("a.cls", b"1"), ("a.CLS", b"2"), ("b.txt", b"x"), ("b.txt", b"y")]
    listing = open_source(make_tar(tmp_path / "b.tar", members), kind="webdataset")
    assert problems(listing) == [f"a field comes twice in this sample: {it}" for it in ("a.cls, a.CLS", "b.txt, b.txt")]


def test_further_images_are_named_in_a_remark_and_the_user_can_choose(tmp_path: Path) -> None:
    members = [(f"v1.0_{k}.jpg", JPEGS[k]) for k in range(3)] + [("x.png", JPEGS[3]), ("x.jpg", JPEGS[4])]
    tar = make_tar(tmp_path / "a.tar", members)
    listing = open_source(tar, kind="webdataset")
    assert images(listing) == [JPEGS[0], JPEGS[3]]
    what = "3 images are attachments of another image of the same key (.0_1.jpg, .0_2.jpg, .jpg): "
    assert listing.remarks[0].startswith(what + "v1.0_1.jpg of a.tar/v1.0_0.jpg")
    chosen = open_source(tar, kind="webdataset", image_field="JPG")
    assert problems(chosen) == ["no field .jpg among .0_0.jpg, .0_1.jpg, .0_2.jpg"]
    assert read_input(chosen.inputs[1]) == JPEGS[4]
    assert dict(chosen.inputs[1].attachments).keys() == {"png"}


def test_a_text_takes_the_place_of_a_field_of_the_json_and_is_remarked_on(tmp_path: Path) -> None:
    members = [("a.cls", b"1"), ("a.txt", b"caf\xe9"), ("a.json", b'{"cls": 5, "txt": 1, "x": 2}'), ("a.jpg", JPEGS[0])]
    listing = open_source(make_tar(tmp_path / "a.tar", members), kind="webdataset")
    assert (labels(listing), extras(listing)) == ([1], [{"txt": "caf\ufffd", "x": 2}])
    assert [line.partition(",")[0] for line in listing.remarks] == [
        "field cls",
        "field txt",
        "texts that are not UTF-8",
    ]
