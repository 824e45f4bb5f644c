"""Rendering of one decoded image or mask by a geometry.

An upright image is one antialiased resampling (``kernels/resample.py``). A slanted image is an interpolation
(``warp.py``, ``warp_taps.py``): nearest for nearest and box, bilinear, or bicubic for bicubic and Lanczos. If it is
minified with antialiasing, the filter of upright images first resamples its visible part to the output's scale.
"""

from __future__ import annotations

import math
import sys
from dataclasses import replace

import numpy as np

from picstore.arrays import F64, I64, U8, Array, Bools
from picstore.errors import UsageError
from picstore.kernels.filters import BICUBIC, BILINEAR, MAX_COORDINATE, NEAREST
from picstore.kernels.resample import resample
from picstore.kernels.strided import strided_image
from picstore.train.cpu.warp import apply_edges, warp, warp_map, warp_nearest
from picstore.train.cpu.warp_taps import warp_taps
from picstore.train.transforms.geometry import Geometry
from picstore.train.transforms.padding_and_edges import CONSTANT, border_indices, vector_length

_TOLERANCE = 1e-6  # allowance for rounding errors: in pixels for a size, and relative for a scale


def render(pixels: U8, geometry: Geometry, slot: int, *, origin: tuple[int, int], factor: int, out: U8) -> None:
    """Resample an image by its geometry and write it to ``out``, without the GIL.

    Args:
        pixels: uint8 (h, w, 3), C-contiguous, decoded pixels that cover ``geometry.reach[slot]``.
        geometry, slot: geometry of the batch, and index of the image.
        origin: left and top of ``pixels``, in source pixels.
        factor: 1, 2, 4 or 8, by which decoding has divided the sides.
        out: uint8 (3, H, W), any strides.

    Raises:
        UsageError: an array has another shape, dtype or layout or is empty, or the geometry is not finite.
    """
    fill = geometry.fill[slot]
    if geometry.border[slot] != CONSTANT:
        pixels, origin = _with_border(pixels, geometry, slot, origin)
    clip = _clip_in(geometry.clip[slot], origin, factor)
    if geometry.upright[slot]:
        flip, upside_down = geometry.flip[slot].tolist()
        box = geometry.grid_box[slot].copy()
        box[:2] -= origin
        box /= factor
        interpolation, antialias = geometry.interpolation[slot], geometry.antialias[slot]
        flips = flip, upside_down
        resample(pixels, box, clip, out, interpolation=interpolation, antialias=antialias, flips=flips, fill=fill)
    else:
        _check_images(pixels, out)
        matrix = geometry.grid_matrix[slot].copy()
        matrix[:, 2] -= origin
        matrix /= factor
        _check_map(matrix, clip)
        if (clip[:2] >= clip[2:]).any():
            out[:] = fill[:, None, None]
            return
        interpolation = int(geometry.interpolation[slot])
        if geometry.minifies[slot] and (geometry.scale[slot] > factor * (1 + _TOLERANCE)).any():
            reach = _clip_in(geometry.window[slot], origin, factor)
            pixels, matrix, clip = _minified(pixels, reach, matrix, clip, interpolation)
        edges, target = geometry.output_edges[slot], strided_image(out)
        if interpolation == BILINEAR:
            warp(pixels, matrix, clip, edges, fill, target)
        else:
            kind = NEAREST if interpolation < BILINEAR else BICUBIC
            warp_taps(pixels, matrix, clip, edges, fill, kind, bool(geometry.antialias[slot]), target)
    if geometry.shows_edges[slot]:
        hard = bool(geometry.interpolation[slot] < BILINEAR)
        apply_edges(geometry.output_edges[slot], fill, hard, strided_image(out))


def render_mask(mask: Array, geometry: Geometry, slot: int, *, out: Array, fill: int = 0) -> None:
    """Resample a mask, integers (h, w), by nearest-neighbor interpolation, and write it to ``out`` (H, W).

    Raises:
        UsageError: a shape or dtype is wrong, the dtype cannot hold ``fill``, or the geometry is not finite.
    """
    width, height = geometry.source_size[slot].tolist()
    if mask.shape != (height, width) or mask.dtype.kind not in "iub":
        raise UsageError(f"mask is {mask.dtype} {mask.shape}; give integers of the image's shape {(height, width)}")
    if out.ndim != 2 or out.dtype != mask.dtype:
        raise UsageError(f"out is {out.dtype} {out.shape}; give {mask.dtype} of shape (height, width)")
    if mask.dtype.kind != "b" and not np.iinfo(mask.dtype).min <= fill <= np.iinfo(mask.dtype).max:
        raise UsageError(f"fill is {fill}; give a value of {mask.dtype}")
    origin = 0, 0
    if geometry.border[slot] != CONSTANT:
        mask, origin = _with_border(mask, geometry, slot, origin)
    matrix, clip = geometry.grid_matrix[slot].copy(), _clip_in(geometry.clip[slot], origin, 1)
    matrix[:, 2] -= origin
    _check_map(matrix, clip)
    edges = geometry.output_edges[slot]
    # The kernel copies elements of a given size, whatever their dtype, so it takes the fill's bits.
    bits = int.from_bytes(np.array(fill, mask.dtype).tobytes(), sys.byteorder)
    warp_nearest((strided_image(mask), mask.itemsize), matrix, clip, edges, np.uint64(bits), strided_image(out))


def rows_of_map(geometry: Geometry, slot: int) -> tuple[int, int]:
    """Return the range (first, last + 1) of a map's rows that the output of an image shows or interpolates."""
    height = int(geometry.source_size[slot, 1])
    if geometry.border[slot] != CONSTANT:  # Beyond the map, a repeated or mirrored border may show any row.
        return 0, height
    across, down, start = geometry.grid_matrix[slot, 1]
    width, rows = geometry.size[slot].tolist()
    ends = [across * x + down * y + start for x in (0, width) for y in (0, rows)]
    low, high = max(0, int(geometry.clip[slot, 1])), min(height, int(geometry.clip[slot, 3]))
    if not np.isfinite(ends).all():
        return low, high
    # Linear interpolation needs one more row above and below.
    return max(low, math.floor(max(min(ends), -1)) - 1), min(high, math.ceil(min(max(ends), height)) + 1)


def render_map(
    source: Array, geometry: Geometry, slot: int, *, top: int, fill: float, invalid: float, linear: bool
) -> tuple[F64, Bools]:
    """Resample an image's map by the geometry of image ``slot``, as :func:`warp_map` does.

    Args:
        source: (rows, w, channels), rows of the map from row ``top`` on; at least the rows of ``rows_of_map``.
        geometry, slot: geometry of the batch, and index of the image.
        top: index in the map of the first row of ``source``.
        fill: value outside of the map.
        invalid: value that means "no value".
        linear: whether to interpolate.

    Returns:
        float64 (channels, H, W), the values; and bool (H, W), whether the output has a value of the map.

    Raises:
        UsageError: the geometry is not finite.
    """
    (full_width, full_height), (width, height) = geometry.source_size[slot].tolist(), geometry.size[slot].tolist()
    origin, low, high = (0, top), (0, 0), (full_width, full_height)
    if geometry.border[slot] != CONSTANT:
        one = Geometry.concatenate([geometry], [slot])
        one = replace(one, interpolation=np.maximum(one.interpolation, BILINEAR))
        source, origin = _with_border(source, one, 0, origin)
        low, high = origin, (origin[0] + source.shape[1], origin[1] + source.shape[0])
    matrix, clip = geometry.grid_matrix[slot], geometry.clip[slot]
    _check_map(matrix, clip)
    bounds = np.concatenate([np.maximum(clip[:2], low), np.minimum(clip[2:], high)])
    values, valid = np.empty((source.shape[2], height, width)), np.empty((height, width), np.bool_)
    pixels = np.ascontiguousarray(source, np.float32)
    edges = geometry.output_edges[slot]
    some = pixels, np.array(origin, np.int64)
    warp_map(some, matrix, bounds, edges, (fill, invalid), linear, (values, valid))
    return values, valid


def _with_border(
    pixels: Array, geometry: Geometry, slot: int, origin: tuple[int, int]
) -> tuple[Array, tuple[int, int]]:
    """Add to an image or mask those pixels of its repeated or mirrored border that the output shows.

    ``origin`` is the left and top of ``pixels`` in source pixels. Return the new pixels and their origin.
    """
    (left, top, right, bottom), (width, height) = geometry.window[slot].tolist(), geometry.source_size[slot].tolist()
    if left >= right or top >= bottom:
        return pixels, origin
    border = int(geometry.border[slot])
    rows = border_indices(top, bottom, height, border) - origin[1]
    columns = border_indices(left, right, width, border) - origin[0]
    return pixels[rows[:, None], columns], (left, top)


def _minified(pixels: U8, reach: I64, matrix: F64, clip: I64, interpolation: int) -> tuple[U8, F64, I64]:
    """Reduce the part ``reach`` of an image to the output's scale, if the output is smaller, before it is warped.

    Return the smaller pixels, and ``matrix`` and ``clip`` in units of these pixels.
    """
    height, width = pixels.shape[:2]
    low, high = np.maximum(reach[:2], 0), np.minimum(reach[2:], (width, height))
    if (low >= high).any():
        return pixels, matrix, clip
    scale = np.maximum(vector_length(matrix[:, 0], matrix[:, 1]), 1.0)
    size = np.maximum(np.ceil((high - low) / scale - _TOLERANCE), 1).astype(np.int64)
    # Resample to interleaved pixels: 240 µs for 300 × 250, where planes and a transposition took 440 µs.
    small = np.empty((size[1], size[0], 3), dtype=np.uint8)
    box, planes = (*low, *(high - low)), small.transpose(2, 0, 1)
    resample(pixels, box, np.concatenate([low, high]), planes, interpolation=interpolation)
    scale = (high - low) / size
    matrix = (matrix - np.stack([np.zeros(2), np.zeros(2), low], axis=1)) / scale[:, None]
    # ``clip`` may exceed the pixels of ``small``, so negative values and values beyond its size are kept.
    left_top = np.floor((clip[:2] - low) / scale)
    right_bottom = np.ceil((clip[2:] - low) / scale)
    clip = np.concatenate([left_top, right_bottom]).astype(np.int64)
    return small, matrix, clip


def _clip_in(clip: I64, origin: tuple[int, int], factor: int) -> I64:
    """Convert a clip (left, top, right, bottom) from source pixels to pixels of the decoded array, rounded outwards."""
    clip = clip - np.array(origin * 2)
    if factor > 1:
        clip[:2] //= factor
        clip[2:] = -(-clip[2:] // factor)
    return clip


def _check_images(pixels: U8, out: U8) -> None:
    if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype != np.uint8 or not pixels.flags.c_contiguous:
        raise UsageError(f"pixels are {pixels.dtype} {pixels.shape}; give contiguous uint8 of shape (height, width, 3)")
    if out.ndim != 3 or out.shape[0] != 3 or out.dtype != np.uint8 or out.size == 0 or pixels.size == 0:
        raise UsageError(
            f"out is {out.dtype} {out.shape}; give uint8 of shape (3, height, width), not empty as pixels must not be"
        )


def _check_map(matrix: F64, clip: I64) -> None:
    if not np.isfinite(matrix).all() or (np.abs(clip) > MAX_COORDINATE).any():
        raise UsageError(
            f"the matrix {matrix.tolist()} is not finite, or the clip {clip.tolist()} exceeds {MAX_COORDINATE}; "
            "give finite numbers and a clip of fewer pixels"
        )
