"""Pictures for the page: thumbnails, whole images, crops decoded from part of a JPEG, and attachments."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

import picstore
from picstore.arrays import U8, Array
from picstore.errors import ImageError, UsageError
from picstore.jpeg.decode_any import decode_rgb
from picstore.jpeg.markers import parse_header
from picstore.jpeg.pixels import Box
from picstore.jpeg.reducing import decode_factors
from picstore.prepare.engine.library_errors import foreign_errors
from picstore.prepare.image.decoder_process import decode_apart
from picstore.prepare.image.encode_settings import EncodeSettings, Size
from picstore.prepare.image.mend_files import leave_out_metadata
from picstore.prepare.image.size_limits import check_size, open_by_pillow
from picstore.storage.format.maps import export_map
from picstore.storage.format.record import Record

JPEG, PNG = "image/jpeg", "image/png"
_QUALITY = 85
# A stored JPEG is sent unchanged as its thumbnail if its longer side is at most this many times the requested size.
_SEND_AS_STORED_UP_TO = 2
_MAX_PIXELS = 1 << 26  # Limit of pixels that all requests together decode at a time; as RGB they take 0.2 GB.
_MAX_CROP = 1 << 22  # Number of pixels to which a larger crop is reduced before it is sent.
_PHI = 0.618034  # Hues of values k and k + 1 differ by this part of a turn, the golden ratio, so they look different.


@dataclass(frozen=True, slots=True)
class Picture:
    """Image file that browsers can show: its media type and bytes."""

    media_type: str
    data: bytes


class _Budget:
    """Limit of the pixels that all threads decode at the same time, because a browser requests six pictures at once."""

    def __init__(self, pixels: int) -> None:
        self._left = pixels
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def take(self, pixels: int) -> Iterator[None]:
        """Wait until ``pixels`` more pixels may be decoded; raise ImageError if they alone exceed _MAX_PIXELS."""
        if pixels > _MAX_PIXELS:
            raise ImageError(f"{pixels:,} pixels; the page decodes at most {_MAX_PIXELS:,} for a picture")
        with self._changed:
            self._changed.wait_for(lambda: self._left >= pixels)
            self._left -= pixels
        try:
            yield
        finally:
            with self._changed:
                self._left += pixels
                self._changed.notify_all()


_decoding = _Budget(_MAX_PIXELS)
_loading = threading.Lock()


def load_kernels() -> None:
    """Compile or load, once, the kernels that pictures and recipes need; other requests that call this wait."""
    with _loading:
        _load_kernels()


@functools.cache
def _load_kernels() -> None:
    from picstore.jpeg.cut import cut_all
    from picstore.jpeg.decoder.decode_baseline import decode_rows, open_stream
    from picstore.kernels.ahead import compile_ahead

    kernels = [cut_all, open_stream, decode_rows]
    if importlib.util.find_spec("torch") is not None:  # The page then shows recipes too.
        from picstore.train.cpu.needed_kernels import standard_kernels

        kernels += standard_kernels()
    compile_ahead(kernels)


def thumbnail(record: Record, name: str, size: int) -> Picture:
    """Return a reduced picture of an image, with at least ``size`` pixels on the longer side if the image has them.

    A large JPEG is decoded at 1/8, 1/4 or 1/2 size. Raise ImageError if the image cannot be decoded or is too large.

    Args:
        name: name of the image's file if ``record.info.foreign``, otherwise unused.
    """
    longer = max(record.width, record.height)
    if record.info.foreign:
        return _encode(_decode_foreign(record, name, Size("longer", size, size)))
    if longer <= _SEND_AS_STORED_UP_TO * size:
        return Picture(JPEG, bytes(record.jpeg))
    load_kernels()
    factor = int(decode_factors(min(longer / size, record.width, record.height), 1.0))
    with _decoding.take(record.width * record.height // factor**2):
        return _encode(decode_rgb(record.jpeg, width=record.width, height=record.height, factor=factor))


def whole(record: Record, name: str) -> Picture:
    """Return the stored JPEG, or an image in another format as PNG; raise ImageError if decoding it fails."""
    return _encode(_decode_foreign(record, name), PNG) if record.info.foreign else Picture(JPEG, bytes(record.jpeg))


def crop(record: Record, name: str, box: Box) -> Picture:
    """Decode only the tiles that a box of an image touches, and return the box as PNG; a large box is reduced.

    Raises:
        UsageError: the box is empty or not within the image.
        ImageError: the image cannot be decoded, or has too many pixels.
    """
    left, top, width, height = _checked_box(record, box)
    if record.info.foreign:
        return _encode(_decode_foreign(record, name)[top : top + height, left : left + width], PNG)
    load_kernels()
    scale = min(1.0, (_MAX_CROP / max(1, width * height)) ** 0.5)
    size = None if scale == 1 else (max(1, int(height * scale)), max(1, int(width * scale)))
    with _decoding.take(width * height):
        return _encode(picstore.decode(record.jpeg, box, size), PNG)


def measure_cut(record: Record, box: Box) -> dict[str, Any]:
    """Cut a box out of a JPEG without decoding, and measure the cut; errors are those of :func:`crop`.

    Returns:
        Sizes in bytes of the cut JPEG (``bytes``) and of the whole JPEG (``of``); their numbers of restart tiles
        (``tiles``, ``of_tiles``); and ``rect``, the cut's left, top, width and height in pixels of the image.
    """
    load_kernels()
    stream, (x, y) = picstore.cut(record.jpeg, _checked_box(record, box))
    header = parse_header(stream)
    columns, rows = header.mcus
    tiles = columns * rows // (header.restart_interval or columns * rows)
    rect = box[0] - x, box[1] - y, header.width, header.height
    sizes = {"bytes": len(stream), "of": len(record.jpeg)}
    return sizes | {"rect": rect, "tiles": tiles, "of_tiles": max(1, len(record.info.segments))}


def _checked_box(record: Record, box: Box) -> Box:
    left, top, width, height = box
    if left + width > record.width or top + height > record.height:
        raise UsageError(f"the box {box} is not within the image of {record.width} × {record.height} pixels")
    return box


def attachment(record: Record, name: str) -> Picture:
    """Return an attachment's JPEG, or a PNG with a color for each mask value; raise ImageError for other contents."""
    blob = bytes(export_map(record.attachments[name], record.width, record.height))
    if blob.startswith(b"\xff\xd8"):
        return Picture(JPEG, blob)
    with foreign_errors(f"{name} is not a picture"):
        bare = leave_out_metadata(blob).data
        image = open_by_pillow(bare, ["PNG", "TIFF", "BMP", "GIF"])
        check_size(*image.size, max_pixels=_MAX_PIXELS)
        with _decoding.take(image.width * image.height):
            values = np.asarray(image)
            return _encode(values if values.ndim == 3 else mask_colors(values), PNG)


def mask_colors(values: Array) -> U8:
    """Color each value of a mask, (height, width); return RGBA, uint8 (height, width, 4), in which 0 is transparent."""
    if values.dtype == np.uint8:
        # Compute the colors of all 256 values, which takes 4 bytes per pixel; ``np.unique`` would take 40 bytes.
        distinct, number = np.arange(256), values
    else:
        distinct, number = np.unique(values, return_inverse=True)
    hue = distinct.astype(np.float64) * _PHI % 1
    wheel = np.abs((hue[:, None] + np.array([0.0, 2 / 3, 1 / 3])) % 1 * 6 - 3) - 1
    table = np.full((len(distinct), 4), 255, dtype=np.uint8)
    table[:, :3] = 40 + 215 * np.clip(wheel, 0, 1)
    table[distinct == 0, 3] = 0
    return table[number.reshape(values.shape)]


def encode_pixels(pixels: U8) -> Picture:
    """Encode an RGB image as PNG."""
    return _encode(pixels, PNG)


def _encode(pixels: U8, media_type: str = JPEG) -> Picture:
    out = io.BytesIO()
    options = {"quality": _QUALITY} if media_type == JPEG else {"compress_level": 1}
    Image.fromarray(np.ascontiguousarray(pixels)).save(out, media_type.partition("/")[2], **options)
    return Picture(media_type, out.getvalue())


def _decode_foreign(record: Record, name: str, resize: Size | None = None) -> U8:
    """Decode an indexed image that is rotated by EXIF or not a JPEG, as ``picstore convert`` would decode it.

    A separate process decodes, because some decoders hold the GIL, which other requests need. Raise ImageError if the
    image cannot be decoded or is too large.
    """
    pixels = record.width * record.height
    with _decoding.take(pixels):
        settings = EncodeSettings(max_pixels=pixels, resize=resize)
        return decode_apart(bytes(record.jpeg), settings=settings, name=name).rgb()
