"""Make tests/fixtures/golden: a tiny data set of format version 1, and what it must be read as.

Run it only when the format changes on purpose, and then review every changed value:

    python scripts/make_golden.py
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np

import picstore
from picstore.prepare.convert.job import DatasetShape

GOLDEN = Path(__file__).parents[1] / "tests" / "fixtures" / "golden"
COUNT = 24
# One extra or two a container, with little in common: a frame that zstd stores as it is, whatever its version.
EXTRAS = {1: {"caption": "Ωmega, 北京"}, 2: [1, 2.5, None, True], 7: "plain text", 20: {"box": [3, 4, 11, 9]}}


def picture(number: int) -> np.ndarray:
    """A small gradient, uint8: every third grey (h, w), the others in colour (h, w, 3)."""
    width, height = 12 + 9 * (number % 4), 10 + 7 * (number % 3)
    y, x = np.mgrid[:height, :width]
    planes = [(7 * x + 31 * number) % 256, (5 * y + 17 * number) % 256, (3 * (x + y) + 59 * number) % 256]
    color = np.stack(planes, axis=-1).astype(np.uint8)
    return np.ascontiguousarray(color[..., 0]) if number % 3 == 0 else color


def main() -> None:
    """Write the data set anew, and ``expected.json`` beside it."""
    root = GOLDEN / "dataset"
    shutil.rmtree(root, ignore_errors=True)
    shape = DatasetShape(streams=2, container_size=4096, file_size=1 << 20, seed=1)
    with picstore.Writer(root, classes=["grey", "colour"], attachments=["mask"], shape=shape) as writer:
        for number in range(COUNT):
            label = -1 if number == 5 else int(number % 3 != 0)
            attachments = {"mask": bytes(range(number, 3 * number))} if number % 4 == 1 else None
            writer.add(picture(number), label, extra=EXTRAS.get(number), attachments=attachments)
    dataset = picstore.Dataset(root)
    records = [
        {
            "id": record.id,
            "label": record.label,
            "jpeg_sha256": hashlib.sha256(record.jpeg).hexdigest(),
            "width": record.width,
            "height": record.height,
            "sampling": record.info.sampling,
            "restart_interval": record.info.restart_interval,
            "header_length": record.info.header_length,
            "segments": record.info.segments.tolist(),
            "extra": record.extra,
            "attachments": {name: bytes(blob).hex() for name, blob in record.attachments.items()},
        }
        for record in dataset
    ]
    text = json.dumps({"uuid": dataset.uuid, "records": records}, indent=1, ensure_ascii=False)
    (GOLDEN / "expected.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
