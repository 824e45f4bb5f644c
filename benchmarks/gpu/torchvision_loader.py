"""images/s of torchvision's ``decode_jpeg`` and v2 in a DataLoader.

    python -P torchvision_loader.py FOLDER WORKERS COPIES

It prints a line of JSON. An epoch reads each file COPIES times.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from pathlib import Path

import torch
from torchvision.io import ImageReadMode, decode_jpeg, read_file
from torchvision.transforms import v2

BATCH, SECONDS = 256, 4.0


class Photographs(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """Decoded and augmented photographs, with their numbers."""

    def __init__(self, files: list[str]) -> None:
        self._files = files
        self._transform = v2.Compose([v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip()])

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        return self._transform(decode_jpeg(read_file(self._files[number]), mode=ImageReadMode.RGB)), number


def main() -> None:
    """Measure after two batches of each worker."""
    folder, workers, copies = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    files = sorted(str(path) for path in folder.rglob("*") if path.is_file()) * copies
    loader = torch.utils.data.DataLoader(
        Photographs(files), BATCH, shuffle=True, num_workers=workers, drop_last=True, persistent_workers=True
    )
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    for _ in range(2 * workers):
        next(batches)
    images, start = 0, time.perf_counter()
    while time.perf_counter() - start < SECONDS:
        images += len(next(batches)[0])
    rate = images / (time.perf_counter() - start)
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    print(json.dumps({"loop": "torchvision", "name": f"{workers} workers", "images/s": rate, "at": when}), flush=True)


if __name__ == "__main__":
    main()
