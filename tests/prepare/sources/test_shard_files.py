"""Indexes beside shards: what they state and is not there fails, sample by sample."""

from __future__ import annotations

import itertools
import json
import shutil
import struct
from pathlib import Path

import pytest
from source_files import DATA, JPEGS, im2rec, images, labels, make_tar, problems, put, recordio

from picstore.errors import ImageError, NotADataset, UsageError
from picstore.prepare.sources.open import open_source, read_input
from picstore.prepare.sources.shard_files import expand_braces

TFRECORD = (DATA / "tfrecord" / "train-00000-of-00002").read_bytes()  # of three examples


def offsets_of_tfrecord() -> list[int]:
    offsets = [0]
    while offsets[-1] < len(TFRECORD):
        (length,) = struct.unpack_from("<Q", TFRECORD, offsets[-1])
        offsets.append(offsets[-1] + 16 + length)
    return offsets


def tars(root: Path, *shards: str) -> Path:
    for shard in shards:
        make_tar(root / shard, [(f"{k}.{e}", d) for k in range(3) for e, d in (("jpg", JPEGS[k]), ("cls", b"1"))])
    return root


def test_a_tfrecord_with_an_index_goes_on_behind_a_damaged_length(tmp_path: Path) -> None:
    offsets = offsets_of_tfrecord()
    data = bytearray(TFRECORD)
    data[offsets[1]] ^= 1
    put(tmp_path / "a.tfrecord", bytes(data))
    lines = [f"{start} {stop - start}\n" for start, stop in itertools.pairwise(offsets)]
    put(tmp_path / "a.index", "".join(lines).encode())
    listing = open_source(tmp_path / "a.tfrecord")
    assert [bool(one.problem) for one in listing.inputs] == [False, True, False]
    assert [read_input(listing.inputs[k]) for k in (0, 2)] == [JPEGS[0], JPEGS[2]]
    put(tmp_path / "a.tfrecord", TFRECORD[: offsets[1]])
    assert [bool(one.problem) for one in open_source(tmp_path / "a.tfrecord").inputs] == [False, True, True]


def test_a_flipped_byte_in_a_tf_example_fails_that_image_by_its_crc(tmp_path: Path) -> None:
    offsets = offsets_of_tfrecord()
    data = bytearray(TFRECORD)
    data[data.index(JPEGS[1]) + 300] ^= 1
    assert offsets[1] < data.index(JPEGS[0]) + len(JPEGS[0]) + 400
    listing = open_source(put(tmp_path / "a.tfrecord", bytes(data)))
    with pytest.raises(ImageError, match="checksum"):
        read_input(listing.inputs[1])
    assert [read_input(listing.inputs[k]) for k in (0, 2)] == [JPEGS[0], JPEGS[2]]


def test_a_recordio_file_with_an_index_goes_on_behind_damage(tmp_path: Path) -> None:
    records = [recordio(im2rec(data, k, k)) for k, data in enumerate(JPEGS)]
    data = bytearray(b"".join(records))
    start = len(records[0]) + len(records[1])
    data[start] ^= 1
    put(tmp_path / "a.rec", bytes(data))
    index = "".join(f"{k}\t{sum(map(len, records[:k]))}\n" for k in range(6))
    put(tmp_path / "a.idx", index.encode())
    listing = open_source(tmp_path / "a.rec")
    assert [bool(one.problem) for one in listing.inputs] == [k == 2 for k in range(6)]
    assert labels(listing) == [0, 1, -1, 3, 4, 5]
    put(tmp_path / "a.rec", bytes(data[:start]))
    assert len(open_source(tmp_path / "a.rec").inputs) == 6
    assert len(problems(open_source(tmp_path / "a.rec"))) == 4


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("sizes.json", {"0.tar": 3, "1.tar": 5}),
        ("index.json", {"shardlist": [{"url": "0.tar", "nsamples": 3}, {"url": "s3://x/1.tar", "nsamples": 5}]}),
        (".nv-meta/.info.json", {"shard_counts": {"0.tar": 3, "1.tar": 5}}),
        ("1_stats.json", {"successes": 5}),
        ("1.idx", "v1.2 5\njpg 1 2 3\n"),
    ],
)
def test_what_an_index_of_tars_states_and_is_not_there_fails(tmp_path: Path, name: str, content: object) -> None:
    tars(tmp_path, "0.tar", "1.tar")
    put(tmp_path / name, (content if isinstance(content, str) else json.dumps(content)).encode())
    listing = open_source(tmp_path)
    assert (len(listing.inputs), len(problems(listing))) == (8, 2)
    assert not any(one.lost for one in listing.inputs)


@pytest.mark.parametrize(("split", "failed"), [("train", 3), ("val", 0)])
def test_a_tar_of_a_split_that_only_the_index_names_fails(tmp_path: Path, split: str, failed: int) -> None:
    tars(tmp_path, "train-0.tar", "val-0.tar")
    put(tmp_path / "sizes.json", b'{"train-0.tar": 3, "train-1.tar": 3, "val-0.tar": 3}')
    listing = open_source(tmp_path, split=split)
    assert (len(listing.inputs), len(problems(listing))) == (3 + failed, failed)


def test_shards_missing_from_numbered_names_are_told(tmp_path: Path) -> None:
    tars(tmp_path / "tars", "a-00000-of-00004.tar", "a-00003-of-00004.tar")
    told = "2 of 4 numbered shards are not there, such as a-00001-of-00004.tar"
    assert open_source(tmp_path / "tars").remarks[-1] == told
    tars(tmp_path / "from_one", "a-1-of-2.tar", "a-2-of-2.tar")
    assert not any("not there" in remark for remark in open_source(tmp_path / "from_one").remarks)
    shutil.copytree(DATA / "tfrecord", tmp_path / "tf")
    (tmp_path / "tf" / "train-00000-of-00002").unlink()
    told = "1 of 2 numbered shards are not there, such as train-00000-of-00002"
    assert told in open_source(tmp_path / "tf").remarks


@pytest.mark.parametrize("kind", ["tfrecord", "rec"])
def test_an_empty_shard_is_a_remark_and_of_empty_ones_nothing_is_made(tmp_path: Path, kind: str) -> None:
    full = TFRECORD if kind == "tfrecord" else recordio(im2rec(JPEGS[0], 0, 0))
    put(tmp_path / f"a.{kind}", full)
    put(tmp_path / f"b.{kind}", b"")
    listing = open_source(tmp_path)
    assert images(listing) == JPEGS[: len(listing.inputs)]
    assert f"1 file holds no records, such as b.{kind}" in listing.remarks
    put(tmp_path / f"a.{kind}", b"")
    with pytest.raises(NotADataset, match="2 files hold no records"):
        open_source(tmp_path, kind="recordio" if kind == "rec" else kind)


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a.tar", ["a.tar"]),
        ("a-{08..11}", ["a-08", "a-09", "a-10", "a-11"]),
        ("{x,y}-{0..1}", ["x-0", "x-1", "y-0", "y-1"]),
        ("{3..1}", ["3", "2", "1"]),
        ("a{b", ["a{b"]),
    ],
)
def test_braces_expand_as_a_shells(pattern: str, names: list[str]) -> None:
    assert expand_braces(pattern) == names


def test_braces_that_stand_for_too_many_files_are_refused() -> None:
    for pattern in ("{0..99999999999}", "{0..9999}{0..9999}"):
        with pytest.raises(UsageError, match="too many files"):
            expand_braces(pattern)
