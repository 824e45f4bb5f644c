"""A gate for speed: no job of the working tree may take 5 % longer than at another commit.

Both trees run on the same Python with the same libraries, each with kernels of its own, in turn: before, after, before,
after, …, so that a disturbance meets both. The ratio of a round compares neighbors; the median of all rounds counts.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.child import ROOT, FailedError
from benchmarks.gate_jobs import JOBS
from benchmarks.harness import SECONDS, Case, Result, Sample, join, measure, say, tabulate
from benchmarks.options import memory_folder
from benchmarks.photographs import copy_images

LIMIT = 1.05
_PROGRAM = Path(__file__).with_name("gate_jobs.py")


@dataclass(frozen=True)
class Tree:
    """A tree of the project, and the data that its jobs read."""

    root: Path
    work: Path
    images: Path

    @property
    def data(self) -> Path:
        """The data set of both trees, which the earlier one writes."""
        return self.work / "data"

    def run(self, job: str) -> Sample:
        """Run a job in a new process; FailedError where it fails."""
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.root),
            "NUMBA_CACHE_DIR": str(self.work / f"kernels-{self.root.name}"),
        }
        command = [sys.executable, str(_PROGRAM), job, str(self.images), str(self.data)]
        done = subprocess.run(command, env=environment, cwd=self.work, capture_output=True, text=True)
        if done.returncode:
            raise FailedError(f"{job} of {self.root}: {done.stderr[-2000:]}")
        items, seconds, check = json.loads(done.stdout)
        return Sample(items, seconds, check=(check,))


def check_out(commit: str, target: Path) -> None:
    """Write the files of a commit; FailedError for one that git does not know."""
    done = subprocess.run(["git", "archive", "--format=tar", commit], cwd=ROOT, capture_output=True)
    if done.returncode:
        raise FailedError(done.stderr.decode().strip())
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as tar:
        tar.extractall(target, filter="data")


def compare(before: Tree, after: Tree, rounds: int) -> dict[str, list[Result]]:
    """Measure each job in both trees; the first run of each, which compiles, does not count."""
    before.run("prepare")
    found = {}
    for job in JOBS:
        say(job)
        cases = [
            Case(name, lambda tree, job=job: tree.run(job), lambda tree=tree: tree)
            for name, tree in (("before", before), ("after", after))
        ]
        found[job] = measure(cases, rounds=rounds, tolerance=0.5)
    return found


def slower(results: Sequence[Result]) -> str:
    """Say why a job does not pass; empty if it does."""
    if problems := [result.problem for result in results if result.problem]:
        return problems[0]
    ratio = statistics.median(results[1].ratios)
    return f"takes {ratio - 1:.1%} longer" if ratio > LIMIT else ""


def main(words: Sequence[str]) -> int:
    """Compare the working tree with a commit; the exit status is 1 if a job is slower by more than 5 %."""
    arguments = parse(words)
    with tempfile.TemporaryDirectory(prefix="gate-", dir=memory_folder()) as folder:
        work = Path(folder)
        images = work / "source" / "images"
        images.parent.mkdir()
        copy_images(arguments.photographs, images, arguments.copies, arguments.images)
        try:
            check_out(arguments.against, work / "before")
            (work / "after").symlink_to(ROOT)
            trees = (Tree(work / name, work, images) for name in ("before", "after"))
            found = compare(*trees, arguments.rounds)
        except FailedError as error:
            say(str(error))
            return 1
    tables = [tabulate(each, "", unit=SECONDS, first="before", names={"job": job}) for job, each in found.items()]
    sys.stdout.write(join(tables).markdown() + "\n\n")
    failed = {job: why for job, each in found.items() if (why := slower(each))}
    for job, why in failed.items():
        sys.stdout.write(f"{job}: {why}\n")
    if not failed:
        sys.stdout.write(f"no job takes more than {LIMIT - 1:.0%} longer than at {arguments.against}\n")
    return int(bool(failed))


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks gate", description=__doc__.partition("\n")[0])
    photographs = os.environ.get("PICSTORE_PHOTOGRAPHS")
    parser.add_argument("photographs", type=Path, nargs="?", default=photographs and Path(photographs))
    parser.add_argument("--against", metavar="COMMIT", required=True, help="commit to compare the working tree with")
    parser.add_argument("--rounds", type=int, default=7, help="timed runs of each job in each tree (7)")
    parser.add_argument("--images", type=int, default=400, help="photographs to take (400)")
    parser.add_argument("--copies", type=int, default=10, help="copies of each (10)")
    arguments = parser.parse_args(words)
    if arguments.photographs is None or not arguments.photographs.is_dir():
        parser.error("name a folder of photographs, or set PICSTORE_PHOTOGRAPHS")
    if arguments.rounds < 1:
        parser.error("--rounds is at least 1")
    return arguments
