"""Runs of targets: random inputs by number, so that each can be made again, or guided by coverage.

    python tests/fuzz/run.py TARGET INPUTS [--seed N] [--guided FOLDER]
    python tests/fuzz/run.py all --seconds 60 [--jobs 2] [--seed N] [--guided FOLDER]

Guided runs need the extra ``fuzz``; they leave inputs that reach new code in FOLDER. With ``--seconds`` each target has
that time, in a process of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import math
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any, NoReturn

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(HERE.parent), str(ROOT)]

# Of CPU, for inputs of a few KB. Late imports take 0.4 s; beside eight other processes that was 2.2 s.
MAX_SECONDS = 10.0
# Of the wall clock: instrumented code beside other work takes several times as long.
HANG_SECONDS = 60
MAX_MEMORY = 1 << 30  # bytes beyond what the target takes for its seeds


@dataclass
class Result:
    """Outcome of a run; ``findings`` are messages with the file of the input, of which five are kept."""

    target: str
    inputs: int = 0
    accepted: int = 0
    differences: int = 0
    exceptions: int = 0
    slowest_ms: float = 0.0
    peak_mib: int = 0
    findings: list[str] = field(default_factory=list)


class Runner:
    """Calls of a target's check; the input under test lies in a file, for the case that it ends the process."""

    def __init__(self, name: str, work: Path, seed: int = 0) -> None:
        from targets import TARGETS, seeds

        self.target, self.seeds, self.result = TARGETS[name], seeds(name), Result(name)
        self._work = work
        self._current = (work / f"{name}-{seed}.current").open("w+b", buffering=0)
        # This compiles kernels, and imports what is imported late.
        self.sound = [seed for seed in self.seeds if self.target.check(seed)]
        self._memory = peak()

    def __call__(self, data: bytes) -> None:
        """Check one input and count its outcome."""
        self._current.seek(0)
        self._current.truncate()
        self._current.write(data)
        result, before = self.result, time.process_time()
        result.inputs += 1
        signal.alarm(HANG_SECONDS)
        try:
            result.accepted += self.target.check(data)
        except AssertionError as error:
            result.differences += 1
            self._keep(data, str(error))
        except Exception as error:  # whatever it is, it is a finding
            result.exceptions += 1
            at = traceback.extract_tb(error.__traceback__)[-1]
            self._keep(data, f"{type(error).__name__}: {str(error)[:200]} in {at.name}, line {at.lineno}")
        signal.alarm(0)
        took = time.process_time() - before
        result.slowest_ms = max(result.slowest_ms, round(1000 * took, 1))
        result.peak_mib = peak() - self._memory >> 20
        if took > MAX_SECONDS:
            self._keep(data, f"took {took:.1f} s of CPU")
        if result.peak_mib << 20 > MAX_MEMORY:
            self._keep(data, f"took {result.peak_mib} MiB")
            self._memory = peak()

    def _keep(self, data: bytes, what: str) -> None:
        if len(self.result.findings) < 5:
            path = self._work / f"{self.result.target}-{sha256(data).hexdigest()[:12]}"
            path.write_bytes(data)
            self.result.findings.append(f"{what}: {path}")


def peak() -> int:
    """Peak memory of this process in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def run(name: str, inputs: int, *, seconds: float = math.inf, seed: int = 0, work: Path) -> dict[str, Any]:
    """Check inputs ``0`` to ``inputs - 1`` of a seed, or those that the time allows; each is made of its own number."""
    warnings.simplefilter("ignore")
    logging.disable()
    limit = 24 << 30  # of address space: what takes more fails instead of filling the machine
    with contextlib.suppress(ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    runner = Runner(name, work, seed)
    end = time.monotonic() + seconds
    for number in range(inputs):
        if time.monotonic() >= end:
            break
        rng = Random(f"{seed} {number}")
        runner(runner.target.generate(runner.seeds, runner.sound, rng))
    return asdict(runner.result)


def modules_of_kernels() -> list[str]:
    """Find the modules whose functions numba compiles, for which their bytecode must stay as it is."""
    sources = {path for path in (ROOT / "picstore").rglob("*.py") if "kernels.jit import" in path.read_text()}
    sources.update((ROOT / "picstore" / "kernels").glob("*.py"))
    return [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in sources]


def guided(name: str, inputs: int, folder: Path, *, seconds: float) -> NoReturn:
    """Run libFuzzer on the coverage of the Python code, with the target's own mutator; prints results and exits."""
    import atheris

    with atheris.instrument_imports(include=["picstore"], exclude=modules_of_kernels()):
        runner = Runner(name, folder)
    corpus = folder / name
    shutil.copytree(HERE / "corpus" / name, corpus, dirs_exist_ok=True)

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        try:
            return runner.target.mutate(data, Random(seed))[:most]
        except ValueError:  # not the files of a data set or source
            return data

    options = [
        "-max_len=20000",
        f"-timeout={HANG_SECONDS}",
        "-rss_limit_mb=4096",
        f"-artifact_prefix={folder}/",
    ]
    end = time.monotonic() + seconds

    def check(data: bytes) -> None:
        runner(data)
        if runner.result.inputs >= inputs or time.monotonic() >= end:  # libFuzzer would end without the results
            print(json.dumps([asdict(runner.result)], indent=2), flush=True)
            os._exit(bool(runner.result.findings))

    atheris.Setup([sys.argv[0], *options, str(corpus)], check, custom_mutator=mutate)
    atheris.Fuzz()
    raise AssertionError("libFuzzer does not return")


def run_apart(name: str, options: list[str]) -> dict[str, Any]:
    """Run one target in another process; one that ends or hangs is a finding."""
    command = [sys.executable, __file__, name, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        return dict(json.loads(done.stdout[done.stdout.index("[\n") :])[0])
    except ValueError:
        return asdict(Result(name, findings=[f"ended with {done.returncode}: {done.stderr[-500:]}"]))


def main() -> None:
    """Read the command line; the exit status is 1 if there are findings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", help="one of tests/fuzz/targets.py, or all")
    parser.add_argument("inputs", type=int, nargs="?", default=1 << 60)
    parser.add_argument("--seconds", type=int, default=0, help="time of each target")
    parser.add_argument("--jobs", type=int, default=1, help="targets at a time, with all and --seconds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, help="folder for inputs that are findings; a new one in /tmp without it")
    parser.add_argument("--guided", type=Path, metavar="FOLDER")
    chosen = parser.parse_args()
    if chosen.inputs == 1 << 60 and not chosen.seconds:
        parser.error("give a number of inputs, or --seconds")
    work = chosen.guided or chosen.work or Path(tempfile.mkdtemp(prefix="picstore-fuzz-"))
    work.mkdir(parents=True, exist_ok=True)
    if chosen.target != "all":
        seconds = chosen.seconds or math.inf
        if chosen.guided:
            guided(chosen.target, chosen.inputs, work, seconds=seconds)
        results = [run(chosen.target, chosen.inputs, seconds=seconds, seed=chosen.seed, work=work)]
    else:
        from targets import TARGETS

        names = list(TARGETS)
        if chosen.seconds:
            options = ["--seconds", str(chosen.seconds), "--seed", str(chosen.seed)]
            options += ["--guided" if chosen.guided else "--work", str(work)]
            with ThreadPoolExecutor(chosen.jobs) as pool:
                results = list(pool.map(lambda name: run_apart(name, options), names))
        else:
            results = [run(name, chosen.inputs, seed=chosen.seed, work=work) for name in names]
    print(json.dumps(results, indent=2))
    sys.exit(any(result["findings"] for result in results))


if __name__ == "__main__":
    main()
