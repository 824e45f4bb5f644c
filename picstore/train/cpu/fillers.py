"""The classes that fill batches, with the kernels that they call: all of a pipeline that needs numba."""

from __future__ import annotations

from picstore.train.batching.spec import PipelineSpec
from picstore.train.cpu.fill_images import ImageFiller
from picstore.train.cpu.fill_segments import SegmentFiller
from picstore.train.cpu.fill_streams import StreamFiller
from picstore.train.cpu.fused import load_kernels
from picstore.train.cpu.needed_kernels import compile_needed


def load_filler(spec: PipelineSpec) -> type[ImageFiller | StreamFiller | SegmentFiller]:
    """Compile or load the kernels of a pipeline; returns the class that fills its batches."""
    compile_needed(spec)
    if spec.output.form == "streams":
        return StreamFiller
    if spec.output.form == "segments":
        return SegmentFiller
    load_kernels()
    return ImageFiller
