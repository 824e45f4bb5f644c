"""Decoding of crops on the CPU: the part of a slot's image that the views reach.

The decoded pixels lie in a buffer of the thread, which the thread's next decoding overwrites.
"""

from __future__ import annotations

import numpy as np

from picstore.arrays import I64, U8, Array
from picstore.jpeg import decode_any
from picstore.jpeg.cut import TiledJpegs, cut_batch
from picstore.jpeg.decoder.box import decode_box
from picstore.train.batching.gather import BatchRecords
from picstore.train.batching.views_reach import boxes_to_cut
from picstore.train.buffers import CUTS, PIXELS

_WIDE = 33  # least width in pixels that gives 3 chroma samples if chroma has half the width and decoding divides by 8


def decode_rgb(jpeg: bytes | memoryview | U8, *, width: int, height: int, factor: int = 1) -> U8:
    """Decode a JPEG as ``jpeg.decode_any.decode_rgb`` does; this thread's next decoding overwrites the result."""
    buffer = PIXELS.at_least(-(-width // factor) * -(-height // factor) * 3)
    return decode_any.decode_rgb(jpeg, width=width, height=height, factor=factor, buffer=buffer)


def decode_slot(records: BatchRecords, slot: int, reach: I64, *, factor: int) -> tuple[U8, tuple[int, int]]:
    """Decode the part of a batch's image ``slot`` that the views of the image show; without tiles, the whole image.

    Args:
        reach: int64 (4,), left, top, right and bottom of the part in pixels of the stored image.
        factor: 1, 2, 4 or 8, by which decoding divides the sides.

    Returns:
        The pixels, uint8 (h, w, 3), and left and top of the first pixel in pixels of the stored image.

    Raises:
        ImageError: the stream is damaged, or has another size than its record states.
    """
    part = None if records.foreign[slot] else decode_part(records, slot, reach, factor=factor)
    if part is not None:
        return part
    stream, (width, height) = records.jpeg(slot), records.layouts[slot, :2].tolist()
    if records.foreign[slot]:
        name, _ = records.address(slot)
        # Imported here, because the import takes 0.1 s, and few datasets need it.
        from picstore.prepare.image.decoder_process import decode_foreign

        return decode_foreign(stream, width=width, height=height, name=name), (0, 0)
    return decode_rgb(stream, width=width, height=height, factor=factor), (0, int(records.tops[slot]))


def decode_part(records: BatchRecords, slot: int, reach: I64, *, factor: int) -> tuple[U8, tuple[int, int]] | None:
    """Decode the part of a tiled JPEG that its views show, see ``decode_slot``.

    Return None, for the caller to decode the whole image, if the views show all of it or it has no tiles.
    """
    one, top = slice(slot, slot + 1), int(records.tops[slot])
    tiled = TiledJpegs(records.layouts[one], records.addresses[one], records.sizes[one], ())
    box = boxes_to_cut(records.to_held(reach[None], [slot]), tiled.tilings[:, :2])
    found = decode_tiles(tiled, box, factor=factor)
    return None if found is None else (found[0], (found[1][0], found[1][1] + top))


def decode_tiles(tiled: TiledJpegs, box: I64, *, factor: int = 1) -> tuple[U8, tuple[int, int]] | None:
    """Decode the tiles of a JPEG that a box of pixels, int64 (1, 4), overlaps.

    Returns:
        The pixels, uint8 (h, w, 3), and left and top of the first pixel; or None if the box is the whole image, or if
        the image has no tiles.
    """
    if not tiled.sizes[0, 1] or (box == [[0, 0, *tiled.tilings[0, :2]]]).all():
        return None
    found = decode_box(tiled, box[0], factor=factor, allocate=PIXELS.at_least)
    if found is not None:
        return found[0], (int(found[1][0]), int(found[1][1]))
    # The kernels cannot decode this box, so libjpeg decodes a JPEG of its tiles. Widen the box if sides are divided: in
    # a box of up to 32 pixels, chroma rows may then have only 2 samples, which libjpeg does not interpolate.
    if factor > 1:
        size = tiled.tilings[0, :2]
        box[0, :2] = np.minimum(box[0, :2], np.maximum(size - _WIDE, 0))
        box[0, 2:] = np.minimum(np.maximum(box[0, 2:], box[0, :2] + _WIDE), size)
    cuts = cut_batch(tiled, box, out=CUTS.at_least(int(tiled.sizes[0, 0])))
    left, upper, width, height = cuts.rects[0].tolist()
    pixels = decode_rgb(cuts.data[: cuts.offsets[1]], width=width, height=height, factor=factor)
    return pixels, (left, upper)


def decode_held(stream: U8, tiling: I64, box: I64, lengths: Array, *, factor: int = 1) -> tuple[U8, tuple[int, int]]:
    """Decode a box of a JPEG of which only some rows of tiles, the held rows, are in memory.

    Args:
        stream: uint8, the JPEG's headers and the held rows of tiles.
        tiling: int64 (6,), tiling of the held rows, see ``jpeg.cut.TiledJpegs``.
        box: int64 (4,): left, top, right, bottom, in pixels of the held rows.
        lengths: uint16, lengths in bytes of the segments of the held rows.
        factor: 1, 2, 4 or 8, by which decoding divides the sides.

    Returns:
        The pixels, uint8 (h, w, 3), and left and top of the first pixel in pixels of the held rows.

    Raises:
        ImageError: the stream is damaged.
    """
    tiled = TiledJpegs.from_streams([stream.data], tiling[None], [lengths])
    part = decode_tiles(tiled, box[None], factor=factor)
    width, height = tiling[:2].tolist()
    return part or (decode_rgb(stream, width=width, height=height, factor=factor), (0, 0))
