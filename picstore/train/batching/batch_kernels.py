"""Kernels over the records of a batch, which fill slots, choose boxes, and draw crops and flips.

One kernel call without the GIL replaces a hundred NumPy calls. NumPy releases the GIL in each operation on more than
500 numbers and waits for it again, and 256 boxes are 1,024 numbers.
"""

from __future__ import annotations

import numpy as np

from picstore import rng
from picstore.jpeg.tiles import MAX_PIXELS_A_BYTE
from picstore.kernels.jit import array_at, device_function, kernel, load_function, memcpy
from picstore.kernels.simd import load_byte, load_native_u64, load_u32
from picstore.storage.format.layout import ENTRY, ENTRY_POINTS, FOREIGN, MCU_SIZES, ROW_CRCS
from picstore.train.transforms.crops import TRIES

_load_u16 = load_function(16)
_MCU_SIZES = MCU_SIZES
_ENTRY = ENTRY.itemsize
_OF_FIELDS = tuple(ENTRY.fields[name][1] for name in ENTRY.names or ())  # type: ignore[index]
(_ID, _, _OFFSET, _LENGTH, _, _WIDTH, _HEIGHT, _SAMPLING, _FLAGS, _INTERVAL, _HEADER, _FIRST, _COUNT, *_) = _OF_FIELDS

_u64 = np.uint64
_GOLDEN, _M1, _M2 = np.uint64(rng.GOLDEN), np.uint64(rng.MIX1), np.uint64(rng.MIX2)
_S11, _S27, _S30, _S31 = (np.uint64(shift) for shift in (11, 27, 30, 31))
_UNIT = 2.0**-53
_TRIES = TRIES


@kernel(
    "int64(uint64[:, ::1], int64[:, ::1], Tuple((uint8[:, ::1], uint8[:, ::1], int64[::1], uint64[:, ::1], "
    "int64[:, ::1], int64[:, ::1], int64[:, ::1], int64[::1], int64[:, ::1])), int64)"
)
def enter_records(places, picks, records, max_pixels):
    """Fill slots of a batch with records from containers.

    Args:
        places: uint64 (m, 7), ``Container.place`` of m containers: addresses of the buffer, the segment table (0
            without one), ``index``, ``held`` and ``tops`` (0 if all images were read from their first row on); number
            of records; and number of segment-table entries.
        picks: int64 (3, k): for each of k records, index of its container, its row in the container, and its slot.
        records: arrays of ``BatchRecords``, filled by slot: ``entries`` and ``held`` as bytes, tops, addresses, sizes,
            layouts, image sizes, ids and entry points.

    Returns:
        The number of images that claim more than ``max_pixels``, or more pixels than their bytes can hold.

    Raises:
        IndexError: a container has no such row, or the batch has no such slot.
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
    """Write to ``points`` the address and distance of a record's entry points, where decoding of a segment can begin.

    The distance is in MCUs; it is −1 if the stored distance is invalid.
    """
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
    """Compute, for each image, the box whose tiles are described to a GPU.

    Args:
        reach: int64 (n, 4), result of ``views_reach.joint_reach``, in pixels of stored images.
        tops, layouts, sizes: arrays of ``BatchRecords`` with these names.
        boxes: int64 (n, 4), receives each image's box, see ``views_reach.boxes_to_cut``, in pixels of the rows in
            memory.
        per_row: int64 (n,), receives the number of segments in a row of tiles, at least 1.
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


@device_function
def _mix(z):
    z = (z ^ (z >> _S30)) * _M1
    z = (z ^ (z >> _S27)) * _M2
    return z ^ (z >> _S31)


# ``draw_numbers`` and ``place_crops`` compute bit for bit the geometry of ``RandomResizedCrop`` and the flips, because
# they use the same random numbers and the same float64 operations in the same order. NumPy computes exponentials
# between the two kernels, because the results of other libraries differ in the last bits.
@kernel(
    "void(uint64, int64[::1], int64[::1], float64, float64, uint64[::1], float64[:, ::1], float64[:, ::1])",
)
def draw_numbers(key, ids, views, low, span, keys, numbers, exponents):
    """Draw, for each image, the random numbers that ``BatchRandom.uniform`` would draw.

    Args:
        key: random key of the seed and the epoch.
        ids, views: int64 (n,), ids of the records, and indices of the views.
        low, span: minimum of an aspect ratio's logarithm, and maximum minus minimum.
        keys: uint64 (n,), receives each image's random key.
        numbers: float64 (n, k), receives each image's first k random numbers; numbers 10 to 19 are for aspect ratios.
        exponents: float64 (n, 10), receives the logarithms of ten aspect ratios of each image.
    """
    for i in range(ids.size):
        own = _mix((key + _GOLDEN) ^ _u64(ids[i]))
        if views[i]:
            own = _mix((own + _GOLDEN) ^ _u64(views[i]))
        keys[i] = own
        for k in range(numbers.shape[1]):
            numbers[i, k] = np.float64(_mix(own + _u64(k + 1) * _GOLDEN) >> _S11) * _UNIT
        for k in range(_TRIES):
            exponents[i, k] = low + span * numbers[i, _TRIES + k]


@kernel(
    "boolean(float64[:, ::1], float64[:, ::1], int64[:, ::1], float64[::1], float64[:, ::1], float64[:, :, ::1], "
    "int64[:, ::1], float64[:, ::1])"
)
def place_crops(numbers, ratios, sizes, bounds, flips, frame, clip, box):
    """Choose each image's crop and flips, and write them to fields of ``Geometry``.

    Args:
        numbers: result of ``draw_numbers``; the last k numbers of each image are for the k flips.
        ratios: float64 (n, 10), aspect ratios.
        sizes: int64 (n, 2), width and height of the images.
        bounds: float64 (4,): minimum fraction of the area, maximum minus minimum fraction, minimum and maximum aspect
            ratio.
        flips: float64 (k, 3): for each flip, its probability, 1 if it swaps left and right, and 1 if it swaps top and
            bottom.
        frame, clip, box: receive the fields of ``Geometry`` with these names.

    Returns:
        True if each image has pixels and its crop lies within it.
    """
    for i in range(sizes.shape[0]):
        width, height = sizes[i]
        if width < 1 or height < 1:
            return False
        area = np.float64(width * height)
        w, h, found = 0.0, 0.0, False
        for k in range(_TRIES):
            wanted = area * (bounds[0] + bounds[1] * numbers[i, k])
            w, h = np.rint(np.sqrt(wanted * ratios[i, k])), np.rint(np.sqrt(np.divide(wanted, ratios[i, k])))
            found = 0 < w <= width and 0 < h <= height
            if found:
                break
        if not found:
            ratio = width / height
            w = max(np.rint(height * bounds[3]) if ratio > bounds[3] else np.float64(width), 1.0)
            h = max(np.rint(width / bounds[2]) if ratio < bounds[2] else np.float64(height), 1.0)
        wide, high = np.int64(w), np.int64(h)
        x, y = (width - wide) // 2, (height - high) // 2
        if found:
            x = np.int64(np.floor(numbers[i, 2 * _TRIES] * (width - wide + 1)))
            y = np.int64(np.floor(numbers[i, 2 * _TRIES + 1] * (height - high + 1)))
        if x < 0 or y < 0 or x + wide > width or y + high > height:
            return False
        clip[i, 0], clip[i, 1], clip[i, 2], clip[i, 3] = x, y, x + wide, y + high
        box[i, 0], box[i, 1], box[i, 2], box[i, 3] = x, y, wide, high
        mirrored_x = mirrored_y = False
        for k in range(flips.shape[0]):
            if numbers[i, 2 * _TRIES + 2 + k] < flips[k, 0]:
                mirrored_x ^= flips[k, 1] > 0
                mirrored_y ^= flips[k, 2] > 0
        frame[i] = 0.0
        frame[i, 0, 0], frame[i, 0, 2] = (-wide, x + wide) if mirrored_x else (wide, x)
        frame[i, 1, 1], frame[i, 1, 2] = (-high, y + high) if mirrored_y else (high, y)
    return True
