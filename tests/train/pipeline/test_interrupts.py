"""What happens to a loader in a run: loops that end early, interrupts, exits, forks, threads, and other loaders.

What could hang runs in a process of its own with a time limit; a default run leaves these to CI.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from grids import slow_except
from own_threads import our_threads, threads_left
from programs import Program

import picstore
from picstore.train.batch import Batch
from picstore.train.cpu import fill_images
from picstore.train.pipeline import batch_threads

Make = Callable[..., Path]
pytestmark = pytest.mark.usefixtures("no_earlier_threads")
LIMIT = 90  # seconds, of what takes two

START = """
import gc, os, signal, sys, threading, time
import picstore

def loader_of(path=sys.argv[1], **options):
    given = {"batch_size": 8, "transform": [picstore.RandomResizedCrop(16)], "threads": 2, "isolate": False, **options}
    return picstore.Loader(path, **given)

def ids_of(batches):
    return [batch.ids.tolist() for batch in batches]

"""


def start(script: str, *arguments: object) -> Program:
    """A program that runs a script after START."""
    return Program("-c", START + textwrap.dedent(script), *arguments)


def wait_for_end(program: Program) -> tuple[int | None, str, str]:
    """Exit status and what was written to stdout and stderr; a program that hangs is killed and fails the test."""
    try:
        output, errors = program.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        program.kill_all()
        output, errors = program.communicate()
        pytest.fail(f"hangs\n{output[-2000:]}\n{errors[-4000:]}")
    return program.returncode, output, errors


def run(script: str, *arguments: object) -> tuple[int | None, str, str]:
    return wait_for_end(start(script, *arguments))


def run_alone(script: str, *arguments: object) -> tuple[int, str, str]:
    """The same in a new Python: the end of a fork copies memory, which leaves daemon threads twice the time to fail."""
    command = [sys.executable, "-c", START + textwrap.dedent(script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    return done.returncode, done.stdout, done.stderr


def loader_of(path: Path, **options: Any) -> picstore.Loader:
    given = {"batch_size": 8, "transform": [picstore.RandomResizedCrop(16)], "threads": 2, "isolate": False, **options}
    return picstore.Loader(path, **given)


def ids_of(batches: Any) -> list[list[int]]:
    return [batch.ids.tolist() for batch in batches]


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - iterating would keep it open


# Ends of a process.


@pytest.mark.slow
@pytest.mark.parametrize("isolate", [False, True])
def test_an_interrupt_ends_a_run_as_it_ends_any_python(make_dataset: Make, isolate: bool) -> None:
    script = f"""
    loader = loader_of(isolate={isolate})
    while True:
        for batch in loader:
            print("batch", flush=True)
    """
    process = start(script, make_dataset(100))
    for _ in range(30):  # in the third epoch
        assert process.stdout.readline() == "batch\n"
    errors, dropped = interrupt(process)
    assert process.returncode == -signal.SIGINT  # which a shell calls 130
    assert errors.count("Traceback") == 1 + dropped and errors.endswith("KeyboardInterrupt\n")
    assert errors.count("Exception ignored") == dropped


def interrupt(process: Program) -> tuple[str, int]:
    """Interrupt a run as a user does, again where nothing happens; its stderr, and how many interrupts were dropped.

    Python drops one that meets it in a finalizer, and says so; here they are much of what the main thread does.
    """
    for dropped in range(4):
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=60)[1], dropped
    process.kill_all()
    pytest.fail(f"hangs\n{process.communicate()[1][-4000:]}")


ENDS = {
    "the script ends in an epoch": ("next(iterator)", 0),
    "the script ends after an epoch": ("del iterator; list(loader)", 0),
    "the script ends with an iterator in a cycle": ("next(iterator); cycle = [iterator]; cycle.append(cycle)", 0),
    "sys.exit in the loop": ("for batch in loader: sys.exit(3)", 3),
    "an iterator that nobody asked": ("pass", 0),
    "a daemon thread in an epoch": (
        "threading.Thread(target=lambda: [ids_of(loader) for _ in range(10**6)], daemon=True).start(); time.sleep(0.5)",
        0,
    ),
    "three loaders in daemon threads": (
        "def train():\n"
        "    while True: list(loader_of(isolate=bool(loader._runner._count)))\n"
        "for _ in range(3): threading.Thread(target=train, daemon=True).start()\n"
        "time.sleep(1)",
        0,
    ),
    "a daemon thread collects a loader in a cycle": (
        "next(iterator); cycle = [iterator, loader]; cycle.append(cycle); del iterator, loader, cycle\n"
        "threading.Thread(target=gc.collect, daemon=True).start()",
        0,
    ),
    "a daemon thread closes an iterator": (
        "next(iterator); threading.Thread(target=iterator.close, daemon=True).start()",
        0,
    ),
}


DAEMONS = [("three loaders in daemon threads", False), ("a daemon thread collects a loader in a cycle", False)]
# Of a process, other ends show what becomes of it; with threads, these do.
ISOLATED = [("the script ends with an iterator in a cycle", True), ("sys.exit in the loop", True)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "isolate"),
    [
        # Daemon threads need a new Python, 2 to 4 s of a core.
        pytest.param(
            *case,
            marks=pytest.mark.nightly if case in ISOLATED or ("daemon" in case[0] and case not in DAEMONS) else (),
        )
        for case in product(ENDS, [False, True])
    ],
)
def test_a_process_ends_in_silence_while_a_loader_is_at_work(make_dataset: Make, end: str, isolate: bool) -> None:
    body, expected = ENDS[end]
    script = f"loader = loader_of(isolate={isolate})\niterator = iter(loader)\n{body}\n"
    done = (run_alone if "daemon" in end else run)(script, make_dataset(100))
    if end.startswith("three loaders") and not isolate and done[0] == -signal.SIGABRT:
        # torch frees a NumPy array under Python's lock in a C++ destructor. A daemon thread of the user's own that the
        # interpreter ends there aborts, whatever made the tensor: in 2 of 10 runs at a load of 4.
        done = run_alone(script, make_dataset(100, name="again"))
    assert done == (expected, "", "")


@pytest.mark.slow
def test_a_process_ends_in_silence_while_a_mux_reads_samples(make_dataset: Make, tmp_path: Path) -> None:
    config = tmp_path / "mux.tsv"
    config.write_text(f"{make_dataset(60)} 0 8\n")
    script = """
    mux = picstore.DataMux(sys.argv[1], transform=[picstore.Resize((16, 16))], isolate=False)
    mux.read()
    mux.peek()
    """
    assert run(script, config) == (0, "", "")


@pytest.mark.slow
def test_an_error_in_the_loop_is_the_only_one_that_is_told(make_dataset: Make) -> None:
    status, _, errors = run("for batch in loader_of(): 1 // 0", make_dataset(100))
    assert status == 1
    assert errors.count("Traceback") == 1 and errors.endswith("ZeroDivisionError: integer division or modulo by zero\n")


@pytest.mark.slow
def test_a_thread_goes_on_training_after_the_main_thread_has_ended(make_dataset: Make) -> None:
    script = """
    def train():
        loader = loader_of(batch_size=2)
        iterator = iter(loader)
        next(iterator)
        begun.set()
        threading.main_thread().join()
        print(len(list(iterator)), len(list(loader)), flush=True)

    begun = threading.Event()
    threading.Thread(target=train).start()
    begun.wait()
    """
    assert run(script, make_dataset(200)) == (0, "99 100\n", "")


# Forks and spawned processes.

FORKED = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads, which is what this is about
loader, alone = loader_of(), loader_of()
epochs = [ids_of(alone) for _ in range(3)]
alone.close()

def child_gets(expected):
    child = os.fork()
    if child == 0:
        found = ids_of(loader)
        os._exit(0 if found == expected else 7)
    return child

def wait_for(child):
    _, status = os.waitpid(child, 0)
    assert status == 0, status

"""


@pytest.mark.slow
def test_a_fork_within_an_epoch_has_the_next_one_and_its_parent_goes_on(make_dataset: Make) -> None:
    script = """
    found = []
    for number, batch in enumerate(loader):
        found.append(batch.ids.tolist())
        if number in (1, 5, 9):
            child = child_gets(epochs[1])
            wait_for(child)
    assert found == epochs[0]
    """
    assert run(FORKED + textwrap.dedent(script), make_dataset(100)) == (0, "", "")


@pytest.mark.slow
def test_a_fork_between_epochs_has_the_next_one_and_so_has_its_parent(make_dataset: Make) -> None:
    script = """
    for epoch in (0, 1):
        assert ids_of(loader) == epochs[epoch]
        wait_for(child_gets(epochs[epoch + 1]))
    """
    assert run(FORKED + textwrap.dedent(script), make_dataset(100)) == (0, "", "")


@pytest.mark.slow
def test_many_forks_while_all_threads_are_at_work_do_not_hang(make_dataset: Make) -> None:
    script = """
    children = []
    for number, batch in enumerate(loader):
        children.append(child_gets(epochs[1]))
        if len(children) == 4:
            wait_for(children.pop(0))
    for child in children:
        wait_for(child)
    """
    assert run(FORKED + textwrap.dedent(script), make_dataset(100)) == (0, "", "")


@pytest.mark.slow
def test_a_fork_of_an_isolated_loader_has_a_child_of_its_own(make_dataset: Make) -> None:
    script = """
    loader = loader_of(isolate=True)
    found = []
    for number, batch in enumerate(loader):
        found.append(batch.ids.tolist())
        if number == 3:
            wait_for(child_gets(epochs[1]))
    assert found == epochs[0]
    """
    assert run(FORKED + textwrap.dedent(script), make_dataset(100)) == (0, "", "")


@pytest.mark.slow
@pytest.mark.parametrize("isolate", [False, True])
def test_an_iterator_that_a_fork_inherits_is_refused_there(make_dataset: Make, isolate: bool) -> None:
    script = f"""
    loader = loader_of(isolate={isolate})
    iterator = iter(loader)
    found = [next(iterator).ids.tolist()]
    child = os.fork()
    if child == 0:
        try:
            next(iterator)
        except picstore.PicstoreError:
            os._exit(0)
        os._exit(7)
    wait_for(child)
    assert found + ids_of(iterator) == epochs[0]
    """
    assert run(FORKED + textwrap.dedent(script), make_dataset(100)) == (0, "", "")


@pytest.mark.slow
def test_the_loaders_process_ends_with_its_parent_while_a_fork_of_it_lives(make_dataset: Make) -> None:
    script = """
    import subprocess
    loader = loader_of(isolate=True)
    iterator = iter(loader)
    next(iterator)
    fork = os.fork()
    if fork == 0:
        time.sleep(100)
        os._exit(0)
    print(loader._runner._processes[0]._process.pid, fork, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    """
    parent = start(FORKED + textwrap.dedent(script), make_dataset(100))
    child, fork = map(int, parent.stdout.readline().split())
    deadline = time.monotonic() + 60
    while Path(f"/proc/{child}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{child}").exists()
    os.kill(fork, signal.SIGKILL)
    assert wait_for_end(parent)[0] == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "isolate"),
    slow_except(
        [("fork", False), ("spawn", True)], product(["fork", "spawn"], [False, True]), mark=pytest.mark.nightly
    ),
)
def test_a_process_of_multiprocessing_takes_a_loader_that_is_in_use(
    make_dataset: Make, tmp_path: Path, method: str, isolate: bool
) -> None:
    body = f"""
    import multiprocessing, warnings
    warnings.simplefilter("ignore", DeprecationWarning)

    def work(loader, connection):
        connection.send(ids_of(loader))

    if __name__ == "__main__":
        context = multiprocessing.get_context("{method}")
        loader = loader_of(isolate={isolate})
        iterator = iter(loader)
        first = [batch.ids.tolist() for _, batch in zip(range(3), iterator)]
        mine, theirs = context.Pipe()
        process = context.Process(target=work, args=(loader, theirs))
        process.start()
        found = mine.recv()
        process.join()
        rest = ids_of(iterator)
        assert process.exitcode == 0
        fresh = loader_of()
        assert first + rest == ids_of(fresh), "the parent is disturbed"
        assert found == ids_of(fresh), "the child has another epoch than the next"
    """
    script = tmp_path / "script.py"
    script.write_text(START + textwrap.dedent(body))
    assert wait_for_end(Program(script, make_dataset(100))) == (0, "", "")


# Several at a time.


@pytest.mark.parametrize("isolate", slow_except([False], [False, True]))
def test_two_iterators_of_one_loader_have_an_epoch_each(make_dataset: Make, isolate: bool) -> None:
    loader, alone = loader_of(make_dataset(100), isolate=isolate), loader_of(make_dataset(100, name="same"))
    epochs = [ids_of(alone) for _ in range(3)]
    one = iter(loader)
    found = [next(one).ids.tolist()]
    other = iter(loader)
    pairs = list(zip(ids_of(other), epochs[1], strict=True))
    assert all(a == b for a, b in pairs)
    assert found + ids_of(one) == epochs[0]
    loader.close()
    alone.close()
    assert our_threads() == []


@pytest.mark.parametrize("isolate", slow_except([False], [False, True]))
def test_evaluation_inside_of_an_epoch_does_not_disturb_it(make_dataset: Make, isolate: bool) -> None:
    path = make_dataset(100)
    training, undisturbed = loader_of(path, isolate=isolate), loader_of(path)
    evaluation = loader_of(path, isolate=isolate, shuffle=False, drop_last=False, transform=[picstore.Resize((16, 16))])
    stored = [record.id for record in picstore.Dataset(path)]
    for _ in range(2):
        found = []
        for number, batch in enumerate(training):
            found.append(batch.ids.tolist())
            if number % 5 == 2:
                assert [i for ids in ids_of(evaluation) for i in ids] == stored
        assert found == ids_of(undisturbed)
    for loader in (training, evaluation, undisturbed):
        loader.close()


def test_loaders_in_threads_do_not_disturb_each_other(make_dataset: Make) -> None:
    path = make_dataset(100)
    alone = loader_of(path, seed=1)
    expected = [ids_of(alone) for _ in range(3)]
    found: dict[int, list[list[list[int]]]] = {}

    def train(number: int) -> None:
        loader = loader_of(path, seed=1)
        epochs = []
        for epoch in range(3):
            if epoch == number:  # break off, then take the epoch whole
                for _ in loader:
                    break
                loader.set_epoch(epoch)
            epochs.append(ids_of(loader))
        found[number] = epochs
        loader.close()

    threads = [threading.Thread(target=train, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    alone.close()
    assert found == dict.fromkeys(range(4), expected)
    assert our_threads() == []


# What is held, and what is left.


def settled(value: Callable[[], int]) -> int:
    """A figure that has not changed for a while."""
    last, since = value(), time.monotonic()
    while time.monotonic() - since < 0.5:
        time.sleep(0.01)
        if value() != last:
            last, since = value(), time.monotonic()
    return last


@pytest.mark.slow
def test_a_consumer_that_stands_still_stops_the_reading_at_the_budget(make_dataset: Make) -> None:
    container = 16 << 10
    path = make_dataset(1500, container_size=container)
    dataset = picstore.Dataset(path)
    budget = 12 * container
    assert dataset.manifest.bytes > 5 * budget
    loader = loader_of(path, batch_size=4, lanes=4, budget=budget)
    iterator = iter(loader)
    held: list[Batch] = []
    for _ in range(3):
        held.append(next(iterator))
        read = settled(lambda: loader.stats.bytes)
        # Containers of at most three batches that were read for them alone may have been given back since.
        taken = sum(len(batch.labels) for batch in held)
        assert 0 < read <= budget + (taken + 4 * 4) * dataset.manifest.bytes // len(dataset) + 4 * container
    assert loader.stats.images == 12
    loader.close()
    iterator.close()  # type: ignore[attr-defined]
    assert our_threads() == []


@pytest.mark.parametrize("isolate", [False, True])
def test_closing_ends_an_iterator_that_another_thread_is_using(make_dataset: Make, isolate: bool) -> None:
    loader, ends = loader_of(make_dataset(100), isolate=isolate), []
    begun = threading.Event()

    def train() -> None:
        try:
            while True:
                for _ in loader:
                    begun.set()
        except Exception as error:
            ends.append(error)

    thread = threading.Thread(target=train, daemon=True)
    thread.start()
    begun.wait()
    loader.close()
    for _ in range(1000):  # it may have begun another epoch
        thread.join(0.01)
        if ends:
            break
        loader.close()
    assert [type(error) for error in ends] == [picstore.PicstoreError]
    assert our_threads() == []


@pytest.mark.parametrize("isolate", slow_except([False], [False, True]))
def test_closing_leaves_no_thread_no_file_and_no_process(make_dataset: Make, isolate: bool) -> None:
    path = make_dataset(100)
    warm = loader_of(path, isolate=isolate)
    ids_of(warm)
    warm.close()
    while gc.collect():  # loaders of earlier tests have files open too
        pass
    loader = loader_of(path, isolate=isolate)  # which has one open: memory that it shares with a DataLoader's workers
    before = open_files()
    for _ in range(2):
        list(loader)  # to its end
        for batch in loader:
            del batch  # or it would hold its memory
            break
        with pytest.raises(ZeroDivisionError):
            for batch in loader:
                del batch
                _ = 1 // 0
        loader.set_epoch(7)
        next(iter(loader))
    loader.close()
    assert our_threads() == []
    assert open_files() <= before  # an earlier test's garbage may have gone meanwhile
    list(loader)  # it goes on after closing
    loader.close()
    loader.close()
    assert our_threads() == []
    assert open_files() <= before


def test_what_a_loop_that_ends_early_held_is_free_without_the_collector(make_dataset: Make) -> None:
    loader = loader_of(make_dataset(100))
    gc.disable()
    try:
        for batch in loader:
            del batch
            break
        until = time.monotonic() + 60  # a thread that ends may hold it a moment longer
        while list(loader._runner._open) and time.monotonic() < until:
            time.sleep(0.01)
        assert list(loader._runner._open) == []
    finally:
        gc.enable()
    loader.close()


def test_a_loader_that_is_garbage_leaves_no_thread(make_dataset: Make) -> None:
    loader = loader_of(make_dataset(100))
    list(loader)
    del loader
    gc.collect()
    assert threads_left() == []


def test_a_collection_that_holds_threadings_lock_closes_iterators_later(make_dataset: Make) -> None:
    """Each place at which a collection can begin in ``threading.enumerate``, whose lock threads need to end."""
    loader = loader_of(make_dataset(400), batch_size=2, isolate=False)
    thresholds = gc.get_threshold()
    gc.disable()
    try:
        for place in range(16):
            iterator = iter(loader)
            next(iterator)
            cycle: list[Any] = [iterator]
            cycle.append(cycle)
            del iterator, cycle
            gc.set_threshold(gc.get_count()[0] + place, 1, 1)
            gc.enable()
            threading.enumerate()
            gc.disable()
            gc.collect()
    finally:
        gc.set_threshold(*thresholds)
        gc.enable()
    loader.close()
    assert threads_left() == []


@pytest.mark.usefixtures("stage_by_stage")
@pytest.mark.parametrize("where", ["plan", "read", pytest.param("work", marks=pytest.mark.slow)])
def test_an_iterator_that_its_own_threads_collect_ends_in_silence(
    make_dataset: Make, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Garbage is collected by whichever thread allocates; here the loader is only held by a cycle by then."""
    collected, told = threading.Event(), []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    monkeypatch.setattr(threading, "excepthook", told.append)

    def collect(*_: object) -> None:
        if (
            abandoned.is_set()
            and not collected.is_set()
            and threading.current_thread().name.startswith(f"picstore-{where}")
        ):
            gc.collect()
            collected.set()

    abandoned = threading.Event()
    loader = loader_of(make_dataset(400), batch_size=2, budget=1)
    for name, home in {"render": fill_images, "make_params": batch_threads}.items():
        original = getattr(home, name)

        def patched(*args: Any, _original: Any = original, **options: Any) -> Any:
            collect()
            return _original(*args, **options)

        monkeypatch.setattr(home, name, patched)
    dataset = loader.dataset
    container = dataset.containers.read_in_part

    def read(*args: Any, **options: Any) -> Any:
        while where == "read" and begun.is_set() and not abandoned.is_set():
            time.sleep(0.001)
        collect()
        return container(*args, **options)

    begun = threading.Event()
    monkeypatch.setattr(type(dataset.containers), "read_in_part", lambda self, *args, **options: read(*args, **options))
    gc.disable()
    try:
        iterator = iter(loader)
        next(iterator)
        begun.set()
        cycle: list[Any] = [iterator, loader]
        cycle.append(cycle)
        del iterator, loader, cycle
        abandoned.set()
        deadline = time.monotonic() + 60
        while our_threads() and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        gc.enable()
    assert collected.is_set()
    gc.collect()
    assert [str(problem) for problem in told] == []
    assert threads_left() == []


def test_a_batch_outlives_its_loader(make_dataset: Make) -> None:
    loader = loader_of(make_dataset(100))
    kept = [(batch, batch.images.clone()) for batch in loader]  # type: ignore[union-attr]
    loader.close()
    del loader
    gc.collect()
    assert len(kept) == 12
    assert all(torch.equal(batch.images, images) for batch, images in kept)  # type: ignore[arg-type]
