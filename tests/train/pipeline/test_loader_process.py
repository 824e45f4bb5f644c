"""isolate=True: the same batches from a process of their own, and nothing left over."""

from __future__ import annotations

import gc
import json
import multiprocessing.reduction
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from grids import slow_except
from hostile import index_endless_image
from own_processes import children, descendants, runs
from programs import Program, run_program
from samples import picture
from web_server import WebServer

import picstore
from benchmarks.clusters import wait_until
from picstore.errors import Damage, PicstoreError
from picstore.prepare.convert.row_division import DatasetShape
from picstore.train.batch import Batch
from picstore.train.buffers import KEPT_BATCHES, map_memory
from picstore.train.pipeline import loader_process
from picstore.train.pipeline.loader_process_main import _SharedBlocks

Make = Callable[..., Path]
CROP = [picstore.RandomResizedCrop(32), picstore.RandomHorizontalFlip()]


@pytest.fixture
def loader_of() -> Iterator[Callable[..., picstore.Loader]]:
    """Makes isolated loaders, and ends their processes after the test."""
    made: list[picstore.Loader] = []

    def make(path: Path, **options: Any) -> picstore.Loader:
        given = {"batch_size": 8, "transform": CROP, "threads": 2, "isolate": True, **options}
        made.append(picstore.Loader(path, **given))
        return made[-1]

    yield make
    for loader in made:
        loader.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[picstore.Loader]:
    """One for tests that need no process of their own: starting one takes a second of a core."""
    path = tmp_path_factory.mktemp("shared") / "dataset"
    with picstore.Writer(path, shape=DatasetShape(streams=3, container_size=16 << 10, file_size=64 << 10)) as writer:
        for number in range(200):
            writer.add(picture(number), label=number % 5, extra={"number": number})
    loader = picstore.Loader(path, batch_size=8, transform=CROP, threads=2, isolate=True, targets=["extra"])
    yield loader
    loader.close()


def alone(path: Path, **options: Any) -> picstore.Loader:
    return picstore.Loader(path, **{"batch_size": 8, "transform": CROP, "threads": 2, "isolate": False, **options})


def same(one: Batch, other: Batch) -> bool:
    if isinstance(one.images, list):
        images = all(torch.equal(a, b) for a, b in zip(one.images, other.images, strict=True))
    else:
        images = torch.equal(one.images, other.images) and one.images.stride() == other.images.stride()
    return images and torch.equal(one.labels, other.labels) and torch.equal(one.ids, other.ids)


def descriptors(pid: int | str = "self") -> set[str]:
    """Names of a process's open files."""
    return {each.name for each in Path(f"/proc/{pid}/fd").iterdir()}


OPTIONS: list[dict[str, Any]] = [  # those of ``loader_of`` alone: test_batches_that_are_kept_do_not_change
    {"transform": []},
    {"transform": [*CROP, picstore.Normalize((0.5,) * 3, (0.2,) * 3)], "memory_format": torch.channels_last},
    {"dtype": torch.bfloat16, "drop_last": False},
]


@pytest.mark.parametrize("options", slow_except(OPTIONS[1:2], OPTIONS))
def test_batches_are_those_of_the_same_loader_without(
    make_dataset: Make, loader_of: Callable[..., picstore.Loader], options: dict[str, Any]
) -> None:
    path = make_dataset(50)
    isolated, plain = loader_of(path, **options), alone(path, **options)
    for _ in range(2):
        pairs = list(zip(isolated, plain, strict=True))
        assert len(pairs) == len(plain)
        assert all(same(one, other) for one, other in pairs)


def test_batches_that_are_kept_do_not_change(shared: picstore.Loader) -> None:
    shared.set_epoch(0)
    kept = list(shared)  # more than there are blocks to use again
    assert len(kept) > 2 * KEPT_BATCHES
    assert all(same(one, other) for one, other in zip(kept, alone(Path(shared.dataset.path)), strict=True))


def test_batches_that_are_kept_cost_no_descriptors(
    make_dataset: Make, loader_of: Callable[..., picstore.Loader]
) -> None:
    loader = loader_of(make_dataset(200), batch_size=2)
    before, children_before = descriptors(), set(children())
    kept = []
    for number, batch in enumerate(loader):
        kept.append(batch.images)
        if number == 5:
            (child,) = set(children()) - children_before or set(children())
            few, few_of_child = descriptors(), descriptors(child)
    assert len(kept) == 100
    assert len(descriptors() - few) == 0 and len(few - before) < 10
    assert len(descriptors(child)) <= len(few_of_child) + KEPT_BATCHES
    assert len({images.data_ptr() for images in kept}) == 100
    plain = alone(Path(loader.dataset.path), batch_size=2)
    assert all(torch.equal(images, other.images) for images, other in zip(kept, plain, strict=True))


@pytest.mark.slow
def test_more_batches_are_kept_than_there_may_be_open_files(make_dataset: Make) -> None:
    script = (
        "import picstore, resource\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
        f"loader = picstore.Loader({str(make_dataset(200))!r}, batch_size=2, isolate=True)\n"
        "print(len([batch for _ in range(2) for batch in loader]))\n"
    )
    assert run_program("-c", script) == "200\n"


def test_memory_that_cannot_be_mapped_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(OSError, match="keep fewer batches, or copies of them"):
        map_memory(-1, 1 << 16)


def test_targets_come_too(shared: picstore.Loader) -> None:
    batch = next(iter(shared))
    assert batch.targets is not None
    assert [target["extra"]["number"] for target in batch.targets] == batch.ids.tolist()


def test_after_a_break_the_next_epoch_comes_from_the_same_process(shared: picstore.Loader) -> None:
    shared.set_epoch(0)
    for _, _ in zip(range(2), shared, strict=False):
        pass
    before = children()
    plain = alone(Path(shared.dataset.path))
    plain.set_epoch(1)
    assert all(same(one, other) for one, other in zip(shared, plain, strict=True))
    assert {*children()} <= {*before}


def test_an_iterator_freed_after_its_end_does_not_end_the_next(
    make_dataset: Make, loader_of: Callable[..., picstore.Loader]
) -> None:
    """An error's traceback, or a cycle of garbage, keeps what the iterator has."""
    loader = loader_of(make_dataset(200))
    ended = iter(loader)
    next(ended)
    with pytest.raises(KeyError) as raised:
        ended.throw(KeyError())  # type: ignore[attr-defined]
    following = iter(loader)
    next(following)
    del ended, raised
    gc.collect()
    with ThreadPoolExecutor(1) as threads:
        try:
            assert len(threads.submit(list, following).result(timeout=60)) == 24
        finally:
            loader.close()  # or a thread that waits for ever is waited for


def test_a_state_goes_on_in_another_process(shared: picstore.Loader, loader_of: Callable[..., picstore.Loader]) -> None:
    iterator = iter(shared)
    for _ in range(3):
        next(iterator)
    second = loader_of(Path(shared.dataset.path))
    second.load_state_dict(shared.state_dict())
    assert all(same(one, other) for one, other in zip(second, iterator, strict=True))


def test_damage_is_counted_and_raised_as_without(make_dataset: Make, loader_of: Callable[..., picstore.Loader]) -> None:
    path = make_dataset(60)
    file = next(path.glob("*/*.pic"))
    data = bytearray(file.read_bytes())
    data[9000] ^= 255
    file.write_bytes(data)
    skipping, plain = loader_of(path), alone(path)
    assert all(same(one, other) for one, other in zip(skipping, plain, strict=True))
    assert skipping.damaged == plain.damaged > 0
    with pytest.raises(Damage, match=file.name):
        list(loader_of(path, on_damage="raise"))


def test_stats_of_both_processes_are_added(shared: picstore.Loader) -> None:
    before = shared.stats
    for _ in shared:
        pass
    stats = shared.stats - before
    assert stats.images == 200 and stats.batches == 25
    assert stats.bytes > 0 and stats.working > 0


def test_blocks_are_found_while_other_threads_allocate_and_free() -> None:
    blocks, before = _SharedBlocks(), sys.getswitchinterval()
    kept = [blocks.allocate(4096) for _ in range(50)]
    ended = threading.Event()

    def allocate() -> None:
        while not ended.is_set():
            _ = [blocks.allocate(4096) for _ in range(20)]

    thread = threading.Thread(target=allocate)
    sys.setswitchinterval(1e-6)
    thread.start()
    try:
        assert {blocks.find(kept[-1].ctypes.data).start for _ in range(5000)} == {kept[-1].ctypes.data}
    finally:
        ended.set()
        thread.join()
        sys.setswitchinterval(before)


def test_a_mux_can_be_isolated(make_dataset: Make, tmp_path: Path) -> None:
    config = tmp_path / "mux.tsv"
    config.write_text(f"{make_dataset(30)} 0 3\n{make_dataset(20, name='other')} 10 5\n")
    isolated, plain = (picstore.DataMux(config, transform=CROP, isolate=flag) for flag in (True, False))
    assert all(same(one, other) for one, other in islice(zip(isolated, plain, strict=True), 12))
    isolated.close()


def test_the_process_ends_with_the_loader(make_dataset: Make) -> None:
    before = children()
    loader = picstore.Loader(make_dataset(50), batch_size=8, transform=CROP, isolate=True)
    next(iter(loader))
    assert len({*children()} - {*before}) == 1
    del loader
    gc.collect()
    assert {*children()} <= {*before}


def test_a_process_that_is_killed_is_an_error_that_says_so(
    make_dataset: Make, loader_of: Callable[..., picstore.Loader]
) -> None:
    before = children()
    loader = loader_of(make_dataset(200), batch_size=2)
    iterator = iter(loader)
    next(iterator)
    (child,) = set(children()) - set(before)
    os.kill(child, signal.SIGKILL)
    with pytest.raises(PicstoreError, match="ended with exit status -9"):
        list(iterator)
    assert len(list(loader)) == 100  # another process


@pytest.mark.slow
def test_a_process_killed_between_a_batch_and_its_memory_is_the_same_error(
    make_dataset: Make, loader_of: Callable[..., picstore.Loader], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = set(children())
    iterator = iter(loader_of(make_dataset(200)))
    next(iterator)
    (child,) = set(children()) - before

    def end(connection: object) -> int:
        os.kill(child, signal.SIGKILL)
        raise EOFError

    monkeypatch.setattr(loader_process, "receive_descriptor", end)
    with pytest.raises(PicstoreError, match="the loader's process has ended with exit status -9"):
        list(iterator)


@pytest.mark.slow
def test_descriptors_arrive_where_python_acknowledges_them(
    make_dataset: Make, loader_of: Callable[..., picstore.Loader], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As multiprocessing does from Python 3.14 on and on macOS, by a byte that later messages may overtake."""
    monkeypatch.setattr(loader_process, "_MAIN", "loader_faults:acknowledge")
    monkeypatch.setattr(multiprocessing.reduction, "ACKNOWLEDGE", True, raising=False)  # there before 3.14
    loader = loader_of(make_dataset(200), batch_size=2)
    for _ in range(10):
        assert len(list(loader)) == 100


def test_what_a_process_dies_of_is_in_the_error(
    make_dataset: Make, loader_of: Callable[..., picstore.Loader], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in the middle of a message, where the socket carries no other."""
    monkeypatch.setattr(loader_process, "_MAIN", "loader_faults:raise_in_send")
    with pytest.raises(PicstoreError, match=r"has ended with exit status 1: RuntimeError: the fault$") as raised:
        list(loader_of(make_dataset(50)))
    assert "Traceback" in str(raised.value.__cause__) and "in send_fds" in str(raised.value.__cause__)


@pytest.mark.parametrize("main", ["fail_at_the_start", "lose_a_message"])
def test_why_a_process_does_not_start_is_in_the_error(
    make_dataset: Make, loader_of: Callable[..., picstore.Loader], monkeypatch: pytest.MonkeyPatch, main: str
) -> None:
    monkeypatch.setattr(loader_process, "_MAIN", f"loader_faults:{main}")
    with pytest.raises(PicstoreError, match=r"exit status 1: (ImportError: the fault|EOFError: Ran .*)$"):
        list(loader_of(make_dataset(50)))


@pytest.mark.slow
def test_the_stacks_of_a_process_that_crashes_are_in_the_error(
    make_dataset: Make, loader_of: Callable[..., picstore.Loader], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader_process, "_MAIN", "loader_faults:crash_in_send")
    with pytest.raises(PicstoreError, match=r"exit status -11: Fatal Python error: Segmentation fault$") as raised:
        list(loader_of(make_dataset(50)))
    assert "in send_fds" in str(raised.value.__cause__)


def test_a_default_time_limit_of_sockets_does_not_hold_for_the_process(
    make_dataset: Make, loader_of: Callable[..., picstore.Loader]
) -> None:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(30)
    try:
        assert len(list(loader_of(make_dataset(50)))) == 6
    finally:
        socket.setdefaulttimeout(before)


def test_too_many_open_files_here_are_not_a_death_of_the_process(
    make_dataset: Make, loader_of: Callable[..., picstore.Loader], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader_process.socket, "recv_fds", lambda *_: (b"d", [], 0, None))
    before = children()
    with pytest.raises(OSError, match="Too many open files"):
        list(loader_of(make_dataset(50)))
    assert {*children()} <= {*before}


def test_a_process_without_a_working_poll_still_ends_after_its_parent() -> None:
    """On macOS, poll without events is silent."""
    script = (
        "import os, select, sys, time\n"
        "class Silent:\n"
        "    register = lambda *_: None\n"
        "    poll = lambda *_: time.sleep(600)\n"
        "select.poll = Silent\n"
        "from picstore.train.pipeline import loader_process_main\n"
        "loader_process_main._LAST_SECONDS = 0\n"
        "parent = os.getpid()\n"
        "if os.fork():\n"
        "    time.sleep(0.1)\n"
        "    os._exit(0)\n"
        "loader_process_main._exit_after_parent(parent)\n"
    )
    before = time.monotonic()
    subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=120, check=True)  # to the pipes' end
    assert time.monotonic() - before >= 0.1


class _SilentServer(WebServer):
    """A server that begins no answer to a request for containers; ``asked`` is set by the first one."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.asked, self.ended = threading.Event(), threading.Event()

    def answer(self, handler: Any, path: str) -> None:
        if path.endswith(".pic"):
            self.asked.set()
            self.ended.wait()
            handler.close_connection = True
        else:
            super().answer(handler, path)


def ends_with_its_trainer(dataset: object, wait: Callable[[Program], object]) -> bool:
    """Whether all that a trainer started ends when it is killed in a state that ``wait`` waits for."""
    script = (
        "import picstore, sys, time\n"
        "for batch in picstore.Loader(sys.argv[1], batch_size=2, isolate=True):\n"
        "    print('batch', flush=True)\n"
        "    time.sleep(100)\n"
    )
    trainer = Program("-c", script, dataset)
    wait(trainer)
    started = descendants(trainer.pid)
    assert started
    trainer.send_signal(signal.SIGKILL)
    ended = wait_until(lambda: not any(map(runs, started)), 60)
    trainer.communicate(timeout=60)
    return ended


@pytest.mark.slow
def test_what_a_killed_trainer_started_ends_when_idle(make_dataset: Make) -> None:
    assert ends_with_its_trainer(make_dataset(50), lambda trainer: trainer.stdout.readline())


@pytest.mark.slow
def test_what_a_killed_trainer_started_ends_while_an_image_is_decoded(tmp_path: Path) -> None:
    def wait(trainer: Program) -> None:
        deadline = time.monotonic() + 60
        while len(descendants(trainer.pid)) < 2:  # the loader's process, and its decoder's
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(1.5)  # until it decodes

    assert ends_with_its_trainer(index_endless_image(tmp_path), wait)


@pytest.mark.slow
def test_what_a_killed_trainer_started_ends_while_a_store_is_silent(make_dataset: Make) -> None:
    with _SilentServer(make_dataset(50)) as server:
        try:
            assert ends_with_its_trainer(server.url, lambda _: server.asked.wait(60))
        finally:
            server.ended.set()


@pytest.mark.slow
def test_an_interrupt_from_the_keyboard_ends_both(make_dataset: Make) -> None:
    script = (
        "import os, picstore, time\n"
        f"loader = picstore.Loader({str(make_dataset(50))!r}, batch_size=8, isolate=True)\n"
        "try:\n"
        "    for batch in loader:\n"
        "        print(open(f'/proc/self/task/{os.getpid()}/children').read().split()[0], flush=True)\n"
        "        time.sleep(100)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', flush=True)\n"
    )
    parent = Program("-c", script)
    child = int(parent.stdout.readline())
    os.killpg(parent.pid, signal.SIGINT)
    output, _ = parent.communicate(timeout=60)
    assert output == "interrupted\n" and parent.returncode == 0
    assert not Path(f"/proc/{child}").exists()


@pytest.mark.slow
def test_no_descriptor_and_no_memory_stays_behind(make_dataset: Make) -> None:
    path = make_dataset(60)
    gc.collect()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(2):
        loader = picstore.Loader(path, batch_size=8, transform=CROP, isolate=True)
        for _ in range(3):
            assert len(list(loader)) == 7
        del loader
    gc.collect()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.slow
def test_the_child_imports_no_torch_and_begins_without_the_compiler() -> None:
    script = (
        "import sys, picstore.train.pipeline.loader_process_main\n"
        "print([name in sys.modules for name in ('torch', 'numba')])\n"
        "import picstore.train.cpu.needed_kernels\n"
        "print([name in sys.modules for name in ('torch', 'numba')])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[False, False]\n[False, True]\n"


@pytest.fixture(scope="module")
def new_trainer(make_dataset_once: Make) -> tuple[list[bool], str]:
    """Of a Python that has made batches: whether it has torch and numba, and what its loader's process has mapped."""
    path = make_dataset_once(50, 5, DatasetShape(streams=3, container_size=16 << 10, file_size=64 << 10), 60, 40)
    script = (
        "import json, os, sys, picstore\n"
        "from pathlib import Path\n"
        f"loader = picstore.Loader({str(path)!r}, batch_size=8, transform=[picstore.Resize((32, 32))])\n"
        "batches = iter(loader)\n"
        "next(batches)\n"
        "child = Path('/proc/self/task', str(os.getpid()), 'children')\n"
        "maps = Path('/proc', child.read_text().split()[0], 'maps').read_text() if child.exists() else ''\n"
        "assert len(list(batches)) == 5\n"
        "print(json.dumps([[name in sys.modules for name in ('torch', 'numba')], maps]))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    imported, maps = json.loads(done.stdout)
    return imported, maps


@pytest.mark.slow
def test_the_parent_of_a_child_imports_no_compiler(new_trainer: tuple[list[bool], str]) -> None:
    imported, _ = new_trainer
    assert imported == [True, False]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
def test_the_childs_compiler_does_without_libraries_that_no_kernel_uses(new_trainer: tuple[list[bool], str]) -> None:
    pytest.importorskip("scipy")
    _, maps = new_trainer
    assert [name in maps for name in ("llvmlite", "/scipy/", "_cffi_backend")] == [True, False, False]
