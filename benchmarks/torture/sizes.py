"""Extreme sizes: one image of 500 megapixels, and a million images of a few pixels."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import picstore
from benchmarks.child import MissingError, call
from benchmarks.harness import Row, Table, say
from benchmarks.options import Options
from picstore.errors import PicstoreError

SIDES = 25_000, 20_000  # pixels: 500 megapixels
TINY = 1_000_000
_PER_TAR = 10_000
_MAX_PIXELS = 600_000_000


def sizes(options: Options) -> Table:
    """Convert, verify and read images of extreme sizes by the command line."""
    width, height = (2500, 2000) if options.quick else SIDES
    count = options.images or (2000 if options.quick else TINY)
    about = (
        f"a mosaic of {width:,} × {height:,} pixels of noise, edges and gradients as a JPEG (baseline, progressive), a "
        f"PNG and a TIFF; {count:,} JPEGs of 1 × 1 to 16 × 16 pixels in tars. Each is converted by the command with "
        f"{options.workers} processes and --max-pixels {_MAX_PIXELS:,}, verified with --decode, and read: a crop of "
        "512 × 512 pixels from the middle, an epoch. Without --max-pixels an image of 500 megapixels must fail with "
        "that reason."
    )
    work = options.work / "sizes"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    rows = [_large(work, name, (width, height)) for name in _formats()]
    rows.append(_tiny(work, count, options))
    return Table(about, rows)


def _formats() -> dict[str, Callable[[Any, str], None]]:
    try:
        import pyvips  # noqa: F401
    except ImportError as error:
        raise MissingError("pyvips, which writes large images by strips") from error
    return {
        "mosaic.jpg": lambda image, path: image.jpegsave(path, Q=90),
        "progressive.jpg": lambda image, path: image.jpegsave(path, Q=90, interlace=True),
        "mosaic.png": lambda image, path: image.pngsave(path, compression=1),
        "mosaic.tif": lambda image, path: image.tiffsave(path, compression="jpeg", Q=90, tile=True),
    }


def _mosaic(width: int, height: int) -> Any:
    """A picture with content everywhere: a photograph-like tile, brighter and darker from place to place."""
    import pyvips

    rng = np.random.default_rng(0)
    coarse = Image.fromarray(rng.integers(0, 256, (40, 50, 3), dtype=np.uint8)).resize(
        (500, 400), Image.Resampling.BICUBIC
    )
    tile = np.asarray(coarse, np.int16) + rng.integers(-12, 13, (400, 500, 3), dtype=np.int16)
    tile[::50, :] = 255
    image = pyvips.Image.new_from_array(np.clip(tile, 0, 255).astype(np.uint8))
    across, down = -(-width // 500), -(-height // 400)
    light = (pyvips.Image.xyz(width, height) / [width, height] * 60).bandmean() - 30
    return (image.replicate(across, down).crop(0, 0, width, height) + light).cast("uchar").copy(interpretation="srgb")


def make_mosaic(path: str, width: int, height: int) -> None:
    """Write the picture in the format of the path's name."""
    _formats()[Path(path).name](_mosaic(width, height), path)


def _large(work: Path, name: str, sides: tuple[int, int]) -> Row:
    source, target = work / "source", work / "set"
    for folder in (source, target):
        shutil.rmtree(folder, ignore_errors=True)
    source.mkdir()
    # In a process of its own: a command's peak counts the memory of what starts it.
    call("benchmarks.torture.sizes:make_mosaic", str(source / name), *sides)
    problems: list[str] = []
    if sides[0] * sides[1] > 1 << 28:
        refused = _run("convert", source, target, "--max-errors", 1)
        if "max-pixels" not in (ledger := _ledger(target)):
            problems.append(f"without --max-pixels: {refused} {ledger[:200]}")
        shutil.rmtree(target, ignore_errors=True)
    converted = _run("convert", source, target, "--max-pixels", _MAX_PIXELS, "--image-timeout", 0)
    verified = _run("verify", target, "--decode")
    problems += [each["problem"] for each in (converted, verified) if each["problem"]]
    start = time.perf_counter()
    try:
        (record,) = picstore.Dataset(target)
        pixels = picstore.decode(record.jpeg, box=(sides[0] // 2, sides[1] // 2, 512, 512))
        if pixels.shape != (512, 512, 3) or pixels.std() < 5:
            problems.append("the crop differs from the picture's")
    except (PicstoreError, ValueError) as error:
        problems.append(f"reading: {error}")
    read = f"{time.perf_counter() - start:.2f}"
    size = (source / name).stat().st_size
    return _row(name, 1, size, converted, verified, read, problems)


def _tiny(work: Path, count: int, options: Options) -> Row:
    source, target = work / "tars", work / "tiny-set"
    source.mkdir()
    rng = np.random.default_rng(0)
    made = []
    for _ in range(1000):
        height, width = rng.integers(1, 17, 2)
        out = io.BytesIO()
        Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(out, "JPEG", quality=90)
        made.append(out.getvalue())
    for number in range(-(-count // _PER_TAR)):
        with tarfile.open(source / f"{number:04}.tar", "w") as tar:
            for k in range(number * _PER_TAR, min(count, (number + 1) * _PER_TAR)):
                for suffix, data in (("jpg", made[k % 1000]), ("cls", str(k % 10).encode())):
                    entry = tarfile.TarInfo(f"{k:07}.{suffix}")
                    entry.size = len(data)
                    tar.addfile(entry, io.BytesIO(data))
    size = sum(path.stat().st_size for path in source.iterdir())
    converted = _run("convert", source, target, "--workers", options.workers)
    verified = _run("verify", target, "--decode", "--workers", options.workers)
    problems = [each["problem"] for each in (converted, verified) if each["problem"]]
    start = time.perf_counter()
    loader = picstore.Loader(target, batch_size=256, drop_last=False, transform=[picstore.Resize((8, 8))])
    ids = np.concatenate([batch.ids.numpy() for batch in loader])
    loader.close()
    if len(ids) != count or len(np.unique(ids)) != count:
        problems.append(f"an epoch has {len(ids)} images, {len(np.unique(ids))} different ones, of {count}")
    return _row(f"{count:,} tiny", count, size, converted, verified, f"{time.perf_counter() - start:.1f}", problems)


def _row(name: str, count: int, size: int, converted: Row, verified: Row, read: str, problems: list[str]) -> Row:
    row: Row = {"": name, "images": count, "MB": round(size / 1e6, 1)}
    row |= {"convert, s": converted["seconds"], "peak MiB": converted["peak"]}
    row |= {"verify, s": verified["seconds"], "its peak MiB": verified["peak"], "read, s": read, "wrong": len(problems)}
    say(f"{name}: {row}")
    return row | ({"problem": f"failed: {problems[0][:300]}"} if problems else {})


_MEASURED = """
import json, resource, sys
from picstore.cli import main
code = 0
try:
    main()
except SystemExit as done:
    code = done.code or 0
from picstore.prepare.engine.worker_processes import stop_fork_server
stop_fork_server()
peaks = [resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
print("measured", json.dumps([code, max(peaks) // 1024]), file=sys.stderr)
"""


def _run(*arguments: object) -> Row:
    """Run a command: seconds, the peak of its largest process in MiB, and the problem if it failed."""
    start = time.perf_counter()
    command = [sys.executable, "-c", _MEASURED, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = round(time.perf_counter() - start, 1)
    _, _, measured = done.stderr.rpartition("measured ")
    code, peak = json.loads(measured) if measured.startswith("[") else (done.returncode, 0)
    return {"seconds": seconds, "peak": peak, "problem": f"{arguments[0]}: {done.stderr[-300:]}" if code else ""}


def _ledger(target: Path) -> str:
    found = list(target.rglob("ledger*.jsonl")) + list(target.rglob("*.jsonl"))
    return found[0].read_text() if found else ""
