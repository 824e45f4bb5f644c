"""The mux: exact counts in every batch, each source once an epoch of its own, without end."""

from __future__ import annotations

import gc
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pytest
import torch
from samples import picture

import picstore
from picstore.errors import Damage, NotADataset, UsageError
from picstore.train.batch import Batch
from picstore.train.mux import MuxEntry, read_config

CROP = [picstore.RandomResizedCrop(24), picstore.RandomHorizontalFlip()]
Make = Callable[..., Path]


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    yield
    if our_threads():
        gc.collect()  # an iterator in a cycle closes late
    assert our_threads() == []


def our_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("picstore-")]


@pytest.fixture
def config(make_dataset: Make, tmp_path: Path) -> Path:
    """5 of 30 records with labels from 0, 3 of 20 with labels from 1000, 1 of 7 from 2000."""
    for name, count in (("a", 30), ("b", 20), ("c", 7)):
        make_dataset(count, name=name)
    path = tmp_path / "mux.tsv"
    path.write_text("a\t0\t5\nb\t1000\t3\n\nc\t2000\t1\n")
    return path


def mux_of(config: Path, **options: object) -> picstore.DataMux:
    return picstore.DataMux(config, **{"transform": CROP, "threads": 2, **options})  # type: ignore[arg-type]


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
    assert read_config(config) == [
        MuxEntry(Path("/data/one"), 0, 5),
        MuxEntry(Path("/data/two"), 10, 3),
        MuxEntry(Path("/data/three"), 20, 1),
    ]


def test_a_relative_path_is_looked_for_beside_the_configuration_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "beside").mkdir()
    config = tmp_path / "mux.tsv"
    config.write_text("beside 0 1 elsewhere 0 1")
    monkeypatch.chdir(tmp_path.parent)
    assert [entry.path for entry in read_config(config)] == [tmp_path / "beside", Path("elsewhere")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds 0 words"),
        (" \n", "holds 0 words"),
        ("a 0 5 b 10", "holds 5 words; `path base_label count`"),
        ("a zero 5", "a zero 5: base label and count must be integers"),
        ("a 0 2.5", "a 0 2.5: base label and count must be integers"),
        ("a 0 0", "base label 0 and count 0"),
        ("a 0 -1", "count -1"),
        ("a -1 1", "base label -1"),
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


# Batches.


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
        ({"version": None}, "version None, this mux 1"),
        ({"datasets": []}, "datasets"),
        ({"counts": [5, 3, 2]}, r"counts \[5, 3, 2\], this mux \[5, 3, 1\]"),
        ({"seed": 1}, "seed 1, this mux 0"),
        ({"samples": -1}, "after -1 samples"),
        ({"samples": "9"}, "after '9' samples"),
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
                file = path / dataset.place(number).name
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
    with pytest.raises(UsageError, match="neither 'skip' nor 'raise'"):
        mux_of(config, on_damage="stop")
