"""Compare picstore's loader with its peers on the standard job, in one run on one machine.

    python scripts/bench_loaders.py FOLDER [--work DIR] [--rounds 3] [--epochs 3] [--only picstore,ffcv] [--json FILE]

FOLDER has one sub-folder of JPEG files a class (or only files, which are then one class). They are copied ten times,
each contender writes its own data set from the copies, and then the contenders take turns: in each round each of them
gets a fresh process, which does one epoch that is not timed (it compiles, starts workers and warms the page cache) and
``--epochs`` - 1 that are. Every batch is checked for shape and type, every epoch for having each class's images once,
and the mean colour of all contenders must agree. ``scripts/bench-peers`` installs the peers.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from contenders import NAMES, REMARK, Job
from contenders.process import Contender, Failed, Missing
from contenders.table import Result, machine, text, values

PEERS = Path(__file__).resolve().parent.parent / ".venv-peers" / "bin" / "python"
MEAN_TOLERANCE = 4.0  # of 255; crops of 4,000 photographs move a mean by 0.3, swapped channels by 10 and more


class Bench:
    """The settings of one run, and what its contenders did so far."""

    def __init__(self, options: argparse.Namespace, work: Path) -> None:
        self._options = options
        self._work = work
        self._images = work / "images"
        self._per_class, self._bytes = copy_images(options.folder, self._images, options.copies)
        self.results = [Result(name) for name in options.only]

    def about(self) -> dict[str, Any]:
        """The machine and the job, for the report."""
        o = self._options
        job = {"images": sum(self._per_class), "bytes": self._bytes, "copies": o.copies, "size": Job.size}
        job |= {"batch": Job.batch, "workers": o.workers, "rounds": o.rounds, "epochs": o.epochs}
        return {"machine": machine(), "job": job}

    def prepare(self, result: Result) -> None:
        """Write a contender's data set, unless an earlier run left it in the work folder."""
        done = self._work / result.name
        part = self._work / f"{result.name}.part"
        if not done.exists():
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
        with self._process(result, "prepare", part) as process:
            ready = process.answer()
            result.versions, result.note = ready["ready"], ready["note"]
            if not done.exists():
                say(f"{result.name}: prepared in {process.answer()['prepared']:.1f} s")
                part.rename(done)
        if (done / REMARK).exists():
            result.note += f" ({(done / REMARK).read_text()})"
        result.stored_bytes = sum(path.stat().st_size for path in done.rglob("*") if path.is_file())

    def round(self, result: Result) -> None:
        """One turn of a contender: a process, an epoch to warm up, and the timed ones."""
        with self._process(result, "run", self._work / result.name) as process:
            process.answer()
            result.means = process.epoch(watch=True)["means"]
            rates = [process.epoch(watch=False)["rate"] for _ in range(self._options.epochs - 1)]
            result.memory = result.memory.peak(process.memory)
        result.rates.append(rates)
        say(f"{result.name}: {', '.join(f'{rate:,.0f}' for rate in rates)} images/s")

    def attempt(self, result: Result, *, prepare: bool) -> None:
        """Prepare or do a round; a contender that cannot is out of the race, and the report says why."""
        try:
            if prepare:
                self.prepare(result)
            else:
                self.round(result)
        except Missing as why:
            result.problem = f"not installed ({why})"
        except Failed as why:
            result.problem = f"failed ({why}; see {result.name}.log)"
        if result.problem:
            say(f"{result.name}: {result.problem}")

    def compare_colors(self) -> None:
        """Mark a contender whose mean colour is not that of the others: wrong channels, or images left out."""
        ran = [result for result in self.results if result.means]
        middle = [statistics.median(result.means[c] for result in ran) for c in range(3)] if ran else []
        for result in ran:
            if max(abs(mean - usual) for mean, usual in zip(result.means, middle, strict=True)) > MEAN_TOLERANCE:
                means = ", ".join(f"{mean:.0f}" for mean in result.means)
                result.problem = f"mean colour {means} differs from the others"

    def _process(self, result: Result, verb: str, data: Path) -> Contender:
        python = Path(sys.executable) if result.name.startswith("picstore") else self._options.peer_python
        job = Job(self._images, data, self._per_class, workers=self._options.workers)
        log = self._work / f"{result.name}.log"
        return Contender(python, result.name, verb, job, log=log, limit=self._options.limit)


def copy_images(folder: Path, images: Path, copies: int) -> tuple[tuple[int, ...], int]:
    """Copy a folder's JPEG files, and return the number of each class and all bytes.

    They are copies, not links, so that who reads files has as many bytes in the page cache as who reads a data set.
    """
    source = [path for path in sorted(folder.rglob("*")) if path.suffix.lower() in (".jpg", ".jpeg")]
    if not source:
        sys.exit(f"{folder} has no JPEG files")
    origin = {"folder": str(folder.resolve()), "copies": copies, "files": len(source)}
    marker = images.with_name("source.json")
    if not marker.exists():
        shutil.rmtree(images, ignore_errors=True)
        for path in source:
            target = images / (path.parent.name if path.parent != folder else "all")
            target.mkdir(parents=True, exist_ok=True)
            for copy in range(copies):
                shutil.copyfile(path, target / f"{path.stem}-{copy}.jpg")
        marker.write_text(json.dumps(origin))
    elif json.loads(marker.read_text()) != origin:
        sys.exit(f"{marker.parent} was prepared from other images: name another --work, or remove it")
    classes = sorted(path for path in images.iterdir())
    per_class = tuple(sum(1 for _ in path.iterdir()) for path in classes)
    return per_class, sum(path.stat().st_size for path in images.rglob("*.jpg"))


def say(line: str) -> None:
    """Progress, on stderr."""
    sys.stderr.write(line + "\n")


def run(options: argparse.Namespace, work: Path) -> int:
    """Prepare, race, report; the exit status is 1 if a contender that is installed failed."""
    bench = Bench(options, work)
    about = bench.about()
    for result in bench.results:
        bench.attempt(result, prepare=True)
    for number in range(options.rounds):
        say(f"round {number + 1} of {options.rounds}")
        for result in bench.results:
            if not result.problem:
                bench.attempt(result, prepare=False)
    bench.compare_colors()
    sys.stdout.write(text(bench.results, about) + "\n")
    if options.json:
        options.json.write_text(json.dumps(values(bench.results, about), indent=2) + "\n")
    return int(any(r.problem and not r.problem.startswith("not installed") for r in bench.results))


def contender_names(listed: str) -> list[str]:
    """The argument of --only."""
    names = listed.split(",")
    for name in names:
        if name not in NAMES:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(NAMES)}")
    return names


def main() -> int:
    """Parse the command line and run in the work folder, or in a temporary one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument(
        "--work",
        type=Path,
        metavar="DIR",
        help="keep the data sets here and use those that are there; remove DIR/picstore* when its format changes",
    )
    parser.add_argument("--rounds", type=int, default=3, help="turns of each contender (default 3)")
    parser.add_argument("--epochs", type=int, default=3, help="epochs a turn, the first not timed (default 3)")
    parser.add_argument("--copies", type=int, default=10, help="copies of each image (default 10)")
    parser.add_argument("--workers", type=int, default=Job.workers, help="workers, threads, CPUs (default 2)")
    parser.add_argument("--only", type=contender_names, default=list(NAMES), metavar="A,B", help=", ".join(NAMES))
    parser.add_argument("--limit", type=float, default=900, metavar="S", help="seconds an epoch may take (900)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure here")
    parser.add_argument(
        "--peer-python",
        type=Path,
        default=PEERS if PEERS.exists() else Path(sys.executable),
        metavar="PATH",
        help="the interpreter that has the peers (default: that of .venv-peers, else this one)",
    )
    options = parser.parse_args()
    if options.epochs < 2 or options.rounds < 1:
        parser.error("at least 1 round of 2 epochs")
    if options.work:
        options.work.mkdir(parents=True, exist_ok=True)
        return run(options, options.work.resolve())
    with tempfile.TemporaryDirectory(prefix="bench-loaders-") as work:
        return run(options, Path(work))


if __name__ == "__main__":
    sys.exit(main())
