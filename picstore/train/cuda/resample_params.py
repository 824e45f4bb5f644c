"""Resampling parameters of a batch for the GPU's kernels: the counterpart of ``train/cpu/render.py``."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from picstore.arrays import F64, I64, Bools
from picstore.errors import UsageError
from picstore.kernels.filters import BILINEAR, GRID, HALF_WIDTHS, MAX_COORDINATE, NEAREST
from picstore.train.transforms.geometry import Geometry
from picstore.train.transforms.padding_and_edges import open_edges, vector_length

_TOLERANCE = 1e-6  # allowance for rounding errors in scales and sizes


@dataclass(frozen=True, eq=False)
class ResampleParams:
    """Parameters of the resampling of n sources to n outputs, in the units of ``augment_layout.py``."""

    planes: I64  # (n, 3), address, and number of bytes from plane to plane and from row to row
    source_size: I64  # (n, 2), width and height
    clip: I64  # (n, 4), left, top, right, bottom of the source pixels that the filter may use
    slanted: Bools  # (n,), whether an image is rotated or sheared
    flip: Bools  # (n, 2), whether to mirror along x, and along y
    window: I64  # (n, 2), number of source pixels in the filter's reach for one output pixel, along x and y
    taps: I64  # (n, 2), maximum number of the window's pixels that lie in the image, along x and y
    map: F64  # (n, 6), map from output pixels to source pixels, see ``augment_layout.MAP``
    fill: I64  # (n, 3), red, green, blue of output pixels outside of the image
    interpolation: I64  # (n,), codes of ``kernels/filters.py``
    antialias: Bools
    size: I64  # (n, 2), width and height of the outputs
    edges: F64  # (n, k, 3), (a, b, c) of each output's k half-planes a·x + b·y + c ≥ 0, in output pixels
    shows_edges: Bools  # (n,), whether the output shows an edge, beyond which pixels are hidden

    @classmethod
    def from_boxes(
        cls, planes: I64, source_size: I64, box: F64, clip: I64, size: I64, *, filters: tuple[I64, Bools]
    ) -> ResampleParams:
        """Return parameters that resample upright boxes (left, top, width, height) without flip, fill or edges.

        ``filters`` are the fields ``interpolation`` and ``antialias``.
        """
        numbers, window, taps = _weigh(source_size, box, clip, size, filters)
        n = len(size)
        never = np.zeros(n, dtype=np.bool_)
        flip, fill = np.zeros((n, 2), np.bool_), np.zeros((n, 3), np.int64)
        edges = open_edges(n, 0)
        return cls(planes, source_size, clip, never, flip, window, taps, numbers, fill, *filters, size, edges, never)


def _weigh(source_size: I64, box: F64, clip: I64, size: I64, filters: tuple[I64, Bools]) -> tuple[F64, I64, I64]:
    """Return ``map``, ``window`` and ``taps`` of :class:`ResampleParams` for the upright resampling of boxes."""
    interpolation, antialias = filters
    numbers = np.empty((len(size), 6))
    numbers[:, :2] = box[:, :2]
    scale = np.divide(np.floor(box[:, 2:] / size * GRID + 0.5), GRID, out=numbers[:, 2:4])
    widened = (antialias & (interpolation != NEAREST))[:, None]
    support = np.where(widened, np.maximum(scale, 1.0), 1.0)
    support *= np.array(HALF_WIDTHS)[interpolation, None]
    numbers[:, 4:] = support
    # An output pixel's filter covers 2 · support source pixels, and one more after rounding. With antialiasing or
    # BILINEAR, the filter ends at the clip's border; otherwise it continues on repeated pixels of the border.
    window = np.ceil(2 * support).astype(np.int64) + 1
    visible = np.maximum(clip[:, 2:] - clip[:, :2], 0)
    np.minimum(window, visible, out=window, where=(antialias | (interpolation == BILINEAR))[:, None])
    in_image = np.minimum(clip[:, 2:], source_size) - np.maximum(clip[:, :2], 0)
    return numbers, window, np.minimum(window, np.maximum(in_image, 1))


def make_resample_params(
    geometry: Geometry, planes: I64, source_size: I64, origins: I64, factors: I64
) -> ResampleParams:
    """Return kernel parameters for resampling decoded images to the same pixels as ``train/cpu/render.py``.

    Args:
        origins: int64 (n, 2), left and top of each decoded image in pixels of its source image.
        factors: int64 (n,), factor by which decoding divided each image's sides.

    Raises:
        UsageError: coordinates are not finite or exceed 2**24.
    """
    reduced = factors.max() > 1
    clip = _in_decoded(geometry.clip, origins, factors)
    box = geometry.grid_box.copy()
    box[:, :2] -= origins
    if reduced:
        box /= factors[:, None]
    matrix, slanted = None, ~geometry.upright
    if slanted.any():  # Upright images are resampled by ``box`` and not by ``matrix``.
        matrix = geometry.grid_matrix.copy()
        matrix[:, :, 2] -= origins
        if reduced:
            matrix /= factors[:, None, None]
        # If the clip is empty, the output is all fill; resample as if upright, because warps need a clip with pixels.
        slanted &= (clip[:, :2] < clip[:, 2:]).all(axis=1)
    _check(box, matrix, clip, geometry.size)
    filters = geometry.interpolation, geometry.antialias
    numbers, window, taps = _weigh(source_size, box, clip, geometry.size, filters)
    if matrix is not None:
        numbers = np.where(slanted[:, None], matrix.reshape(-1, 6), numbers)
    flip, fill = geometry.flip, geometry.fill.astype(np.int64)
    size, edges, shown = geometry.size, geometry.output_edges, geometry.shows_edges
    return ResampleParams(
        planes, source_size, clip, slanted, flip, window, taps, numbers, fill, *filters, size, edges, shown
    )


def minify_slanted(
    params: ResampleParams, geometry: Geometry, origins: I64, factors: I64
) -> tuple[I64, ResampleParams, ResampleParams]:
    """Split the antialiased resampling of rotated or sheared images in two resamplings; the first reduces their size.

    Returns:
        Three values: int64 (k,), indices of the images to minify; parameters of these images for the first resampling;
        parameters of all images for the second, in which the caller must set the ``planes`` of the minified images.
    """
    if not params.slanted.any():
        return np.zeros(0, np.int64), params, params
    larger = (geometry.scale > (factors * (1 + _TOLERANCE))[:, None]).any(axis=1)
    minified = params.slanted & geometry.minifies & larger
    reach = _in_decoded(geometry.window, origins, factors)
    low, high = np.maximum(reach[:, :2], 0), np.minimum(reach[:, 2:], params.source_size)
    indices = np.flatnonzero(minified & (low < high).all(axis=1))
    low, extent = low[indices], (high - low)[indices]
    matrix = params.map[indices].reshape(-1, 2, 3)
    scale = np.maximum(vector_length(matrix[:, :, 0], matrix[:, :, 1]), 1.0)
    size = np.maximum(np.ceil(extent / scale - _TOLERANCE), 1).astype(np.int64)
    box = np.concatenate([low, extent], axis=1).astype(np.float64)
    clip = np.concatenate([low, low + extent], axis=1)
    planes, source_size = params.planes[indices], params.source_size[indices]
    filters = geometry.interpolation[indices], minified[indices]
    smaller = ResampleParams.from_boxes(planes, source_size, box, clip, size, filters=filters)
    scale = extent / size
    matrix = matrix.copy()
    matrix[:, :, 2] -= low
    matrix /= scale[:, :, None]
    # ``clip`` may exceed the minified images, so negative values and values beyond their sizes are kept.
    left_top = np.floor((params.clip[indices, :2] - low) / scale)
    right_bottom = np.ceil((params.clip[indices, 2:] - low) / scale)
    changed = {name: getattr(params, name).copy() for name in ("source_size", "clip", "map")}
    changed["source_size"][indices], changed["map"][indices] = size, matrix.reshape(-1, 6)
    changed["clip"][indices] = np.concatenate([left_top, right_bottom], axis=1).astype(np.int64)
    return indices, smaller, replace(params, **changed)


def _in_decoded(boxes: I64, origins: I64, factors: I64) -> I64:
    """Convert boxes (n, 4) from source pixels to pixels of the decoded images, rounded outwards."""
    boxes = boxes - np.concatenate([origins, origins], axis=1)
    if factors.max() > 1:
        boxes[:, :2] //= factors[:, None]
        boxes[:, 2:] = -(-boxes[:, 2:] // factors[:, None])
    return boxes


def _check(box: F64, matrix: F64 | None, clip: I64, size: I64) -> None:
    """Raise UsageError if a box or output has no area, or if coordinates are beyond ``MAX_COORDINATE``."""
    within = np.abs(clip).max() <= MAX_COORDINATE and np.abs(box).max() <= MAX_COORDINATE  # False if any is NaN
    if within and size.min() > 0 and box[:, 2:].min() > 0 and (matrix is None or np.isfinite(matrix).all()):
        return
    known = (np.abs(clip) <= MAX_COORDINATE).all(axis=1) & (size > 0).all(axis=1)
    known &= (np.abs(box) <= MAX_COORDINATE).all(axis=1) & (box[:, 2:] > 0).all(axis=1)
    if matrix is not None:
        known &= np.isfinite(matrix).all(axis=(1, 2))
    wrong = int(np.flatnonzero(~known)[0])
    raise UsageError(
        f"image {wrong} shows the box {box[wrong].tolist()} (left, top, width, height) within the clip "
        f"{clip[wrong].tolist()}; both need an area, and coordinates of at most {MAX_COORDINATE}"
    )
