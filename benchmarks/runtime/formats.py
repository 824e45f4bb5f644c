"""Image formats that convert reads here: one file of each format that ImageMagick or Pillow writes.

docs/formats.md tells of the same table with the files of other projects' test suites.
"""

from __future__ import annotations

import io
import json
import re
import subprocess
import warnings
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.command import command_seconds
from benchmarks.harness import Row, Table
from benchmarks.options import Options

FORMAT = re.compile(r"\s*(\S+?)\*?\s+(\S+)\s+([r-])([w-])[+-]\s+(.*)")
# Displays, or formats that are folders of files.
NOT_WRITTEN = frozenset({"X", "SHOW", "WIN", "HTML", "HTM", "SHTML", "CLIP", "MASK", "THUMBNAIL", "PREVIEW"})


def formats(options: Options) -> Table:
    """Outcome of converting one file of each format."""
    folder, out = options.work / "formats", options.work / "formats-dataset"
    folder.mkdir()
    names = sorted([*_write_by_imagemagick(folder, options), *_write_by_pillow(folder)])
    listing = folder / "all.txt"
    listing.write_text("".join(f"{name} 0\n" for name in names))
    command_seconds(("convert", listing, out, "--max-errors", "100%", "--image-timeout", "60"))
    rows: list[Row] = []
    for line in map(json.loads, (out / "ledger.jsonl").read_text().splitlines()):
        writer, _, name = Path(line["input"]).stem.partition("-")
        rows.append({"format": name, "written by": writer, "outcome": line["status"], "reason": line["reason"]})
    read = sum(row["outcome"] != "failed" for row in rows)
    return Table(f"{read} of {len(rows)} formats are read", rows)


def _picture() -> Image.Image:
    """Smooth colors, and a gray wedge below."""
    small = np.random.default_rng(0).integers(0, 256, (3, 4, 3), dtype=np.uint8)
    image = Image.fromarray(small).resize((96, 64), Image.Resampling.BICUBIC)
    image.paste(Image.linear_gradient("L").rotate(90).resize((96, 16)), (0, 48))
    return image


def _write_by_imagemagick(folder: Path, options: Options) -> list[str]:
    source = folder.with_name("picture.png")
    _picture().save(source)
    try:
        text = subprocess.run(["identify", "-list", "format"], capture_output=True, text=True, check=True).stdout
    except FileNotFoundError:
        return []
    found = [match.groups() for line in text.splitlines() if (match := FORMAT.fullmatch(line))]
    names = [name for name, _, _, writes, _ in found if writes == "w" and name not in NOT_WRITTEN]
    for name in names[: 5 if options.quick else None]:
        path = folder / f"ImageMagick-{name}.{name.lower()}"
        subprocess.run(["convert", source, f"{name}:{path}"], capture_output=True, timeout=60, check=False)
    return [path.name for path in folder.glob("ImageMagick-*") if path.stat().st_size]


def _write_by_pillow(folder: Path) -> list[str]:
    Image.init()
    written = []
    for name in sorted(Image.SAVE):
        extension = next((key for key, value in Image.EXTENSION.items() if value == name), "." + name.lower())
        for mode in ("RGB", "P", "L", "1", "F"):
            out = io.BytesIO()
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    _picture().convert(mode).save(out, name)
            except Exception:  # noqa: S112 - any type of error says that the format lacks this mode
                continue
            path = folder / f"Pillow-{name}{extension}"
            path.write_bytes(out.getvalue())
            written.append(path.name)
            break
    return written
