"""Table of fuzzed functions: inputs made by mutators that keep checksums right, and what came of them."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.child import ROOT, FailedError, call
from benchmarks.harness import Row, Table, say
from benchmarks.options import Options

sys.path[:0] = [str(ROOT / "tests" / "fuzz"), str(ROOT / "tests")]

INPUTS = 1_000_000
STEP = 250_000  # inputs of which each target has its share, in a process that its peak of memory is measured of
SEED = 31_000  # of the first step; from another one all inputs are new


def fuzz(options: Options) -> Table:
    """Check generated inputs of every target, in steps that each take all targets, in processes that they may crash.

    With --work, a run that was interrupted goes on, and more --rounds continue it.
    """
    from targets import TARGETS

    inputs = options.rounds or (300 if options.quick else INPUTS)
    shares = sum(target.share for target in TARGETS.values())
    about = (
        f"{inputs:,} inputs: seeds of tests/fuzz/corpus changed field by field with their checksums made right again, "
        "and JPEGs that are valid in odd ways. A finding is an exception that is not picstore's, a difference (from "
        "libjpeg-turbo's pixels, coefficients, or a second reading), more than 2 s of CPU or 1 GiB for one input, or a "
        "process that ends or hangs for 10 s. Every eighth decoding, and all transcoding, is between guard pages."
    )
    chunks = [
        (name, SEED + number, max(1, size * target.share // shares))
        for number, first in enumerate(range(0, inputs, STEP))
        for size in (min(STEP, inputs - first),)
        for name, target in TARGETS.items()
    ]
    with ThreadPoolExecutor(options.workers) as pool:
        results = list(pool.map(lambda chunk: _chunk(*chunk, options.work), chunks))
    rows = [_row(name, [result for result in results if result["target"] == name]) for name in TARGETS]
    total = {
        key: sum(row[key] for row in rows) for key in ("inputs", "accepted", "rejected", "differences", "findings")
    }
    rows.append({"target": "all", **total})
    if total["findings"]:
        rows[-1]["problem"] = "its check fails"
    return Table(about, rows)


def _chunk(name: str, seed: int, count: int, work: Path) -> dict[str, Any]:
    """Run a chunk in a process of its own, or take an earlier run's result; keep an input that ends the process."""
    known = work / f"{name}-{seed}-{count}.json"
    if known.exists():
        return dict(json.loads(known.read_text()))
    try:
        result = dict(call("benchmarks.torture.fuzz:run_chunk", name, count, seed, str(work), limit=3600))
    except FailedError as error:
        current = work / f"{name}-{seed}.current"
        return {"target": name, "findings": [f"{error}: {current.rename(work / f'{name}-{seed}.crash')}"]}
    known.write_text(json.dumps(result))
    say(f"fuzz: {result}")
    return result


def run_chunk(name: str, inputs: int, seed: int, work: str) -> dict[str, Any]:
    """Run a chunk in this process."""
    from run import run

    return run(name, inputs, seed=seed, work=Path(work))


def _row(name: str, results: list[dict[str, Any]]) -> Row:
    def total(key: str) -> int:
        return sum(result.get(key, 0) for result in results)

    findings = [finding for result in results for finding in result["findings"]]
    for finding in findings:
        say(f"{name}: {finding}")
    return {
        "target": name,
        "inputs": total("inputs"),
        "accepted": total("accepted"),
        "rejected": total("inputs") - total("accepted") - total("differences") - total("exceptions"),
        "differences": total("differences"),
        "findings": len(findings),
        "slowest ms": max((result.get("slowest_ms", 0.0) for result in results), default=0.0),
        "peak MiB": max((result.get("peak_mib", 0) for result in results), default=0),
    }
