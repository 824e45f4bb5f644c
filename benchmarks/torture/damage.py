"""Damaged restart segments: small JPEGs whose entropy-coded data or tables were changed, and what was done to them."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import numpy as np
import simplejpeg
from PIL import Image

from picstore.jpeg.markers import find_restart_segments, parse_header
from picstore.jpeg.tiles import INTERVAL
from picstore.jpeg.transcode import add_restart_markers, find_entry_points

# Sampling, width and height. Images of one kind are checked together, so that kinds are few. Levels of noise make
# segments of 5 to 60 symbols of most small images, and of up to 900 of the large.
QUIET, NOISY = (0.0, 2.0, 5.0, 15.0), (8.0, 25.0, 60.0)
SMALL = (
    *(("444", 9, 7), ("444", 18, 17)),
    *(("422", 15, 9), ("422", 33, 16)),
    *(("420", 16, 16), ("420", 19, 34), ("420", 5, 3)),
    *(("440", 8, 16), ("440", 17, 21)),
    *(("grey", 8, 8), ("grey", 30, 17)),
)
LARGE = (("444", 64, 16), ("420", 66, 40), ("422", 70, 9), ("440", 40, 33), ("grey", 64, 8))
_QUALITY = 70  # of all, as images with other quantization are launched apart
_DHT, _DQT = 0xC4, 0xDB


@dataclass(frozen=True)
class Seed:
    """A sound JPEG: its headers, tiling, and the bytes of its segments."""

    headers: bytes
    tiling: tuple[int, ...]
    segments: tuple[bytes, ...]


@dataclass(frozen=True)
class Damaged:
    """A damaged JPEG.

    Attributes:
        kind: how it was damaged.
        jpeg: the stream.
        tiling: of it, see ``jpeg.cut.TiledJpegs``.
        segments: their bytes.
        count: of the segments that are damaged, or decoded by other tables.
        entries: uint16, of the segment table, for its entry points; empty for none.
        true_entries: whether these are the stream's own: then they are no reason to refuse it.
    """

    kind: str
    jpeg: bytes
    tiling: tuple[int, ...]
    segments: tuple[bytes, ...]
    count: int
    entries: np.ndarray[Any, Any] = field(default_factory=lambda: np.empty(0, np.uint16))
    true_entries: bool = True

    @property
    def lengths(self) -> np.ndarray[Any, Any]:
        """uint16, of the segments, as an index states them."""
        return np.array([len(part) for part in self.segments], np.uint16)


def make_seeds(kinds: Sequence[tuple[str, int, int]], noises: Sequence[float], rng: np.random.Generator) -> list[Seed]:
    """Make JPEGs of gradients with noise, with the standard's Huffman tables and with their own."""
    seeds = []
    for sampling, width, height in kinds:
        y, x = np.mgrid[:height, :width]
        for noise in noises:
            planes = [
                rng.uniform(60, 190)
                + x * rng.uniform(-3, 3)
                + y * rng.uniform(-3, 3)
                + rng.normal(0, 1, x.shape) * noise
                for _ in range(1 if sampling == "grey" else 3)
            ]
            pixels = np.clip(np.stack(planes, axis=2), 0, 255).astype(np.uint8)
            seeds += [_seed(_encode(pixels, sampling, own=own)) for own in (False, True)]
    return seeds


def _encode(pixels: np.ndarray[Any, Any], sampling: str, *, own: bool) -> bytes:
    """Encode with the standard's Huffman tables, or with tables of the image's own codes."""
    numbers = {"444": 0, "422": 1, "420": 2, "grey": 0}
    if own and sampling in numbers:
        out, image = io.BytesIO(), Image.fromarray(pixels[:, :, 0] if sampling == "grey" else pixels)
        image.save(out, "JPEG", quality=_QUALITY, optimize=True, subsampling=numbers[sampling])
        return out.getvalue()
    grey = sampling == "grey"
    options = {} if grey else {"colorsubsampling": sampling}
    return simplejpeg.encode_jpeg(pixels, _QUALITY, "GRAY" if grey else "RGB", **options)


def _seed(encoded: bytes) -> Seed:
    jpeg = add_restart_markers(encoded)
    header = parse_header(jpeg)
    parts = tuple(jpeg[start:end] for start, end in zip(*find_restart_segments(jpeg, header), strict=True))
    tiling = (header.width, header.height, *header.mcu_size, header.restart_interval, header.length)
    return Seed(jpeg[: header.length], tiling, parts)


def damage_tables(seed: Seed, rng: Random) -> Seed | None:
    """Change Huffman tables of a JPEG; None where there is nothing to change.

    A code grows or shrinks by some bits, a count is any number, codes at the end are dropped, or a symbol is another.
    """
    headers = bytearray(seed.headers)
    start, counts = rng.choice(_tables(headers))
    kind, used = rng.randrange(4), [k for k in range(16) if counts[k]]
    total = sum(counts)
    if kind == 3 or not used:
        headers[start + 16 + rng.randrange(total)] = rng.randrange(256)
        return Seed(bytes(headers), seed.tiling, seed.segments)
    if kind == 0:  # as many symbols as before
        one, other = rng.choice(used), rng.randrange(16)
        moved = rng.randint(1, counts[one])
        if counts[other] + moved > 255:
            return None
        counts[one] -= moved
        counts[other] += moved
    elif kind == 1:
        one, other = rng.choice(used), rng.choice(used)
        counts[one], counts[other] = counts[other], counts[one]
    else:  # the last codes are none any more: the count of their symbols stays, as the segment's length does
        last = used[-1]
        fewer = rng.randint(1, counts[last])
        counts[last] -= fewer
        return _shortened(seed, start, counts, fewer)
    headers[start : start + 16] = bytes(counts)
    return Seed(bytes(headers), seed.tiling, seed.segments)


def _shortened(seed: Seed, start: int, counts: list[int], fewer: int) -> Seed | None:
    """Drop symbols at the end of a Huffman table, which has a DHT segment of its own."""
    headers = bytearray(seed.headers)
    length = int.from_bytes(headers[start - 3 : start - 1], "big")
    if headers[start - 5 : start - 3] != bytes([0xFF, _DHT]) or length != 3 + 16 + sum(counts) + fewer:
        return None
    end = start + 16 + sum(counts)
    headers[start : start + 16] = bytes(counts)
    headers[start - 3 : start - 1] = (length - fewer).to_bytes(2, "big")
    del headers[end : end + fewer]
    return Seed(bytes(headers), (*seed.tiling[:5], len(headers)), seed.segments)


def _tables(headers: bytearray) -> list[tuple[int, list[int]]]:
    """Offset and counts of codes by length of each Huffman table."""
    found = []
    for marker, start, end in _marker_segments(headers):
        while marker == _DHT and start < end:
            counts = list(headers[start + 1 : start + 17])
            found.append((start + 1, counts))
            start += 17 + sum(counts)
    return found


def _marker_segments(headers: bytes | bytearray) -> list[tuple[int, int, int]]:
    """Marker, first byte of the content and end of each segment of the headers."""
    at, found = 2, []
    while at < len(headers):
        end = at + 2 + int.from_bytes(headers[at + 2 : at + 4], "big")
        found.append((headers[at + 1], at + 4, end))
        at = end
    return found


def quantized(seed: Seed, factors: bytes) -> Seed:
    """Replace the factors of all quantization tables."""
    headers = bytearray(seed.headers)
    for marker, start, end in _marker_segments(headers):
        if marker == _DQT:
            for at in range(start, end, 65):
                headers[at + 1 : at + 65] = factors
    return Seed(bytes(headers), seed.tiling, seed.segments)


def damaged(kind: str, seed: Seed, rng: Random) -> Damaged:
    """Damage one segment, or each; a kind of ``KINDS``, or another for data that stay as they are."""
    segments, chosen = list(seed.segments), range(len(seed.segments))
    if kind in KINDS:
        chosen = range(len(segments)) if rng.random() < 0.25 else range((k := rng.randrange(len(segments))), k + 1)
        for k in chosen:
            segments[k] = bytes(KINDS[kind](bytearray(segments[k]), rng))
    data = b"".join(part + bytes([0xFF, 0xD0 + k % 8]) for k, part in enumerate(segments))
    return Damaged(kind, seed.headers + data[:-1] + b"\xd9", seed.tiling, tuple(segments), len(chosen))


def with_entry_points(image: Damaged, seed: Seed, rng: Random) -> Damaged:
    """Give an image the entry points of its stream, or of the sound one, or changed ones; none to some images."""
    if (interval := image.tiling[INTERVAL]) < 2 or rng.random() < 0.3:
        return image
    step = rng.randrange(1, interval)
    points = find_entry_points(image.jpeg, step)
    own = points is not None
    if points is None:
        points = find_entry_points(damaged("none", seed, rng).jpeg, step)
    entries = np.append(np.uint16(step), np.zeros(0, np.uint16) if points is None else points)
    if rng.random() < 0.2:
        own, k = False, rng.randrange(len(entries))
        entries[k] = rng.choice((int(entries[k]) ^ 1 << rng.randrange(16), rng.randrange(1 << 16)))
    return replace(image, entries=entries, true_entries=own)


def _bits(part: bytearray, rng: Random) -> bytearray:
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        part[rng.randrange(len(part))] ^= 1 << rng.randrange(8)
    return part


def _bytes(part: bytearray, rng: Random) -> bytearray:
    for _ in range(rng.choice((1, 1, 2, 3))):
        part[rng.randrange(len(part))] = rng.randrange(256)
    return part


def _noise(part: bytearray, rng: Random) -> bytearray:
    at = rng.randrange(len(part))
    part[at:] = rng.randbytes(len(part) - at)
    return part


def _stuffed_noise(part: bytearray, rng: Random) -> bytearray:
    """Noise that holds no marker."""
    at = rng.randrange(len(part))
    part[at:] = rng.randbytes(rng.choice((len(part) - at, rng.randrange(200)))).replace(b"\xff", b"\xff\0")
    return part


def _ff(part: bytearray, rng: Random) -> bytearray:
    at = rng.randrange(len(part) + 1)
    part[at : at + rng.randrange(2)] = b"\xff" * rng.choice((1, 1, 2, 3)) + (b"\0" if rng.random() < 0.7 else b"")
    return part


def _markers(part: bytearray, rng: Random) -> bytearray:
    at = rng.randrange(len(part) + 1)
    part[at : at + 2 * rng.randrange(2)] = bytes([0xFF, rng.choice((rng.randrange(256), 0xD0 + rng.randrange(10)))])
    return part


def _truncated(part: bytearray, rng: Random) -> bytearray:
    del part[rng.choice((0, len(part) - 1, rng.randrange(len(part)))) :]
    return part


def _surplus(part: bytearray, rng: Random) -> bytearray:
    return part + rng.randbytes(rng.choice((1, 1, 2, 3, 9))).replace(b"\xff", b"\xff\0")


def _zeros(part: bytearray, rng: Random) -> bytearray:
    at = rng.randrange(len(part))
    part[at:] = bytes(len(part) - at)
    return part


def _ones(part: bytearray, rng: Random) -> bytearray:
    at = rng.randrange(len(part))
    part[at:] = rng.choice((b"\xff\0", b"\xff", b"\xfe")) * (len(part) - at)
    return part


def _moved(part: bytearray, rng: Random) -> bytearray:
    """Bytes left out, or twice there."""
    at, end = sorted(rng.randrange(len(part) + 1) for _ in range(2))
    part[at:at] = part[at:end] if rng.random() < 0.5 else b""
    del part[at : at + rng.randrange(3)]
    return part


KINDS = {
    "bits": _bits,
    "bytes": _bytes,
    "noise": _noise,
    "noise without markers": _stuffed_noise,
    "bytes FF": _ff,
    "markers": _markers,
    "truncation": _truncated,
    "surplus bytes": _surplus,
    "zeros": _zeros,
    "ones": _ones,
    "moved bytes": _moved,
}
