"""NVIDIA DALI on CPU cores: the image files, its fused random-crop decoder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.plugin.base_iterator import LastBatchPolicy
from nvidia.dali.plugin.pytorch import DALIClassificationIterator

from contenders import Job

PACKAGES = ("nvidia-dali-cuda130", "torch")
NOTE = "the image files; decoders.image_random_crop on CPU threads, as in its ResNet-50 example"


def prepare(job: Job) -> None:
    """Nothing: it reads the image files."""


@pipeline_def
def _pipeline(job: Job) -> tuple[object, object]:
    # A shuffle of the whole folder. With random_shuffle's buffer an epoch takes images of the next one.
    jpegs, labels = fn.readers.file(
        name="images", file_root=str(job.images), shuffle_after_epoch=True, pad_last_batch=True
    )
    crops = fn.decoders.image_random_crop(jpegs, random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3])
    resized = fn.resize(crops, resize_x=job.size, resize_y=job.size)
    flipped = fn.crop_mirror_normalize(
        resized,
        dtype=types.UINT8,
        output_layout="CHW",
        mean=[0.0],
        std=[1.0],
        mirror=fn.random.coin_flip(),
    )
    return flipped, labels


def batches(job: Job) -> Iterable:
    """Its iterator for PyTorch, with labels as the other contenders give them."""
    pipeline = _pipeline(job, batch_size=job.batch, num_threads=job.workers, device_id=None, seed=job.seed)
    return _Epochs(
        DALIClassificationIterator(
            pipeline, reader_name="images", last_batch_policy=LastBatchPolicy.PARTIAL, auto_reset=True
        )
    )


class _Epochs:
    def __init__(self, iterator: DALIClassificationIterator) -> None:
        self._iterator = iterator

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for (batch,) in self._iterator:
            yield batch["data"], batch["label"].squeeze(-1).long()
