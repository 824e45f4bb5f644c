"""What a benchmark found: the machine it ran on, one result a contender, and both as text and as JSON values."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from contenders.process import Memory


@dataclass
class Result:
    """One contender. ``problem`` says why there are no figures, or fewer."""

    name: str
    note: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    stored_bytes: int = 0  # of its own data set; 0 where it reads the image files
    rates: list[list[float]] = field(default_factory=list)  # images/s: one list a round, one figure an epoch
    means: list[float] = field(default_factory=list)  # of red, green and blue over one epoch
    memory: Memory = field(default_factory=Memory)
    problem: str = ""

    @property
    def samples(self) -> list[float]:
        """Every timed epoch of every round, images/s."""
        return [rate for epochs in self.rates for rate in epochs]


def machine() -> dict[str, Any]:
    """Processor, memory, kernel and load of this machine (Linux)."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "processor": model,
        "cpus": len(os.sched_getaffinity(0)),
        "memory_gib": round(pages / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "load": os.getloadavg()[0],
    }


def text(results: Sequence[Result], about: dict[str, Any]) -> str:
    """A Markdown table, with notes and versions below it."""
    host, job = about["machine"], about["job"]
    own = next((statistics.median(r.samples) for r in results if r.name == "picstore" and r.samples), None)
    lines = [
        f"{host['processor']}, {host['cpus']} CPUs, {host['memory_gib']} GiB, {host['system']}, "
        f"load {host['load']:.1f} at the start",
        f"{job['images']} images, {job['bytes'] / 2**20:.0f} MiB; RandomResizedCrop({job['size']}) and flip; "
        f"batches of {job['batch']}; {job['workers']} workers on as many CPUs; "
        f"{job['rounds']} rounds of 1 + {job['epochs'] - 1} epochs, the first of each not timed",
        "",
        "| contender | images/s, median | min to max | picstore is | resident, MiB | of it not files | stored, MiB |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [_row(result, own) for result in results]
    lines += ["", "Resident memory is the peak of the process and all it started, shared pages counted once.", ""]
    lines += [f"- {r.name}: {r.note or r.problem}" for r in results]
    lines += ["", *_versions(results)]
    return "\n".join(lines)


def _row(result: Result, own: float | None) -> str:
    if not result.samples:
        return f"| {result.name} | {result.problem or 'not run'} | | | | | |"
    median = statistics.median(result.samples)
    ratio = f"{own / median:.2f}×" if own and result.name != "picstore" else ""
    cells = [
        result.name,
        f"{median:,.0f}",
        f"{min(result.samples):,.0f} to {max(result.samples):,.0f}",
        ratio,
        f"{result.memory.resident:,.0f}",
        f"{result.memory.anonymous:,.0f}",
        f"{result.stored_bytes / 2**20:,.0f}" if result.stored_bytes else "",
    ]
    return "| " + " | ".join(cells) + " |" + (f" {result.problem}" if result.problem else "")


def _versions(results: Sequence[Result]) -> list[str]:
    """One line for picstore's interpreter and one for the peers', where they ran."""
    own, peers = {}, {}
    for result in results:
        (own if result.name.startswith("picstore") else peers).update(result.versions)
    sides = {"picstore's versions": own, "the peers'": peers}
    return [
        f"- {side}: " + ", ".join(f"{name} {version}" for name, version in versions.items())
        for side, versions in sides.items()
        if versions
    ]


def values(results: Sequence[Result], about: dict[str, Any]) -> dict[str, Any]:
    """The same for ``json.dump``, with every sample."""
    return {**about, "contenders": [asdict(result) for result in results]}
