"""processes=N: the batches of one process, in the same order, from several."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

import pytest
import simplejpeg
import torch
from equal_batches import assert_same, same, take
from grids import slow_except
from own_processes import children
from own_threads import threads_left
from remote_recipes import CROP, RECIPES, contents, write_pictures

import picstore
from picstore.errors import Corrupt, PicstoreError, UsageError
from picstore.train import core, loader_options
from picstore.train.buffers import BufferPools, receive_descriptor
from picstore.train.loader_options import CORES_OF_A_PROCESS
from picstore.train.order.spans import DealtSpans, Span, steps_of_span
from picstore.train.pipeline import device_augment, loader_process, process_sequence, runner
from picstore.train.pipeline.loader_process import AHEAD, SequenceShare
from picstore.train.pipeline.loader_process_main import ProcessServer, SpanPipelines, _HungUp
from picstore.train.pipeline.stats import StatsCounter

Make = Callable[..., Path]
OPTIONS: dict[str, Any] = {"batch_size": 4, "transform": CROP, "lanes": 4, "seed": 5}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures with boxes, masks and captions."""
    return write_pictures(tmp_path_factory.mktemp("processes") / "dataset")


@pytest.fixture(autouse=True)
def _short_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several spans an epoch: of these few records an epoch would be one."""
    monkeypatch.setattr(process_sequence, "steps_of_span", lambda *_: (5, 0.0))


@pytest.fixture(scope="module")
def shared(pictures: Path) -> Iterator[picstore.Loader]:
    """One for tests that need no processes of their own: starting one takes half a second of a core."""
    loader = picstore.Loader(pictures, processes=3, **OPTIONS)
    yield loader
    loader.close()


def threaded(path: Path, **options: Any) -> picstore.Loader:
    return picstore.Loader(path, isolate=False, threads=2, **{**OPTIONS, **options})


def test_batches_of_all_epochs_are_those_of_one_process(shared: picstore.Loader, pictures: Path) -> None:
    before = shared.stats
    shared.set_epoch(0)
    assert_same(take(shared, 4), take(threaded(pictures), 4))
    stats = shared.stats - before
    assert (stats.batches, stats.images) == (96, 384)
    assert stats.bytes > 0 and stats.working > 0 and stats.reading > 0
    each = [process._stats.working for process in shared._runner._processes]
    assert len(each) == 3 and min(each) > 0, "each made batches"


def test_a_state_goes_on_at_any_batch(shared: picstore.Loader, pictures: Path) -> None:
    expected = take(threaded(pictures), 2)
    for first in (1, 11, 23, 24, 25):
        shared.load_state_dict(shared.state_at(*divmod(first, 24)))
        taken = list(itertools.islice(shared, 5))
        assert_same(taken, expected[first : first + len(taken)])
        assert len(taken) == min(5, 24 - first % 24)


def test_after_a_break_the_next_epoch_comes_from_the_same_processes(shared: picstore.Loader, pictures: Path) -> None:
    shared.set_epoch(0)
    for number, _ in enumerate(shared):
        if number == 1:  # one batch alone is a look
            break
    before = children()
    local = threaded(pictures)
    local.set_epoch(1)
    assert_same(take(shared, 1), take(local, 1))
    assert {*children()} <= {*before}
    assert shared._runner._processes[0].alive


def test_a_second_iterator_has_processes_of_its_own(shared: picstore.Loader, pictures: Path) -> None:
    before = set(children())
    shared.set_epoch(0)
    first = iter(shared)
    next(first)
    second = iter(shared)
    batch = next(second)
    assert len(set(children()) - before) == 3
    second.close()  # type: ignore[attr-defined]
    assert set(children()) <= before
    shared.set_epoch(0)
    local = take(threaded(pictures), 2)
    assert same(batch, local[24]), "the epoch after the one that was begun"
    assert_same(list(first), local[1:24])


# One of each form of a batch; all of RECIPES: test_remote_sequence.py.
@pytest.mark.parametrize(
    "name",
    [
        *slow_except(["masks"], ["masks", "detr", "buckets"]),
        *(pytest.param(name, marks=pytest.mark.nightly) for name in ("simclr", "collate")),
    ],
)
def test_batches_of_any_recipe_are_those_of_one_process(pictures: Path, name: str) -> None:
    options = {"batch_size": 8, "lanes": 4, "seed": 3, **RECIPES[name]}
    several = contents(picstore.Loader(pictures, processes=2, **options))
    one = contents(picstore.Loader(pictures, isolate=False, threads=2, **options))
    assert len(several) == len(one) > 0
    assert several == one


def test_a_rank_has_its_batches_and_the_last_one_too(pictures: Path) -> None:
    options = {"rank": 1, "world_size": 2, "drop_last": False, "batch_size": 5}
    loader = picstore.Loader(pictures, processes=2, **{**OPTIONS, **options})
    assert_same(take(loader, 3), take(threaded(pictures, **options), 3))
    loader.close()


def test_a_mux_has_the_same_batches(make_dataset: Make) -> None:
    sets = [make_dataset(60, name="one"), make_dataset(30, name="two")]

    def mux(**options: Any) -> picstore.DataMux:
        config = [(picstore.Dataset(path), 100 * number, 5 - number) for number, path in enumerate(sets)]
        return picstore.DataMux(config, transform=CROP, seed=2, epoch_batches=17, lanes=2, **options)

    several = mux(processes=2)
    assert_same([*several, *several], [batch for loader in [mux(isolate=False)] for _ in range(2) for batch in loader])
    several.close()


@pytest.mark.slow
def test_fewer_containers_than_processes_have_the_same_batches(make_dataset: Make) -> None:
    path = make_dataset(12, streams=1, container_size=1 << 20, file_size=1 << 20)
    loader = picstore.Loader(path, processes=3, **OPTIONS)
    assert_same(take(loader, 7), take(threaded(path), 7))
    loader.close()


def test_processes_that_are_killed_are_an_error_and_replaced(pictures: Path) -> None:
    before = set(children())
    loader = picstore.Loader(pictures, processes=2, **OPTIONS)
    batches = iter(loader)
    next(batches)
    victim = loader._runner._processes[1]._process.pid
    os.kill(victim, signal.SIGKILL)
    with pytest.raises(PicstoreError, match="ended with exit status -9"):
        list(batches)
    loader.set_epoch(1)
    local = threaded(pictures)
    local.set_epoch(1)
    assert_same(take(loader, 1), take(local, 1))
    assert victim not in children()
    loader.close()
    assert set(children()) <= before


@pytest.mark.parametrize("count", [1, 2])
def test_a_process_killed_within_a_message_is_the_same_error(
    pictures: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """And comes after the two batches of each that were sent before, though nobody hears that these were taken."""
    monkeypatch.setattr(loader_process, "_MAIN", "loader_faults:die_within_a_message")
    taken, loader = [], picstore.Loader(pictures, processes=count, isolate=True, **OPTIONS)
    with pytest.raises(PicstoreError, match="ended with exit status -9"):
        for batch in loader:
            taken.append(batch)
            time.sleep(0.2)
    loader.close()
    assert len(taken) == 2 * count, "the first process has a span of two"
    assert_same(taken, take(threaded(pictures), 1)[: len(taken)])


def test_an_error_is_raised_in_its_batchs_turn(make_dataset: Make) -> None:
    """And a loader that is closed or dropped in the middle leaves no process and no thread."""
    path = make_dataset(200)
    file = sorted(path.glob("*/*.pic"))[1]
    content = bytearray(file.read_bytes())
    content[6000:6400] = bytes(400)
    file.write_bytes(content)
    before = set(children())
    position, error = run_into_damage(threaded(path, on_damage="raise"))
    strict = picstore.Loader(path, processes=2, on_damage="raise", **OPTIONS)
    assert run_into_damage(strict) == (position, error)
    assert len(set(children()) - before) < 2, "a process that meets damage ends"
    skipping, local = picstore.Loader(path, processes=2, **OPTIONS), threaded(path)
    assert_same(take(skipping, 1), take(local, 1))
    assert skipping.damaged == local.damaged > 0
    batches = iter(skipping)
    next(batches)
    skipping.close()
    local.close()
    with pytest.raises(PicstoreError, match="the loader was closed"):
        list(batches)
    del strict
    gc.collect()
    assert set(children()) <= before
    assert threads_left() == []


def run_into_damage(loader: picstore.Loader) -> tuple[tuple[int, int], tuple[Path | str, int | None]]:
    """Position of a strict loader at its first damage, and where that is."""
    with pytest.raises(Corrupt) as raised:
        take(loader, 2)
    return tuple(loader.position), (str(raised.value.file), raised.value.offset)  # type: ignore[return-value]


@pytest.mark.slow
def test_for_a_decoder_on_a_device_processes_send_cuts(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The decoder is libjpeg-turbo, and instead of augmenting each image becomes its left upper corner."""

    def decode(streams: list[torch.Tensor]) -> list[torch.Tensor]:
        pixels = [simplejpeg.decode_jpeg(stream.numpy().tobytes(), "RGB") for stream in streams]
        return [torch.from_numpy(each.transpose(2, 0, 1).copy()) for each in pixels]

    monkeypatch.setattr(runner, "choose_decoder", lambda name, _: "cpu" if name == "auto" else name)
    monkeypatch.setattr(runner, "load_decoder", lambda name, _: decode)
    monkeypatch.setattr(runner, "check_decoder", lambda decode, device: None)
    monkeypatch.setattr(
        device_augment, "augment_images", lambda pictures, *_: torch.stack([p[:, :2, :2] for p in pictures])
    )
    loader = picstore.Loader(pictures, processes=2, decoder="torchvision", **OPTIONS)
    assert_same(take(loader, 2), take(threaded(pictures, decoder="torchvision"), 2))
    loader.close()


@pytest.mark.slow
def test_an_interrupt_leaves_the_processes_to_the_next_iteration(pictures: Path) -> None:
    loader = picstore.Loader(pictures, processes=2, **OPTIONS)
    batches = iter(loader)
    next(batches)
    kept = children()
    awaited = loader._runner._processes[0]._process.pid
    os.kill(awaited, signal.SIGSTOP)

    def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)
        os.kill(awaited, signal.SIGCONT)

    alarm = threading.Timer(1, interrupt)
    alarm.start()
    with pytest.raises(KeyboardInterrupt):
        for _ in batches:
            pass
    alarm.join()
    local = threaded(pictures)
    local.set_epoch(1)
    loader.set_epoch(1)
    assert_same(take(loader, 1), take(local, 1))
    assert {*children()} <= {*kept}
    loader.close()


@pytest.mark.slow
def test_a_fork_cannot_take_the_batches_of_its_parent(pictures: Path) -> None:
    loader = picstore.Loader(pictures, processes=2, **OPTIONS)
    batches = iter(loader)
    first = next(batches)
    if not (pid := os.fork()):
        try:
            next(batches)
        except PicstoreError as error:
            os._exit(7 if "was forked" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert_same([first, *batches], take(threaded(pictures), 1))
    loader.close()


@pytest.mark.slow
def test_processes_read_at_most_a_quarter_more_than_one(make_dataset: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_sequence, "steps_of_span", steps_of_span)
    path = make_dataset(400, container_size=8 << 10)
    options = {"lanes": 4, "batch_size": 16}
    local, loader = threaded(path, **options), picstore.Loader(path, processes=2, **{**OPTIONS, **options})
    assert_same(take(loader, 8), take(local, 8))
    loader.close()
    local.close()
    # What is begun ahead counts too: two spans, each of which may be an epoch.
    assert loader.stats.bytes <= 1.25 * local.stats.bytes * (8 + 3) / 8


def test_batches_on_their_way_have_fewer_mappings_than_linux_allows(
    shared: picstore.Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spans of tiny batches have hundreds of thousands of them."""
    shares: list[SequenceShare] = []
    start = loader_process.LoaderProcess.start_sequence

    def noting(process: loader_process.LoaderProcess, share: SequenceShare) -> int:
        shares.append(share)
        return start(process, share)

    monkeypatch.setattr(process_sequence, "steps_of_span", lambda *_: (1 << 20, 0.0))
    monkeypatch.setattr(loader_process.LoaderProcess, "start_sequence", noting)
    shared.set_epoch(7)
    assert len(next(iter(shared)).labels) == OPTIONS["batch_size"]
    assert len(shares) == 3 and 3 * shares[0].ahead <= 1 << 15


@pytest.mark.parametrize(
    ("ahead", "blocks", "sent"),
    [(7, 100, 7), (7, 3, 3), (7, 0, AHEAD), (AHEAD, 100, AHEAD)],
)
def test_no_more_batches_are_on_their_way_than_fit(pictures: Path, ahead: int, blocks: int, sent: int) -> None:
    loader = threaded(pictures)
    mine, theirs = Pipe()

    def serve() -> None:
        with contextlib.suppress(_HungUp):
            ProcessServer(theirs).serve()

    server = threading.Thread(target=serve)
    server.start()
    mine.send(loader._runner._spec)
    block = 1 << 16  # bytes of the memory of a small batch
    spans = DealtSpans(Span(loader.order, 0), 100, 1)
    mine.send(("begin", SequenceShare(spans, 0, ahead, blocks * block)))
    assert receive_all(mine) == sent
    mine.send(("taken", [0], []))
    assert receive_all(mine) == 1
    mine.send(("stop",))
    assert mine.recv() == ("end", None)
    mine.close()
    server.join()


def receive_all(connection: Connection) -> int:
    """Receive messages until no more come; returns their number."""
    count = 0
    while connection.poll(10 if count == 0 else 0.5):
        _, message = connection.recv()
        if message.new_size is not None:
            os.close(receive_descriptor(connection))
        count += 1
    return count


def test_the_next_span_begins_before_the_last_one_ends(pictures: Path) -> None:
    loader = threaded(pictures)
    spans = DealtSpans(Span(loader.order, 0), 6, 2)
    pipelines = SpanPipelines(spans.of_worker(1), loader._runner._spec, buffers=BufferPools(), counter=StatsCounter())
    pipelines.start()
    mine = itertools.islice(spans.of_worker(1), 3)
    for span in mine:
        for number in range(span.count or 0):
            begun = pipelines._next is not None
            batch = pipelines.receive()
            assert batch is not None
            expected = next(iter(span.after(number)(loader.sources)))
            assert len(batch.ids) == sum(len(wanted.samples) for wanted in expected)
        assert begun, "before the last batch of the span was received"
    pipelines.close()
    assert threads_left() == []


def test_threads_and_budget_are_divided_among_processes(pictures: Path) -> None:
    loader = picstore.Loader(pictures, processes=3, threads=8, budget=3 << 20, **OPTIONS)
    shares = [loader._runner._spec_of_process(number).resources for number in range(3)]
    assert [each.threads for each in shares] == [2, 3, 3]
    assert [each.budget for each in shares] == [1 << 20] * 3
    whole = picstore.Loader(pictures, processes=3, threads=1, **OPTIONS)._runner
    assert [whole._spec_of_process(number).resources.threads for number in range(3)] == [1, 1, 1]
    one = threaded(pictures)._runner._spec.resources.budget
    assert whole._spec_of_process(0).resources.budget == one, "a process reads as many lanes as one that is alone"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"processes": 0}, "processes is 0"),
        ({"isolate": False}, "processes is 2 and isolate False"),
        ({"engine": "ray"}, "processes is 2; give workers=2 with engine='ray'"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(pictures: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        picstore.Loader(pictures, **{**OPTIONS, "processes": 2, **options})


def test_a_worker_of_a_dataloader_refuses_to_start_processes(pictures: Path) -> None:
    loader = picstore.Loader(pictures, processes=2, **OPTIONS)
    workers = torch.utils.data.DataLoader(loader, batch_size=None, num_workers=1)
    with pytest.raises(UsageError, match="a DataLoader's workers are processes already"):
        next(iter(workers))


@pytest.mark.parametrize(
    ("cores", "threads", "ranks", "count"),
    [
        (1, None, "", 1),
        (2, None, "", 1),
        (7, None, "", 1),
        (8, None, "1", 2),
        (15, None, "", 3),
        (16, None, "", 4),
        (32, None, "", 8),
        (192, None, "", 8),
        (64, None, "8", 2),
        (96, None, "4", 6),
        (64, 4, "", 1),
        (64, 16, "", 4),
        (2, 64, "", 1),
        (16, None, "0", 4),
        (16, None, "many", 4),
    ],
)
def test_a_rank_has_a_process_for_each_four_of_its_cores_up_to_eight(
    monkeypatch: pytest.MonkeyPatch, cores: int, threads: int | None, ranks: str, count: int
) -> None:
    monkeypatch.setattr(loader_options, "CORES_OF_A_PROCESS", CORES_OF_A_PROCESS)
    monkeypatch.setattr(loader_options, "count_cores", lambda: cores)
    assert loader_options.default_processes(threads, {"LOCAL_WORLD_SIZE": ranks} if ranks else {}) == count


def test_the_default_number_of_processes_gives_way(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader_options, "CORES_OF_A_PROCESS", CORES_OF_A_PROCESS)
    for module in (core, loader_options):
        monkeypatch.setattr(module, "count_cores", lambda: 16)
    loader = picstore.Loader(pictures, **{**OPTIONS, "threads": None})
    assert loader._runner._count == 4
    assert [loader._runner._spec_of_process(number).resources.threads for number in range(4)] == [4] * 4
    one = threaded(pictures)._runner._spec.resources.budget
    assert loader._runner._spec.resources.budget == 4 * one
    assert picstore.Loader(pictures, isolate=False, **OPTIONS)._runner._count == 0
    assert picstore.Loader(pictures, isolate=False, **OPTIONS)._runner._spec.resources.budget == one
    workers = torch.utils.data.DataLoader(loader, batch_size=None, num_workers=1)
    assert len(next(iter(workers)).labels) == len(next(iter(loader)).labels)
    loader.close()
