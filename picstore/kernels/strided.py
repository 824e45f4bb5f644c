"""Where an image lies in memory, for kernels: of any layout and type, which numba would else compile them anew for."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from picstore.arrays import I64, Array
from picstore.kernels.jit import array_at, device_function, memcpy, store_u8
from picstore.kernels.simd import load_u8, load_u32, store_i16, store_i32

StridedImage: TypeAlias = I64

_u64 = np.uint64


def place_of(image: Array) -> StridedImage:
    """int64: address of the first element, strides in bytes, shape. The caller keeps the array alive."""
    return np.array([image.__array_interface__["data"][0], *image.strides, *image.shape], np.int64)


def places_of(images: Array) -> StridedImage:
    """int64 (n, 7): those of n images, one array (n, 3, H, W)."""
    places = np.tile(place_of(images[0]), (len(images), 1))
    places[:, 0] += np.arange(len(images)) * images.strides[0]
    return places


@device_function
def put_bytes(row, count, to, step):  # type: ignore[no-untyped-def]
    """Write bytes ``step`` bytes apart. Addresses, as numba would count references to arrays: 20 ns a row.

    Args:
        row: address of ``count`` bytes.
        to: address of the first.
    """
    if step == 1:
        memcpy(to, row, count)
    else:
        for x in range(count):
            store_u8(_u64(to + x * step), load_u8(_u64(row + x)))


@device_function
def put_patterns(row, count, to, step, size):  # type: ignore[no-untyped-def]
    """Write the lowest 2 or 4 bytes of uint32, as ``put_bytes`` does bytes."""
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
