"""TIFF, decoded as its tags say (TIFF 6.0, BigTIFF). docs/archive/formats-2026-11.md lists what was proven.

Pillow's modes say less than the tags: a mode is the same for 12 and 16 bits, for WhiteIsZero and BlackIsZero, and for
signed and unsigned integers. So Pillow converts only the layouts of ``_is_exact_in_pillow``. For other layouts it only
decompresses each strip or tile, as if it were a picture of bytes, and NumPy converts the bytes to samples.
"""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image, TiffImagePlugin

from picstore.arrays import U8
from picstore.errors import ImageError
from picstore.prepare.image.pixel_conversion import integer_top, largest_usual, scale, strip_boxes
from picstore.prepare.image.size_limits import check_size

# First bytes of TIFF and BigTIFF files, also of files whose writers swapped the bytes of the magic number.
STARTS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+", b"MM*\0", b"II\0*")

_Samples = npt.NDArray[Any]

# Numbers of tags in TIFF 6.0 and its supplements.
_WIDTH, _HEIGHT, _BITS, _COMPRESSION, _PHOTOMETRIC, _FILL_ORDER = 256, 257, 258, 259, 262, 266
_STRIP_OFFSETS, _SAMPLES, _ROWS, _STRIP_COUNTS, _PLANAR, _PREDICTOR = 273, 277, 278, 279, 284, 317
_COLOR_MAP, _TILE_WIDTH, _TILE_HEIGHT, _TILE_OFFSETS, _TILE_COUNTS = 320, 322, 323, 324, 325
_ORIENTATION, _INK_SET, _EXTRA_SAMPLES, _SAMPLE_FORMAT, _COEFFICIENTS, _SUBSAMPLING = 274, 332, 338, 339, 529, 530
_REFERENCE, _ICC_PROFILE = 532, 34675

_WHITE_IS_ZERO, _BLACK_IS_ZERO, _RGB, _PALETTE, _CMYK, _YCBCR, _LAB = 0, 1, 2, 3, 5, 6, 8
_COLORS = {_WHITE_IS_ZERO: 1, _BLACK_IS_ZERO: 1, _RGB: 3, _PALETTE: 1, _CMYK: 4, _YCBCR: 3, _LAB: 3}
_NAMES = {
    _WHITE_IS_ZERO: "WhiteIsZero", _BLACK_IS_ZERO: "BlackIsZero", _RGB: "RGB", _PALETTE: "palette", _CMYK: "CMYK",
    _YCBCR: "YCbCr", _LAB: "Lab", 4: "transparency mask", 9: "ICCLab", 10: "ITULab", 32803: "color filter array",
    32844: "LogL", 32845: "LogLuv", 34892: "linear raw",
}  # fmt: skip
_UNSIGNED, _SIGNED, _FLOAT, _UNDEFINED = 1, 2, 3, 4
_KINDS = {_UNSIGNED: "unsigned", _SIGNED: "signed", _FLOAT: "float", 5: "complex integer", 6: "complex"}
_ASSOCIATED, _UNASSOCIATED = 1, 2

_UNCOMPRESSED, _JPEG = 1, frozenset({6, 7})
_FAX = frozenset({2, 3, 4})
# Numbers of the compressions that treat samples as bytes, whatever their type: none, LZW, Deflate (two numbers),
# PackBits, LZMA and Zstandard.
_BYTE_CODERS = frozenset({_UNCOMPRESSED, 5, 8, 32773, 32946, 34925, 50000})
# Compressions for which libtiff ignores a predictor, though other programs undo it.
_WITHOUT_PREDICTOR = frozenset({_UNCOMPRESSED, 32773})
# Values of the tag ExtraSamples with which Pillow converts unsigned samples exactly, by (photometric interpretation,
# bits per sample).
_EXACT_IN_PILLOW: dict[tuple[int, int], tuple[tuple[int, ...], ...]] = {
    **{(meaning, bits): ((),) for meaning in (_WHITE_IS_ZERO, _BLACK_IS_ZERO, _PALETTE) for bits in (1, 2, 4, 8)},
    **dict.fromkeys(((_BLACK_IS_ZERO, 16), (_CMYK, 8), (_CMYK, 16), (_YCBCR, 8), (_LAB, 8)), ((),)),
    **{(meaning, 8): ((), (0,), (_ASSOCIATED,), (_UNASSOCIATED,)) for meaning in (_BLACK_IS_ZERO, _RGB)},
    (_RGB, 16): ((), (0,), (_UNASSOCIATED,)),
}
_PILLOW_COMPRESSIONS = _BYTE_CODERS | _JPEG | _FAX
# Largest number of bits per pixel in a file; ImageMagick's memory limit is 64 bytes per pixel too.
_MAX_PIXEL_BITS = 512
_LONG = 4  # code in TIFF tags of the type "unsigned 32-bit integer"
_DIRECTORY = struct.Struct("<H" + 9 * "HHII" + "I")
_REVERSED = bytes(int(f"{each:08b}"[::-1], 2) for each in range(256))


@dataclass(frozen=True, slots=True)
class Layout:
    """Layout of the samples in the first picture of a TIFF.

    Attributes:
        size: width and height as they are stored, before the orientation is applied.
        order: byte order, "<" or ">".
        bits: bits of a sample.
        kind: 1 unsigned, 2 signed, 3 floating point.
        photometric: PhotometricInterpretation, the meaning of the samples.
        extra: ExtraSamples, the meanings of the samples after the colors.
        planar: whether each sample has a plane of its own.
        compression, predictor, fill_order: values of the tags of these names.
    """

    size: tuple[int, int]
    order: Literal["<", ">"]
    bits: int
    kind: int
    photometric: int
    extra: tuple[int, ...]
    planar: bool
    compression: int
    predictor: int
    fill_order: int

    @property
    def samples(self) -> int:
        """Number of samples per pixel."""
        return _COLORS[self.photometric] + len(self.extra)

    @property
    def alpha(self) -> int | None:
        """Index in ``extra`` of the first alpha sample; None if there is no alpha."""
        return next((k for k, each in enumerate(self.extra) if each in (_ASSOCIATED, _UNASSOCIATED)), None)

    def __str__(self) -> str:
        planes = " in planes" if self.planar else ""
        extra = f" with extra samples {', '.join(map(str, self.extra))}" if self.extra else ""
        name = _NAMES.get(self.photometric, f"photometric interpretation {self.photometric}")
        return f"{name} of {self.bits} bits, {_KINDS[self.kind]}{planes}{extra}, compression {self.compression}"


def read_tags(data: bytes) -> TiffImagePlugin.ImageFileDirectory_v2:
    """Read the tags of the first picture in a TIFF. Values are read on access, and only inside the file."""
    big = data[2:4] in (b"+\0", b"\0+")
    # Pillow recognizes BigTIFF only by the little-endian magic number, so write that, and state the file's true byte
    # order in ``prefix``.
    header = b"II+\0" + data[4:16] if big else data[:8]
    tags = TiffImagePlugin.ImageFileDirectory_v2(header, prefix=data[:2])
    file = io.BytesIO(data)
    file.seek(tags.next)
    tags.load(file)
    return tags


def decode_layout(data: bytes, *, max_pixels: int) -> Image.Image | None:
    """Decode a TIFF whose layout Pillow does not convert exactly.

    Returns:
        An image of mode "L", "LA", "La", "RGB", "RGBA", "RGBa", "CMYK", "YCbCr" or "LAB", not rotated yet; or None if
        Pillow converts the layout exactly.

    Raises:
        ImageError: no test proves that this layout is read exactly, the file is damaged, or it has more than
            ``max_pixels``.
    """
    tags = read_tags(data)
    layout = read_layout(tags, "<" if data.startswith(b"II") else ">")
    check_size(*layout.size, max_pixels=max_pixels)
    if layout.predictor != 1 and layout.compression in _WITHOUT_PREDICTOR:
        raise ImageError(f"TIFF: {layout}: with a predictor, which some programs ignore there; write it without")
    if _is_exact_in_pillow(layout, tags) and not data.startswith(b"MM\0+"):
        return None
    if not _is_readable(layout, tags):
        raise ImageError(f"TIFF: {layout}: no way to read it was proven; convert it to 8 or 16 bits of grey or RGB")
    samples = _read_samples(data, tags, layout, max_pixels=max_pixels)
    image = _to_image(samples, layout, tags)
    image.format = "TIFF"
    image.getexif()[_ORIENTATION] = tags.get(_ORIENTATION, 1)
    if isinstance(profile := tags.get(_ICC_PROFILE), bytes):
        image.info["icc_profile"] = profile
    return image


def read_samples(data: bytes, *, max_pixels: int) -> _Samples:
    """Read a TIFF's samples, (height, width, samples), as they are stored, neither reduced nor rotated.

    Raise ImageError if no test proves that this layout is read exactly, if the image is rotated, or if the samples are
    not grey with 0 as black, RGB or palette indices.
    """
    tags = read_tags(data)
    layout = read_layout(tags, "<" if data.startswith(b"II") else ">")
    check_size(*layout.size, max_pixels=max_pixels)
    is_plain = layout.photometric in (_BLACK_IS_ZERO, _RGB, _PALETTE) and _number(tags, _ORIENTATION, 1) == 1
    is_doubtful = layout.predictor != 1 and layout.compression in _WITHOUT_PREDICTOR
    if not is_plain or is_doubtful or not _is_readable(layout, tags):
        raise ImageError(f"TIFF: {layout}: no way to read its values was proven; write upright grey or RGB")
    return _read_samples(data, tags, layout, max_pixels=max_pixels)


def read_layout(tags: TiffImagePlugin.ImageFileDirectory_v2, order: Literal["<", ">"]) -> Layout:
    """Read the layout from the tags; raise ImageError if tags contradict each other or have an unknown meaning."""
    photometric = _number(tags, _PHOTOMETRIC, 0)
    compression = _number(tags, _COMPRESSION, _UNCOMPRESSED)
    colors = _COLORS.get(photometric)
    if colors is None:
        name = _NAMES.get(photometric, "an unknown meaning of the samples")
        raise ImageError(f"TIFF: {name} (photometric interpretation {photometric}) is not read")
    samples = _number(tags, _SAMPLES, 3 if compression in _JPEG and colors == 3 else 1)
    bits = _one_of_all(tags, _BITS, 1, "bits a sample", samples)
    kind = _one_of_all(tags, _SAMPLE_FORMAT, _UNSIGNED, "sample formats", samples)
    kind = _UNSIGNED if kind == _UNDEFINED else kind
    if kind not in _KINDS:
        raise ImageError(f"TIFF: sample format {kind} is unknown")
    if photometric == _YCBCR and samples == 1:  # A single sample per pixel is grey, as in a grey JPEG.
        photometric, colors = _BLACK_IS_ZERO, 1
    count = samples - colors
    if count < 0 or samples * bits > _MAX_PIXEL_BITS:
        raise ImageError(f"TIFF: {samples} samples a pixel of {bits} bits in {_NAMES[photometric]}")
    extra = _numbers(tags, _EXTRA_SAMPLES, ())[:count]
    if not extra and count == 1 and photometric == _RGB:
        extra = (_UNASSOCIATED,)  # A fourth sample without ExtraSamples is taken for alpha, as by Pillow.
    if len(extra) < count:
        raise ImageError(
            f"TIFF: {samples} samples a pixel in {_NAMES[photometric]}; ExtraSamples does not explain them"
        )
    return Layout(
        (_number(tags, _WIDTH, 0), _number(tags, _HEIGHT, 0)), order, bits, kind, photometric, extra,
        _number(tags, _PLANAR, 1) == 2, compression, _number(tags, _PREDICTOR, 1),
        _number(tags, _FILL_ORDER, 1),
    )  # fmt: skip


def _is_exact_in_pillow(layout: Layout, tags: TiffImagePlugin.ImageFileDirectory_v2) -> bool:
    """Return whether Pillow converts a layout exactly, as tests/prepare/image/test_tiff.py proves."""
    bits, meaning, extra = layout.bits, layout.photometric, layout.extra
    separate = layout.planar and (layout.samples > 1 or layout.compression in _BYTE_CODERS)
    if separate or layout.compression not in _PILLOW_COMPRESSIONS:
        return False
    if layout.compression in _JPEG:
        return bits == 8 and meaning in (_BLACK_IS_ZERO, _RGB, _YCBCR) and not extra
    if layout.kind == _FLOAT:
        plain = (bits, meaning, extra, layout.fill_order) == (32, _BLACK_IS_ZERO, (), 1)
        return plain and layout.order == "<" and layout.predictor == 1
    if layout.kind != _UNSIGNED or extra not in _EXACT_IN_PILLOW.get((meaning, bits), ()):
        return False
    if layout.fill_order != 1:
        return bits < 8 and meaning in (_WHITE_IS_ZERO, _BLACK_IS_ZERO)
    return meaning != _YCBCR or not _is_subsampled(tags)


def _is_readable(layout: Layout, tags: TiffImagePlugin.ImageFileDirectory_v2) -> bool:
    """Return whether this module can read the samples of a layout, and knows their meaning."""
    bits, meaning, alpha = layout.bits, layout.photometric, layout.alpha
    depths = {_UNSIGNED: {*range(1, 17), 24, 32, 64}, _SIGNED: {8, 16, 32, 64}, _FLOAT: {16, 32, 64}}
    predictors = {1: True, 2: layout.kind != _FLOAT and bits in (8, 16, 32, 64), 3: layout.kind == _FLOAT}
    if layout.compression not in _BYTE_CODERS or bits not in depths.get(layout.kind, ()):
        return False
    if not predictors.get(layout.predictor, False) or layout.fill_order not in (1, 2):
        return False
    if alpha is not None and (
        meaning in (_CMYK, _YCBCR, _LAB) or (meaning in (_WHITE_IS_ZERO, _PALETTE) and layout.extra[alpha] == 1)
    ):
        return False
    if meaning == _YCBCR:
        usual = not {_COEFFICIENTS, _REFERENCE} & set(tags)
        return layout.kind == _UNSIGNED and bits in (8, 16) and not _is_subsampled(tags) and usual
    if meaning == _PALETTE:
        return layout.kind == _UNSIGNED and bits <= 16 and len(_numbers(tags, _COLOR_MAP, ())) == 3 << bits
    if meaning == _CMYK:
        return layout.kind == _UNSIGNED and _number(tags, _INK_SET, 1) == 1
    return meaning != _LAB or (layout.kind == _UNSIGNED and bits == 8)


def _is_subsampled(tags: TiffImagePlugin.ImageFileDirectory_v2) -> bool:
    return _numbers(tags, _SUBSAMPLING, (2, 2)) != (1, 1)


# --- From strips and tiles to samples -----------------------------------------------------------------------------


def _read_samples(
    data: bytes, tags: TiffImagePlugin.ImageFileDirectory_v2, layout: Layout, *, max_pixels: int
) -> _Samples:
    """Read all samples as (height, width, samples), in the smallest machine type that holds them."""
    width, height = layout.size
    tiled = _TILE_WIDTH in tags
    if tiled:
        block = _number(tags, _TILE_WIDTH, 0), _number(tags, _TILE_HEIGHT, 0)
        check_size(*block, max_pixels=max_pixels)
    else:
        block = width, max(1, min(height, _number(tags, _ROWS, height)))
    channels = 1 if layout.planar else layout.samples
    planes = layout.samples if layout.planar else 1
    offsets = _numbers(tags, _TILE_OFFSETS if tiled else _STRIP_OFFSETS, ())
    lengths = _numbers(tags, _TILE_COUNTS if tiled else _STRIP_COUNTS, ())
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
    if compression == _UNCOMPRESSED:
        if len(segment) < row_bytes * rows:
            raise ImageError("truncated TIFF: a strip or tile is too short")
        return np.frombuffer(segment, np.uint8, row_bytes * rows).reshape(rows, row_bytes)
    start = 8 + _DIRECTORY.size
    tags = (_WIDTH, row_bytes), (_HEIGHT, rows), (_BITS, 8), (_COMPRESSION, compression), (_PHOTOMETRIC, _BLACK_IS_ZERO)
    places = (_STRIP_OFFSETS, start), (_SAMPLES, 1), (_ROWS, rows), (_STRIP_COUNTS, len(segment))
    entries = [field for tag, value in (*tags, *places) for field in (tag, _LONG, 1, value)]
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
    """Unpack ``count`` samples of ``bits`` (1 to 16) from each row, highest bit first; a sample lies in three bytes."""
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


# --- From samples to 8 bits ---------------------------------------------------------------------------------------


def _to_image(samples: _Samples, layout: Layout, tags: TiffImagePlugin.ImageFileDirectory_v2) -> Image.Image:
    """Reduce samples to 8 bits (docs/formats.md, "Color") strip by strip; return an image, with alpha if it has any."""
    colors = _COLORS[layout.photometric]
    kept = [*range(colors), *([] if layout.alpha is None else [colors + layout.alpha])]
    top = _top(samples[..., kept], layout)
    mode = {1: "L", 3: "RGB", 4: "CMYK"}[3 if layout.photometric == _PALETTE else colors]
    mode = {_YCBCR: "YCbCr", _LAB: "LAB"}.get(layout.photometric, mode)
    if layout.alpha is not None:
        mode += "a" if layout.extra[layout.alpha] == _ASSOCIATED else "A"
    image = Image.new(mode, layout.size)
    palette = (
        np.array(_numbers(tags, _COLOR_MAP, ())).reshape(3, -1).T // 256 if layout.photometric == _PALETTE else None
    )
    for left, upper, right, lower in strip_boxes(layout.size):
        strip = samples[upper:lower, :, kept]
        reduced = _reduce(strip, layout, top)
        if layout.photometric == _WHITE_IS_ZERO:
            reduced[..., 0] = 255 - reduced[..., 0]
        if palette is not None:
            reduced = np.concatenate([palette.astype(np.uint8)[strip[..., 0]], reduced[..., 1:]], axis=2)
        raw = np.ascontiguousarray(reduced)
        image.paste(Image.frombytes(mode, (right - left, lower - upper), raw.tobytes()), (left, upper))
    return image


def _top(samples: _Samples, layout: Layout) -> float:
    """Return the sample value that becomes 255 when samples are reduced to 8 bits; 0 stays 0."""
    if layout.kind == _UNSIGNED and layout.bits <= 16:
        return (1 << layout.bits) - 1
    strips = (samples[upper:lower] for _, upper, _, lower in strip_boxes(layout.size))
    if layout.kind == _FLOAT:
        return largest_usual(strips)
    return integer_top(strips, most=(1 << layout.bits - (layout.kind == _SIGNED)) - 1)


def _reduce(samples: _Samples, layout: Layout, top: float) -> U8:
    if layout.kind == _UNSIGNED and (layout.bits == 8 or (layout.bits == 16 and samples.shape[2] > 1)):
        # Take the upper 8 bits, as Pillow does for RGB of 16 bits.
        return (samples >> layout.bits - 8).astype(np.uint8)
    return scale(samples, top)


# --- Values of tags -----------------------------------------------------------------------------------------------


def _numbers(tags: TiffImagePlugin.ImageFileDirectory_v2, tag: int, default: tuple[int, ...]) -> tuple[int, ...]:
    value = tags.get(tag, default)
    values = tuple(value) if isinstance(value, (tuple, bytes)) else (value,)
    if not all(isinstance(each, int) and each >= 0 for each in values):
        raise ImageError(f"damaged TIFF: tag {tag} is not a whole number")
    return values


def _number(tags: TiffImagePlugin.ImageFileDirectory_v2, tag: int, default: int) -> int:
    values = _numbers(tags, tag, (default,))
    if not values:
        raise ImageError(f"damaged TIFF: tag {tag} has no value")
    return values[0]


def _one_of_all(tags: TiffImagePlugin.ImageFileDirectory_v2, tag: int, default: int, name: str, samples: int) -> int:
    """Return the value of a tag that must be the same for all samples of a pixel; raise ImageError if values differ."""
    values = set(_numbers(tags, tag, (default,))[: max(1, samples)])
    if len(values) != 1:
        raise ImageError(f"TIFF: different {name} in one pixel ({', '.join(map(str, sorted(values)))}) are not read")
    return values.pop()
