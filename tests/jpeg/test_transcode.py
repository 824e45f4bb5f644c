"""add_restart_markers: the coefficients stay, and so do the pixels; what cannot be done is refused with its reason."""

from __future__ import annotations

import io
import os
import random
import re
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
from coefficients import AC_TABLE, DC_TABLE, FACTORS, Coefficients, read, segment, write
from grids import examples, slow_except
from hypothesis import given
from hypothesis import strategies as st
from pictures import header, require
from PIL import Image
from test_cut import DECODERS, QUARTERS, SAMPLINGS

import picstore
from picstore.errors import NotTranscodable
from picstore.jpeg import markers
from picstore.jpeg.markers import find_restart_segments
from picstore.jpeg.transcode import add_restart_markers, read_marker_segments, transcode, transcode_all
from picstore.prepare.image.training_jpeg import parse_image_info

EXIF_ORIENTATION = b"Exif\0\0MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0%c\0\0\0\0\0\0"


def noise(width: int, height: int, *, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, width, height]).integers(0, 256, (height, width, 3), np.uint8)


def encode(sampling: str, width: int, height: int, *, quality: int = 85, seed: int = 0) -> bytes:
    pixels = noise(width, height, seed=seed)
    if sampling == "grey":
        return simplejpeg.encode_jpeg(pixels[:, :, :1].copy(), quality=quality, colorspace="GRAY")
    return simplejpeg.encode_jpeg(pixels, quality=quality, colorsubsampling=sampling)


def by_pillow(sampling: str = "420", size: tuple[int, int] = (150, 90), **options: object) -> bytes:
    image = Image.fromarray(noise(*size)).resize(size, Image.Resampling.BICUBIC)
    out = io.BytesIO()
    if sampling == "grey":
        image.convert("L").save(out, "JPEG", **options)
    else:
        image.save(out, "JPEG", subsampling=":".join(sampling), **options)
    return out.getvalue()


def crafted(sampling: str = "444", width: int = 40, height: int = 24, *, seed: int = 0, **fields: Any) -> Coefficients:
    """Random coefficients, most of them zero, DC coefficients of the whole range among them."""
    rng = random.Random(seed)
    empty = Coefficients(width, height, FACTORS[sampling], [], **fields)

    def block() -> list[int]:
        some = [0] * 64
        some[0] = rng.choice((0, 0, 5, -7, 1000, -1000, 1023, -1023))
        for _ in range(rng.choice((0, 1, 5, 63))):
            some[rng.randrange(1, 64)] = rng.choice((1, -1, 2, -3, 100, -1023, 1023))
        return some

    return replace(empty, blocks=[block() for _ in range(empty.mcus * len(empty.order))])


def with_segments(stream: bytes, segments: bytes) -> bytes:
    """The stream with more behind SOI."""
    return stream[:2] + segments + stream[2:]


def same_pixels(before: bytes, after: bytes) -> bool:
    return np.array_equal(simplejpeg.decode_jpeg(before), simplejpeg.decode_jpeg(after))


def run_tool(command: list[str], stream: bytes) -> bytes:
    return subprocess.run(command, input=stream, capture_output=True, check=True).stdout


def jpegtran(stream: bytes, *options: str) -> bytes:
    """The same coefficients as libjpeg-turbo writes them: with its own tables, no restart markers, no comments."""
    require(shutil.which("jpegtran"), "jpegtran of libjpeg-turbo-progs")
    return run_tool(["jpegtran", "-copy", "none", *options], stream)


def cjpeg(*options: str) -> bytes:
    require(shutil.which("cjpeg"), "cjpeg of libjpeg-turbo-progs")
    return run_tool(["cjpeg", *options], b"P6 60 44 255\n" + noise(60, 44).tobytes())


# What it must do


@pytest.mark.parametrize("quarter", QUARTERS)
def test_pixels_of_photographs_stay(photographs: list[Path], quarter: int) -> None:
    done = 0
    chosen = photographs[quarter::4]
    for number, path in enumerate(chosen):
        before = path.read_bytes()
        try:
            after = add_restart_markers(before)
        except NotTranscodable:
            continue
        # All three use libjpeg-turbo, so a few photographs are enough for the others.
        decode = list(DECODERS.values())[0 if number % 4 else number // 4 % 3]
        assert np.array_equal(decode(before), decode(after)), path
        done += 1
    assert done > 0.95 * len(chosen)


def test_coefficients_of_photographs_stay_says_jpegtran(photographs: list[Path]) -> None:
    def check(path: Path) -> bool:
        before = path.read_bytes()
        return jpegtran(before) == jpegtran(add_restart_markers(before))

    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(check, photographs[::8]))


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_restart_markers_of_jpegtran_give_the_same_pixels(sampling: str) -> None:
    before = encode(sampling, 201, 117)
    ours = add_restart_markers(before)
    interval = header(ours).interval
    theirs = jpegtran(before, "-restart", f"{interval}B")
    assert header(theirs).interval == interval
    assert len(parse_image_info(theirs).segments) == len(parse_image_info(ours).segments)
    assert same_pixels(theirs, ours)
    assert jpegtran(theirs) == jpegtran(ours)
    assert same_pixels(before, add_restart_markers(theirs, interval))


@pytest.mark.parametrize("sampling", slow_except(["grey", "420"], SAMPLINGS))
def test_pixels_of_every_size_stay(sampling: str) -> None:
    # Every size in one sampling; `tests/fuzz/fuzz_jpeg.py --grid` takes them all, and cuts.
    turn = SAMPLINGS.index(sampling)
    for width in range(1, 71):
        for height in range(1 + (turn - width) % 5, 71, 5):
            before = encode(sampling, width, height)
            assert same_pixels(before, add_restart_markers(before)), (width, height)


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_pixels_stay_in_every_decoder(name: str, sampling: str) -> None:
    for size in ((1, 1), (17, 9), (130, 77), (300, 16)):
        before = encode(sampling, *size)
        assert np.array_equal(DECODERS[name](before), DECODERS[name](add_restart_markers(before)))


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_every_interval_gives_its_segments_and_the_same_coefficients(sampling: str) -> None:
    before = encode(sampling, 75, 33, quality=60)
    expected = read(before)
    columns, rows = header(before).columns, markers.parse_header(before).mcus[1]
    for interval in (*range(1, columns + 3), columns * rows - 1, columns * rows, columns * rows + 1, 65535):
        after = add_restart_markers(before, interval)
        assert header(after).interval == interval
        found = read(after)  # which counts the segments
        assert (found.blocks, found.quantization) == (expected.blocks, expected.quantization)
        assert same_pixels(before, after)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("interval", [1, 3, 7, 65535])
def test_what_is_known_of_the_new_stream_is_what_reading_it_tells(sampling: str, interval: int) -> None:
    source = encode(sampling, 75, 33)
    at = source.index(b"\xff\xc0") + 11
    if sampling == "grey":
        source = source[:at] + b"\x22" + source[at + 1 :]
    made = transcode(source, *read_marker_segments(source), interval)
    assert made.jpeg == add_restart_markers(source, interval)
    assert made.header == markers.parse_header(made.jpeg)
    starts, ends = find_restart_segments(made.jpeg, made.header)
    assert np.array_equal(made.lengths, ends - starts)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("old", slow_except([1, 3, 65535], [1, 2, 3, 5, 10, 65535]))
def test_markers_that_are_there_are_replaced(sampling: str, old: int) -> None:
    source = crafted(sampling, 75, 33, interval=old)
    before = write(source)
    for interval in (None, 1, 2, 3, 4, 7, old):
        after = add_restart_markers(before, interval)
        assert read(after).blocks == source.blocks
        assert interval in (None, header(after).interval)
        assert same_pixels(before, after)


@pytest.mark.parametrize("options", [{"restart_marker_rows": 1}, {"restart_marker_blocks": 7}, {"optimize": True}])
@pytest.mark.parametrize("sampling", ["grey", "444", "422", "420"])
@pytest.mark.parametrize("quality", slow_except([5, 100], [5, 50, 95, 100]))
def test_streams_of_pillow_keep_their_coefficients(options: dict[str, object], sampling: str, quality: int) -> None:
    before = by_pillow(sampling, (90, 60), quality=quality, **options)
    assert read(add_restart_markers(before)).blocks == read(before).blocks


@examples(60)
@given(st.data())
def test_any_image_keeps_its_pixels(data: st.DataObject) -> None:
    width, height = data.draw(st.integers(1, 90)), data.draw(st.integers(1, 90))
    few = data.draw(st.lists(st.integers(0, 255), min_size=3, max_size=48))
    pixels = np.resize(np.array(few, np.uint8), (height, width, 3))
    sampling, quality = data.draw(st.sampled_from(SAMPLINGS[1:])), data.draw(st.integers(1, 100))
    before = simplejpeg.encode_jpeg(pixels, quality=quality, colorsubsampling=sampling)
    after = add_restart_markers(before, data.draw(st.one_of(st.none(), st.integers(1, 200))))
    assert same_pixels(before, after)
    assert read(after).blocks == read(before).blocks


_blocks = st.lists(st.integers(-1023, 1023), min_size=1, max_size=64).map(lambda some: some + [0] * (64 - len(some)))


@examples(60)
@given(st.data())
def test_any_coefficients_stay(data: st.DataObject) -> None:
    sampling = data.draw(st.sampled_from(SAMPLINGS))
    old = data.draw(st.sampled_from([0, 1, 2, 3, 100]))
    empty = Coefficients(
        data.draw(st.integers(1, 60)), data.draw(st.integers(1, 40)), FACTORS[sampling], [], interval=old
    )
    few = data.draw(st.lists(_blocks, min_size=1, max_size=5))
    order = random.Random(data.draw(st.integers(0, 99)))
    source = replace(empty, blocks=[order.choice(few) for _ in range(empty.mcus * len(empty.order))])
    before = write(source, padding=data.draw(st.sampled_from("01")))
    interval = data.draw(st.one_of(st.none(), st.integers(1, 30)))
    after = add_restart_markers(before, interval)
    assert read(after).blocks == source.blocks
    assert same_pixels(before, after)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_by_default_a_tile_of_about_64_pixels_makes_a_grid(sampling: str) -> None:
    after = add_restart_markers(encode(sampling, 480, 64))
    found = markers.parse_header(after)
    assert found.restart_interval * found.mcu_size[0] in (64, 80, 48)
    assert found.mcus[0] % found.restart_interval == 0
    described = parse_image_info(after)
    assert len(described.segments) == found.mcus[0] // found.restart_interval * found.mcus[1]
    assert (described.width, described.height, described.sampling) == (480, 64, sampling)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_doing_it_twice_changes_nothing_more(sampling: str) -> None:
    for before in (encode(sampling, 201, 117), write(crafted(sampling)), encode(sampling, 1, 1)):
        for interval in (None, 1, 5):
            once = add_restart_markers(before, interval)
            assert add_restart_markers(once, interval) == once


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_kind_of_bytes_is_taken(kind: type) -> None:
    before = encode("420", 100, 80)
    assert (
        add_restart_markers(kind(before)) == add_restart_markers(before) == picstore.add_restart_markers(kind(before))
    )


@pytest.mark.parametrize("count", [0, 1, 2, 3, 9, 24])
def test_several_jpegs_are_transcoded_as_each_alone(count: int) -> None:
    rng = random.Random(count)
    sources = []
    for k in range(count):
        stream = encode(rng.choice(SAMPLINGS), rng.randint(1, 200), rng.randint(1, 200), seed=k)
        if k % 3 == 1:
            stream = write(crafted(rng.choice(SAMPLINGS), 40, 24, seed=k, interval=rng.choice((1, 2, 100))))
        if k % 4 == 3:  # damaged at once, or later
            at = markers.parse_header(stream).length + rng.choice((0, 200))
            stream = stream[:at] + b"\xfe" * 9 + stream[at + 9 :]
        sources.append((stream, *read_marker_segments(stream)))
    failed = 0
    for source, made in zip(sources, transcode_all(sources, 3), strict=True):
        if isinstance(made, NotTranscodable):
            failed += 1
            with pytest.raises(NotTranscodable, match=re.escape(str(made))):
                transcode(*source, 3)
        else:
            alone = transcode(*source, 3)
            assert (made.jpeg, made.header) == (alone.jpeg, alone.header)
            assert np.array_equal(made.lengths, alone.lengths)
    assert bool(failed) == (count > 3)


# Ways to write the same


def test_padding_bits_may_be_ones_or_zeros() -> None:
    for seed in range(8):  # so that the last byte is filled by different counts of bits
        for interval in (0, 1, 3):
            source = crafted("420", 33, 17, seed=seed, interval=interval)
            ones, zeros = (add_restart_markers(write(source, padding=padding)) for padding in "10")
            assert ones == zeros
            assert read(ones).blocks == source.blocks


def test_tables_may_stand_in_one_segment_in_several_or_twice() -> None:
    source = crafted("444")
    names = (0x00, 0x10, 0x01, 0x11)
    bodies = [bytes([name]) + counts + symbols for name, (counts, symbols) in zip(names, source.tables, strict=True)]
    quantization = [bytes([k]) + source.quantization for k in (0, 1)]
    wrong = bytes([0x00]) + bytes([0, 1, 1] + [0] * 13) + b"\5\6"
    expected = add_restart_markers(write(source))
    forms = (
        segment(0xDB, b"".join(quantization)) + segment(0xC4, b"".join(bodies)),
        segment(0xDB, quantization[1] + quantization[0]) + b"".join(segment(0xC4, body) for body in reversed(bodies)),
        segment(0xC4, wrong + b"".join(bodies)) + segment(0xDB, b"".join(quantization)),
        segment(0xC4, wrong)
        + segment(0xDB, b"\0" + bytes([9] * 64) + b"\3" + bytes([9] * 64))
        + segment(0xDB, b"".join(quantization))
        + segment(0xC4, b"".join(bodies) + b"\x03" + wrong[1:]),
    )
    for form in forms:
        before = write(source, headers=form)
        assert add_restart_markers(before) == expected
        assert same_pixels(before, expected)


def test_all_components_may_share_their_tables() -> None:
    source = crafted("420")
    stream = write(source)
    at = stream.index(b"\xff\xda")
    shared = stream[:at] + stream[at : at + 14].replace(b"\2\x11\3\x11", b"\2\0\3\0") + stream[at + 14 :]
    after = add_restart_markers(shared)
    assert read(after).blocks == source.blocks
    assert header(after).markers.count(0xC4) == 1
    assert len(after) < len(add_restart_markers(stream))  # the other tables are gone
    assert same_pixels(shared, after)


def test_the_extended_process_with_8_bits_is_the_same() -> None:
    stream = encode("420", 60, 44)
    extended = stream.replace(b"\xff\xc0", b"\xff\xc1", 1)
    assert add_restart_markers(extended) == add_restart_markers(stream)


def test_sampling_factors_of_a_single_component_mean_nothing() -> None:
    stream = encode("grey", 60, 44)
    at = stream.index(b"\xff\xc0")
    for factors in (0x21, 0x22, 0x41):
        changed = stream[: at + 11] + bytes([factors]) + stream[at + 12 :]
        assert add_restart_markers(changed) == add_restart_markers(stream)


def test_fill_bytes_may_stand_before_any_marker() -> None:
    source = crafted("420", 50, 40, interval=2)
    stream = write(source)
    expected = add_restart_markers(stream)
    at = markers.parse_header(stream).length
    filled = re.sub(rb"\xff([\xd0-\xd9])", lambda match: b"\xff\xff" + match[0], stream[at:])
    assert filled.count(b"\xff\xff\xff") > 3
    headers = stream[:2] + b"\xff\xff" + stream[2:at].replace(b"\xff\xda", b"\xff\xff\xff\xda")
    assert add_restart_markers(headers + filled) == expected
    assert same_pixels(headers + filled, expected)


def test_fill_bytes_before_a_stuffed_zero_are_damage() -> None:
    # libjpeg-turbo 3 decodes a block of the wrong pixels there, by its fast path, and by its slow one the right ones.
    stream = write(crafted("444", 80, 80, interval=0))
    at = stream.index(b"\xff\0", markers.parse_header(stream).length)
    with pytest.raises(NotTranscodable, match="ends early"):
        add_restart_markers(stream[:at] + b"\xff" + stream[at:])


@pytest.mark.parametrize("quality", [10, 75, 95])
def test_a_marker_takes_two_to_six_bytes(quality: int) -> None:
    pixels = Image.fromarray(noise(75, 60)).resize((600, 480), Image.Resampling.BICUBIC)
    out = io.BytesIO()
    pixels.save(out, "JPEG", quality=quality)
    source, made = out.getvalue(), add_restart_markers(out.getvalue())
    (_, before), (_, after) = read_marker_segments(source), read_marker_segments(made)
    columns, rows = after.mcus
    markers_made = -(-columns * rows // after.restart_interval) - 1
    assert 2 < (len(made) - after.length - len(source) + before.length) / markers_made < 6


def test_what_stands_behind_the_end_is_left_behind() -> None:
    stream = encode("422", 100, 80)
    for tail in (b"\0", b"\xff", b"\xff\xd9" * 9, stream, os.urandom(5000)):
        assert add_restart_markers(stream + tail) == add_restart_markers(stream)


def test_the_end_marker_may_be_missing() -> None:
    for source in (crafted("420"), crafted("grey", interval=3)):
        stream = write(source)
        assert stream.endswith(b"\xff\xd9")
        for missing in (1, 2):
            assert add_restart_markers(stream[:-missing]) == add_restart_markers(stream)


def test_a_frame_header_may_stand_before_the_tables() -> None:
    source = crafted("444")
    stream = write(source)
    frame = stream.index(b"\xff\xc0")
    moved = stream[:2] + stream[frame : frame + 19] + stream[2:frame] + stream[frame + 19 :]
    assert add_restart_markers(moved) == add_restart_markers(stream)


def test_codes_may_be_so_short_that_the_next_block_looks_like_more_zeros() -> None:
    # A run of 16 zeros is one bit, the bits of a DC code of size 0 look like four of them; run 13 with size 1 is three.
    rest = sorted(set(range(256)) - {0xF0, 0x00, 0xD1})
    table = bytes([1, 1, 1] + [0] * 7 + [253] + 5 * [0]), bytes([0xF0, 0x00, 0xD1, *rest])
    ends = [[7] + [0] * (63 - k) + [1] * k for k in range(64)]
    ends += [[7] + [1] * (63 - zeros) + [0] * (zeros - 1) + [1] for zeros in range(1, 64) for _ in range(2)]
    for interval in (0, 1, 5):
        source = Coefficients(8 * len(ends), 8, [(1, 1)], ends, tables=[DC_TABLE, table] * 2, interval=interval)
        before = write(source)
        after = add_restart_markers(before)
        assert read(after).blocks == ends
        assert same_pixels(before, after)


# What stays of the headers


def test_comments_and_application_data_go_and_jfif_stays() -> None:
    extra = segment(0xFE, b"a comment") + segment(0xE2, b"ICC_PROFILE\0\1\1" + bytes(500))
    extra += segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0<x/>") + segment(0xE1, EXIF_ORIENTATION % 1)
    extra += segment(0xE0, b"JFXX\0\x10") + segment(0xED, b"Photoshop 3.0\0")
    before = by_pillow(dpi=(300, 200))
    after = add_restart_markers(with_segments(before, extra))
    assert after == add_restart_markers(before)
    assert header(after).markers == (0xE0, 0xDB, 0xC0, 0xC4, 0xDD, 0xDA)
    assert header(after).app0 == header(before).app0
    with Image.open(io.BytesIO(after)) as image:
        assert [round(v) for v in image.info["dpi"]] == [300, 200]


def test_a_thumbnail_in_jfif_goes() -> None:
    before = encode("420", 60, 44)
    at = before.index(b"JFIF")
    thumbnail = segment(0xE0, before[at : at + 12] + bytes([2, 2]) + bytes(12))
    assert add_restart_markers(before[:2] + thumbnail + before[20:]) == add_restart_markers(before)


def test_a_jfif_segment_of_another_revision_becomes_one_all_decoders_take() -> None:
    before = encode("420", 60, 44)
    assert add_restart_markers(before.replace(b"JFIF\0\1", b"JFIF\0\5", 1)) == add_restart_markers(before)


def test_a_jfif_segment_too_short_for_libjpeg_is_none() -> None:
    plain = add_restart_markers(write(crafted("444")))
    assert 0xE0 not in header(plain).markers
    for length in (5, 12, 13):
        stream = with_segments(write(crafted("444")), segment(0xE0, b"JFIF\0\1\1\0\0\1\0\1\0"[:length]))
        assert add_restart_markers(stream) == plain
        rgb = stream.replace(b"\3\1\x11\0\2\x11\1\3\x11\1", b"\3R\x11\0G\x11\1B\x11\1")
        rgb = rgb.replace(b"\3\1\0\2\x11\3\x11", b"\3R\0G\x11B\x11")
        assert rgb.count(b"R") >= 2
        with pytest.raises(NotTranscodable, match="RGB"):
            add_restart_markers(rgb)


def test_an_adobe_segment_that_says_ycbcr_stays() -> None:
    body = b"Adobe\0\x64\0\0\0\0\1"
    stream = with_segments(write(crafted("444")), segment(0xEE, body + b"more"))
    after = add_restart_markers(stream)
    assert segment(0xEE, body) in after
    assert same_pixels(stream, after)


@pytest.mark.parametrize("transform", [2, 3, 255])
def test_an_adobe_segment_of_another_transform_says_ycbcr_as_for_libjpeg(transform: int) -> None:
    plain = write(crafted("444"))
    before = with_segments(plain, segment(0xEE, b"Adobe\0\x64\0\0\0\0" + bytes([transform])))
    np.testing.assert_array_equal(simplejpeg.decode_jpeg(add_restart_markers(before)), simplejpeg.decode_jpeg(plain))
    require("stand_ins" not in simplejpeg.__file__, "simplejpeg, which takes warnings for errors,")
    with pytest.raises(ValueError, match="transform"):  # what decoders that take warnings for errors say
        simplejpeg.decode_jpeg(before)


# Huffman tables that lack a code


def narrow(table: tuple[bytes, bytes]) -> Coefficients:
    """DC differences of at most size 8 in a row, that become of size 10 where a segment starts."""
    source = crafted("grey", 800, 16, tables=[table, AC_TABLE] * 2)
    blocks = [[min(1000, 200 * k), *block[1:]] for k, block in enumerate(source.blocks)]
    return replace(source, blocks=blocks)


def test_a_table_gets_the_codes_that_new_segments_need() -> None:
    table = bytes([0, 0, 0, 9] + 12 * [0]), bytes(range(9))
    source = narrow(table)
    before = write(source)
    after = add_restart_markers(before)
    found = read(after)
    assert found.blocks == source.blocks
    assert found.tables[0] == (bytes([0, 0, 0, 10] + 12 * [0]), bytes([*range(9), 10]))
    assert same_pixels(before, after)
    assert add_restart_markers(after) == after


# A table whose codes are all used; only one that names a size twice can be full and lack sizes.
FULL = bytes([1] * 16), bytes([0] * 7 + list(range(9)))


@pytest.mark.parametrize("sampling", ["grey", "422", "420"])
@pytest.mark.parametrize("old", [0, 3, 50])
@pytest.mark.parametrize("interval", slow_except([None, 7], [None, 1, 7, 200]))
def test_a_table_without_room_is_made_anew_for_the_image(sampling: str, old: int, interval: int | None) -> None:
    random_ones = crafted(sampling, 800, 16, tables=[FULL, AC_TABLE] * 2, interval=old)
    # Steps of 100 from 0 on in each old segment, 20 of them at most.
    values = [100 * min(mcu % (old or 200), 20) for mcu in range(random_ones.mcus)]
    repeat = len(random_ones.order)
    blocks = [[values[k // repeat], *block[1:]] for k, block in enumerate(random_ones.blocks)]
    before = write(replace(random_ones, blocks=blocks))
    after = add_restart_markers(before, interval)
    found = read(after)
    assert found.blocks == blocks
    new = interval or header(after).interval
    differences = [value - (values[mcu - 1] if mcu % new else 0) for mcu, value in enumerate(values)]
    assert (found.tables[0] != FULL) == (max(map(abs, differences)) >= 256)
    assert same_pixels(before, after)
    assert add_restart_markers(after, interval) == after


# What is refused


def patched(at: int, new: bytes, *, sampling: str = "420") -> bytes:
    """A stream with other bytes in its frame header, ``at`` counted from its marker."""
    stream = encode(sampling, 60, 44)
    begin = stream.index(b"\xff\xc0") + at
    return stream[:begin] + new + stream[begin + len(new) :]


def without(*markers_gone: int) -> bytes:
    """A stream without the segments of some markers."""
    stream, out, at = encode("420", 60, 44), b"\xff\xd8", 2
    while stream[at + 1] != 0xDA:
        end = at + 2 + int.from_bytes(stream[at + 2 : at + 4], "big")
        out += b"" if stream[at + 1] in markers_gone else stream[at:end]
        at = end
    return out + stream[at:]


def rgb(*, adobe: bool) -> bytes:
    out = io.BytesIO()
    Image.fromarray(noise(60, 44)).save(out, "JPEG", keep_rgb=True)
    stream = out.getvalue()
    at = stream.index(b"\xff\xee")
    return stream if adobe else stream[:at] + stream[at + 16 :]


def cmyk() -> bytes:
    out = io.BytesIO()
    Image.new("CMYK", (60, 44), (10, 200, 30, 40)).save(out, "JPEG")
    return out.getvalue()


def two_components() -> bytes:
    empty = Coefficients(40, 24, [(1, 1), (1, 1)], [])
    return write(replace(empty, blocks=[[k] + [0] * 63 for k in range(2 * empty.mcus)]))


def of_16_bits() -> bytes:
    source = crafted("grey")
    tables = segment(0xDB, b"\x10" + bytes([0, 1] * 64))
    tables += segment(0xC4, b"\0" + b"".join(DC_TABLE)) + segment(0xC4, b"\x10" + b"".join(AC_TABLE))
    return write(source, headers=tables)


def third_table() -> bytes:
    stream = write(crafted("grey"))
    return stream.replace(segment(0xC4, b"\0" + b"".join(DC_TABLE)), segment(0xC4, b"\2" + b"".join(DC_TABLE))).replace(
        b"\xff\xda\0\x08\1\1\0", b"\xff\xda\0\x08\1\1\x20"
    )


def wrong_spectral() -> bytes:
    stream = encode("420", 60, 44)
    return stream.replace(b"\x11\0\x3f\0", b"\x11\0\x3e\0", 1)


def wrong_dc_table() -> bytes:
    return write(crafted("grey", tables=[(bytes([0, 0, 0, 13] + 12 * [0]), bytes([*range(12), 16])), AC_TABLE] * 2))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: by_pillow(progressive=True), "progressive JPEG"),
        (lambda: patched(1, b"\xc9"), "arithmetic-coded JPEG"),
        (lambda: patched(1, b"\xca"), "arithmetic-coded progressive JPEG"),
        (lambda: patched(1, b"\xc5"), "SOF5 JPEG"),
        (lambda: patched(1, b"\xc3"), "lossless JPEG"),
        (lambda: patched(1, b"\xc1\0\x11\x0c"), "JPEG of 12 bits"),
        (lambda: patched(4, b"\x0c"), "JPEG of 12 bits"),
        (lambda: patched(5, b"\0\0"), "damaged JPEG: the height comes in a DNL marker"),
        (lambda: patched(7, b"\0\0"), "no columns"),
        (cmyk, "CMYK JPEG"),
        (lambda: rgb(adobe=True), "RGB JPEG"),
        (lambda: rgb(adobe=False), "RGB JPEG"),
        (two_components, "JPEG of 2 components"),
        (lambda: encode("411", 60, 44), "JPEG of an unusual sampling"),
        (lambda: patched(11, b"\x31"), "JPEG of an unusual sampling"),
        (lambda: patched(14, b"\x21"), "JPEG of an unusual sampling"),
        (of_16_bits, "JPEG with quantization tables of 16 bits"),
        (third_table, "JPEG with more than two tables of a kind"),
        (lambda: patched(9, b"\4"), "frame header has a wrong length"),
        (lambda: patched(10, b"\7"), "its scan has other components"),
        (wrong_spectral, "its scan is not sequential"),
        (wrong_dc_table, "a DC Huffman table has codes for no size"),
        (lambda: patched(12, b"\7"), "a quantization table is missing"),
        (lambda: without(0xDB), "a quantization table is missing"),
        (lambda: without(0xC4), "a Huffman table is missing"),
        (lambda: without(0xC0), "a scan begins before any frame header"),
        (lambda: b"", "not a JPEG"),
        (lambda: b"\xff\xd8\xff\xd9", "before any scan"),
        (lambda: b"GIF89a" + bytes(100), "not a JPEG"),
    ],
)
def test_what_does_not_qualify_is_refused_with_its_reason(make: Callable[[], bytes], reason: str) -> None:
    with pytest.raises(NotTranscodable, match=reason):
        add_restart_markers(make())


def test_the_patched_quantization_selector_is_what_is_refused() -> None:
    assert patched(12, b"\0") == encode("420", 60, 44)
    add_restart_markers(patched(12, b"\1"))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["-arithmetic"], "arithmetic-coded JPEG"),
        (["-arithmetic", "-progressive"], "arithmetic-coded progressive JPEG"),
        (["-progressive"], "progressive JPEG"),
        (["-rgb"], "RGB JPEG"),
        (["-sample", "4x1"], "unusual sampling"),
        (["-sample", "2x1,1x2"], "unusual sampling"),
    ],
)
def test_what_cjpeg_writes_and_does_not_qualify_is_refused_too(options: list[str], reason: str) -> None:
    with pytest.raises(NotTranscodable, match=f"^{reason}|{reason}$"):
        add_restart_markers(cjpeg(*options))


@pytest.mark.parametrize(
    "options",
    [[], ["-grayscale"], ["-sample", "1x2"], ["-sample", "1x1", "-optimize"], ["-quality", "5"], ["-restart", "1"]],
)
def test_what_cjpeg_writes_and_qualifies_keeps_its_coefficients(options: list[str]) -> None:
    before = cjpeg("-baseline", *options)
    after = add_restart_markers(before)
    assert jpegtran(before) == jpegtran(after)
    assert read(before).blocks == read(after).blocks


def test_several_scans_are_refused(tmp_path: Path) -> None:
    (tmp_path / "scans").write_text("0;\n1 2;\n")
    stream = jpegtran(encode("420", 60, 44), "-scans", str(tmp_path / "scans"))
    assert header(stream).sof == 0xC0
    with pytest.raises(NotTranscodable, match="JPEG in several scans"):
        add_restart_markers(stream)


@pytest.mark.parametrize("orientation", range(1, 10))
def test_a_rotated_image_is_refused(orientation: int) -> None:
    plain = encode("420", 60, 44)
    stream = with_segments(plain, segment(0xE1, EXIF_ORIENTATION % orientation))
    if orientation in (1, 9):  # there is no 9
        assert add_restart_markers(stream) == add_restart_markers(plain)
        return
    upright = segment(0xE1, EXIF_ORIENTATION % 1)
    as_byte = segment(
        0xE1,
        (EXIF_ORIENTATION % orientation).replace(
            b"\0\3\0\0\0\1\0" + bytes([orientation]), b"\0\1\0\0\0\1" + bytes([orientation, 0])
        ),
    )
    as_long = segment(
        0xE1,
        (EXIF_ORIENTATION % orientation).replace(
            b"\0\3\0\0\0\1\0" + bytes([orientation, 0, 0]), b"\0\4\0\0\0\1\0\0\0" + bytes([orientation])
        ),
    )
    little = b"Exif\0\0II\x2a\0\x08\0\0\0\1\0\x12\1\3\0\1\0\0\0" + bytes([orientation]) + bytes(7)
    before = segment(0xE1, EXIF_ORIENTATION % orientation)
    for segments in (before, before + upright, upright + before, as_byte, as_long, segment(0xE1, little)):
        with pytest.raises(NotTranscodable, match="rotated by EXIF"):
            add_restart_markers(with_segments(plain, segments))


def test_exif_that_cannot_be_read_rotates_nothing() -> None:
    plain = encode("420", 60, 44)
    exif = EXIF_ORIENTATION % 6
    for end in range(6, len(exif) - 6):
        assert add_restart_markers(with_segments(plain, segment(0xE1, exif[:end]))) == add_restart_markers(plain)
    far = exif.replace(b"\0\0\0\x08", b"\xff\xff\xff\xf8")
    assert add_restart_markers(with_segments(plain, segment(0xE1, far))) == add_restart_markers(plain)


@pytest.mark.parametrize("interval", [0, -1, 65536, 1 << 40])
def test_an_interval_that_cannot_be_written_is_refused(interval: int) -> None:
    with pytest.raises(picstore.PicstoreError, match="restart interval"):
        add_restart_markers(encode("420", 60, 44), interval)


@pytest.mark.parametrize("old", [0, 2])
def test_a_stream_cut_off_anywhere_is_refused(old: int) -> None:
    stream = write(crafted("420", 33, 33, interval=old))
    for length in range(len(stream) - 2):
        with pytest.raises(NotTranscodable, match="damaged"):
            add_restart_markers(stream[:length])


def test_restart_markers_missing_surplus_or_out_of_order_are_refused() -> None:
    stream = write(crafted("444", 80, 24, interval=2))
    at = markers.parse_header(stream).length
    offsets = [at + match.start() for match in re.finditer(rb"\xff[\xd0-\xd7]", stream[at:])]
    first, second, last = offsets[0], offsets[1], offsets[-1]
    changed = {
        "out of order": stream[:first] + stream[second : second + 2] + stream[first + 2 :],
        "markers out of order": stream[:first] + stream[first + 2 :],
        "markers are missing": stream[:last] + stream[last + 2 :],
        "more restart markers": stream[:-2] + bytes([0xFF, 0xD0 + len(offsets) % 8]) + b"\x7f\xff\xd9",
    }
    for reason, damaged in changed.items():
        with pytest.raises(NotTranscodable, match=reason):
            add_restart_markers(damaged)


def test_a_restart_marker_without_an_interval_is_refused() -> None:
    stream = write(crafted("444", 80, 24, interval=2))
    at = stream.index(b"\xff\xdd")
    with pytest.raises(NotTranscodable, match="more restart markers"):
        add_restart_markers(stream[:at] + stream[at + 6 :])


def test_damaged_codes_are_named() -> None:
    # DC size 0 is 0000, the end of the block 00000000, and run 15 with size 1 is 11110001 and a bit.
    empty = Coefficients(8, 8, [(1, 1)], [[0] * 64])
    stream = write(empty)
    at = markers.parse_header(stream).length
    assert stream[at:-2] == bytes([0x00, 0x0F])
    data = {
        "a code that its Huffman table lacks": b"\xff\0\xff\0\xff\0",
        "more than 64 coefficients": int("0000" + 4 * "111100011", 2).to_bytes(5, "big"),
        "ends early": b"\x00",
    }
    for reason, scan in data.items():
        with pytest.raises(NotTranscodable, match=reason):
            add_restart_markers(stream[:at] + scan + stream[-2:])


@pytest.mark.parametrize("kind", FACTORS)
def test_each_segment_needs_its_last_byte(kind: str) -> None:
    ones, twos = (bytes([1] + 15 * [0]), b"\0"), (bytes([0, 1] + 14 * [0]), b"\0")  # three bits a block
    empty = Coefficients(128, 96, FACTORS[kind], [], [ones, twos] * 2, interval=4)
    stream = write(replace(empty, blocks=[[0] * 64] * (empty.mcus * len(empty.order))))
    add_restart_markers(stream)
    for end in find_restart_segments(stream, markers.parse_header(stream))[1].tolist():
        with pytest.raises(NotTranscodable, match="ends early"):
            add_restart_markers(stream[: end - 1] + stream[end:])


def test_a_dc_coefficient_out_of_range_is_refused() -> None:
    source = Coefficients(48, 8, [(1, 1)], [[2047 * (k + 1)] + [0] * 63 for k in range(6)])
    stream = write(source)  # each difference is one that a baseline JPEG can have
    assert read(add_restart_markers(stream, 6)).blocks == source.blocks
    with pytest.raises(NotTranscodable, match="DC coefficient out of range"):
        add_restart_markers(stream, 1)


def test_a_size_that_its_data_cannot_fill_is_refused_before_allocation() -> None:
    huge = patched(5, b"\xff\xff\xff\xff")
    for stream in (huge, with_segments(huge, segment(0xDD, b"\0\1"))):
        with pytest.raises(NotTranscodable, match="ends early"):
            add_restart_markers(stream, 1)
