"""Executing a geometry: pixels of one decoded image, or of a mask that belongs to it, into their place in the batch.

An image that stays upright is one antialiased resampling (``resample.py``). Any other is a bilinear interpolation
(``train/affine.py``); where it would make the image smaller and antialiasing is wished for, what can be seen of the
image is first resampled to the scale of the output, by the same filter as upright images are.
"""

from __future__ import annotations

import sys

import numpy as np

from picstore.arrays import F64, I64, U8, Array
from picstore.errors import UsageError
from picstore.kernels.resample import resample
from picstore.kernels.strided import strided_image
from picstore.train.cpu.warp import cover, nearest, warp
from picstore.train.transforms.geometry import Geometry
from picstore.train.transforms.half_planes import vector_length

_FARTHEST = 1 << 30  # pixels; what is farther away is not told from infinity
_NEAR = 1e-6  # what differs by less is the same but for rounding


def render(
    pixels: U8,
    geometry: Geometry,
    slot: int,
    *,
    origin: tuple[int, int],
    factor: int,
    out: U8,
) -> None:
    """Make the output of an image; releases the GIL while it is at it.

    Args:
        pixels: uint8 (h, w, 3), C-contiguous: at least ``geometry.reach[slot]`` of the image.
        geometry, slot: which output.
        origin: left, top of what was decoded, in source pixels.
        factor: by how much smaller it was decoded, 1, 2, 4 or 8.
        out: uint8 (3, H, W), overwritten.

    Raises:
        UsageError: an array has another shape, type or layout or is empty, or the geometry is not finite.
    """
    fill = geometry.fill[slot]
    clip = _clip_in(geometry.clip[slot], origin, factor)
    if geometry.upright[slot]:
        flip, upside_down = geometry.flip[slot].tolist()
        box = geometry.box[slot].copy()
        box[:2] -= origin
        box /= factor
        resample(pixels, box, clip, flip, bool(geometry.antialias[slot]), out, upside_down=upside_down, fill=fill)
    else:
        _check_images(pixels, out)
        matrix = geometry.matrix[slot].copy()
        matrix[:, 2] -= origin
        matrix /= factor
        _check_map(matrix, clip)
        if (clip[:2] >= clip[2:]).any():
            out[:] = fill[:, None, None]
            return
        if geometry.antialias[slot] and (geometry.scale[slot] > factor * (1 + _NEAR)).any():
            reach = _clip_in(geometry.reach[slot], origin, factor)
            pixels, matrix, clip = _made_smaller(pixels, reach, matrix, clip)
        warp(pixels, matrix, clip, geometry.output_edges[slot], fill, strided_image(out))
    if geometry.shows_edges[slot]:
        cover(geometry.output_edges[slot], fill, strided_image(out))


def render_mask(mask: Array, geometry: Geometry, slot: int, *, out: Array, fill: int = 0) -> None:
    """Make the output of a mask: of each pixel the one under its centre, no matter what was decoded of the image.

    Args:
        mask: integers (h, w), of the whole source image.
        geometry, slot: which output.
        out: (H, W) of the same type, overwritten.
        fill: what stands outside of the image.

    Raises:
        UsageError: an array has another shape or type, the fill is not of that type, or the geometry is not finite.
    """
    width, height = geometry.source_size[slot].tolist()
    if mask.shape != (height, width) or mask.dtype.kind not in "iub":
        raise UsageError(f"the mask is {mask.dtype} {mask.shape}; give integers of the image's shape {(height, width)}")
    if out.ndim != 2 or out.dtype != mask.dtype:
        raise UsageError(f"out is {out.dtype} {out.shape}; give {mask.dtype} of shape (height, width)")
    if mask.dtype.kind != "b" and not np.iinfo(mask.dtype).min <= fill <= np.iinfo(mask.dtype).max:
        raise UsageError(f"fill is {fill}, which is no {mask.dtype}")
    matrix, clip = geometry.matrix[slot].copy(), _clip_in(geometry.clip[slot], (0, 0), 1)
    _check_map(matrix, clip)
    edges = geometry.output_edges[slot]
    # Masks of all types are elements of so many bytes.
    bits = int.from_bytes(np.array(fill, mask.dtype).tobytes(), sys.byteorder)
    nearest((strided_image(mask), mask.itemsize), matrix, clip, edges, np.uint64(bits), strided_image(out))


def _made_smaller(pixels: U8, reach: I64, matrix: F64, clip: I64) -> tuple[U8, F64, I64]:
    """What the output shows of an image, resampled to the output's scale; with matrix and clip for it."""
    height, width = pixels.shape[:2]
    low, high = np.maximum(reach[:2], 0), np.minimum(reach[2:], (width, height))
    if (low >= high).any():
        return pixels, matrix, clip
    scale = np.maximum(vector_length(matrix[:, 0], matrix[:, 1]), 1.0)
    size = np.maximum(np.ceil((high - low) / scale - _NEAR), 1).astype(np.int64)
    # Straight into pixels side by side: 240 us for 300 × 250; planes and a transposition of them 440.
    small = np.empty((size[1], size[0], 3), dtype=np.uint8)
    resample(pixels, (*low, *(high - low)), np.concatenate([low, high]), False, True, small.transpose(2, 0, 1))
    scale = (high - low) / size
    matrix = (matrix - np.stack([np.zeros(2), np.zeros(2), low], axis=1)) / scale[:, None]
    # Where the clip ends beyond what was resampled, it ends beyond the image, or nothing comes near its end.
    left_top = np.floor((clip[:2] - low) / scale)
    right_bottom = np.ceil((clip[2:] - low) / scale)
    clip = np.concatenate([left_top, right_bottom]).astype(np.int64)
    return small, matrix, clip


def _clip_in(clip: I64, origin: tuple[int, int], factor: int) -> I64:
    """A rectangle of source pixels in pixels of what was decoded, rounded outwards."""
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
    if not np.isfinite(matrix).all() or (np.abs(clip) > _FARTHEST).any():
        raise UsageError(f"the map {matrix.tolist()} is not finite, or the clip {clip.tolist()} is too far away")
