"""Table of damaged restart segments, which the decoder for GPUs must refuse where the CPU's does."""

from __future__ import annotations

import itertools
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.child import ROOT, FailedError, call
from benchmarks.harness import Row, Table, say
from benchmarks.interpreter import quicken
from benchmarks.options import Options
from benchmarks.torture.damage import (
    KINDS,
    LARGE,
    NOISY,
    QUIET,
    SMALL,
    Damaged,
    Seed,
    damage_tables,
    damaged,
    make_seeds,
    quantized,
    with_entry_points,
)

sys.path[:0] = [str(ROOT / "tests" / "fuzz"), str(ROOT / "tests")]

SEGMENTS = 1_000_000
SEED = 6_001  # of the first chunk; from another one all inputs are new
# Segments of a chunk, whose parts are few enough for 65,536 lanes, and of one of long segments, after each tenth.
_CHUNK, _LONG, _EVERY = 24_000, 2_000, 10
SIZES = {"short": (SMALL, QUIET), "few": (SMALL[::2], QUIET), "long": (LARGE, NOISY)}
_KINDS = (*KINDS, "Huffman tables", "tables and bits", "quantization")
_TABLES, _FACTORS = 12, 1  # changed Huffman tables of each seed, and quantization tables of all, in a chunk


def segments(options: Options) -> Table:
    """Decode damaged segments by the kernels for GPUs, interpreted, and by the CPU's decoder, image by image."""
    wanted, start = options.rounds or (2_000 if options.quick else SEGMENTS), time.perf_counter()
    starts = range(0, wanted, _CHUNK)
    short, long = ("few", 60) if options.quick else ("short", _LONG)
    chunks = [(SEED + k, min(_CHUNK, wanted - start), short) for k, start in enumerate(starts)]
    chunks += [(SEED + k, long, "long") for k in range(0, len(starts), _EVERY)]
    with ThreadPoolExecutor(options.workers) as pool:
        results = list(pool.map(lambda chunk: _run_chunk(*chunk), chunks))
    rows = [_row(name, results) for name in _KINDS]
    total: Row = {name: sum(row[name] for row in rows) for name in rows[0] if name != "damaged"}
    rows.append({"damaged": "all", **total, "seconds": round(time.perf_counter() - start)})
    for problem in itertools.chain.from_iterable(result["problems"] for result in results):
        say(problem)
        rows[-1]["problem"] = f"its check fails: {problem[:200]}"
    about = (
        "small images of all samplings with damaged segments or tables, decoded by the Triton kernels in its "
        "interpreter between guard pages, and by the CPU's decoder, image by image, which finds segments by their "
        "markers and again by their lengths. Flagged must be what the CPU refuses, and no other, but for segments that "
        "end in a fill byte FF or in an EOI, and images whose entry points are not the stream's own, which are the "
        "CPU's to judge. The pixels of all others must be equal"
    )
    return Table(about, rows)


def _row(name: str, results: list[dict[str, Any]]) -> Row:
    columns = ("images", "segments", "refused by headers", "flagged", "of them decoded by the CPU", "equal")
    row: Row = {"damaged": name}
    return row | {column: sum(result["counts"].get(f"{name}: {column}", 0) for result in results) for column in columns}


def _run_chunk(seed: int, count: int, size: str) -> dict[str, Any]:
    """Run a chunk in a process that interprets Triton's kernels, and that a guard page may end."""
    where, began = f"chunk {seed} of {size} segments", time.perf_counter()
    try:
        result = call(
            "benchmarks.torture.segments:run_chunk",
            seed,
            count,
            size,
            environment={"TRITON_INTERPRET": "1"},
            limit=1800,
        )
    except FailedError as error:
        return {"counts": {}, "problems": [f"{where}: {error}"]}
    say(f"{where}: {sum(result['counts'].values()):,} counts, {time.perf_counter() - began:.0f} s")
    return {**result, "problems": [f"{where}: {problem}" for problem in result["problems"]]}


def run_chunk(seed: int, count: int, size: str) -> dict[str, Any]:
    """Make, decode and compare images in this process; returns counts and what went wrong."""
    quicken()
    made = make_images(seed, count, size)
    codes, status, decoded = decode_interpreted(made, flush_left=seed % 2 == 0)
    counts: Counter[str] = Counter()
    problems = []
    for number, image in enumerate(made):
        pixels = decoded.get(number)
        outcome, problem = judge(image, codes[number], status[number], pixels)
        counts.update({f"{image.kind}: {name}": value for name, value in outcome.items()})
        if problem:
            problems.append(f"image {number}, {image.kind}: {problem}")
    return {"counts": counts, "problems": problems[:20]}


def make_images(seed: int, count: int, size: str) -> list[Damaged]:
    """Make images of all kinds in turn, with so many damaged segments; ``size`` is one of ``SIZES``."""
    rng = Random(f"{seed} {size}")
    seeds = make_seeds(*SIZES[size], np.random.default_rng([seed, *size.encode()]))
    factors = [bytes(rng.choices(range(1, 256), k=64)) for _ in range(_FACTORS)]
    tables = [made for each in seeds for _ in range(_TABLES) if (made := damage_tables(each, rng)) is not None]
    images: list[Damaged] = []
    damaged_so_far = 0
    while damaged_so_far < count:
        kind = _KINDS[len(images) % len(_KINDS)]
        chosen: Seed = rng.choice(tables if "tables" in kind else seeds)
        if kind == "quantization":
            chosen = quantized(chosen, rng.choice(factors))
        changes = {"tables and bits": "bits", "quantization": rng.choice(("bits", "bytes", "none"))}.get(kind, kind)
        made = damaged(changes, chosen, rng)
        images.append(with_entry_points(replace(made, kind=kind), chosen, rng))
        damaged_so_far += made.count
    return images


def decode_interpreted(
    images: list[Damaged], *, flush_left: bool
) -> tuple[list[int], list[int], dict[int, np.ndarray[Any, Any]]]:
    """Decode by the kernels for GPUs.

    Returns:
        The code of each image's headers; the status of each; and pixels (h, w, 3), by number, of all that are not
        flagged.
    """
    import torch
    from described import describe

    from benchmarks.torture import stacked
    from picstore.train.cuda import decode_tiles

    jpegs, tilings = [image.jpeg for image in images], np.array([image.tiling for image in images])
    lengths, entries = [image.lengths for image in images], [image.entries for image in images]
    described = describe(jpegs, tilings=tilings, lengths=lengths, entries=entries)
    tables, slots = described.in_block(), np.flatnonzero(described.codes == 0)
    guarded = stacked.GuardedTorch(flush_left=flush_left)
    replaced = {
        name: stacked.Stacked(getattr(stacked, name), guarded) for name in ("make_tables", "inverse_dct", "to_rgb")
    }
    replaced["_upload"] = upload = stacked.GuardedUpload(guarded)
    replaced["decode_segments"] = stacked.Spaced(decode_tiles.decode_segments, guarded)
    with patch.multiple(decode_tiles, torch=guarded, **replaced):
        made, queued = decode_tiles.decode_tiles([tables], device=torch.device("cpu"))
        status = queued.wait()
    if not np.array_equal(upload.data, described.data):
        raise AssertionError("the kernels changed the streams")
    pixels = {slot: made[slot].numpy().transpose(1, 2, 0) for slot in slots.tolist() if not status[slot]}
    return described.codes.tolist(), status.tolist(), pixels


def judge(image: Damaged, code: int, status: int, pixels: np.ndarray[Any, Any] | None) -> tuple[dict[str, int], str]:
    """Compare with the CPU's decoder: counts, and what is wrong."""
    whole, by_lengths = decode_whole(image.jpeg), decode_by_lengths(image)
    counts = {"images": 1, "segments": image.count, "refused by headers": int(code != 0)}
    counts["flagged"] = int(status != 0)
    if code or status:
        # Entry points may be another stream's, a segment may end in fill bytes, and bytes may follow the image's end.
        odd = (
            not image.true_entries
            or any(part.endswith(b"\xff") for part in image.segments)
            or b"\xff\xd9" in image.segments[-1]
        )
        accepted = [name for name, found in (("markers", whole), ("lengths", by_lengths)) if found is not None]
        counts["of them decoded by the CPU"] = int(bool(accepted))
        wrong = f"flagged {code}, {status}, and decoded by {accepted}" if accepted and not odd else ""
        return counts, wrong
    counts["equal"] = int(all(found is not None and np.array_equal(pixels, found) for found in (whole, by_lengths)))
    return counts, "" if counts["equal"] else "not flagged, and refused by the CPU or of other pixels"


def decode_whole(jpeg: bytes) -> np.ndarray[Any, Any] | None:
    """Pixels of the CPU's decoder, which finds segments by their markers; None if it refuses the stream."""
    from picstore.errors import ImageError
    from picstore.jpeg.decoder.decode_baseline import decode

    try:
        return decode(jpeg)
    except ImageError:
        return None


def decode_by_lengths(image: Damaged) -> np.ndarray[Any, Any] | None:
    """Pixels of the CPU's decoder of boxes, which finds segments by their lengths; None if it refuses the stream."""
    from picstore.jpeg.cut import TiledJpegs
    from picstore.jpeg.decoder.box import decode_box

    tiled = TiledJpegs.from_streams([image.jpeg], np.array([image.tiling]), [image.lengths])
    found = decode_box(tiled, np.array([0, 0, *image.tiling[:2]]))
    return None if found is None else found[0]
