"""Odd but valid streams: libjpeg-turbo's pixels or a refusal, never other pixels."""

from __future__ import annotations

import contextlib
import hashlib
import io
import random
import re
import struct

import numpy as np
import pytest
import simplejpeg
from coefficients import DC_TABLE, FACTORS, Coefficients, as_on_x86_64, least, read, write
from PIL import Image

from picstore.errors import ImageError
from picstore.jpeg.decoder.coefficients import PAIRS, SINGLES
from picstore.jpeg.decoder.decode_baseline import WORKSPACE, decode
from picstore.jpeg.perceptual_hash import read_luma_dc
from picstore.jpeg.transcode import add_restart_markers

# All sizes that AC coefficients of 8-bit samples have, after any run of zeros.
AC_TABLE = (bytes([0] * 7 + [176] + 8 * [0]), bytes(run << 4 | size for run in range(16) for size in range(11)))
DIAGONALS = sorted(range(64), key=lambda k: (k // 8 + k % 8, k // 8 if (k // 8 + k % 8) % 2 else k % 8))


def by_libjpeg(jpeg: bytes) -> np.ndarray:
    """Pixels of libjpeg-turbo by simplejpeg and Pillow; the former refuses warnings, the latter some short segments."""
    results = []
    with contextlib.suppress(ValueError):
        results.append(simplejpeg.decode_jpeg(jpeg, "RGB", strict=False))
    with contextlib.suppress(OSError):
        results.append(np.asarray(Image.open(io.BytesIO(jpeg)).convert("RGB")))
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)
    return results[0]


def grey(coefficients: np.ndarray, factors: np.ndarray) -> bytes:
    """A grey JPEG of 8 × 8 blocks, int (n, 64), and a quantization table, both row by row."""
    blocks = [[int(block[k]) for k in DIAGONALS] for block in coefficients]
    table = bytes(int(factors[k]) for k in DIAGONALS)
    tables = [DC_TABLE, AC_TABLE] * 2
    return write(Coefficients(8 * len(blocks), 8, [(1, 1)], blocks, tables, table))


SIZES, PLACES = (1, 33, 40, 100, 128, 129, 1023, -1023), (0, 1, 5, 7, 8, 9, 56, 63)


def one_coefficient(size: int, at: int) -> bytes:
    """A block with one coefficient, whose factor is 255, between empty ones."""
    block = np.zeros((3, 64), np.int64)
    block[1, at] = size
    return grey(block, np.full(64, 255))


@as_on_x86_64
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("at", PLACES)
def test_blocks_beyond_what_16_bits_hold_have_the_pixels_of_libjpeg(size: int, at: int) -> None:
    jpeg = one_coefficient(size, at)
    np.testing.assert_array_equal(decode(jpeg), by_libjpeg(jpeg))


def test_blocks_beyond_16_bits_have_the_same_pixels_on_every_machine() -> None:
    pixels = b"".join(decode(one_coefficient(size, at)).tobytes() for size in SIZES for at in PLACES)
    assert hashlib.sha256(pixels).hexdigest() == "973362a6faa6e9424875f947ed4b92f50f676cbaad2fa55167283c304b2419fc"


@pytest.mark.parametrize("quality", [1, 30, 80, 100])
def test_no_block_that_an_encoder_makes_is_refused(quality: int) -> None:
    bases = np.cos(np.outer(2 * np.arange(8) + 1, np.arange(8)) * np.pi / 16)
    patterns = np.einsum("yv,xu->vuyx", bases, bases).reshape(64, 8, 8)  # each is the largest of a coefficient
    extremes = [255 * (sign * patterns > 0).astype(np.uint8).transpose(1, 0, 2).reshape(8, 512) for sign in (1, -1)]
    noise = 255 * np.random.default_rng(0).integers(0, 2, (64, 512), np.uint8)
    for plane in (*extremes, noise):
        pixels = np.repeat(plane[:, :, None], 3, axis=2)
        pixels[:, :, 1] = plane[:, ::-1]
        jpeg = simplejpeg.encode_jpeg(np.ascontiguousarray(pixels), quality=quality, colorsubsampling="444")
        np.testing.assert_array_equal(decode(jpeg), by_libjpeg(jpeg))


def _some_jpeg(rng: random.Random) -> bytearray:
    """Noise of any sampling; all Huffman tables and restart markers are those of an encoder."""
    width, height = rng.choice((8, 17, 64, 100)), rng.choice((8, 33, 64))
    noise = np.random.default_rng(rng.randrange(99)).integers(0, 256, (height, width, 3), np.uint8)
    image = Image.fromarray(noise).convert("L" if rng.random() < 0.2 else "RGB")
    out = io.BytesIO()
    options = {"quality": rng.choice((50, 85)), "restart_marker_blocks": rng.choice((0, 1, 2))}
    image.save(out, "JPEG", subsampling=rng.choice((0, 1, 2)), **options)
    return bytearray(out.getvalue())


def _segment(marker: int, body: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body


def _jfif(rng: random.Random) -> bytes:
    thumbnail = rng.choice((0, 1, 9)), rng.choice((0, 1, 9))
    body = b"JFIF\0" + bytes((rng.choice((0, 1, 2, 9, 255)), rng.randrange(128), 0, 0, 1, 0, 1, *thumbnail))
    return _segment(0xE0, body[: rng.choice((13, 14, 14, 14))])


def _adobe(rng: random.Random) -> bytes:
    body = b"Adobe" + bytes((0, rng.choice((0, 100, 255)), 0, 0, 0, 0, rng.choice((0, 1, 2, 3, 9)), 0, 0))
    return _segment(0xEE, body[: rng.choice((11, 12, 12, 14))])


def odd(rng: random.Random) -> bytes:  # noqa: C901 - a list of cases
    """A stream with one to three oddities of headers or ends, which libjpeg accepts or not."""
    jpeg = _some_jpeg(rng)
    for _ in range(rng.choice((1, 1, 2, 3))):
        frame, table = jpeg.index(b"\xff\xc0"), jpeg.index(b"\xff\xdb")
        scan = jpeg.index(b"\xff\xda", frame)
        count = jpeg[frame + 9]
        way = rng.randrange(10)
        if way == 0:
            jpeg[frame + 11 + 3 * rng.randrange(count)] = rng.choice((0x11, 0x12, 0x21, 0x22, 0x13, 0x31, 0x23, 0x41))
        elif way == 1:
            struct.pack_into(">HH", jpeg, frame + 5, rng.choice((1, 8, 64)), rng.choice((1, 8, 64)))
        elif way == 2:
            jpeg[frame:frame] = _segment(0xDD, struct.pack(">H", rng.choice((0, 1, 2, 3, 65535))))
        elif way == 3:
            jpeg[-2:] = bytes([0xFF] * rng.randrange(1, 9)) + b"\xd9"
        elif way == 4:
            jpeg[table + 5 + rng.randrange(64)] = rng.choice((0, 1, 255))
        elif way == 5:
            jpeg[table + 5 : table + 69] = bytes([rng.choice((1, 16, 100, 255))]) * 64
        elif way == 6:
            ids = rng.choice((b"RGB", b"\0\1\2", b"\1\1\1", b"\1\x22\x23", b"YCc", b"rgb", b"BGR", b"RGC"))
            for k in range(count):
                jpeg[frame + 10 + 3 * k] = jpeg[scan + 5 + 2 * k] = ids[k]
        elif way == 7:
            jpeg[2:2] = rng.choice((_jfif, _adobe))(rng)
        elif way == 8 and jpeg[3] == 0xE0:
            del jpeg[2 : 4 + int.from_bytes(jpeg[4:6], "big")]
        else:
            jpeg[frame:frame] = rng.choice((b"\xff\xff\xff\xfe\0\2", b"\xff\xfe\0\4\xff\xda", b"\xff\xe1\0\2"))
    return bytes(jpeg)


def _compare_odd(seeds: range) -> None:
    decoded = refused = 0
    for seed in seeds:
        jpeg = odd(random.Random(seed))
        try:
            pixels = np.array(decode(jpeg))
        except ImageError:
            refused += 1
            continue
        decoded += 1
        np.testing.assert_array_equal(pixels, by_libjpeg(jpeg), err_msg=f"seed {seed}")
    assert decoded > len(seeds) / 5 and refused > len(seeds) / 20


@as_on_x86_64
def test_odd_headers_give_the_pixels_of_libjpeg_or_a_refusal() -> None:
    _compare_odd(range(400))


@as_on_x86_64
@pytest.mark.parametrize(
    "count", [pytest.param(4_000, marks=pytest.mark.slow), pytest.param(10_000, marks=pytest.mark.nightly)]
)
def test_thousands_of_odd_headers_give_the_pixels_of_libjpeg_or_a_refusal(count: int) -> None:
    _compare_odd(range(400, 400 + count))


@pytest.mark.parametrize("kind", FACTORS)
def test_two_bits_a_block_are_as_few_as_a_stream_can_have(kind: str) -> None:
    for interval in (0, 1, 3):
        jpeg = least(kind, 128, 96, interval=interval)
        np.testing.assert_array_equal(decode(jpeg), by_libjpeg(jpeg))
    np.testing.assert_array_equal(decode(least(kind, 8, 8)), by_libjpeg(least(kind, 8, 8)))  # a byte or two
    for cut in (1, 3):  # bytes of the last blocks
        with pytest.raises(ImageError, match="ends early"):
            decode(least(kind, 128, 96)[: -2 - cut] + b"\xff\xd9")


@pytest.mark.parametrize("run", [1, 6, 14])
def test_any_symbol_without_a_value_ends_a_block(run: int) -> None:
    """Of symbols without a value 0xF0 alone goes on; 0x00 is what encoders end blocks with.

    An entry of the table of pairs that held such a symbol and a following one would reach beyond the table of indexes,
    and so write beyond the block.
    """
    pixels = np.random.default_rng(run).integers(0, 256, (40, 48, 3), np.uint8) // 8 * (np.arange(48) > 20)[:, None]
    usual = simplejpeg.encode_jpeg(pixels, 70, "RGB", "422")
    odd = bytearray(usual)
    for table in re.finditer(rb"\xff\xc4..[\x10\x11](.{16})", usual, re.DOTALL):
        odd[odd.index(0, table.end())] = run << 4
    assert odd != usual
    found = []
    for jpeg in (usual, bytes(odd)):
        np.testing.assert_array_equal(decode(jpeg), by_libjpeg(usual))
        found.append(WORKSPACE.arrays[1][PAIRS:SINGLES].copy())
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("last", ["DC", "AC"])
@pytest.mark.parametrize("kind", FACTORS)
def test_a_last_code_that_the_table_lacks_is_refused(kind: str, last: str) -> None:
    jpeg = least(kind, 24, 8)
    spare = -2 * len(read(jpeg).blocks) % 8  # bits of padding
    bit = 1 << spare + (last == "DC")
    damaged = jpeg[:-3] + bytes([jpeg[-3] ^ bit]) + jpeg[-2:]
    with pytest.raises(ImageError, match="a code that its Huffman table lacks"):
        decode(damaged)
    with pytest.raises(ImageError, match="a code that its Huffman table lacks"):
        read_luma_dc(damaged)
    with pytest.raises(ImageError, match="a code that its Huffman table lacks"):
        add_restart_markers(damaged)


@pytest.mark.parametrize("interval", [0, 1, 2, 4])
def test_a_byte_more_than_the_blocks_need_is_refused(interval: int) -> None:
    for blocks in range(max(interval, 2), 10, max(interval, 1)):  # of two bits each, so that some end with a byte
        jpeg = least("grey", 8 * blocks, 8, interval=interval)
        decode(jpeg)
        places = [match.start() for match in re.finditer(b"\xff[\xd0-\xd9]", jpeg) if jpeg[match.start() + 1] != 0xD8]
        assert len(places) == (blocks // interval if interval else 1)
        for at in places:
            with pytest.raises(ImageError, match="more bytes than it needs"):
                decode(jpeg[:at] + b"\x55" + jpeg[at:])


@pytest.mark.parametrize("ids", [b"RGB", b"RGC", b"RHB", b"SGB", b"\1\2\3"])
def test_components_named_rgb_are_not_taken_for_luma_and_chroma(ids: bytes) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3), np.uint8)
    jpeg = bytearray(simplejpeg.encode_jpeg(pixels, 90, "RGB", "444"))
    frame = jpeg.index(b"\xff\xc0")
    scan = jpeg.index(b"\xff\xda", frame)
    for k in range(3):
        jpeg[frame + 10 + 3 * k] = jpeg[scan + 5 + 2 * k] = ids[k]
    np.testing.assert_array_equal(decode(bytes(jpeg)), by_libjpeg(bytes(jpeg)))  # JFIF says what they are
    del jpeg[2 : 4 + int.from_bytes(jpeg[4:6], "big")]
    if ids == b"RGB":
        with pytest.raises(ImageError):
            decode(bytes(jpeg))
    else:
        np.testing.assert_array_equal(decode(bytes(jpeg)), by_libjpeg(bytes(jpeg)))
