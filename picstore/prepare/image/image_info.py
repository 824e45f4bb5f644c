"""Image info: size, sampling and restart segments of a training JPEG, as containers index them (docs/format.md)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from picstore.arrays import I64
from picstore.jpeg import markers
from picstore.jpeg.markers import find_restart_segments
from picstore.jpeg.tiles import entry_interval
from picstore.jpeg.transcode import TranscodedJpeg
from picstore.storage.format.layout import SEGMENT
from picstore.storage.format.record import NO_SEGMENTS, ImageInfo
from picstore.storage.format.segment_table import make_entries

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


def make_transcoded_info(made: TranscodedJpeg) -> ImageInfo:
    """Make the image info of a JPEG that got restart markers."""
    info = make_image_info(made.header, made.lengths)
    if made.entry_points is None or not len(info.segments):
        return info
    step = entry_interval(info.restart_interval, made.header.mcu_size[0])
    return replace(info, entry_points=make_entries(step, made.entry_points))
