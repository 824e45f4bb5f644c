"""The fused kernel: decodes and resamples a chunk of upright images in one call, without Python in between.

With a call for each stage of each image, Python took 70 of 670 µs, in one thread at a time. Rows of an image with one
view are decoded as the resampling needs them, so that they stay in the cache. Slanted images, damaged images, and
streams that picstore's decoder refuses go through the stages one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from picstore.arrays import I64, Bools
from picstore.jpeg.decoder.box import NO_GRID, open_box
from picstore.jpeg.decoder.decode_baseline import BUFFER_TOO_SMALL, FRAME, WORKSPACE, decode_rows, open_stream
from picstore.jpeg.decoder.parse import HEIGHT, WIDTH
from picstore.jpeg.decoder.scan import MOST_SURPLUS_ROWS, OUT, RING
from picstore.kernels.filter_weights import most_taps
from picstore.kernels.filters import MAX_COORDINATE
from picstore.kernels.jit import address_of, caller, compile_kernel, device_function, kernel
from picstore.kernels.resample import resample_box
from picstore.kernels.strided import StridedImage
from picstore.train.batching.gather import BatchRecords
from picstore.train.batching.views_reach import boxes_to_cut
from picstore.train.buffers import PIXELS
from picstore.train.transforms.geometry import Geometry
from picstore.train.transforms.padding_and_edges import CONSTANT


def can_fuse(geometry: Geometry) -> Bools:
    """Return which images the fused kernel can resample, bool (n,); tests replace this function to avoid the kernel."""
    plain: Bools = geometry.upright & ~geometry.shows_edges & (geometry.border == CONSTANT)
    return plain & (geometry.size > 0).all(axis=1)


class FusedKernel:
    """Kernel that decodes and resamples the images of a batch.

    Args:
        geometries: geometries of the groups of views.
        reach: int64 (n, 4), left, top, right and bottom of the box that all views of a slot together reach.
        factors: int64 (n,), factors by which decoding divides the sides.
        foreign: bool (n,), True for images that are not upright JPEGs, which the kernel leaves out.

    Attributes:
        done: bool (n,), whether ``run`` has made all views of an image.
    """

    def __init__(self, geometries: Sequence[Geometry], reach: I64, factors: I64, foreign: Bools) -> None:
        n = len(factors)
        views = [can_fuse(each).reshape(-1, n) for each in geometries]
        self._chosen: Bools = np.logical_and.reduce(np.concatenate(views)) & ~foreign
        self.done: Bools = np.zeros(n, dtype=np.bool_)
        self._factors = factors
        self._cuts = np.ascontiguousarray(boxes_to_cut(reach, geometries[0].source_size[:n]))
        dtypes = {"grid_box": "f8", "clip": "i8", "flip": "?", "interpolation": "i8", "antialias": "?", "fill": "i4"}
        self._views: tuple[Any, ...] = tuple(
            np.ascontiguousarray(np.concatenate([getattr(each, name) for each in geometries]), dtype)
            for name, dtype in dtypes.items()
        )

    def run(self, records: BatchRecords, slots: range, targets: StridedImage) -> bool:
        """Decode and resample the images of ``slots``, without the GIL; return whether all of these images are done.

        ``targets``, int64 (views · len(slots), 7), holds ``strided_image`` of each output, all slots of a view
        together.
        """
        streams = records.addresses, records.sizes, records.layouts, records.image_sizes, records.tops
        marks, geometry = (self._chosen, self.done), (self._cuts, self._factors, *self._views)
        pixels = PIXELS.at_least(0)
        slot = slots.start
        while slot < slots.stop:
            workspace = WORKSPACE.arrays, pixels
            bounds = slot, slots.stop, slots.start
            slot = run_fused(bounds, marks, streams, geometry, workspace, targets, load_stages())
            if slot < slots.stop:
                try:
                    pixels = PIXELS.at_least(WORKSPACE.grow())
                except MemoryError:
                    slot += 1  # Skip this image; the caller decodes it without the fused kernel and reports the error.
        return bool(self.done[slots.start : slots.stop].all())


# Kernels that ``run_fused`` calls by address, so that each is compiled only once, and all are compiled in parallel.
DECODING = open_box, open_stream, decode_rows
STAGES = *DECODING, resample_box
_open_box, _open_stream, _decode, _resample = (caller(stage.signature) for stage in STAGES)


def load_kernels() -> None:
    """Compile or load the fused kernel and the kernels ``STAGES`` that it calls."""
    load_stages()
    compile_kernel(run_fused)


@cache
def load_stages() -> tuple[int, ...]:
    """Compile or load the kernels ``STAGES``, which the fused kernel calls; return the address of each."""
    return tuple(map(address_of, STAGES))


@kernel(
    "(UniTuple(int64, 3), UniTuple(boolean[::1], 2), Tuple((uint64[:, ::1], int64[:, ::1], int64[:, ::1], "
    "int64[:, ::1], int64[::1])), Tuple((int64[:, ::1], int64[::1], float64[:, ::1], int64[:, ::1], "
    "boolean[:, ::1], int64[::1], boolean[::1], int32[:, ::1])), Tuple((Tuple((int64[::1], uint8[::1], uint64[::1], "
    "int16[::1], uint8[::1], int64[::1])), uint8[::1])), int64[:, ::1], UniTuple(int64, 4))"
)
def run_fused(slots, marks, streams, geometry, workspace, targets, stages):
    """Decode each image that ``marks`` chooses once, and resample it for each view.

    Args:
        slots: first slot, last slot + 1, and the slot to which the first row of ``targets`` belongs.
        marks: bool (n,), images to make; and bool (n,), set for images that are made.
        streams: addresses, sizes and layouts of the streams in memory, as ``jpeg.cut.TiledJpegs`` has them; width and
            height of the stored images; and the number of pixel rows of each image above its first row in memory.
        geometry: boxes to cut (n, 4), and factors by which decoding divides sides (n,). Then, (views · n, …) with all
            slots of a view together: boxes to resample, clips, flips, interpolations, antialias and fills.
        workspace: the decoder's arrays, and a buffer for pixels.
        targets: int64 (views · k, 7), ``strided_image`` of the outputs of k slots, all slots of a view together.
        stages: addresses of the kernels ``STAGES``.

    Returns:
        The slot for which the buffer for pixels was too small; if there is none, the last slot + 1.
    """
    chosen, done = marks
    addresses, sizes, layouts, image_sizes, tops = streams
    cuts, factors, boxes, clips, flips, interpolations, antialias, fill = geometry
    arrays, pixels = workspace
    frame, views = arrays[0], boxes.shape[0] // chosen.size
    state = np.uint64(frame.ctypes.data)
    box, clip = np.empty(4), np.empty(4, np.int64)
    rect = np.empty(4, np.int64)
    for i in range(slots[0], slots[1]):
        if not chosen[i] or sizes[i, 0] == 0:
            continue
        factor = factors[i]
        stream = addresses[i], sizes[i], layouts[i], image_sizes[i], tops[i]
        error = _open_image(stages, stream, cuts[i], factor, arrays, rect)
        if (error and error != BUFFER_TOO_SMALL) or frame[WIDTH] != rect[2] or frame[HEIGHT] != rect[3]:
            continue
        width, height = -(-rect[2] // factor), -(-rect[3] // factor)
        ring = height
        if views == 1 and 0 < boxes[i, 3] < MAX_COORDINATE:
            taps = most_taps(boxes[i, 3] / factor, targets[i - slots[2], 5], interpolations[i], antialias[i])
            ring = min(height, taps + MOST_SURPLUS_ROWS)
        if error or pixels.size < 3 * width * ring:
            frame[FRAME - 3] = 3 * width * ring
            return i
        frame[OUT], frame[RING] = pixels.ctypes.data, ring
        if ring == height and _decode(stages[2], (state, height)):
            continue
        rows = height, stages[2] if ring < height else 0, np.int64(state)
        image = pixels[: 3 * width * ring].reshape(ring, width, 3)
        made = True
        for view in range(views):
            row, target = view * chosen.size + i, view * (slots[1] - slots[2]) + i - slots[2]
            _set_region(boxes[row], clips[row], rect, factor, box, clip)
            flip, code = (flips[row, 0], flips[row, 1]), interpolations[row]
            arguments = image, rows, box, clip, flip, code, antialias[row], fill[row], targets[target]
            made &= _resample(stages[3], arguments)
        # Decode also the rows below those that the views use; an image with damage there is not done.
        done[i] = made and (ring == height or _decode(stages[2], (state, height)) == 0)
    return slots[1]


@device_function
def _open_image(stages, stream, box, factor, workspace, rect):
    """Open (parse up to the first pixel) the tiles of an image that ``box`` needs; return a code, as ``open_box`` does.

    ``rect`` receives the rectangle that is opened: the whole image if it has no usable tiles or ``box`` covers it.
    """
    addresses, sizes, layout, size, top = stream
    if box[0] > 0 or box[1] > 0 or box[2] < size[0] or box[3] < size[1]:
        part = box - top * (np.arange(4) % 2)
        code = _open_box(stages[0], (addresses, sizes, layout, part, factor, workspace, rect))
        rect[1] += top
        if code != NO_GRID:
            return code
    rect[0], rect[1], rect[2], rect[3] = 0, 0, size[0], size[1]
    return _open_stream(stages[1], (addresses[0], sizes[0], factor, workspace))


@device_function
def _set_region(box, clip, rect, factor, decoded_box, decoded_clip):
    """Convert ``box`` and ``clip`` from source pixels to pixels of the box ``rect``, decoded at 1 / ``factor``."""
    for k in range(4):
        decoded_box[k] = (box[k] - (rect[k] if k < 2 else 0)) / factor
        edge = clip[k] - rect[k % 2]
        decoded_clip[k] = edge // factor if k < 2 else -(-edge // factor)
