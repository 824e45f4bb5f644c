"""Any image to a training JPEG (docs/design.md, "Training JPEG"): without loss where that can be, else encoded anew."""

from __future__ import annotations

from dataclasses import dataclass

from PIL import Image

from picstore.arrays import U8
from picstore.errors import NotTranscodable
from picstore.jpeg.markers import Header
from picstore.jpeg.transcode import read_marker_segments, transcode
from picstore.prepare.image.coordinates import Placement
from picstore.prepare.image.encode import decode_any, encode
from picstore.prepare.image.image_info import make_image_info, parse_image_info
from picstore.prepare.image.settings import MAX_SIDE, EncodeSettings
from picstore.storage.format.record import ImageInfo

LOSSLESS, REENCODED = "lossless", "reencoded"  # statuses

_START = b"\xff\xd8\xff"  # SOI, and the first byte of another marker
_END = b"\xff\xd9"  # EOI; entropy-coded data cannot hold it (T.81, B.1.1.5)


@dataclass(frozen=True, slots=True)
class TrainingJpeg:
    """A training JPEG and how it came about.

    Attributes:
        info: what the index of a container says of it.
        status: ``"lossless"``, or ``"reencoded"`` for ``reason``.
        placement: where the points of the source's image lie in it.
    """

    jpeg: bytes
    info: ImageInfo
    placement: Placement
    status: str
    reason: str = ""


def make_training_jpeg(source: bytes | Image.Image | U8, *, settings: EncodeSettings, name: str = "") -> TrainingJpeg:
    """Make a training JPEG: add restart markers to the bytes of a JPEG, or encode anew what that is not possible for.

    Args:
        source: as of :func:`picstore.prepare.image.encode.reencode`.
        settings: ``reencode`` switches the lossless way off; ``resize`` does for images whose size it changes.
        name: the file's name; its extension tells formats apart that have no magic number.

    Raises:
        ImageError: the source is no image, is damaged, too large, or of a kind that cannot be read.
    """
    why = ""
    if isinstance(source, bytes) and source.startswith(_START) and not settings.reencode:
        try:
            segments, header = read_marker_segments(source)
            _require_end(source, header)
            size = header.width, header.height
            if _may_stay(size, settings):
                marked = transcode(source, segments, header)
                info = make_image_info(marked.header, marked.lengths)
                return TrainingJpeg(marked.jpeg, info, Placement(1, size, size), LOSSLESS)
        except NotTranscodable as error:
            why = str(error)
    decoded = decode_any(source, settings=settings, name=name)
    jpeg = encode(decoded, settings=settings)
    if settings.reencode and decoded.origin == "JPEG":
        why = "--reencode"
    return TrainingJpeg(jpeg, parse_image_info(jpeg), decoded.placement, REENCODED, why or decoded.origin)


def _require_end(jpeg: bytes, header: Header) -> None:
    """NotTranscodable where the end is missing, which Pillow calls truncated."""
    if jpeg.rfind(_END, header.length) < 0:
        raise NotTranscodable("damaged JPEG: its end is missing")


def _may_stay(size: tuple[int, int], settings: EncodeSettings) -> bool:
    """Whether a JPEG may stay as large as it is. If not, decoding it is what resizes or refuses it."""
    allowed = max(size) <= MAX_SIDE and size[0] * size[1] <= settings.max_pixels
    return allowed and (settings.resize is None or settings.resize.target(*size) == size)
