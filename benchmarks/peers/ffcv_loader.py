"""FFCV: the source's JPEG bytes stored as they are, and its own writer."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from ffcv.fields import IntField, RGBImageField
from ffcv.fields.decoders import IntDecoder
from ffcv.fields.rgb_image import IMAGE_MODES, RandomResizedCropRGBImageDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import RandomHorizontalFlip, Squeeze, ToTensor, ToTorchImage
from ffcv.writer import DatasetWriter
from PIL import Image

from benchmarks.peers import Contender, Job
from benchmarks.peers.image_files import QUALITY, read_rgb, shrink

PACKAGES = ("ffcv", "numba", "numpy", "torch", "opencv-python")
LONGER = 341  # pixels: of most photographs the shorter side becomes 256


class StoredJpeg(RGBImageField):
    """FFCV's image field in its 'jpg' mode, given the bytes of a JPEG instead of pixels to encode."""

    def encode(self, destination: Any, image: bytes, malloc: Callable[[int], Any]) -> None:
        """Store the bytes of one image (called by FFCV's writer)."""
        destination["mode"] = IMAGE_MODES["jpg"]
        with Image.open(io.BytesIO(image)) as header:
            destination["width"], destination["height"] = header.size
        destination["data_ptr"], storage = malloc(len(image))
        storage[:] = np.frombuffer(image, np.uint8)


class Source:
    """Pairs of ``read(path)`` and the label, for FFCV's writer."""

    def __init__(self, job: Job, read: Callable[[Path], Any]) -> None:
        self._samples = job.samples()
        self._read = read

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        path, label = self._samples[index]
        return self._read(path), label


def _pixels(path: Path) -> np.ndarray:
    return np.asarray(read_rgb(path))


def _small_pixels(path: Path) -> np.ndarray:
    return np.asarray(shrink(path))


def _writer(read: Callable[[Path], Any], field: type[RGBImageField] = RGBImageField, **options: Any) -> Any:
    def write(job: Job) -> None:
        fields = {"image": field(**options), "label": IntField()}
        writer = DatasetWriter(str(job.data / "images.beton"), fields, num_workers=job.workers)
        writer.from_indexed_dataset(Source(job, read))

    return write


def _batches(job: Job) -> Iterable[Any]:
    """FFCV's loader as its ImageNet example sets it up, for data that fits in memory."""
    crop = RandomResizedCropRGBImageDecoder((job.size, job.size))
    return Loader(
        str(job.data / "images.beton"),
        batch_size=job.batch,
        num_workers=job.workers,
        os_cache=True,
        order=OrderOption.RANDOM,
        seed=job.seed,
        drop_last=False,
        custom_fields={"image": RGBImageField},
        pipelines={
            "image": [crop, RandomHorizontalFlip(), ToTensor(), ToTorchImage()],
            "label": [IntDecoder(), ToTensor(), Squeeze()],
        },
    )


CONTENDERS = {
    "ffcv": Contender(
        "own format, memory-mapped; its writer would encode again, so a field of ours stores the source's bytes",
        _writer(Path.read_bytes, StoredJpeg),
        _batches,
    ),
    "ffcv-q90": Contender(
        "as ffcv, written by FFCV's own 'jpg' mode: encoded again at quality 90, other bytes and pixels",
        _writer(_pixels, write_mode="jpg"),
        _batches,
    ),
    "ffcv-shorter": Contender(
        "Pillow decodes and resizes (Lanczos), FFCV's 'jpg' mode encodes with OpenCV",
        _writer(_small_pixels, write_mode="jpg", jpeg_quality=QUALITY),
    ),
    "ffcv-longer": Contender(
        "Pillow decodes, FFCV resizes (OpenCV's area filter, cheaper than Lanczos) and encodes with OpenCV",
        _writer(_pixels, write_mode="jpg", max_resolution=LONGER, jpeg_quality=QUALITY),
    ),
}
