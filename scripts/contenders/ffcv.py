"""FFCV with the source's JPEG bytes stored as they are, so that it decodes the same data as everyone else."""

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

from contenders import Job, samples

PACKAGES = ("ffcv", "numba", "numpy", "torch", "opencv-python")
NOTE = "own format; its writer would encode again, so a field of ours stores the source's bytes; memory-mapped"


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
    """What FFCV's writer reads: pairs of ``read(path)`` and the label."""

    def __init__(self, job: Job, read: Callable[[Path], Any]) -> None:
        self._samples = samples(job)
        self._read = read

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        path, label = self._samples[index]
        return self._read(path), label


def write(job: Job, field: RGBImageField, read: Callable[[Path], Any]) -> None:
    """Write the one file of an FFCV data set."""
    fields = {"image": field, "label": IntField()}
    writer = DatasetWriter(str(job.data / "images.beton"), fields, num_workers=job.workers)
    writer.from_indexed_dataset(Source(job, read))


def prepare(job: Job) -> None:
    """Store every file's bytes."""
    write(job, StoredJpeg(), Path.read_bytes)


def batches(job: Job) -> Iterable:
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
