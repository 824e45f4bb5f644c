"""Table and plots of a soak: loaders at work for an hour among damage, a store that restarts and slow consumers."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import picstore
from benchmarks.harness import Row, Table, say
from benchmarks.options import Options
from benchmarks.torture.soak_work import EPOCHS, THREADS
from benchmarks.torture.verbs import jpeg
from picstore.prepare.convert.row_division import DatasetShape

MINUTES = 60
_READING_PROCESSES = 8
_MARK = "PICSTORE_SOAK"  # environment variable of all processes of a workload
_DAMAGED_BITS = 20  # at a time
_SHAPE = DatasetShape(streams=4, container_size=64 << 10, file_size=1 << 20)
_PARTS = 6  # of the second half
_FIGURES = ("MiB", "shared MiB", "descriptors", "processes", "threads", "images")


class _Workload:
    """Processes that are watched together, started in the environment that names them, and ended by a signal."""

    def __init__(
        self, name: str, commands: list[list[str]], end: signal.Signals, work: Path, environment: dict[str, str]
    ) -> None:
        self.name, self._end = name, end
        self.samples: list[tuple[float, ...]] = []  # seconds, then _FIGURES
        self._counts = work / "counts" / name
        self._counts.mkdir(parents=True)
        self._mark = f"{os.getpid()} {name}"
        self.processes = []
        for number, (verb, *arguments) in enumerate(commands):
            with (work / f"{name} {number}.log").open("w") as log:
                program = [sys.executable, "-m", "benchmarks.torture.soak_work", verb, str(self._counts), *arguments]
                process = subprocess.Popen(program, env={**environment, _MARK: self._mark}, stdout=log, stderr=log)
            self.processes.append(process)

    def at_work(self) -> bool:
        """Whether every process has taken images; RuntimeError if one has ended."""
        if any(process.poll() is not None for process in self.processes):
            raise RuntimeError(f"{self.name}: a process has ended; its log is {self._counts.parents[1]}")
        return len(self._images()) == len(self.processes)

    def sample(self, clock: float) -> None:
        """Note the figures of this moment."""
        figures = np.sum([np.zeros(5), *(_figures(process) for process in self._running())], axis=0)
        self.samples.append((clock, *figures.tolist(), float(sum(self._images()))))

    def stop(self) -> list[str]:
        """End the processes, and tell what was wrong: processes that had ended or do not end, and what is left."""
        wrong = [f"ended with {process.returncode}" for process in self.processes if process.poll() is not None]
        for _ in range(4):  # Python drops an interrupt that meets it in a finalizer
            for process in self.processes:
                process.send_signal(self._end)
            _wait(lambda: all(process.poll() is not None for process in self.processes), 20)
        _wait(lambda: not self._running(), 15)
        for process in self._running():
            wrong.append(f"{(process / 'cmdline').read_bytes()!r} is left")
            os.kill(int(process.name), signal.SIGKILL)
        return wrong

    def _images(self) -> list[int]:
        return [int(text) for file in self._counts.iterdir() if (text := file.read_text())]

    def _running(self) -> list[Path]:
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended, or is another user's
                if f"{_MARK}={self._mark}\0".encode() in (process / "environ").read_bytes():
                    found.append(process)
        return found

    def row(self) -> Row:
        """Medians of the second half, and growth over it: the slope through its parts.

        Of each part that is the median of memory, which dips while a process starts, and the least number of others:
        connections and the blocks of batches come and go with the load.
        """
        seconds, *figures = np.array(self.samples).T
        images, half = figures[-1], len(seconds) // 2
        pauses = np.diff([0.0, *seconds[1:][np.diff(images) > 0], seconds[-1]])
        row: Row = {"": self.name, "images": int(images[-1]), "longest pause, s": float(pauses.max())}
        for name, values in zip(_FIGURES[:-1], figures, strict=False):
            parts = np.array_split(np.arange(half, len(seconds)), _PARTS)
            pick = np.median if "MiB" in name else np.min
            picked = [pick(values[part]) for part in parts]
            slope = np.polyfit([seconds[part].mean() for part in parts], picked, 1)[0]
            row[name] = float(np.median(values[half:]))
            growth = slope * (600 if "MiB" in name else seconds[-1] - seconds[half])
            row[f"{name} in 10 min" if "MiB" in name else f"growth of {name}"] = f"{growth:+.2f}"
        return row


def soak(options: Options) -> Table:
    """Let workloads run for an hour, or as many minutes as there are rounds, and watch what they hold."""
    seconds = 5.0 if options.quick else 60.0 * options.round_count(MINUTES)
    work = options.work / "soak"
    shutil.rmtree(work, ignore_errors=True)
    damaged, bucket, cache = work / "damaged", work / "store" / "bucket", str(work / "cache")
    _make(damaged, 64 if options.quick else 2000)
    shutil.copytree(damaged, bucket / "set")
    _make(work / "small", 64 if options.quick else 200)
    limit = str(sum(path.stat().st_size for path in damaged.rglob("*.pic")) // 2)  # of what is cached
    url = "s3://bucket/set"
    reading = [["read", url, cache, limit, kind] for kind in ("loaders", "records")]
    reading *= 1 if options.quick else _READING_PROCESSES // 2
    store = _Store(work / "store", seconds / 30)
    workloads: list[_Workload] = []
    try:
        for name, commands, end in (
            ("damaged files", [["consume", str(damaged)]], signal.SIGKILL),
            ("store that restarts", [["consume", url, cache, limit]], signal.SIGTERM),
            (f"{EPOCHS} epochs", [["epochs", str(work / "small"), str(seconds)]], signal.SIGINT),
            (f"{THREADS * len(reading)} readers of one cache", reading, signal.SIGTERM),
        ):
            workloads.append(_Workload(name, commands, end, work, {**os.environ, **store.environment}))
        _wait(lambda: all(workload.at_work() for workload in workloads), 600)
        _watch(workloads, seconds, _Damage(damaged), store)
    finally:
        wrong = [workload.stop() for workload in workloads]
        store.stop()
    say(f"soak: {store.outages} outages of the store; logs and plots are in {work}")
    plot({workload.name: workload.samples for workload in workloads}, work / "soak.png")
    about = (
        f"{seconds / 60:.0f} minutes, {store.outages} outages of the store. Figures are sums over the processes of a "
        "workload, medians of the second half. Growth is the slope through the medians of memory (in 10 minutes) or "
        "the least numbers of others (over the half) of its six parts. Memory is anonymous and shared; shared pages "
        "are divided by the processes that map them."
    )
    rows = [{**workload.row(), "wrong": "; ".join(found)} for workload, found in zip(workloads, wrong, strict=True)]
    return Table(about, rows, {workload.name: [x for row in workload.samples for x in row] for workload in workloads})


def _make(folder: Path, count: int) -> None:
    with picstore.Writer(folder, classes=["picture"], shape=_SHAPE) as writer:
        for number in range(count):
            writer.add(jpeg(number), label=0)


def _wait(done: object, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not done():  # type: ignore[operator]
        time.sleep(0.1)


class _Damage:
    """Bits of a data set's files that are flipped, and put right again when others are."""

    def __init__(self, folder: Path) -> None:
        self._files = sorted(folder.rglob("*.pic"))
        self._flipped: list[tuple[Path, int, int]] = []
        self._rng = random.Random(0)

    def flip(self) -> None:
        """Flip one more bit."""
        path = self._rng.choice(self._files)
        self._flipped.append((path, self._rng.randrange(path.stat().st_size), 1 << self._rng.randrange(8)))
        back = [self._flipped.pop(0)] if len(self._flipped) > _DAMAGED_BITS else []
        for path, offset, bit in (self._flipped[-1], *back):
            with path.open("r+b", buffering=0) as file:
                byte = os.pread(file.fileno(), 1, offset)[0]
                os.pwrite(file.fileno(), bytes([byte ^ bit]), offset)


class _Store:
    """An object store that is killed about every ``period`` seconds, and is away for up to a quarter of them."""

    def __init__(self, folder: Path, period: float) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.environment = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_REGION": "us-east-1"}
        self.environment |= {"AWS_ACCESS_KEY_ID": "name", "AWS_SECRET_ACCESS_KEY": "secret", "OMP_NUM_THREADS": "1"}
        self._command = [sys.executable, "-m", "benchmarks.torture.folder_store", str(folder), str(port)]
        self._period, self._rng, self._next, self.outages = period, random.Random(0), period, 0
        self._process = subprocess.Popen(self._command, stderr=subprocess.DEVNULL)

    def turn(self, clock: float) -> None:
        """Kill or start the server if it is time."""
        if clock < self._next:
            return
        if self._process.poll() is None:
            self.stop()
            self.outages += 1
            self._next = clock + self._period * self._rng.uniform(0.05, 0.25)
        else:
            self._process = subprocess.Popen(self._command, stderr=subprocess.DEVNULL)
            self._next = clock + self._period * self._rng.uniform(0.5, 1.0)

    def stop(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


def _watch(workloads: list[_Workload], seconds: float, damage: _Damage, store: _Store) -> None:
    start = time.monotonic()
    while (clock := time.monotonic() - start) < seconds:
        damage.flip()
        store.turn(clock)
        for workload in workloads:
            workload.sample(clock)
        time.sleep(max(0.0, start + clock + min(15.0, seconds / 40) - time.monotonic()))


def _figures(process: Path) -> list[float]:
    """The first five of _FIGURES; zeros if the process has ended.

    Memory leaves out the pages of files: their part depends on what else runs on the machine with the same libraries.
    """
    try:
        lines = (line.split() for line in (process / "smaps_rollup").read_text().splitlines()[1:])
        memory = {line[0]: int(line[1]) / 1024 for line in lines}
        threads = int((process / "stat").read_text().rsplit(")", 1)[1].split()[17])
        descriptors = len(list((process / "fd").iterdir()))
    except OSError:
        return [0.0] * 5
    shared = memory["Pss_Shmem:"]
    return [memory["Pss_Anon:"] + shared, shared, descriptors, 1, threads]


def plot(samples: dict[str, list[tuple[float, ...]]], file: Path) -> None:
    """Draw each figure over time, a line for each workload; of images their rate, over a minute."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 11), layout="constrained")
    axes = figure.subplots(len(_FIGURES), 1, sharex=True)
    for name, rows in samples.items():
        seconds, *figures, images = np.array(rows).T
        window = max(1, len(seconds) // 60)
        rate = (images[window:] - images[:-window]) / (seconds[window:] - seconds[:-window])
        for axis, values in zip(axes, [*figures, rate], strict=True):
            axis.plot(seconds[-len(values) :] / 60, values, linewidth=0.8, label=name)
    for axis, label in zip(axes, [*_FIGURES[:-1], "images/s"], strict=True):
        axis.set_ylabel(label)
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize="small", ncols=2)
    axes[-1].set_xlabel("minutes")
    figure.savefig(file, dpi=80)
