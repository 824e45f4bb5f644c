"""Images as address, strides and shape, so that a kernel that is compiled once takes images of any layout and dtype."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from picstore.arrays import I64, Array
from picstore.kernels.jit import array_at, device_function, memcpy, store_u8
from picstore.kernels.simd import load_u8, load_u32, store_i16, store_i32

StridedImage: TypeAlias = I64  # address, strides and shape of an array; for several arrays, a row for each

_u64 = np.uint64


def strided_image(image: Array) -> StridedImage:
    """Describe an array for a kernel by address, strides in bytes and shape; the caller must keep the array alive.

    Returns:
        int64: address, 3 strides, 3, height, width; for a single plane: address, 2 strides, height, width.
    """
    return np.array([image.__array_interface__["data"][0], *image.strides, *image.shape], np.int64)


def strided_images(images: Array | list[Array]) -> StridedImage:
    """Return :func:`strided_image` of each image of an array (n, 3, H, W) or of a list: int64 (n, 7)."""
    if isinstance(images, list):
        return np.stack([strided_image(image) for image in images])
    described = np.tile(strided_image(images[0]), (len(images), 1))
    described[:, 0] += np.arange(len(images)) * images.strides[0]
    return described


@device_function
def put_bytes(row, count, to, step):
    """Copy ``count`` bytes at address ``row`` to every ``step``-th byte from address ``to`` on.

    Arguments are addresses, because arrays would take numba 20 ns for each row.
    """
    if step == 1:
        memcpy(to, row, count)
    else:
        for x in range(count):
            store_u8(_u64(to + x * step), load_u8(_u64(row + x)))


@device_function
def put_patterns(row, count, to, step, size):
    """Copy the lowest ``size`` bytes, 2 or 4, of each of ``count`` uint32 to strided memory; see ``put_bytes``."""
    if size == 4 and step == 4:
        memcpy(to, row, 4 * count)
    elif size == 4:
        for x in range(count):
            store_i32(_u64(to + x * step), np.int32(load_u32(_u64(row + 4 * x))))
    elif step == 2:
        source, halves = array_at(_u64(row), count, np.uint32), array_at(_u64(to), count, np.uint16)
        for x in range(count):
            halves[x] = source[x]
    else:
        for x in range(count):
            store_i16(_u64(to + x * step), np.int16(load_u32(_u64(row + 4 * x))))
