"""Maps: values on the pixels of an image, such as depth, which are stored without loss (docs/format.md, "Maps").

A map is an attachment ``map:NAME`` with the size of its image, stored as a PNG, or as blocks of rows that zstd
compresses. Of a PNG, all rows above the end of a crop must be decoded, of blocks only those that the crop touches.
"""

from __future__ import annotations

import dataclasses
import io
import math
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from picstore.arrays import Array
from picstore.errors import ImageError, UsageError
from picstore.storage.format.zstd import ZstdDecompressor, ZstdError, compress

PREFIX = "map:"
DTYPES = ("uint8", "uint16", "float16", "float32")
INTERPOLATIONS = ("nearest", "linear")
MAX_CHANNELS = 4
_NAN = "nan"  # String that stands for NaN in a manifest, because JSON has no such number.

MAGIC = b"PICM"
# Header of a map in blocks: magic number, version, index in DTYPES, channels, width, height, number of rows in a block.
_HEADER = struct.Struct("<4sBBBxHHI")
# Approximate size of a block of rows in bytes, uncompressed. It is small, because a crop decodes whole blocks.
_BLOCK_BYTES = 1 << 16
_PNG = b"\x89PNG\r\n\x1a\n"
# Dtype and number of channels of a map that is a PNG, by the PNG's color type and bits per sample. If the PNG has a
# palette (color type 3), the palette indices are the values of the map.
_PNG_FORMS = dict.fromkeys(((3, 1), (3, 2), (3, 4), (3, 8), (0, 8)), ("uint8", 1)) | {
    (0, 16): ("uint16", 1),
    (2, 8): ("uint8", 3),
    (6, 8): ("uint8", 4),
}
# Pillow's mode of a map that may be written as PNG, by dtype and number of channels.
_PNG_MODES = {("uint8", 1): "L", ("uint16", 1): "I;16", ("uint8", 3): "RGB", ("uint8", 4): "RGBA"}
# Level at which zstd compresses blocks. A map of smooth depth then has 1 % more bytes than a PNG; at level 3, 14 %.
_LEVEL = 5
_PNG_KEPT = (b"PLTE", b"IDAT", b"IEND")


@dataclass(frozen=True, slots=True, kw_only=True)
class MapSpec:
    """Specification, in the manifest, of all maps of one name (arrays with values for each pixel, such as depth).

    Attributes:
        dtype, channels: dtype of each map, one of ``DTYPES``, and number of channels, 1 to ``MAX_CHANNELS``.
        scale, unit: factor and unit; a stored value times ``scale`` is a quantity in ``unit``.
        interpolation: interpolation of values between pixels, ``"nearest"`` or ``"linear"``.
        fill: value for pixels outside of the image.
        invalid: stored number that means a missing value; None if only NaN and infinity do.
    """

    dtype: str
    channels: int
    scale: float = 1.0
    unit: str = ""
    interpolation: str = "nearest"
    fill: float = 0.0
    invalid: float | None = None

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise UsageError(f"dtype {self.dtype!r} is not one of {', '.join(DTYPES)}; name one, as in dtype=float32")
        if not 1 <= self.channels <= MAX_CHANNELS:
            raise UsageError(f"channels is {self.channels}; give 1 to {MAX_CHANNELS}")
        if self.interpolation not in INTERPOLATIONS:
            raise UsageError(f"interpolation {self.interpolation!r} is not one of {', '.join(INTERPOLATIONS)}")
        if math.isinf(self.fill) or not math.isfinite(self.scale) or not math.isfinite(self.invalid or 0.0):
            raise UsageError(
                f"scale {self.scale}, fill {self.fill} and the number of no value, {self.invalid}, must be finite"
            )
        for name, value in (("fill", self.fill), ("invalid", self.invalid)):
            if value is not None and not can_hold(np.dtype(self.dtype), value):
                raise UsageError(
                    f"{name} is {value:g}, which {self.dtype} cannot hold; give a number of it, or another dtype"
                )

    def to_json(self) -> dict[str, Any]:
        fill: float | str = _NAN if math.isnan(self.fill) else self.fill
        return {"kind": "map", **dataclasses.asdict(self), "fill": fill}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> MapSpec:
        """Build the specification from its entry in the manifest; raise UsageError if the entry is malformed."""
        numbers: dict[str, Any] = {name: entry.get(name) for name in ("channels", "scale", "fill", "invalid")}
        if numbers["fill"] == _NAN:
            numbers["fill"] = math.nan
        if numbers["invalid"] is None:
            del numbers["invalid"]
        texts: dict[str, Any] = {name: entry.get(name) for name in ("dtype", "unit", "interpolation")}
        if entry.keys() != {"kind", *cls.__slots__} or entry["kind"] != "map" or type(entry["channels"]) is not int:
            raise UsageError(f"has the members {', '.join(entry)}; they must be kind, {', '.join(cls.__slots__)}")
        if not all(type(each) in (int, float) for each in numbers.values()):
            raise UsageError(f"channels, scale, fill and the number of no value must be numbers: {numbers}")
        if not all(isinstance(each, str) for each in texts.values()):
            raise UsageError(f"dtype, unit and interpolation must be texts: {texts}")
        return cls(**texts, **numbers)


class StoredMap(NamedTuple):
    """Bytes of one stored map, and the specification that the dataset has for all maps of the same name."""

    spec: MapSpec
    blob: bytes | memoryview


def can_hold(dtype: np.dtype[Any], value: float) -> bool:
    """Return whether a dtype can hold a number: exactly for integer dtypes, perhaps rounded for float dtypes."""
    if dtype.kind == "f":
        return not math.isfinite(value) or abs(value) <= float(np.finfo(dtype).max)
    return math.isfinite(value) and value == int(value) and 0 <= value <= np.iinfo(dtype).max


# --- Encoding -----------------------------------------------------------------------------------------------------


def encode_map(values: Array) -> bytes:
    """Encode a map, (h, w, channels) of a dtype in ``DTYPES``, as PNG or as blocks of rows.

    A map of uint8 with 1, 3 or 4 channels is written as PNG. A map of uint16 with 1 channel is written as PNG if its
    values compress better than the differences between neighboring values, which blocks hold. This is so for masks and
    sparse depth, whose blocks would take 1.3 to 1.7 times the bytes; blocks of smooth depth take about as many bytes as
    a PNG and decode 3 times as fast. All other maps are written as blocks.
    """
    height, width, channels = values.shape
    fits_png = (values.dtype.name, channels) in _PNG_MODES
    if fits_png and values.itemsize == 1:
        return _encode_png(values)
    rows = max(1, min(height, _BLOCK_BYTES // (width * channels * values.itemsize)))
    frames = [compress(_to_planes(values[top : top + rows]), level=_LEVEL) for top in range(0, height, rows)]
    if fits_png and len(compress(values.tobytes(), level=_LEVEL)) < sum(map(len, frames)):
        return _encode_png(values)
    header = _HEADER.pack(MAGIC, 1, DTYPES.index(values.dtype.name), channels, width, height, rows)
    return b"".join([header, np.array(list(map(len, frames)), "<u4").tobytes(), *frames])


def _encode_png(values: Array) -> bytes:
    from PIL import Image  # Imported only here, because few records have maps.

    height, width, channels = values.shape
    raw = values.astype(values.dtype.newbyteorder("<")).tobytes()
    out = io.BytesIO()
    Image.frombytes(_PNG_MODES[values.dtype.name, channels], (width, height), raw).save(out, "PNG")
    return out.getvalue()


def export_map(blob: bytes | memoryview, width: int, height: int) -> bytes | memoryview:
    """Return a uint16 map of 1 channel as PNG, which other programs can read; return any other blob unchanged.

    A map is also unchanged if it is damaged, or its size is not the image's, ``width`` × ``height``.
    """
    try:
        is_uint16 = blob[:4] == MAGIC and read_form(blob) == ("uint16", 1, width, height)
        return _encode_png(decode_map(blob)) if is_uint16 else blob
    except ImageError:
        return blob


def _bits(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(f"u{dtype.itemsize}")


def _to_planes(block: Array) -> bytes:
    """Convert a block of rows to bytes that compress well.

    Each value is replaced by its difference from the left neighbor. The lowest bytes of all differences come first,
    then the second lowest bytes, and so on. zstd compresses the result to half to two thirds of the size that it
    reaches for plain values.
    """
    bits = np.ascontiguousarray(block.transpose(0, 2, 1)).view(_bits(block.dtype))
    bits = np.concatenate([bits[:, :, :1], bits[:, :, 1:] - bits[:, :, :-1]], axis=2)
    bytes_ = bits.astype(bits.dtype.newbyteorder("<")).view(np.uint8).reshape(-1, bits.itemsize)
    return np.ascontiguousarray(bytes_.T).tobytes()


def _from_planes(planes: bytes, shape: tuple[int, int, int], dtype: np.dtype[Any]) -> Array:
    rows, width, channels = shape
    of_weight = np.frombuffer(planes, np.uint8).reshape(dtype.itemsize, rows, channels, width)
    # Joining the bytes by shifts takes a fifth of the time that transposing the array of bytes takes.
    bits = of_weight[-1].astype(_bits(dtype))
    for plane in of_weight[-2::-1]:
        bits = bits << 8 | plane
    values: Array = np.cumsum(bits, axis=2, dtype=bits.dtype).view(dtype).transpose(0, 2, 1)
    return values


# --- Decoding -----------------------------------------------------------------------------------------------------


def decode_map(blob: bytes | memoryview, *, rows: tuple[int, int] | None = None) -> Array:
    """Decode a stored map, or some of its pixel rows.

    Args:
        blob: attachment ``map:NAME`` of a record.
        rows: index of the first row to decode, and index of the last one + 1; None for all rows.

    Returns:
        Values (rows, width, channels) of uint8, uint16, float16 or float32.

    Raises:
        ImageError: the blob is not a stored map, or is damaged.
    """
    dtype, channels, width, height = read_form(blob)
    top, bottom = (0, height) if rows is None else (max(rows[0], 0), min(rows[1], height))
    if top >= bottom:
        return np.empty((0, width, channels), dtype)
    if blob[:4] == MAGIC:
        return _decode_blocks(memoryview(blob), (top, bottom))
    return _decode_png(bytes(blob), (top, bottom)).reshape(bottom - top, width, channels)


def read_form(blob: bytes | memoryview) -> tuple[str, int, int, int]:
    """Return dtype, number of channels, width and height of a stored map; raise ImageError if it is not a map."""
    if blob[:4] == MAGIC and len(blob) >= _HEADER.size:
        _, version, code, channels, width, height, rows = _HEADER.unpack_from(blob)
        if version == 1 and code < len(DTYPES) and 1 <= channels <= MAX_CHANNELS and width and 0 < rows <= height:
            return DTYPES[code], channels, width, height
        raise ImageError(f"is a map of version {version} whose header is damaged or unknown")
    if blob[:8] == _PNG and blob[12:16] == b"IHDR" and len(blob) >= 33:
        width, height, bits, color = struct.unpack_from(">IIBB", blob, 16)
        form = _PNG_FORMS.get((color, bits))
        if form is not None and width and height and not blob[28]:
            return (*form, width, height)
        raise ImageError(f"is a PNG of color type {color} with {bits} bits a sample, which is not the form of a map")
    raise ImageError("is neither a PNG nor blocks of rows")


def check_form(blob: bytes | memoryview, spec: MapSpec, width: int, height: int) -> None:
    """Raise ImageError unless a stored map has the dtype and channels of ``spec``, and is ``width`` × ``height``."""
    dtype, channels, *size = read_form(blob)
    if size != [width, height]:
        raise ImageError(f"has {size[0]} × {size[1]} pixels, its image {width} × {height}")
    if (dtype, channels) != (spec.dtype, spec.channels):
        raise ImageError(f"is {dtype} of {channels} channels; the dataset states {spec.dtype} of {spec.channels}")


def map_problem(name: str, blob: bytes | memoryview, spec: MapSpec, size: tuple[int, int]) -> str:
    """Return a message if a stored map is damaged or contradicts ``spec`` or ``size`` (width, height), else ""."""
    try:
        check_form(blob, spec, *size)
        decode_map(blob)
    except ImageError as error:
        return f"{name} {error}"
    return ""


def _decode_blocks(blob: memoryview, span: tuple[int, int]) -> Array:
    _, _, code, channels, width, height, rows = _HEADER.unpack_from(blob)
    dtype, count = np.dtype(DTYPES[code]), -(-height // rows)
    start = _HEADER.size + 4 * count
    if start > len(blob):
        raise ImageError("is truncated: its table of blocks is not whole")
    ends = start + np.cumsum(np.frombuffer(blob[_HEADER.size : start], "<u4").astype(np.int64))
    if ends[-1] != len(blob):
        raise ImageError(f"has blocks of {ends[-1]} bytes in {len(blob)}")
    top, bottom = span
    first, last = top // rows, (bottom - 1) // rows
    out = np.empty((min((last + 1) * rows, height) - first * rows, width, channels), dtype)
    for k in range(first, last + 1):
        part = out[(k - first) * rows : (k - first + 1) * rows]
        part[:] = _from_planes(_decompress(blob[ends[k - 1] if k else start : ends[k]], part.nbytes), part.shape, dtype)
    return out[top - first * rows : bottom - first * rows]


def _decompress(frame: memoryview, size: int) -> bytes:
    """Decompress a zstd frame, allocating at most ``size`` bytes; raise ImageError unless it holds ``size`` bytes."""
    try:
        decompressor = ZstdDecompressor()
        planes: bytes = decompressor.decompress(frame, size)
        # If ``size`` bytes were returned before the frame's end was read, this call reads the end, and any excess byte.
        rest = b"" if decompressor.eof else decompressor.decompress(b"", 1)
    except ZstdError as error:
        raise ImageError(f"is damaged: {error}") from error
    if len(planes) != size or rest or not decompressor.eof or decompressor.unused_data:
        raise ImageError("is damaged: a block has another size than its rows")
    return planes


def _decode_png(blob: bytes, span: tuple[int, int]) -> Array:
    """Decode the rows ``span`` (first row, last row + 1) of a PNG; cut off the rest, so that Pillow decodes no more."""
    from PIL import PngImagePlugin

    top, bottom = span
    try:
        # Call Pillow's PNG class directly, because ``Image.open`` rejects images of more than 179 million pixels.
        with PngImagePlugin.PngImageFile(io.BytesIO(_png_of_rows(blob, bottom))) as image:
            values = np.asarray(image)
    except Exception as error:  # Pillow raises errors of many classes.
        raise ImageError(f"is damaged: {error}") from error
    return values[top:].astype(np.uint16 if values.itemsize > 1 else np.uint8)


def _png_of_rows(blob: bytes, rows: int) -> bytes:
    """Return a PNG of the first ``rows`` rows of a PNG: the same compressed pixels, a header with that height."""
    header = blob[12:20] + struct.pack(">I", rows) + blob[24:29]
    parts = [blob[:12], header, struct.pack(">I", zlib.crc32(header))]
    at = 33
    while at + 12 <= len(blob):
        end = at + 12 + int.from_bytes(blob[at : at + 4], "big")
        if blob[at + 4 : at + 8] in _PNG_KEPT:
            parts.append(blob[at:end])
        at = end
    return b"".join(parts)


Form = Literal["stored", "scaled", "valid"]
_FORMS: tuple[Form, ...] = ("scaled", "valid")


def split_target(name: str) -> tuple[str, Form]:
    """Split a target such as ``map:depth:scaled`` into an attachment's name and the kind of values ("scaled")."""
    for form in _FORMS:
        if name.startswith(PREFIX) and name.endswith(f":{form}"):
            return name.removesuffix(f":{form}"), form
    return name, "stored"
