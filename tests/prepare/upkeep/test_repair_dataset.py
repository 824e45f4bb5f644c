"""picstore repair: a damaged manifest or index is restored, lost records are deleted and named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from commands import picstore_command, picstore_json, tree
from grids import slow_except
from samples import jpeg

import picstore
from picstore.errors import Corrupt, NotADataset, Unfinished, UnsupportedVersion
from picstore.prepare.upkeep.repair_dataset import repair
from picstore.prepare.upkeep.shuffled_copy import shuffle
from picstore.prepare.upkeep.verify_dataset import verify
from picstore.storage.format.checksum import crc32c
from picstore.storage.format.container_index import index_file
from picstore.storage.location.resolve import COPY, MANIFEST
from picstore.storage.manifest_writer import DAMAGED


@pytest.fixture
def dataset(make_dataset: Callable[..., Path]) -> Path:
    """120 records in 3 streams and several files and containers."""
    return make_dataset(120, container_size=12 << 10, file_size=30 << 10)


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(data)


def test_a_sound_data_set_stays_as_it_is(dataset: Path) -> None:
    before = tree(dataset)
    done = repair(dataset)
    assert (done.index, done.records_lost, tree(dataset)) == (False, 0, before)


@pytest.mark.parametrize("tail", [0, 100])
def test_a_lost_index_is_made_anew_to_the_same_bytes(dataset: Path, tail: int) -> None:
    """Even where a file's footer is lost too, as its containers are found by their headers."""
    before = tree(dataset)
    (dataset / "picstore.idx").unlink()
    file = dataset / "0001" / "000000.pic"
    file.write_bytes(file.read_bytes()[: file.stat().st_size - tail])
    assert picstore_json("repair", dataset)["index"]
    assert tree(dataset)["picstore.idx"] == before["picstore.idx"]
    assert len(list(picstore.Dataset(dataset))) == 120


def test_an_index_that_cannot_be_made_anew_is_not_guessed(dataset: Path) -> None:
    flip(dataset / "picstore.idx", 100)
    (dataset / "0001" / "000000.pic").unlink()
    before = tree(dataset)
    with pytest.raises(Corrupt, match="restore it from a backup"):
        repair(dataset)
    assert tree(dataset) == before


def test_the_index_of_an_append_that_was_never_published_is_not_taken(dataset: Path, tmp_path: Path) -> None:
    """The longer index and its files lie there; neither a lost index nor a lost manifest brings them in."""
    uuid = picstore.Dataset(dataset).uuid
    index = picstore.Dataset(dataset).rows
    (dataset / "edits").mkdir()
    more = np.concatenate([index, index[-1:]])
    more["file"][-1] += 1
    (dataset / "edits" / "0123456789abcdef.idx").write_bytes(index_file(more))
    (dataset / "picstore.idx").unlink()
    (dataset / "picstore.json").unlink()
    done = repair(dataset)
    assert (done.manifest, done.index, done.uuid, done.images) == (True, True, uuid, 120)
    (dataset / "picstore.json").unlink()
    (dataset / "picstore.copy.json").unlink()
    with pytest.raises(NotADataset):
        repair(dataset)


@pytest.mark.slow
def test_records_that_cannot_be_read_are_deleted_and_named(dataset: Path, tmp_path: Path) -> None:
    opened = picstore.Dataset(dataset)
    ref, entry = opened.containers.container_ref(1), opened.entries(1)[2]
    flip(dataset / ref.name, ref.offset + int(entry["offset"]) + 50)
    cut = dataset / "0000" / "000000.pic"
    rows = [row for row in opened.rows if (row["stream"], row["file"]) == (0, 0)]
    cut.write_bytes(cut.read_bytes()[: int(rows[1]["offset"]) + 100])
    gone = opened.manifest.files[-1]
    (dataset / f"{gone.stream:04d}" / f"{gone.file:06d}.pic").unlink()
    lost = 1 + sum(int(row["records"]) for row in rows[1:]) + gone.records
    said = picstore_command("repair", dataset).stdout
    assert ref.name in said
    assert f"{lost} lost records deleted, {120 - lost} images left" in said
    repaired = picstore.Dataset(dataset)
    assert len(list(repaired)) == len(repaired) == 120 - lost
    assert int(entry["id"]) not in repaired.ids
    loader = picstore.Loader(dataset, batch_size=5, threads=1, isolate=False, drop_last=False, on_damage="raise")
    assert sorted(id_ for batch in loader for id_ in batch.ids.tolist()) == sorted(repaired.ids.tolist())
    assert picstore_json("repair", dataset)["records_lost"] == 0
    assert picstore_json("verify", dataset, code=3)["records_lost"] == 0
    shuffle(dataset, tmp_path / "out", seed=0, method="transpose", workers=1)
    assert verify(tmp_path / "out", workers=1)[1] == []
    assert sorted(picstore.Dataset(tmp_path / "out").ids.tolist()) == sorted(repaired.ids.tolist())
    assert picstore_json("info", dataset)["images"] == 120 - lost


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A converted data set of 40 images in two classes, and its ledger."""
    folder = tmp_path_factory.mktemp("source")
    for number in range(40):
        path = folder / f"class{number % 2}" / f"{number:02d}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(jpeg(number))
    (folder / "class0" / "bad.jpg").write_bytes(b"bad")
    out = tmp_path_factory.mktemp("out") / "train"
    picstore_command("convert", folder, out, "--streams", 3, "--container-size", "8KiB", "--max-errors", 1)
    return out


@pytest.fixture
def edited(converted: Path, tmp_path: Path) -> Path:
    """The same with rows appended, a column, and deleted records."""
    out = tmp_path / "edited"
    shutil.copytree(converted, out)
    more = tmp_path / "more" / "class2"
    more.mkdir(parents=True)
    for number in range(5):
        (more / f"{number}.jpg").write_bytes(jpeg(50 + number))
    picstore_command("convert", more.parent, out, "--append")
    opened = picstore.Dataset(out)
    opened.with_columns({"caption": [f"image {id_}" for id_ in opened.ids]}).without([3, 7]).save()
    return out


def contents(dataset: Path) -> list[tuple[object, ...]]:
    return [(r.id, r.label, bytes(r.jpeg), r.extra, r.columns) for r in picstore.Dataset(dataset)]


def damage(dataset: Path, raw: bytes | None) -> None:
    """Put other bytes in the manifest's place, or none."""
    if raw is None:
        (dataset / MANIFEST).unlink()
    else:
        (dataset / MANIFEST).write_bytes(raw)


def require_restored(dataset: Path, before: dict[str, str], damaged: bytes | None) -> None:
    """Repair, and require every file to be as before, and the damaged manifest to be kept."""
    done = repair(dataset)
    assert (done.manifest, done.copy, done.index, done.records_lost) == (True, False, False, 0)
    if damaged is not None:
        assert (dataset / DAMAGED).read_bytes() == damaged
        (dataset / DAMAGED).unlink()
    assert tree(dataset) == before


@pytest.mark.parametrize("kind", ["converted", "edited"])
def test_a_manifest_of_which_a_field_is_damaged_becomes_what_it_was(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    dataset = tmp_path / "copy"
    shutil.copytree(request.getfixturevalue(kind), dataset)
    before = tree(dataset)
    document = json.loads((dataset / MANIFEST).read_bytes())
    changes: list[tuple[str, object]] = [
        ("uuid", "00000000-0000-8000-8000-000000000000"),
        ("images", 39),
        ("bytes", 1),
        ("containers", 7),
        ("streams", 5),
        ("container_size", 9000),
        ("index_crc32c", 1),
        ("files", []),
        ("format", "picstorf"),
        ("format_version", 7),
    ]
    if kind == "converted":
        changes.append(("provenance", {**document["provenance"], "inputs": 42, "outcome": {"lossless": 3}}))
    else:
        changes += [("classes", ["other", "names"]), ("encode", None), ("edits", {**document["edits"], "deleted": 1})]
    for name, value in changes:
        raw = json.dumps({**document, name: value}).encode()
        damage(dataset, raw)
        require_restored(dataset, before, raw)


@pytest.mark.parametrize(
    ("left", "kind"),
    slow_except(
        [(0, "edited"), (300, "converted"), (700, "edited"), (None, "converted")],
        product([0, 30, 300, 700, None], ["converted", "edited"]),
    ),
)
def test_a_manifest_that_is_cut_off_or_missing_becomes_what_it_was(
    kind: str, left: int | None, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    dataset = tmp_path / "copy"
    shutil.copytree(request.getfixturevalue(kind), dataset)
    wanted, before = contents(dataset), tree(dataset)
    raw = None if left is None else (dataset / MANIFEST).read_bytes()[:left]
    damage(dataset, raw)
    require_restored(dataset, before, raw)
    assert contents(dataset) == wanted
    assert verify(dataset, workers=1)[1] == []


@pytest.mark.parametrize("kind", ["converted", "edited"])
def test_manifest_index_and_a_footer_are_restored_together(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    dataset = tmp_path / "copy"
    shutil.copytree(request.getfixturevalue(kind), dataset)
    opened = picstore.Dataset(dataset)
    index = dataset / (opened.manifest.edits.index if opened.manifest.edits else "picstore.idx")
    wanted, raw = contents(dataset), index.read_bytes()
    index.unlink()
    (dataset / MANIFEST).unlink()
    cut = dataset / "0001" / "000000.pic"
    cut.write_bytes(cut.read_bytes()[:-70])
    done = picstore_json("repair", dataset)
    assert done["manifest"]
    assert done["index"]
    assert index.read_bytes() == raw
    assert contents(dataset) == wanted
    assert picstore.Dataset(dataset).classes == opened.classes


@pytest.mark.parametrize("raw", [None, b"", b"damaged"])
def test_a_damaged_manifest_with_a_damaged_copy_is_named_and_left_alone(raw: bytes | None, edited: Path) -> None:
    damage(edited, raw)
    copy = bytearray((edited / COPY).read_bytes())
    copy[len(copy) // 2] ^= 1
    (edited / COPY).write_bytes(copy)
    before = tree(edited)
    with pytest.raises(Corrupt, match="the manifest and its copy") as caught:
        repair(edited)
    assert caught.value.file == str(edited / MANIFEST)
    assert tree(edited) == before


def test_a_missing_copy_is_a_remark_and_a_damaged_one_is_damage(converted: Path, tmp_path: Path) -> None:
    dataset = tmp_path / "copy"
    shutil.copytree(converted, dataset)
    before = tree(dataset)
    (dataset / COPY).unlink()
    assert len(picstore.Dataset(dataset)) == 40
    found = picstore_json("verify", dataset)
    assert (found["ok"], found["damage"], len(found["remarks"])) == (True, [], 1)
    assert "picstore repair" in found["remarks"][0]
    assert "copy of the manifest written" in picstore_command("repair", dataset).stdout
    assert tree(dataset) == before
    for damaged in (b"", b"{}", (dataset / COPY).read_bytes()[:-10], (dataset / COPY).read_bytes().replace(b"4", b"5")):
        (dataset / COPY).write_bytes(damaged)
        assert len(picstore.Dataset(dataset)) == 40
        assert [(finding.file, finding.records_lost) for finding in verify(dataset, workers=1)[1]] == [(COPY, 0)]
        done = repair(dataset)
        assert (done.manifest, done.copy) == (False, True)
        assert tree(dataset) == before


def test_what_is_no_data_set_or_not_finished_is_not_repaired(converted: Path, tmp_path: Path) -> None:
    with pytest.raises(NotADataset, match="does not exist"):
        repair(tmp_path / "none")
    (tmp_path / "picstore.json").write_text("{}")
    with pytest.raises(NotADataset, match="another program"):
        repair(tmp_path)
    dataset = tmp_path / "copy"
    shutil.copytree(converted, dataset)
    (dataset / "unfinished").mkdir()
    (dataset / "unfinished" / "job.json").write_text('{"verb": "convert"}')
    (dataset / "picstore.json").unlink()
    with pytest.raises(Unfinished, match="--resume"):
        repair(dataset)
    assert not (dataset / "picstore.json").exists()


def test_a_manifest_of_a_later_version_is_not_taken_for_damage(converted: Path, tmp_path: Path) -> None:
    dataset = tmp_path / "copy"
    shutil.copytree(converted, dataset)
    document = json.loads((dataset / "picstore.json").read_text())
    document["format_version"] = 9
    del document["crc32c"]
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    document["crc32c"] = crc32c(text.encode())
    (dataset / "picstore.json").write_text(json.dumps(document))
    with pytest.raises(UnsupportedVersion, match="upgrade picstore"):
        repair(dataset)
    (dataset / COPY).write_bytes((dataset / MANIFEST).read_bytes())
    (dataset / MANIFEST).unlink()
    with pytest.raises(UnsupportedVersion, match="upgrade picstore"):
        repair(dataset)


def test_a_record_that_is_lost_before_a_deleted_one_is_deleted_too(make_dataset: Callable[..., Path]) -> None:
    root = make_dataset(20, streams=1)
    ids = picstore.Dataset(root).ids.tolist()
    picstore.Dataset(root).without([ids[9]]).save()
    entry = picstore.Dataset(root).entries(0)[2]
    flip(
        root / "0000" / "000000.pic",
        picstore.Dataset(root).containers.container_ref(0).offset + int(entry["offset"]) + 40,
    )
    assert repair(root).records_lost == 1
    assert picstore.Dataset(root).ids.tolist() == [id_ for k, id_ in enumerate(ids) if k not in (2, 9)]
    assert verify(root, workers=1).findings == []
