"""Data sets that benchmarks read, made once a run by ``picstore convert``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.options import Options
from benchmarks.photographs import copy_images


def write_dataset(options: Options, *arguments: str, name: str = "dataset", copies: int | None = None) -> Path:
    """Convert copies of the photographs; returns the data set, which may be there already."""
    out, images = options.work / name, options.work / f"{name}-source" / "images"
    if not out.exists():
        images.parent.mkdir(exist_ok=True)
        count = options.images or (64 if options.quick else None)
        copy_images(options.photographs, images, options.copies if copies is None else copies, count)
        command = [sys.executable, "-m", "picstore.cli", "convert", images, out, "--workers", str(options.workers)]
        subprocess.run([*command, *arguments], check=True, capture_output=True)
    return out
