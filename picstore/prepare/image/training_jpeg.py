"""Training JPEG of any image: lossless if possible, else re-encoded (docs/design.md, "Training JPEG")."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from PIL import Image

from picstore.arrays import U8
from picstore.errors import NotTranscodable
from picstore.jpeg.encoder.encode_baseline import encode_strips
from picstore.jpeg.markers import Header
from picstore.jpeg.transcode import TranscodedJpeg, read_marker_segments, transcode_all
from picstore.prepare.image.encode import decode_any, encode
from picstore.prepare.image.encode_settings import MAX_SIDE, EncodeSettings
from picstore.prepare.image.exif_orientation import CoordinateMap
from picstore.prepare.image.image_info import make_transcoded_info
from picstore.prepare.image.libvips import FaultFound, open_large_image
from picstore.storage.format.record import ImageInfo

LOSSLESS, REENCODED = "lossless", "reencoded"  # statuses

_START = b"\xff\xd8\xff"  # SOI, and the first byte of another marker
_END = b"\xff\xd9"  # EOI; entropy-coded data cannot hold it (T.81, B.1.1.5)


@dataclass(frozen=True, slots=True)
class TrainingJpeg:
    """A training JPEG, its image info, and how it was made.

    Attributes:
        info: its entry in the index of a container.
        coordinates: map from the source's pixels to its own.
        status: ``LOSSLESS`` or ``REENCODED``.
        reason: to re-encode it; empty if lossless.
    """

    jpeg: bytes
    info: ImageInfo
    coordinates: CoordinateMap
    status: str
    reason: str = ""


def make_training_jpeg(
    source: bytes | Image.Image | U8, *, settings: EncodeSettings, name: str = "", bounded: bool = False
) -> TrainingJpeg:
    """Make a training JPEG: add restart markers to a JPEG, or re-encode the image if that is impossible.

    Args:
        source: as in :func:`picstore.prepare.image.encode.decode_any`.
        settings: ``reencode`` forces re-encoding, and so does ``resize`` for images whose size it changes.
        name: the file's name; its extension identifies formats without a magic number.
        bounded: decode a file as :func:`picstore.prepare.image.decode_image.decode_bounded` does.

    Raises:
        ImageError: the source is no image, is damaged, too large, or of a kind that cannot be read.
    """
    made: TrainingJpeg | str = ""
    if isinstance(source, bytes):
        (made,) = make_lossless([source], settings=settings)
    return (
        made
        if isinstance(made, TrainingJpeg)
        else reencode(source, made, settings=settings, name=name, bounded=bounded)
    )


def make_lossless(sources: Sequence[bytes], *, settings: EncodeSettings) -> list[TrainingJpeg | str]:
    """Make training JPEGs by adding restart markers.

    Returns:
        For each source its training JPEG, or the reason why it must be re-encoded, empty if it is not the JPEG's.
    """
    made: list[TrainingJpeg | str] = [""] * len(sources)
    parsed = {}
    for k, source in enumerate(sources):
        if source.startswith(_START) and not settings.reencode:
            try:
                segments, header = read_marker_segments(source)
                _require_end(source, header)
            except NotTranscodable as error:
                made[k] = str(error)
                continue
            if _fits_unchanged((header.width, header.height), settings):
                parsed[k] = source, segments, header
    for k, transcoded in zip(parsed, transcode_all(parsed.values()), strict=True):
        made[k] = str(transcoded) if isinstance(transcoded, NotTranscodable) else _describe(transcoded)
    return made


def _describe(transcoded: TranscodedJpeg) -> TrainingJpeg:
    info = replace(make_transcoded_info(transcoded), encode_path=LOSSLESS)
    size = info.width, info.height
    return TrainingJpeg(transcoded.jpeg, info, CoordinateMap(1, size, size), LOSSLESS)


def reencode(
    source: bytes | Image.Image | U8, reason: str, *, settings: EncodeSettings, name: str = "", bounded: bool = False
) -> TrainingJpeg:
    """Make a training JPEG as :func:`make_training_jpeg`, of a source for which :func:`make_lossless` gave a reason."""
    if isinstance(source, bytes) and (large := _encode_large(source, settings)) is not None:
        return large
    decoded = decode_any(source, settings=settings, name=name, bounded=bounded)
    made = encode(decoded.image, settings=settings, origin=decoded.origin)
    info = replace(make_transcoded_info(made), encode_path=REENCODED)
    if settings.reencode and decoded.origin == "JPEG":
        reason = "--reencode"
    return TrainingJpeg(made.jpeg, info, decoded.coordinates, REENCODED, reason or decoded.origin)


def _encode_large(source: bytes, settings: EncodeSettings) -> TrainingJpeg | None:
    """Encode a large image strip by strip while it is decoded; None for images that are read as a whole."""
    if settings.resize is not None or settings.encoder != "turbo":
        return None
    large = open_large_image(source, settings=settings)
    if large is None:
        return None
    try:
        made = encode_strips(large.strips, size=large.size, quality=settings.quality, subsampling=settings.subsampling)
    except FaultFound:
        return None  # Pillow says what it is, or reads it
    info = replace(make_transcoded_info(made), encode_path=REENCODED)
    return TrainingJpeg(made.jpeg, info, CoordinateMap(1, large.size, large.size), REENCODED, large.origin)


def _require_end(jpeg: bytes, header: Header) -> None:
    """Raise NotTranscodable if EOI is missing; Pillow then decides whether the image is truncated."""
    if jpeg.rfind(_END, header.length) < 0:
        raise NotTranscodable("damaged JPEG: its end is missing")


def _fits_unchanged(size: tuple[int, int], settings: EncodeSettings) -> bool:
    """Test whether the settings leave a JPEG its size. Otherwise decoding resizes or refuses it."""
    allowed = max(size) <= MAX_SIDE and size[0] * size[1] <= settings.max_pixels
    return allowed and (settings.resize is None or settings.resize.target(*size) == size)
