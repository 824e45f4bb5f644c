"""Quickstart: convert a folder of images, shuffle, verify, and load augmented batches. Run by ./scripts/quickstart."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from importlib.resources import files
from pathlib import Path

import numpy as np
from PIL import Image

import picstore

WORK = Path("quickstart")
# Photographs in scikit-image's wheel, by class.
PHOTOGRAPHS = {
    "people": ("astronaut.png", "camera.png"),
    "animals_and_food": ("chelsea.png", "coffee.png"),
    "machines": ("motorcycle_left.png", "motorcycle_right.png", "rocket.jpg"),
    "sky": ("hubble_deep_field.jpg", "moon.png"),
    "textures": ("brick.png", "grass.png", "gravel.png"),
}
NEXT = """
You can run these commands on pictures of your own, in one sub-folder for each class:

  source .venv/bin/activate               # has the command picstore
  picstore convert PICTURES train         # then shuffle train, as above
  picstore view {shuffled}   # the images, what transforms make of them, the batches of a training

Read docs/tutorial.md next: from your pictures to a training that resumes.
"""
FORMATS = {"jpg": "JPEG", "png": "PNG", "webp": "WEBP", "tif": "TIFF", "bmp": "BMP", "gif": "GIF"}


def make_folder(folder: Path) -> None:
    """Write each photograph and two crops of it in each of FORMATS."""
    for name, photographs in PHOTOGRAPHS.items():
        (folder / name).mkdir(parents=True)
        for photograph in photographs:
            with Image.open(str(files("skimage.data") / photograph)) as opened:
                whole = opened.convert("RGB") if opened.mode not in ("L", "RGB") else opened.copy()
            width, height = whole.size
            crops = {
                "whole": whole,
                "left": whole.crop((0, 0, 2 * width // 3, height)),
                "lower": whole.crop((0, height // 3, width, height)),
            }
            for crop, image in crops.items():
                for suffix, kind in FORMATS.items():
                    image.save(folder / name / f"{Path(photograph).stem}-{crop}.{suffix}", kind)


def run(*arguments: str) -> None:
    """Print a picstore command and run it."""
    print(f"\n$ picstore {' '.join(arguments)}", flush=True)
    status = subprocess.run([Path(sys.executable).parent / "picstore", *arguments], check=False).returncode
    if status == 3:
        print("(some inputs could not be read: the ledger has the reasons)", flush=True)
    elif status:
        sys.exit(status)


def contact_sheet(batch: picstore.Batch, path: Path, *, columns: int = 8) -> None:
    """Write the images of a batch to one PNG, side by side."""
    images = batch.images.permute(0, 2, 3, 1).numpy()[: 4 * columns]
    rows = -(-len(images) // columns)
    _, height, width, _ = images.shape
    sheet = np.zeros((rows * height, columns * width, 3), dtype=np.uint8)
    for k, image in enumerate(images):
        row, column = divmod(k, columns)
        sheet[row * height : (row + 1) * height, column * width : (column + 1) * width] = image
    Image.fromarray(sheet).save(path)


def main() -> None:
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir()
    if len(sys.argv) > 1:
        source = Path(sys.argv[1])
    else:
        source = WORK / "photographs"
        make_folder(source)
    train, shuffled = WORK / "train", WORK / "train-shuffled"
    run("warm")
    run("convert", str(source), str(train))
    run("shuffle", str(train), str(shuffled))
    run("verify", str(shuffled))
    run("info", str(shuffled))

    batch_size = max(1, min(64, len(picstore.Dataset(shuffled)) // 2))
    loader = picstore.Loader(
        shuffled,
        batch_size=batch_size,
        transform=[picstore.RandomResizedCrop(224), picstore.RandomHorizontalFlip()],
    )
    images = len(picstore.Dataset(shuffled))
    whole = images // batch_size * batch_size
    print(f"\nfor images, labels in picstore.Loader({str(shuffled)!r}, batch_size={batch_size}, ...):")
    batch = None
    begun = start = time.perf_counter()
    for epoch in range(3):
        count, timed = 0, 0
        for batch in loader:
            count += len(batch.labels)
            if epoch == 0 and count == len(batch.labels):  # The rate is without the start of the loader's process.
                start = time.perf_counter()
                print(
                    f"  the first batch took {start - begun:.1f} s, of which most is the start of the loader's process"
                )
            else:
                timed += len(batch.labels)
        now = time.perf_counter()
        print(f"  epoch {epoch}: {count} images" + (f", {timed / (now - start):,.0f} images/s" if timed else ""))
        start = now
    if whole < images:
        rest = f"{images - whole} of {images} images do not fill a batch of {batch_size}"
        print(f"  {rest}; each epoch leaves out others, and drop_last=False yields them too")
    if batch is not None:
        contact_sheet(batch, WORK / "batch.png")
        print(f"\nOne augmented batch: {WORK / 'batch.png'}")
    print(NEXT.format(shuffled=shuffled))


if __name__ == "__main__":
    main()
