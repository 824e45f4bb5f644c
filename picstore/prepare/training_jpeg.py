"""Any image to a training JPEG (docs/design.md, "Training JPEG"): without loss where that can be, else encoded anew."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image

from picstore.errors import ImageError, NotTranscodable
from picstore.jpeg import markers
from picstore.jpeg.transcode import add_restart_markers
from picstore.prepare.ledger import LOSSLESS, REENCODED
from picstore.prepare.placement import Placement
from picstore.prepare.reencode import decode_any, encode
from picstore.prepare.settings import MAX_SIDE, EncodeSettings

_START = b"\xff\xd8\xff"  # SOI, and the first byte of another marker
_END = b"\xff\xd9"  # EOI; entropy-coded data cannot hold it (T.81, B.1.1.5)


@dataclass(frozen=True, slots=True)
class TrainingJpeg:
    """A training JPEG and how it came about.

    Attributes:
        status: ``"lossless"``, or ``"reencoded"`` for ``reason``.
        placement: where the points of the source's image lie in it.
    """

    jpeg: bytes
    placement: Placement
    status: str
    reason: str = ""


def make_training_jpeg(
    source: bytes | Image.Image | npt.NDArray[np.uint8], *, settings: EncodeSettings, name: str = ""
) -> TrainingJpeg:
    """Make a training JPEG: add restart markers to the bytes of a JPEG, or encode anew what that is not possible for.

    Args:
        source: as of :func:`picstore.prepare.reencode.reencode`.
        settings: ``reencode`` switches the lossless way off; ``resize`` does for images whose size it changes.
        name: the file's name; its extension tells formats apart that have no magic number.

    Raises:
        ImageError: the source is no image, is damaged, too large, or of a kind that cannot be read.
    """
    why = ""
    if isinstance(source, bytes) and source.startswith(_START) and not settings.reencode:
        try:
            size = _size_in_header(source)
            if _may_stay(size, settings):
                return TrainingJpeg(add_restart_markers(source), Placement(1, size, size), LOSSLESS)
        except NotTranscodable as error:
            why = str(error)
    decoded = decode_any(source, settings=settings, name=name)
    jpeg = encode(decoded, settings=settings)
    if settings.reencode and decoded.origin == "JPEG":
        why = "--reencode"
    return TrainingJpeg(jpeg, decoded.placement, REENCODED, why or decoded.origin)


def _size_in_header(jpeg: bytes) -> tuple[int, int]:
    """Width and height of a JPEG in pixels.

    Raises:
        NotTranscodable: its headers cannot be read, or its end is missing, which Pillow calls truncated.
    """
    try:
        header = markers.parse(jpeg)
    except ImageError as error:
        raise NotTranscodable(f"damaged JPEG: {error}") from error
    if jpeg.rfind(_END, header.length) < 0:
        raise NotTranscodable("damaged JPEG: its end is missing")
    return header.width, header.height


def _may_stay(size: tuple[int, int], settings: EncodeSettings) -> bool:
    """Whether a JPEG may stay as large as it is. If not, decoding it is what resizes or refuses it."""
    allowed = max(size) <= MAX_SIDE and size[0] * size[1] <= settings.max_pixels
    return allowed and (settings.resize is None or settings.resize.target(*size) == size)
