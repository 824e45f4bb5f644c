"""cut: crops out of compressed bytes show the pixels that decoding everything and cropping shows."""

from __future__ import annotations

import io
import random
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
from grids import slow_except
from PIL import Image
from samples import jpeg

import picstore
from picstore.errors import ImageError, NotTranscodable, UsageError
from picstore.jpeg.cut import CutJpegs, TiledJpegs, cut, cut_batch
from picstore.jpeg.markers import find_restart_segments, parse_header
from picstore.jpeg.transcode import add_restart_markers

SAMPLINGS = ("grey", "444", "422", "440", "420")
Box = tuple[int, int, int, int]


def by_pillow(stream: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(stream)) as image:
        return np.asarray(image.convert("RGB"))


def by_torchvision(stream: bytes) -> np.ndarray:
    import torch
    from torchvision.io import ImageReadMode, decode_jpeg

    data = torch.frombuffer(bytearray(stream), dtype=torch.uint8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torchvision 0.29 announces torchcodec
        return decode_jpeg(data, mode=ImageReadMode.RGB).permute(1, 2, 0).numpy()


# A default run takes a quarter of the photographs, all of CI every one.
QUARTERS = [0, *(pytest.param(k, marks=pytest.mark.slow) for k in (1, 2, 3))]
DECODERS: dict[str, Callable[[bytes], np.ndarray]] = {
    "simplejpeg": simplejpeg.decode_jpeg,
    "torchvision": by_torchvision,
    "Pillow": by_pillow,
}


def make(sampling: str, width: int, height: int, *, interval: int | None = None, quality: int = 85) -> bytes:
    """A JPEG of noise with restart markers."""
    noise = np.random.default_rng([width, height]).integers(0, 256, (height, width, 3), np.uint8)
    if sampling == "grey":
        plain = simplejpeg.encode_jpeg(noise[:, :, :1].copy(), quality=quality, colorspace="GRAY")
    else:
        plain = simplejpeg.encode_jpeg(noise, quality=quality, colorsubsampling=sampling)
    return add_restart_markers(plain, interval)


def random_boxes(width: int, height: int, count: int, *, seed: int = 0) -> Iterator[Box]:
    """Of all sizes; one in four is one pixel."""
    rng = random.Random(seed)
    for number in range(count):
        left, top = rng.randrange(width), rng.randrange(height)
        if number % 4 == 0:
            yield left, top, 1, 1
        else:
            yield left, top, rng.randint(1, width - left), rng.randint(1, height - top)


def border_boxes(width: int, height: int) -> Iterator[Box]:
    """On every border and corner, one pixel and 21 pixels thick or wide, and the whole image."""
    for size in (1, 21):
        w, h = min(size, width), min(size, height)
        for left in {0, (width - w) // 2, width - w}:
            for top in {0, (height - h) // 2, height - h}:
                yield left, top, w, h
        yield from ((0, 0, width, h), (0, height - h, width, h), (0, 0, w, height), (width - w, 0, w, height))
    yield 0, 0, width, height


def check(stream: bytes, full: np.ndarray, box: Box, decode: Callable[[bytes], np.ndarray]) -> bytes:
    """The cut of a box, after its pixels were compared with those of the whole image."""
    part, (dx, dy) = cut(stream, box)
    left, top, width, height = box
    shown = decode(part)[dy : dy + height, dx : dx + width]
    assert np.array_equal(shown, full[top : top + height, left : left + width]), box
    return part


def tiling_of(stream: bytes) -> tuple[list[int], np.ndarray]:
    header = parse_header(stream)
    starts, ends = find_restart_segments(stream, header)
    tiling = [header.width, header.height, *header.mcu_size, header.restart_interval, header.length]
    return tiling, (ends - starts).astype(np.uint16)


def tiled(streams: list[bytes]) -> TiledJpegs:
    tilings, lengths = zip(*map(tiling_of, streams), strict=True)
    return TiledJpegs.from_streams(streams, np.array(tilings), lengths)


def streams_of(cuts: CutJpegs) -> list[bytes]:
    return [cuts.data[a:b].tobytes() for a, b in zip(cuts.offsets[:-1], cuts.offsets[1:], strict=True)]


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("size", slow_except([((131, 97),)], [((200, 136),), ((131, 97),), ((97, 131),)]))
def test_a_cut_shows_the_pixels_of_the_whole_image(name: str, sampling: str, size: tuple[int, int]) -> None:
    decode = DECODERS[name]
    stream = make(sampling, *size)
    full = decode(stream)
    for box in (*border_boxes(*size), *random_boxes(*size, 150)):
        check(stream, full, box, decode)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("per_row", slow_except([2], [1, 2, None]))
def test_it_does_so_for_tiles_of_one_mcu_of_some_and_of_a_row(sampling: str, per_row: int | None) -> None:
    for width, height in ((161, 50), (190, 33), (64, 70)):
        plain = make(sampling, width, height)
        columns = parse_header(plain).mcus[0]
        stream = add_restart_markers(plain, {1: 1, 2: max(1, columns // 2), None: columns}[per_row])
        full = simplejpeg.decode_jpeg(stream)
        for box in (*border_boxes(width, height), *random_boxes(width, height, 100, seed=1)):
            check(stream, full, box, simplejpeg.decode_jpeg)


@pytest.mark.parametrize("sampling", slow_except(["422", "420"], SAMPLINGS))
def test_it_does_so_for_every_column_of_every_width(sampling: str) -> None:
    # libjpeg interpolates no chroma in images of at most 4 pixels, which the last tile may be.
    for width in range(1, 70):
        stream = make(sampling, width, 19, interval=1)
        full = simplejpeg.decode_jpeg(stream)
        for left in range(width):
            check(stream, full, (left, 7, 1, 2), simplejpeg.decode_jpeg)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_it_does_so_for_every_row_of_every_height(sampling: str) -> None:
    for height in range(1, 40):
        stream = make(sampling, 35, height, interval=1)
        full = simplejpeg.decode_jpeg(stream)
        for top in range(height):
            check(stream, full, (17, top, 3, 1), simplejpeg.decode_jpeg)


@pytest.mark.parametrize("quarter", QUARTERS)
def test_it_does_so_for_photographs(photographs: list[Path], quarter: int) -> None:
    rng = random.Random(quarter)
    checked = 0
    for path in photographs[quarter::4]:
        try:
            stream = add_restart_markers(path.read_bytes())
        except NotTranscodable:
            continue
        name = rng.choice(list(DECODERS))
        full = DECODERS[name](stream)
        for box in random_boxes(full.shape[1], full.shape[0], 6, seed=rng.randrange(1 << 30)):
            check(stream, full, box, DECODERS[name])
            checked += 1
    assert checked > 500


def test_a_cut_of_a_cut_shows_them_too() -> None:
    stream = make("420", 320, 200)
    full = simplejpeg.decode_jpeg(stream)
    rng = random.Random(3)
    for left, top, width, height in random_boxes(320, 200, 100, seed=2):
        part, (dx, dy) = cut(stream, (left, top, width, height))
        x, y = rng.randrange(width), rng.randrange(height)
        w, h = rng.randint(1, width - x), rng.randint(1, height - y)
        part, (dx, dy) = cut(part, (dx + x, dy + y, w, h))
        shown = simplejpeg.decode_jpeg(part)[dy : dy + h, dx : dx + w]
        assert np.array_equal(shown, full[top + y : top + y + h, left + x : left + x + w])


def test_a_cut_is_small_a_jpeg_with_the_same_headers_but_its_size() -> None:
    stream = make("420", 640, 480)
    before = parse_header(stream)
    part, (dx, dy) = cut(stream, (300, 194, 10, 10))
    after = parse_header(part)
    assert len(part) < len(stream) / 20
    assert (after.width, after.height) == (64, 16)
    assert (dx, dy) == (300 - 256, 194 - 192)
    assert (after.length, after.components, after.restart_interval) == (before.length, before.components, 4)
    starts, _ = find_restart_segments(part, after)
    assert len(starts) == 1


def test_a_box_on_the_edge_of_a_tile_takes_the_tile_beside_it_too() -> None:
    stream = make("420", 640, 480)
    size = {box: parse_header(cut(stream, box)[0]) for box in ((65, 17, 62, 14), (64, 17, 62, 14), (65, 17, 63, 15))}
    assert [(h.width, h.height) for h in size.values()] == [(64, 16), (128, 16), (128, 32)]


def test_the_whole_box_gives_the_whole_stream() -> None:
    stream = make("422", 150, 100)
    assert cut(stream, (0, 0, 150, 100)) == (stream, (0, 0))


@pytest.mark.parametrize("interval", [3, 4, 7, 10, 14])
def test_a_stream_without_a_grid_of_tiles_is_returned_whole(interval: int) -> None:
    plain = make("444", 80 - 8 * (interval == 10), 48)  # 10 columns, or 9
    stream = add_restart_markers(plain, interval)
    assert parse_header(stream).mcus[0] % interval
    assert cut(stream, (30, 20, 5, 5)) == (stream, (30, 20))


def test_a_stream_without_markers_is_returned_whole() -> None:
    for plain in (jpeg(1), jpeg(2, width=300, height=200)):
        assert cut(plain, (30, 20, 5, 5)) == (plain, (30, 20))


def test_a_stream_with_a_segment_beyond_64_kib_is_returned_whole() -> None:
    stream = make("444", 2000, 64, interval=250, quality=100)
    _, lengths = tiling_of(stream)
    starts, ends = find_restart_segments(stream, parse_header(stream))
    assert (ends - starts).max() > 65535
    assert cut(stream, (30, 20, 5, 5)) == (stream, (30, 20))
    assert lengths.dtype == np.uint16


def test_bytes_behind_the_end_are_left_behind() -> None:
    stream = make("420", 200, 100)
    for box in ((0, 0, 200, 100), (70, 30, 20, 10)):
        assert cut(stream + b"\xff\xd8more" * 9, box) == cut(stream, box)


def test_fill_bytes_in_the_headers_and_before_restart_markers_are_kept() -> None:
    stream = make("420", 200, 100)
    at = parse_header(stream).length
    first = stream.index(b"\xff\xd0", at)
    filled = stream[:2] + b"\xff\xff\xff" + stream[2:first] + b"\xff" + stream[first:]
    full = simplejpeg.decode_jpeg(stream)
    for box in random_boxes(200, 100, 60):
        part = check(filled, full, box, simplejpeg.decode_jpeg)
        assert len(part) <= len(filled)
    assert len(cut(filled, (0, 0, 5, 5))[0]) < len(filled) / 2


def test_a_stream_of_the_extended_process_is_cut_too() -> None:
    stream = make("420", 200, 100)
    extended = stream.replace(b"\xff\xc0", b"\xff\xc1", 1)
    full = simplejpeg.decode_jpeg(stream)
    for box in ((0, 0, 5, 5), (70, 30, 20, 10)):
        part = check(extended, full, box, simplejpeg.decode_jpeg)
        assert part.replace(b"\xff\xc1", b"\xff\xc0", 1) == cut(stream, box)[0] != stream


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_kind_of_bytes_can_be_cut(kind: type) -> None:
    stream = make("420", 200, 100)
    assert cut(kind(stream), (70, 30, 20, 10)) == cut(stream, (70, 30, 20, 10))
    assert picstore.cut(kind(stream), (70, 30, 20, 10)) == cut(stream, (70, 30, 20, 10))


@pytest.mark.parametrize(
    "box",
    [
        (-1, 0, 5, 5),
        (0, -1, 5, 5),
        (0, 0, 0, 5),
        (0, 0, 5, 0),
        (0, 0, -5, 5),
        (96, 0, 5, 5),
        (0, 76, 5, 5),
        (0, 0, 101, 1),
        (100, 0, 1, 1),
        (1 << 61, 0, 1 << 61, 1),
    ],
)
def test_a_box_outside_the_image_is_an_error_of_use(box: Box) -> None:
    with pytest.raises(UsageError, match="box"):
        cut(make("420", 100, 80), box)


def test_what_is_no_jpeg_of_one_scan_is_an_image_error() -> None:
    stream = make("420", 100, 80)
    progressive = io.BytesIO()
    Image.new("RGB", (100, 80)).save(progressive, "JPEG", progressive=True)
    for damaged in (b"", b"\xff\xd8", stream[:-2], stream[:200], progressive.getvalue()):
        with pytest.raises(ImageError):
            cut(damaged, (0, 0, 5, 5))


def test_a_batch_gives_what_cutting_one_by_one_gives() -> None:
    rng = random.Random(4)
    streams = [make(rng.choice(SAMPLINGS), rng.randint(1, 300), rng.randint(1, 200)) for _ in range(60)]
    streams += [jpeg(k, width=150, height=90) for k in range(3)]  # returned whole
    boxes = [
        next(random_boxes(*(parse_header(s).width, parse_header(s).height), 2, seed=k)) for k, s in enumerate(streams)
    ]
    cuts = cut_batch(tiled(streams), np.array([(x, y, x + w, y + h) for x, y, w, h in boxes]))
    assert cuts.offsets.dtype == cuts.rects.dtype == np.int64
    for stream, box, part, rect in zip(streams, boxes, streams_of(cuts), cuts.rects.tolist(), strict=True):
        assert (part, (box[0] - rect[0], box[1] - rect[1])) == cut(stream, box)
        assert simplejpeg.decode_jpeg_header(part)[:2] == (rect[3], rect[2])


def test_a_batch_of_nothing_is_empty() -> None:
    cuts = cut_batch(TiledJpegs.from_streams([], np.empty((0, 6), np.int64), []), np.empty((0, 4), np.int64))
    assert (cuts.offsets.tolist(), len(cuts.data), cuts.rects.shape) == ([0], 0, (0, 4))


def test_a_buffer_can_be_used_again_and_only_its_beginning_is_written() -> None:
    streams = [make("420", 200, 100), make("444", 90, 70)]
    out = np.full(sum(map(len, streams)) + 100, 7, np.uint8)
    for boxes in ([(0, 0, 200, 100), (0, 0, 90, 70)], [(5, 5, 9, 9), (60, 60, 61, 61)]):
        cuts = cut_batch(tiled(streams), np.array(boxes), out=out)
        assert cuts.data is out
        assert streams_of(cuts) == [
            cut(s, (a, b, c - a, d - b))[0] for s, (a, b, c, d) in zip(streams, boxes, strict=True)
        ]
        assert (out[-100:] == 7).all()


@pytest.mark.parametrize(
    "out",
    [
        np.empty(10, np.uint8),
        np.empty(1 << 16, np.int8),
        np.empty((256, 256), np.uint8),
        np.empty(1 << 17, np.uint8)[::2],
        np.empty(1 << 17, np.uint8)[::-1],
        np.frombuffer(bytes(1 << 16), np.uint8),
    ],
)
def test_a_buffer_that_cannot_be_written_to_is_an_error_of_use(out: np.ndarray) -> None:
    with pytest.raises(UsageError, match="buffer"):
        cut_batch(tiled([make("420", 100, 80)]), np.array([(0, 0, 9, 9)]), out=out)


def test_a_batch_needs_a_box_and_a_layout_for_each_stream() -> None:
    stream = make("420", 100, 80)
    tiling, lengths = tiling_of(stream)
    for boxes in (
        np.array([(0, 0, 9, 9)]),
        np.array([(0, 0, 9, 9)] * 3),
        np.array([0, 0, 9, 9]),
        np.array([(0, 0, 9)] * 2),
    ):
        with pytest.raises(UsageError, match="boxes of shape"):
            cut_batch(tiled([stream] * 2), boxes)
    for tilings in (np.array([tiling]), np.array([tiling[:5]] * 2), np.array(tiling)):
        with pytest.raises(UsageError, match="tilings of shape"):
            TiledJpegs.from_streams([stream] * 2, tilings, [lengths] * 2)


def test_lengths_need_not_be_contiguous() -> None:
    stream = make("420", 200, 100)
    tiling, lengths = tiling_of(stream)
    forms: list[Any] = [np.repeat(lengths, 2)[::2], lengths[::-1].copy()[::-1], lengths.astype(np.int64)]
    for strided in forms:
        cuts = cut_batch(TiledJpegs.from_streams([stream], np.array([tiling]), [strided]), np.array([(70, 30, 90, 40)]))
        assert streams_of(cuts) == [cut(stream, (70, 30, 20, 10))[0]]


def test_a_wrong_table_of_segments_gives_the_whole_stream() -> None:
    stream = make("420", 200, 100)
    tiling, lengths = tiling_of(stream)
    longer, shorter = lengths.copy(), lengths.copy()
    longer[3] += 1
    shorter[3] -= 1
    huge = np.full(len(lengths), 65535, np.uint16)
    for wrong in (
        lengths[:-1],
        lengths[:0],
        np.append(lengths, lengths[0]),
        longer,
        shorter,
        huge,
        huge[:1],
        0 * lengths,
    ):
        cuts = cut_batch(
            TiledJpegs.from_streams([stream], np.array([tiling]), [wrong.astype(np.uint16)]),
            np.array([(70, 30, 71, 31)]),
        )
        assert streams_of(cuts) == [stream]
        assert cuts.rects.tolist() == [[0, 0, 200, 100]]


@pytest.mark.parametrize("column", range(2, 6))
@pytest.mark.parametrize("value", [0, 1, -1, -8, -4, 3, 5, 10**6, 1 << 31, 1 << 61, (1 << 63) - 1, -(1 << 63)])
def test_a_wrong_layout_gives_the_whole_stream(column: int, value: int) -> None:
    stream = make("420", 200, 100)
    tiling, lengths = tiling_of(stream)
    tiling[column] = value
    cuts = cut_batch(TiledJpegs.from_streams([stream], np.array([tiling]), [lengths]), np.array([(70, 30, 71, 31)]))
    assert streams_of(cuts) == [stream]


def test_opposite_errors_in_a_layout_give_the_whole_stream_too() -> None:
    stream = make("420", 200, 100)
    right, lengths = tiling_of(stream)
    for changed in (
        {2: -16, 4: -4},
        {3: -16, 4: -4},
        {2: -16, 3: -16},
        {2: 1 << 32, 4: 1 << 32},
        {0: 1 << 60, 2: 1 << 60},
    ):
        tiling = [changed.get(k, value) for k, value in enumerate(right)]
        cuts = cut_batch(TiledJpegs.from_streams([stream], np.array([tiling]), [lengths]), np.array([(70, 30, 71, 31)]))
        assert streams_of(cuts) == [stream]
