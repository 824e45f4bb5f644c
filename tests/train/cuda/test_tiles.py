"""Tiles decoded by picstore's kernels for GPUs, interpreted: the pixels of the CPU's decoder, and its refusals."""

from __future__ import annotations

import contextlib
import io
from types import SimpleNamespace

import numpy as np
import pytest
import simplejpeg
import torch
from described import Described, describe
from grids import slow_except
from PIL import Image

from picstore.errors import ImageError
from picstore.jpeg.decoder.decode_baseline import decode
from picstore.jpeg.markers import find_restart_segments, parse_header
from picstore.jpeg.transcode import add_restart_markers

pytest.importorskip("triton")

from picstore.train.cuda import decode_tiles as decoding
from picstore.train.cuda.decode_tiles import decode_tiles

pytestmark = pytest.mark.interpreted
CPU = torch.device("cpu")


def decode_described(described: Described) -> tuple[list[np.ndarray], np.ndarray]:
    """Pixels (h, w, 3) of each image that the GPU decodes, and status."""
    slots = np.flatnonzero(described.codes == 0)
    tables = described.in_block()
    images, queued = decode_tiles([tables], device=CPU)
    status = queued.wait()
    assert np.array_equal(tables.arrays["data"], described.data)
    return [images[slot].numpy().transpose(1, 2, 0) for slot in slots.tolist()], status[slots]


def smooth(width: int, height: int, seed: int = 0, channels: int = 3) -> np.ndarray:
    """A picture of few coefficients, as the interpreter takes a millisecond for each."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    levels = [random.uniform(60, 190) + x * random.uniform(-2, 2) + y * random.uniform(-2, 2) for _ in range(channels)]
    return np.clip(np.stack(levels, axis=2), 0, 255).astype(np.uint8)


def tiled(image: np.ndarray, sampling: str, quality: int = 50) -> bytes:
    space = "GRAY" if image.shape[2] == 1 else "RGB"
    options = {} if space == "GRAY" else {"colorsubsampling": sampling}
    return add_restart_markers(simplejpeg.encode_jpeg(image, quality, space, **options))


def cut(pixels: np.ndarray, rect: np.ndarray) -> np.ndarray:
    left, top, width, height = rect.tolist()
    return pixels[top : top + height, left : left + width]


ALL = [("444", 29, 9), ("422", 21, 7), ("420", 19, 18), ("440", 9, 18), ("420", 3, 2), ("422", 5, 9), ("grey", 18, 9)]


@pytest.mark.parametrize("chosen", slow_except([ALL[2:3]], [ALL[2:3], ALL]), ids=len)
def test_pixels_of_all_samplings_odd_sizes_grey_and_boxes_are_the_cpus(chosen: list[tuple[str, int, int]]) -> None:
    jpegs = [
        tiled(smooth(width, height, k, 1 if kind == "grey" else 3), kind)
        for k, (kind, width, height) in enumerate(chosen)
    ]
    jpegs.append(tiled(smooth(130, 33, 9), "420"))
    boxes = [(0, 0, width, height) for _, width, height in chosen] + [(66, 17, 90, 30)]
    described = describe(jpegs, boxes)
    assert not described.codes.any()
    assert described.rects[-1].tolist() == [48, 16, 48, 16]  # a tile of 3 MCUs, of 9 a row
    images, status = decode_described(described)
    assert not status.any()
    for jpeg, image, rect, (left, top, right, bottom) in zip(jpegs, images, described.rects, boxes, strict=True):
        whole, (x, y, width, height) = decode(jpeg), rect.tolist()
        assert image.shape == (height, width, 3)
        inner = image[top - y : bottom - y, left - x : right - x]
        assert np.array_equal(inner, whole[top:bottom, left:right])


SMALLER = [("422", 37, 9, 8), ("420", 35, 18, 2), ("444", 24, 9, 4), ("440", 9, 33, 8)]
SMALLER += [("422", 21, 7, 2), ("422", 5, 9, 4), ("420", 19, 18, 8), ("440", 4, 18, 2), ("grey", 18, 9, 4)]


@pytest.mark.parametrize("chosen", slow_except([SMALLER[:2]], [SMALLER[:2], SMALLER]), ids=len)
def test_smaller_decodings_of_all_samplings_are_the_cpus(chosen: list[tuple[str, int, int, int]]) -> None:
    random = np.random.default_rng(2)
    jpegs, factors = [], [factor for *_, factor in chosen]
    for kind, width, height, factor in chosen:
        image = random.integers(0, 256, (-(-height // factor), -(-width // factor), 1 if kind == "grey" else 3))
        blocks = image.repeat(factor, axis=0).repeat(factor, axis=1)[:height, :width]
        jpegs.append(tiled(blocks.astype(np.uint8), kind, 30))
    images, status = decode_described(describe(jpegs, factors=factors))
    assert not status.any()
    for jpeg, factor, image in zip(jpegs, factors, images, strict=True):
        assert np.array_equal(image, decode(jpeg, factor=factor))


def test_a_crop_that_is_decoded_smaller_has_enough_chroma_to_interpolate() -> None:
    """The last segment alone has 5 pixels, one sample of chroma at 1/4; libjpeg repeats chroma up to two of a row."""
    file = io.BytesIO()
    Image.fromarray(smooth(37, 9)).save(file, "JPEG", quality=50, subsampling="4:2:2", restart_marker_blocks=1)
    described = describe([file.getvalue()], [(36, 0, 37, 9)], factors=[4])
    assert described.rects.tolist() == [[16, 0, 21, 9]]
    (image,), status = decode_described(described)
    assert not status.any()
    assert np.array_equal(image[:, 5:], decode(file.getvalue(), factor=4)[:, 9:])


def test_a_batch_of_many_blocks_is_decoded_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "MOST_BLOCKS", 3)
    jpegs = [tiled(smooth(8 * count, 8, count, 1), "") for count in (1, 2, 4)]
    assert [(part.start, part.stop) for part in decoding._parts(np.array([1, 2, 4]))] == [(0, 2), (2, 3)]
    images, status = decode_described(describe(jpegs))
    assert not status.any()
    assert all(np.array_equal(image, decode(jpeg)) for image, jpeg in zip(images, jpegs, strict=True))


@pytest.mark.slow
def test_long_codes_and_large_coefficients_make_the_cpus_pixels() -> None:
    """Noise at quality 100 uses all of the standard tables: codes of 16 bits beside values of 10."""
    random = np.random.default_rng(1)
    noise = random.integers(0, 2, (8, 8, 1), np.uint8) * 255
    jpegs = [tiled(noise, "", 100), tiled(random.integers(0, 256, (8, 8, 3), np.uint8), "444", 100)]
    images, status = decode_described(describe(jpegs))
    assert not status.any()
    assert all(np.array_equal(image, decode(jpeg)) for image, jpeg in zip(images, jpegs, strict=True))


def damaged(jpeg: bytes, random: np.random.Generator) -> bytes:
    """A stream with other bytes in a segment, none of which makes a marker that the headers do not announce."""
    header = parse_header(jpeg)
    starts, ends = find_restart_segments(jpeg, header)
    k = int(random.integers(len(starts)))
    part = bytearray(jpeg[starts[k] : ends[k]])
    at = int(random.integers(len(part)))
    kind = int(random.integers(6))
    if kind == 0:
        part[at] ^= 1 << int(random.integers(8))
    elif kind == 1:
        part[at] = int(random.integers(256))
    elif kind == 2:
        part[at:] = random.integers(0, 256, len(part) - at, np.uint8).tobytes()
    elif kind == 3:
        del part[at:]
    elif kind == 4:
        part += random.integers(0, 255, int(random.integers(1, 4)), np.uint8).tobytes()
    else:
        part[at:] = bytes([0 if random.random() < 0.5 else 0xFE]) * (len(part) - at)
    return jpeg[: starts[k]] + bytes(part) + jpeg[ends[k] :]


@pytest.mark.parametrize("count", slow_except([3], [3, 15], mark=pytest.mark.nightly))
def test_damaged_segments_end_and_are_refused_where_the_cpu_refuses_them(count: int) -> None:
    random = np.random.default_rng(count)
    sound = [tiled(smooth(16, 16, 3), "420"), tiled(smooth(16, 8, 4), "422"), tiled(smooth(8, 8, 5, 1), "")]
    jpegs: list[bytes] = []
    while len(jpegs) < count:
        jpeg = damaged(sound[len(jpegs) % 3], random)
        try:
            find_restart_segments(jpeg, parse_header(jpeg))
        except ImageError:
            continue  # another number of segments, of which the index says otherwise
        jpegs.append(jpeg)
    described = describe(jpegs)
    images, status = decode_described(described)
    refused = 0
    decoded = iter(zip(images, status.tolist(), strict=True))
    for jpeg, code in zip(jpegs, described.codes.tolist(), strict=True):
        image, problem = next(decoded) if code == 0 else (None, 1)
        try:
            expected = decode(jpeg)
        except ImageError:
            assert problem
            refused += 1
        else:
            assert problem or np.array_equal(image, expected)
            # Fill bytes before a marker are the CPU's to judge.
            assert not problem or b"\xff\xff" in jpeg[parse_header(jpeg).length :]
    assert refused


def test_images_of_other_kinds_are_left_to_the_cpu() -> None:
    image = smooth(24, 20)
    sound = tiled(image, "420")
    header = parse_header(sound)
    plain = simplejpeg.encode_jpeg(image, 50, "RGB", "420")
    rgb = sound[:2] + b"\xff\xee\x00\x0eAdobe\x00\x64\x00\x00\x00\x00\x00" + sound[2:]
    rgb = rgb.replace(b"\xff\xe0", b"\xff\xe1", 1)  # no JFIF any more
    sixteen = bytearray(sound)
    sixteen[sixteen.index(b"\xff\xdb") + 4] |= 0x10  # quantization of 16 bits
    marker = sound.index(b"\xff\xd0", header.length)
    wrong = sound[: marker + 1] + b"\xd0" + sound[marker + 2 :]
    assert describe([sound, plain, rgb, bytes(sixteen)]).codes.tolist()[0] == 0
    assert (describe([sound, plain, rgb, bytes(sixteen)]).codes[1:] < 0).all()
    assert describe([wrong]).codes[0] == 0  # the right marker


def test_an_error_waits_for_the_copies_of_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory that they read is used again."""
    waited: list[object] = []
    empty = torch.empty
    stream = SimpleNamespace(synchronize=lambda: waited.append(stream))
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)

    def fail(*_: object) -> None:
        assert not waited
        raise RuntimeError("out of memory")

    monkeypatch.setattr(decoding, "_upload", lambda *_, **__: {})
    monkeypatch.setattr(torch, "empty", lambda *given, pin_memory, **named: empty(*given, **named))
    monkeypatch.setattr(decoding, "_decode_part", fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        decode_tiles([describe([tiled(smooth(8, 8, 0, 1), "")]).in_block()], device=torch.device("cuda"), locked=[True])
    assert waited == [stream]
