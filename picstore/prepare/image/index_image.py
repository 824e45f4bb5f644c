"""Index entry of an image that stays in its file: upright JPEGs by their headers, all others by decoding them once."""

from __future__ import annotations

from picstore.errors import ImageError
from picstore.jpeg.headers import read_coding_parameters
from picstore.jpeg.markers import Header, find_restart_segments, header_from_segments, iterate_marker_segments
from picstore.prepare.image.decode_image import decode_bounded, decode_file
from picstore.prepare.image.encode_settings import MAX_SIDE, EncodeSettings
from picstore.prepare.image.exif_orientation import CoordinateMap
from picstore.prepare.image.image_info import make_image_info
from picstore.prepare.image.training_jpeg import TrainingJpeg
from picstore.storage.format.record import ImageInfo

INDEXED = "indexed"  # status
_END = b"\xff\xd9"  # EOI
_PROCESSES = ("baseline", "extended", "progressive")  # that libjpeg-turbo decodes at any scale


def index_image(data: bytes, *, settings: EncodeSettings, name: str = "", bounded: bool = False) -> TrainingJpeg:
    """Describe an image for training in place.

    An upright JPEG of 8 bits is taken as it is, up to its EOI, and not decoded. Any other file is decoded, so that its
    upright size is known and it fails now, not during training.

    Args:
        settings: ``max_pixels`` and ``background`` are used.
        name: the file's name; its extension identifies formats without a magic number.
        bounded: decode other files as :func:`picstore.prepare.image.decode_image.decode_bounded` does.

    Returns:
        The bytes to refer to, with the status ``INDEXED`` and the reason for which they are foreign, if they are.

    Raises:
        ImageError: the source is no image, is damaged, too large, or of a kind that cannot be read.
    """
    try:
        return _index_jpeg(data, settings)
    except ImageError:
        decoded = (decode_bounded if bounded else decode_file)(data, settings=settings, name=name)
        info = ImageInfo(*decoded.coordinates.upright_size, foreign=True)
        return TrainingJpeg(data, info, decoded.coordinates, INDEXED, decoded.origin)


def _index_jpeg(data: bytes, settings: EncodeSettings) -> TrainingJpeg:
    """Describe an upright JPEG by its headers and restart markers; ImageError for all others."""
    segments = tuple(iterate_marker_segments(data))
    header = header_from_segments(segments)
    size = header.width, header.height
    usual = header.process in _PROCESSES and header.precision == 8 and header.sampling
    if not usual or max(size) > MAX_SIDE or size[0] * size[1] > settings.max_pixels:
        raise ImageError("an unusual JPEG")
    if read_coding_parameters(segments).orientation != 1:
        raise ImageError("rotated by EXIF")
    info, end = _find_end(data, header)
    return TrainingJpeg(data[:end], info, CoordinateMap(1, size, size), INDEXED)


def _find_end(data: bytes, header: Header) -> tuple[ImageInfo, int]:
    """Find restart segments and the offset behind EOI; of several scans the end of the file."""
    if header.process == "progressive" or header.scan_components < len(header.components):
        if data.rfind(_END, header.length) < 0:
            raise ImageError("its end is missing")
        return ImageInfo(header.width, header.height, header.sampling, header_length=header.length), len(data)
    starts, ends = find_restart_segments(data, header)
    return make_image_info(header, ends - starts), int(ends[-1]) + len(_END)
