"""The check of a stream before a decoder of another project takes it, on the CPU or on a device."""

from __future__ import annotations

from picstore.arrays import U8
from picstore.errors import ImageError
from picstore.jpeg.decoder.decode_baseline import frame_size
from picstore.jpeg.markers import parse_header
from picstore.jpeg.tiles import MAX_PIXELS_A_BYTE

_MAX_SCANS = 100  # progressive JPEGs have about ten; each marker counts, even one in a comment


def check_stream(jpeg: bytes | memoryview | U8, *, width: int, height: int) -> None:
    """Bound what a decoder does for a stream of any kind by the stream's bytes; they decode whatever headers claim.

    Args:
        jpeg: one whole stream, or a cut.
        width, height: its size in pixels, as the index says.

    Raises:
        ImageError: the headers are damaged or of another size, more pixels are claimed than the bytes can hold, or
            there are more than 100 scans, each of which may cost as much as the whole image.
    """
    if frame_size(jpeg) == (width, height):  # 13 us, without the GIL; the rest takes 20
        return
    data = bytes(jpeg)
    try:
        header = parse_header(data)
    except ImageError as error:
        raise ImageError(f"does not decode: {error}") from error
    if (header.width, header.height) != (width, height):
        raise ImageError(f"is of {header.width} × {header.height} pixels by its headers, not {width} × {height}")
    if width * height > MAX_PIXELS_A_BYTE * len(data):
        raise ImageError(f"claims {width} × {height} pixels, more than {len(data):,} bytes hold")
    if data.count(b"\xff\xda") > _MAX_SCANS:
        raise ImageError(f"has more than {_MAX_SCANS} scans")
