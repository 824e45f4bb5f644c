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
from picstore.prepare.reencode import reencode
from picstore.prepare.settings import MAX_SIDE, EncodeSettings

_START = b"\xff\xd8\xff"  # SOI, and the first byte of another marker
_END = b"\xff\xd9"  # EOI; entropy-coded data cannot hold it (T.81, B.1.1.5)


@dataclass(frozen=True, slots=True)
class TrainingJpeg:
    """A training JPEG and how it came about: ``status`` is ``"lossless"``, or ``"reencoded"`` for ``reason``."""

    jpeg: bytes
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
            if _may_stay(source, settings):
                return TrainingJpeg(add_restart_markers(source), LOSSLESS)
        except NotTranscodable as error:
            why = str(error)
    jpeg, origin = reencode(source, settings=settings, name=name)
    if settings.reencode and origin == "JPEG":
        why = "--reencode"
    return TrainingJpeg(jpeg, REENCODED, why or origin)


def _may_stay(jpeg: bytes, settings: EncodeSettings) -> bool:
    """Whether a JPEG may stay as large as it is. If not, decoding it is what resizes or refuses it.

    Raises:
        NotTranscodable: its headers cannot be read, or its end is missing, which Pillow calls truncated.
    """
    try:
        header = markers.parse(jpeg)
    except ImageError as error:
        raise NotTranscodable(f"damaged JPEG: {error}") from error
    if jpeg.rfind(_END, header.length) < 0:
        raise NotTranscodable("damaged JPEG: its end is missing")
    size = header.width, header.height
    allowed = max(size) <= MAX_SIDE and header.width * header.height <= settings.max_pixels
    return allowed and (settings.resize is None or settings.resize.target(*size) == size)
