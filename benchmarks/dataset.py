"""Data sets that benchmarks read, made once a run by ``picstore convert``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.options import Options
from benchmarks.photographs import copy_images


def write_dataset(options: Options, *arguments: str, copies: int | None = None) -> Path:
    """Convert copies of the photographs; returns the data set, which may be there already."""
    copies = copies or options.copies
    out = options.work / f"dataset-{copies}{''.join(arguments)}"
    images = options.work / f"source-{copies}" / "images"
    if not out.exists():
        images.parent.mkdir(exist_ok=True)
        copy_images(options.photographs, images, copies, options.images or (64 if options.quick else None))
        command = [sys.executable, "-m", "picstore", "convert", images, out, "--workers", str(options.workers)]
        subprocess.run([*command, *arguments], check=True, capture_output=True)
    return out
