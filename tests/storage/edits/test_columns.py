"""Columns: captions, embeddings and other labels by id, kept beside the images."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import tree
from engine_tasks import InlineEngine
from grids import slow_except
from samples import picture

import picstore
from picstore.errors import Corrupt, UsageError
from picstore.prepare.exports.run_export import export
from picstore.prepare.upkeep.shuffled_copy import shuffle
from picstore.prepare.upkeep.verify_dataset import verify
from picstore.storage.edits.columns import Column

Make = Callable[..., Path]


def loader_of(dataset: Path | picstore.Dataset, **options: Any) -> picstore.Loader:
    return picstore.Loader(dataset, **{"batch_size": 4, "threads": 2, "isolate": False, "drop_last": False, **options})


def captioned(path: Path) -> picstore.Dataset:
    dataset = picstore.Dataset(path)
    texts = [f"Bild {id_} 北" for id_ in dataset.ids]
    vectors = np.stack([np.full(3, id_) for id_ in dataset.ids]).astype(np.float32)
    return dataset.with_columns({"caption": texts, "vector": vectors, "age": dataset.ids * 2})


def test_records_carry_the_values_of_their_ids_and_old_files_stay_as_is(make_dataset: Make) -> None:
    path = make_dataset(20)
    before = tree(path)
    captioned(path).save()
    assert {name for name, digest in tree(path).items() if before.get(name, digest) != digest} == {
        "picstore.json",
        "picstore.copy.json",
    }
    dataset = picstore.Dataset(path)
    assert dataset.columns == ("age", "caption", "vector")
    for record in (*dataset, dataset[3]):
        assert (record.columns["caption"], record.columns["age"]) == (f"Bild {record.id} 北", 2 * record.id)
        assert record.columns["vector"].tolist() == [record.id] * 3
        assert record.label == record.id % 5


@pytest.mark.parametrize("isolate", slow_except([True], [False, True]))
def test_a_loader_hands_out_numbers_as_tensors_and_texts_as_lists(make_dataset: Make, isolate: bool) -> None:
    import torch

    loader = loader_of(captioned(make_dataset(20)), targets=["caption", "vector", "age"], isolate=isolate)
    seen = 0
    for batch in loader:
        assert batch.targets is None
        assert batch.columns["caption"] == [f"Bild {id_} 北" for id_ in batch.ids.tolist()]
        assert batch.columns["vector"].dtype == torch.float32
        assert batch.columns["vector"].equal(batch.ids[:, None].float().expand(-1, 3))
        assert batch.to("cpu").columns["age"].equal(2 * batch.ids)
        seen += len(batch.labels)
    assert seen == 20
    loader.close()


def test_the_column_label_replaces_labels_of_its_records_alone(make_dataset: Make) -> None:
    path = make_dataset(20)
    dataset = picstore.Dataset(path).with_columns({"label": [4, 0]}, ids=[10, 3]).save()
    dataset = dataset.with_columns({"label": [1]}, ids=[3]).save()
    expected = {id_: {10: 4, 3: 1}.get(id_, id_ % 5) for id_ in range(20)}
    assert {record.id: record.label for record in picstore.Dataset(path)} == expected
    found = {}
    for batch in loader_of(dataset):
        found.update(zip(batch.ids.tolist(), batch.labels.tolist(), strict=True))
    assert found == expected
    entries = np.concatenate([dataset.entries(k) for k in range(len(dataset.rows))])
    assert dict(zip(entries["id"].tolist(), entries["label"].tolist(), strict=True)) == expected


def test_labels_of_other_classes_come_with_their_names(make_dataset: Make) -> None:
    dataset = picstore.Dataset(make_dataset(4))
    with pytest.raises(UsageError, match="5 classes; give classes="):
        dataset.with_columns({"label": [0, 5, 0, 0]})
    with pytest.raises(UsageError, match="5 classes; give classes="):
        dataset.with_columns({"label": [0, -2, 0, 0]})
    given = dataset.with_columns({"label": [0, 4, 0, 0]})
    with pytest.raises(UsageError, match="2 classes; give classes="):  # the label that is kept
        given.with_columns({"label": [1]}, ids=given.ids[:1], classes=["animal", "plant"])
    changed = dataset.with_columns({"label": [0, 1, 0, 1]}, classes=["animal", "plant"]).save()
    assert changed.classes == ["animal", "plant"]
    assert dataset.classes == [f"class{k}" for k in range(5)]


def test_a_record_without_a_value_has_none_nan_or_minus_one(make_dataset: Make) -> None:
    values = {"caption": ["a", "b"], "score": [0.5, 1.5], "count": [7, 8]}
    dataset = picstore.Dataset(make_dataset(4)).with_columns(values, ids=[2, 0])
    assert [sorted(dataset[int(k)].columns) for k in np.argsort(dataset.ids)] == [
        sorted(values),
        [],
        sorted(values),
        [],
    ]
    (batch,) = loader_of(dataset, targets=list(values))
    order = np.argsort(batch.ids.numpy())
    assert [batch.columns["caption"][k] for k in order] == ["b", None, "a", None]
    np.testing.assert_array_equal(batch.columns["score"].numpy()[order], [1.5, np.nan, 0.5, np.nan])
    assert batch.columns["count"].numpy()[order].tolist() == [8, -1, 7, -1]


def test_integers_become_int64_and_floats_keep_their_width(make_dataset: Make) -> None:
    import torch

    given = {
        "a": np.array([True, False]),
        "b": np.array([255, 1], np.uint8),
        "c": np.array([1, 2], np.float16),
        "d": torch.tensor([1.5, 2.5]),
        "e": np.array(["x", "yz"]),
        "f": np.array([1.0, 2.0], ">f8"),
    }
    dataset = picstore.Dataset(make_dataset(2)).with_columns(given)
    kinds = {name: dataset.column(name).values.dtype.str for name in given}
    assert kinds == {"a": "<i8", "b": "<i8", "c": "<f2", "d": "<f4", "e": "|u1", "f": "<f8"}
    assert [record.columns["f"] for record in dataset] == [1.0, 2.0]


@pytest.mark.parametrize(
    ("columns", "ids", "message"),
    [
        ({"caption": ["a"]}, None, "1 value for 4 records"),
        ({"caption": ["a"]}, [9], "no record with the id 9"),
        ({"caption": ["a", "b"]}, [1, 1], "occurs twice"),
        ({"boxes": [1, 2, 3, 4]}, None, "cannot be called 'boxes'"),
        ({"a b": [1, 2, 3, 4]}, None, "cannot be called"),
        ({"a": [1, "x", 2, 3]}, None, "texts or numbers"),
        ({"a": [{}, {}, {}, {}]}, None, "texts or numbers"),
        ({"a": [[1], [1, 2], [1], [1]]}, None, "several shapes"),
        ({"a": np.array([1 << 63] * 4, np.uint64)}, None, "63 bits"),
        ({"a": ["\ud800"] * 4}, None, "not Unicode"),
        ({"label": [0.5, 1, 2, 3]}, None, "must be integers"),
        ({"mask": [1, 2, 3, 4]}, None, "attachment called"),
    ],
)
def test_what_is_no_column_is_refused(tmp_path: Path, columns: Any, ids: Any, message: str) -> None:
    from samples import picture

    with picstore.Writer(tmp_path / "dataset", attachments=["mask"]) as writer:
        for number in range(4):
            writer.add(picture(number))
    with pytest.raises(UsageError, match=message):
        picstore.Dataset(tmp_path / "dataset").with_columns(columns, ids=ids)


def test_ids_without_a_value_have_the_index_0() -> None:
    for ids in ([5], [2, 5, 9]):
        indices, found = Column(np.array(ids), np.ones(len(ids))).find_ids(np.array([1, 5, 7, 10]))
        assert found.tolist() == [False, True, False, False]
        assert indices[1] == ids.index(5) and indices[3] == 0


def test_given_values_win_over_those_of_a_column_and_have_their_shape() -> None:
    column = Column(np.array([2, 5, 9]), np.arange(6.0).reshape(3, 2))
    ids, values = column.joined(np.array([5, 7]), np.array([[10.0, 11.0], [12.0, 13.0]]))
    assert ids.tolist() == [2, 9, 5, 7]
    assert np.asarray(values).tolist() == [[0, 1], [4, 5], [10, 11], [12, 13]]
    for wrong in (np.ones(1), np.ones((1, 3)), np.ones((1, 2, 2))):
        with pytest.raises(UsageError, match="as the column has"):
            column.joined(np.array([7]), wrong)


def test_columns_and_deletions_live_together_and_in_copies(make_dataset: Make) -> None:
    view = captioned(make_dataset(20)).without([3, 4])
    other = copy.deepcopy(view)
    assert other.uuid == view.uuid == view.save().uuid
    assert [record.columns["age"] for record in other] == (2 * other.ids).tolist()
    again = other.with_columns({"age": np.zeros(18)})
    assert {record.columns["age"] for record in again} == {0.0}


def test_shuffling_keeps_columns_and_exporting_writes_them_into_the_extra(make_dataset: Make, tmp_path: Path) -> None:
    path = make_dataset(20)
    captioned(path).with_columns({"label": np.full(20, 2)}).without([5]).save()
    shuffle(path, tmp_path / "shuffled", seed=1, method="transpose", workers=1)
    records = list(picstore.Dataset(tmp_path / "shuffled"))
    assert len(records) == 19
    assert all(record.columns["caption"] == f"Bild {record.id} 北" and record.label == 2 for record in records)
    export(tmp_path / "shuffled", tmp_path / "out", format="folder", workers=InlineEngine(1))
    lines = [json.loads(line) for line in (tmp_path / "out" / "records.jsonl").read_text().splitlines()]
    assert all("Bild" in json.dumps(line, ensure_ascii=False) for line in lines)
    assert len(list((tmp_path / "out").glob("class2/*"))) == 19


def test_a_damaged_column_is_named_and_costs_nothing_else(make_dataset: Make) -> None:
    path = make_dataset(6)
    dataset = captioned(path).save()
    part = next(entry for entry in dataset.manifest.edits.columns if entry.name == "caption").values
    data = bytearray((path / part.file).read_bytes())
    data[-1] ^= 1
    (path / part.file).write_bytes(data)
    with pytest.raises(Corrupt, match=part.file):
        list(picstore.Dataset(path))
    assert [finding.file for finding in verify(path, workers=1)[1]] == [part.file]
    assert sum(len(batch.labels) for batch in loader_of(path, targets=["age"])) == 6
    with pytest.raises(Corrupt, match="fails its CRC"):
        list(loader_of(path, targets=["caption"]))


@pytest.mark.parametrize(
    "change",
    [
        {"file": "../../secret.npy"},
        {"file": "edits/../picstore.json"},
        {"bytes": -1},
        {"bytes": 1 << 62},
        {"crc32c": 0},
    ],
)
def test_a_manifest_that_names_other_files_or_sizes_is_refused(make_dataset: Make, change: dict[str, Any]) -> None:
    from picstore.storage.format.checksum import crc32c

    path = make_dataset(4)
    picstore.Dataset(path).without([1]).save()
    document = json.loads((path / "picstore.json").read_text())
    document["edits"]["tombstones"].update(change)
    del document["crc32c"]
    document["crc32c"] = crc32c(json.dumps(document, sort_keys=True, separators=(",", ":")).encode())
    (path / "picstore.json").write_text(json.dumps(document))
    with pytest.raises(picstore.Damage):
        picstore.Dataset(path)


def test_a_part_is_a_file_that_numpy_reads_and_never_a_pickle(make_dataset: Make, tmp_path: Path) -> None:
    from picstore.storage.edits.edit_entries import pack_npy_file, parse_npy_file

    path = make_dataset(4)
    dataset = captioned(path).save()
    entry = dataset.manifest.edits.columns[0]
    assert np.load(path / entry.values.file, allow_pickle=False).tolist() == sorted((2 * dataset.ids).tolist())
    with pytest.raises(ValueError, match="pickle"):
        pack_npy_file(np.array([{}]))
    np.save(tmp_path / "objects.npy", np.array([{}]), allow_pickle=True)
    _, good = pack_npy_file(np.arange(3))
    for raw in ((tmp_path / "objects.npy").read_bytes(), good[:-1], good[:20], b"", good.replace(b"(3,)", b"(9,)")):
        with pytest.raises(Corrupt):
            parse_npy_file(raw, file="here")


def test_a_mux_hands_out_columns_of_all_its_data_sets(make_dataset: Make, tmp_path: Path) -> None:
    for name in ("one", "other"):
        dataset = picstore.Dataset(make_dataset(8, name=name))
        dataset.with_columns({"caption": [f"{name} {id_}" for id_ in dataset.ids], "n": dataset.ids}).save()
    (tmp_path / "mux.tsv").write_text(f"{tmp_path / 'one'} 0 2\n{tmp_path / 'other'} 100 1\n")
    mux = picstore.DataMux(tmp_path / "mux.tsv", threads=1, isolate=False, epoch_batches=4, targets=["caption", "n"])
    for batch in mux:
        names = ["other" if label >= 100 else "one" for label in batch.labels.tolist()]
        assert batch.columns["caption"] == [f"{a} {b}" for a, b in zip(names, batch.ids.tolist(), strict=True)]
        assert batch.columns["n"].equal(batch.ids)
    mux.close()


@pytest.mark.parametrize("isolate", slow_except([False], [False, True]))
def test_in_a_mux_images_of_data_sets_without_a_column_have_no_value(
    make_dataset: Make, tmp_path: Path, isolate: bool
) -> None:
    plain = picstore.Dataset(make_dataset(8, name="plain"))
    whole = picstore.Dataset(make_dataset(8, name="whole"))
    whole.with_columns(
        {
            "caption": [f"image {id_}" for id_ in whole.ids],
            "n": whole.ids,
            "v": np.outer(whole.ids, [1.0, 2.0]).astype(np.float32),
        }
    ).save()
    plain.with_columns({"age": plain.ids}).save()
    (tmp_path / "mux.tsv").write_text(f"{plain.path} 0 2\n{whole.path} 100 1\n")
    names = ["caption", "n", "v", "age"]
    with contextlib.closing(
        picstore.DataMux(tmp_path / "mux.tsv", threads=1, isolate=isolate, epoch_batches=4, targets=names)
    ) as mux:
        for batch in mux:
            there = [label >= 100 for label in batch.labels.tolist()]
            ids = batch.ids.tolist()
            assert sum(there) == 1
            assert batch.columns["caption"] == [
                f"image {i}" if has else None for i, has in zip(ids, there, strict=True)
            ]
            assert batch.columns["n"].tolist() == [i if has else -1 for i, has in zip(ids, there, strict=True)]
            assert batch.columns["age"].tolist() == [-1 if has else i for i, has in zip(ids, there, strict=True)]
            assert batch.columns["v"].numpy().dtype == np.float32
            assert batch.columns["v"].isnan().all(dim=1).tolist() == [not has for has in there]
        for _ in range(6):
            sample = mux.read()
            assert list(sample.columns) == names
            assert sample.columns["caption"] == (f"image {sample.id}" if sample.label >= 100 else None)
            assert int(sample.columns["n"]) == (sample.id if sample.label >= 100 else -1)


def test_a_mux_refuses_columns_that_are_attachments_elsewhere_or_unknown(make_dataset: Make, tmp_path: Path) -> None:
    dataset = picstore.Dataset(make_dataset(4))
    dataset.with_columns({"mask": dataset.ids}).save()
    with picstore.Writer(tmp_path / "other", attachments=["mask"]) as writer:
        writer.add(picture(0), attachments={"mask": b"m"})
    (tmp_path / "mux.tsv").write_text(f"{dataset.path} 0 2\n{tmp_path / 'other'} 100 1\n")
    with pytest.raises(UsageError, match=r"is an attachment of .* and a column of another"):
        picstore.DataMux(tmp_path / "mux.tsv", targets=["mask"])
    with pytest.raises(UsageError, match="target 'caption' is unknown"):
        picstore.DataMux(tmp_path / "mux.tsv", targets=["caption"])


def test_a_record_of_any_id_may_lack_a_value(make_dataset: Make) -> None:
    column = picstore.Dataset(make_dataset(4)).with_columns({"weight": [1.0, 2.0, 3.0, 4.0]}).column("weight")
    assert [column.get(id_) for id_ in ((1 << 63) + 5, (1 << 64) - 1, -1, 99)] == [None] * 4
    assert column.get(int(column.ids[2])) == column.values[2]
