"""Child processes: call a function in a process of its own, in this Python or another; arguments and answers are JSON.

``python -m benchmarks.child MODULE:FUNCTION ARGUMENTS`` writes one JSON object a line to stdout: ``{"answer": …}`` for
the returned value, or for each item where the function is a generator; then ends. ``{"missing": reason}`` or
``{"failed": reason}`` is the last instead. All else that is printed goes to stderr.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import GeneratorType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


class MissingError(Exception):
    """A library of the case is not installed."""


class FailedError(Exception):
    """The case raised, ended early, or ran out of time."""


@dataclass(frozen=True)
class MemoryUse:
    """Resident memory of a process tree in MiB; pages shared by several processes count once (PSS)."""

    resident: float = 0.0
    anonymous: float = 0.0  # heap and shared memory, without mapped files

    def peak(self, other: MemoryUse) -> MemoryUse:
        """Larger value of each field."""
        return MemoryUse(max(self.resident, other.resident), max(self.anonymous, other.anonymous))


class ChildProcess:
    """A process that runs one function; leaving the context ends it and all that it started.

    Attributes:
        memory: peak of the samples so far.
    """

    def __init__(
        self,
        target: str,
        *arguments: Any,
        python: Path | str = sys.executable,
        limit: float = 900,
        log: Path | None = None,
        environment: dict[str, str] | None = None,
    ) -> None:
        """Start ``target``, "module:function". ``limit``: seconds until an answer; ``log``: file for stderr."""
        self._limit = limit
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        variables = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **(environment or {})}
        command = [str(python), "-m", "benchmarks.child", target, json.dumps(arguments, default=str)]
        stderr = log.open("a") if log else None
        try:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=stderr, env=variables, start_new_session=True
            )
        finally:
            if stderr:
                stderr.close()
        self.memory = MemoryUse()

    def __enter__(self) -> ChildProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self._process.wait(timeout=30 if kind is None else 1)
        except subprocess.TimeoutExpired:
            self.stop()
            self._process.wait()
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        self._process.stdout.close()

    def stop(self) -> None:
        """End the process and all that it started."""
        os.killpg(self._process.pid, signal.SIGKILL)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def watch(self, every: float) -> Iterator[None]:
        """Yield every so many seconds until an answer is there, or the process has ended."""
        deadline = time.monotonic() + self._limit
        while not select.select([self._process.stdout], [], [], every)[0]:
            if time.monotonic() >= deadline:
                raise FailedError(f"no answer in {self._limit:.0f} s")
            yield

    def answer(self, every: float | None = None) -> Any:
        """Wait for the next answer, sampling memory every so many seconds.

        Raises:
            MissingError: a module cannot be imported.
            FailedError: the function raised, its process ended, or the time limit passed.
        """
        for _ in self.watch(every or self._limit):
            self.memory = self.memory.peak(tree_memory(self.pid))
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        line = self._process.stdout.readline()
        if not line:
            raise FailedError(f"its process ended with status {self._process.wait()}")
        answer = json.loads(line)
        if "missing" in answer:
            raise MissingError(answer["missing"])
        if "failed" in answer:
            raise FailedError(answer["failed"])
        return answer["answer"]


def call(target: str, *arguments: Any, **options: Any) -> Any:
    """Return a function's value, computed in a process of its own; options and errors are Child's."""
    with ChildProcess(target, *arguments, **options) as child:
        return child.answer()


def tree_memory(root: int) -> MemoryUse:
    """Memory of a process and its descendants now, from /proc; processes that end meanwhile count nothing."""
    total = {"Pss": 0, "Pss_Anon": 0, "Pss_Shmem": 0}
    for pid in process_tree(root):
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        for line in rollup.splitlines()[1:]:
            name, kib = line.split()[:2]
            if name[:-1] in total:
                total[name[:-1]] += int(kib)
    return MemoryUse(total["Pss"] / 1024, (total["Pss_Anon"] + total["Pss_Shmem"]) / 1024)


def process_tree(pid: int) -> Iterator[int]:
    """Ids of a process and its descendants."""
    yield pid
    try:
        lists = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except (FileNotFoundError, ProcessLookupError):
        return
    for child in " ".join(lists).split():
        yield from process_tree(int(child))


def main(target: str, arguments: str) -> None:
    """Call a function and write its answers."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # libraries print to stdout, some from C
    try:
        module, _, name = target.partition(":")
        found = getattr(importlib.import_module(module), name)(*json.loads(arguments))
        for answer in found if isinstance(found, GeneratorType) else [found]:
            answers.write(json.dumps({"answer": answer}, default=str) + "\n")
    except ImportError as error:
        traceback.print_exc()
        answers.write(json.dumps({"missing": f"{type(error).__name__}: {error}"}) + "\n")
    except Exception as error:  # whatever a peer raises is its result
        traceback.print_exc()
        answers.write(json.dumps({"failed": f"{type(error).__name__}: {error}"}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
