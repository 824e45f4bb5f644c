"""storage.manifest: the manifest and the index, edited, damaged, missing and foreign."""

from __future__ import annotations

import json
import random
import shutil
import tracemalloc
import uuid
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from grids import slow_except
from hypothesis import given
from hypothesis import strategies as st
from samples import picture

import picstore
from picstore.errors import Corrupt, Damage, NotADataset, PicstoreError, Truncated, Unfinished, UnsupportedVersion
from picstore.storage.format.checksum import crc32c
from picstore.storage.format.container_index import FileSummary, index_rows, ordinals_of, read_summary
from picstore.storage.format.layout import FOOTER_ROW, INDEX_ROW, SEALED, IndexHeader
from picstore.storage.location.resolve import INDEX, MANIFEST
from picstore.storage.manifest import read_index, read_manifest
from picstore.storage.manifest_writer import publish_dataset

MakeDataset = Callable[..., Path]


def seal(document: dict) -> str:
    """A manifest's text with the CRC that belongs to it, computed from the format's description alone."""
    body = {name: value for name, value in document.items() if name != "crc32c"}
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    return json.dumps({**body, "crc32c": crc32c(canonical)})


def reseal(root: Path, **changes: object) -> None:
    document = {**json.loads((root / MANIFEST).read_text()), **changes}
    (root / MANIFEST).write_text(seal({name: value for name, value in document.items() if value is not ...}))


def one_line(error: PicstoreError) -> str:
    assert "\n" not in str(error)
    return str(error)


def test_the_manifest_says_what_the_data_set_is(make_dataset: MakeDataset) -> None:
    root = make_dataset(50, classes=5, streams=3, container_size=16 << 10)
    manifest = read_manifest(root)
    files = sorted(root.glob("*/*.pic"))
    assert manifest.images == 50 == sum(entry.records for entry in manifest.files)
    assert manifest.bytes == sum(path.stat().st_size for path in files)
    assert (manifest.streams, manifest.container_size) == (3, 16 << 10)
    assert manifest.classes == tuple(f"class{k}" for k in range(5))
    assert manifest.attachments == ()
    assert manifest.shuffle == ()
    assert uuid.UUID(manifest.uuid).version == 8
    assert uuid.UUID(manifest.uuid).variant == uuid.RFC_4122
    for entry in manifest.files:
        summary = read_summary(root, stream=entry.stream, file=entry.file)
        assert (entry.bytes, entry.records, entry.crc32c) == (summary.size, summary.records, summary.crc)
    assert len(manifest.files) == len(files)
    assert manifest.containers == len(read_index(root, manifest))


def test_the_manifest_is_json_with_a_line_for_each_field_and_file(make_dataset: MakeDataset) -> None:
    root = make_dataset()
    text = (root / MANIFEST).read_text()
    document = json.loads(text)
    assert (document["format"], document["format_version"]) == ("picstore", 1)
    assert text == text.encode("ascii").decode()
    assert len(text.splitlines()) == 2 + len(document) + len(document["files"]) + 1
    assert json.loads(seal(document)) == document


def test_class_names_of_any_script_come_back(make_dataset: MakeDataset, tmp_path: Path) -> None:
    names = ("котик", "犬", 'quote"d', "line\nbreak", "")
    publish_dataset(tmp_path, (), streams=1, container_size=4096, classes=names)
    assert read_manifest(tmp_path).classes == names


def test_the_manifest_may_be_laid_out_anew_without_breaking_its_crc(make_dataset: MakeDataset) -> None:
    root = make_dataset()
    before = read_manifest(root)
    document = json.loads((root / MANIFEST).read_text())
    (root / MANIFEST).write_text(json.dumps(document, indent=3, sort_keys=True))
    assert read_manifest(root) == before


def test_any_edit_of_the_manifest_is_noticed(make_dataset: MakeDataset) -> None:
    root = make_dataset()
    document = json.loads((root / MANIFEST).read_text())
    edits = {
        "images": document["images"] + 1,
        "classes": [*document["classes"], "one more"],
        "streams": 4,
        "shuffle": [{"method": "transpose", "seed": 0}],
        "uuid": str(uuid.uuid4()),
        "files": document["files"][1:],
        "crc32c": document["crc32c"] ^ 1,
        "unknown": 1,
    }
    for name, value in edits.items():
        (root / MANIFEST).write_text(json.dumps({**document, name: value}))
        with pytest.raises(Corrupt, match="edited or damaged"):
            read_manifest(root)


@pytest.mark.parametrize("step", slow_except([5], [1, 5]))
def test_any_flipped_bit_of_the_manifest_is_noticed_or_changes_nothing(make_dataset: MakeDataset, step: int) -> None:
    root = make_dataset(8, streams=1)
    before = read_manifest(root)
    data = bytearray((root / MANIFEST).read_bytes())
    noticed, bits = 0, range(0, 8 * len(data), step)
    for bit in bits:
        data[bit >> 3] ^= 1 << (bit & 7)
        (root / MANIFEST).write_bytes(data)
        try:
            assert read_manifest(root) == before  # white space between tokens, or an exponent's e and E
        except (Damage, NotADataset, UnsupportedVersion):
            noticed += 1
        data[bit >> 3] ^= 1 << (bit & 7)
    assert noticed > 0.97 * len(bits)


def test_a_manifest_cut_off_anywhere_is_truncated(make_dataset: MakeDataset) -> None:
    root = make_dataset(5)
    data = (root / MANIFEST).read_bytes()
    for length in (*range(0, len(data) - 2, 7), len(data) - 2):
        (root / MANIFEST).write_bytes(data[:length])
        with pytest.raises(Truncated, match="not whole JSON; `picstore repair` restores it"):
            read_manifest(root)


def test_a_manifest_of_a_later_version_asks_for_an_upgrade(make_dataset: MakeDataset) -> None:
    root = make_dataset(5)
    reseal(root, format_version=9)
    with pytest.raises(UnsupportedVersion, match=r"format version 9; .*upgrade picstore") as caught:
        picstore.Dataset(root)
    one_line(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        *({"format_version": "1"}, {"format_version": ...}, {"surplus": 1}, {"images": ...}, {"classes": ...}),
        *({"classes": None}, {"files": ...}, {"files": [{"stream": 0}]}, {"files": [[1, 2]]}, {"files": 7}),
    ],
)
def test_a_manifest_without_the_fields_of_its_version_is_corrupt(make_dataset: MakeDataset, changes) -> None:
    root = make_dataset(5)
    reseal(root, **changes)
    with pytest.raises(Corrupt) as caught:
        read_manifest(root)
    one_line(caught.value)


@pytest.mark.parametrize("text", ["[]", "7", '"picstore"', "{}", '{"format": "other"}', "null"])
def test_the_json_of_another_program_is_not_a_data_set(tmp_path: Path, text: str) -> None:
    (tmp_path / MANIFEST).write_text(text)
    with pytest.raises(NotADataset, match="belongs to another program"):
        read_manifest(tmp_path)


def test_json_nested_without_end_does_not_break_the_reader(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text("[" * 200_000)
    with pytest.raises(Truncated):
        read_manifest(tmp_path)


def test_what_is_not_a_data_set_says_why_and_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "photos").mkdir()
    expected = {
        "none": r"none does not exist$",
        "file": r"file is a file; a picstore dataset is a directory$",
        "photos": r"has no picstore.json\); make one with `picstore convert`$",
    }
    for name, message in expected.items():
        with pytest.raises(NotADataset, match=message) as caught:
            picstore.Dataset(tmp_path / name)
        assert not isinstance(caught.value, Unfinished)
        one_line(caught.value)


@pytest.mark.parametrize(
    ("job", "remedy"),
    [
        ('{"verb": "convert"}', "unfinished convert; run the same command with --resume"),
        ('{"verb": "Writer"}', "unfinished Writer; remove it and run it again"),
        ("damaged", "unfinished convert"),
        ("[]", "unfinished convert"),
        ("[" * 200_000, "unfinished convert"),
    ],
)
def test_an_unfinished_data_set_says_how_to_go_on(tmp_path: Path, job: str, remedy: str) -> None:
    (tmp_path / "unfinished").mkdir()
    (tmp_path / "unfinished" / "job.json").write_text(job)
    with pytest.raises(Unfinished, match=remedy) as caught:
        picstore.Dataset(tmp_path)
    one_line(caught.value)


def test_a_writer_that_fails_leaves_an_unfinished_data_set(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), picstore.Writer(tmp_path / "d"):
        raise ZeroDivisionError
    with pytest.raises(Unfinished, match="unfinished Writer"):
        picstore.Dataset(tmp_path / "d")


# The index


def test_the_index_lists_every_container_in_stored_order(make_dataset: MakeDataset) -> None:
    root = make_dataset(120, streams=3, container_size=8 << 10, file_size=32 << 10)
    rows = read_index(root, read_manifest(root))
    ordinals = ordinals_of(rows)
    order = [(int(r["file"]), int(o), int(r["stream"])) for r, o in zip(rows, ordinals, strict=True)]
    assert order == sorted(order)
    assert len({r["file"] for r in rows}) > 1
    assert ordinals.max() > 1
    for row, ordinal in zip(rows, ordinals, strict=True):
        footer = read_summary(root, stream=int(row["stream"]), file=int(row["file"])).footer
        for name in ("offset", "size", "records", "header_crc"):
            assert row[name] == footer[ordinal][name]


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 4)), max_size=8, unique_by=lambda t: t[:2])
)
def test_ordinals_count_the_containers_of_each_file(shape: list[tuple[int, int, int]]) -> None:
    summaries = []
    for stream, file, containers in shape:
        footer = np.zeros(containers, dtype=FOOTER_ROW)
        footer["offset"] = 4096 * np.arange(1, containers + 1)
        summaries.append(FileSummary(stream, file, 0, 0, 0, footer))
    rows = index_rows(summaries)
    assert rows.dtype == INDEX_ROW
    expected = sorted((file, ordinal, stream) for stream, file, n in shape for ordinal in range(n))
    assert [(int(r["file"]), int(r["offset"]) // 4096 - 1, int(r["stream"])) for r in rows] == expected
    assert ordinals_of(rows).tolist() == [ordinal for _, ordinal, _ in expected]


def test_a_data_set_without_files_is_one(tmp_path: Path) -> None:
    publish_dataset(tmp_path, (), streams=1, container_size=4096)
    dataset = picstore.Dataset(tmp_path)
    assert (len(dataset), list(dataset), dataset[:], dataset.classes) == (0, [], [], [])


def test_any_flipped_bit_of_the_index_is_noticed(make_dataset: MakeDataset) -> None:
    root = make_dataset(30, container_size=8 << 10)
    manifest = read_manifest(root)
    data = bytearray((root / INDEX).read_bytes())
    for bit in range(8 * len(data)):
        data[bit >> 3] ^= 1 << (bit & 7)
        (root / INDEX).write_bytes(data)
        with pytest.raises(Corrupt):
            read_index(root, manifest)
        data[bit >> 3] ^= 1 << (bit & 7)


def test_an_index_cut_off_anywhere_is_truncated(make_dataset: MakeDataset) -> None:
    root = make_dataset(30)
    manifest = read_manifest(root)
    data = (root / INDEX).read_bytes()
    for length in range(len(data)):
        (root / INDEX).write_bytes(data[:length])
        with pytest.raises(Truncated):
            read_index(root, manifest)


def test_a_missing_index_and_that_of_another_data_set_are_damage(make_dataset: MakeDataset) -> None:
    root = make_dataset(30, name="a")
    others = [make_dataset(30, name="b", width=61), make_dataset(200, name="c")]
    for other in others:
        shutil.copy(other / INDEX, root / INDEX)
        with pytest.raises(Corrupt, match=r"CRC|rows"):
            picstore.Dataset(root)
    (root / INDEX).unlink()
    with pytest.raises(Damage, match="the index is missing; `picstore repair`"):
        picstore.Dataset(root)


@pytest.mark.parametrize(
    ("column", "value"),
    [("offset", 1 << 63), ("offset", 1), ("size", 0xFFFFF000), ("size", 0), ("records", 0), ("records", 0xFFFFFFFF)],
)
def test_a_hostile_index_whose_crcs_hold_is_refused(make_dataset: MakeDataset, column: str, value: int) -> None:
    root = make_dataset(30)
    rows = read_index(root, read_manifest(root)).copy()
    rows[column][0] = value
    crc = crc32c(rows.tobytes())
    header = IndexHeader(1, INDEX_ROW.itemsize, len(rows), 30, crc)
    (root / INDEX).write_bytes(header.pack() + rows.tobytes())
    reseal(root, index_crc32c=crc)
    with pytest.raises(Corrupt, match="impossible container"):
        picstore.Dataset(root)


def test_an_index_that_promises_more_rows_than_it_has_allocates_nothing(make_dataset: MakeDataset) -> None:
    root = make_dataset(30)
    count = 1 << 50
    (root / INDEX).write_bytes(IndexHeader(1, INDEX_ROW.itemsize, count, 30, 0).pack() + bytes(100))
    reseal(root, containers=count)
    manifest = read_manifest(root)
    tracemalloc.start()
    try:
        with pytest.raises(Truncated) as caught:
            read_index(root, manifest)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert caught.value.offset == SEALED


def test_random_garbage_in_place_of_the_index_is_damage(make_dataset: MakeDataset) -> None:
    root = make_dataset(10)
    manifest = read_manifest(root)
    rng = random.Random(0)
    for length in (64, 100, 5000):
        (root / INDEX).write_bytes(rng.randbytes(length))
        with pytest.raises(Corrupt, match="no index header"):
            read_index(root, manifest)


# The uuid


def test_the_uuid_is_the_same_for_the_same_content_only(make_dataset: MakeDataset) -> None:
    variants = ({}, {}, {"count": 49}, {"width": 61}, {"streams": 2}, {"classes": 4}, {"container_size": 8192})
    made = [picstore.Dataset(make_dataset(name=f"d{k}", **options)).uuid for k, options in enumerate(variants)]
    assert made[0] == made[1]
    assert len(set(made)) == len(made) - 1


def test_the_uuid_depends_on_labels_extras_and_order_alone(tmp_path: Path) -> None:
    def named(name: str, numbers: tuple[int, ...], label: int, extra: str) -> str:
        with picstore.Writer(tmp_path / name) as writer:
            for number in numbers:
                writer.add(picture(number), label=label, extra=extra)
        return picstore.Dataset(tmp_path / name).uuid

    first = named("a", (1, 2), 3, "x")
    assert named("b", (1, 2), 3, "x") == first
    others = {named("c", (2, 1), 3, "x"), named("d", (1, 2), 4, "x"), named("e", (1, 2), 3, "y")}
    assert len(others | {first}) == 4
