"""The loader: its contract, exact resuming, and what becomes of damage."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
import torch
from grids import slow_except
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from torchvision.transforms import v2

import picstore
from picstore.errors import Damage, ImageError, UsageError
from picstore.prepare.convert.conversion_job import ConvertOptions, convert
from picstore.prepare.convert.row_division import DatasetShape
from picstore.prepare.image.encode_settings import EncodeSettings
from picstore.prepare.sources.open import open_source
from picstore.train.batch import Batch
from picstore.train.batching import spec
from picstore.train.cpu import decode_crop

CROP = [picstore.RandomResizedCrop(32), picstore.RandomHorizontalFlip()]
Make = Callable[..., Path]


@pytest.fixture(scope="session")
def converted(photographs_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The 400 photographs as a data set."""
    path = tmp_path_factory.mktemp("loader") / "photographs"
    shape = DatasetShape(streams=4, container_size=1 << 20)
    options = ConvertOptions(encode=EncodeSettings(), shape=shape, workers=2)
    convert(open_source(photographs_folder), path, options)
    return path


def loader_of(path: Path, **options: Any) -> picstore.Loader:
    return picstore.Loader(path, **{"batch_size": 16, "transform": CROP, "threads": 2, "isolate": False, **options})


def ids_of(batches: object) -> list[list[int]]:
    return [batch.ids.tolist() for batch in batches]  # type: ignore[attr-defined]


def flat(batches: list[list[int]]) -> list[int]:
    return [i for batch in batches for i in batch]


def same(one: Batch, other: Batch) -> bool:
    assert isinstance(one.images, torch.Tensor) and isinstance(other.images, torch.Tensor)
    return (
        torch.equal(one.images, other.images)
        and torch.equal(one.labels, other.labels)
        and torch.equal(one.ids, other.ids)
    )


def by_id(batches: list[Batch]) -> dict[int, torch.Tensor]:
    """Images of some batches; no id may be there twice."""
    found = {i: image for batch in batches for i, image in zip(batch.ids.tolist(), batch.images, strict=True)}
    assert len(found) == sum(len(batch.labels) for batch in batches)
    return found


# What a batch is.


def test_photographs_come_once_an_epoch_with_their_labels(converted: Path) -> None:
    dataset = picstore.Dataset(converted)
    folders = {record.id: record.extra["path"].split("/")[0] for record in dataset}
    loader = loader_of(converted, transform=[picstore.RandomResizedCrop(224), picstore.RandomHorizontalFlip()])
    seen: Counter[int] = Counter()
    for batch in loader:
        images, labels = batch
        assert images is batch.images and labels is batch.labels
        assert images.shape == (16, 3, 224, 224) and images.dtype == torch.uint8
        assert labels.shape == (16,) and labels.dtype == torch.int64
        assert batch.ids.shape == (16,) and batch.ids.dtype == torch.int64
        assert len(batch.labels) == 16
        assert [dataset.classes[label] for label in labels.tolist()] == [folders[i] for i in batch.ids.tolist()]
        seen.update(batch.ids.tolist())
    assert seen == Counter(range(400))
    assert len(loader) == 25


def test_a_central_crop_of_a_resized_photograph_is_torchvisions(converted: Path) -> None:
    records = {record.id: record for record in picstore.Dataset(converted)}
    reference = v2.Compose([v2.Resize(256, antialias=True), v2.CenterCrop(224)])
    batch = next(iter(loader_of(converted, transform=[picstore.Resize(256), picstore.CenterCrop(224)])))
    assert batch.images.shape == (16, 3, 224, 224)
    for image, i in zip(batch.images, batch.ids.tolist(), strict=True):
        decoded = simplejpeg.decode_jpeg(records[i].jpeg, "RGB")
        difference = (image.float() - reference(torch.from_numpy(decoded).permute(2, 0, 1).float())).abs()
        assert difference.max() <= 1


def test_without_a_size_images_are_a_list_of_what_the_decoder_gives(converted: Path) -> None:
    records = {record.id: record for record in picstore.Dataset(converted)}
    batch = next(iter(loader_of(converted, transform=[])))
    assert isinstance(batch.images, list) and len(batch.images) == 16
    for image, i in zip(batch.images, batch.ids.tolist(), strict=True):
        decoded = simplejpeg.decode_jpeg(records[i].jpeg, "RGB")
        assert image.dtype == torch.uint8
        assert torch.equal(image, torch.from_numpy(decoded).permute(2, 0, 1))


def test_grey_images_have_three_equal_channels(tmp_path: Path) -> None:
    with picstore.Writer(tmp_path / "grey") as writer:
        for number in range(8):
            writer.add(np.random.default_rng(number).integers(0, 256, (40, 50), dtype=np.uint8))
    assert picstore.Dataset(tmp_path / "grey")[0].info.sampling == "grey"
    (batch,) = loader_of(tmp_path / "grey", batch_size=8)
    assert torch.equal(batch.images[:, 0], batch.images[:, 1]) and torch.equal(batch.images[:, 0], batch.images[:, 2])
    assert batch.images.float().std() > 10
    assert batch.labels.tolist() == [-1] * 8


def test_earlier_batches_do_not_change(make_dataset: Make) -> None:
    loader = loader_of(make_dataset(100))
    kept, copies = [], []
    for _ in range(3):
        for batch in loader:
            kept.append(batch)
            copies.append(Batch(batch.images.clone(), batch.labels.clone(), batch.ids.clone()))
    assert len(kept) == 18
    assert all(same(one, other) for one, other in zip(kept, copies, strict=True))


# Order.


def test_the_number_of_threads_does_not_change_batches(make_dataset: Make) -> None:
    path = make_dataset(100)
    one, two, five = (list(loader_of(path, threads=threads)) for threads in (1, 2, 5))
    assert len(one) == 6
    assert all(same(a, b) and same(a, c) for a, b, c in zip(one, two, five, strict=True))


def test_iterating_again_is_the_next_epoch(make_dataset: Make) -> None:
    path = make_dataset(96)
    loader = loader_of(path)
    epochs = [ids_of(loader) for _ in range(3)]
    assert all(sorted(flat(epoch)) == list(range(96)) for epoch in epochs)
    assert len({tuple(flat(epoch)) for epoch in epochs}) == 3
    loader.set_epoch(1)
    assert ids_of(loader) == epochs[1]
    assert ids_of(loader) == epochs[2]
    assert ids_of(loader_of(path, seed=1)) != epochs[0]


def test_transforms_are_drawn_anew_each_epoch(make_dataset: Make) -> None:
    loader = loader_of(make_dataset(32))
    first, second = by_id(list(loader)), by_id(list(loader))
    assert not any(torch.equal(first[i], second[i]) for i in first)


def test_an_iteration_after_a_break_is_a_whole_epoch_the_next(make_dataset: Make) -> None:
    path = make_dataset(96)
    loader, whole = loader_of(path), loader_of(path)
    epochs = [ids_of(whole) for _ in range(2)]
    for number, _ in enumerate(loader):
        if number == 1:  # one batch alone is a look
            break
    assert ids_of(loader) == epochs[1]


def test_a_break_can_be_undone(make_dataset: Make) -> None:
    path = make_dataset(96)
    expected = ids_of(loader_of(path))
    loader = loader_of(path)
    found = []
    for batch in loader:
        found.append(batch.ids.tolist())
        if len(found) == 2:
            break
    loader.load_state_dict(loader.state_dict())
    assert found + ids_of(loader) == expected


def test_without_shuffle_the_stored_order_comes_every_epoch(make_dataset: Make) -> None:
    path = make_dataset(50)
    stored = [record.id for record in picstore.Dataset(path)]
    loader = loader_of(path, shuffle=False, drop_last=False)
    assert flat(ids_of(loader)) == stored
    assert flat(ids_of(loader)) == stored


@pytest.mark.parametrize("shuffle", [True, False])
def test_drop_last_leaves_out_what_fills_no_batch(make_dataset: Make, shuffle: bool) -> None:
    path = make_dataset(50)
    whole = loader_of(path, shuffle=shuffle)
    assert [len(batch.labels) for batch in whole] == [16, 16, 16] and len(whole) == 3
    every = loader_of(path, shuffle=shuffle, drop_last=False)
    batches = ids_of(every)
    # The last is half a batch at least.
    assert [len(batch) for batch in batches] == [16, 16, 10, 8] and len(every) == 4
    assert sorted(flat(batches)) == list(range(50))


# Ranks.


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_share_an_epoch(make_dataset: Make, world_size: int, shuffle: bool) -> None:
    path = make_dataset(50)
    ranks = [
        ids_of(loader_of(path, batch_size=4, rank=rank, world_size=world_size, shuffle=shuffle, drop_last=False))
        for rank in range(world_size)
    ]
    assert sorted(flat(flat(ranks))) == list(range(50))  # type: ignore[arg-type]
    assert len({len(rank) for rank in ranks}) == 1
    assert all(batch for rank in ranks for batch in rank)


def test_global_batches_do_not_depend_on_the_world_size(make_dataset: Make) -> None:
    path = make_dataset(200)
    alone = list(loader_of(path, batch_size=32))
    ranks = [list(loader_of(path, batch_size=8, rank=rank, world_size=4)) for rank in range(4)]
    for one, parts in zip(alone, zip(*ranks, strict=True), strict=True):
        expected, found = by_id([one]), by_id(list(parts))
        assert expected.keys() == found.keys()
        assert all(torch.equal(image, found[i]) for i, image in expected.items())


def test_rank_and_world_size_come_from_the_environment(make_dataset: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_dataset(100)
    given = ids_of(loader_of(path, rank=1, world_size=2))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert ids_of(loader_of(path)) == given
    assert ids_of(loader_of(path, rank=0, world_size=2)) != given


def test_ranks_of_one_row_of_a_device_mesh_see_the_same_batches(make_dataset: Make) -> None:
    """Data parallelism in two halves, tensor parallelism in each: the halves are of ranks 0 and 1, and 2 and 3."""
    path, found = make_dataset(40), []
    for rank in range(4):
        torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=4)
        try:
            data = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))["dp"]
            ranks = {"rank": data.get_local_rank(), "world_size": data.size()}
            found.append([batch.ids.tolist() for batch in loader_of(path, batch_size=4, **ranks)])
        finally:
            torch.distributed.destroy_process_group()
    assert found[0] == found[1] and found[2] == found[3] and len(found[0]) == 5
    assert sorted(flat(found[0] + found[2])) == list(range(40))


def test_rank_and_world_size_come_from_torch_distributed(make_dataset: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_dataset(100)
    given = ids_of(loader_of(path, rank=1, world_size=2))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    assert ids_of(loader_of(path)) == given


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 0}, "belong together"),
        ({"rank": 2, "world_size": 2}, "rank 2 of world size 2"),
        ({"rank": 0, "world_size": 0}, "world_size is 0; give an integer from 1 to 1,048,576"),
        ({"lanes": 0}, "lanes is 0; give an integer from 1 to 65,536"),
        ({"rank": 0, "world_size": 64}, "50 records are too few for 64 ranks"),
        ({"batch_size": 51}, "use a smaller batch or drop_last=False"),
        ({"batch_size": 0}, "batch_size is 0; give an integer of at least 1"),
        ({"batch_size": 4, "global_batch_size": 8}, "batch_size is 4 and global_batch_size 8"),
        ({"batch_size": None}, "give batch_size, images in a batch, or global_batch_size"),
        ({"rank": 0, "world_size": 9, "batch_size": None, "global_batch_size": 8}, "of 8 leaves some of 9 ranks"),
        ({"threads": 0}, "threads is 0"),
        ({"budget": 0}, "budget is 0"),
        ({"on_damage": "ignore"}, "'ignore'; give 'skip' or 'raise'"),
    ],
)
def test_arguments_that_cannot_be_are_refused(make_dataset: Make, options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        loader_of(make_dataset(50), **options)


def test_an_empty_data_set_is_refused(tmp_path: Path) -> None:
    with picstore.Writer(tmp_path / "empty"):
        pass
    with pytest.raises(UsageError, match="0 records"):
        loader_of(tmp_path / "empty")


# State.


@pytest.mark.parametrize(
    ("taken", "drop_last"),
    slow_except([(1, False), (11, True), (12, False), (17, True)], product([0, 1, 4, 11, 12, 13, 17], [True, False])),
)
def test_a_new_loader_goes_on_with_the_following_batch_bit_for_bit(
    make_dataset: Make, taken: int, drop_last: bool
) -> None:
    path = make_dataset(96)
    options = {"batch_size": 8, "drop_last": drop_last, "seed": 7}
    loader = loader_of(path, **options)
    batches, state = [], loader.state_dict()
    while len(batches) < 24:
        for batch in loader:
            batches.append(batch)
            if len(batches) == taken:
                state = json.loads(json.dumps(loader.state_dict()))
    resumed = loader_of(path, threads=5, **options)
    resumed.load_state_dict(state)
    rest: list[Batch] = []
    while len(rest) < 24 - taken:
        found = list(resumed)
        assert found
        rest += found
    assert len(rest) == 24 - taken
    assert all(same(one, other) for one, other in zip(batches[taken:], rest, strict=True))


@pytest.mark.parametrize("world_size", slow_except([1, 4], [1, 2, 4]))
def test_another_world_size_goes_on_with_the_same_global_batches(make_dataset: Make, world_size: int) -> None:
    path = make_dataset(200)
    epochs = [list(loader_of(path, batch_size=16, rank=rank, world_size=2)) for rank in range(2)]
    interrupted = loader_of(path, batch_size=16, rank=1, world_size=2)
    batches = iter(interrupted)
    for _ in range(3):
        next(batches)
    state = interrupted.state_dict()
    resumed = [loader_of(path, batch_size=32 // world_size, rank=r, world_size=world_size) for r in range(world_size)]
    for loader in resumed:
        loader.load_state_dict(state)
    rests = [list(loader) for loader in resumed]
    assert len(rests[0]) == 3
    for step, parts in enumerate(zip(*rests, strict=True), start=3):
        expected, found = by_id([epoch[step] for epoch in epochs]), by_id(list(parts))
        assert expected.keys() == found.keys()
        assert all(torch.equal(image, found[i]) for i, image in expected.items())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        *slow_except([(4, 3), (3, 2)], [(4, 3), (3, 2), (64, 48), (8, 7)]),
        pytest.param(32, 64, marks=pytest.mark.nightly),
    ],
)
def test_a_run_goes_on_with_ranks_whose_number_does_not_divide_its_lanes(
    make_dataset: Make, before: int, after: int
) -> None:
    path = make_dataset(600)
    options = {"batch_size": None, "global_batch_size": 128, "transform": [picstore.Resize((8, 8))], "threads": 1}
    interrupted = loader_of(path, rank=before - 1, world_size=before, **options)
    whole = [set(batch.ids.tolist()) for batch in loader_of(path, lanes=interrupted.order.lanes, **options)]
    next(iter(interrupted))
    state = json.loads(json.dumps(interrupted.state_dict()))
    ranks = [loader_of(path, rank=rank, world_size=after, **options) for rank in range(after)]
    for loader in ranks:
        loader.load_state_dict(state)
    found = [list(islice(loader, 2)) for loader in ranks]
    for expected, parts in zip(whole[1:], zip(*found, strict=True), strict=False):
        assert [len(part.labels) for part in parts] == [loader.batch_size for loader in ranks]
        assert sorted(i for part in parts for i in part.ids.tolist()) == sorted(expected)
        assert sum(float(part.weight) for part in parts) == pytest.approx(after)


@pytest.mark.parametrize(("before", "after"), [((2, 4), (1, 8)), ((1, 8), (2, 4))])
def test_without_drop_last_no_change_of_ranks_loses_or_repeats_a_record(
    make_dataset: Make, before: tuple[int, int], after: tuple[int, int]
) -> None:
    dataset = picstore.Dataset(make_dataset(40)).select(list(range(9)))

    def ranks(world_size: int, batch_size: int) -> list[picstore.Loader]:
        options = {"world_size": world_size, "batch_size": batch_size, "drop_last": False, "seed": 1}
        return [loader_of(dataset, rank=rank, **options) for rank in range(world_size)]

    taken, state = [], {}
    for loader in ranks(*before):
        taken.append(next(iter(loader)))
        state = loader.state_dict()
    for loader in ranks(*after):
        loader.load_state_dict(state)
        taken += list(loader)
    assert sorted(flat(ids_of(taken))) == sorted(dataset.ids.tolist())


def test_the_state_is_what_the_consumer_has_taken_not_what_was_read_ahead(make_dataset: Make) -> None:
    loader = loader_of(make_dataset(96))
    states = [loader.state_dict()] + [loader.state_dict() for _ in loader]
    assert [(state["epoch"], state["samples"]) for state in states] == [(0, 16 * k) for k in range(6)] + [(1, 0)]


def test_an_iterator_that_goes_on_is_not_disturbed_by_set_epoch(make_dataset: Make) -> None:
    path = make_dataset(96)
    expected = ids_of(loader_of(path))
    loader = loader_of(path)
    iterator = iter(loader)
    found = [next(iterator).ids.tolist()]
    loader.set_epoch(5)
    assert found + ids_of(iterator) == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 3}, "version 3 of the order, this picstore goes on with versions 1 and 2"),
        ({"dataset": "other"}, "dataset 'other'"),
        ({"seed": 5}, "seed 5, this loader 0"),
        ({"lanes": 0}, "lanes of the state is 0; give an integer from 1 to 65,536"),
        ({"shuffle": False}, "shuffle False, this loader True"),
        ({"samples": 17}, "after 17 samples"),
        ({"samples": -16}, "samples is -16; give an integer from 0"),
        ({"samples": 7 * 16}, "after 112 samples"),
        ({"samples": "16"}, "samples is '16'; give an integer"),
        ({"samples": True}, "samples is True; give an integer"),
        ({"epoch": None}, "epoch is None; give an integer"),
        ({"epoch": -5}, "epoch is -5; give an integer"),
        ({"epoch": 10**30}, "epoch is 1000000000000000000000000000000; give an integer"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(make_dataset: Make, change: dict[str, object], message: str) -> None:
    loader = loader_of(make_dataset(96))
    with pytest.raises(UsageError, match=message):
        loader.load_state_dict({**loader.state_dict(), **change})
    for other in ({}, torch.nn.Linear(1, 1).state_dict(), None):
        with pytest.raises(UsageError, match=r"not a state of a loader; give what state_dict\(\) of a loader returned"):
            loader.load_state_dict(other)


def test_a_state_of_other_lanes_is_taken_over_unless_lanes_were_given(make_dataset: Make) -> None:
    path = make_dataset(96)
    expected, state = ids_of(loader_of(path, lanes=5)), loader_of(path, lanes=5).state_dict()
    given = loader_of(path, lanes=32)
    with pytest.raises(UsageError, match="lanes 5, this loader 32; leave lanes out to take over the state's"):
        given.load_state_dict(state)
    loader = loader_of(path)
    loader.load_state_dict(state)
    assert loader.order.lanes == loader.state_dict()["lanes"] == 5
    assert ids_of(loader) == expected


def test_a_state_of_other_lanes_drops_the_epoch_that_was_begun(make_dataset: Make) -> None:
    path = make_dataset(96)
    other, loader = loader_of(path, lanes=5), loader_of(path)
    list(other)
    list(loader)  # its next epoch is being made
    loader.load_state_dict(other.state_dict())
    assert ids_of(loader) == ids_of(other)


def test_the_budget_follows_the_lanes_of_a_state(make_dataset: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_dataset(96)
    monkeypatch.setattr(spec, "_MIN_BUDGET", 1)
    few, many = loader_of(path, lanes=2), loader_of(path, lanes=40)
    few_bytes, many_bytes = (loader._runner._spec.resources.budget for loader in (few, many))
    assert many_bytes == 20 * few_bytes
    loader = loader_of(path)
    loader.load_state_dict(many.state_dict())
    list(loader)
    assert loader._runner._spec.resources.budget == many_bytes
    bounded = loader_of(path, budget=1 << 20)
    bounded.load_state_dict(many.state_dict())
    list(bounded)
    assert bounded._runner._spec.resources.budget == 1 << 20


def test_the_stored_order_goes_on_at_another_world_size(make_dataset: Make) -> None:
    path = make_dataset(96)
    before = [loader_of(path, shuffle=False, batch_size=4, rank=r, world_size=4) for r in range(4)]
    seen = [batch for loader in before for batch in islice(loader, 2)]
    after = [loader_of(path, shuffle=False, batch_size=8, rank=r, world_size=2) for r in range(2)]
    for loader in after:
        loader.load_state_dict(before[1].state_dict())
    assert sorted(flat(ids_of([*seen, *(batch for loader in after for batch in loader)]))) == list(range(96))
    straight = [loader_of(path, shuffle=False, batch_size=8, lanes=1, rank=r, world_size=2) for r in range(2)]
    pairs = zip(*map(ids_of, straight), strict=True)
    stored = [record.id for record in picstore.Dataset(path)]
    assert [sorted(one + other) for one, other in pairs] == [sorted(stored[k : k + 16]) for k in range(0, 96, 16)]


def test_states_of_version_1_go_on_but_for_a_stored_order_on_several_ranks(make_dataset: Make) -> None:
    path = make_dataset(96)
    for options in ({}, {"shuffle": False}):
        loader = loader_of(path, **options)
        expected = ids_of(loader)[2:]
        state = {**loader_of(path, **options).state_dict(), "version": 1, "samples": 32}
        loader.load_state_dict(state)
        assert ids_of(loader) == expected
    ranks = {**loader_of(path, shuffle=False).state_dict(), "version": 1, "world_size": 2}
    with pytest.raises(UsageError, match="version 1, whose stored order on several ranks"):
        loader_of(path, shuffle=False).load_state_dict(ranks)


# Damage.


def container_and_file(path: Path, id_: int) -> tuple[int, int, Path]:
    """Number of the container of a record, position in it, and the file."""
    dataset = picstore.Dataset(path)
    for number in range(len(dataset.rows)):
        for k, entry in enumerate(dataset.entries(number)):
            if entry["id"] == id_:
                return number, k, path / dataset.containers.container_ref(number).name
    raise LookupError(id_)


def flip(file: Path, offset: int) -> None:
    data = bytearray(file.read_bytes())
    data[offset] ^= 0x10
    file.write_bytes(data)


def damage_payload(path: Path, id_: int) -> tuple[str, int, set[int]]:
    """Flip a bit in an image: file and offset that a message must name, and the ids that are lost."""
    number, k, file = container_and_file(path, id_)
    dataset = picstore.Dataset(path)
    entry = dataset.entries(number)[k]
    at = int(dataset.rows[number]["offset"]) + int(entry["offset"])
    flip(file, at + int(entry["length"]) // 2)
    return str(file), at, {id_}


def damage_entry(path: Path, id_: int) -> tuple[str, int, set[int]]:
    """Flip a bit in the index of a container."""
    number, k, file = container_and_file(path, id_)
    dataset = picstore.Dataset(path)
    at = int(dataset.rows[number]["offset"])
    data = file.read_bytes()
    entry = data.index(dataset.entries(number)[k].tobytes(), at)
    flip(file, entry + 8)  # of the label
    return str(file), at, {id_}


def containers_of_file(path: Path, number: int) -> list[int]:
    """The containers in the file of one of them, in the order of their offsets."""
    rows = picstore.Dataset(path).rows
    mine = (rows["stream"] == rows[number]["stream"]) & (rows["file"] == rows[number]["file"])
    return sorted(np.flatnonzero(mine).tolist(), key=lambda other: int(rows[other]["offset"]))


def ids_in(path: Path, numbers: list[int]) -> set[int]:
    dataset = picstore.Dataset(path)
    return {int(i) for number in numbers for i in dataset.entries(number)["id"]}


def truncate_file(path: Path, id_: int) -> tuple[str, int, set[int]]:
    """Cut a file off in the container of a record: that and all that follow are lost."""
    number, _, file = container_and_file(path, id_)
    numbers = containers_of_file(path, number)
    lost = ids_in(path, numbers[numbers.index(number) :])
    at = int(picstore.Dataset(path).rows[number]["offset"])
    file.write_bytes(file.read_bytes()[: at + 30])
    return str(file), at, lost


def delete_file(path: Path, id_: int) -> tuple[str, int, set[int]]:
    number, _, file = container_and_file(path, id_)
    lost = ids_in(path, containers_of_file(path, number))
    file.unlink()
    return str(file), int(picstore.Dataset(path).rows[number]["offset"]), lost


KINDS = [damage_payload, damage_entry, truncate_file, delete_file]


@pytest.mark.parametrize(
    ("harm", "shuffle"), slow_except(zip(KINDS, [False, True, True, False], strict=True), product(KINDS, [True, False]))
)
def test_damaged_records_are_replaced_counted_and_logged(
    make_dataset: Make,
    caplog: pytest.LogCaptureFixture,
    harm: Callable[[Path, int], tuple[str, int, set[int]]],
    shuffle: bool,
) -> None:
    path = make_dataset(300)
    sound = {record.id: record.label for record in picstore.Dataset(path)}
    sizes = [len(batch.labels) for batch in loader_of(path, shuffle=shuffle, drop_last=False, batch_size=32)]
    file, offset, lost = harm(path, 123)
    assert 123 in lost and len(lost) < 150
    loader = loader_of(path, shuffle=shuffle, drop_last=False, batch_size=32)
    with caplog.at_level(logging.WARNING, "picstore"):
        batches = list(loader)
    assert [len(batch.labels) for batch in batches] == sizes
    assert loader.damaged == len(lost)
    seen = {i: label for batch in batches for i, label in zip(batch.ids.tolist(), batch.labels.tolist(), strict=True)}
    assert seen == {i: label for i, label in sound.items() if i not in lost}
    assert any(f"{file} at byte {offset}" in message for message in caplog.messages)
    said = len(caplog.messages)
    list(loader)
    assert loader.damaged == 2 * len(lost)
    assert len(caplog.messages) == said  # each is logged once


def test_the_log_names_the_id_of_a_record_whose_image_is_damaged(
    make_dataset: Make, caplog: pytest.LogCaptureFixture
) -> None:
    path = make_dataset(60)
    file, offset, _ = damage_payload(path, 33)
    list(loader_of(path, drop_last=False))
    assert caplog.messages == [f"left out: {file} at byte {offset}: record 33 fails its CRC"]


@pytest.mark.parametrize("harm", KINDS)
def test_on_damage_raise_stops_with_the_place(
    make_dataset: Make, harm: Callable[[Path, int], tuple[str, int, set[int]]]
) -> None:
    path = make_dataset(60)
    file, offset, _ = harm(path, 33)
    loader = loader_of(path, on_damage="raise", drop_last=False, shuffle=False)
    with pytest.raises(Damage) as caught:
        list(loader)
    assert caught.value.file == file
    assert caught.value.offset <= offset
    assert loader.damaged == 0


def test_a_damaged_record_does_not_stop_batches_of_one(make_dataset: Make) -> None:
    path = make_dataset(60)
    damage_payload(path, 33)
    loader = loader_of(path, batch_size=1)
    ids = flat(ids_of(loader))
    assert len(ids) == 60 and set(ids) == set(range(60)) - {33}
    assert loader.damaged == 1


def test_an_image_that_does_not_decode_is_replaced_by_another_of_its_batch(
    make_dataset: Make,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = make_dataset(60)
    number, k, file = container_and_file(path, 33)
    dataset = picstore.Dataset(path)
    entry = dataset.entries(number)[k]
    at = int(dataset.rows[number]["offset"]) + int(entry["offset"])
    broken = bytes(dataset.containers.read(number).jpeg(k))
    decode = decode_crop.decode_rgb

    def decode_rgb(jpeg: memoryview, **size: int) -> np.ndarray:
        # The loader decodes a cut: the same headers up to the size, the same tail of segments.
        if bytes(jpeg)[-20:-2] in broken and bytes(jpeg)[:100] == broken[:100]:
            raise ImageError("does not decode: test")
        return decode(jpeg, **size)

    expected = list(loader_of(path, drop_last=False))
    request.getfixturevalue("stage_by_stage")
    monkeypatch.setattr(decode_crop, "decode_rgb", decode_rgb)
    loader = loader_of(path, drop_last=False)
    for one, other in zip(expected, loader, strict=True):
        slots = (one.ids == 33).nonzero()[:, 0].tolist()
        for slot in range(len(one.labels)):
            source = slot if slot not in slots else (slot + 1) % len(one.labels)
            assert torch.equal(other.images[slot], one.images[source])
            assert other.ids[slot] == one.ids[source] and other.labels[slot] == one.labels[source]
    assert loader.damaged == 1
    assert caplog.messages == [f"left out: {file} at byte {at}: record 33 does not decode: test"]


def test_a_lost_record_is_replaced_in_a_list_of_images_too(make_dataset: Make) -> None:
    path = make_dataset(200)
    delete_file(path, 33)
    for batch in loader_of(path, transform=[], batch_size=50):
        sizes = {tuple(image.shape) for image in batch.images}
        assert (3, 1, 1) not in sizes and len(batch.images) == 50
        first = batch.images[0].clone()
        batch.images[0].zero_()
        assert first.any() and all(image.any() for image in batch.images[1:])


def test_a_batch_without_a_sound_record_raises(make_dataset: Make) -> None:
    path = make_dataset(60)
    for file in path.glob("*/*.pic"):
        file.unlink()
    with pytest.raises(Damage, match="no sound record to replace it"):
        list(loader_of(path))
