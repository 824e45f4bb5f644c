"""Independent reader and writer of baseline JPEGs as coefficients, by ITU-T T.81: slow and plain.

Codes and bits are strings of "0" and "1". A block is 64 integers in zigzag order; its first is the DC coefficient
itself, not a difference. Blocks come in the order of the scan.
"""

from __future__ import annotations

import platform
import re
import struct
from dataclasses import dataclass, field, replace
from functools import lru_cache

import pytest

FACTORS = {
    "grey": [(1, 1)],
    **{
        k: [v, (1, 1), (1, 1)]
        for k, v in zip(("444", "422", "440", "420"), [(1, 1), (2, 1), (1, 2), (2, 2)], strict=True)
    },
}
# Enough for every symbol: 12 sizes of 4 bits; all 256 AC symbols of at most 9 bits.
DC_TABLE = (bytes([0, 0, 0, 12] + 12 * [0]), bytes(range(12)))
AC_TABLE = (bytes([0] * 7 + [254, 2] + 7 * [0]), bytes(range(256)))
# Coefficients that no encoder makes overflow 16 bits, otherwise in each of libjpeg-turbo's instruction sets: the pixels
# are x86-64's on every machine, and libjpeg-turbo's own for what an encoder can make.
as_on_x86_64 = pytest.mark.skipif(platform.machine() != "x86_64", reason="compares with libjpeg-turbo of x86-64")


@dataclass(frozen=True)
class Coefficients:
    """Contents of a baseline JPEG. Tables are (counts, symbols), DC and AC of luma, then of chroma."""

    width: int
    height: int
    sampling: list[tuple[int, int]]
    blocks: list[list[int]]
    tables: list[tuple[bytes, bytes]] = field(default_factory=lambda: [DC_TABLE, AC_TABLE, DC_TABLE, AC_TABLE])
    quantization: bytes = bytes([1] * 64)
    interval: int = 0

    @property
    def order(self) -> list[int]:
        """The component of each block of an MCU."""
        if len(self.sampling) == 1:
            return [0]
        return [k for k, (h, v) in enumerate(self.sampling) for _ in range(h * v)]

    @property
    def mcus(self) -> int:
        wide, tall = (max(f) for f in zip(*self.sampling, strict=True)) if len(self.sampling) > 1 else (1, 1)
        return -(-self.width // (8 * wide)) * -(-self.height // (8 * tall))


@lru_cache(1024)
def codes_of(counts: bytes, symbols: bytes) -> dict[int, str]:
    """Symbol to code (C.2)."""
    codes, code, k = {}, 0, 0
    for length, count in enumerate(counts, start=1):
        for symbol in symbols[k : k + count]:
            codes[symbol] = f"{code:0{length}b}"
            code += 1
        k += count
        code *= 2
    return codes


def segment(marker: int, body: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body


def _value(number: int) -> str:
    """Bits of the value after the code of its size (F.1.2.1)."""
    size = abs(number).bit_length()
    return f"{number if number > 0 else number + (1 << size) - 1:0{size}b}" if size else ""


def _block(block: list[int], before: int, dc: dict[int, str], ac: dict[int, str]) -> str:
    difference = block[0] - before
    bits = [dc[abs(difference).bit_length()], _value(difference)]
    zeros = 0
    for coefficient in block[1:]:
        if coefficient == 0:
            zeros += 1
            continue
        bits += [ac[0xF0]] * (zeros // 16)
        bits += [ac[(zeros % 16) << 4 | abs(coefficient).bit_length()], _value(coefficient)]
        zeros = 0
    return "".join(bits) + (ac[0x00] if zeros else "")


def entropy_coded(of: Coefficients, *, padding: str = "1") -> bytes:
    """The data of the scan, with its restart markers."""
    codes = [codes_of(*table) for table in of.tables]
    order = of.order
    out, before = [], [0, 0, 0]
    bits: list[str] = []
    for mcu in range(of.mcus + 1):
        if mcu == of.mcus or (of.interval and mcu and mcu % of.interval == 0):
            joined = "".join(bits)
            joined += padding * (-len(joined) % 8)
            out.append(int("1" + joined, 2).to_bytes(len(joined) // 8 + 1, "big")[1:].replace(b"\xff", b"\xff\0"))
            bits, before = [], [0, 0, 0]
        if mcu == of.mcus:
            break
        for block, component in zip(of.blocks[mcu * len(order) :], order, strict=False):
            dc, ac = codes[2 * (component > 0) :][:2]
            bits.append(_block(block, before[component], dc, ac))
            before[component] = block[0]
    parts = [out[0]]
    for k, part in enumerate(out[1:]):
        parts += [bytes([0xFF, 0xD0 + k % 8]), part]
    return b"".join(parts)


def write(of: Coefficients, *, padding: str = "1", headers: bytes | None = None) -> bytes:
    """The JPEG; ``headers`` replaces the DQT and DHT segments."""
    count = len(of.sampling)
    if headers is None:
        headers = segment(0xDB, b"\0" + of.quantization) + segment(0xDB, b"\1" + of.quantization)
        for name, table in zip((0x00, 0x10, 0x01, 0x11), of.tables, strict=True):
            headers += segment(0xC4, bytes([name]) + table[0] + table[1])
    frame = struct.pack(">BHHB", 8, of.height, of.width, count)
    frame += b"".join(bytes([k + 1, h << 4 | v, int(k > 0)]) for k, (h, v) in enumerate(of.sampling))
    scan = bytes([count]) + b"".join(bytes([k + 1, 0x11 * (k > 0)]) for k in range(count)) + b"\0\x3f\0"
    restart = segment(0xDD, struct.pack(">H", of.interval)) if of.interval else b""
    start = b"\xff\xd8" + headers + segment(0xC0, frame) + restart + segment(0xDA, scan)
    return start + entropy_coded(of, padding=padding) + b"\xff\xd9"


def read(jpeg: bytes) -> Coefficients:
    """Read a baseline JPEG whose luma uses tables 0, and whose chroma uses tables 0 or 1."""
    at, tables, quantization, interval = 2, {}, {}, 0
    while True:
        assert jpeg[at] == 0xFF
        marker, length = struct.unpack_from(">BH", jpeg, at + 1)
        body = jpeg[at + 4 : at + 2 + length]
        at += 2 + length
        if marker == 0xDB:
            for k in range(0, len(body), 65):
                quantization[body[k]] = body[k + 1 : k + 65]
        elif marker == 0xC4:
            while body:
                end = 17 + sum(body[1:17])
                tables[body[0]] = (body[1:17], body[17:end])
                body = body[end:]
        elif marker in (0xC0, 0xC1):
            height, width, count = struct.unpack_from(">HHB", body, 1)
            sampling = [(body[7 + 3 * k] >> 4, body[7 + 3 * k] & 15) for k in range(count)]
            wanted = [body[8 + 3 * k] for k in range(count)]
        elif marker == 0xDD:
            (interval,) = struct.unpack(">H", body)
        elif marker == 0xDA:
            selectors = [(body[2 + 2 * k] >> 4, 0x10 | body[2 + 2 * k] & 15) for k in range(count)]
            break
    if len(sampling) == 1:
        sampling = [(1, 1)]
    used = [tables[name] for pair in (selectors[0], selectors[-1]) for name in pair]
    found = Coefficients(width, height, sampling, [], used, b"".join(quantization[k] for k in wanted), interval)
    marker = re.compile(rb"\xff+(?:[\x01-\xcf]|[\xd8-\xfe])").search(jpeg, at)
    parts = re.split(rb"\xff+[\xd0-\xd7]", jpeg[at : marker.start() if marker else len(jpeg)])
    return replace(found, blocks=_blocks(found, [part.replace(b"\xff\0", b"\xff") for part in parts]))


def _blocks(of: Coefficients, parts: list[bytes]) -> list[list[int]]:
    symbols = [{code: symbol for symbol, code in codes_of(*table).items()} for table in of.tables]
    blocks: list[list[int]] = []
    per_segment = of.interval or of.mcus
    assert len(parts) == -(-of.mcus // per_segment)
    for k, part in enumerate(parts):
        bits = "".join(f"{byte:08b}" for byte in part)
        at, before = 0, [0, 0, 0]
        for _ in range(min(per_segment, of.mcus - k * per_segment)):
            for component in of.order:
                dc, ac = symbols[2 * (component > 0) :][:2]
                block, at = _read_block(bits, at, dc, ac)
                block[0] = before[component] = before[component] + block[0]
                blocks.append(block)
        assert len(bits) - at < 8, "bytes are left in a segment"
    return blocks


def _read_block(bits: str, at: int, dc: dict[str, int], ac: dict[str, int]) -> tuple[list[int], int]:
    block, k = [0] * 64, 0
    while k < 64:
        table = ac if k else dc
        end = at + 1
        while bits[at:end] not in table:
            end += 1
            assert end - at <= 16 and end <= len(bits), "no such code"
        symbol = table[bits[at:end]]
        size = symbol & 15
        raw = bits[end : end + size]
        assert len(raw) == size, "the data ends early"
        at = end + size
        value = (int(raw, 2) if raw[0] == "1" else int(raw, 2) - (1 << size) + 1) if size else 0
        if k and size == 0 and symbol != 0xF0:
            break
        k += symbol >> 4 if k else 0
        block[k] = value
        k += 1
    return block, at


def least(kind: str, width: int, height: int, *, interval: int = 0) -> bytes:
    """A grey picture of two bits a block, the fewest that a baseline JPEG can have."""
    table = bytes([1] + 15 * [0]), b"\0"
    empty = Coefficients(width, height, FACTORS[kind], [], [table] * 4, interval=interval)
    return write(replace(empty, blocks=[[0] * 64] * (empty.mcus * len(empty.order))))
