"""LitData's optimize of images that Pillow makes smaller; only writes, for ``bench_convert.py``."""

from __future__ import annotations

import os
from pathlib import Path

from litdata import optimize

from contenders import Job, samples
from contenders.resized import jpeg

PACKAGES = ("litdata", "pillow")
NOTE = "Pillow decodes, resizes (Lanczos) and encodes, in the workers of optimize"


def _make(sample: tuple[str, int]) -> dict[str, object]:
    path, label = sample
    return {"image": jpeg(Path(path)), "label": label}


def prepare(job: Job) -> None:
    """Write chunks of 64 MB, the size of its examples."""
    os.environ["DATA_OPTIMIZER_CACHE_FOLDER"] = str(job.data.with_name("litdata-cache"))
    inputs = [(str(path), label) for path, label in samples(job)]
    optimize(_make, inputs, str(job.data), chunk_bytes="64MB", num_workers=job.workers, reorder_files=False)
