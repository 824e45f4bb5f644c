"""Data sets from strangers: checksums that are right, and a uuid, types, names and counts that are not."""

from __future__ import annotations

import copy
import json
import shutil
import tracemalloc
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hostile import canonical, content_uuid, good_record, replace_container, rewrite_manifest, write_dataset
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import picstore
from picstore.cli.print_result import print_result
from picstore.errors import Corrupt, Damage, NotADataset, Truncated, UnsupportedVersion, UsageError
from picstore.prepare.image.encode_settings import EncodeSettings
from picstore.prepare.upkeep.repair_dataset import repair
from picstore.prepare.upkeep.verify_dataset import verify
from picstore.storage.edits.edit_entries import pack_npy_file, parse_npy_file
from picstore.storage.format.checksum import crc32c
from picstore.storage.format.container_index import index_file
from picstore.storage.format.layout import SEALED
from picstore.storage.location.resolve import INDEX, MANIFEST
from picstore.storage.manifest import read_index, read_manifest

OTHER_UUID = "14616aca-0115-87c8-af44-b5bf0f448bdd"
# Bytes, of 800 MiB that a list would take. What other tests' threads allocate counts too: up to 28 MiB on 3.14t.
TRACED = 64 << 20


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """A sound data set of eight records in one container."""
    return write_dataset(tmp_path / "downloads" / "dataset", [good_record(number) for number in range(8)])


# The uuid


@pytest.mark.parametrize("kind", ["relative", "absolute", "another one's"])
def test_a_uuid_that_does_not_fit_the_content_is_refused_without_a_file(
    dataset: Path, tmp_path: Path, kind: str
) -> None:
    victim = tmp_path / "settings.json"
    victim.write_text("precious")
    names = {"relative": "../../../settings", "absolute": str(tmp_path / "settings"), "another one's": OTHER_UUID}
    rewrite_manifest(dataset, uuid=names[kind])
    before = {*tmp_path.rglob("*"), dataset / "edits", dataset / "edits" / "lock"}
    for opening in (lambda: picstore.Dataset(dataset), lambda: picstore.Dataset(dataset, cache=tmp_path / "cache")):
        with pytest.raises(Corrupt, match="uuid"):
            opening()
    with pytest.raises(Corrupt, match="uuid"):
        repair(dataset)
    assert set(tmp_path.rglob("*")) <= before
    assert victim.read_text() == "precious"


def test_verify_reports_a_uuid_that_is_not_that_of_the_content(dataset: Path) -> None:
    rewrite_manifest(dataset, uuid=OTHER_UUID)
    findings = verify(dataset, workers=1).findings
    assert [finding.file for finding in findings] == [MANIFEST]
    assert "uuid" in findings[0].problem
    assert findings[0].records_lost == 0


def test_an_earlier_version_under_the_name_of_another_is_refused(dataset: Path) -> None:
    first = picstore.Dataset(dataset)
    second = first.without([0]).save()
    assert len(picstore.Dataset(dataset, version=first.uuid)) == 8
    shutil.copy(dataset / "edits" / f"{first.uuid}.json", dataset / "edits" / f"{OTHER_UUID}.json")
    with pytest.raises(Corrupt, match="misplaced"):
        picstore.Dataset(dataset, version=OTHER_UUID)
    rewrite_manifest(dataset, name=f"edits/{OTHER_UUID}.json", uuid=OTHER_UUID)
    with pytest.raises(Corrupt, match="uuid"):
        picstore.Dataset(dataset, version=OTHER_UUID)
    with pytest.raises(UsageError, match=second.uuid):
        picstore.Dataset(dataset, version="../../settings")


def test_every_uuid_that_an_edit_writes_is_that_of_the_content(dataset: Path) -> None:
    saved = picstore.Dataset(dataset).without([3]).with_columns({"caption": [f"c{k}" for k in range(7)]}).save()
    assert rewrite_manifest(dataset)["uuid"] == saved.uuid == picstore.Dataset(dataset).uuid


def test_a_data_set_with_the_manifest_of_another_does_not_share_its_cache(dataset: Path, tmp_path: Path) -> None:
    """A uuid covers CRCs, which can be forged: a copy with other images has the same uuid and no damage."""
    forged = tmp_path / "forged"
    shutil.copytree(dataset, forged)
    replace_container(forged, [good_record(0, id=number, label=1) for number in range(8)])
    sound = picstore.Dataset(dataset)
    assert picstore.Dataset(forged).uuid == sound.uuid
    assert verify(forged, workers=1).findings == []
    cache = tmp_path / "cache"
    assert {record.label for record in picstore.Dataset(forged, cache=cache)} == {1}
    assert list(picstore.Dataset(dataset, cache=cache)) == list(sound)
    assert list(picstore.Dataset(forged, cache=cache)) != list(sound)


# Types of the manifest's fields

VALUES = st.sampled_from(
    [None, -1, 1.5, 10**30, "x", "\ud800", [], {}, [1], [None], {"a": 1}, True, [["x"]], [{}], float("inf")]
)


def paths_of(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The places of all values in a JSON document."""
    yield path
    if isinstance(value, (dict, list)):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from paths_of(value[key], (*path, key))


def replaced(document: Any, path: tuple[str | int, ...], value: Any) -> Any:
    """The document with another value at a place; ``...`` removes it."""
    if not path:
        return value
    copied = copy.copy(document)
    inner = replaced(document[path[0]], path[1:], value)
    if inner is ...:
        del copied[path[0]]
    else:
        copied[path[0]] = inner
    return copied


@pytest.fixture(scope="module")
def edited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set with tombstones, columns, and everything in its manifest that convert writes."""
    outcome = {"lossless": 8, "reencoded": 0, "failed": 0, "source_bytes": 1, "jpeg_bytes": 1}
    root = write_dataset(
        tmp_path_factory.mktemp("types") / "dataset",
        [good_record(number) for number in range(8)],
        classes=("a", "b"),
        encode=EncodeSettings().to_json(),
        provenance={"picstore": "0", "source": "folder", "inputs": 8, "shape": {"seed": 1}, "outcome": outcome},
        shuffle=({"method": "uniform", "seed": 1, "parent": OTHER_UUID},),
    )
    dataset = picstore.Dataset(root).without([3])
    return Path(str(dataset.with_columns({"caption": ["x"] * 7, "score": range(7)}).save().path))


@given(data=st.data())
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_field_of_another_type_is_corrupt_or_read_like_any_other(edited: Path, data: st.DataObject) -> None:
    original = (edited / MANIFEST).read_bytes()
    document = json.loads(original)
    path = data.draw(st.sampled_from([path for path in paths_of(document) if path and path[0] != "crc32c"]))
    value = data.draw(VALUES | st.just(...))
    mutated = replaced(document, path, value)
    try:
        write_with_right_checksums(edited, mutated)
        use_all_of(edited)
    except (Damage, NotADataset, UnsupportedVersion) as error:
        assert "\n" not in str(error)
    finally:
        (edited / MANIFEST).write_bytes(original)


def write_with_right_checksums(root: Path, document: dict[str, Any]) -> None:
    body = {name: value for name, value in document.items() if name != "crc32c"}
    if isinstance(body.get("uuid"), str):
        body["uuid"] = content_uuid(body, (root / INDEX).read_bytes()[SEALED:])
    (root / MANIFEST).write_text(json.dumps({**body, "crc32c": crc32c(canonical(body))}))


def use_all_of(root: Path) -> None:
    """What users do with a data set."""
    dataset = picstore.Dataset(root)
    list(dataset)
    assert len(dataset.ids) == len(dataset)
    [dataset.column(name).take(dataset.ids) for name in dataset.columns]
    print_result(picstore.info(dataset), as_json=False)
    copy.deepcopy(dataset).without([0])  # opened again, as in another process


@pytest.mark.parametrize("depth", [40, 900, 100_000])
def test_free_values_that_are_nested_deeply_are_refused(dataset: Path, depth: int) -> None:
    document = json.loads((dataset / MANIFEST).read_text())
    body = {name: value for name, value in document.items() if name != "crc32c"}
    body["provenance"] = {"deep": "DEEP"}
    text = canonical(body).decode().replace('"DEEP"', "[" * depth + "]" * depth)
    crc = crc32c(text.encode())
    (dataset / MANIFEST).write_text(f'{text[:-1]},"crc32c":{crc}}}')
    with pytest.raises(Damage, match=r"levels deep|not whole JSON"):
        picstore.Dataset(dataset)


def test_the_message_names_the_field_and_its_value(dataset: Path) -> None:
    files = json.loads((dataset / MANIFEST).read_text())["files"]
    rewrite_manifest(dataset, files=[{**files[0], "crc32c": "x"}])
    with pytest.raises(Corrupt, match=r"files\[0\]\.crc32c is 'x', not an integer from 0 to 4,294,967,295"):
        picstore.Dataset(dataset)


# Arrays of edits


def npy(header: bytes, data: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data


@pytest.mark.parametrize(
    "header",
    [
        b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n",
        b"{'descr': '|V0', 'fortran_order': False, 'shape': (1,), }\n",
        b"{'descr': '<i8', 'fortran_order': True, 'shape': (1,), }\n",
        b"{'descr': '<i8', 'fortran_order': False, 'shape': (-1,), }\n",
        b"{'descr': '<i8', 'fortran_order': False, 'shape': (), }\n",
        b"{'descr': '<i8', 'fortran_order': False, 'shape': (4000000000, 4000000000), }\n",
        b"{'descr': [('a', '<i8')], 'fortran_order': False, 'shape': (1,), }\n",
        b"{'descr': ('<i8', (1,)), 'fortran_order': False, 'shape': (1,), }\n",
        b"{'descr': '>i8', 'fortran_order': False, 'shape': (1,), }\n",
        b"(" * 4000,
        b"-" * 4000 + b"1",
    ],
)
def test_an_array_file_of_another_form_is_corrupt(header: bytes) -> None:
    with pytest.raises(Corrupt):
        parse_npy_file(npy(header, bytes(8)), file="here")


@pytest.mark.parametrize("deleted", [np.zeros((1, 1), "<i8"), np.zeros(1, "<f8"), np.full(1, 9, "<i8")])
def test_tombstones_of_another_form_are_corrupt(dataset: Path, deleted: np.ndarray) -> None:
    saved = picstore.Dataset(dataset).without([3]).save()
    assert saved.manifest.edits is not None
    entry = write_array(dataset, deleted)
    edits = {**asdict(saved.manifest.edits), "tombstones": entry}
    rewrite_manifest(dataset, edits=edits)
    with pytest.raises(Corrupt):
        picstore.Dataset(dataset)


def write_array(root: Path, array: np.ndarray) -> dict[str, Any]:
    """Write an array to edits/ and return its entry for the manifest."""
    entry, raw = pack_npy_file(array)
    (root / entry.file).write_bytes(raw)
    return asdict(entry)


@pytest.mark.parametrize(
    "arrays",
    [
        {"values": np.full(8, 0xFF, "u1")},  # no UTF-8
        {"ends": np.arange(8)},
        {"ends": np.arange(9)},
        {"ids": np.zeros(8, "<i8")},
        {"ids": np.arange(8)[:, None]},
        {"values": np.zeros((8, 1), "u1")},
        {"name": "label"},
        {"name": "label", "kind": "numbers", "ends": None, "values": np.zeros((8, 2), "<i8")},
        {"name": "label", "kind": "numbers", "ends": None, "values": np.zeros(8, "<f8")},
    ],
)
def test_a_column_of_another_form_is_corrupt(dataset: Path, arrays: dict[str, Any]) -> None:
    saved = picstore.Dataset(dataset).with_columns({"caption": list("abcdefgh")}).save()
    assert saved.manifest.edits is not None
    column = asdict(saved.manifest.edits.columns[0])
    for name, array in arrays.items():
        column[name] = write_array(dataset, array) if isinstance(array, np.ndarray) else array
    rewrite_manifest(dataset, edits={**asdict(saved.manifest.edits), "columns": [column]})
    with pytest.raises(Corrupt):
        list(picstore.Dataset(dataset))


# Links


def test_an_edit_writes_nothing_through_a_symbolic_link(dataset: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (dataset / "edits").symlink_to(elsewhere)
    opened = picstore.Dataset(dataset)
    for edited in (opened.without([0]), opened.with_columns({"caption": list("abcdefgh")})):
        with pytest.raises(UsageError, match="symbolic link"):
            edited.save()
    assert list(elsewhere.iterdir()) == []
    assert len(picstore.Dataset(dataset)) == 8


# Counts


def test_an_index_cannot_claim_more_records_than_its_containers_hold(dataset: Path) -> None:
    rows = claim(dataset, records=1 << 20)
    assert len(rows) == 1
    with pytest.raises(Corrupt, match="impossible container"):
        picstore.Dataset(dataset)


def test_repair_lists_no_more_lost_records_than_2_to_the_24(dataset: Path) -> None:
    """The same 100 rows: the numbers of the lost records alone would be 800 MiB of tombstones."""
    claim(dataset, rows=100, records=1 << 20, size=1 << 30)
    before = {path: path.read_bytes() for path in dataset.rglob("*") if path.is_file()}
    tracemalloc.start()
    try:
        with pytest.raises(Truncated, match=r"104,857,600 records.*backup"):
            repair(dataset)
        assert tracemalloc.get_traced_memory()[1] < TRACED
    finally:
        tracemalloc.stop()
    assert {path: path.read_bytes() for path in before} == before


def test_the_ids_of_records_without_bytes_take_no_memory(dataset: Path) -> None:
    """100 rows, 3 KB, claim 100 Mi records in files that are not there: 800 MiB of ids."""
    claim(dataset, rows=100, records=1 << 20, size=1 << 30)
    opened = picstore.Dataset(dataset)
    tracemalloc.start()
    try:
        for use in (lambda: opened.ids, lambda: opened.without([0])):
            with pytest.raises(Truncated, match="104,857,600 records"):
                use()
        assert tracemalloc.get_traced_memory()[1] < TRACED
    finally:
        tracemalloc.stop()


def claim(root: Path, *, rows: int = 1, **fields: int) -> np.ndarray:
    """Repeat the only row of the index with other fields, each for a file of its own."""
    manifest = read_manifest(root)
    claimed = np.repeat(read_index(root, manifest), rows)
    claimed["file"] = np.arange(rows)
    for name, value in fields.items():
        claimed[name] = value
    (root / INDEX).write_bytes(index_file(claimed))
    rewrite_manifest(root, containers=rows, index_crc32c=crc32c(claimed.tobytes()))
    return claimed


def test_a_writer_refuses_what_no_manifest_can_hold(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"classes\[0\] is 1, not text"):
        write_dataset(tmp_path / "dataset", [good_record(0)], classes=(1,))
    with pytest.raises(UsageError, match="classes"):
        picstore.Writer(tmp_path / "other", classes=[1, 2])  # type: ignore[list-item]
