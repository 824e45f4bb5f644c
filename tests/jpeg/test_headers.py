"""jpeg: headers, restart segments, tiles."""

from __future__ import annotations

import io
import random
import re
import struct
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from samples import jpeg, picture

from picstore.errors import ImageError
from picstore.jpeg import markers, tiles
from picstore.jpeg.headers import TableSelector, read_coding_parameters
from picstore.jpeg.huffman import HuffmanTable
from picstore.jpeg.markers import APP1, APP14, DHT, DQT, SOS, find_restart_segments

MCU = {"grey": (8, 8), "444": (8, 8), "422": (16, 8), "440": (8, 16), "420": (16, 16)}
SIZES = [(1, 1), (8, 8), (16, 16), (17, 9), (64, 48), (100, 75), (131, 33)]


def encode(sampling: str, width: int, height: int, **options: int | bool | bytes) -> bytes:
    image = Image.fromarray(picture(1, width=width, height=height))
    out = io.BytesIO()
    if sampling == "grey":
        image.convert("L").save(out, "JPEG", **options)
    else:
        image.save(out, "JPEG", subsampling=":".join(sampling), **options)
    return out.getvalue()


def with_segment(stream: bytes, marker: int, body: bytes, *, fill: int = 0) -> bytes:
    """The stream with one more marker segment right behind SOI."""
    segment = b"\xff" * fill + struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body
    return stream[:2] + segment + stream[2:]


def restart_markers(scan: bytes) -> list[int]:
    return [match.start() for match in re.finditer(rb"\xff[\xd0-\xd7]", scan)]


@pytest.mark.parametrize("sampling", ["grey", "444", "422", "420"])
@pytest.mark.parametrize("size", SIZES)
def test_headers_agree_with_pillow_in_every_size_and_sampling(sampling: str, size: tuple[int, int]) -> None:
    stream = encode(sampling, *size)
    header = markers.parse_header(stream)
    with Image.open(io.BytesIO(stream)) as image:
        assert (header.width, header.height) == image.size
        assert [(c.id, c.horizontal, c.vertical) for c in header.components] == [
            (i, h, v) for i, h, v, _ in image.layer
        ]
    assert header.sampling == sampling
    assert header.process == "baseline"
    assert header.precision == 8
    assert header.scan_components == len(header.components)
    assert header.restart_interval == 0
    assert header.mcu_size == MCU[sampling]
    assert header.mcus == tuple(-(-pixels // unit) for pixels, unit in zip(size, MCU[sampling], strict=True))
    scan_header = stream.index(b"\xff\xda")
    assert header.length == scan_header + 2 + int.from_bytes(stream[scan_header + 2 : scan_header + 4], "big")


@pytest.mark.parametrize("sampling", ["444", "422", "420", "440"])
def test_headers_of_another_encoder_are_read_too(sampling: str) -> None:
    stream = simplejpeg.encode_jpeg(np.ascontiguousarray(picture(2, width=50, height=70)), colorsubsampling=sampling)
    header = markers.parse_header(stream)
    assert (header.width, header.height, header.sampling) == (50, 70, sampling)
    assert header.mcu_size == MCU[sampling]


@pytest.mark.parametrize("sampling", ["grey", "444", "422", "420"])
@pytest.mark.parametrize("interval", [1, 2, 3, 5, 40])
def test_every_segment_lies_between_two_restart_markers(sampling: str, interval: int) -> None:
    stream = encode(sampling, 200, 90, quality=90, restart_marker_blocks=interval)
    header = markers.parse_header(stream)
    assert header.restart_interval == interval
    starts, ends = find_restart_segments(stream, header)
    assert starts.dtype == ends.dtype == np.int64
    scan = stream[header.length : -2]
    pieces = re.split(rb"\xff[\xd0-\xd7]", scan)
    assert [stream[a:b] for a, b in zip(starts, ends, strict=True)] == pieces
    columns, rows = header.mcus
    assert len(pieces) == -(-columns * rows // interval)


def test_a_stream_without_restart_markers_is_one_segment() -> None:
    stream = jpeg(3)
    header = markers.parse_header(stream)
    starts, ends = find_restart_segments(stream, header)
    assert (starts.tolist(), ends.tolist()) == ([header.length], [len(stream) - 2])


def test_bytes_after_the_end_marker_belong_to_no_segment() -> None:
    stream = encode("420", 100, 75, restart_marker_blocks=2)
    header = markers.parse_header(stream)
    for tail in (b"\0" * 99, stream):
        for a, b in zip(
            find_restart_segments(stream, header), find_restart_segments(stream + tail, header), strict=True
        ):
            assert a.tolist() == b.tolist()


def test_comments_and_application_segments_are_skipped() -> None:
    plain = markers.parse_header(jpeg(4))
    hiding = b"\xff\xda\xff\xc0\xff\xd9" * 9  # looks like markers, and is the content of a segment
    for marker in (0xFE, *range(0xE0, 0xF0)):
        changed = markers.parse_header(with_segment(jpeg(4), marker, hiding))
        assert changed.length == plain.length + 4 + len(hiding)
        assert (changed.width, changed.components) == (plain.width, plain.components)
    assert markers.parse_header(with_segment(jpeg(4), 0xFE, b"")).length == plain.length + 4


def test_headers_may_be_longer_than_64_kib() -> None:
    stream = jpeg(4)
    for _ in range(3):
        stream = with_segment(stream, 0xE2, bytes(65533))
    header = markers.parse_header(stream)
    assert header.length > 3 << 16
    assert find_restart_segments(stream, header)[0][0] == header.length


def test_fill_bytes_before_a_marker_are_skipped() -> None:
    plain = markers.parse_header(jpeg(5))
    assert markers.parse_header(with_segment(jpeg(5), 0xFE, b"x", fill=7)).length == plain.length + 5 + 7


def test_fill_bytes_before_a_restart_marker_stay_with_their_segment() -> None:
    stream = encode("420", 100, 75, restart_marker_blocks=2)
    header = markers.parse_header(stream)
    first = header.length + restart_markers(stream[header.length :])[0]
    filled = stream[:first] + b"\xff\xff" + stream[first:]
    starts, ends = find_restart_segments(filled, header)
    assert ends[0] == first + 2
    assert starts[1] == first + 4
    assert filled[starts[1] :] == stream[first + 2 :]


def test_the_restart_interval_is_that_of_the_last_dri_segment() -> None:
    stream = with_segment(encode("444", 64, 64, restart_marker_blocks=4), 0xDD, b"\0\x09")
    assert markers.parse_header(stream).restart_interval == 4


def test_progressive_and_other_processes_are_named() -> None:
    assert markers.parse_header(encode("420", 64, 64, progressive=True)).process == "progressive"
    baseline = jpeg(6)
    at = baseline.index(b"\xff\xc0")
    for code, name in {0xC1: "extended", 0xC3: "lossless", 0xC5: "SOF5", 0xC9: "arithmetic-coded"}.items():
        assert markers.parse_header(baseline[: at + 1] + bytes([code]) + baseline[at + 2 :]).process == name


def test_a_scan_of_a_progressive_stream_has_no_segments() -> None:
    stream = encode("420", 64, 64, progressive=True)
    with pytest.raises(ImageError, match="more than one scan"):
        find_restart_segments(stream, markers.parse_header(stream))


@pytest.mark.parametrize("factors", [(4, 1), (1, 4), (3, 3), (4, 4)])
def test_unusual_sampling_has_no_name(factors: tuple[int, int]) -> None:
    stream = bytearray(jpeg(6))
    at = stream.index(b"\xff\xc0") + 11
    stream[at] = factors[0] << 4 | factors[1]
    header = markers.parse_header(bytes(stream))
    assert header.sampling == ""
    assert header.mcu_size == (8 * factors[0], 8 * factors[1])


def test_a_stream_cut_off_anywhere_is_an_image_error() -> None:
    stream = encode("420", 100, 75, restart_marker_blocks=1)
    header = markers.parse_header(stream)
    for length in range(len(stream)):
        cut = stream[:length]
        if length < header.length:
            with pytest.raises(ImageError):
                markers.parse_header(cut)
        else:
            assert markers.parse_header(cut) == header
            with pytest.raises(ImageError):
                find_restart_segments(cut, header)


def test_a_flipped_bit_in_the_headers_gives_headers_or_an_image_error() -> None:
    stream = encode("420", 100, 75, restart_marker_blocks=2)
    refused = 0
    for bit in range(8 * markers.parse_header(stream).length):
        damaged = bytearray(stream)
        damaged[bit >> 3] ^= 1 << (bit & 7)
        try:
            find_restart_segments(bytes(damaged), markers.parse_header(bytes(damaged)))
        except ImageError:
            refused += 1
    assert refused > 100


def test_random_damage_gives_headers_or_an_image_error() -> None:
    stream = encode("444", 90, 60, restart_marker_blocks=3)
    rng = random.Random(0)
    refused = 0
    for _ in range(3000):
        damaged = bytearray(stream)
        for _ in range(rng.choice((1, 2, 5, 50))):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        try:
            starts, ends = find_restart_segments(bytes(damaged), markers.parse_header(bytes(damaged)))
            assert len(starts) == len(ends)
            assert (starts <= ends).all()
        except ImageError:
            refused += 1
    assert refused > 1000


@given(st.binary(max_size=200))
def test_garbage_is_an_image_error(garbage: bytes) -> None:
    for stream in (garbage, b"\xff\xd8" + garbage, b"\xff\xd8\xff" + garbage):
        with pytest.raises(ImageError):
            find_restart_segments(stream, markers.parse_header(stream))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"\xff\xd8\xff", b"\xff\xd8\x00", "no marker"),
        (b"\xff\xd8\xff\xe0", b"\xff\xd8\xff\xd9", "before any scan"),
        (b"\xff\xd8\xff\xe0", b"\xff\xd8\xff\xd8", "before any scan"),
        (b"\xff\xd8\xff\xe0", b"\xff\xd8\xff\x01", "before any scan"),
        (b"\xff\xe0\x00\x10", b"\xff\xe0\x00\x01", "length 1"),
        (b"\xff\xc0", b"\xff\xfe", "before any frame"),
        (b"\x00\x28\x00\x3c\x03", b"\x00\x00\x00\x3c\x03", "DNL"),
        (b"\x00\x28\x00\x3c\x03", b"\x00\x28\x00\x00\x03", "no columns"),
        (b"\x00\x28\x00\x3c\x03", b"\x00\x28\x00\x3c\x04", "frame header has a wrong length"),
        (b"\x03\x01\x22\x00", b"\x03\x01\x52\x00", "sampling factors"),
        (b"\xff\xda\x00\x0c\x03", b"\xff\xda\x00\x0c\x02", "scan header"),
    ],
)
def test_each_fault_of_the_headers_is_named(old: bytes, new: bytes, message: str) -> None:
    stream = jpeg(7)
    assert stream.count(old) == 1
    with pytest.raises(ImageError, match=message):
        markers.parse_header(stream.replace(old, new))


def test_only_markers_without_a_body_are_refused_before_a_scan() -> None:
    """T.81, table B.1: TEM, RST0 to RST7, SOI and EOI stand alone."""
    stream = jpeg(7)
    for marker in range(1, 0xFF):
        refused = marker == 0x01 or 0xD0 <= marker <= 0xD9
        try:
            markers.parse_header(with_segment(stream, marker, b"\0\1"))
        except ImageError as error:
            assert ("before any scan" in str(error)) == refused, hex(marker)
            assert f"marker FF{marker:02X} at byte 2" in str(error) or not refused
        else:
            assert not refused, hex(marker)


def test_each_frame_marker_is_named_as_table_b_1_does() -> None:
    names = dict.fromkeys(range(16), "SOF{}") | {0: "baseline", 1: "extended", 2: "progressive", 3: "lossless"}
    names |= {9: "arithmetic-coded", 10: "arithmetic-coded progressive", 11: "arithmetic-coded lossless"}
    stream = jpeg(7)
    assert stream.count(b"\xff\xc0") == 1
    for number, name in names.items():
        other = stream.replace(b"\xff\xc0", bytes([0xFF, 0xC0 + number]))
        if number in (4, 8, 12):  # DHT, JPG, DAC
            with pytest.raises(ImageError, match="before any frame"):
                markers.parse_header(other)
        else:
            assert markers.parse_header(other).process == name.format(number)


def test_sampling_factors_are_1_to_4() -> None:
    stream = jpeg(7)
    for factors in range(256):
        changed = stream.replace(b"\x03\x01\x22\x00", bytes([3, 1, factors, 5]))
        horizontal, vertical = divmod(factors, 16)
        if 1 <= horizontal <= 4 and 1 <= vertical <= 4:
            component = markers.parse_header(changed).components[0]
            assert component == markers.Component(1, horizontal, vertical, 5)
        else:
            with pytest.raises(ImageError, match=f"factors {horizontal} × {vertical}"):
                markers.parse_header(changed)


def test_headers_that_are_cut_off_are_so_at_their_last_byte() -> None:
    stream = jpeg(7)
    for end in range(4, markers.parse_header(stream).length):
        with pytest.raises(ImageError, match=f"cut off at byte {end}$"):
            markers.parse_header(stream[:end])


def test_tables_and_selectors_are_those_of_the_segments() -> None:
    wide, narrow = bytes([0x12, *range(128)]), bytes([0x03, *range(100, 164)])
    counts = [bytes([0, k, 1, *[0] * 13]) for k in (1, 2)]
    dht = bytes([0x01]) + counts[0] + b"ab" + bytes([0x13]) + counts[1] + b"cde"
    scan = bytes([3, 7, 0x21, 8, 0x30, 9, 0x03, 0, 63, 0])
    found = read_coding_parameters([(DQT, wide + narrow, 0), (DHT, dht, 0), (SOS, scan, 0)])
    assert found.quantization == {2: wide, 3: narrow}
    assert found.huffman == {(0, 1): HuffmanTable(counts[0], b"ab"), (1, 3): HuffmanTable(counts[1], b"cde")}
    assert found.selectors == (TableSelector(7, 2, 1), TableSelector(8, 3, 0), TableSelector(9, 0, 3))
    assert (found.spectral, found.jfif, found.adobe, found.orientation) == (b"\0\x3f\0", b"", b"", 1)
    adobe = b"Adobe\0\x64\0\0\0\0\1"  # as short as libjpeg takes one
    segments = [(APP14, adobe, 0), (SOS, scan, 0)], [(APP14, adobe[:-1], 0), (SOS, scan, 0)]
    assert [read_coding_parameters(each).adobe for each in segments] == [adobe, b""]
    for count in (2, 4):
        with pytest.raises(ImageError, match="wrong length"):
            read_coding_parameters([(SOS, bytes([count]) + scan[1:], 0)])
    for table in (wide, narrow):
        with pytest.raises(ImageError, match="cut off"):
            read_coding_parameters([(DQT, table[:-1], 0), (SOS, scan, 0)])


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(("kind", "code"), [(1, "B"), (3, "H"), (4, "I"), (2, "B"), (9, "i")])
def test_the_orientation_is_the_exif_entry_of_an_integer_type(order: str, kind: int, code: str) -> None:
    scan = (SOS, bytes([0, 0, 63, 0]), 0)
    for value in range(10):
        cell = struct.pack(order + code, value).ljust(4, b"\0")
        other = struct.pack(order + "HHI", 0x0111, 3, 1) + struct.pack(order + "H", 3).ljust(4, b"\0")
        entry = struct.pack(order + "HHI", 0x0112, kind, 1) + cell
        for before in (0, 2):
            entries = before * other + entry
            start = 8 + 5 * before
            tiff = {"<": b"II", ">": b"MM"}[order] + struct.pack(order + "HI", 42, start) + bytes(5 * before)
            for counted in (before, before + 1):
                whole = tiff + struct.pack(order + "H", counted) + entries
                for cut in (0, 1):
                    body = b"Exif\0\0" + whole[: len(whole) - cut]
                    counts = kind in (1, 3, 4) and 1 <= value <= 8 and counted > before and not cut
                    found = read_coding_parameters([(APP1, body, 0), scan]).orientation
                    assert found == (value if counts else 1)


def test_the_first_exif_segment_that_rotates_counts() -> None:
    def exif(value: int) -> tuple[int, bytes, int]:
        return APP1, b"Exif\0\0MM\0\x2a\0\0\0\x08\0\1\1\x12\0\3\0\0\0\1" + bytes([0, value, 0, 0]), 0

    scan = (SOS, bytes([0, 0, 63, 0]), 0)
    assert read_coding_parameters([exif(1), exif(6), exif(3), scan]).orientation == 6


def test_two_frame_headers_are_refused() -> None:
    stream = jpeg(7)
    at = stream.index(b"\xff\xc0")
    with pytest.raises(ImageError, match="two frame headers"):
        markers.parse_header(stream[:at] + stream[at : at + 19] + stream[at:])


def test_missing_surplus_and_misordered_restart_markers_are_refused() -> None:
    stream = encode("420", 100, 75, restart_marker_blocks=2)
    header = markers.parse_header(stream)
    first, second = (header.length + at for at in restart_markers(stream[header.length :])[:2])
    with pytest.raises(ImageError, match="16 restart markers where the headers announce 17"):
        find_restart_segments(stream[:first] + stream[first + 2 :], header)
    with pytest.raises(ImageError, match="announce"):
        find_restart_segments(stream[:first] + b"\xff\xd0" + stream[first:], header)
    with pytest.raises(ImageError, match="out of order"):
        find_restart_segments(stream[:first] + stream[second : second + 2] + stream[first + 2 :], header)


@given(st.integers(1, 1200), st.sampled_from([8, 16]), st.sampled_from([8, 16, 48, 64, 100, 512]))
def test_the_restart_interval_is_the_divisor_nearest_to_the_tile_width(columns: int, mcu: int, wished: int) -> None:
    interval = tiles.restart_interval(columns, mcu, tile_width=wished)
    assert columns % interval == 0
    wide = [d for d in range(1, columns + 1) if columns % d == 0 and d * mcu >= wished / 2] or [columns]
    nearness = {d: max(d * mcu / wished, wished / (d * mcu)) for d in wide}
    assert nearness[interval] == min(nearness.values())
    assert interval == min(d for d, ratio in nearness.items() if ratio == nearness[interval])


@pytest.mark.parametrize(
    ("columns", "mcu", "interval"),
    [
        (16, 16, 4),
        (24, 16, 4),
        (31, 16, 31),
        (37, 16, 37),
        (62, 16, 2),
        (7, 16, 7),
        (6, 16, 3),
        (1, 16, 1),
        (64, 8, 8),
        (12, 8, 6),
        (8, 16, 4),
    ],
)
def test_tiles_are_about_64_pixels_wide(columns: int, mcu: int, interval: int) -> None:
    assert tiles.restart_interval(columns, mcu) == interval


@pytest.mark.parametrize("sampling", ["444", "422", "440", "420"])
def test_the_mcu_size_is_that_of_the_sampling(sampling: str) -> None:
    assert tiles.mcu_size(components=3, subsampling=sampling) == MCU[sampling]
    assert tiles.mcu_size(components=1, subsampling=sampling) == (8, 8)


def test_the_headers_of_photographs_agree_with_pillow(photographs: list[Path]) -> None:
    for path in photographs:
        header = markers.parse_header(path.read_bytes())
        with Image.open(path) as image:
            assert (header.width, header.height) == image.size
            assert len(header.components) == len(image.layer)
            assert (header.process == "progressive") == bool(image.info.get("progressive"))
