"""Options of a run, and the tables of each suite."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MEMORY = Path("/dev/shm")  # noqa: S108 - benchmarks work in a folder of their own below it

# By suite and table, the function that measures it: takes Options, returns a Table.
SUITES: Mapping[str, Mapping[str, str]] = {
    "kernels": {
        "insertion": "benchmarks.kernels.markers:insertion",
        "cut": "benchmarks.kernels.cutting:cut",
        "decode-cuts": "benchmarks.kernels.cutting:decode_cuts",
        "decode": "benchmarks.kernels.decoding:decode",
        "color": "benchmarks.kernels.coloring:color",
    },
    "loaders": {
        "peers": "benchmarks.loaders.standard_job:peers",
        "color": "benchmarks.loaders.standard_job:color",
        "index": "benchmarks.loaders.standard_job:index",
        "recipes": "benchmarks.loaders.recipes:run",
        "accuracy": "benchmarks.loaders.accuracy:accuracy",
        "startup": "benchmarks.loaders.startup:startup",
        "first-batch": "benchmarks.loaders.startup:first_batch",
        "ray": "benchmarks.loaders.remote:remote",
    },
    "convert": {
        "lossless": "benchmarks.convert.writers:lossless",
        "reencode": "benchmarks.convert.writers:reencode",
        "shorter": "benchmarks.convert.writers:shorter",
        "longer": "benchmarks.convert.writers:longer",
        "shuffle": "benchmarks.convert.copying:shuffle",
        "imagenet": "benchmarks.convert.imagenet:imagenet",
    },
    "runtime": {
        "order": "benchmarks.runtime.order:order",
        "resume": "benchmarks.runtime.resume:resume",
        "ranks": "benchmarks.runtime.ranks:ranks",
        "mixture": "benchmarks.runtime.mixture:mixture",
        "memory": "benchmarks.runtime.memory:memory",
        "cores": "benchmarks.runtime.cores:cores",
        "lock": "benchmarks.runtime.lock:lock",
        "records": "benchmarks.runtime.scale:records",
        "selecting": "benchmarks.runtime.selecting:selecting",
        "buckets": "benchmarks.runtime.buckets:buckets",
        "page": "benchmarks.runtime.page:page",
        "audit": "benchmarks.runtime.audit:audit",
    },
    "large": {
        "crops": "benchmarks.large.crops:crops",
        "disk": "benchmarks.large.crops:disk",
        "store": "benchmarks.large.crops:store",
        "resized": "benchmarks.large.resized:resized",
        "gaps": "benchmarks.large.resized:gaps",
    },
    "map": {"overhead": "benchmarks.mapping:overhead"},
    "maps": {"depth": "benchmarks.maps:depth"},
    "gpu": {
        "compile": "benchmarks.gpu.compiling:compiling",
        "host": "benchmarks.gpu.host:host",
        "checks": "benchmarks.gpu.checks:checks",
        "kernels": "benchmarks.gpu.kernels:kernels",
        "beside": "benchmarks.gpu.training:beside",
        "standard": "benchmarks.gpu.standard_job:standard",
        "training": "benchmarks.gpu.training:training",
        "peers": "benchmarks.gpu.peers:peers",
    },
    "torture": {
        "kills": "benchmarks.torture.kills:kills",
        "objects": "benchmarks.torture.kills:objects",
        "power": "benchmarks.torture.kills:power",
        "flips": "benchmarks.torture.flips:flips",
        "rounds": "benchmarks.torture.rounds:rounds",
        "faults": "benchmarks.torture.faults:faults",
        "full": "benchmarks.torture.faults:full",
        "chains": "benchmarks.torture.chains:chains",
        "compiling": "benchmarks.torture.compiling:compiling",
        "sizes": "benchmarks.torture.sizes:sizes",
        "fuzz": "benchmarks.torture.fuzz:fuzz",
        "segments": "benchmarks.torture.segments:segments",
        "soak": "benchmarks.torture.soak:soak",
        "mutations": "benchmarks.torture.mutations:mutations",
        "remote": "benchmarks.torture.remote:remote",
    },
}

# Tables that take hours and a disk's space: measured only by name, and in TMPDIR in place of memory.
ON_DISK = frozenset({"imagenet"})
# Tables of the gpu suite that no GPU takes part in.
WITHOUT_GPU = frozenset({"compile", "host"})


@dataclass(frozen=True)
class Options:
    """Options of a run.

    Attributes:
        photographs: folder of JPEG files, one sub-folder a class.
        work: folder for data sets; kept between runs where the user names it.
        images: photographs to take; None for a table's own number.
        rounds: timed runs of each case; None for a table's own number.
        copies: copies of each photograph in the data sets of loaders and converters.
        workers: processes or threads of each contender.
        seconds: time for this table, on a GPU.
        device: where the gpu suite runs: "cuda", "cuda:1", or "cpu" to try it without a GPU.
        quick: measure as little as possible, to see that everything runs.
    """

    photographs: Path
    work: Path
    images: int | None = None
    rounds: int | None = None
    copies: int = 10
    workers: int = 2
    seconds: float = 60
    device: str = "cuda"
    quick: bool = False

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Options:
        """Options that came as JSON."""
        paths = {name: Path(fields[name]) for name in ("photographs", "work")}
        return cls(**{**fields, **paths})

    def image_count(self, usual: int) -> int:
        """Photographs to take."""
        return self.images or (8 if self.quick else usual)

    def round_count(self, usual: int) -> int:
        """Rounds to measure."""
        return self.rounds or (1 if self.quick else usual)


def memory_folder() -> Path | None:
    """Folder in memory, where the machine has one: disks differ."""
    return MEMORY if os.access(MEMORY, os.W_OK) else None
