"""Fuzz picstore.jpeg with damaged JPEGs: each call must return a valid result or raise a picstore error.

usage: fuzz_jpeg.py [--cases N] [--seed N] [--photographs FOLDER] [--guarded]
       fuzz_jpeg.py --grid                      every sampling × every size from 1 × 1 to 70 × 70, undamaged

Each case is a valid JPEG with bits flipped, or bytes replaced, cut off, removed, repeated or taken from another file.
If restart markers can be added to it, libjpeg-turbo must decode the same pixels before and after. With --guarded all
arrays lie between inaccessible pages, so that one byte read or written outside kills the process.
NUMBA_BOUNDSCHECK=1 with an empty NUMBA_CACHE_DIR also checks every index.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
from guard_pages import GuardedNumpy
from PIL import Image

SAMPLINGS = ("444", "422", "440", "420")
MAX_SECONDS = 30.0  # seconds; a photograph takes 1 ms, and a busy machine has pauses
MAX_GROWTH = 1 << 30  # bytes of memory
MARKERS = bytes([0x00, 0x01, 0x10, 0x11, 0x7F, 0x80, 0xC0, 0xC4, 0xD0, 0xD7, 0xD8, 0xD9, 0xDA, 0xDB, 0xDD, 0xFE, 0xFF])


def modules() -> dict[str, Any]:
    """Modules by name, imported late, so that a guided run can instrument them."""
    from picstore.jpeg import cut, headers, markers, tiles, transcode, transcode_lookup
    from picstore.jpeg.decoder import decode_baseline

    found = (headers, cut, decode_baseline, transcode_lookup, markers, tiles, transcode)
    return {name.__name__.rsplit(".", 1)[1]: name for name in found}


def encode(pixels: np.ndarray, sampling: str, **options: Any) -> bytes:
    """Encode a baseline JPEG of any sampling by libjpeg-turbo."""
    if sampling == "grey":
        return simplejpeg.encode_jpeg(np.ascontiguousarray(pixels[:, :, :1]), colorspace="GRAY", **options)
    return simplejpeg.encode_jpeg(np.ascontiguousarray(pixels), colorsubsampling=sampling, **options)


def corpus(folder: Path | None, rng: random.Random) -> list[bytes]:
    """Small JPEGs of every kind, and some whole photographs."""
    if folder is None:
        noise = np.random.default_rng(0)
        sources = [noise.integers(0, 256, (h, w, 3), np.uint8) for h, w in ((9, 12), (40, 70), (75, 100))]
        pictures = [Image.fromarray(source).resize((size, size)) for source in sources for size in (33, 90)]
        whole: list[bytes] = []
    else:
        paths = rng.sample(sorted(folder.glob("*/*.JPEG")), 24)
        pictures = [Image.open(path).convert("RGB").resize((rng.randrange(40, 130), 90)) for path in paths]
        whole = [path.read_bytes() for path in paths[:4]]
    made = []
    for number, picture in enumerate(pictures):
        pixels = np.asarray(picture)
        made += [encode(pixels, s, quality=rng.choice((30, 75, 90, 98))) for s in ("grey", *SAMPLINGS)]
        # Own tables, all kinds of restart markers, and streams that do not qualify.
        options = ({"optimize": True}, {"restart_marker_blocks": 1 + number % 7}, {"progressive": True})
        for extra in (*options, {"restart_marker_rows": 1, "optimize": True}):
            out = io.BytesIO()
            picture.save(out, "JPEG", quality=rng.choice((30, 75, 95)), **extra)
            made.append(out.getvalue())
    return made + whole


def damaged(streams: list[bytes], rng: random.Random) -> bytes:
    """One of the streams, damaged in one to three ways."""
    stream = bytearray(rng.choice(streams))
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if not stream:
            break
        # Half of all damage is done to the headers, which are few bytes and decide most.
        end = min(len(stream), 700) if rng.random() < 0.5 else len(stream)
        at = rng.randrange(end)
        way = rng.randrange(8)
        if way <= 1:
            for _ in range(rng.choice((1, 1, 2, 8, 64))):
                stream[rng.randrange(end)] ^= 1 << rng.randrange(8)
        elif way == 2:
            stream[at] = rng.choice(MARKERS)
        elif way == 3:
            stream[at : at + 2] = bytes([0xFF, rng.choice(MARKERS)])
        elif way == 4:
            del stream[at:]
        elif way == 5:
            del stream[at : at + rng.choice((1, 2, 10, 1000))]
        elif way == 6:
            stream[at:at] = stream[at : at + rng.choice((1, 2, 100))] * rng.choice((1, 2, 50))
        else:
            other = rng.choice(streams)
            stream[at:] = other[rng.randrange(len(other)) :]
    return bytes(stream)


def exact_workspace(decode: Any) -> Any:
    """Workspace of the decoder whose arrays are exactly as long as needed."""

    class Exact(decode._Workspace):
        def __init__(self) -> None:
            super().__init__()
            self._scratch, self._segments = decode.np.empty(0, np.uint8), decode.np.empty(0, np.int64)

        def grow(self) -> int:
            size, scratch, segments = self.frame[-3:].tolist()
            self._scratch, self._segments = decode.np.empty(scratch, np.uint8), decode.np.empty(segments, np.int64)
            return int(size)

    return Exact()


class Exercise:
    """Calls of every function with a stream, and counts of their outcomes."""

    def __init__(self) -> None:
        self._parts = modules()
        self._guard: GuardedNumpy | None = None
        self.counts: dict[str, int] = {}
        self.slowest = (0.0, "")

    def start(self, *, guarded: bool) -> None:
        """Reset the counts, and guard arrays if asked, which numba must not see while it compiles the kernels."""
        self.counts, self.slowest = {}, (0.0, "")
        if guarded:
            self._guard = GuardedNumpy()
            self._parts["transcode_lookup"].make_lookups.cache_clear()
            for name in ("transcode", "cut", "transcode_lookup", "decode_baseline"):
                self._parts[name].np = self._guard

    def __call__(self, stream: bytes, rng: random.Random) -> None:
        if self._guard:
            self._guard.flush_left = rng.random() < 0.3
        jpeg = self._guard.stream(stream) if self._guard else stream
        part = self._parts
        header = self._call("parse", part["markers"].parse_header, jpeg)
        self._call(
            "read_coding", lambda: part["headers"].read_coding_parameters(part["markers"].iterate_marker_segments(jpeg))
        )
        found = self._call("find_segments", part["markers"].find_restart_segments, jpeg, header) if header else None
        interval = rng.choice((None, None, 1, 3, rng.randrange(1, 100)))
        added = self._call("add_restart_markers", part["transcode"].add_restart_markers, jpeg, interval)
        if added:
            self._compare(stream, added)
        self._call("find_entry_points", part["transcode"].find_entry_points, jpeg, rng.randrange(1, 12))
        width, height = (header.width, header.height) if header else (50, 50)
        left, top = rng.randrange(width), rng.randrange(height)
        box = left, top, rng.randrange(1, width - left + 1), rng.randrange(1, height - top + 1)
        self._call("cut", part["cut"].cut, jpeg, box)
        if self._guard:
            part["decode_baseline"].WORKSPACE = exact_workspace(part["decode_baseline"])
        shown = self._call("decode", part["decode_baseline"].decode, jpeg)
        if shown is not None:
            self._call_libjpeg(stream, np.array(shown))
        self._wrong_tables(stream, header, found, rng)

    def _call_libjpeg(self, stream: bytes, shown: np.ndarray) -> None:
        """Count how often libjpeg-turbo decodes the same pixels; for damaged streams it may decode any."""
        try:
            same = np.array_equal(simplejpeg.decode_jpeg(stream, strict=False), shown)
        except ValueError:
            same = False
        name = f"decode: {'as' if same else 'not as'} libjpeg-turbo"
        self.counts[name] = self.counts.get(name, 0) + 1

    def _wrong_tables(self, stream: bytes, header: Any, found: Any, rng: random.Random) -> None:
        """Call ``cut_batch``, which trusts the stored tiling and lengths, with damaged ones."""
        layout = [60, 40, 16, 16, 2, 600]
        lengths = np.array([rng.randrange(300) for _ in range(rng.randrange(40))], np.int64)
        if header:
            layout = [header.width, header.height, *header.mcu_size, header.restart_interval, header.length]
        if found:
            lengths = found[1] - found[0]
        hostile = (0, 1, -1, 8, 65535, 1 << 31, 1 << 32, 1 << 62, -(1 << 63), (1 << 63) - 1, rng.randrange(4000))
        way = rng.randrange(5)
        if way == 0:
            layout[rng.randrange(6)] = rng.choice(hostile)
        elif way == 1:
            layout = [rng.choice(hostile) for _ in layout]
        elif way == 2 and len(lengths) > 1:
            a, b = rng.sample(range(len(lengths)), 2)  # the sum stays
            moved = rng.randrange(lengths[a] + 1)
            lengths[a], lengths[b] = lengths[a] - moved, lengths[b] + moved
        elif way == 3:
            lengths = lengths[: rng.randrange(len(lengths) + 1)]
        size = [max(1, side) for side in layout[:2]]
        left, top = (rng.randrange(side) for side in size)
        box = [left, top, rng.randrange(left + 1, size[0] + 1), rng.randrange(top + 1, size[1] + 1)]
        part = self._parts["cut"]
        guard = self._guard
        jpegs = [guard.stream(stream) if guard else stream] * 2
        tables = [(guard or np).array(lengths.astype(np.uint16))] * 2

        def call() -> Any:
            tiled = part.TiledJpegs.from_streams(jpegs, np.array([layout] * 2), tables)
            return part.cut_batch(tiled, np.array([box] * 2))

        cuts = self._call("cut_batch", call)
        if cuts and not (cuts.offsets[0] == 0 <= cuts.offsets[1] <= cuts.offsets[2] <= len(cuts.data)):
            raise AssertionError("offsets of a batch are out of order")

    def _call(self, name: str, function: Any, *arguments: Any) -> Any:
        from picstore.errors import PicstoreError

        start = time.perf_counter()
        try:
            result = function(*arguments)
            outcome = "clean"
        except PicstoreError as error:
            result, outcome = None, type(error).__name__
        took = time.perf_counter() - start
        self.counts[f"{name}: {outcome}"] = self.counts.get(f"{name}: {outcome}", 0) + 1
        self.slowest = max(self.slowest, (took, name))
        return result

    def _compare(self, before: bytes, after: bytes) -> None:
        """Check that libjpeg-turbo decodes the result, and to the pixels of the damaged stream if it accepts that."""
        parts = self._parts
        parts["markers"].find_restart_segments(after, parts["markers"].parse_header(after))
        shown = simplejpeg.decode_jpeg(after, strict=False)
        try:
            expected = simplejpeg.decode_jpeg(before, strict=False)
        except ValueError:
            self.counts["refused by libjpeg-turbo"] = self.counts.get("refused by libjpeg-turbo", 0) + 1
            return
        if not np.array_equal(shown, expected):
            raise AssertionError("the pixels have changed")


def fuzz(cases: int, *, seed: int, folder: Path | None, guarded: bool) -> dict[str, Any]:
    """Run the cases and return the report."""
    rng = random.Random(seed)
    streams = corpus(folder, rng)
    exercise = Exercise()
    for stream in streams:  # undamaged, and compiles the kernels
        exercise(stream, rng)
    exercise.start(guarded=guarded)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    start = time.perf_counter()
    for number in range(cases):
        rng = random.Random(f"{seed} {number}")  # so that any case can be reproduced alone
        stream = damaged(streams, rng)
        try:
            exercise(stream, rng)
        except Exception:
            saved = Path(tempfile.mkdtemp(prefix="fuzz-jpeg-")) / f"case-{seed}-{number}.jpg"
            saved.write_bytes(stream)
            print(f"case {number} of seed {seed} is saved as {saved}", file=sys.stderr)
            raise
    growth = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10) - before
    report = {
        "cases": cases,
        "seconds": round(time.perf_counter() - start, 1),
        "slowest_call_ms": round(1000 * exercise.slowest[0], 2),
        "slowest": exercise.slowest[1],
        "memory_growth_mib": round(growth / (1 << 20), 1),
        "outcomes": dict(sorted(exercise.counts.items())),
    }
    if exercise.slowest[0] > MAX_SECONDS or growth > MAX_GROWTH:
        raise AssertionError(f"too slow or too much memory: {report}")
    return report


def grid(largest: int = 70) -> dict[str, Any]:
    """Check that markers and cuts leave the pixels as they are, for every sampling and size."""
    parts = modules()
    rng = random.Random(0)
    noise = np.random.default_rng(0).integers(0, 256, (largest, largest, 3), np.uint8)
    images = 0
    for sampling in ("grey", *SAMPLINGS):
        for height in range(1, largest + 1):
            for width in range(1, largest + 1):
                plain = encode(noise[:height, :width], sampling, quality=rng.choice((20, 75, 95)))
                check_size(plain, parts, rng)
                images += 1
    return {"images": images, "differing": 0}


def check_size(plain: bytes, parts: dict[str, Any], rng: random.Random) -> None:
    """Add markers at the default and at a random interval; cut a random box."""
    header = parts["markers"].parse_header(plain)
    expected = simplejpeg.decode_jpeg(plain)
    for interval in (None, rng.randrange(1, header.mcus[0] * header.mcus[1] + 1)):
        added = parts["transcode"].add_restart_markers(plain, interval)
        if not np.array_equal(simplejpeg.decode_jpeg(added), expected):
            raise AssertionError(f"pixels differ: {header}, interval {interval}")
        left, top = rng.randrange(header.width), rng.randrange(header.height)
        width, height = rng.randrange(1, header.width - left + 1), rng.randrange(1, header.height - top + 1)
        jpeg, (dx, dy) = parts["cut"].cut(added, (left, top, width, height))
        shown = simplejpeg.decode_jpeg(jpeg)[dy : dy + height, dx : dx + width]
        if not np.array_equal(shown, expected[top : top + height, left : left + width]):
            raise AssertionError(f"a cut differs: {header}, interval {interval}, box {left, top, width, height}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--photographs", type=Path, help="folder of class folders of JPEGs; small made ones without")
    parser.add_argument("--guarded", action="store_true")
    parser.add_argument("--grid", action="store_true")
    chosen = parser.parse_args()
    if chosen.grid:
        print(json.dumps(grid()))
    else:
        report = fuzz(chosen.cases, seed=chosen.seed, folder=chosen.photographs, guarded=chosen.guarded)
        print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
