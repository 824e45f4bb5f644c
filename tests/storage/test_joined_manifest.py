"""Several data sets read as one: for every reader, without a byte written."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import picstore_command, tree
from engine_tasks import InlineEngine
from PIL import Image

import picstore
from picstore.errors import Damage, UsageError
from picstore.prepare.convert.row_division import DatasetShape
from picstore.prepare.exports.run_export import export
from picstore.prepare.upkeep.shuffled_copy import METHODS, shuffle
from picstore.storage.format.container_writer import FileWriter
from picstore.storage.location.resolve import COUNTS
from picstore.storage.manifest_writer import publish_dataset

Make = Callable[..., Path]
STEP = 1 << 40


def loader_of(dataset: Path | picstore.Dataset, **options: Any) -> picstore.Loader:
    return picstore.Loader(dataset, **{"batch_size": 4, "threads": 2, "isolate": False, **options})


def small(path: Path, labels: list[int], classes: list[str] | None = None, **options: Any) -> picstore.Dataset:
    """A data set of an image of 16 × 16 pixels for each label."""
    shape = options.pop("shape", DatasetShape(streams=1))
    with picstore.Writer(path, classes=classes or [], shape=shape) as writer:
        for number, label in enumerate(labels):
            writer.add(np.full((16, 16, 3), 7 * number % 256, np.uint8), label=label, extra={"number": number})
    return picstore.Dataset(path)


def test_records_of_several_data_sets_follow_each_other_with_own_ids(make_dataset: Make) -> None:
    one, other = picstore.Dataset(make_dataset(name="one")), picstore.Dataset(make_dataset(name="other"))
    joined = one.concat(other)
    assert len(joined) == 2 * len(one)
    assert joined.ids.tolist() == [*one.ids.tolist(), *(other.ids + STEP).tolist()]
    assert [record.jpeg for record in joined] == [record.jpeg for record in (*one, *other)]
    assert joined[len(one) + 3].extra == other[3].extra and joined[-1].id == other[-1].id + STEP
    assert joined.table["width"].tolist() == [*one.table["width"], *other.table["width"]]
    assert joined.classes == one.classes


def test_labels_follow_the_names_of_the_classes(tmp_path: Path) -> None:
    pets = small(tmp_path / "pets", [0, 1, -1], ["cat", "dog"])
    farm = small(tmp_path / "farm", [0, 1, 2, -1], ["horse", "cat", "pig"])
    joined = pets.concat(farm)
    assert joined.classes == ["cat", "dog", "horse", "pig"]
    labels = [0, 1, -1, 2, 0, 3, -1]
    assert [record.label for record in joined] == labels == joined.table["label"].tolist()
    batches = list(loader_of(joined, batch_size=7, shuffle=False))
    assert batches[0].labels.tolist() == labels
    relabelled = pets.concat(farm.with_columns({"label": [2, 2, 0]}, ids=[0, 1, 3]))
    assert [record.label for record in relabelled] == [0, 1, -1, 3, 3, 3, 2]


def test_nested_ones_keep_their_ids_apart(tmp_path: Path) -> None:
    a, b, c = (small(tmp_path / name, [0, 0], [name]) for name in "abc")
    left, right = a.concat(b).concat(c), a.concat(b.concat(c))
    assert left.ids.tolist() == right.ids.tolist() == [k * STEP + i for k in range(3) for i in range(2)]
    assert left.classes == right.classes == ["a", "b", "c"]
    assert [record.label for record in right] == [0, 0, 1, 1, 2, 2]
    again = a.concat(b.concat(c), a)
    assert len(set(again.ids.tolist())) == 8 and [record.label for record in again] == [0, 0, 1, 1, 2, 2, 0, 0]


def shuffled(joined: picstore.Dataset, path: Path, *, older: bool = False) -> picstore.Dataset:
    """A copy of several data sets, with ids that verify finds distinct; an ``older`` one has no counts."""
    shuffle(joined, path, method="transpose", seed=1, workers=1)
    if older:
        (path / COUNTS).unlink()
    picstore_command("verify", path)
    return picstore.Dataset(path)


@pytest.mark.parametrize("older", [False, True])
def test_a_copy_of_joined_ones_keeps_its_ids_apart_wherever_it_is_joined(tmp_path: Path, older: bool) -> None:
    a, b, c = (small(tmp_path / name, [0, 0, 0], [name]) for name in "abc")
    ab = shuffled(a.concat(b), tmp_path / "ab", older=older)
    nested = shuffled(ab.concat(c, a), tmp_path / "nested", older=older)
    again = shuffled(nested, tmp_path / "again", older=older)
    edited = again.with_columns({"note": np.arange(12)})
    for joined, count in (
        (ab.concat(c), 9),
        (c.concat(ab), 9),
        (ab.concat(ab), 12),
        (nested.concat(ab, nested), 30),
        (again.concat(c).concat(nested.concat(a)), 30),
        (edited.concat(edited.select(np.arange(5)), c), 20),
    ):
        ids = joined.ids.tolist()
        assert len(set(ids)) == len(ids) == count and max(ids) < 1 << 63
        assert [record.id for record in joined] == ids
        twin = pickle.loads(pickle.dumps(joined))  # noqa: S301
        assert twin.ids.tolist() == ids and twin.uuid == joined.uuid
    assert ab.concat(c).ids.tolist()[6:] == [2 * STEP + k for k in range(3)]
    assert nested.concat(c).ids.tolist()[12:] == [4 * STEP + k for k in range(3)]


@pytest.mark.parametrize("older", [False, True])
def test_records_joined_to_a_copy_of_joined_ones_keep_their_own_values(tmp_path: Path, older: bool) -> None:
    a, b, z = (small(tmp_path / name, [0, 1, 1, 0], ["cat", "dog"]) for name in "abz")
    ab = shuffled(a.concat(b), tmp_path / "ab", older=older)
    ab = ab.with_columns({"score": np.arange(8) + 1000, "label": np.ones(8, np.int64)})
    joined = ab.concat(z)
    assert joined.table["score"].tolist()[8:] == [-1] * 4
    assert [record.label for record in joined] == [1] * 8 + [record.label for record in z]
    last = int(joined.ids[-1])
    assert len(joined.select(ids=[last])) == 1 and len(joined.without([last])) == 11
    out = shuffled(joined, tmp_path / "out")
    assert {r.id: (r.label, r.columns) for r in out} == {r.id: (r.label, r.columns) for r in joined}


def test_the_command_shuffles_a_copy_of_joined_ones_with_others(tmp_path: Path) -> None:
    for name in "abc":
        small(tmp_path / name, [0, 0, 0], [name])
    picstore_command("shuffle", tmp_path / "a", tmp_path / "b", tmp_path / "ab")
    picstore_command("shuffle", tmp_path / "ab", tmp_path / "c", tmp_path / "abc")
    picstore_command("verify", tmp_path / "abc")
    out = picstore.Dataset(tmp_path / "abc")
    names = {record.id: (out.classes[record.label], record.extra["number"]) for record in out}
    expected = {k * STEP + number: (name, number) for k, name in enumerate("abc") for number in range(3)}
    assert names == expected


def with_ids(path: Path, ids: list[int], provenance: dict[str, Any]) -> picstore.Dataset:
    """A data set of records with any ids, as another program may write it."""
    image = small(path.with_name(f"{path.name} source"), [0])[0]
    path.mkdir()
    with FileWriter(path, stream=0, file=0, container_size=1 << 20) as writer:
        for id_ in ids:
            writer.add(replace(image, id=id_))
        summaries = [writer.close()]
    publish_dataset(path, summaries, streams=1, container_size=1 << 20, provenance=provenance)
    return picstore.Dataset(path)


def test_ids_of_another_program_stay_apart_or_are_an_error(tmp_path: Path) -> None:
    z = small(tmp_path / "z", [0, 0])
    unknown = with_ids(tmp_path / "unknown", [3, 5 * STEP], {})
    assert unknown.concat(z).ids.tolist() == [3, 5 * STEP, 6 * STEP, 6 * STEP + 1]
    far = with_ids(tmp_path / "far", [(1 << 63) - 1], {})
    with pytest.raises(UsageError, match="do not fit into 63 bits"):
        far.concat(z)
    with pytest.raises(UsageError, match=f"far alone has ids up to {(1 << 64) - 2}"):
        z.concat(with_ids(tmp_path / "very far", [(1 << 64) - 2], {}))
    lying = with_ids(tmp_path / "lying", [3, 5 * STEP], {"inputs": 2})
    for joined in (lying.concat(z), z.concat(lying)):
        with pytest.raises(UsageError, match="holds the id 5497558138880, more than its manifest says"):
            list(joined)
        with pytest.raises(UsageError, match="more than its manifest says"):
            _ = joined.ids


def test_values_by_ids_of_no_record_do_not_become_another_data_sets(tmp_path: Path) -> None:
    a, z = small(tmp_path / "a", [0, 0]), small(tmp_path / "z", [0, 0])
    ids, values = np.array([-1, 0, STEP, STEP + 1]), np.array([7, 8, 9, 9])
    edits, files = a._edits.with_columns({"score": values, "text": ["x", "a", "b", "c"]}, ids, keep=False)
    joined = a._edited(files, edits=edits).concat(z)
    assert joined.table["score"].tolist() == [8, -1, -1, -1]
    assert joined.table["text"] == ["a", None, None, None]


def test_selections_deletions_and_columns_go_along(make_dataset: Make) -> None:
    one, other = picstore.Dataset(make_dataset(name="one")), picstore.Dataset(make_dataset(name="other"))
    texts = [f"number {id_}" for id_ in other.ids]
    captioned = other.with_columns({"caption": texts, "weight": other.ids / 2})
    joined = one.select(ids=[1, 4]).concat(captioned.without([0, 2]))
    assert joined.ids.tolist() == [1, 4, *(STEP + id_ for id_ in other.ids.tolist() if id_ not in (0, 2))]
    assert joined.table["caption"] == [None, None, *(f"number {id_ - STEP}" for id_ in joined.ids.tolist()[2:])]
    one_id = joined[2].id - STEP
    assert joined[2].columns == {"caption": f"number {one_id}", "weight": one_id / 2} and joined[0].columns == {}
    few = joined.select(ids=[4, STEP + 1]).without([4])
    assert few.ids.tolist() == [STEP + 1]
    assert joined.without([1]).ids.tolist() == joined.ids.tolist()[1:]
    training, rest = joined.split(0.5, seed=3)
    assert sorted([*training.ids, *rest.ids]) == sorted(joined.ids)


def test_a_loader_reads_them_as_one_and_resumes_in_another_process(make_dataset: Make) -> None:
    paths = make_dataset(name="one"), make_dataset(name="other")
    joined = picstore.Dataset(paths[0]).concat(picstore.Dataset(paths[1]).select(np.arange(30)))
    transform = [picstore.RandomResizedCrop(32)]
    whole = [batch for _, batch in zip(range(30), loader_of(joined, seed=5, transform=transform), strict=False)]
    ids = [id_ for batch in whole for id_ in batch.ids.tolist()]
    assert len(ids) == len(set(ids)) and set(ids) <= set(joined.ids.tolist())
    assert len(whole) == len(joined) // 4
    loader = loader_of(joined, seed=5, transform=transform)
    for _, _ in zip(range(9), loader, strict=False):
        pass
    state = loader.state_dict()
    other = loader_of(pickle.loads(pickle.dumps(joined)), seed=5, transform=transform, isolate=True)  # noqa: S301
    other.load_state_dict(state)
    resumed = list(other)
    assert [batch.ids.tolist() for batch in resumed] == [batch.ids.tolist() for batch in whole[9:]]
    assert all((mine.images == theirs.images).all() for mine, theirs in zip(resumed, whole[9:], strict=True))
    with pytest.raises(UsageError, match="dataset"):
        loader_of(picstore.Dataset(paths[0]), seed=5, transform=transform).load_state_dict(state)


def test_copies_in_other_processes_are_the_same_data_set(make_dataset: Make, tmp_path: Path) -> None:
    joined = picstore.Dataset(make_dataset(name="one")).concat(picstore.Dataset(make_dataset(name="other")))
    edited = joined.without([3]).with_columns({"score": np.arange(len(joined) - 1)}).select(np.arange(10))
    for dataset in (joined, edited):
        twin = pickle.loads(pickle.dumps(dataset))  # noqa: S301
        assert twin.uuid == dataset.uuid and twin.identity == dataset.identity
        assert twin.ids.tolist() == dataset.ids.tolist() and twin[5].columns == dataset[5].columns
    assert copy.copy(joined).uuid == joined.uuid


@pytest.mark.parametrize("method", METHODS)
def test_shuffle_writes_them_as_one_data_set(method: str, make_dataset: Make, tmp_path: Path) -> None:
    pets = small(tmp_path / "pets", [0, 1] * 8, ["cat", "dog"]).with_columns({"score": np.arange(16)})
    farm = small(tmp_path / "farm", [0, 1, 2] * 4, ["horse", "cat", "pig"], shape=DatasetShape(streams=3))
    joined = pets.without([5]).concat(farm)
    shuffle(joined, tmp_path / "out", method=method, seed=1, workers=1)
    out = picstore.Dataset(tmp_path / "out")
    assert sorted(out.ids) == sorted(joined.ids) and out.classes == joined.classes

    def content(dataset: picstore.Dataset) -> dict[int, Any]:
        return {r.id: (r.label, r.extra, bytes(r.jpeg), r.columns) for r in dataset}

    assert content(out) == content(joined)


def test_the_command_shuffles_several_data_sets_into_one(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        small(tmp_path / name, [0, 0, 0], [name])
    done = picstore_command("shuffle", tmp_path / "cat", tmp_path / "dog", tmp_path / "out")
    assert "6 images" in done.stdout
    out = picstore.Dataset(tmp_path / "out")
    assert out.classes == ["cat", "dog"] and sorted(record.label for record in out) == [0, 0, 0, 1, 1, 1]


def test_export_and_random_access_in_batches_take_them(tmp_path: Path) -> None:
    joined = small(tmp_path / "one", [0, 0], ["cat"]).concat(small(tmp_path / "other", [0], ["dog"]))
    export(joined, tmp_path / "out", format="folder", workers=InlineEngine(1))
    names = [name for name in tree(tmp_path / "out") if name.endswith(".jpg")]
    assert len(names) == 3 and {Path(name).parts[0] for name in names} == {"cat", "dog"}
    mapped = picstore.MapDataset(joined, transform=[picstore.Resize(8)])
    assert [int(label) for _, label in (mapped[k] for k in range(3))] == [0, 0, 1]


def test_damage_names_the_file_of_its_own_data_set(tmp_path: Path) -> None:
    one, other = (small(tmp_path / name, [0, 1, 1], ["cat", "dog"]) for name in ("one", "other"))
    entry = next((tmp_path / "other").rglob("*.pic"))
    raw = bytearray(entry.read_bytes())
    first = bytes(other[0].jpeg)
    raw[raw.find(first) + len(first) - 5] ^= 1
    entry.write_bytes(raw)
    joined = one.concat(other)
    with pytest.raises(Damage, match=str(entry)):
        list(loader_of(joined, on_damage="raise", batch_size=3))
    loader = loader_of(joined, batch_size=6)
    (batch,) = loader
    assert sorted(batch.ids.tolist())[:3] == [0, 1, 2] and STEP not in batch.ids.tolist()
    with pytest.raises(Damage) as caught:
        joined[3]
    assert caught.value.file == str(entry)


def test_what_does_not_go_together_is_refused(tmp_path: Path) -> None:
    named, unnamed = small(tmp_path / "named", [0], ["cat"]), small(tmp_path / "unnamed", [0])
    with pytest.raises(UsageError, match="names of classes"):
        named.concat(unnamed)
    with picstore.Writer(tmp_path / "masks", classes=["cat"], attachments=["mask"]) as writer:
        writer.add(np.zeros((16, 16, 3), np.uint8), label=0, attachments={"mask": b"1"})
    with pytest.raises(UsageError, match="mask"):
        named.concat(picstore.Dataset(tmp_path / "masks"))
    with pytest.raises(UsageError, match="score"):
        named.with_columns({"score": ["good"]}).concat(named.with_columns({"score": [1]}))
    with pytest.raises(UsageError, match="saved"):
        named.concat(named).without([0]).save()


def test_indexes_of_files_in_place_go_along(tmp_path: Path) -> None:
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    Image.new("RGB", (40, 40), "red").save(tmp_path / "photos" / "cat" / "1.jpg")
    picstore_command("index", tmp_path / "photos", tmp_path / "index")
    joined = small(tmp_path / "one", [0], ["cat"]).concat(picstore.Dataset(tmp_path / "index"))
    assert [(record.info.width, record.label) for record in joined] == [(16, 0), (40, 0)]
    (batch,) = loader_of(joined, batch_size=2, transform=[picstore.Resize((8, 8))])
    assert sorted(batch.ids.tolist()) == [0, STEP]
    with pytest.raises(UsageError, match="index"):
        shuffle(joined, tmp_path / "out", method="transpose", seed=0, workers=1)
