"""Images/s and MB/s of the JPEG kernels, and what cutting saves in decoding: one run, one core.

    python scripts/bench_jpeg.py FOLDER [--images 100] [--rounds 5] [--cpu N] [--json FILE]

FOLDER holds JPEG files at any depth; all of them are used for the kernels, ``--images`` of them for decoding. All runs
on one pinned CPU, jpegtran's processes too. What is compared takes turns: each job once to warm up, then once a round;
a figure is the median over the rounds, and ± is half the distance between the slowest and the fastest of them, in
percent of it. Time is CPU time, of the system's work too, which on an idle machine is the time that passes; on another
it leaves out what other processes took, though not what they took of caches and memory's bandwidth. MB and GB are
powers of ten. Nothing is read from a disk: the files that jpegtran needs lie in memory where the machine has /dev/shm.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from contenders.table import machine
from PIL import Image

from picstore import NotTranscodable, add_restart_markers
from picstore.jpeg.cut import CutJpegs, TiledJpegs, cut_batch
from picstore.jpeg.markers import Header, parse_header
from picstore.jpeg.segments import find_restart_segments
from picstore.jpeg.tiles import restart_interval
from picstore.train.cpu.decode import decode_rgb
from picstore.train.transforms.crops import RandomResizedCrop
from picstore.train.transforms.geometry import Draws, Geometry

Rows: TypeAlias = "list[dict[str, Any]]"

BATCH = 128  # cuts in one call
COLD = 256 << 20  # bytes of streams that no cache holds
WARM = 8 << 20  # bytes that the last level of most holds
SHORTER = 256  # pixels, of the resized photographs
SAMPLINGS = {"4:4:4": 0, "4:2:0": 2}  # as Pillow numbers them
QUALITIES = (75, 90, 95)
MAX_INTERVAL = 65_535  # MCUs (T.81, B.2.4.4)


@dataclass(frozen=True)
class Seconds:
    """CPU time that one run of a job took: the median over the rounds, and half their range as part of it."""

    median: float
    spread: float


def cpu_time() -> float:
    """Seconds that this process and those it started and awaited have spent so far."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def race(jobs: dict[str, Callable[[], object]], rounds: int) -> dict[str, Seconds]:
    """Let jobs take turns."""
    for job in jobs.values():
        job()
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(rounds):
        for name, job in jobs.items():
            start = cpu_time()
            job()
            times[name].append(cpu_time() - start)
    medians = {name: statistics.median(samples) for name, samples in times.items()}
    return {name: Seconds(medians[name], (max(t) - min(t)) / 2 / medians[name]) for name, t in times.items()}


def tile(header: Header) -> int:
    """MCUs of the default tile."""
    return restart_interval(header.mcus[0], header.mcu_size[0])


def interval(header: Header, wish: str) -> int:
    """MCUs between restart markers, by name."""
    columns, rows = header.mcus
    return min({"1 MCU": 1, "tile": tile(header), "row": columns, "all": columns * rows}[wish], MAX_INTERVAL)


def marked(jpegs: Sequence[bytes], wish: str) -> list[bytes]:
    """Streams with restart markers."""
    return [add_restart_markers(jpeg, interval(parse_header(jpeg), wish)) for jpeg in jpegs]


def bench_insertion(jpegs: list[bytes], rounds: int) -> Rows:
    """add_restart_markers, on bytes and file to file, against jpegtran run file by file."""
    jpegtran = shutil.which("jpegtran")
    memory = Path("/dev/shm")  # noqa: S108 - only a place for a folder of its own
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        files = [Path(folder, f"{k}.jpg") for k in range(len(jpegs))]
        for file, jpeg in zip(files, jpegs, strict=True):
            file.write_bytes(jpeg)
        small, out = Path(folder, "small.jpg"), Path(folder, "out.jpg")
        Image.new("RGB", (16, 16)).save(small)
        tiles = [tile(parse_header(jpeg)) for jpeg in jpegs]

        def ours() -> None:
            for file in files:
                out.write_bytes(add_restart_markers(file.read_bytes()))

        def theirs(of: Sequence[Path]) -> None:
            for file, mcus in zip(of, tiles, strict=True):
                command = [jpegtran or "", "-restart", f"{mcus}B", "-outfile", str(out), str(file)]
                subprocess.run(command, check=True)

        jobs: dict[str, Callable[[], object]] = {
            "add_restart_markers": lambda: [add_restart_markers(jpeg) for jpeg in jpegs],
            "add_restart_markers, file to file": ours,
        }
        if jpegtran:
            jobs["jpegtran -restart, file by file"] = lambda: theirs(files)
            jobs["jpegtran of a 16 × 16 image, as often"] = lambda: theirs([small] * len(files))
        seconds = race(jobs, rounds)
    rows = [rate(name, s, len(jpegs), sum(map(len, jpegs))) for name, s in seconds.items()]
    if not jpegtran:
        return [*rows, {"what": "jpegtran is not installed (Debian: libjpeg-turbo-progs)"}]
    for row, name in zip(rows[:2], seconds, strict=False):
        row["times jpegtran"] = f"{seconds['jpegtran -restart, file by file'].median / seconds[name].median:.2f}"
    return rows


def rate(what: str, seconds: Seconds, images: int, size: int) -> dict[str, Any]:
    """A row of a table of speeds; ``size`` in bytes."""
    return {
        "what": what,
        "images/s": f"{images / seconds.median:,.0f}",
        "µs an image": f"{seconds.median / images * 1e6:,.1f}",
        "MB/s": f"{size / seconds.median / 1e6:,.0f}",
        "±": f"{seconds.spread:.0%}",
    }


def bench_size(jpegs: list[bytes], tiled: list[bytes]) -> Rows:
    """Bytes added by markers at the default tile."""
    bare = marked(jpegs, "all")
    rows = []
    for what, before in (("the source", jpegs), ("the source without what decoders do not need", bare)):
        each = [len(b) / len(a) - 1 for a, b in zip(before, tiled, strict=True)]
        total = sum(map(len, tiled)) / sum(map(len, before)) - 1
        cells = {"mean over images": statistics.mean(each), "in total": total, "least": min(each), "most": max(each)}
        rows.append({"against": what} | {name: f"{value:+.2%}" for name, value in cells.items()})
    return rows


def bench_segments(tiled: list[bytes], rounds: int) -> Rows:
    """Reading headers and finding segments."""
    headers = [parse_header(jpeg) for jpeg in tiled]
    seconds = race(
        {
            "parse": lambda: [parse_header(jpeg) for jpeg in tiled],
            "find_segments": lambda: [find_restart_segments(jpeg, h) for jpeg, h in zip(tiled, headers, strict=True)],
        },
        rounds,
    )
    rows = [rate(name, s, len(tiled), sum(map(len, tiled))) for name, s in seconds.items()]
    rows[0]["MB/s"] = ""  # it reads no more than the headers
    return rows


class Stored:
    """Streams with what a container stores about them, and a box for each; cut in batches."""

    def __init__(self, jpegs: Sequence[bytes]) -> None:
        headers = [parse_header(jpeg) for jpeg in jpegs]
        self.headers, self.jpegs = headers, jpegs
        self.layouts = np.array(
            [[h.width, h.height, *h.mcu_size, h.restart_interval, h.length] for h in headers], np.int64
        )
        spans = [find_restart_segments(jpeg, header) for jpeg, header in zip(jpegs, headers, strict=True)]
        self.segments = [(ends - starts).astype(np.uint16) for starts, ends in spans]
        geometry = Geometry.of_images(self.layouts[:, 0], self.layouts[:, 1])
        self.boxes = RandomResizedCrop(224)(geometry, Draws(0, 0, np.arange(len(jpegs)))).reach()
        self._batches = [slice(k, k + BATCH) for k in range(0, len(jpegs), BATCH)]
        self._out = np.zeros(max(sum(map(len, jpegs[batch])) for batch in self._batches), np.uint8)
        self._tiled = [self._describe(batch) for batch in self._batches]

    def _describe(self, batch: slice) -> TiledJpegs:
        return TiledJpegs.from_streams(self.jpegs[batch], self.layouts[batch], self.segments[batch])

    def describe(self) -> None:
        """Only TiledJpegs.from_streams."""
        for batch in self._batches:
            self._describe(batch)

    def cut(self) -> int:
        """Only cut_batch; bytes of all cuts."""
        total = 0
        for batch, tiled in zip(self._batches, self._tiled, strict=True):
            total += int(cut_batch(tiled, self.boxes[batch], out=self._out).offsets[-1])
        return total

    def decode(self) -> None:
        """Cut and decode, as the loader does."""
        for batch, tiled in zip(self._batches, self._tiled, strict=True):
            decode_cuts(cut_batch(tiled, self.boxes[batch], out=self._out))

    def decode_whole(self) -> None:
        """Decode everything; cropping what is decoded costs nothing."""
        for jpeg, header in zip(self.jpegs, self.headers, strict=True):
            decode_rgb(jpeg, width=header.width, height=header.height)


def decode_cuts(cuts: CutJpegs) -> None:
    data, offsets = memoryview(cuts.data), cuts.offsets.tolist()
    for k, (_, _, width, height) in enumerate(cuts.rects.tolist()):
        decode_rgb(data[offsets[k] : offsets[k + 1]], width=width, height=height)


def resized(jpeg: bytes) -> bytes:
    """A photograph with a shorter side of SHORTER pixels, in quality 90, with markers."""
    with Image.open(io.BytesIO(jpeg)) as image:
        scale = SHORTER / min(image.size)
        image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BOX)
    return add_restart_markers(encoded(image, quality=90, subsampling=2))


def encoded(image: Image.Image, *, quality: int, subsampling: int) -> bytes:
    """A JPEG as Pillow makes it."""
    out = io.BytesIO()
    image.save(out, "JPEG", quality=quality, subsampling=subsampling)
    return out.getvalue()


def sized(jpegs: list[bytes], size: int) -> list[bytes]:
    """Streams of ``size`` bytes together: some of them, or copies, in random order."""
    times = -(-size // sum(map(len, jpegs)))
    order = np.random.default_rng(0).permutation(len(jpegs) * times).tolist()
    chosen, total = [], 0
    for k in order:
        if total >= size:
            break
        jpeg = jpegs[k % len(jpegs)]
        chosen.append(bytes(bytearray(jpeg)))  # at a place of its own
        total += len(jpeg)
    return chosen


def bench_cut(sets: dict[str, list[bytes]], rounds: int) -> Rows:
    """cut_batch and TiledJpegs.from_streams over streams in memory and in cache."""
    rows = []
    for name, jpegs in sets.items():
        for where, size in (("from memory", COLD), ("from cache", WARM)):
            stored = Stored(sized(jpegs, size))
            count, cut_bytes = len(stored.jpegs), stored.cut()
            repeat = max(1, 1000 // count)  # a job of milliseconds
            cut = race({"": lambda s=stored, n=repeat: [s.cut() for _ in range(n)]}, rounds)[""]
            of = race({"": lambda s=stored, n=repeat: [s.describe() for _ in range(n)]}, rounds)[""]
            each, described = cut.median / repeat / count, of.median / repeat / count
            rows.append(
                {
                    "streams": f"{name}, {where}",
                    "KB each": f"{sum(map(len, stored.jpegs)) / count / 1e3:.1f}",
                    "KB cut": f"{cut_bytes / count / 1e3:.1f}",
                    "cuts/s": f"{1 / each:,.0f}",
                    "GB/s": f"{cut_bytes / count / each / 1e9:.1f}",
                    "±": f"{cut.spread:.0%}",
                    "µs a cut": f"{each * 1e6:.2f}",
                    "µs of TiledJpegs.from_streams": f"{described * 1e6:.2f}",
                    "cuts/s with TiledJpegs.from_streams": f"{1 / (each + described):,.0f}",
                }
            )
    return rows


def bench_decode(jpegs: list[bytes], rounds: int) -> Rows:
    """Decoding of RandomResizedCrop cuts against full decodes, by quality, sampling and restart interval."""
    rows = decode_rows({"quality": "source", "sampling": "source"}, jpegs, rounds)
    images = [Image.open(io.BytesIO(jpeg)).convert("RGB") for jpeg in jpegs]
    for quality in QUALITIES:
        for sampling, number in SAMPLINGS.items():
            sources = [encoded(image, quality=quality, subsampling=number) for image in images]
            rows += decode_rows({"quality": str(quality), "sampling": sampling}, sources, rounds)
    return rows


def decode_rows(about: dict[str, Any], sources: list[bytes], rounds: int) -> Rows:
    """One row a restart interval."""
    bare = Stored(sources)
    bare_bytes = sum(map(len, marked(sources, "all")))
    stored = {wish: Stored(marked(sources, wish)) for wish in ("1 MCU", "tile", "row")}
    jobs: dict[str, Callable[[], object]] = {"none": bare.decode_whole}
    for wish, streams in stored.items():
        jobs |= {wish: streams.decode, wish + ", whole": streams.decode_whole}
    seconds = race(jobs, rounds)
    full, count = seconds["none"], len(sources)
    first = about | {"interval": "none", "bytes added": "", "bytes left": "100 %", "images/s": "", "times full": "1.00"}
    rows = [first | {"images/s": f"{count / full.median:,.0f}", "whole, times full": "1.00", "±": f"{full.spread:.0%}"}]
    for wish, streams in stored.items():
        size = sum(map(len, streams.jpegs))
        rows.append(
            about
            | {
                "interval": wish,
                "bytes added": f"{size / bare_bytes - 1:+.1%}",
                "bytes left": f"{streams.cut() / size:.0%}",
                "images/s": f"{count / seconds[wish].median:,.0f}",
                "times full": f"{full.median / seconds[wish].median:.2f}",
                "whole, times full": f"{full.median / seconds[wish + ', whole'].median:.2f}",
                "±": f"{seconds[wish].spread:.0%}",
            }
        )
    return rows


def text(rows: Rows) -> str:
    """A Markdown table; a row may lack columns."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [columns, ["---"] * len(columns), *([str(row.get(name, "")) for name in columns] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def read(folder: Path) -> tuple[list[bytes], Counter[str]]:
    """The JPEG files that can get markers, and why others cannot."""
    jpegs, reasons = [], Counter[str]()
    for path in sorted(p for p in folder.rglob("*") if p.suffix.lower() in (".jpg", ".jpeg")):
        jpeg = path.read_bytes()
        try:
            add_restart_markers(jpeg)
        except NotTranscodable as error:
            reasons[str(error)] += 1
        else:
            jpegs.append(jpeg)
    return jpegs, reasons


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed of the JPEG kernels and of decoding what they cut.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=100, help="photographs for the decoding table (100)")
    parser.add_argument("--rounds", type=int, default=5, help="times that each job is timed (5)")
    parser.add_argument("--cpu", type=int, default=max(os.sched_getaffinity(0)), help="where to run (the last)")
    parser.add_argument("--json", type=Path, help="write the tables here too")
    options = parser.parse_args()
    about = machine()  # before pinning, as it counts the CPUs
    os.sched_setaffinity(0, {options.cpu})
    jpegs, reasons = read(options.folder)
    if not jpegs:
        sys.exit(f"{options.folder} holds no JPEG files that can get restart markers")
    about |= {"images": len(jpegs), "bytes": sum(map(len, jpegs)), "left out": dict(reasons), "rounds": options.rounds}
    print(", ".join(f"{name}: {value}" for name, value in about.items()), "\n")
    tiled = marked(jpegs, "tile")
    sets = {"photographs": tiled, f"shorter side {SHORTER}, quality 90": [resized(jpeg) for jpeg in jpegs]}
    benches: dict[str, Callable[[], Rows]] = {
        "Insertion": lambda: bench_insertion(jpegs, options.rounds),
        "Bytes added at the default tile": lambda: bench_size(jpegs, tiled),
        "Headers and segments": lambda: bench_segments(tiled, options.rounds),
        "Cuts of RandomResizedCrop": lambda: bench_cut(sets, options.rounds),
        "Decoding of RandomResizedCrop cuts": lambda: bench_decode(jpegs[: options.images], options.rounds),
    }
    tables = {}
    for title, bench in benches.items():
        tables[title] = bench()
        print(f"## {title}\n\n{text(tables[title])}", flush=True)
    if options.json:
        options.json.write_text(json.dumps({"about": about, "tables": tables}, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
