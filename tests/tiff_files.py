"""TIFF files (TIFF 6.0, BigTIFF) of known pixels, written without any library that reads them."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

UNSIGNED, SIGNED, FLOAT = 1, 2, 3
WHITE_IS_ZERO, BLACK_IS_ZERO, RGB, PALETTE, CMYK, YCBCR, LAB = 0, 1, 2, 3, 5, 6, 8
NONE, LZW, OLD_DEFLATE, DEFLATE, PACKBITS = 1, 5, 32946, 8, 32773

# Type and values of a tag.
Tag = tuple[int, Sequence[Any]]

_CODES = {1: "B", 3: "H", 4: "I", 16: "Q"}


@dataclass(frozen=True)
class Tiff:
    """Layout of a TIFF.

    ``strips`` are rows a strip, ``tile`` the side of a tile in place of strips, and ``plain`` leaves out the tags whose
    value is the default.
    """

    bits: int = 8
    photometric: int = BLACK_IS_ZERO
    kind: int = UNSIGNED
    order: str = "<"
    planar: int = 1
    extra: tuple[int, ...] = ()
    compression: int = NONE
    predictor: int = 1
    fill: int = 1
    strips: int = 0
    tile: int = 0
    big: bool = False
    tags: dict[int, Tag] = field(default_factory=dict)

    def write(self, samples: np.ndarray) -> bytes:
        """Write samples (height, width, channels): integers of ``bits`` bits, or floats."""
        height, width, channels = samples.shape
        rows = self.strips or height
        across, down = (self.tile, self.tile) if self.tile else (width, rows)
        planes = [samples] if self.planar == 1 else [samples[..., k : k + 1] for k in range(channels)]
        segments = [
            self._segment(plane[top : top + down, left : left + across], (down, across))
            for plane in planes
            for top in range(0, height, down)
            for left in range(0, width, across)
        ]
        tags: dict[int, Tag] = {
            256: (4, [width]), 257: (4, [height]), 258: (3, [self.bits] * channels), 259: (3, [self.compression]),
            262: (3, [self.photometric]), 277: (3, [channels]), 284: (3, [self.planar]),
        }  # fmt: skip
        if self.kind != UNSIGNED:
            tags[339] = (3, [self.kind] * channels)
        if self.extra:
            tags[338] = (3, list(self.extra))
        if self.predictor != 1:
            tags[317] = (3, [self.predictor])
        if self.fill != 1:
            tags[266] = (3, [self.fill])
        if self.tile:
            tags |= {322: (4, [self.tile]), 323: (4, [self.tile])}
        else:
            tags[278] = (4, [rows])
        return assemble(tags | self.tags, segments, order=self.order, big=self.big, tiled=bool(self.tile))

    def _segment(self, block: np.ndarray, shape: tuple[int, int]) -> bytes:
        if self.tile:  # tiles are whole
            whole = np.full((*shape, block.shape[2]), 0, block.dtype)
            whole[: block.shape[0], : block.shape[1]] = block
            block = whole
        if self.predictor == 2:
            block = np.concatenate([block[:, :1], block[:, 1:] - block[:, :-1]], axis=1)
        flat = block.reshape(block.shape[0], -1)
        data = self._float_predicted(flat, block.shape[2]) if self.predictor == 3 else self._packed(flat)
        data = compress(data, self.compression)
        return data if self.fill == 1 else bytes(int(f"{each:08b}"[::-1], 2) for each in data)

    def _packed(self, rows: np.ndarray) -> bytes:
        if self.kind == FLOAT:
            if self.bits == 24:  # sign, 7 bits of exponent, 16 of mantissa
                return b"".join(float24(float(each), self.order) for each in rows.ravel())
            return rows.astype(f"{self.order}f{self.bits // 8}").tobytes()
        unsigned = [[int(each) % (1 << self.bits) for each in row] for row in rows]
        if self.bits % 8 == 0:
            order: Literal["little", "big"] = "little" if self.order == "<" else "big"
            return b"".join(each.to_bytes(self.bits // 8, order) for row in unsigned for each in row)
        lines = ("".join(f"{each:0{self.bits}b}" for each in row) for row in unsigned)  # a row begins with a byte
        return b"".join(
            int(line.ljust(-len(line) % 8 + len(line), "0"), 2).to_bytes(-(-len(line) // 8), "big") for line in lines
        )

    def _float_predicted(self, rows: np.ndarray, channels: int) -> bytes:
        """Bytes of a row by significance, then differences to the pixel before (Adobe's TIFF technote 3)."""
        big = rows.astype(f">f{self.bits // 8}")
        result = b""
        for row in big:
            planes = row.view(np.uint8).reshape(len(row), -1).T.reshape(-1, channels)
            result += np.diff(planes, axis=0, prepend=np.zeros((1, channels), np.uint8)).tobytes()
        return result


def float24(value: float, order: str) -> bytes:
    bits = int(np.float32(value).view(np.uint32))
    exponent, mantissa = (bits >> 23) & 255, (bits & 0x7FFFFF) >> 7
    packed = 0 if exponent == 0 else (bits >> 31) << 23 | (exponent - 127 + 63) << 16 | mantissa
    return packed.to_bytes(3, "little" if order == "<" else "big")


def compress(data: bytes, compression: int) -> bytes:
    if compression in (DEFLATE, OLD_DEFLATE):
        return zlib.compress(data)
    if compression == PACKBITS:
        return b"".join(bytes([len(part) - 1]) + part for part in (data[k : k + 128] for k in range(0, len(data), 128)))
    if compression == LZW:  # literals of 9 bits alone, and a clear code before the table outgrows them
        codes = [code for k in range(0, len(data), 200) for code in (256, *data[k : k + 200])] + [257]
        text = "".join(f"{code:09b}" for code in codes)
        return int(text.ljust(-len(text) % 8 + len(text), "0"), 2).to_bytes(-(-len(text) // 8), "big")
    return data


def assemble(
    tags: dict[int, Tag], segments: list[bytes], *, order: str = "<", big: bool = False, tiled: bool = False
) -> bytes:
    """Write tags (by number: type, values) and segments as a TIFF of one directory."""
    word, head, offset_type = ("Q", 16, 16) if big else ("I", 8, 4)
    inline = struct.calcsize(word)
    offsets, counts = (324, 325) if tiled else (273, 279)
    tags = dict(tags)
    tags.setdefault(counts, (4, [len(each) for each in segments]))
    tags[offsets] = (offset_type, [0] * len(segments))

    def pack(kind: int, values: Sequence[Any]) -> bytes:
        return struct.pack(f"{order}{len(values)}{_CODES[kind]}", *values)

    start = head + (8 if big else 2) + (20 if big else 12) * len(tags) + inline
    spilled = sum(len(pack(*tag)) for tag in tags.values() if len(pack(*tag)) > inline)
    position = start + spilled
    places = []
    for each in segments:
        places.append(position)
        position += len(each)
    tags[offsets] = (offset_type, places)
    entries = extra = b""
    for tag, (kind, values) in sorted(tags.items()):
        raw = pack(kind, values)
        entries += struct.pack(f"{order}HH{word}", tag, kind, len(values))
        if len(raw) > inline:
            entries += struct.pack(order + word, start + len(extra))
            extra += raw
        else:
            entries += raw.ljust(inline, b"\0")
    mark = b"II" if order == "<" else b"MM"
    first = struct.pack(order + ("HHHQ" if big else "HI"), *((43, 8, 0, 16) if big else (42, 8)))
    count = struct.pack(order + ("Q" if big else "H"), len(tags))
    return mark + first + count + entries + bytes(inline) + extra + b"".join(segments)
