"""Entry of the benchmarks: ``python -m benchmarks kernels|loaders|convert|runtime|large|maps|gpu|torture|gate``."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
import tempfile
import time
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks import gate, machine, report
from benchmarks.child import FailedError, MissingError, call
from benchmarks.harness import Table, say
from benchmarks.options import ON_DISK, SUITES, WITHOUT_GPU, Options, memory_folder
from picstore.cores import count_cores

GPU_WEIGHTS = {"checks": 1.5, "standard": 2.5, "training": 1.5, "peers": 1.2}
_LATE = 90  # seconds after the gpu suite's time in which its last table has to end


def run_table(target: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Measure one table in this process."""
    module, _, function = target.partition(":")
    table: Table = getattr(import_module(module), function)(Options.from_json(fields))
    return asdict(table)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Benchmarks of picstore. Each table is measured in a process of its own, its cases in turn.",
        epilog="Tables: "
        + "; ".join(f"{suite}: {', '.join(tables)}" for suite, tables in SUITES.items())
        + ". Besides: gate --against COMMIT compares the working tree's speed with a commit's.",
    )
    photographs = os.environ.get("PICSTORE_PHOTOGRAPHS")
    parser.add_argument("suite", choices=SUITES, help="group of tables")
    parser.add_argument(
        "photographs",
        type=Path,
        nargs="?",
        default=photographs and Path(photographs),
        help="folder of JPEG files, one sub-folder a class (default: PICSTORE_PHOTOGRAPHS)",
    )
    parser.add_argument(
        "--only", metavar="A,B", help=f"tables to measure (default: all of the suite but {', '.join(ON_DISK)})"
    )
    parser.add_argument(
        "--quick", "--short", action="store_true", help="few images and one round: figures mean nothing"
    )
    parser.add_argument("--images", type=int, help="photographs to take (default: by table)")
    parser.add_argument("--rounds", type=int, help="timed runs of each case (default: by table)")
    parser.add_argument("--copies", type=int, default=10, help="copies of each photograph in data sets (10)")
    parser.add_argument(
        "--workers", type=int, help="processes or threads of each contender (2; the gpu suite converts on all cores)"
    )
    parser.add_argument("--minutes", type=float, default=8, help="time of the gpu suite (8)")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, or cpu to try the gpu suite without a GPU")
    parser.add_argument("--work", type=Path, metavar="DIR", help="keep data sets here and use the ones already there")
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="write every figure as JSON after each table, and keep the file's other tables",
    )
    parser.add_argument("--write", type=Path, metavar="PAGE", help="replace the tables of this Markdown page")
    options = parser.parse_args()
    if options.suite == "torture":  # its photographs are made up, so its tables may stand in their place
        if options.photographs is not None and str(options.photographs) in SUITES["torture"]:
            options.only = str(options.photographs)
        options.photographs = Path()
    tables = SUITES[options.suite]
    options.only = options.only.split(",") if options.only else [name for name in tables if name not in ON_DISK]
    if unknown := set(options.only) - set(tables):
        parser.error(f"{options.suite} has no table {', '.join(sorted(unknown))}; it has {', '.join(tables)}")
    if options.photographs is None or not options.photographs.is_dir():
        parser.error("name a folder of photographs, or set PICSTORE_PHOTOGRAPHS")
    return options


def main() -> int:
    """Measure the tables; the exit status is 1 if one failed."""
    if sys.argv[1:2] == ["gate"]:
        return gate.main(sys.argv[2:])
    arguments = parse()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # data sets are removed, as by Ctrl-C
    needs_gpu = arguments.suite == "gpu" and not WITHOUT_GPU.issuperset(arguments.only)
    if needs_gpu and arguments.device != "cpu" and not has_gpu():
        say("No CUDA GPU is visible to torch: nothing measured. --device cpu tries the code without one.")
        return 4
    if arguments.work:
        arguments.work.mkdir(parents=True, exist_ok=True)
        return run(arguments, arguments.work.resolve())
    folder = None if ON_DISK.intersection(arguments.only) else memory_folder()
    with tempfile.TemporaryDirectory(prefix="benchmarks-", dir=folder) as work:
        return run(arguments, Path(work))


def has_gpu() -> bool:
    """Whether torch sees a GPU."""
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.is_available())


def run(arguments: argparse.Namespace, work: Path) -> int:
    """Measure, print and write the tables."""
    about = machine.describe()
    machine_name = machine.sentence(about)
    names = ("images", "rounds", "workers", "device", "quick")
    options = Options(arguments.photographs.resolve(), work, **{name: getattr(arguments, name) for name in names})
    options = replace(options, copies=1 if arguments.quick else arguments.copies)
    if arguments.workers is None:
        options = replace(options, workers=count_cores() if arguments.suite == "gpu" else Options.workers)
    end, tables, failed = time.monotonic() + 60 * arguments.minutes, {}, False
    for number, name in enumerate(arguments.only):
        weights = [GPU_WEIGHTS.get(other, 1.0) for other in arguments.only[number:]]
        seconds = max(5.0, (end - time.monotonic()) * weights[0] / sum(weights))
        options = replace(options, seconds=1 if arguments.quick else seconds)
        say(f"{arguments.suite}: {name}")
        limit = 6 * 3600.0
        if arguments.suite == "gpu":  # a call ends soon after its time, whatever a table does
            limit = min(3 * seconds + 120, max(30.0, end - time.monotonic() + _LATE))
        try:
            table = Table(
                **call("benchmarks.__main__:run_table", SUITES[arguments.suite][name], asdict(options), limit=limit)
            )
        except (MissingError, FailedError) as error:
            say(f"{arguments.suite} {name}: {error}")
            failed = True
            continue
        tables[f"{arguments.suite} {name}"] = table
        failed |= any(str(row.get("problem", "")).startswith(("failed", "its check")) for row in table.rows)
        given = [f" --{option} {value}" for option in ("images", "rounds") if (value := getattr(arguments, option))]
        command = f"python -m benchmarks {arguments.suite} --only {name}{''.join(given)}"
        text = report.section(table, command=command, date=time.strftime("%Y-%m-%d"), machine=machine_name)
        sys.stdout.write(f"## {name}\n\n{text}\n\n")
        sys.stdout.flush()
        if arguments.write:
            report.write_sections(arguments.write, {f"{arguments.suite} {name}": text})
        if arguments.json:
            report.write_json(arguments.json, tables, {"machine": about, "command": shlex.join(sys.argv[1:])})
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
