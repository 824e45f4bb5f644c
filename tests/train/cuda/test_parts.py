"""Long segments decoded in parts by picstore's kernels for GPUs, interpreted: the CPU's pixels, whatever is stored."""

from __future__ import annotations

import numpy as np
import pytest
from described import describe
from grids import slow_except

from picstore.jpeg.decoder.decode_baseline import decode
from picstore.jpeg.markers import parse_header
from picstore.jpeg.transcode import add_restart_markers, find_entry_points

pytest.importorskip("triton")

from test_tiles import decode_described, smooth, tiled

pytestmark = pytest.mark.interpreted


def long_tile(kind: str, columns: int, height: int, seed: int = 0) -> bytes:
    """A smooth picture whose rows are a tile each."""
    width = columns * (8 if kind in ("grey", "444", "440") else 16) - 3
    return add_restart_markers(tiled(smooth(width, height, seed, 1 if kind == "grey" else 3), kind), columns)


def entries_of(jpeg: bytes, step: int) -> np.ndarray:
    points = find_entry_points(jpeg, step)
    assert points is not None
    return np.append(step, points).astype(np.uint16)


ALL = [("420", 5, 18, 2), ("444", 7, 9, 2), ("422", 3, 9, 1), ("440", 7, 18, 6), ("grey", 11, 9, 4)]


@pytest.mark.parametrize("chosen", slow_except([ALL[:1]], [ALL[:1], ALL]), ids=len)
def test_parts_of_all_samplings_and_crops_are_the_cpus_pixels(chosen: list[tuple[str, int, int, int]]) -> None:
    jpegs = [long_tile(kind, columns, height, k) for k, (kind, columns, height, _) in enumerate(chosen)]
    entries = [entries_of(jpeg, step) for jpeg, (*_, step) in zip(jpegs, chosen, strict=True)]
    jpegs += [jpegs[0], tiled(smooth(40, 17, 8), "420")]  # a crop, and an image without entry points
    entries += [entries[0], np.empty(0, np.uint16)]
    sizes = [(header.width, header.height) for header in map(parse_header, jpegs)]
    boxes = [(0, 0, *size) for size in sizes]
    boxes[-2] = (20, 17, 30, 18)
    described = describe(jpegs, boxes, entries=entries)
    assert not described.codes.any()
    images, status = decode_described(described)
    assert not status.any()
    for jpeg, image, rect, (left, top, right, bottom) in zip(jpegs, images, described.rects, boxes, strict=True):
        x, y, width, height = rect.tolist()
        assert image.shape == (height, width, 3)
        inner = image[top - y : bottom - y, left - x : right - x]
        assert np.array_equal(inner, decode(jpeg)[top:bottom, left:right])


def flipped(entries: np.ndarray, count: int) -> list[np.ndarray]:
    """The entries with each of their bits flipped, or with so many of these."""
    made = []
    for place in range(len(entries)):
        for bit in range(16):
            other = entries.copy()
            other[place] ^= 1 << bit
            made.append(other)
    return [made[k] for k in np.linspace(0, len(made) - 1, min(count, len(made))).astype(int)]


@pytest.mark.parametrize("count", slow_except([6], [6, 1000], mark=pytest.mark.nightly))
def test_a_wrong_bit_in_the_entry_points_is_flagged(count: int) -> None:
    jpeg = long_tile("444", 5, 9)
    wrong = flipped(entries_of(jpeg, 2), count)
    described = describe([jpeg] * len(wrong), entries=wrong)
    before = described.data.copy()
    _, status = decode_described(described)
    assert np.array_equal(described.data, before)
    problems = described.codes.copy()
    problems[described.codes == 0] = status
    assert problems.all()


@pytest.mark.slow
def test_entry_points_one_bit_before_or_after_an_mcu_are_flagged() -> None:
    """Both neighbors agree about the bit: only the codes tell that no MCU begins there."""
    jpeg = long_tile("444", 7, 9, 3)
    sound, wrong = entries_of(jpeg, 2), []
    for place in (1, 4):
        for change in (-8, -1, 1, 8):
            other = sound.astype(np.int64)
            other[place : place + 2] += change, -change
            wrong.append(other.astype(np.uint16))
    described = describe([jpeg] * len(wrong), entries=wrong)
    _, status = decode_described(described)
    assert status.all() and not described.codes.any()
