"""Check and time decoding, augmenting and training on a GPU, in one run.

    python scripts/bench_gpu.py PHOTOGRAPHS [--minutes 8] [--only checks,decoder] [--work DIR] [--json FILE]

PHOTOGRAPHS is a folder of JPEG files, or a data set. Checks come first, then times; each part has its share of the
minutes and a process of its own, so that one that fails, or takes the GPU down with it, leaves the others. A case that
fails says so in its row. ``--device cpu`` does everything in little without a GPU, to try this script out: its figures
mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# Shares of the time, of the parts in this order; each is a module of scripts/gpu/.
PARTS = {"prepare": 1.0, "checks": 1.2, "decoder": 2.0, "cut": 0.5, "standard": 2.5, "training": 1.5, "peers": 1.2}
TRAVEL = 12  # seconds that a part's process may need beyond its time: imports, the case at its end
Rows = list[dict[str, Any]]


def main() -> int:
    """Run all parts, or one of them in this process; the exit status is 1 if a check failed."""
    options = parse()
    if options.device == "cpu":
        os.environ.setdefault("TRITON_INTERPRET", "1")  # before anything imports torch
    if options.part:
        run_part(options)
        return 0
    if options.work:
        options.work.mkdir(parents=True, exist_ok=True)
        return run(options, options.work.resolve())
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as work:
        return run(options, Path(work))


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photographs", type=Path, metavar="PHOTOGRAPHS")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1 …, or cpu to try the script out")
    parser.add_argument("--minutes", type=float, default=8, help="for all parts together (default 8)")
    parser.add_argument("--images", type=int, default=400, help="photographs to take (default 400)")
    parser.add_argument("--records", type=int, default=20_000, help="of the largest data set (default 20000)")
    parser.add_argument("--only", type=names, default=list(PARTS)[1:], metavar="A,B", help=", ".join(list(PARTS)[1:]))
    parser.add_argument("--work", type=Path, metavar="DIR", help="keep data sets here and use those that are there")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure here")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    return parser.parse_args()


def names(listed: str) -> list[str]:
    """The argument of --only."""
    chosen = listed.split(",")
    for name in chosen:
        if name not in list(PARTS)[1:]:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(list(PARTS)[1:])}")
    return [name for name in PARTS if name in chosen]


def run(options: argparse.Namespace, work: Path) -> int:
    """Each part in a process, one after the other; then all tables."""
    end = time.monotonic() + 60 * options.minutes
    wanted = ["prepare", *options.only]
    found: dict[str, Any] = {"machine": {}, "rows": []}
    for number, part in enumerate(wanted):
        left = end - time.monotonic() - TRAVEL * (len(wanted) - number)
        seconds = max(5.0, left * PARTS[part] / sum(PARTS[name] for name in wanted[number:]))
        file = work / f"{part}.json"
        file.unlink(missing_ok=True)
        problem = run_process(options, work, part, seconds, file)
        got: Any = json.loads(file.read_text()) if file.exists() else []
        if part == "prepare":
            found["machine"] = got
        else:
            found["rows"] += got
        if problem:
            found["rows"].append({"table": "Parts that did not end well", "part": part, "problem": problem})
        write(options, found)  # what there is, should the run be ended from outside
        if part == "prepare" and problem:
            break
    found["rows"] += conclusions(found["rows"])
    report(options, found)
    return int(any(row.get("reached") == "no" for row in found["rows"] if row.get("goal", "").startswith("0 ")))


def run_process(options: argparse.Namespace, work: Path, part: str, seconds: float, file: Path) -> str:
    """Run a part; returns what went wrong, "" for nothing."""
    command = [sys.executable, __file__, str(options.photographs), "--device", options.device, "--part", part]
    command += ["--images", str(options.images), "--records", str(options.records), "--seconds", str(seconds)]
    command += ["--work", str(work), "--json", str(file)]
    limit = max(seconds * (3 if part == "prepare" else 1.3) + 4 * TRAVEL, 60)
    try:
        done = subprocess.run(command, check=False, timeout=limit)
    except subprocess.TimeoutExpired:
        return f"was stopped after {limit:.0f} s"
    return f"ended with {done.returncode}" if done.returncode else ""


def run_part(options: argparse.Namespace) -> None:
    """One part, in this process."""
    from gpu import checks, decoding, peers, standard, training
    from gpu.bench import Bench
    from gpu.case import run_cases
    from gpu.device import Device
    from gpu.machine import describe
    from gpu.pictures import Photographs, write_all

    device = Device(options.device)
    photographs = Photographs.of(options.photographs, options.images)
    if not device.cuda:
        photographs = photographs.smaller(48)  # the interpreter is slow
    bench = Bench(device, photographs, options.work, tiny=not device.cuda)
    if options.part == "prepare":
        options.json.write_text(json.dumps(describe(device.device)))
        write_all(options.work, photographs, records=options.records)
        standard.warm(bench)
        return
    plans = {"checks": checks.cases, "decoder": decoding.cases, "cut": decoding.cut_cases, "standard": standard.cases}
    plans |= {"training": training.cases, "peers": peers.cases}
    run_cases(plans[options.part](bench), seconds=options.seconds, file=options.json)


def conclusions(rows: Rows) -> Rows:
    """What was asked for, and what was found."""
    from gpu import peers, standard, training

    def best(table: str, **wanted: Any) -> float | None:
        chosen = [row for row in rows if row["table"] == table and wanted.items() <= row.items()]
        return max((row["images/s"] for row in chosen if "images/s" in row), default=None)

    def ratio(one: float | None, other: float | None) -> float | None:
        return one / other if one and other else None

    own = best(peers.TABLE, contender=peers.OWN)
    corrupted = [
        row["corrupted"]
        for row in rows
        if "corrupted" in row and (row.get("stream drained") == "yes" or row["table"] == "Loaders")
    ]
    ceiling = best(training.TABLE, **{"fed by": training.CEILING})
    asked = [
        ("picstore / the seeds' recipe", ratio(own, best(peers.TABLE, contender=peers.SEED)), 5),
        ("picstore / decode of lists, transforms by image", ratio(own, best(peers.TABLE, contender=peers.BATCHED)), 2),
        ("share of the ceiling in training", ratio(best(training.TABLE, **{"fed by": training.OWN}), ceiling), 0.97),
        ("images/s of the standard job", best(standard.TABLE, data="photographs"), 50_000),
    ]
    table = {"table": "What was asked for"}
    found = [
        {
            **table,
            "figure": name,
            "found": value,
            "goal": f"≥ {goal:,}",
            "reached": verdict(value, value and value >= goal),
        }
        for name, value, goal in asked
    ]
    worst = max(corrupted, default=None)
    name = "corrupted batches, stream drained, and the loader's"
    return [
        *found,
        {**table, "figure": name, "found": worst, "goal": "0 of 200", "reached": verdict(worst, worst == 0)},
    ]


def verdict(value: Any, reached: Any) -> str:
    """A cell."""
    return "not measured" if value is None else "yes" if reached else "no"


def report(options: argparse.Namespace, found: dict[str, Any]) -> None:
    """Print Markdown, and write JSON."""
    from gpu.case import tables

    machine = dict(found["machine"])
    versions = ", ".join(f"{name} {version}" for name, version in machine.pop("versions", {}).items())
    about = [f"{name.replace('_', ' ')}: {value}" for name, value in machine.items()]
    sys.stdout.write(
        "\n".join([f"# On a GPU, {time.strftime('%Y-%m-%d')}", "", "; ".join(about), "", versions, "", ""])
    )
    sys.stdout.write(tables(found["rows"]) + "\n")
    write(options, found)


def write(options: argparse.Namespace, found: dict[str, Any]) -> None:
    """Write JSON, where it is asked for."""
    if options.json:
        options.json.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    sys.exit(main())
