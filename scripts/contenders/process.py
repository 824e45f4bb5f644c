"""A contender's process, seen from outside: its answers, its time limit, and the memory of its process tree."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from contenders import Job

SCRIPTS = Path(__file__).resolve().parent.parent


class Missing(Exception):
    """The contender, or something that it needs, is not installed."""


class Failed(Exception):
    """The contender raised, ended early, gave wrong batches or ran out of time."""


@dataclass(frozen=True)
class Memory:
    """Resident memory of a process tree in MiB; pages shared by several processes are counted once (PSS)."""

    resident: float = 0.0
    anonymous: float = 0.0  # the part that is not mapped files: heap, and shared memory

    def peak(self, other: Memory) -> Memory:
        """The larger of each."""
        return Memory(max(self.resident, other.resident), max(self.anonymous, other.anonymous))


class Contender:
    """One process of one contender; a context manager that ends it, and all that it started."""

    def __init__(self, python: Path, name: str, verb: str, job: Job, *, log: Path, limit: float) -> None:
        self._limit = limit
        fields = json.dumps(asdict(job), default=str)
        environment = {**os.environ, "PYTHONPATH": str(SCRIPTS), "PYTHONWARNINGS": "ignore"}
        with log.open("a") as stderr:
            self._process = subprocess.Popen(
                [python, "-m", "contenders", name, verb, fields],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=environment,
                start_new_session=True,
            )
        self.memory = Memory()

    def __enter__(self) -> Contender:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.stdin.close()  # the end of its orders
        try:
            self._process.wait(timeout=30 if kind is None else 1)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._process.stdout.close()

    def epoch(self, *, watch: bool) -> dict[str, Any]:
        """Order one epoch. ``watch``: sample memory while it runs, which takes a little of its time."""
        self._process.stdin.write(b"epoch\n")
        self._process.stdin.flush()
        answer = self.answer(every=0.1 if watch else None)
        self.memory = self.memory.peak(tree_memory(self._process.pid))
        return answer

    def answer(self, every: float | None = None) -> dict[str, Any]:
        """Its next answer; memory is sampled every so many seconds until then."""
        deadline = time.monotonic() + self._limit
        while not select.select([self._process.stdout], [], [], every or self._limit)[0]:
            if time.monotonic() >= deadline:
                raise Failed(f"no answer in {self._limit:.0f} s")
            self.memory = self.memory.peak(tree_memory(self._process.pid))
        line = self._process.stdout.readline()
        if not line:
            raise Failed(f"its process ended with status {self._process.wait()}")
        answer = json.loads(line)
        if "missing" in answer:
            raise Missing(answer["missing"])
        if "failed" in answer:
            raise Failed(answer["failed"])
        return answer


def tree_memory(root: int) -> Memory:
    """Memory of a process and all its descendants now, from /proc; those that end meanwhile count nothing."""
    total = {"Pss": 0, "Pss_Anon": 0, "Pss_Shmem": 0}
    for pid in _tree(root):
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        for line in rollup.splitlines()[1:]:
            name, kib = line.split()[:2]
            if name[:-1] in total:
                total[name[:-1]] += int(kib)
    return Memory(total["Pss"] / 1024, (total["Pss_Anon"] + total["Pss_Shmem"]) / 1024)


def _tree(pid: int) -> Iterator[int]:
    yield pid
    try:
        lists = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except (FileNotFoundError, ProcessLookupError):
        return
    for child in " ".join(lists).split():
        yield from _tree(int(child))
