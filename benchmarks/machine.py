"""Description of the machine: processor, memory, system, load, versions, GPU."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any


def describe() -> dict[str, Any]:
    """Processor, CPUs, memory, kernel and load of this machine (Linux)."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "processor": names[0] if names else platform.machine(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_gib": round(pages / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "load": os.getloadavg()[0],
    }


def sentence(about: dict[str, Any]) -> str:
    """The description as a line of text."""
    return (
        f"{about['processor']}, {about['cpus']} CPUs, {about['memory_gib']} GiB, {about['system']}, "
        f"load {about['load']:.1f} at the start"
    )


def versions(*packages: str) -> dict[str, str]:
    """Versions of Python and of the installed packages among these."""
    return {"python": platform.python_version()} | {name: found for name in packages if (found := _version(name))}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
