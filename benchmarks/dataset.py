"""Data sets that benchmarks read, made once a run by ``picstore convert``."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.options import Options
from benchmarks.photographs import copy_images


def write_dataset(options: Options, *arguments: str, copies: int | None = None) -> Path:
    """Convert copies of the photographs; returns the data set, which may be there already, or in part."""
    copies = copies or options.copies
    out = options.work / f"dataset-{copies}{''.join(arguments)}"
    images = options.work / f"source-{copies}" / "images"
    part = out.with_name(f"{out.name}.part")
    if not out.exists():
        shutil.rmtree(part, ignore_errors=True)
        images.parent.mkdir(exist_ok=True)
        copy_images(options.photographs, images, copies, options.images or (64 if options.quick else None))
        command = [sys.executable, "-m", "picstore", "convert", images, part, "--workers", str(options.workers)]
        subprocess.run([*command, *arguments], check=True, capture_output=True)
        part.rename(out)
    return out
