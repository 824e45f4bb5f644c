"""Metadata of any content and size never decides about pixels, and an orientation is found by one function."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from source_files import decoded

from picstore.errors import ImageError
from picstore.prepare.image.decoder_process import decode_any
from picstore.prepare.image.encode_settings import EncodeSettings
from picstore.prepare.image.mend_files import leave_out_metadata
from picstore.prepare.image.training_jpeg import make_training_jpeg
from picstore.train.cpu.mask_and_image_targets import open_mask

PLAIN = EncodeSettings()
PIXELS = np.random.default_rng(0).integers(0, 255, (48, 64, 3), np.uint8)
SIDE_RAMP = np.tile(np.linspace(0, 255, 64).astype(np.uint8), (48, 1))
BIG = zlib.compress(b"x" * 2_000_000)


def chunk(kind: bytes, body: bytes, crc: int | None = None) -> bytes:
    return (
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body) if crc is None else crc)
    )


def png(before: bytes = b"", after: bytes = b"", *, pixels: np.ndarray = PIXELS) -> bytes:
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    head = struct.pack(">IIBBBBB", 64, 48, 8, 2 if pixels.ndim == 3 else 0, 0, 0, 0)
    body = chunk(b"IHDR", head) + before + chunk(b"IDAT", zlib.compress(rows)) + after + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


CHUNKS = {
    "text": chunk(b"zTXt", b"workflow\0\0" + BIG),
    "international text": chunk(b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + BIG),
    "plain text": chunk(b"tEXt", b"a\0" + b"x" * 2_000_000),
    "profile": chunk(b"iCCP", b"profile\0\0" + BIG),
    "no profile": chunk(b"iCCP", b"x"),
    "EXIF in text": chunk(b"zTXt", b"Raw profile type exif\0\0" + BIG),
    "many EXIF in text": chunk(b"tEXt", b"Raw profile type exif\0" + b"0" * 200_000) * 3,
    "no deflate": chunk(b"zTXt", b"Raw profile type exif\0\0abc"),
    "short chunks": b"".join(
        chunk(kind, b"") for kind in (b"gAMA", b"cHRM", b"pHYs", b"sRGB", b"tIME", b"acTL", b"eXIf")
    ),
    "unknown": chunk(b"vpAg", bytes(9)) + chunk(b"zzZz", b""),
}


@pytest.mark.parametrize("name", CHUNKS)
def test_chunks_of_a_png_of_any_size_leave_its_pixels(name):
    for data in (png(CHUNKS[name]), png(after=CHUNKS[name])):
        assert (decode_any(data, settings=PLAIN).rgb() == PIXELS).all()
        assert make_training_jpeg(data, settings=PLAIN).reason == "PNG"


@pytest.mark.parametrize("kind", [b"tEXt", b"zTXt", b"iTXt", b"iCCP", b"gAMA", b"eXIf", b"tIME", b"pHYs", b"abCd"])
def test_a_wrong_checksum_of_metadata_is_a_remark(kind):
    for data in (png(chunk(kind, b"Comment\0hello", crc=0)), png(after=chunk(kind, b"Comment\0hello", crc=0))):
        made = make_training_jpeg(data, settings=PLAIN)
        assert made.reason == f"PNG; wrong checksum of {kind.decode()}"
        assert (decode_any(data, settings=PLAIN).rgb() == PIXELS).all()


def test_a_wrong_checksum_of_a_header_or_of_colors_is_damage():
    sound = png(chunk(b"tRNS", bytes(6)))
    for kind in (b"IHDR", b"tRNS"):
        at = sound.index(kind)
        (length,) = struct.unpack_from(">I", sound, at - 4)
        damaged = bytearray(sound)
        damaged[at + 4 + length] ^= 1
        with pytest.raises(ImageError, match="PNG"):
            decode_any(bytes(damaged), settings=PLAIN)


def test_of_several_exif_texts_one_is_kept():
    text = CHUNKS["many EXIF in text"]
    assert len(leave_out_metadata(png(text)).data) < len(png()) + len(text) // 2


def test_metadata_of_a_mask_leaves_its_values():
    for name in ("text", "profile", "plain text"):
        mask = open_mask("mask", png(after=CHUNKS[name], pixels=SIDE_RAMP), 64, 48)
        assert (mask == SIDE_RAMP).all()


def jpeg(**options) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(PIXELS).resize((32, 24)).resize((64, 48)).save(buffer, "JPEG", quality=95, **options)
    return buffer.getvalue()


def with_segments(data: bytes, *segments: tuple[int, bytes]) -> bytes:
    extra = b"".join(bytes([0xFF, marker]) + struct.pack(">H", len(body) + 2) + body for marker, body in segments)
    return data[:2] + extra + data[2:]


PROGRESSIVE, BASELINE = jpeg(progressive=True), jpeg()
STARTS = [b"", b"JFIF", b"JFIF\0", b"JFXX\0", b"Exif\0\0", b"Exif\0\0II*\0", b"ICC_PROFILE\0", b"ICC_PROFILE\0\1\1",
          b"MPF\0MM\0*\0\0\0\x08", b"Photoshop 3.0\0008BIM", b"Adobe", b"http://ns.adobe.com/xap/1.0/\0"]  # fmt: skip


@given(
    st.sampled_from([PROGRESSIVE, BASELINE]),
    st.lists(
        st.tuples(
            st.sampled_from([*range(0xE0, 0xF0), 0xFE]),
            st.builds(bytes.__add__, st.sampled_from(STARTS), st.binary(max_size=7)),
        ),
        max_size=4,
    ),
)
def test_segments_of_a_jpeg_of_any_content_leave_its_pixels(data, segments):
    made = make_training_jpeg(with_segments(data, *segments), settings=PLAIN)
    assert made.status == ("lossless" if data is BASELINE else "reencoded")
    # Not the bytes, as a lossless copy keeps a whole JFIF or Adobe segment.
    assert (decoded(made.jpeg) == decoded(make_training_jpeg(data, settings=PLAIN).jpeg)).all()


def exif(kind: int, value: int, order: str = "<") -> bytes:
    raw = struct.pack(order + {1: "B3x", 3: "H2x", 4: "I"}[kind], value)
    head = b"II*\0" if order == "<" else b"MM\0*"
    return head + struct.pack(order + "IHHHI", 8, 1, 274, kind, 1) + raw + bytes(4)


def in_file(format: str, block: bytes) -> bytes:
    if format == "JPEG":
        return with_segments(BASELINE, (0xE1, b"Exif\0\0" + block))
    if format == "progressive JPEG":
        return with_segments(PROGRESSIVE, (0xE1, b"Exif\0\0" + block))
    if format == "second segment":
        return with_segments(PROGRESSIVE, (0xE1, b"Exif\0\0" + exif(3, 1)), (0xE1, b"Exif\0\0" + block))
    if format == "PNG":
        return png(chunk(b"eXIf", block))
    if format == "PNG behind its pixels":
        return png(after=chunk(b"eXIf", block))
    if format == "text of a PNG":
        text = f"\nexif\n{len(block):8d}\n{(b'Exif' + bytes(2) + block).hex()}\n".encode()
        return png(chunk(b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(text)))
    buffer = io.BytesIO()
    Image.fromarray(PIXELS).save(buffer, format, exif=block, lossless=True)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", [1, 3, 4], ids=["BYTE", "SHORT", "LONG"])
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("format", ["JPEG", "progressive JPEG", "second segment", "PNG", "PNG behind its pixels",
                                    "text of a PNG", "WEBP"])  # fmt: skip
def test_an_orientation_of_any_type_is_found_in_any_format(format, order, kind):
    for orientation in range(1, 9):
        data = in_file(format, exif(kind, orientation, order))
        upright = decode_any(in_file(format, exif(3, 1)), settings=PLAIN).rgb()
        turned = [upright, upright[:, ::-1], upright[::-1, ::-1], upright[::-1], *(each.swapaxes(0, 1) for each in (
            upright, upright[::-1], upright[::-1, ::-1], upright[:, ::-1]))]  # fmt: skip
        made = make_training_jpeg(data, settings=PLAIN)
        assert (decode_any(data, settings=PLAIN).rgb() == turned[orientation - 1]).all()
        assert (made.info.width, made.info.height) == ((64, 48) if orientation < 5 else (48, 64))
        if format == "JPEG":
            assert made.reason == ("rotated by EXIF" if orientation > 1 else "")


@given(st.binary(max_size=300), st.sampled_from([b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b""]))
def test_any_bytes_have_a_bare_form_no_longer_than_they(data, start):
    assert len(leave_out_metadata(start + data).data) <= len(start + data)


@given(st.data())
def test_damage_in_a_png_s_chunks_is_no_other_error(data):
    file = bytearray(png(CHUNKS["short chunks"] + chunk(b"tEXt", b"a\0b"), after=chunk(b"tEXt", b"c\0d")))
    for _ in range(data.draw(st.integers(1, 3))):
        file[data.draw(st.integers(8, 200))] = data.draw(st.integers(0, 255))
    bare = leave_out_metadata(bytes(file))
    assert len(bare.data) <= len(file)
