"""A tar per synset as a source."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from samples import jpeg
from source_files import make_tar, names, put

from picstore.errors import ImageError, UsageError
from picstore.prepare.sources import imagenet
from picstore.prepare.sources.imagenet_tars import Member
from picstore.prepare.sources.open import open_source, read_input


def test_imagenet_tars_are_read_in_place_with_labels_by_synset(tmp_path: Path) -> None:
    make_tar(tmp_path / "n02.tar", {"n02_1.JPEG": b"two-one", "n02_2.JPEG": b"two-two"})
    make_tar(tmp_path / "n01.tar", {"n01_9.JPEG": b"one-nine"})
    listing = open_source(tmp_path)
    assert listing.kind == "imagenet"
    assert listing.classes == ["n01", "n02"]
    assert names(listing) == [("n01.tar/n01_9.JPEG", 0), ("n02.tar/n02_1.JPEG", 1), ("n02.tar/n02_2.JPEG", 1)]
    assert [read_input(source) for source in listing.inputs] == [b"one-nine", b"two-one", b"two-two"]
    order = put(tmp_path / "synsets.txt", b"n02 goldfish\nn00 none\nn01 tench\n")
    ordered = open_source(tmp_path, synsets=order)
    assert ordered.classes == ["n02", "n00", "n01"]
    assert [label for _, label in names(ordered)] == [2, 0, 0]


def test_tars_that_are_read_side_by_side_stay_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for tar in range(9):
        make_tar(tmp_path / f"n{tar}.tar", {f"{k}.JPEG": b"x" for k in range(10 - tar)})
    read_members = imagenet.members_of

    def wait_less_each_time(tar: str) -> Iterator[Member]:
        time.sleep(0.01 * (9 - int(Path(tar).stem[1:])))
        return read_members(tar)

    monkeypatch.setattr(imagenet, "members_of", wait_less_each_time)
    expected = [(f"n{tar}.tar/{k}.JPEG", tar) for tar in range(9) for k in range(10 - tar)]
    assert names(open_source(tmp_path, kind="imagenet")) == expected


def test_a_tar_that_breaks_off_keeps_its_whole_members_and_says_so(tmp_path: Path) -> None:
    make_tar(tmp_path / "n01.tar", {"a.JPEG": jpeg(1), "b.JPEG": jpeg(2)})
    data = (tmp_path / "n01.tar").read_bytes()
    (tmp_path / "n01.tar").write_bytes(data[: 512 + len(jpeg(1)) + 300])
    listing = open_source(tmp_path)
    assert read_input(listing.inputs[0]) == jpeg(1)
    with pytest.raises(ImageError, match=r"damaged|truncated"):
        read_input(listing.inputs[-1])


def test_synsets_that_do_not_name_every_tar_are_refused(tmp_path: Path) -> None:
    make_tar(tmp_path / "n01.tar", {"a.JPEG": b"x"})
    with pytest.raises(UsageError, match=r"n01\.tar"):
        open_source(tmp_path, synsets=put(tmp_path / "synsets.txt", b"n02\n"))
