"""Training JPEG of any image (docs/formats.md, "The training JPEG"), and its entry in the index of a container.

A JPEG that qualifies only gets restart markers, without loss. Any other image is decoded and encoded. For an index in
place, the image stays in its file and is described as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from PIL import Image

from picstore.arrays import I64, U8
from picstore.errors import ImageError, NotTranscodable
from picstore.jpeg.encoder.encode_baseline import encode_strips
from picstore.jpeg.headers import read_coding_parameters
from picstore.jpeg.markers import (
    Header,
    find_restart_segments,
    header_from_segments,
    iterate_marker_segments,
    parse_header,
)
from picstore.jpeg.tiles import entry_interval
from picstore.jpeg.transcode import TranscodedJpeg, read_marker_segments, transcode_all
from picstore.prepare.engine.library_errors import foreign_errors
from picstore.prepare.image.decoder_process import decode_any
from picstore.prepare.image.encode_settings import MAX_SIDE, EncodeSettings
from picstore.prepare.image.exif_orientation import CoordinateMap
from picstore.prepare.image.libvips import FaultFound, encode_by_mozjpeg, open_large_image
from picstore.prepare.image.pixel_conversion import iterate_strips, size_of
from picstore.storage.format.layout import SEGMENT
from picstore.storage.format.record import NO_SEGMENTS, ImageInfo
from picstore.storage.format.segment_table import make_entries

# Statuses of converted inputs in the ledger; the module ``ledger`` defines FAILED and DUPLICATE.
LOSSLESS, REENCODED, INDEXED = "lossless", "reencoded", "indexed"

_START = b"\xff\xd8\xff"  # SOI marker, and first byte of the next marker
# EOI marker. Entropy-coded data cannot contain it (T.81, B.1.1.5).
_END = b"\xff\xd9"
# Coding processes of JPEGs that are indexed undecoded: libjpeg-turbo decodes them, also at a fraction of the size.
_PROCESSES = ("baseline", "extended", "progressive")
# Largest length in bytes of a restart segment that an index can state, looked up once, because np.iinfo takes 9 µs.
_MAX_LENGTH = int(np.iinfo(SEGMENT).max)


@dataclass(frozen=True, slots=True)
class TrainingJpeg:
    """Training JPEG, or image of an index (dataset that refers to images), and how it was made.

    Attributes:
        info: size, sampling and restart segments, as the index of a container stores them (docs/format.md).
        status: ``LOSSLESS``, ``REENCODED`` or ``INDEXED``.
        reason: why the image was re-encoded, or the kind of an indexed image that is not an upright JPEG; else empty.
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

    ``settings.reencode`` forces re-encoding; so does ``settings.resize`` for images whose size it changes. Arguments
    and errors are those of :func:`decode_any`.
    """
    made: TrainingJpeg | str = ""
    if isinstance(source, bytes):
        (made,) = make_lossless([source], settings=settings)
    if isinstance(made, TrainingJpeg):
        return made
    return reencode(source, made, settings=settings, name=name, bounded=bounded)


def make_lossless(sources: Sequence[bytes], *, settings: EncodeSettings) -> list[TrainingJpeg | str]:
    """Make training JPEGs from JPEGs, without loss, by adding restart markers.

    For each source, return its training JPEG, or the reason to re-encode the source. The reason is empty if the source
    is not a JPEG, or if the settings ask for re-encoding or for another size.
    """
    made: list[TrainingJpeg | str] = [""] * len(sources)
    parsed = {}
    for k, source in enumerate(sources):
        if source.startswith(_START) and not settings.reencode:
            try:
                segments, header = read_marker_segments(source)
            except NotTranscodable as error:
                made[k] = str(error)
                continue
            if source.rfind(_END, header.length) < 0:
                # EOI is missing. Request re-encoding, which succeeds if only EOI is missing, and fails if pixels are
                # missing.
                made[k] = "damaged JPEG: its end is missing"
            elif _fits_unchanged((header.width, header.height), settings):
                parsed[k] = source, segments, header
    for k, transcoded in zip(parsed, transcode_all(parsed.values()), strict=True):
        made[k] = str(transcoded) if isinstance(transcoded, NotTranscodable) else _describe(transcoded)
    return made


def _describe(transcoded: TranscodedJpeg) -> TrainingJpeg:
    info = _info_of(transcoded, LOSSLESS)
    size = info.width, info.height
    return TrainingJpeg(transcoded.jpeg, info, CoordinateMap(1, size, size), LOSSLESS)


def reencode(
    source: bytes | Image.Image | U8, reason: str, *, settings: EncodeSettings, name: str = "", bounded: bool = False
) -> TrainingJpeg:
    """Decode and encode a source for which :func:`make_lossless` gave ``reason``; see :func:`make_training_jpeg`."""
    if isinstance(source, bytes) and (large := _encode_large(source, settings)) is not None:
        return large
    decoded = decode_any(source, settings=settings, name=name, bounded=bounded)
    made = encode(decoded.image, settings=settings, origin=decoded.origin)
    info = _info_of(made, REENCODED)
    if settings.reencode and decoded.origin == "JPEG":
        reason = "--reencode"
    return TrainingJpeg(made.jpeg, info, decoded.coordinates, REENCODED, reason or decoded.origin)


def _encode_large(source: bytes, settings: EncodeSettings) -> TrainingJpeg | None:
    """Encode a large image strip by strip while it is decoded; return None if the image must be decoded whole."""
    if settings.resize is not None or settings.encoder != "turbo":
        return None
    large = open_large_image(source, settings=settings)
    if large is None:
        return None
    try:
        made = encode_strips(large.strips, size=large.size, quality=settings.quality, subsampling=settings.subsampling)
    except FaultFound:
        return None  # libvips cannot read the image: Pillow will read it, or report what is wrong.
    info = _info_of(made, REENCODED)
    return TrainingJpeg(made.jpeg, info, CoordinateMap(1, large.size, large.size), REENCODED, large.origin)


def encode(image: Image.Image | U8, *, settings: EncodeSettings, origin: str = "image") -> TranscodedJpeg:
    """Encode pixels as a baseline JPEG with optimal Huffman tables, restart markers, JFIF, and no other metadata.

    ``image`` is in mode "L" or "RGB", or RGB as uint8 (height, width, 3). ``jpeg.tiles.restart_interval`` chooses the
    distance of restart markers. Raise ImageError, which names ``origin``, if the image cannot be encoded.
    """
    with foreign_errors(f"cannot encode {origin}"):
        quality, subsampling = settings.quality, settings.subsampling
        if settings.encoder == "mozjpeg":
            picture = image if isinstance(image, Image.Image) else Image.fromarray(image)
            return encode_by_mozjpeg(picture, quality=quality, subsampling=subsampling)
        return encode_strips(iterate_strips(image), size=size_of(image), quality=quality, subsampling=subsampling)


def _fits_unchanged(size: tuple[int, int], settings: EncodeSettings) -> bool:
    allowed = max(size) <= MAX_SIDE and size[0] * size[1] <= settings.max_pixels
    return allowed and (settings.resize is None or settings.resize.target(*size) == size)


def index_image(data: bytes, *, settings: EncodeSettings, name: str = "", bounded: bool = False) -> TrainingJpeg:
    """Describe an image for an index; the result has the bytes that the index refers to, and the status ``INDEXED``.

    A JPEG of 8 bits that needs no rotation is taken as it is, up to its EOI, without decoding. Any other file is
    decoded to find the upright image's size, and damage. Arguments and errors are those of :func:`make_training_jpeg`,
    but only ``max_pixels`` and ``background`` of the settings are used.
    """
    try:
        return _index_jpeg(data, settings)
    except ImageError:
        decoded = decode_any(data, settings=settings, name=name, bounded=bounded)
        info = ImageInfo(*decoded.coordinates.upright_size, foreign=True)
        return TrainingJpeg(data, info, decoded.coordinates, INDEXED, decoded.origin)


def _index_jpeg(data: bytes, settings: EncodeSettings) -> TrainingJpeg:
    """Describe an upright JPEG from headers and restart markers, undecoded; raise ImageError for any other image."""
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
    """Return the image info, and the offset of the byte after EOI; for a JPEG of several scans, the file's length."""
    if header.process == "progressive" or header.scan_components < len(header.components):
        if data.rfind(_END, header.length) < 0:
            raise ImageError("its end is missing")
        return ImageInfo(header.width, header.height, header.sampling, header_length=header.length), len(data)
    starts, ends = find_restart_segments(data, header)
    return make_image_info(header, ends - starts), int(ends[-1]) + len(_END)


def parse_image_info(jpeg: bytes) -> ImageInfo:
    """Read the image info of a training JPEG from headers and restart markers; raise ImageError if it is damaged."""
    header = parse_header(jpeg)
    starts, ends = find_restart_segments(jpeg, header)
    return make_image_info(header, ends - starts)


def make_image_info(header: Header, lengths: I64) -> ImageInfo:
    """Build the image info of a training JPEG from its header and the lengths, in bytes, of its restart segments."""
    segments = NO_SEGMENTS
    if header.restart_interval and int(lengths.max()) <= _MAX_LENGTH:
        segments = lengths.astype(SEGMENT)
    size = header.width, header.height
    return ImageInfo(*size, header.sampling, header.restart_interval, header.length, segments)


def _info_of(made: TranscodedJpeg, status: str) -> ImageInfo:
    info = replace(make_image_info(made.header, made.lengths), encode_path=status)
    if made.entry_points is None or not len(info.segments):
        return info
    step = entry_interval(info.restart_interval, made.header.mcu_size[0])
    return replace(info, entry_points=make_entries(step, made.entry_points))
