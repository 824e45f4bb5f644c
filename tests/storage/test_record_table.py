"""The table of records, and conditions on it in SQL."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from commands import picstore_command
from PIL import Image

import picstore
from picstore.errors import MissingDependency, UsageError
from picstore.storage.format.container import ContainerRef
from picstore.storage.format.container_writer import pack_container
from picstore.storage.format.read_container import unpack_container
from picstore.storage.format.record import ImageInfo, Record
from picstore.storage.record_table import path_in

Make = Callable[..., Path]


@pytest.fixture
def dataset(make_dataset: Make) -> picstore.Dataset:
    """A data set with deletions, other labels, and columns of which some records lack values."""
    dataset = picstore.Dataset(make_dataset()).without([0, 49])
    dataset = dataset.with_columns({"label": [4, 3], "caption": ["a", "b"], "score": [0.5, -1.5]}, ids=[10, 11])
    vectors = np.arange(2 * len(dataset), dtype=np.float32).reshape(-1, 2)
    return dataset.with_columns({"count": [7, 8], "width_of": [1, 2]}, ids=[12, 13]).with_columns({"vector": vectors})


def test_the_table_says_what_reading_each_record_says(dataset: picstore.Dataset) -> None:
    table, records = dataset.table, list(dataset)
    facts = ("id", "label", "width", "height", "bytes", "sampling", "encode_path")
    assert table.names == (*facts, "caption", "count", "score", "vector", "width_of")
    assert len(table) == len(records) == 48
    assert table["id"].tolist() == dataset.ids.tolist()
    assert table["label"].tolist() == [record.label for record in records]
    assert table["width"].tolist() == [record.image.shape[-2] for record in records]
    assert table["height"].tolist() == [record.image.shape[-3] for record in records]
    assert table["bytes"].tolist() == [len(record.jpeg) for record in records]
    assert set(table["sampling"].tolist()) == {"420"}
    assert table["encode_path"].tolist() == [record.info.encode_path for record in records]
    assert table["caption"] == [record.columns.get("caption") for record in records]
    whole = table.to_numpy()
    assert whole.dtype.names == table.names
    assert whole["vector"].tolist() == [record.columns["vector"].tolist() for record in records]
    selection = dataset.select(table["width"] > 63)
    assert selection.table["width"].tolist() == table["width"][table["width"] > 63].tolist()
    assert min(selection.table["width"]) > 63


def test_the_table_tells_which_images_were_encoded_anew_in_a_copy_too(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    pixels = np.random.default_rng(0).integers(0, 255, (40, 60, 3), np.uint8)
    for name in ("a.jpg", "b.png", "c.jpg", "d.bmp"):
        Image.fromarray(pixels).save(tmp_path / "images" / name)
    picstore_command("convert", tmp_path / "images", tmp_path / "set")
    picstore_command("shuffle", tmp_path / "set", tmp_path / "copy")
    for name in ("set", "copy"):
        dataset = picstore.Dataset(tmp_path / name)
        paths = dict(zip(dataset.table["id"].tolist(), dataset.table["encode_path"].tolist(), strict=True))
        assert paths == {0: "lossless", 1: "reencoded", 2: "lossless", 3: "reencoded"}
        assert dataset.where("encode_path = 'reencoded'").table["id"].tolist() == [
            each for each in dataset.table["id"].tolist() if each in (1, 3)
        ]


def test_a_path_that_the_format_does_not_know_is_none() -> None:
    record = Record(0, 0, b"1", ImageInfo(1, 1, encode_path="lossless"))
    ref = ContainerRef("0000/000000.pic", 4096)
    container = unpack_container(memoryview(b"".join(map(bytes, pack_container([record], ref=ref)))), ref=ref)
    assert container.info(0).encode_path == "lossless"
    container.index = container.index.copy()
    container.index["flags"] = 0xFF
    assert container.info(0).encode_path == ""


def test_the_table_reads_each_index_once_and_when_a_column_is_asked_for(
    dataset: picstore.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    from picstore.storage.dataset_reader import ContainerReader

    read: list[int] = []
    index = ContainerReader.index
    monkeypatch.setattr(ContainerReader, "index", lambda self, number: (read.append(number), index(self, number))[1])
    table = dataset.table
    assert (len(table), read) == (48, [])
    _ = table["width"], table["id"], dataset.table["height"], dataset.select([1]).table["label"]
    assert sorted(read) == list(range(len(dataset.rows)))


def test_an_arrow_table_has_null_where_a_record_has_no_value(dataset: picstore.Dataset) -> None:
    table = dataset.table.to_arrow()
    assert table.num_rows == 48
    by_id = {row["id"]: row for row in table.to_pylist()}
    assert (by_id[10]["caption"], by_id[10]["score"], by_id[10]["count"]) == ("a", 0.5, None)
    assert (by_id[12]["caption"], by_id[12]["score"], by_id[12]["count"]) == (None, None, 7)
    assert table.schema.field("vector").type == pa.list_(pa.float32(), 2)
    assert dataset.select([]).table.to_arrow().num_rows == 0


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("label = 3 AND width > 62", lambda row: row["label"] == 3 and row["width"] > 62),
        ("Label in (4, 2)", lambda row: row["label"] in (4, 2)),
        ("caption = 'b'", lambda row: row["caption"] == "b"),
        ("score < 0", lambda row: row["score"] is not None and row["score"] < 0),
        ("count IS NULL", lambda row: row["count"] is None),
        ('"width" * height < 2500 -- a comment', lambda row: row["width"] * row["height"] < 2500),
        ("sampling = '444'", lambda row: False),
        ("true", lambda row: True),
    ],
)
def test_a_condition_selects_the_records_for_which_it_holds(
    dataset: picstore.Dataset, condition: str, expected: Callable[[dict[str, object]], bool]
) -> None:
    rows = dataset.table.to_arrow().to_pylist()
    chosen = dataset.where(condition)
    assert chosen.ids.tolist() == [row["id"] for row in rows if expected(row)]
    few = dataset.select(np.arange(0, 48, 3)).where(condition)
    assert few.ids.tolist() == [row["id"] for row in rows[::3] if expected(row)]


@pytest.mark.parametrize(
    "condition",
    [
        "",
        "widht > 3",
        "label =",
        "label = 1; DROP TABLE x",
        "label = 1) UNION SELECT (1",
        "max(width) > 3",
        "label = 'cat'",
        "width < (SELECT count(*) FROM read_csv('/etc/passwd'))",
        "width < (SELECT count(*) FROM read_text('/etc/passwd'))",
        "width < (SELECT count(*) FROM glob('/*'))",
        "width < (SELECT count(*) FROM sys)",
        "label = 1, width = 2",
    ],
)
def test_what_is_no_condition_or_reaches_out_of_the_table_is_refused(dataset: picstore.Dataset, condition: str) -> None:
    with pytest.raises(UsageError, match="is refused"):
        dataset.where(condition)


def test_an_unknown_column_is_refused_with_the_names_of_all(dataset: picstore.Dataset) -> None:
    with pytest.raises(UsageError, match=r"no column 'size'.*width.*caption"):
        dataset.table["size"]
    with pytest.raises(UsageError, match=r"columns are id.*caption"):
        dataset.where("size > 3")


def test_without_duckdb_or_pyarrow_the_message_says_what_to_install(
    dataset: picstore.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("duckdb", "pyarrow"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, module, None)
            with pytest.raises(MissingDependency, match=r"\[sql\]"):
                dataset.where("label = 1")
            assert dataset.table["label"].size == 48


def test_a_record_whose_index_entry_is_damaged_has_no_id_and_no_size(make_dataset: Make) -> None:
    path = make_dataset(10, streams=1)
    dataset = picstore.Dataset(path)
    ref = dataset.containers.container_ref(0)
    data = bytearray((path / ref.name).read_bytes())
    at = data.index(dataset.entries(0)[2].tobytes())
    data[at] ^= 1
    data[at + 20] ^= 1
    (path / ref.name).write_bytes(data)
    table = picstore.Dataset(path).table
    assert (table["id"][2], table["width"][2]) == (-1, 0)
    assert (table["width"] > 0).sum() == 9


def test_a_cache_keeps_the_table_which_is_read_again_where_it_is_damaged(
    make_dataset: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, cache = make_dataset(), tmp_path / "cache"
    widths = picstore.Dataset(path, cache=cache).table["width"]
    (file,) = cache.glob("*/facts")
    assert file.stat().st_size == 50 * 26 + 4
    with monkeypatch.context() as patch:
        patch.setattr("picstore.storage.dataset_reader.ContainerReader.index", None)
        again = picstore.Dataset(path, cache=cache)
        assert again.table["width"].tolist() == widths.tolist()
        assert again.select([3, 1]).table["id"].size == 2
    for damaged in (file.read_bytes()[:-1], b"", bytes(1254)):
        file.write_bytes(damaged)
        assert picstore.Dataset(path, cache=cache).table["width"].tolist() == widths.tolist()
        assert file.stat().st_size == 50 * 26 + 4


def test_columns_that_differ_only_in_case_are_each_what_their_name_says(make_dataset: Make) -> None:
    dataset = picstore.Dataset(make_dataset())
    numbers = np.arange(len(dataset))
    dataset = dataset.with_columns({"Score": numbers, "score": numbers[::-1].copy(), "Width": numbers})
    assert dataset.where("score < 3").table["score"].tolist() == dataset.table["score"][-3:].tolist()
    assert dataset.where('"Score" < 3').table["Score"].tolist() == [0, 1, 2]
    assert len(dataset.where("Width < 3")) == 3 and len(dataset.where("width < 3")) == 0
    with pytest.raises(UsageError, match="'SCORE' may be each of the columns Score, score"):
        dataset.where("SCORE < 3")


def test_a_column_of_any_name_is_told_from_the_numbers_of_records(make_dataset: Make) -> None:
    dataset = picstore.Dataset(make_dataset())
    backwards = np.arange(len(dataset))[::-1].copy()
    for name in ("record_number_of_picstore", "rowid", "nnnnnnnnnnnnn", "n"):
        edited = dataset.with_columns({name: backwards})
        assert np.flatnonzero(edited.table.where(f"{name} < 3")).tolist() == np.flatnonzero(backwards < 3).tolist()
    for name in ("record_number_of_picstore", "n", "nnn", "nnnnnnnnn"):  # no column
        with pytest.raises(UsageError, match="is refused"):
            dataset.where(f"{name} < 3")


def test_a_new_column_cannot_take_the_name_of_a_built_in_one(make_dataset: Make) -> None:
    dataset = picstore.Dataset(make_dataset())
    for name in ("width", "sampling", "encode_path"):
        with pytest.raises(UsageError, match=f"has '{name}', which says it of the stored images; give the column"):
            dataset.with_columns({name: np.arange(len(dataset))})


def test_a_record_has_a_path_only_if_its_extra_is_an_object_with_one(tmp_path: Path) -> None:
    extras: list[object] = [None, [1, 2], "x", 3, {"path": 4}, {"other": "x"}, {"path": "a/b.jpg"}]
    with picstore.Writer(tmp_path / "set") as writer:
        for extra in extras:
            writer.add(np.zeros((16, 16, 3), np.uint8), label=0, extra=extra)
    dataset = picstore.Dataset(tmp_path / "set")
    by_id = dict(zip(dataset.ids.tolist(), (path for path, _ in dataset.samples), strict=True))
    assert [by_id[k] for k in range(len(extras))] == [None] * 6 + ["a/b.jpg"]
    loader = picstore.Loader(dataset, batch_size=7, transform=[], isolate=False, rank=0, world_size=1)
    state = loader.state_at(1, 0)
    loader.close()
    audit = picstore.audit(state, dataset)
    assert audit.paths(np.arange(len(dataset))) == [path for path, _ in dataset.samples]


def test_extras_that_are_not_json_have_no_path() -> None:
    assert [path_in(extra) for extra in (b"", b"{", b"\xff", b"[" * 100_000, b'{"path": "a"}')] == [None] * 4 + ["a"]
