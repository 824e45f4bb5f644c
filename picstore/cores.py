"""Number of cores that this process may use, which is the default number of threads and processes."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_PROC = Path("/proc/self")


def count_cores() -> int:
    """Return the number of cores that this process may use, by its CPU affinity and its control groups' CPU quotas.

    A quota is rounded up: 1.5 cores count as 2. From Python 3.13 on, the environment variable ``PYTHON_CPU_COUNT``, if
    set, replaces the affinity.
    """
    if hasattr(os, "process_cpu_count"):
        cores = os.process_cpu_count() or 1
    else:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([cores, *map(math.ceil, cpu_quotas())]))


def cpu_quotas(proc: Path = _PROC) -> Iterator[float]:
    """Yield the CPU quotas, in cores, of a process's control group and of all groups above it.

    Both versions of control groups are supported; systems other than Linux have no quotas. See docs.kernel.org,
    "Control Group v2" and "CFS Bandwidth Control".

    Args:
        proc: folder with the process's files ``cgroup`` and ``mountinfo``, such as /proc/self.
    """
    try:
        groups = [line.split(":", 2) for line in (proc / "cgroup").read_text("utf-8", "replace").splitlines()]
        mounts = (proc / "mountinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        return
    for mount in mounts:
        fields, _, kind = (part.split() for part in mount.partition(" - "))
        if len(fields) < 5 or len(kind) < 3 or not kind[0].startswith("cgroup"):
            continue
        of_cpu = kind[0] == "cgroup" and "cpu" in kind[2].split(",")
        for group in groups:
            controllers = group[1].split(",") if len(group) == 3 else ["none"]
            if (controllers == [""] and kind[0] == "cgroup2") or (of_cpu and "cpu" in controllers):
                yield from _quotas_above(fields[3], Path(fields[4]), group[2])


def _quotas_above(root: str, mounted: Path, group: str) -> Iterator[float]:
    """Yield the CPU quotas, in cores, of control group ``group`` and of all groups above it, up to group ``root``.

    ``group`` and ``root`` are paths in the hierarchy of control groups; ``mounted`` is the folder of ``root`` in the
    file system. In a container, ``group`` may be a path of the host that is not below ``root``; then only the quota of
    ``root`` is yielded.
    """
    path = PurePosixPath(group)
    below = path.relative_to(root) if path.is_relative_to(root) else PurePosixPath()
    names = [name for name in below.parts if name not in ("/", "..")]
    for depth in range(len(names), -1, -1):
        folder = mounted.joinpath(*names[:depth])
        try:
            if (folder / "cpu.max").exists():
                quota, period = (folder / "cpu.max").read_text().split()
            else:
                quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
            if quota != "max" and int(quota) > 0 and int(period) > 0:
                yield int(quota) / int(period)
        except (OSError, ValueError):
            # No file states a quota in the topmost group, or in groups that do not limit the CPU.
            continue
