"""The forms of a batch in the host's memory: pixels, streams cut for nvJPEG, or tiles for picstore's GPU decoder.

The loader's decoder determines the form, and the form determines the kernels that fill a batch, the batch's memory, its
division among threads, and its conversion to tensors. Neither torch nor numba is imported before a form is used.
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
    """Form of the images of a batch in CPU memory, such as pixels or JPEG streams.

    Attributes:
        reduces: whether the decoder can downscale an image while it decodes.
        mapped: whether batches lie in memory-mapped blocks, which can be page-locked.
        task: minimum and maximum number of images that a decoding thread takes at a time.
    """

    decoded = False
    reduces = True
    mapped = False
    # A thread's share of a batch is a single task if it has 16 to 64 images; all threads then finish together. Smaller
    # tasks would cost more: a task of any size holds the GIL for 0.1 ms, and a task of 16 images takes 10 ms.
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
        """Return the class that fills batches, and the kernels that this class calls, which are compiled in advance."""

    @abstractmethod
    def make_maker(
        self, output: OutputSpec, device: torch.device, *, strict: bool, load: Callable[[torch.device], Decode]
    ) -> BatchMaker | None:
        """Return the object that makes batches on a device, or None for decoded images that stay on the CPU.

        Args:
            device: torch device with an index.
            strict: whether an image that does not decode raises an error; otherwise another image replaces it.
            load: function that returns a device's decoder of JPEG streams.
        """

    def divide(self, count: int, output: OutputSpec, *, threads: int) -> list[range]:
        """Divide a batch's slots (places of images) among the threads' tasks; return each task's range of slots."""
        views, (least, most) = self._views(output), self.task
        size = max(1, min(max(-(-count * views // threads), least), most) // views)
        return [range(k, min(k + size, count)) for k in range(0, count, size)]

    def _views(self, output: OutputSpec) -> int:
        """Return how many images a record counts as in the size of a task; by default, its number of views."""
        return output.view_count


class Pixels(BatchForm):
    """Form of batches whose images the CPU has decoded and augmented."""

    decoded = True

    def load_filler(self, spec: PipelineSpec) -> Filler:
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
        from picstore.train.pipeline.device_decoding import CopyPixels

        return CopyPixels(output, device) if device.type == "cuda" else None


class Streams(BatchForm):
    """Form of batches with JPEG streams for nvJPEG, which cannot downscale.

    Each image's stream is cut to the tiles (rectangles of the JPEG) that the image's views show.
    """

    reduces = False

    def _choose_filler(self, plans: Sequence[TransformPlan], output: OutputSpec) -> tuple[Filler, list[Any]]:
        from picstore.train.cpu.fill_for_gpu import StreamFiller
        from picstore.train.cpu.needed_kernels import stream_kernels

        return StreamFiller, stream_kernels(plans)

    def make_maker(
        self, output: OutputSpec, device: torch.device, *, strict: bool, load: Callable[[torch.device], Decode]
    ) -> BatchMaker:
        from picstore.train.pipeline.device_decoding import DecodeStreams

        return DecodeStreams(output, device, load(device), strict)


class Segments(BatchForm):
    """Form of batches for picstore's GPU kernels: rows of JPEG tiles, and descriptions of their restart segments."""

    mapped = True
    # Tasks have more images than those that decode on the CPU, because describing an image's tiles takes 1/200 of the
    # time that decoding and augmenting the image takes.
    task = 64, 128

    def _choose_filler(self, plans: Sequence[TransformPlan], output: OutputSpec) -> tuple[Filler, list[Any]]:
        from picstore.train.cpu.fill_for_gpu import SegmentFiller
        from picstore.train.cpu.needed_kernels import segment_kernels

        return SegmentFiller, segment_kernels(plans)

    def make_maker(
        self, output: OutputSpec, device: torch.device, *, strict: bool, load: Callable[[torch.device], Decode]
    ) -> BatchMaker:
        from picstore.train.pipeline.device_decoding import DecodeTiles

        return DecodeTiles(output, device, strict)

    def _views(self, output: OutputSpec) -> int:
        return 1


# Forms by name. ``OutputSpec.form`` is the name, because specifications are sent to other processes.
FORMS: dict[str, BatchForm] = {"pixels": Pixels(), "streams": Streams(), "segments": Segments()}
_OF_DECODERS = {"cpu": "pixels", "picstore": "segments"}


def form_of_decoder(decoder: str) -> str:
    """Return the key in ``FORMS`` of the form of batch that a decoder takes."""
    return _OF_DECODERS.get(decoder, "streams")
