"""NVIDIA DALI on CPU cores: the image files, its fused random-crop decoder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.plugin.base_iterator import LastBatchPolicy
from nvidia.dali.plugin.pytorch import DALIClassificationIterator

from benchmarks.peers import Contender, Job, nothing

PACKAGES = ("nvidia-dali-cuda130", "torch")


@pipeline_def
def _pipeline(job: Job) -> tuple[object, object]:
    # A shuffle of the whole folder. With random_shuffle's buffer an epoch takes images of the next one.
    files = {"file_root": str(job.images), "shuffle_after_epoch": True, "pad_last_batch": True}
    jpegs, labels = fn.readers.file(name="images", **files)
    crops = fn.decoders.image_random_crop(jpegs, random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3])
    resized = fn.resize(crops, resize_x=job.size, resize_y=job.size)
    output = {"dtype": types.UINT8, "output_layout": "CHW", "mean": [0.0], "std": [1.0]}
    return fn.crop_mirror_normalize(resized, mirror=fn.random.coin_flip(), **output), labels


class _Epochs:
    """DALI's iterator for PyTorch, with labels as the other contenders give them."""

    def __init__(self, job: Job) -> None:
        pipeline = _pipeline(job, batch_size=job.batch, num_threads=job.workers, device_id=None, seed=job.seed)
        options = {"last_batch_policy": LastBatchPolicy.PARTIAL, "auto_reset": True}
        self._iterator = DALIClassificationIterator(pipeline, reader_name="images", **options)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for (batch,) in self._iterator:
            yield batch["data"], batch["label"].squeeze(-1).long()


def _batches(job: Job) -> Iterable[Any]:
    return _Epochs(job)


NOTE = "the image files; decoders.image_random_crop on CPU threads, as in its ResNet-50 example"
CONTENDERS = {"dali": Contender(NOTE, nothing, _batches)}
