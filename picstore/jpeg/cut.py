"""Cutting crops out of compressed bytes, along tiles, before anything is decoded.

A restart segment decodes by itself (ITU-T T.81, E.1.4). So the segments of the tiles that a box touches, behind the
same headers with another size, are a JPEG of that part of the image, and its pixels are those that decoding everything
and cropping gives. For this the box is widened by one pixel: a decoder that interpolates chroma looks one sample aside
(libjpeg's "fancy upsampling"); without it pixels at the border differ in 13 % of 4:2:0 cuts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from picstore.arrays import I64, U8, U16, U64
from picstore.errors import UsageError
from picstore.jpeg.markers import parse
from picstore.jpeg.segments import find_segments
from picstore.kernels.jit import array_at, copy_bytes, device_function, kernel, prefetch

Buffer: TypeAlias = "bytes | memoryview"

MARGIN = 1  # pixels
# Rows of tiles that are fetched from memory before they are copied. A row is a few KB, too short for the processor to
# see by itself what comes next: streams that no cache holds are cut 1.4 times as fast so, with 1, 2 or 4 rows.
AHEAD = 2
_LINE = 64  # bytes of a cache line
# Pixels; libjpeg does not interpolate the chroma of images that have at most 2 samples of it in a row, so a narrower
# last tile is not cut out alone.
NARROWEST = 5
_WIDTH, _HEIGHT, _MCU_WIDTH, _MCU_HEIGHT, _INTERVAL, _HEADER = range(6)  # columns of a layout

_u8 = np.uint8


@dataclass(frozen=True, slots=True)
class Tiled:
    """JPEGs with what cutting must know of them. Keeps what it refers to alive.

    Attributes:
        layouts: int64 (n, 6): width and height of the image, width and height of an MCU, all in pixels, the restart
            interval in MCUs, and the bytes before the entropy-coded data.
        addresses: uint64 (n, 2), where the stream and where its segments' lengths (uint16) lie in memory.
        sizes: int64 (n, 2), bytes of the stream and number of segments.
    """

    layouts: I64
    addresses: U64
    sizes: I64
    kept: tuple[object, ...]

    @classmethod
    def of(cls, jpegs: Sequence[Buffer], layouts: I64, segments: Sequence[U16]) -> Tiled:
        """Describe streams; ``segments`` holds the lengths of their restart segments without markers, as is stored.

        Raises:
            UsageError: there are not as many layouts as streams.
        """
        if np.shape(layouts) != (len(jpegs), 6):
            raise UsageError(f"{len(jpegs)} streams need layouts of shape ({len(jpegs)}, 6), not {np.shape(layouts)}")
        streams = [np.frombuffer(jpeg, np.uint8) for jpeg in jpegs]
        lengths = [np.ascontiguousarray(of_one, np.uint16) for of_one in segments]
        pairs = list(zip(streams, lengths, strict=True))
        addresses = [(a.__array_interface__["data"][0], b.__array_interface__["data"][0]) for a, b in pairs]
        sizes = [(len(a), len(b)) for a, b in pairs]
        return cls(
            np.ascontiguousarray(layouts, np.int64),
            np.array(addresses, np.uint64).reshape(-1, 2),
            np.array(sizes, np.int64).reshape(-1, 2),
            (streams, lengths),
        )


@dataclass(frozen=True, slots=True)
class Cuts:
    """Streams cut out of others, back to back in one buffer.

    Attributes:
        data: uint8; cut i is ``data[offsets[i] : offsets[i + 1]]``.
        offsets: int64 (n + 1,).
        places: int64 (n, 4): left, top, width and height, in pixels of the whole image, of what each cut shows.
    """

    data: U8
    offsets: I64
    places: I64


def cut_batch(tiled: Tiled, boxes: I64, *, out: U8 | None = None) -> Cuts:
    """Cut a box out of each of several JPEGs, in one call without the GIL.

    A stream whose restart markers make no grid of tiles, or whose segments are not those given, is copied whole.

    Args:
        tiled: the streams.
        boxes: int64 (n, 4): left, top, right, bottom in pixels, not empty, within the image.
        out: contiguous uint8 buffer to write to, as long as all streams together; a new one by default.

    Raises:
        UsageError: there are not as many boxes as streams, one is empty or not within its image, or ``out`` is too
            short.
    """
    boxes = np.ascontiguousarray(boxes, np.int64)
    if boxes.shape != (len(tiled.sizes), 4):
        raise UsageError(f"{len(tiled.sizes)} streams need boxes of shape ({len(tiled.sizes)}, 4), not {boxes.shape}")
    size = tiled.layouts[:, :2]
    if (boxes[:, :2] < 0).any() or (boxes[:, 2:] > size).any() or (boxes[:, :2] >= boxes[:, 2:]).any():
        raise UsageError("a box to cut is empty or not within its image")
    needed = int(tiled.sizes[:, 0].sum())
    if out is None:
        out = np.empty(needed, np.uint8)
    if out.size < needed or out.dtype != np.uint8 or out.ndim != 1 or not out.flags.carray:
        raise UsageError(f"cutting needs a contiguous uint8 buffer of {needed} bytes, not {out.dtype} {out.shape}")
    offsets, places = np.empty(len(boxes) + 1, np.int64), np.empty((len(boxes), 4), np.int64)
    _cut_all(tiled.addresses, tiled.sizes, tiled.layouts, boxes, out, offsets, places)
    return Cuts(out, offsets, places)


def cut(jpeg: Buffer, box: tuple[int, int, int, int]) -> tuple[bytes, tuple[int, int]]:
    """Cut a box out of a JPEG with restart markers.

    Args:
        jpeg: a stream whose restart interval divides its MCU columns, as :func:`add_restart_markers` makes it; any
            other is returned whole.
        box: left, top, width, height in pixels.

    Returns:
        The cut, a JPEG, and (dx, dy): where the box lies in it, in pixels.

    Raises:
        UsageError: the box is empty or not within the image.
        ImageError: this is no JPEG of one scan.
    """
    header = parse(jpeg)
    starts, ends = find_segments(jpeg, header)
    lengths = ends - starts
    if lengths.max() >= 1 << 16:
        lengths = lengths[:0]
    layout = np.array([[header.width, header.height, *header.mcu_size, header.restart_interval, header.length]])
    left, top, width, height = box
    end = int(ends[-1]) + 2  # bytes behind EOI are no part of it
    tiled = Tiled.of([memoryview(jpeg)[:end]], layout, [lengths.astype(np.uint16)])
    cuts = cut_batch(tiled, np.array([[left, top, left + width, top + height]]))
    return cuts.data[: cuts.offsets[1]].tobytes(), (left - int(cuts.places[0, 0]), top - int(cuts.places[0, 1]))


@kernel
def _cut_all(addresses, sizes, layouts, boxes, out, offsets, places):  # type: ignore[no-untyped-def]
    offsets[0] = 0
    for i in range(addresses.shape[0]):
        offsets[i + 1] = cut_one(addresses[i], sizes[i], layouts[i], boxes[i], out, offsets[i], places[i])


@device_function
def cut_one(addresses, sizes, layout, box, out, to, place):  # type: ignore[no-untyped-def]
    """For kernels: write the cut of one image, or all of it, to ``out``, which has room for all of it.

    Args:
        addresses, sizes, layout: rows of those of ``Tiled``.
        box: int64 (4,), as of ``cut_batch``.
        to: where in ``out``.
        place: int64 (4,), takes left, top, width and height of what the cut shows.

    Returns:
        Where in ``out`` the cut ends.
    """
    source = array_at(addresses[0], sizes[0], np.uint8)
    lengths = array_at(addresses[1], sizes[1], np.uint16)
    frame = _frame_at(source, layout)
    if frame and _is_grid(source, layout, lengths):
        return _cut(source, layout, lengths, box, frame, out, to, place)
    copy_bytes(out, to, source, 0, source.size)
    place[0], place[1], place[2], place[3] = 0, 0, layout[_WIDTH], layout[_HEIGHT]
    return to + source.size


@device_function
def _frame_at(source, layout):  # type: ignore[no-untyped-def]
    """Where the baseline frame header begins, 0 if there is none before the entropy-coded data (T.81, B.2.2)."""
    at = 2
    end = min(layout[_HEADER], source.size)
    while at + 9 <= end and source[at] == 0xFF:
        if source[at + 1] == 0xC0 or source[at + 1] == 0xC1:
            return at
        if source[at + 1] == 0xFF:  # a fill byte
            at += 1
            continue
        at += 2 + (np.int64(source[at + 2]) << 8 | np.int64(source[at + 3]))
    return 0


@device_function
def _is_grid(source, layout, lengths):  # type: ignore[no-untyped-def]
    """Whether the segments fill the stream and make rows of tiles."""
    for number in layout:
        if number < 1 or number >= 1 << 31:  # so that no product overflows
            return False
    columns = (layout[_WIDTH] + layout[_MCU_WIDTH] - 1) // layout[_MCU_WIDTH]
    rows = (layout[_HEIGHT] + layout[_MCU_HEIGHT] - 1) // layout[_MCU_HEIGHT]
    if columns % layout[_INTERVAL] or columns // layout[_INTERVAL] * rows != lengths.size:
        return False
    total = layout[_HEADER] + 2 * lengths.size
    for k in range(lengths.size):
        total += np.int64(lengths[k])
    return total == source.size


@device_function
def _cut(source, layout, lengths, box, frame, out, to, place):  # type: ignore[no-untyped-def]
    """Write the cut of one image from ``to`` on; the byte behind it. ``place`` takes left, top, width and height."""
    width, height, header = layout[_WIDTH], layout[_HEIGHT], layout[_HEADER]
    tile_width, tile_height = layout[_INTERVAL] * layout[_MCU_WIDTH], layout[_MCU_HEIGHT]
    left, right = max(box[0] - MARGIN, 0) // tile_width, (min(box[2] + MARGIN, width) - 1) // tile_width + 1
    top, bottom = max(box[1] - MARGIN, 0) // tile_height, (min(box[3] + MARGIN, height) - 1) // tile_height + 1
    if left and width - left * tile_width < NARROWEST:
        left -= 1
    place[0], place[1] = left * tile_width, top * tile_height
    place[2], place[3] = min(right * tile_width, width) - place[0], min(bottom * tile_height, height) - place[1]
    copy_bytes(out, to, source, 0, header)
    out[to + frame + 5], out[to + frame + 6] = _u8(place[3] >> 8), _u8(place[3] & 255)
    out[to + frame + 7], out[to + frame + 8] = _u8(place[2] >> 8), _u8(place[2] & 255)
    to += header
    per_row = (width + tile_width - 1) // tile_width
    begins, ends = _rows(lengths, header, per_row, (left, top, right, bottom))
    for row in range(min(AHEAD, len(begins))):
        _fetch(source, begins[row], ends[row])
    marker = 0
    for row in range(bottom - top):
        if row + AHEAD < bottom - top:
            _fetch(source, begins[row + AHEAD], ends[row + AHEAD])
        copy_bytes(out, to, source, begins[row], ends[row] - begins[row])
        first = (top + row) * per_row
        for k in range(first + left, first + right):
            to += np.int64(lengths[k]) + 2
            out[to - 2], out[to - 1] = _u8(0xFF), _u8(0xD0 + marker % 8)  # numbered anew (T.81, B.2.1)
            marker += 1
    out[to - 1] = _u8(0xD9)  # the last marker is EOI
    return to


@device_function
def _rows(lengths, header, per_row, tiles):  # type: ignore[no-untyped-def]
    """Where in the stream the tiles of a box begin and end, for each of their rows."""
    left, top, right, bottom = tiles
    begins, ends = np.empty(bottom - top, np.int64), np.empty(bottom - top, np.int64)
    position = header
    for k in range(top * per_row):
        position += np.int64(lengths[k]) + 2
    for row in range(bottom - top):
        first = (top + row) * per_row
        for k in range(first, first + left):
            position += np.int64(lengths[k]) + 2
        begins[row] = position
        for k in range(first + left, first + right):
            position += np.int64(lengths[k]) + 2
        ends[row] = position
        for k in range(first + right, first + per_row):
            position += np.int64(lengths[k]) + 2
    return begins, ends


@device_function
def _fetch(source, begin, end):  # type: ignore[no-untyped-def]
    address = np.uint64(source.ctypes.data)
    for at in range(begin, end, _LINE):
        prefetch(address + np.uint64(at))
