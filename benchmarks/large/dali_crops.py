"""Random resized crops of image files by NVIDIA DALI on CPU cores, timed in an environment that has DALI."""

from __future__ import annotations

import time

from nvidia.dali import fn, pipeline_def, types

RUNS = 3


@pipeline_def
def _pipeline(files: list[str], size: int) -> object:
    jpegs, _ = fn.readers.file(files=files, random_shuffle=True)
    crops = fn.decoders.image_random_crop(jpegs, random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3])
    resized = fn.resize(crops, resize_x=size, resize_y=size)
    return fn.crop_mirror_normalize(resized, dtype=types.UINT8, output_layout="CHW", mean=[0.0], std=[1.0])


def time_crops(files: list[str], size: int, count: int, threads: int) -> tuple[float, float]:
    """Seconds that so many crops of some files take, and CPU seconds: of RUNS batches, since it makes one ahead."""
    pipeline = _pipeline(files, size, batch_size=count, num_threads=threads, device_id=None, prefetch_queue_depth=1)
    pipeline.build()
    pipeline.run()
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(RUNS):
        pipeline.run()
    return (time.perf_counter() - wall) / RUNS, (time.process_time() - cpu) / RUNS
