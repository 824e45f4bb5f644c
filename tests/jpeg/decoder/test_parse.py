"""Headers parsed by the kernel: as the parser in Python has them, and bounded by the bytes that follow."""

from __future__ import annotations

import ctypes
import mmap
import struct

import numpy as np
import pytest
from coefficients import FACTORS, least

from picstore.jpeg.decoder import decode_baseline as decoding
from picstore.jpeg.decoder import parse
from picstore.jpeg.decoder.decode_baseline import frame_size
from picstore.jpeg.headers import read_coding_parameters
from picstore.jpeg.markers import header_from_segments, iterate_marker_segments


def with_size(jpeg: bytes, width: int, height: int) -> bytes:
    at = jpeg.index(b"\xff\xc0") + 5
    return jpeg[:at] + struct.pack(">HH", height, width) + jpeg[at + 4 :]


def scan_bytes(jpeg: bytes) -> int:
    segments = list(iterate_marker_segments(jpeg))
    return len(jpeg) - segments[-1][2]


@pytest.mark.parametrize("kind", FACTORS)
@pytest.mark.parametrize("interval", [0, 7, 300])
def test_the_frame_is_what_the_parser_in_python_reads(kind: str, interval: int) -> None:
    jpeg = least(kind, 200, 300, interval=interval)
    assert frame_size(jpeg) == (200, 300)
    frame = decoding.WORKSPACE.frame
    segments = list(iterate_marker_segments(jpeg))
    header, coding = header_from_segments(segments), read_coding_parameters(segments)
    count, (columns, rows) = len(header.components), header.mcus
    assert frame[[parse.HORIZONTAL, parse.VERTICAL]].tolist() == [*FACTORS[kind][0]]
    assert frame[[parse.COMPONENTS, parse.START]].tolist() == [count, header.length]
    assert frame[parse.INTERVAL] == (interval or columns * rows)
    assert frame[parse.QUANTIZATION :][:count].tolist() == [c.quantization for c in header.components]
    assert frame[parse.DC :][:count].tolist() == [s.dc for s in coding.selectors]
    assert frame[parse.AC :][:count].tolist() == [s.ac for s in coding.selectors]


@pytest.mark.parametrize("kind", FACTORS)
def test_as_many_blocks_are_claimed_as_two_bits_each_allow(kind: str) -> None:
    (h, v), blocks = FACTORS[kind][0], 1 if kind == "grey" else FACTORS[kind][0][0] * FACTORS[kind][0][1] + 2
    jpeg = least(kind, 1600, 160)
    most = 8 * scan_bytes(jpeg) // (2 * blocks)
    assert frame_size(with_size(jpeg, 8 * h * most, 8 * v)) == (8 * h * most, 8 * v)
    assert frame_size(with_size(jpeg, 8 * h, 8 * v * most)) == (8 * h, 8 * v * most)
    assert frame_size(with_size(jpeg, 8 * h * most + 1, 8 * v)) is None
    assert frame_size(with_size(jpeg, 8 * h, 8 * v * most + 1)) is None


def test_headers_are_not_read_beyond_the_stream() -> None:
    stream = least("420", 48, 48, interval=3)
    begin = len(stream) - scan_bytes(stream)
    memory = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    pages = np.frombuffer(memory, np.uint8)
    closed, opened = 0, mmap.PROT_READ | mmap.PROT_WRITE
    protect, second = ctypes.CDLL(None).mprotect, ctypes.c_void_p(pages.ctypes.data + mmap.PAGESIZE)
    assert protect(second, ctypes.c_size_t(mmap.PAGESIZE), closed) == 0
    try:
        for fill in (b"", b"\xff\xff"):
            headers = stream[:2] + fill + stream[2:begin]
            for length in range(1, len(headers) + 1):
                cut = pages[mmap.PAGESIZE - length : mmap.PAGESIZE]
                cut[:] = np.frombuffer(headers[:length], np.uint8)
                assert frame_size(cut) is None  # otherwise a segmentation fault
    finally:
        protect(second, ctypes.c_size_t(mmap.PAGESIZE), opened)


def test_as_many_segments_are_claimed_as_two_bytes_each_allow() -> None:
    jpeg = least("grey", 640, 48, interval=1)
    most = scan_bytes(jpeg) // 2 + 1
    assert frame_size(with_size(jpeg, 8 * most, 8)) == (8 * most, 8)
    assert frame_size(with_size(jpeg, 8 * most + 1, 8)) is None
