"""The forms of a batch in the host's memory: pixels, streams cut for nvJPEG, or tiles for picstore's GPU decoder.

The decoder chooses the form of a loader once. A form decides which kernels fill a batch, in which memory it lies, how
threads divide it, and what makes tensors of it. Neither torch nor numba is imported before a form is used.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from picstore.train.batching.host_batch import BatchFiller
from picstore.train.batching.spec import OutputSpec, PipelineSpec
from picstore.train.transforms.transform_plan import TransformPlan

if TYPE_CHECKING:
    import torch

    from picstore.train.cuda.nvjpeg import Decode
    from picstore.train.pipeline.device_decoding import BatchMaker

Filler: TypeAlias = Callable[..., BatchFiller]


class BatchForm(ABC):
    """A form of host batches, and all that depends on it.

    Attributes:
        decoded: whether host batches hold images, and not streams.
        reduces: whether decoding may divide the sides of an image.
        mapped: whether batches lie in memory that can be page-locked.
        task: fewest and most images of a thread's task, all views counted.
    """

    decoded = False
    reduces = True
    mapped = False
    # Each thread has one task of a batch, so that all end the batch together. A task of 16 images takes 10 ms; of any
    # size, it holds Python's lock for 0.1 ms with cold caches.
    task = 16, 64

    def load_filler(self, spec: PipelineSpec) -> Filler:
        """Compile or load the kernels of a pipeline; return the class that fills its batches."""
        from picstore.kernels.ahead import compile_ahead

        filler, kernels = self._choose_filler([plan for source in spec.sources for plan in source.plans], spec.output)
        compile_ahead(kernels)
        for source in spec.sources:
            source.dataset.containers.use_kernel()
        return filler

    @abstractmethod
    def _choose_filler(self, plans: Sequence[TransformPlan], output: OutputSpec) -> tuple[Filler, list[Any]]:
        """Return the class that fills batches, and the kernels that it calls."""

    @abstractmethod
    def make_maker(
        self, output: OutputSpec, device: torch.device, *, strict: bool, load: Callable[[torch.device], Decode]
    ) -> BatchMaker | None:
        """Return the maker of batches on a device; None on the CPU, where images stay in their memory.

        Args:
            output, device: output of the pipeline, and device with an index.
            strict: whether the first image that does not decode is an error.
            load: loads the decoder of streams for a device.
        """

    def divide(self, count: int, output: OutputSpec, *, threads: int) -> list[range]:
        """Divide the slots of a batch into tasks."""
        views, (least, most) = self._views(output), self.task
        size = max(1, min(max(-(-count * views // threads), least), most) // views)
        return [range(k, min(k + size, count)) for k in range(0, count, size)]

    def _views(self, output: OutputSpec) -> int:
        """Return as how many images of a task a record counts."""
        return output.view_count


class Pixels(BatchForm):
    """Images that CPU cores have made."""

    decoded = True

    def load_filler(self, spec: PipelineSpec) -> Filler:
        """Load the fused kernel too."""
        from picstore.train.cpu.fused import load_kernels

        filler = super().load_filler(spec)
        load_kernels()
        return filler

    def _choose_filler(self, plans: Sequence[TransformPlan], output: OutputSpec) -> tuple[Filler, list[Any]]:
        from picstore.train.cpu.fill_images import ImageFiller
        from picstore.train.cpu.needed_kernels import needed_kernels

        return ImageFiller, needed_kernels(plans, output)

    def make_maker(
        self, output: OutputSpec, device: torch.device, *, strict: bool, load: Callable[[torch.device], Decode]
    ) -> BatchMaker | None:
        """Copy the images to a GPU."""
        from picstore.train.pipeline.device_decoding import CopyPixels

        return CopyPixels(output, device) if device.type == "cuda" else None


class Streams(BatchForm):
    """Streams cut for nvJPEG, which decodes at full size."""

    reduces = False

    def _choose_filler(self, plans: Sequence[TransformPlan], output: OutputSpec) -> tuple[Filler, list[Any]]:
        from picstore.train.cpu.fill_for_gpu import StreamFiller
        from picstore.train.cpu.needed_kernels import stream_kernels

        return StreamFiller, stream_kernels(plans)

    def make_maker(
        self, output: OutputSpec, device: torch.device, *, strict: bool, load: Callable[[torch.device], Decode]
    ) -> BatchMaker:
        """Decode the streams by nvJPEG."""
        from picstore.train.pipeline.device_decoding import DecodeStreams

        return DecodeStreams(output, device, load(device), strict)


class Segments(BatchForm):
    """Rows of tiles whose segments are described to picstore's kernels."""

    mapped = True
    # Tiles are described 200 times as fast as images are made: 0.1 ms of Python would cost as much.
    task = 64, 128

    def _choose_filler(self, plans: Sequence[TransformPlan], output: OutputSpec) -> tuple[Filler, list[Any]]:
        from picstore.train.cpu.fill_for_gpu import SegmentFiller
        from picstore.train.cpu.needed_kernels import segment_kernels

        return SegmentFiller, segment_kernels(plans)

    def make_maker(
        self, output: OutputSpec, device: torch.device, *, strict: bool, load: Callable[[torch.device], Decode]
    ) -> BatchMaker:
        """Decode the segments by picstore's kernels."""
        from picstore.train.pipeline.device_decoding import DecodeTiles

        return DecodeTiles(output, device, strict)

    def _views(self, output: OutputSpec) -> int:
        return 1


# Forms by the name that ``OutputSpec.form`` holds, which other processes are told.
FORMS: dict[str, BatchForm] = {"pixels": Pixels(), "streams": Streams(), "segments": Segments()}
_OF_DECODERS = {"cpu": "pixels", "picstore": "segments"}


def form_of_decoder(decoder: str) -> str:
    """Return the name of the form that a decoder takes."""
    return _OF_DECODERS.get(decoder, "streams")
