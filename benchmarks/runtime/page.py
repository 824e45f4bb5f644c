"""The page of ``picstore view`` on a million records: time of the first page and of each filter, memory of the server.

Each request is one of the page's, over HTTP; filters are never asked for twice. The peak is the process's
resident memory, mapped files included. Linux only (/proc).
"""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import numpy as np
from PIL import Image

import picstore
from benchmarks.harness import Row, Table
from benchmarks.options import Options

RECORDS, QUICK = 1_000_000, 2000
DIFFERENT, CLASSES, PAGE, ROUNDS = 300, 1000, 120, 3
Ask = Callable[..., Any]


def page(options: Options) -> Table:
    """Time of requests, and memory."""
    count = QUICK if options.quick else RECORDS
    path = options.work / f"page-{count}"
    if not path.exists():
        write_dataset(path, count)
    rows: list[Row] = []
    with serving(path) as (ask, process, seconds):
        rows.append({"request": "from the command to the address", "longest, s": seconds, "promised, s": None})
        begun = time.perf_counter()
        ask("/api/dataset")
        ask("/api/records", count=PAGE)
        rows.append(_row("first page", time.perf_counter() - begun, 1.0))
        ask("/api/histograms")  # as the page does, while the first images are looked at
        for name, make in FILTERS.items():
            chosen = [json.dumps(make(number)) for number in range(ROUNDS)]
            rows.append(_row(name, max(_seconds(ask, each) for each in chosen), 0.5))
        peak = int(re.findall(r"VmHWM:\s+(\d+)", Path(f"/proc/{process}/status").read_text())[0]) / 1000
    rows.append({"request": "peak of the memory, MB", "longest, s": None, "MB": peak, "promised, MB": 500})
    return Table(f"{count:,} records with a column of texts and one of numbers; longest of {ROUNDS}", rows)


FILTERS: dict[str, Callable[[int], dict[str, Any]]] = {
    "class": lambda k: {"labels": [k, k + 7]},
    "id": lambda k: {"ids": f"{k}, {100 * k + 100}-{100 * k + 1000}"},
    "width": lambda k: {"ranges": {"width": [40 + k, 90]}},
    "column of numbers": lambda k: {"ranges": {"score": [k / 10, k / 10 + 0.2]}},
    "text that few have": lambda k: {"text": f"thing {k + 3}7"},
    "text that all have": lambda k: {"text": "aphoto"[k]},
    "condition on numbers": lambda k: {"where": f"label = {k} AND width > 50"},
    "condition on texts": lambda k: {"where": f"caption LIKE '%place {k}%'"},
    "all of them": lambda k: {"text": "thing", "labels": [k], "ranges": {"width": [30, None]}, "where": "height > 40"},
}


def write_dataset(path: Path, count: int) -> None:
    """Write ``count`` records of 300 small JPEGs, in 1,000 classes, with captions and scores."""
    rng = np.random.default_rng(0)
    jpegs = []
    for _ in range(DIFFERENT):
        out = io.BytesIO()
        small = Image.fromarray(rng.integers(0, 256, (4, 5, 3), dtype=np.uint8))
        small.resize((int(rng.integers(24, 160)), int(rng.integers(24, 120)))).save(out, "JPEG", quality=60)
        jpegs.append(out.getvalue())
    with picstore.Writer(path, classes=[f"class {k}" for k in range(CLASSES)]) as writer:
        for number in range(count):
            writer.add(jpegs[number * 7919 % DIFFERENT], label=number * 31 % CLASSES)
    captions = [f"a photo of thing {number % 977} near place {number % 31}" for number in range(count)]
    picstore.Dataset(path).with_columns({"caption": captions, "score": rng.random(count)}).save()


@contextmanager
def serving(path: Path) -> Iterator[tuple[Ask, int, float]]:
    """Run the command; yields a function that asks it, its process and the seconds until it printed its address."""
    begun = time.perf_counter()
    command = [sys.executable, "-m", "picstore", "view", str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        lines = process.stdout or ()
        address = urlsplit(next(found[0] for line in lines if (found := re.search(r"http://\S+", line))))
        seconds = time.perf_counter() - begun
        connection = HTTPConnection(str(address.hostname), address.port or 0)

        def ask(request: str, **parameters: Any) -> Any:
            connection.request("GET", f"{address.path}{request[1:]}?{urlencode(parameters)}")
            answer = connection.getresponse()
            body = json.loads(answer.read())
            if answer.status != 200:
                raise RuntimeError(f"{request}: {body}")
            return body

        yield ask, process.pid, seconds
        connection.close()
    finally:
        process.terminate()
        process.communicate()


def _seconds(ask: Ask, chosen: str) -> float:
    """Time of a filter: its page and its histograms."""
    begun = time.perf_counter()
    ask("/api/records", filter=chosen, count=PAGE)
    ask("/api/histograms", filter=chosen)
    return time.perf_counter() - begun


def _row(name: str, seconds: float, promised: float) -> Row:
    return {"request": name, "longest, s": seconds, "promised, s": promised}
