"""The mux: exact counts in every batch, each source once an epoch of its own, without end."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import chain, islice
from pathlib import Path

import pytest
import torch
from grids import slow_except
from own_threads import our_threads, threads_left
from samples import picture

import picstore
from picstore.errors import Damage, NotADataset, UsageError
from picstore.train.batch import Batch
from picstore.train.mux_config import MuxEntry, read_config

CROP = [picstore.RandomResizedCrop(24), picstore.RandomHorizontalFlip()]
Make = Callable[..., Path]


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    yield
    assert threads_left() == []


@pytest.fixture
def config(make_dataset: Make, tmp_path: Path) -> Path:
    """5 of 30 records with labels from 0, 3 of 20 with labels from 1000, 1 of 7 from 2000."""
    for name, count in (("a", 30), ("b", 20), ("c", 7)):
        make_dataset(count, name=name)
    path = tmp_path / "mux.tsv"
    path.write_text("a\t0\t5\nb\t1000\t3\n\nc\t2000\t1\n")
    return path


def mux_of(config: Path, **options: object) -> picstore.DataMux:
    return picstore.DataMux(config, **{"transform": CROP, "threads": 2, "isolate": False, **options})  # type: ignore[arg-type]


def take(mux: picstore.DataMux, count: int) -> list[Batch]:
    return list(islice(iter(mux), count))


def source_of(label: int) -> str:
    return "abc"[label // 1000]


def drawn(batches: list[Batch], source: str) -> list[int]:
    """Ids of the samples of one source, in order, except that those of one batch are sorted."""
    return [
        i
        for batch in batches
        for label, i in sorted(zip(batch.labels.tolist(), batch.ids.tolist(), strict=True), key=lambda pair: pair[1])
        if source_of(label) == source
    ]


def same(one: Batch, other: Batch) -> bool:
    pairs = ((one.images, other.images), (one.labels, other.labels), (one.ids, other.ids))
    return all(torch.equal(a, b) for a, b in pairs)  # type: ignore[arg-type]


# Configuration.


def test_a_configuration_is_triples_with_any_white_space_between(tmp_path: Path) -> None:
    config = tmp_path / "mux.tsv"
    config.write_text("\n/data/one 0 5\n\n /data/two\t10\t 3 \r\n/data/three 20\n1")
    assert read_config(config).entries == (
        MuxEntry(Path("/data/one"), 0, 5, "/data/one"),
        MuxEntry(Path("/data/two"), 10, 3, "/data/two"),
        MuxEntry(Path("/data/three"), 20, 1, "/data/three"),
    )


def test_a_relative_path_is_looked_for_beside_the_configuration_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "beside").mkdir()
    config = tmp_path / "mux.tsv"
    config.write_text("beside 0 1 elsewhere 0 1")
    monkeypatch.chdir(tmp_path.parent)
    assert [entry.path for entry in read_config(config).entries] == [tmp_path / "beside", Path("elsewhere")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds 0 words"),
        (" \n", "holds 0 words"),
        ("a 0 5 b 10", "holds 5 words; `path base_label count`"),
        ("a zero 5", "a zero 5: base label and count must be integers"),
        ("a 0 2.5", "a 0 2.5: base label and count must be integers"),
        ("a 0 0", "a has count 0 at all steps; give at least 1"),
        ("a 0 -1", "count of a is -1"),
        ("a -1 1", "base label of a is -1; give an integer from 0"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused(tmp_path: Path, text: str, message: str) -> None:
    config = tmp_path / "mux.tsv"
    config.write_text(text)
    with pytest.raises(UsageError, match=message):
        picstore.DataMux(config)


def test_a_configuration_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        picstore.DataMux(tmp_path / "none.tsv")
    (tmp_path / "binary.tsv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="cannot be read"):
        picstore.DataMux(tmp_path / "binary.tsv")


def test_a_source_that_is_no_data_set_or_empty_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "mux.tsv"
    config.write_text("nothing 0 1")
    with pytest.raises(NotADataset, match="nothing does not exist"):
        picstore.DataMux(config)
    with picstore.Writer(tmp_path / "nothing"):
        pass
    with pytest.raises(UsageError, match="nothing has no records"):
        picstore.DataMux(config)


# TOML.


def test_toml_gives_options_and_transforms_of_each_source(config: Path) -> None:
    toml = config.with_suffix(".toml")
    toml.write_text(
        """
        seed = 7
        threads = 2
        epoch_batches = 4
        dtype = "float16"
        memory_format = "channels_last"
        targets = ["extra"]
        transform = [{ name = "CenterCrop", size = 24 }]

        [[source]]
        path = "a"
        count = 5
        transform = [{ name = "RandomResizedCrop", size = [24, 24], scale = [0.5, 1.0] }]

        [[source]]
        path = "b"
        base = 1000
        count = 3
        """
    )
    mux = picstore.DataMux(toml, isolate=False)
    assert len(mux) == 4 and mux.batch_size == 8
    batches = list(mux)
    assert len(batches) == 4
    plain = {record.id: record for record in picstore.Dataset(config.parent / "b")}
    middle = picstore.Loader(
        config.parent / "b",
        batch_size=1,
        transform=[picstore.CenterCrop(24)],
        dtype=torch.float16,
        shuffle=False,
        isolate=False,
    )
    expected = {int(batch.ids): batch.images[0] for batch in middle}
    for batch in batches:
        assert isinstance(batch.images, torch.Tensor) and batch.targets is not None
        assert batch.images.dtype == torch.float16
        assert batch.images.is_contiguous(memory_format=torch.channels_last)
        assert sorted(source_of(label) for label in batch.labels.tolist()) == ["a"] * 5 + ["b"] * 3
        for k, (label, id_) in enumerate(pairs_of(batch)):
            if source_of(label) == "b":
                assert torch.equal(batch.images[k], expected[id_])
                assert batch.targets[k]["extra"] == plain[id_].extra


def test_arguments_have_precedence_over_toml(config: Path) -> None:
    toml = config.with_suffix(".toml")
    toml.write_text('seed = 1\n[[source]]\npath = "a"\ncount = 4\n')
    as_written, other = (picstore.DataMux(toml, transform=CROP, isolate=False, **seed) for seed in ({}, {"seed": 2}))
    assert as_written.state_dict()["seed"] == 1 and other.state_dict()["seed"] == 2
    assert take(as_written, 1)[0].ids.tolist() != take(other, 1)[0].ids.tolist()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed = 1", r"no \[\[source\]\]"),
        ("source = 3", r"no \[\[source\]\]"),
        ("seed = ", "cannot be read"),
        ("color = 1\n[[source]]\npath = 'a'\ncount = 1", "has 'color'; possible are"),
        ("seed = 'x'\n[[source]]\npath = 'a'\ncount = 1", "seed is 'x'; it must be of type int"),
        ("seed = true\n[[source]]\npath = 'a'\ncount = 1", "seed is True"),
        ("dtype = 'int8'\n[[source]]\npath = 'a'\ncount = 1", "dtype is 'int8'; possible are uint8"),
        ("epoch_batches = 0\n[[source]]\npath = 'a'\ncount = 1", "epoch_batches is 0"),
        ("[[source]]\ncount = 1", "number 1 has path None"),
        ("[[source]]\npath = 'a'", "a has count 0 at all steps"),
        ("[[source]]\npath = 'a'\ncount = 0", "a has count 0 at all steps"),
        ("[[source]]\npath = 'a'\ncount = 1\nweight = 2", "has 'weight'"),
        ("[[source]]\npath = 'a'\ncount = 1\ntransform = 1", "transform is 1; give a list"),
        ("[[source]]\npath = 'a'\ncount = 1\ntransform = [{}]", "number 1: .*transform None"),
        ("[[source]]\npath = 'a'\ncount = 1\ntransform = [{name = 'Loader', path = 'a'}]", "Loader"),
        ("[[source]]\npath = 'a'\ncount = 1\ntransform = [{name = 'CenterCrop'}]", "CenterCrop.*size"),
        ("[[source]]\npath = 'a'\ncount = 1\ntransform = [{name = 'CenterCrop', size = -1}]", "size is -1"),
    ],
)
def test_toml_that_cannot_be_is_refused(config: Path, text: str, message: str) -> None:
    toml = config.with_suffix(".toml")
    toml.write_text(text)
    with pytest.raises(UsageError, match=message):
        picstore.DataMux(toml)


def test_sources_of_several_sizes_are_refused(config: Path) -> None:
    toml = config.with_suffix(".toml")
    toml.write_text(
        "transform = [{ name = 'CenterCrop', size = 24 }]\n[[source]]\npath = 'a'\ncount = 1\n"
        "[[source]]\npath = 'b'\ncount = 1\ntransform = [{ name = 'CenterCrop', size = 32 }]"
    )
    with pytest.raises(UsageError, match="same size"):
        picstore.DataMux(toml)


# Ranks.


def pairs_of(batch: Batch) -> list[tuple[int, int]]:
    return list(zip(batch.labels.tolist(), batch.ids.tolist(), strict=True))


def global_batches(config: Path, world_size: int, count: int, **options: object) -> list[list[tuple[int, int]]]:
    """The (label, id) of the ranks' batches of the same number, together and sorted."""
    ranks = [take(mux_of(config, rank=r, world_size=world_size, **options), count) for r in range(world_size)]
    return [sorted(pair for batch in batches for pair in pairs_of(batch)) for batches in zip(*ranks, strict=True)]


def write_config(folder: Path, counts: tuple[int, int]) -> Path:
    path = folder / f"mux-{counts[0]}.tsv"
    path.write_text(f"a 0 {counts[0]}\nb 1000 {counts[1]}\n")
    return path


def test_ranks_share_each_source_so_that_it_comes_once_an_epoch(config: Path) -> None:
    two = write_config(config.parent, (5, 2))
    batches = global_batches(two, 2, 6)
    for first in range(0, 6, 3):  # 3 global batches hold the 30 records of "a" once
        found = [id_ for batch in batches[first : first + 3] for label, id_ in batch if label < 1000]
        assert sorted(found) == list(range(30))
    assert all(len(batch) == 14 for batch in batches)


def test_global_batches_of_a_mux_do_not_depend_on_the_world_size(config: Path) -> None:
    whole = global_batches(write_config(config.parent, (8, 4)), 1, 9, lanes=16)
    assert global_batches(write_config(config.parent, (4, 2)), 2, 9, lanes=16) == whole
    assert global_batches(write_config(config.parent, (2, 1)), 4, 9, lanes=16) == whole


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_mux_goes_on_at_another_world_size(config: Path, world_size: int) -> None:
    whole = global_batches(write_config(config.parent, (8, 4)), 1, 9, lanes=16)
    before = mux_of(write_config(config.parent, (2, 1)), rank=3, world_size=4, lanes=16)
    take(before, 5)
    state = json.loads(json.dumps(before.state_dict()))
    after = write_config(config.parent, (8 // world_size, 4 // world_size))
    muxes = [mux_of(after, rank=r, world_size=world_size, lanes=16) for r in range(world_size)]
    for mux in muxes:
        mux.load_state_dict(state)
    batches = zip(*(take(mux, 4) for mux in muxes), strict=True)
    found = [sorted(pair for batch in ranks for pair in pairs_of(batch)) for ranks in batches]
    assert found == whole[5:]


@pytest.mark.slow
def test_global_counts_are_shared_by_any_number_of_ranks(config: Path) -> None:
    whole = global_batches(config, 1, 8, global_counts=True, lanes=5)
    for world_size in (2, 4, 7):
        assert global_batches(config, world_size, 8, global_counts=True, lanes=5) == whole
    before = mux_of(config, rank=2, world_size=4, global_counts=True, lanes=5)
    take(before, 3)
    state = json.loads(json.dumps(before.state_dict()))
    muxes = [mux_of(config, rank=r, world_size=3, global_counts=True) for r in range(3)]
    for mux in muxes:
        mux.load_state_dict(state)
    batches = list(zip(*(take(mux, 5) for mux in muxes), strict=True))
    assert [sorted(pair for batch in ranks for pair in pairs_of(batch)) for ranks in batches] == whole[3:]
    assert all(
        [len(batch.labels) for batch in ranks] == [mux.batch_size for mux in muxes] == [3, 3, 3] for ranks in batches
    )


def test_more_ranks_than_samples_are_refused(config: Path) -> None:
    with pytest.raises(UsageError, match="a global batch of 9 leaves some of 10 ranks without a sample"):
        mux_of(config, rank=0, world_size=10, global_counts=True)


# Schedules.

SCHEDULE = [(2, {"b": 0, "c": 4}), (5, [1, 1, 1])]
SCHEDULED = [(5, 3, 1)] * 2 + [(5, 0, 4)] * 3 + [(1, 1, 1)] * 5


def counts_of(batch: Batch) -> tuple[int, ...]:
    found = Counter(source_of(label) for label in batch.labels.tolist())
    return found["a"], found["b"], found["c"]


def test_counts_follow_a_schedule_exactly_and_go_through_every_source(config: Path) -> None:
    mux = mux_of(config, schedule=SCHEDULE)
    batches = [(mux.batch_size, batch) for batch in take(mux, 10)]
    assert [counts_of(batch) for _, batch in batches] == SCHEDULED
    assert drawn([batch for _, batch in batches][:9], "c")[:7] != []
    for source, records in (("a", 30), ("b", 20), ("c", 7)):
        found = drawn([batch for _, batch in batches], source)
        assert all(count == 1 for count in Counter(found[:records]).values())


@pytest.mark.parametrize("taken", slow_except([0, 4, 5], [0, 1, 2, 4, 5, 8]))
def test_a_scheduled_mux_goes_on_from_any_step_at_any_world_size(config: Path, taken: int) -> None:
    whole = global_batches(config, 1, 10, schedule=SCHEDULE, global_counts=True, lanes=4)
    before = mux_of(config, schedule=SCHEDULE, global_counts=True, lanes=4, rank=1, world_size=3)
    take(before, taken)
    after = [mux_of(config, schedule=SCHEDULE, global_counts=True, rank=r, world_size=2) for r in range(2)]
    for mux in after:
        mux.load_state_dict(json.loads(json.dumps(before.state_dict())))
    ranks = zip(*(take(mux, 10 - taken) for mux in after), strict=True)
    assert [sorted(pair for batch in each for pair in pairs_of(batch)) for each in ranks] == whole[taken:]


def test_a_state_goes_on_with_a_schedule_that_changes_later(config: Path) -> None:
    plain, state = mux_of(config), None
    take(plain, 4)
    state = plain.state_dict()
    changed = mux_of(config, schedule=[(4, {"a": 9, "c": 2})])
    changed.load_state_dict(state)
    assert [counts_of(batch) for batch in take(changed, 2)] == [(9, 3, 2)] * 2
    other = mux_of(config, schedule=[(3, {"a": 9})])
    with pytest.raises(UsageError, match=r"after \[20, 12, 4\] samples of the datasets"):
        other.load_state_dict(state)


def test_samples_that_are_read_follow_a_schedule(config: Path) -> None:
    mux = mux_of(config, schedule=SCHEDULE)
    labels = [mux.read().label for _ in range(18 + 5)]
    state = mux.state_dict()
    rest = [mux.read().id for _ in range(9)]
    assert Counter(map(source_of, labels[:18])) == {"a": 10, "b": 6, "c": 2}
    resumed = mux_of(config, schedule=SCHEDULE)
    resumed.load_state_dict(state)
    assert [resumed.read().id for _ in range(9)] == rest
    mux.close()
    resumed.close()


def test_toml_has_a_schedule_and_names(config: Path) -> None:
    toml = config.with_suffix(".toml")
    toml.write_text(
        "transform = [{ name = 'CenterCrop', size = 24 }]\nglobal_counts = true\n"
        "schedule = [{ step = 0, counts = { cats = 3, b = 1 } }, { step = 2, counts = [0, 4] }]\n"
        "[[source]]\npath = 'a'\nname = 'cats'\n[[source]]\npath = 'b'\nbase = 1000\n"
    )
    mux = picstore.DataMux(toml, isolate=False)
    assert [counts_of(batch)[:2] for batch in take(mux, 4)] == [(3, 1), (3, 1), (0, 4), (0, 4)]
    mux.close()
    toml.write_text(toml.read_text().replace("{ step = 2, counts = [0, 4] }", "2"))
    with pytest.raises(UsageError, match=r"schedule is .*; give a list such as"):
        picstore.DataMux(toml)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ([(1, {"d": 1})], "schedule names 'd'; name one that stands once in a, b, c"),
        ([(1, [1, 2])], r"schedule has the counts \[1, 2\]; give 3"),
        ([(1, 5)], "schedule has the counts 5; give 3"),
        ([(1, {"a": -1})], "the schedule's count of a is -1; give an integer"),
        ([(1, {"a": 1.5})], "count of a is 1.5"),
        ([(1, {"a": True})], "count of a is True"),
        ([(-1, {"a": 1})], "a step of the schedule is -1; give an integer"),
        ([("1", {"a": 1})], "a step of the schedule is '1'"),
        ([(4, {"a": 1}), (4, {"a": 2})], "ascending order"),
        ([(1, [0, 0, 0])], r"counts \[0, 0, 0\] at step 1"),
        ([5], r"schedule has 5; give \(step, counts\)"),
        ([(0, {"c": 0})], "c has count 0 at all steps"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused(config: Path, schedule: list[object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        mux_of(config, schedule=schedule)


# An end.


def test_epoch_batches_ends_an_iteration_and_the_next_goes_on(config: Path) -> None:
    endless, ending = mux_of(config), mux_of(config, epoch_batches=3)
    expected = take(endless, 9)
    found = [*ending, *ending, *ending]
    assert len(found) == 9
    assert all(same(one, other) for one, other in zip(expected, found, strict=True))


def test_after_a_break_a_mux_with_an_end_goes_on_to_it(config: Path) -> None:
    expected = take(mux_of(config), 6)
    mux = mux_of(config, epoch_batches=4)
    found = take(mux, 3)
    found += list(mux)  # the fourth
    assert len(found) == 4
    state = mux.state_dict()
    again = mux_of(config, epoch_batches=4)
    again.load_state_dict(state)
    found += take(again, 2)
    assert all(same(one, other) for one, other in zip(expected, found, strict=True))


def test_a_mux_without_an_end_has_no_length(config: Path) -> None:
    with pytest.raises(TypeError, match="epoch_batches"):
        len(mux_of(config))


def test_reading_samples_goes_on_beyond_the_end_of_an_iteration(config: Path) -> None:
    mux, endless = mux_of(config, epoch_batches=2), mux_of(config)
    assert [mux.read().id for _ in range(40)] == [endless.read().id for _ in range(40)]
    mux.close()
    endless.close()


# Batches.


@pytest.mark.parametrize(("taken", "read"), [(0, 1), (2, 2), (2, 4), (1, 5), (1, 7), (3, 1), (2, 11)])
def test_a_loop_after_read_goes_on_with_the_batch_that_follows(make_dataset: Make, taken: int, read: int) -> None:
    """Where the last batch of an iteration was begun, the loop is over at once, and the next one begins after it."""
    dataset = picstore.Dataset(make_dataset(24))

    def make() -> picstore.DataMux:
        return picstore.DataMux(
            [(dataset, 0, 4)], transform=CROP, epoch_batches=3, isolate=False, threads=1, rank=0, world_size=1
        )

    with closing(make()) as reference, closing(make()) as mux:
        whole = [batch.ids.tolist() for _ in range(4) for batch in reference]
        batches = (batch.ids.tolist() for _ in range(4) for batch in mux)
        assert list(islice(batches, taken)) == whole[:taken]
        batches.close()
        samples = [mux.read().id for _ in range(read)]
        assert samples == [*chain(*whole)][4 * taken : 4 * taken + read]
        begun = taken + -(-read // 4)
        rest = [batch.ids.tolist() for batch in mux]
        end = begun if begun % 3 == 0 and read % 4 else begun // 3 * 3 + 3
        assert rest == whole[begun:end]
        assert next(iter(mux)).ids.tolist() == whole[end]


def test_every_batch_holds_exactly_the_configured_counts(config: Path) -> None:
    mux = mux_of(config)
    assert mux.batch_size == 9
    for batch in take(mux, 40):
        assert Counter(source_of(label) for label in batch.labels.tolist()) == {"a": 5, "b": 3, "c": 1}
        assert batch.images.shape == (9, 3, 24, 24)
        assert batch.ids.dtype == torch.int64 and batch.labels.dtype == torch.int64


def test_labels_have_the_base_added(config: Path) -> None:
    bases = {"a": 0, "b": 1000, "c": 2000}
    for batch in take(mux_of(config), 10):
        for label, i in zip(batch.labels.tolist(), batch.ids.tolist(), strict=True):
            assert label == bases[source_of(label)] + i % 5


def test_an_unknown_label_stays_unknown(tmp_path: Path) -> None:
    with picstore.Writer(tmp_path / "mixed") as writer:
        for number in range(8):
            writer.add(picture(number), label=-1 if number % 2 else 3)
    (tmp_path / "mux.tsv").write_text("mixed 100 8")
    (batch,) = take(mux_of(tmp_path / "mux.tsv"), 1)
    assert dict(zip(batch.ids.tolist(), batch.labels.tolist(), strict=True)) == {
        number: -1 if number % 2 else 103 for number in range(8)
    }


def test_each_source_comes_once_in_each_epoch_of_its_own(config: Path) -> None:
    batches = take(mux_of(config), 42)
    for source, records, count in (("a", 30, 5), ("b", 20, 3), ("c", 7, 1)):
        ids = drawn(batches, source)
        assert len(ids) == 42 * count
        seen: Counter[int] = Counter(ids)
        # A batch may hold the end of one epoch and the beginning of the next, so compare how often each was seen.
        whole, rest = divmod(len(ids), records)
        assert set(seen) == set(range(records))
        assert set(seen.values()) <= {whole, whole + 1}
        assert sum(times == whole + 1 for times in seen.values()) == rest
    one, other = drawn(batches, "a")[:30], drawn(batches, "a")[30:60]
    assert sorted(one) == sorted(other) and one != other


def test_a_count_larger_than_a_source_repeats_it(make_dataset: Make, tmp_path: Path) -> None:
    make_dataset(4, name="few")
    (tmp_path / "mux.tsv").write_text("few 0 10")
    batches = take(mux_of(tmp_path / "mux.tsv"), 6)
    assert Counter(i for batch in batches for i in batch.ids.tolist()) == dict.fromkeys(range(4), 15)


def test_sources_are_shuffled_inside_a_batch(config: Path) -> None:
    orders = {"".join(source_of(label) for label in batch.labels.tolist()) for batch in take(mux_of(config), 20)}
    assert len(orders) > 15


def test_the_seed_decides_and_nothing_else_does(config: Path) -> None:
    first = take(mux_of(config, seed=4), 12)
    again = take(mux_of(config, seed=4, threads=5, budget=1), 12)
    assert all(same(one, other) for one, other in zip(first, again, strict=True))
    other = take(mux_of(config, seed=5), 12)
    assert [batch.ids.tolist() for batch in first] != [batch.ids.tolist() for batch in other]


def test_a_data_set_that_is_listed_twice_is_drawn_in_two_orders(make_dataset: Make, tmp_path: Path) -> None:
    make_dataset(40, name="twice")
    (tmp_path / "mux.tsv").write_text("twice 0 4\ntwice 1000 4")
    batches = take(mux_of(tmp_path / "mux.tsv"), 10)
    one, other = drawn(batches, "a"), drawn(batches, "b")
    assert sorted(one) == sorted(other) == list(range(40))
    assert one != other


def test_iterating_again_goes_on(config: Path) -> None:
    expected = take(mux_of(config), 10)
    mux = mux_of(config)
    found = take(mux, 4) + take(mux, 6)
    assert all(same(one, other) for one, other in zip(expected, found, strict=True))


# Samples.


def test_read_iterates_over_the_samples_of_the_batches(config: Path) -> None:
    batches = take(mux_of(config), 3)
    mux = mux_of(config)
    for batch in batches:
        for k in range(9):
            sample = mux.read()
            assert torch.equal(sample.image, batch.images[k])
            assert (sample.label, sample.id) == (int(batch.labels[k]), int(batch.ids[k]))
    mux.close()


def test_peek_does_not_advance(config: Path) -> None:
    mux = mux_of(config)
    for _ in range(12):
        state = mux.state_dict()
        peeked = mux.peek()
        assert mux.peek() is peeked
        assert mux.state_dict() == state
        assert mux.read() is peeked
        assert mux.state_dict() != state
    mux.close()


def test_close_ends_the_threads_and_reading_goes_on_after_it(config: Path) -> None:
    whole = mux_of(config)
    expected = [whole.read().id for _ in range(14)]
    whole.close()
    mux = mux_of(config)
    mux.close()
    found = [mux.read().id for _ in range(4)]
    mux.peek()
    assert our_threads() != []
    mux.close()
    assert our_threads() == []
    found += [mux.read().id for _ in range(10)]
    mux.close()
    assert found == expected


def test_without_a_size_samples_have_their_own(config: Path) -> None:
    mux = mux_of(config, transform=[])
    shapes = {tuple(mux.read().image.shape) for _ in range(20)}
    mux.close()
    assert len(shapes) > 1 and all(shape[0] == 3 for shape in shapes)


# State.


@pytest.mark.parametrize("taken", [0, 1, 13])
def test_a_new_mux_goes_on_bit_for_bit(config: Path, taken: int) -> None:
    expected = take(mux_of(config), 20)
    mux = mux_of(config)
    take(mux, taken)
    resumed = mux_of(config, threads=1)
    resumed.load_state_dict(json.loads(json.dumps(mux.state_dict())))
    found = take(resumed, 20 - taken)
    assert all(same(one, other) for one, other in zip(expected[taken:], found, strict=True))


def test_a_new_mux_goes_on_with_the_following_sample(config: Path) -> None:
    mux = mux_of(config)
    for _ in range(13):
        mux.read()
    state = mux.state_dict()
    expected = [mux.read().id for _ in range(20)]
    mux.close()
    resumed = mux_of(config)
    resumed.load_state_dict(state)
    assert [resumed.read().id for _ in range(20)] == expected
    resumed.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": None}, "version None of the order, this picstore goes on with versions 1 and 2"),
        ({"datasets": []}, "datasets"),
        ({"taken": [50, 30, 20]}, r"after \[50, 30, 20\] samples of the datasets, and 0 of a rank's next batch"),
        ({"version": 1, "counts": [5, 3, 2], "samples": 100}, r"after \[50, 30, 20\] samples"),
        ({"version": 1, "world_size": "3", "samples": 9}, "world_size of the state is '3'"),
        ({"version": 1, "counts": "531", "samples": 9}, "counts '531'"),
        ({"taken": "531"}, "taken '531'; a list of 3 integers"),
        ({"taken": [5, 3, 1.0]}, "taken of the state is 1.0; give an integer"),
        ({"read": 3, "world_size": 2}, "and 3 of a rank's next batch"),
        ({"read": 3, "counts": [5, 2, 2]}, "and 3 of a rank's next batch"),
        ({"read": 9}, "and 9 of a rank's next batch"),
        ({"counts": None}, "counts None; a list of 3 integers"),
        ({"lanes": -1}, "lanes of the state is -1"),
        ({"worker": [0, 2]}, "worker"),
        ({"seed": 1}, "seed 1, this mux 0"),
        ({"read": -1}, "read is -1; give an integer"),
        ({"version": 1, "samples": "9"}, "samples is '9'; give an integer"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(config: Path, change: dict[str, object], message: str) -> None:
    mux = mux_of(config)
    with pytest.raises(UsageError, match=message):
        mux.load_state_dict({**mux.state_dict(), **change})


# Damage.


def damage(path: Path, id_: int) -> None:
    """Flip a bit in the image of a record."""
    dataset = picstore.Dataset(path)
    for number in range(len(dataset.rows)):
        for entry in dataset.entries(number):
            if entry["id"] == id_:
                file = path / dataset.containers.container_ref(number).name
                data = bytearray(file.read_bytes())
                data[int(dataset.rows[number]["offset"]) + int(entry["offset"]) + int(entry["length"]) // 2] ^= 1
                file.write_bytes(data)


def test_counts_hold_when_a_record_is_damaged_and_it_never_comes(
    config: Path, caplog: pytest.LogCaptureFixture
) -> None:
    damage(config.parent / "c", 3)
    mux = mux_of(config)
    batches = take(mux, 21)
    for batch in batches:
        assert Counter(source_of(label) for label in batch.labels.tolist()) == {"a": 5, "b": 3, "c": 1}
    assert set(drawn(batches, "c")) == set(range(7)) - {3}
    assert mux.damaged == 3
    assert [message.split(": ")[-1] for message in caplog.messages] == ["record 3 fails its CRC"]


def test_a_lost_file_is_replaced_from_the_same_source(config: Path) -> None:
    next((config.parent / "a").glob("*/*.pic")).unlink()
    mux = mux_of(config)
    for batch in take(mux, 20):
        assert Counter(source_of(label) for label in batch.labels.tolist()) == {"a": 5, "b": 3, "c": 1}
    assert mux.damaged > 0


def test_on_damage_raise_stops_the_mux(config: Path) -> None:
    damage(config.parent / "c", 3)
    with pytest.raises(Damage, match="record 3 fails its CRC"):
        take(mux_of(config, on_damage="raise"), 21)
    with pytest.raises(UsageError, match="give 'skip' or 'raise'"):
        mux_of(config, on_damage="stop")


def test_a_mux_takes_open_data_sets_and_conditions_on_records(make_dataset: Make, tmp_path: Path) -> None:
    path = make_dataset(20)
    odd = picstore.Dataset(path).select(picstore.Dataset(path).ids % 2 == 1)
    config = tmp_path / "mux.toml"
    config.write_text(f'[[source]]\npath = "{path}"\nwhere = "id % 2 = 1"\ncount = 2\n')
    options = {"threads": 1, "isolate": False, "epoch_batches": 5}
    muxes = [picstore.DataMux([(odd, 0, 2)], **options), picstore.DataMux(config, **options)]
    epochs = [[batch.ids.tolist() for batch in mux] for mux in muxes]
    assert epochs[0] == epochs[1]
    assert sorted(id_ for ids in epochs[0] for id_ in ids) == list(range(1, 20, 2))
    muxes[1].load_state_dict(muxes[0].state_dict())
    with pytest.raises(UsageError, match="selection"):
        picstore.DataMux([(odd.select([1, 2, 3]), 0, 2)], **options).load_state_dict(muxes[0].state_dict())
    with pytest.raises(UsageError, match="at least one dataset"):
        picstore.DataMux([])
    config.write_text(f'[[source]]\npath = "{path}"\nwhere = "id < 0"\ncount = 2\n')
    with pytest.raises(UsageError, match="no records with id < 0"):
        picstore.DataMux(config)
