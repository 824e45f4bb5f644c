"""Image info: size, sampling and restart segments of a training JPEG, as containers index them (docs/format.md)."""

from __future__ import annotations

import numpy as np

from picstore.arrays import I64
from picstore.jpeg import markers
from picstore.jpeg.tiles import find_restart_segments
from picstore.storage.format.layout import SEGMENT
from picstore.storage.format.record import NO_SEGMENTS, ImageInfo

_MAX_LENGTH = int(np.iinfo(SEGMENT).max)  # looking it up takes 9 us


def parse_image_info(jpeg: bytes) -> ImageInfo:
    """Read the image info of a training JPEG from its headers and restart markers; ImageError if they are damaged."""
    header = markers.parse_header(jpeg)
    starts, ends = find_restart_segments(jpeg, header)
    return make_image_info(header, ends - starts)


def make_image_info(header: markers.Header, lengths: I64) -> ImageInfo:
    """Make the image info of a training JPEG from its header and the lengths of its segments in bytes."""
    segments = NO_SEGMENTS
    if header.restart_interval and int(lengths.max()) <= _MAX_LENGTH:
        segments = lengths.astype(SEGMENT)
    size = header.width, header.height
    return ImageInfo(*size, header.sampling, header.restart_interval, header.length, segments)
