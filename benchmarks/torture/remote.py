"""Remote workers of a loader that are killed, with their node or without: no batch may be lost or differ."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import picstore
from benchmarks.child import MissingError
from benchmarks.clusters import SimulatedCluster, simulated_cluster
from benchmarks.harness import Row, Table, say
from benchmarks.options import Options
from benchmarks.torture.verbs import jpeg
from picstore.prepare.convert.row_division import DatasetShape

_STOPPED = 30  # seconds
_STOP = f"nothing: the trainer stops for {_STOPPED} s"
KILLS = {"a worker": 30, "a raylet": 10, "all processes of a node": 10, _STOP: 3}
_NODES, _IMAGES, _BATCH = 3, 320, 8
_MOST_BATCHES = 30  # between two kills
_MEMORY = "/dev/shm"  # noqa: S108 - where Ray has its object store
_SLACK = 1 << 20  # bytes, of Ray's own


@dataclass
class Struck:
    """Counts of a table's row."""

    victim: str
    kills: int = 0
    batches: int = 0
    wrong: list[str] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)  # the longest for a batch between two kills, in seconds

    def row(self) -> Row:
        """The counts as a row of a table."""
        waits = sorted(self.waits) or [0.0]
        row: Row = {"killed": self.victim, "kills": self.kills, "batches": self.batches, "wrong": len(self.wrong)}
        row |= {"longest wait for a batch, median, s": round(waits[len(waits) // 2], 2)}
        return row | ({"problem": f"failed: {self.wrong[0][:300]}"} if self.wrong else {})


def remote(options: Options) -> Table:
    """Kill workers, raylets and nodes at random moments of one run, and compare every batch with a local loader's."""
    about = (
        f"SIGKILL to a random worker, raylet or node of a simulated Ray cluster ({_NODES} nodes of 2 CPUs, and one for "
        f"the trainer) after 1 to {_MOST_BATCHES} batches of {_BATCH}, while a loader with {_NODES} workers makes "
        "them. A node that was killed is replaced by a new one. Wrong is a batch that differs from a local loader's of "
        f"that step, or an object store that grows in the last {2 * _STOPPED // 3} s in which the trainer stops."
    )
    try:
        import ray  # noqa: F401 - what starts the cluster
    except ImportError as error:
        raise MissingError("ray") from error
    path = options.work / "remote"
    _write(path)
    rows = [Struck(victim) for victim in KILLS]
    rng = random.Random(1)
    with simulated_cluster(nodes=_NODES, cpus=2) as cluster:
        loader = _loader(path, engine="ray", workers=_NODES)
        remote_batches, local = _digests(loader), _digests(_loader(path, threads=1))
        for _ in range(2 * _MOST_BATCHES):
            assert next(remote_batches) == next(local)  # noqa: S101 - before anything is killed
        for row in rows:
            for _ in range(options.rounds or (1 if options.quick else KILLS[row.victim])):
                _strike(cluster, row, remote_batches, local, rng)
        loader.close()
    return Table(about, [row.row() for row in rows])


def _write(path: Path) -> None:
    shape = DatasetShape(streams=2, container_size=32 << 10, file_size=256 << 10)
    if not path.exists():
        with picstore.Writer(path, shape=shape) as writer:
            for number in range(_IMAGES):
                writer.add(jpeg(number), label=number)


def _loader(path: Path, **options: Any) -> picstore.Loader:
    transform = [picstore.RandomResizedCrop(64), picstore.RandomHorizontalFlip()]
    return picstore.Loader(path, batch_size=_BATCH, transform=transform, lanes=4, **options)


def _digests(loader: picstore.Loader) -> Iterator[tuple[list[int], str]]:
    """The batches of all epochs, as ids and a hash of the images."""
    while True:
        for batch in loader:
            yield batch.ids.tolist(), hashlib.sha256(batch.images.numpy().tobytes()).hexdigest()


def _stop(row: Struck) -> None:
    """Take no batch for a while, in which the workers must stop too: the object store, in memory, no longer grows."""
    time.sleep(_STOPPED / 3)
    before = shutil.disk_usage(_MEMORY).used
    time.sleep(2 * _STOPPED / 3)
    grown = shutil.disk_usage(_MEMORY).used - before
    if grown > _SLACK:
        row.wrong.append(f"the object store grew by {grown} bytes while the trainer stood still")


def _strike(cluster: SimulatedCluster, row: Struck, batches: Any, expected: Any, rng: random.Random) -> None:
    """Kill something, take batches, and replace what was killed."""
    node = rng.choice(cluster.nodes)
    if row.victim == "a worker":
        workers = cluster.workers()
        if workers:
            os.kill(rng.choice(workers), signal.SIGKILL)
    elif row.victim == "a raylet":
        cluster.kill_raylet(node)
    elif row.victim == _STOP:
        _stop(row)
    else:
        cluster.lose(node)
    row.kills += 1
    longest = 0.0
    for _ in range(rng.randint(1, _MOST_BATCHES)):
        start = time.monotonic()
        found = next(batches)
        longest = max(longest, time.monotonic() - start)
        row.batches += 1
        if found != next(expected):
            row.wrong.append(f"after kill {row.kills}: a batch differs")
    row.waits.append(longest)
    say(f"{row.row()}")
    while len(cluster.nodes) < _NODES:
        cluster.nodes.append(cluster.add_node())
