"""TIFF, decoded as its tags say; ``tiff_layout`` reads the tags.

Pillow's modes say less than the tags: a mode is the same for 12 and 16 bits, for WhiteIsZero and BlackIsZero, and for
signed and unsigned integers. So Pillow converts only the layouts of ``is_exact_in_pillow``. For other layouts it only
decompresses each strip or tile, as if it were a picture of bytes, and NumPy converts the bytes to samples.
"""

from __future__ import annotations

import io
import struct
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, TiffImagePlugin

from picstore.arrays import U8
from picstore.errors import ImageError
from picstore.prepare.image.pixel_conversion import integer_top, largest_usual, scale, strip_boxes
from picstore.prepare.image.size_limits import check_size
from picstore.prepare.image.tiff_layout import (
    ASSOCIATED,
    BLACK_IS_ZERO,
    COLORS,
    FLOAT,
    LAB,
    PALETTE,
    RGB,
    SIGNED,
    UNCOMPRESSED,
    UNSIGNED,
    WHITE_IS_ZERO,
    WITHOUT_PREDICTOR,
    YCBCR,
    Layout,
    Tag,
    Tags,
    is_exact_in_pillow,
    is_readable,
    read_layout,
    read_number,
    read_numbers,
    read_tags,
)

_Samples = npt.NDArray[Any]
_LONG = 4  # code in TIFF tags of the type "unsigned 32-bit integer"
_DIRECTORY = struct.Struct("<H" + 9 * "HHII" + "I")
_REVERSED = bytes(int(f"{each:08b}"[::-1], 2) for each in range(256))


def decode_layout(data: bytes, *, max_pixels: int) -> Image.Image | None:
    """Decode a TIFF whose layout Pillow does not convert exactly; return None if Pillow converts the layout exactly.

    The image has mode "L", "LA", "La", "RGB", "RGBA", "RGBa", "CMYK", "YCbCr" or "LAB", and is not rotated yet. Raise
    ImageError if tests do not prove that the layout is read exactly, if the file is damaged, or if it has more than
    ``max_pixels``.
    """
    tags = read_tags(data)
    layout = read_layout(tags, "<" if data.startswith(b"II") else ">")
    check_size(*layout.size, max_pixels=max_pixels)
    if layout.predictor != 1 and layout.compression in WITHOUT_PREDICTOR:
        raise ImageError(f"TIFF: {layout}: with a predictor, which some programs ignore there; write it without")
    if is_exact_in_pillow(layout, tags) and not data.startswith(b"MM\0+"):
        return None
    if not is_readable(layout, tags):
        raise ImageError(f"TIFF: {layout}: no way to read it was proven; convert it to 8 or 16 bits of grey or RGB")
    samples = _read_samples(data, tags, layout, max_pixels=max_pixels)
    image = _to_image(samples, layout, tags)
    image.format = "TIFF"
    image.getexif()[Tag.ORIENTATION] = tags.get(Tag.ORIENTATION, 1)
    if isinstance(profile := tags.get(Tag.ICC_PROFILE), bytes):
        image.info["icc_profile"] = profile
    return image


def read_samples(data: bytes, *, max_pixels: int) -> _Samples:
    """Read a TIFF's samples, (height, width, samples), as they are stored, neither reduced nor rotated.

    Raise ImageError if tests do not prove that the layout is read exactly, if the image is rotated, or if the samples
    are neither grey with 0 as black nor RGB nor palette indices.
    """
    tags = read_tags(data)
    layout = read_layout(tags, "<" if data.startswith(b"II") else ">")
    check_size(*layout.size, max_pixels=max_pixels)
    is_plain = layout.photometric in (BLACK_IS_ZERO, RGB, PALETTE) and read_number(tags, Tag.ORIENTATION, 1) == 1
    is_doubtful = layout.predictor != 1 and layout.compression in WITHOUT_PREDICTOR
    if not is_plain or is_doubtful or not is_readable(layout, tags):
        raise ImageError(f"TIFF: {layout}: no way to read its values was proven; write upright grey or RGB")
    return _read_samples(data, tags, layout, max_pixels=max_pixels)


def _read_samples(data: bytes, tags: Tags, layout: Layout, *, max_pixels: int) -> _Samples:
    """Read all samples as (height, width, samples), in the smallest machine type that holds them."""
    width, height = layout.size
    tiled = Tag.TILE_WIDTH in tags
    if tiled:
        block = read_number(tags, Tag.TILE_WIDTH, 0), read_number(tags, Tag.TILE_HEIGHT, 0)
        check_size(*block, max_pixels=max_pixels)
    else:
        block = width, max(1, min(height, read_number(tags, Tag.ROWS, height)))
    channels = 1 if layout.planar else layout.samples
    planes = layout.samples if layout.planar else 1
    offsets = read_numbers(tags, Tag.TILE_OFFSETS if tiled else Tag.STRIP_OFFSETS, ())
    lengths = read_numbers(tags, Tag.TILE_COUNTS if tiled else Tag.STRIP_COUNTS, ())
    expected = -(-width // block[0]) * -(-height // block[1]) * planes
    if not len(offsets) == len(lengths) == expected:
        raise ImageError(f"damaged TIFF: {len(offsets):,} offsets for {expected:,} strips or tiles")
    if max(map(sum, zip(offsets, lengths, strict=True))) > len(data):
        raise ImageError("truncated TIFF: a strip or tile ends behind the file")
    places = [(left, top) for top in range(0, height, block[1]) for left in range(0, width, block[0])]
    samples: _Samples = np.empty((height, width, layout.samples), _sample_type(layout))
    for k, (offset, length) in enumerate(zip(offsets, lengths, strict=True)):
        left, top = places[k % len(places)]
        rows = block[1] if tiled else min(block[1], height - top)
        segment = data[offset : offset + length]
        if layout.fill_order == 2:
            segment = segment.translate(_REVERSED)
        row_bytes = (block[0] * channels * layout.bits + 7) // 8
        decoded = _decompress(segment, (row_bytes, rows), layout.compression)
        channel = slice(k // len(places), None) if layout.planar else slice(None)
        target = samples[top : top + rows, left : left + block[0], channel][..., :channels]
        values = _to_samples(decoded, (rows, block[0], channels), layout)
        target[:] = values[: target.shape[0], : target.shape[1]]
    return samples


def _decompress(segment: bytes, size: tuple[int, int], compression: int) -> U8:
    """Decompress a strip or tile to bytes (rows, bytes per row), by giving it to libtiff as a grey picture."""
    row_bytes, rows = size
    if compression == UNCOMPRESSED:
        if len(segment) < row_bytes * rows:
            raise ImageError("truncated TIFF: a strip or tile is too short")
        return np.frombuffer(segment, np.uint8, row_bytes * rows).reshape(rows, row_bytes)
    start = 8 + _DIRECTORY.size
    tags = {
        Tag.WIDTH: row_bytes, Tag.HEIGHT: rows, Tag.BITS: 8, Tag.COMPRESSION: compression,
        Tag.PHOTOMETRIC: BLACK_IS_ZERO, Tag.STRIP_OFFSETS: start, Tag.SAMPLES: 1, Tag.ROWS: rows,
        Tag.STRIP_COUNTS: len(segment),
    }  # fmt: skip
    entries = [field for tag, value in tags.items() for field in (tag, _LONG, 1, value)]
    header = struct.pack("<2sHI", b"II", 42, 8) + _DIRECTORY.pack(len(entries) // 4, *entries, 0)
    # Call the class instead of ``Image.open``, which would reject pictures above Pillow's limit on pixels.
    picture = TiffImagePlugin.TiffImageFile(io.BytesIO(header + segment))
    return np.asarray(picture)


def _sample_type(layout: Layout) -> np.dtype[Any]:
    size = next(each for each in (1, 2, 4, 8) if 8 * each >= layout.bits)
    return np.dtype(f"{'uif'[layout.kind - 1]}{size}")


def _to_samples(rows: U8, shape: tuple[int, int, int], layout: Layout) -> _Samples:
    """Convert the decompressed bytes of a strip or tile to samples (rows, width, channels), and undo the predictor."""
    samples: _Samples
    if layout.predictor == 3:
        # A row has the highest bytes of all samples first, then the next bytes, and so on, as differences from the byte
        # of the previous pixel (Adobe's Technical Note 3).
        differences = rows.reshape(shape[0], -1, shape[2])
        bytes_ = np.cumsum(differences, axis=1, dtype=np.uint8).reshape(shape[0], layout.bits // 8, -1)
        return np.ascontiguousarray(bytes_.swapaxes(1, 2)).view(f">f{layout.bits // 8}").reshape(shape)
    if layout.bits in (8, 16, 32, 64):
        samples = np.ascontiguousarray(rows).view(_sample_type(layout).newbyteorder(layout.order)).reshape(shape)
    elif layout.bits == 24:
        parts = rows.reshape(*shape, 3)[..., :: 1 if layout.order == ">" else -1].astype(np.uint32)
        samples = parts[..., 0] << 16 | parts[..., 1] << 8 | parts[..., 2]
    else:
        samples = _unpack(rows, shape[1] * shape[2], layout.bits).reshape(shape)
    if layout.predictor == 2:
        samples = np.cumsum(samples, axis=1, dtype=_sample_type(layout))
    return samples


def _unpack(rows: U8, count: int, bits: int) -> npt.NDArray[np.uint16]:
    """Unpack ``count`` samples of ``bits`` (1 to 16) from each row, highest bit first; a sample is in up to 3 bytes."""
    first = np.arange(count) * bits
    padded = np.pad(rows, ((0, 0), (0, 2)))
    unpacked = np.empty((len(rows), count), np.uint16)
    for row, target in zip(padded, unpacked, strict=True):
        word = (
            row[first >> 3].astype(np.uint32) << 16
            | row[(first >> 3) + 1].astype(np.uint32) << 8
            | row[(first >> 3) + 2]
        )
        target[:] = word >> (24 - bits - (first & 7)).astype(np.uint32) & (1 << bits) - 1
    return unpacked


def _to_image(samples: _Samples, layout: Layout, tags: Tags) -> Image.Image:
    """Reduce samples to 8 bits (docs/formats.md, "Color") strip by strip; return an image, with alpha if it has any."""
    colors = COLORS[layout.photometric]
    kept = [*range(colors), *([] if layout.alpha is None else [colors + layout.alpha])]
    top = _top(samples[..., kept], layout)
    mode = {1: "L", 3: "RGB", 4: "CMYK"}[3 if layout.photometric == PALETTE else colors]
    mode = {YCBCR: "YCbCr", LAB: "LAB"}.get(layout.photometric, mode)
    if layout.alpha is not None:
        mode += "a" if layout.extra[layout.alpha] == ASSOCIATED else "A"
    image = Image.new(mode, layout.size)
    palette = None
    if layout.photometric == PALETTE:
        palette = np.array(read_numbers(tags, Tag.COLOR_MAP, ())).reshape(3, -1).T // 256
    for left, upper, right, lower in strip_boxes(layout.size):
        strip = samples[upper:lower, :, kept]
        reduced = _reduce(strip, layout, top)
        if layout.photometric == WHITE_IS_ZERO:
            reduced[..., 0] = 255 - reduced[..., 0]
        if palette is not None:
            reduced = np.concatenate([palette.astype(np.uint8)[strip[..., 0]], reduced[..., 1:]], axis=2)
        raw = np.ascontiguousarray(reduced)
        image.paste(Image.frombytes(mode, (right - left, lower - upper), raw.tobytes()), (left, upper))
    return image


def _top(samples: _Samples, layout: Layout) -> float:
    """Return the sample value that becomes 255 when samples are reduced to 8 bits; 0 stays 0."""
    if layout.kind == UNSIGNED and layout.bits <= 16:
        return (1 << layout.bits) - 1
    strips = (samples[upper:lower] for _, upper, _, lower in strip_boxes(layout.size))
    if layout.kind == FLOAT:
        return largest_usual(strips)
    return integer_top(strips, most=(1 << layout.bits - (layout.kind == SIGNED)) - 1)


def _reduce(samples: _Samples, layout: Layout, top: float) -> U8:
    if layout.kind == UNSIGNED and (layout.bits == 8 or (layout.bits == 16 and samples.shape[2] > 1)):
        # Take the upper 8 bits, as Pillow does for RGB of 16 bits.
        return (samples >> layout.bits - 8).astype(np.uint8)
    return scale(samples, top)
