"""What a command and all that it starts use: time, CPU time, memory, bytes read and written (Linux).

``call("benchmarks.usage:run_command", …)`` runs the command below a small process of its own. All descendants end as
children of this process, also where their parents ended before them, so the kernel's own sums hold every one of them.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from benchmarks.child import MemoryUse, call, process_tree, tree_memory

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # of <sys/prctl.h>
_EVERY = 0.5  # seconds between samples of memory, at most
_PATIENCE = 30.0  # seconds for the processes that a command left behind to end


@dataclass(frozen=True)
class Usage:
    """What a command used.

    Attributes:
        seconds: until the command ended.
        cpu: seconds of CPU time of all processes.
        largest: peak of the resident memory of the largest process, MiB.
        together: highest sample of the resident memory of all processes, MiB; shared pages count once.
        read, written: bytes by system calls, files, pipes and sockets alike; mapped files do not count.
        disk: bytes read from the disk, as the page cache did not hold them.
        status: the exit status; negative for a signal.
        output, errors: what the command printed to stdout and stderr.
        left: number of processes that had to be killed, as they went on after the command.
    """

    seconds: float
    cpu: float
    largest: float
    together: float
    read: int
    written: int
    disk: int
    status: int
    output: str
    errors: str
    left: int


def measure_command(command: list[str], *, limit: float) -> Usage:
    """Run a command in a session of its own; FailedError if it takes more than ``limit`` seconds."""
    return Usage(**call("benchmarks.usage:run_command", command, limit=limit))


def run_command(command: list[str]) -> dict[str, Any]:
    """Run a command below this process, which has had no children yet; the fields of its Usage."""
    _set(_PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGTERM, lambda *_: os.killpg(0, signal.SIGKILL))  # the command is of this process's group
    _set(_PR_SET_PDEATHSIG, signal.SIGTERM)  # when the benchmark is interrupted
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        before, start = _bytes_moved(), time.perf_counter()
        process = subprocess.Popen(command, stdout=output, stderr=errors)
        memory = _watch(process)
        seconds = time.perf_counter() - start
        left = _reap()
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        read, written, disk = (after - begun for after, begun in zip(_bytes_moved(), before, strict=True))
        return asdict(
            Usage(
                seconds=seconds,
                cpu=used.ru_utime + used.ru_stime,
                largest=used.ru_maxrss / 1024,
                together=memory.resident,
                read=read,
                written=written,
                disk=disk,
                status=process.returncode,
                output=_text(output),
                errors=_text(errors),
                left=left,
            )
        )


def _set(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def _watch(process: subprocess.Popen[bytes]) -> MemoryUse:
    """Wait for a process; the peak of the samples of its tree."""
    memory, start = MemoryUse(), time.perf_counter()
    while True:
        memory = memory.peak(tree_memory(process.pid))
        try:
            process.wait(min(_EVERY, 0.05 + (time.perf_counter() - start) / 20))  # more often in a short command
        except subprocess.TimeoutExpired:
            continue
        return memory


def _reap() -> int:
    """Wait for all processes that a command left behind; kill the ones that stay, and return their number."""
    deadline, killed = time.monotonic() + _PATIENCE, 0
    while True:
        try:
            found, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return killed
        if not found and not killed and time.monotonic() > deadline:
            left = [pid for pid in process_tree(os.getpid()) if pid != os.getpid()]
            killed = len(left)
            for pid in left:
                os.kill(pid, signal.SIGKILL)
        elif not found:
            time.sleep(0.02)


def _bytes_moved() -> tuple[int, int, int]:
    """Bytes read and written by this process and the children that it has waited for, and bytes read from the disk."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["rchar"]), int(fields["wchar"]), int(fields["read_bytes"])


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
