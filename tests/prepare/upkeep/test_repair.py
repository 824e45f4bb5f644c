"""picstore repair: what is left of a damaged data set can be read, and what is lost is named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from commands import picstore_command, picstore_json, tree
from samples import jpeg

import picstore
from picstore.errors import Corrupt, NotADataset, Unfinished, UnsupportedVersion
from picstore.prepare.upkeep.repair import repair
from picstore.prepare.upkeep.repair_manifest import mend_manifest
from picstore.prepare.upkeep.shuffle import shuffle
from picstore.prepare.upkeep.verify import verify
from picstore.storage.format.checksum import crc32c
from picstore.storage.location.resolve import locate


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
    assert (done.index, done.lost, tree(dataset)) == (False, 0, before)


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
    with pytest.raises(Corrupt, match="restore it from a copy"):
        repair(dataset)
    assert tree(dataset) == before


def test_records_that_cannot_be_read_are_deleted_and_named(dataset: Path, tmp_path: Path) -> None:
    opened = picstore.Dataset(dataset)
    place, entry = opened.place(1), opened.entries(1)[2]
    flip(dataset / place.name, place.offset + int(entry["offset"]) + 50)
    cut = dataset / "0000" / "000000.pic"
    rows = [row for row in opened.rows if (row["stream"], row["file"]) == (0, 0)]
    cut.write_bytes(cut.read_bytes()[: int(rows[1]["offset"]) + 100])
    gone = opened.manifest.files[-1]
    (dataset / f"{gone.stream:04d}" / f"{gone.file:06d}.pic").unlink()
    lost = 1 + sum(int(row["records"]) for row in rows[1:]) + gone.records
    said = picstore_command("repair", dataset).stdout
    assert place.name in said
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


@pytest.mark.parametrize("kind", ["converted", "edited"])
def test_a_manifest_of_which_a_field_is_damaged_becomes_what_it_was_if_that_can_be_known(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    dataset = tmp_path / "copy"
    shutil.copytree(request.getfixturevalue(kind), dataset)
    path = dataset / "picstore.json"
    sound, before = path.read_bytes(), tree(dataset)
    document = json.loads(sound)
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
        path.write_text(json.dumps({**document, name: value}))
        done = repair(dataset)
        assert (done.manifest, done.remarks) == (True, []), name
        assert tree(dataset) == before, name


def test_a_flipped_bit_of_the_manifest_costs_no_record(converted: Path, tmp_path: Path) -> None:
    """And mostly nothing else; where it does, that is said."""
    dataset = tmp_path / "copy"
    shutil.copytree(converted, dataset)
    path, sound, wanted = dataset / "picstore.json", (converted / "picstore.json").read_bytes(), contents(converted)
    rng = np.random.default_rng(0)
    whole = 0
    for at in rng.integers(0, 8 * len(sound), 150).tolist():
        damaged = bytearray(sound)
        damaged[at // 8] ^= 1 << at % 8
        path.write_bytes(damaged)
        done = repair(dataset)
        assert len(done.dataset) == 40
        if done.remarks:
            assert contents(dataset) == wanted
            assert (dataset / "picstore.json.damaged").read_bytes() == damaged
            (dataset / "picstore.json.damaged").unlink()
        else:
            whole += 1
            assert json.loads(path.read_bytes()) == json.loads(sound)
    assert whole > 100
    assert verify(dataset, workers=1)[1] == []


def test_a_bit_that_is_flipped_in_a_name_is_flipped_back(tmp_path: Path) -> None:
    with picstore.Writer(tmp_path / "a", classes=['Käse, "gerieben"', "b"]) as writer:
        writer.add(jpeg(0), label=1)
    path = tmp_path / "a" / "picstore.json"
    sound = path.read_bytes()
    first = sound.index(b'"classes": [') + 13
    for at in range(8 * first, 8 * sound.index(b'", "b', first)):
        damaged = bytearray(sound)
        damaged[at // 8] ^= 1 << at % 8
        path.write_bytes(damaged)
        mended = mend_manifest(locate(tmp_path / "a"))
        if mended is None:  # a letter of an escape, now a capital
            assert json.loads(damaged) == json.loads(sound)
        else:
            assert (mended.remarks, path.read_bytes()) == ([], sound), bytes(damaged)


@pytest.mark.parametrize("left", [0, 30, 300, 700, -1])
def test_of_a_manifest_that_is_cut_off_what_is_left_is_taken(converted: Path, tmp_path: Path, left: int) -> None:
    dataset = tmp_path / "copy"
    shutil.copytree(converted, dataset)
    path = dataset / "picstore.json"
    wanted = contents(dataset)
    if left < 0:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:left])
    before = {name: digest for name, digest in tree(dataset).items() if name != "picstore.json"}
    done = picstore_json("repair", dataset)
    assert done["manifest"]
    assert done["remarks"]
    assert contents(dataset) == wanted
    assert verify(dataset, workers=1)[1] == []
    assert before.items() <= tree(dataset).items()
    assert picstore.Dataset(dataset).manifest.provenance["outcome"]["failed"] == 1
    assert picstore.Dataset(dataset).classes == ["class0", "class1"]  # of the manifest, or the folders' names
    assert picstore_json("repair", dataset) | {"uuid": ""} == done | {"uuid": "", "manifest": False, "remarks": []}


def test_names_of_classes_that_nobody_tells_are_left_out_until_they_are_given(
    make_dataset: Callable[..., Path], tmp_path: Path
) -> None:
    dataset, names = make_dataset(20), tmp_path / "names.txt"
    (dataset / "picstore.json").unlink()
    assert "classes: lost, left out; --classes FILE" in picstore_command("repair", dataset).stdout
    assert picstore.Dataset(dataset).classes == []
    names.write_text("a\nb\nc\nd\ne\n")
    assert picstore_json("repair", dataset, "--classes", names)["remarks"] == []
    assert picstore.Dataset(dataset).classes == ["a", "b", "c", "d", "e"]
    assert [record.label for record in picstore.Dataset(dataset)] == [r.id % 5 for r in picstore.Dataset(dataset)]


@pytest.mark.parametrize("kind", ["converted", "edited"])
def test_without_manifest_and_index_the_files_say_what_there_is(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    dataset, names = tmp_path / "copy", tmp_path / "names.txt"
    shutil.copytree(request.getfixturevalue(kind), dataset)
    opened = picstore.Dataset(dataset)
    names.write_text("\n".join(opened.classes))
    index = dataset / (opened.manifest.edits.index if opened.manifest.edits else "picstore.idx")
    wanted, raw = contents(dataset), index.read_bytes()
    index.unlink()
    if kind == "converted":
        (dataset / "picstore.json").unlink()
    else:
        document = json.loads((dataset / "picstore.json").read_text())
        (dataset / "picstore.json").write_text(json.dumps({**document, "files": 0, "index_crc32c": 0}))
    cut = dataset / "0001" / "000000.pic"
    cut.write_bytes(cut.read_bytes()[:-70])  # its footer too
    done = picstore_json("repair", dataset, "--classes", names)
    assert done["manifest"]
    assert done["index"]
    assert index.read_bytes() == raw
    assert contents(dataset) == wanted
    assert picstore.Dataset(dataset).classes == opened.classes


def test_where_nobody_can_tell_what_was_deleted_nothing_is_guessed(edited: Path) -> None:
    path = edited / "picstore.json"
    document = json.loads(path.read_text())
    del document["edits"]
    path.write_text(json.dumps(document))
    before = tree(edited)
    with pytest.raises(Corrupt, match="what was deleted and attached cannot be told"):
        repair(edited)
    assert tree(edited) == before


def test_attachments_are_found_without_their_names(tmp_path: Path) -> None:
    with picstore.Writer(tmp_path / "a", attachments=["mask", "depth"]) as writer:
        for number in range(5):
            writer.add(jpeg(number), attachments={"mask": b"m%d" % number})
    (tmp_path / "a" / "picstore.json").unlink()
    done = repair(tmp_path / "a")
    assert any("attachments: lost" in remark for remark in done.remarks)
    assert [record.attachments for record in done.dataset] == [
        {"attachment0": b"m%d" % record.id} for record in done.dataset
    ]


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
