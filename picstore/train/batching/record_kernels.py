"""Kernels over the records of a batch: one call without Python's lock in place of a hundred of NumPy's.

NumPy gives the lock back in each operation on more than 500 numbers, and waits for it again: 256 boxes are 1,024.
"""

from __future__ import annotations

import numpy as np

from picstore.jpeg.tiles import MAX_PIXELS_A_BYTE
from picstore.kernels.jit import array_at, device_function, kernel, load_function, memcpy
from picstore.kernels.simd import load_byte, load_native_u64, load_u32
from picstore.storage.format.layout import ENTRY, ENTRY_POINTS, FOREIGN, MCU_SIZES, ROW_CRCS

_load_u16 = load_function(16)
_MCU_SIZES = MCU_SIZES
_ENTRY = ENTRY.itemsize
_OF_FIELDS = tuple(ENTRY.fields[name][1] for name in ENTRY.names or ())  # type: ignore[index]
(_ID, _, _OFFSET, _LENGTH, _, _WIDTH, _HEIGHT, _SAMPLING, _FLAGS, _INTERVAL, _HEADER, _FIRST, _COUNT, *_) = _OF_FIELDS


@kernel(
    "int64(uint64[:, ::1], int64[:, ::1], Tuple((uint8[:, ::1], uint8[:, ::1], int64[::1], uint64[:, ::1], "
    "int64[:, ::1], int64[:, ::1], int64[:, ::1], int64[::1], int64[:, ::1])), int64)"
)
def enter_records(places, picks, records, max_pixels):
    """Fill slots of a batch from containers.

    Args:
        places: uint64 (m, 7), ``Container.place`` of each container: addresses of its buffer and segment table, 0 for
            none, and of its ``index``, ``held`` and ``tops``, 0 for all zeros; numbers of its records and of its
            table's entries.
        picks: int64 (3, k), of each record its container, its row there and its slot.
        records: by slot entries and held entries as bytes, tops, addresses, sizes, layouts, image sizes and ids, as in
            ``BatchRecords``; entry points, as ``describe_tiles`` takes them.
        max_pixels: of an image.

    Returns:
        The number of images that claim more pixels than these or than their bytes can hold.

    Raises:
        IndexError: a row is not one of its container.
    """
    entries, held_entries, tops, addresses, sizes, layouts, image_sizes, ids, points = records
    large = 0
    for k in range(picks.shape[1]):
        place, row, slot = places[picks[0, k]], picks[1, k], picks[2, k]
        if row < 0 or row >= np.int64(place[5]) or slot < 0 or slot >= ids.size:
            raise IndexError("enter_records: a record or slot that is not there")
        entry, held = place[2] + np.uint64(_ENTRY * row), place[3] + np.uint64(_ENTRY * row)
        memcpy(np.uintp(entries.ctypes.data + _ENTRY * slot), np.uintp(entry), _ENTRY)
        memcpy(np.uintp(held_entries.ctypes.data + _ENTRY * slot), np.uintp(held), _ENTRY)
        tops[slot] = np.int64(load_native_u64(place[4] + np.uint64(8 * row))) if place[4] else 0
        first = _u32(held, _FIRST)
        addresses[slot, 0] = place[0] + np.uint64(_u32(held, _OFFSET))
        addresses[slot, 1] = place[1] + np.uint64(2 * first)
        sizes[slot, 0] = _u32(held, _LENGTH)
        sizes[slot, 1] = _u32(held, _COUNT) if place[1] else 0
        sampling = min(load_byte(held + np.uint64(_SAMPLING)), 5)
        layouts[slot, 0], layouts[slot, 1] = _u16(held, _WIDTH), _u16(held, _HEIGHT)
        layouts[slot, 2], layouts[slot, 3] = _MCU_SIZES[sampling]
        layouts[slot, 4], layouts[slot, 5] = _u16(held, _INTERVAL), _u32(held, _HEADER)
        width, height = _u16(entry, _WIDTH), _u16(entry, _HEIGHT)
        image_sizes[slot, 0], image_sizes[slot, 1] = width, height
        ids[slot] = np.int64(load_native_u64(entry + np.uint64(_ID)))
        length, flags = _u32(entry, _LENGTH), load_byte(entry + np.uint64(_FLAGS))
        limit = max_pixels if flags & FOREIGN else min(max_pixels, MAX_PIXELS_A_BYTE * length)
        large += length > 0 and width * height > limit
        points[slot, 0], points[slot, 1] = 0, 0
        if flags & ENTRY_POINTS and sizes[slot, 1] > 0:
            _find_points(entry, place, first, points[slot])
    return large


@device_function
def _find_points(entry, place, held_first, points):
    """Find the entry points of the held segments, as ``segment_table.find_entry_points`` finds all of an image."""
    table = array_at(place[1], np.int64(place[6]), np.uint16)
    count, interval, first = _u32(entry, _COUNT), _u16(entry, _INTERVAL), _u32(entry, _FIRST)
    at, sampling = first + count, min(load_byte(entry + np.uint64(_SAMPLING)), 5)
    if load_byte(entry + np.uint64(_FLAGS)) & ROW_CRCS and sampling:
        height = _MCU_SIZES[sampling][1]
        at += 2 * (1 + (_u16(entry, _HEIGHT) + height - 1) // height)
    points[1] = -1
    step = np.int64(table[at]) if at < table.size else 0
    if not 0 < step < interval:
        return
    per_segment = (interval - 1) // step
    if at + 1 + count * per_segment <= table.size:
        index = at + 1 + (held_first - first) * per_segment
        points[0], points[1] = np.int64(place[1]) + 2 * index, step


@kernel("void(int64[:, ::1], int64[::1], int64[:, ::1], int64[:, ::1], int64[:, ::1], int64[::1])")
def choose_boxes(reach, tops, layouts, sizes, boxes, per_row):
    """Choose what is described of each image.

    Args:
        reach: int64 (n, 4), ``views_reach.joint_reach`` in pixels of stored images.
        tops, layouts, sizes: as in ``BatchRecords``.
        boxes: int64 (n, 4), takes ``views_reach.boxes_to_cut`` in pixels of what is held.
        per_row: int64 (n,), takes the segments of a row of tiles, at least 1.
    """
    for i in range(reach.shape[0]):
        for axis in range(2):
            side, top = layouts[i, axis], tops[i] * axis
            low = min(max(reach[i, axis] - top, 0), side - 1)
            boxes[i, axis] = low
            boxes[i, axis + 2] = min(max(reach[i, axis + 2] - top, low + 1), side)
        rows = (layouts[i, 1] + max(layouts[i, 3], 1) - 1) // max(layouts[i, 3], 1)
        per_row[i] = max(sizes[i, 1] // max(rows, 1), 1)


@device_function
def _u32(at, offset):
    return np.int64(load_u32(at + np.uint64(offset)))


@device_function
def _u16(at, offset):
    return np.int64(_load_u16(at + np.uint64(offset)))
