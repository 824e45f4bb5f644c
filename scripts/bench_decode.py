"""Compares picstore's decoder with libjpeg-turbo by simplejpeg: microseconds of a core per image, in turn, and ratios.

Photographs as they are and re-encoded (quality 90, 4:2:0), whole and cut for RandomResizedCrop. Whole photographs that
cannot get restart markers are left out.
"""

from __future__ import annotations

import argparse
import io
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import simplejpeg
from PIL import Image

import picstore
from picstore.jpeg.decoder.decode import decode

Box = tuple[int, int, int, int]


def drawn_box(width: int, height: int, rng: random.Random) -> Box:
    """A box as RandomResizedCrop draws it: left, top, width, height."""
    for _ in range(10):
        area = width * height * rng.uniform(0.08, 1.0)
        ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return rng.randint(0, width - w), rng.randint(0, height - h), w, h
    side = min(width, height)
    return (width - side) // 2, (height - side) // 2, side, side


def reencoded(jpeg: bytes) -> bytes:
    out = io.BytesIO()
    Image.open(io.BytesIO(jpeg)).convert("RGB").save(out, "JPEG", quality=90, subsampling="4:2:0")
    return out.getvalue()


def streams(paths: list[Path], *, reencode: bool, cut: bool) -> list[bytes]:
    """Training JPEGs of photographs, or cuts of them."""
    rng = random.Random(0)
    found = []
    for path in paths:
        jpeg = path.read_bytes()
        try:
            jpeg = picstore.add_restart_markers(reencoded(jpeg) if reencode else jpeg)
        except picstore.NotTranscodable:
            continue
        if cut:
            height, width, _, _ = simplejpeg.decode_jpeg_header(jpeg)
            jpeg, _ = picstore.cut(jpeg, drawn_box(width, height, rng))
        found.append(jpeg)
    return found


def microseconds(job: Callable[[bytes], object], jpegs: list[bytes]) -> float:
    """Mean time of a core on each stream."""
    start = time.thread_time()
    for jpeg in jpegs:
        job(jpeg)
    return (time.thread_time() - start) / len(jpegs) * 1e6


def compare(jpegs: list[bytes], rounds: int) -> tuple[float, float]:
    """Median microseconds of both decoders, each with a buffer that it uses again."""
    most = max(math.prod(simplejpeg.decode_jpeg_header(jpeg)[:2]) for jpeg in jpegs)
    buffer = np.empty(3 * most, np.uint8)
    jobs = (lambda jpeg: decode(jpeg, buffer), lambda jpeg: simplejpeg.decode_jpeg(jpeg, buffer=buffer))
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):  # in turn, so that a disturbance meets both
        for job, figures in zip(jobs, times, strict=True):
            figures.append(microseconds(job, jpegs))
    return statistics.median(times[0]), statistics.median(times[1])


def first_call() -> tuple[float, float]:
    """Seconds of a core to the first decoded image in a new process, compiled anew and from numba's cache."""
    program = (
        "import sys, time; start = time.process_time(); from picstore.jpeg.decoder.decode import decode;"
        "decode(sys.stdin.buffer.read()); print(time.process_time() - start)"
    )
    jpeg = simplejpeg.encode_jpeg(np.zeros((16, 16, 3), np.uint8))
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "NUMBA_CACHE_DIR": folder}
        runs = [
            float(
                subprocess.run(
                    [sys.executable, "-c", program], input=jpeg, env=environment, check=True, capture_output=True
                ).stdout
            )
            for _ in range(2)
        ]
    return runs[0], runs[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, help="searched for .jpg and .jpeg files")
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    paths = sorted(path for path in options.folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    if not paths:
        parser.error(f"{options.folder}: no .jpg or .jpeg files in it")
    paths = paths[:: max(1, len(paths) // options.images)][: options.images]
    for reencode in (False, True):
        for cut in (True, False):
            jpegs = streams(paths, reencode=reencode, cut=cut)
            pixels = np.mean([math.prod(simplejpeg.decode_jpeg_header(jpeg)[:2]) for jpeg in jpegs])
            ours, theirs = compare(jpegs, options.rounds)
            name = f"{'re-encoded' if reencode else 'as they are'}, {'cuts' if cut else 'whole'}"
            size = np.mean([len(jpeg) for jpeg in jpegs])
            print(
                f"{name:20} {len(jpegs):4} of {size / 1e3:6.1f} kB, {pixels:9,.0f} pixels:  picstore {ours:7.1f} us   "
                f"simplejpeg {theirs:7.1f} us   {ours / theirs:.2f}"
            )
    compiled, cached = first_call()
    print(f"first image of a process: {compiled:.1f} s of a core compiled, {cached:.2f} s from numba's cache")


if __name__ == "__main__":
    main()
