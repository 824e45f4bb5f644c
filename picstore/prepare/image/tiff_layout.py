"""Layout of a TIFF's samples by its tags (TIFF 6.0, BigTIFF), and which layouts are read exactly.

docs/archive/formats-2026-11.md lists what was proven.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, TypeAlias

from PIL import TiffImagePlugin

from picstore.errors import ImageError

Tags: TypeAlias = TiffImagePlugin.ImageFileDirectory_v2

# First bytes of TIFF and BigTIFF files, also of files whose writers swapped the bytes of the magic number.
STARTS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+", b"MM*\0", b"II\0*")


class Tag(IntEnum):
    """Number of a tag in TIFF 6.0 and its supplements."""

    WIDTH = 256
    HEIGHT = 257
    BITS = 258
    COMPRESSION = 259
    PHOTOMETRIC = 262
    FILL_ORDER = 266
    STRIP_OFFSETS = 273
    ORIENTATION = 274
    SAMPLES = 277
    ROWS = 278
    STRIP_COUNTS = 279
    PLANAR = 284
    PREDICTOR = 317
    COLOR_MAP = 320
    TILE_WIDTH = 322
    TILE_HEIGHT = 323
    TILE_OFFSETS = 324
    TILE_COUNTS = 325
    INK_SET = 332
    EXTRA_SAMPLES = 338
    SAMPLE_FORMAT = 339
    COEFFICIENTS = 529
    SUBSAMPLING = 530
    REFERENCE = 532
    ICC_PROFILE = 34675


WHITE_IS_ZERO, BLACK_IS_ZERO, RGB, PALETTE, CMYK, YCBCR, LAB = 0, 1, 2, 3, 5, 6, 8
COLORS = {WHITE_IS_ZERO: 1, BLACK_IS_ZERO: 1, RGB: 3, PALETTE: 1, CMYK: 4, YCBCR: 3, LAB: 3}
_NAMES = {
    WHITE_IS_ZERO: "WhiteIsZero", BLACK_IS_ZERO: "BlackIsZero", RGB: "RGB", PALETTE: "palette", CMYK: "CMYK",
    YCBCR: "YCbCr", LAB: "Lab", 4: "transparency mask", 9: "ICCLab", 10: "ITULab", 32803: "color filter array",
    32844: "LogL", 32845: "LogLuv", 34892: "linear raw",
}  # fmt: skip
UNSIGNED, SIGNED, FLOAT, _UNDEFINED = 1, 2, 3, 4
_KINDS = {UNSIGNED: "unsigned", SIGNED: "signed", FLOAT: "float", 5: "complex integer", 6: "complex"}
ASSOCIATED, _UNASSOCIATED = 1, 2

UNCOMPRESSED, _JPEG = 1, frozenset({6, 7})
_FAX = frozenset({2, 3, 4})
# Numbers of the compressions that treat samples as bytes, whatever their type: none, LZW, Deflate (two numbers),
# PackBits, LZMA and Zstandard.
_BYTE_CODERS = frozenset({UNCOMPRESSED, 5, 8, 32773, 32946, 34925, 50000})
# Compressions for which libtiff ignores a predictor, though other programs undo it.
WITHOUT_PREDICTOR = frozenset({UNCOMPRESSED, 32773})
# By (photometric interpretation, bits), values of ExtraSamples with which Pillow converts unsigned samples exactly.
_EXACT_IN_PILLOW: dict[tuple[int, int], tuple[tuple[int, ...], ...]] = {
    **{(meaning, bits): ((),) for meaning in (WHITE_IS_ZERO, BLACK_IS_ZERO, PALETTE) for bits in (1, 2, 4, 8)},
    **dict.fromkeys(((BLACK_IS_ZERO, 16), (CMYK, 8), (CMYK, 16), (YCBCR, 8), (LAB, 8)), ((),)),
    **{(meaning, 8): ((), (0,), (ASSOCIATED,), (_UNASSOCIATED,)) for meaning in (BLACK_IS_ZERO, RGB)},
    (RGB, 16): ((), (0,), (_UNASSOCIATED,)),
}
_PILLOW_COMPRESSIONS = _BYTE_CODERS | _JPEG | _FAX
# Largest number of bits per pixel in a file; ImageMagick's memory limit is 64 bytes per pixel too.
_MAX_PIXEL_BITS = 512


@dataclass(frozen=True, slots=True)
class Layout:
    """Layout of the samples in the first picture of a TIFF.

    Attributes:
        size: stored width and height, before the orientation is applied.
        order: byte order, "<" or ">".
        bits: bits per sample.
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
        return COLORS[self.photometric] + len(self.extra)

    @property
    def alpha(self) -> int | None:
        """Index in ``extra`` of the first alpha sample; None if there is no alpha."""
        return next((k for k, each in enumerate(self.extra) if each in (ASSOCIATED, _UNASSOCIATED)), None)

    def __str__(self) -> str:
        planes = " in planes" if self.planar else ""
        extra = f" with extra samples {', '.join(map(str, self.extra))}" if self.extra else ""
        name = _NAMES.get(self.photometric, f"photometric interpretation {self.photometric}")
        return f"{name} of {self.bits} bits, {_KINDS[self.kind]}{planes}{extra}, compression {self.compression}"


def read_tags(data: bytes) -> Tags:
    """Read the tags of the first picture in a TIFF. Values are read on access, and only inside the file."""
    big = data[2:4] in (b"+\0", b"\0+")
    # Pillow recognizes BigTIFF only by the little-endian magic number, so write that, and state the file's true byte
    # order in ``prefix``.
    header = b"II+\0" + data[4:16] if big else data[:8]
    tags = Tags(header, prefix=data[:2])
    file = io.BytesIO(data)
    file.seek(tags.next)
    tags.load(file)
    return tags


def read_layout(tags: Tags, order: Literal["<", ">"]) -> Layout:
    """Read the layout from the tags; raise ImageError if tags contradict each other or have an unknown meaning."""
    photometric = read_number(tags, Tag.PHOTOMETRIC, 0)
    compression = read_number(tags, Tag.COMPRESSION, UNCOMPRESSED)
    colors = COLORS.get(photometric)
    if colors is None:
        name = _NAMES.get(photometric, "an unknown meaning of the samples")
        raise ImageError(f"TIFF: {name} (photometric interpretation {photometric}) is not read")
    samples = read_number(tags, Tag.SAMPLES, 3 if compression in _JPEG and colors == 3 else 1)
    bits = _one_of_all(tags, Tag.BITS, 1, "bits a sample", samples)
    kind = _one_of_all(tags, Tag.SAMPLE_FORMAT, UNSIGNED, "sample formats", samples)
    kind = UNSIGNED if kind == _UNDEFINED else kind
    if kind not in _KINDS:
        raise ImageError(f"TIFF: sample format {kind} is unknown")
    if photometric == YCBCR and samples == 1:  # A single sample per pixel is grey, as in a grey JPEG.
        photometric, colors = BLACK_IS_ZERO, 1
    count = samples - colors
    if count < 0 or samples * bits > _MAX_PIXEL_BITS:
        raise ImageError(f"TIFF: {samples} samples a pixel of {bits} bits in {_NAMES[photometric]}")
    extra = read_numbers(tags, Tag.EXTRA_SAMPLES, ())[:count]
    if not extra and count == 1 and photometric == RGB:
        extra = (_UNASSOCIATED,)  # A fourth sample without ExtraSamples is taken for alpha, as by Pillow.
    if len(extra) < count:
        raise ImageError(
            f"TIFF: {samples} samples a pixel in {_NAMES[photometric]}; ExtraSamples does not explain them"
        )
    return Layout(
        (read_number(tags, Tag.WIDTH, 0), read_number(tags, Tag.HEIGHT, 0)), order, bits, kind, photometric, extra,
        read_number(tags, Tag.PLANAR, 1) == 2, compression, read_number(tags, Tag.PREDICTOR, 1),
        read_number(tags, Tag.FILL_ORDER, 1),
    )  # fmt: skip


def is_exact_in_pillow(layout: Layout, tags: Tags) -> bool:
    """Return whether Pillow converts a layout exactly, as tests/prepare/image/test_tiff.py proves."""
    bits, meaning, extra = layout.bits, layout.photometric, layout.extra
    separate = layout.planar and (layout.samples > 1 or layout.compression in _BYTE_CODERS)
    if separate or layout.compression not in _PILLOW_COMPRESSIONS:
        return False
    if layout.compression in _JPEG:
        return bits == 8 and meaning in (BLACK_IS_ZERO, RGB, YCBCR) and not extra
    if layout.kind == FLOAT:
        plain = (bits, meaning, extra, layout.fill_order) == (32, BLACK_IS_ZERO, (), 1)
        return plain and layout.order == "<" and layout.predictor == 1
    if layout.kind != UNSIGNED or extra not in _EXACT_IN_PILLOW.get((meaning, bits), ()):
        return False
    if layout.fill_order != 1:
        return bits < 8 and meaning in (WHITE_IS_ZERO, BLACK_IS_ZERO)
    return meaning != YCBCR or not _is_subsampled(tags)


def is_readable(layout: Layout, tags: Tags) -> bool:
    """Return whether this module can read the samples of a layout, and knows their meaning."""
    bits, meaning, alpha = layout.bits, layout.photometric, layout.alpha
    depths = {UNSIGNED: {*range(1, 17), 24, 32, 64}, SIGNED: {8, 16, 32, 64}, FLOAT: {16, 32, 64}}
    predictors = {1: True, 2: layout.kind != FLOAT and bits in (8, 16, 32, 64), 3: layout.kind == FLOAT}
    if layout.compression not in _BYTE_CODERS or bits not in depths.get(layout.kind, ()):
        return False
    if not predictors.get(layout.predictor, False) or layout.fill_order not in (1, 2):
        return False
    if alpha is not None and (
        meaning in (CMYK, YCBCR, LAB) or (meaning in (WHITE_IS_ZERO, PALETTE) and layout.extra[alpha] == 1)
    ):
        return False
    if meaning == YCBCR:
        usual = not {Tag.COEFFICIENTS, Tag.REFERENCE} & set(tags)
        return layout.kind == UNSIGNED and bits in (8, 16) and not _is_subsampled(tags) and usual
    if meaning == PALETTE:
        return layout.kind == UNSIGNED and bits <= 16 and len(read_numbers(tags, Tag.COLOR_MAP, ())) == 3 << bits
    if meaning == CMYK:
        return layout.kind == UNSIGNED and read_number(tags, Tag.INK_SET, 1) == 1
    return meaning != LAB or (layout.kind == UNSIGNED and bits == 8)


def _is_subsampled(tags: Tags) -> bool:
    return read_numbers(tags, Tag.SUBSAMPLING, (2, 2)) != (1, 1)


def read_numbers(tags: Tags, tag: int, default: tuple[int, ...]) -> tuple[int, ...]:
    """Return the values of a tag; raise ImageError unless all of them are whole numbers from 0."""
    value = tags.get(tag, default)
    values = tuple(value) if isinstance(value, (tuple, bytes)) else (value,)
    if not all(isinstance(each, int) and each >= 0 for each in values):
        raise ImageError(f"damaged TIFF: tag {tag} is not a whole number")
    return values


def read_number(tags: Tags, tag: int, default: int) -> int:
    """Return the first value of a tag; raise ImageError unless its values are whole numbers from 0."""
    values = read_numbers(tags, tag, (default,))
    if not values:
        raise ImageError(f"damaged TIFF: tag {tag} has no value")
    return values[0]


def _one_of_all(tags: Tags, tag: int, default: int, name: str, samples: int) -> int:
    values = set(read_numbers(tags, tag, (default,))[: max(1, samples)])
    if len(values) != 1:
        raise ImageError(f"TIFF: different {name} in one pixel ({', '.join(map(str, sorted(values)))}) are not read")
    return values.pop()
