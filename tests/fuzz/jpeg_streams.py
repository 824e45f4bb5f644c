"""JPEGs that are valid in odd ways, and operators that make one odder segment by segment (ITU-T T.81, annex B)."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from random import Random
from typing import TypeAlias

from coefficients import Coefficients, entropy_coded, segment, write
from mutate import mutate_bytes

Segments: TypeAlias = "list[tuple[int, bytes]]"  # markers and bodies, up to and including the first SOS
USUAL = ([(1, 1)], *([first, (1, 1), (1, 1)] for first in ((1, 1), (2, 1), (1, 2), (2, 2))))
_DHT, _DQT, _DRI, _SOS, _APP0, _APP1, _APP14, _COM = 0xC4, 0xDB, 0xDD, 0xDA, 0xE0, 0xE1, 0xEE, 0xFE
_DC_SYMBOLS = range(12)
_AC_SYMBOLS = tuple(run << 4 | size for run in range(16) for size in range(11))


def jpeg(rng: Random) -> bytes:
    """Make a small JPEG of random size, sampling, tables and coefficients, odd in up to four ways."""
    stream = _plain(rng)
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        stream = mutate_jpeg(stream, rng)
    return stream


def mutate_jpeg(stream: bytes, rng: Random) -> bytes:
    """Change a stream in one way that keeps its segments whole, or any byte if it has none."""
    parsed = split(stream)
    if parsed is None or rng.random() < 0.1:
        return mutate_bytes(stream, rng)
    segments, scan = parsed
    if rng.random() < 0.35:
        scan = rng.choice(_SCAN_WAYS)(scan, rng)
    else:
        rng.choice(_HEADER_WAYS)(segments, rng)
    return join(segments, scan, fill=rng.randrange(1, 4) if rng.random() < 0.1 else 0)


def split(stream: bytes) -> tuple[Segments, bytes] | None:
    """Split a stream into the segments up to SOS and all bytes after; None if they are no chain."""
    segments: Segments = []
    at = 2
    while at + 4 <= len(stream) and stream[at] == 0xFF:
        while stream[at + 1 : at + 2] == b"\xff":
            at += 1
        if at + 4 > len(stream):
            return None
        marker, length = struct.unpack_from(">BH", stream, at + 1)
        segments.append((marker, stream[at + 4 : at + 2 + length]))
        at += 2 + max(2, length)
        if marker == _SOS:
            return segments, stream[at:]
    return None


def join(segments: Segments, scan: bytes, *, fill: int = 0) -> bytes:
    """Make the stream of segments, with fill bytes before each marker (B.1.1.2)."""
    made = (b"\xff" * fill + segment(marker, body[:65533]) for marker, body in segments)
    return b"\xff\xd8" + b"".join(made) + scan


def _plain(rng: Random) -> bytes:
    usual = rng.random() < 0.8
    sampling = rng.choice(USUAL) if usual else [(rng.randrange(1, 5), rng.randrange(1, 5)) for _ in range(3)]
    width, height = (rng.choice((1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, rng.randrange(1, 60))) for _ in range(2))
    tables = [_table(tuple(symbols), rng.randrange(32)) for symbols in (_DC_SYMBOLS, _AC_SYMBOLS) * 2]
    if rng.random() < 0.5:
        tables[2:] = tables[:2]
    steps = bytes([rng.choice((1, 255))] * 64) if rng.random() < 0.2 else bytes(rng.choices(range(1, 60), k=64))
    made = Coefficients(width, height, sampling, [], tables, steps, rng.choice((0, 0, 1, 2, 3, rng.randrange(1, 300))))
    order = made.order
    previous, blocks = [0, 0, 0], []
    for k in range(made.mcus * len(order)):
        if made.interval and k % (made.interval * len(order)) == 0:
            previous = [0, 0, 0]
        component = order[k % len(order)]
        blocks.append(_block(rng, tables[2 * (component > 0) :][:2], previous[component]))
        previous[component] = blocks[-1][0]
    made = replace(made, blocks=blocks)
    if len(sampling) == 3 and set(sampling) == {(1, 1)} and rng.random() < 0.1:
        return _in_several_scans(made)
    return write(made, padding=rng.choice("1110"))


def _block(rng: Random, tables: list[tuple[bytes, bytes]], previous: int) -> list[int]:
    """Make a block: small coefficients in most blocks, any in others."""
    bold = rng.random() < 0.05
    dc, ac = (symbols if bold else symbols[:8] for _, symbols in tables)
    block = [previous + _value(rng, rng.choice(dc))] + [0] * 63
    at = 0
    while True:
        symbol = rng.choice(ac)
        at += 1 + (symbol >> 4)
        if symbol & 15 == 0 or at > 63 or rng.random() < 0.2:
            return block
        block[at] = _value(rng, symbol & 15)


def _value(rng: Random, size: int) -> int:
    return 0 if size == 0 else rng.choice((1, -1)) * rng.randrange(1 << (size - 1), 1 << size)


@cache
def _table(symbols: tuple[int, ...], number: int) -> tuple[bytes, bytes]:
    """Make a Huffman table of random code lengths whose code of all ones stays free (C.2)."""
    rng = Random(number)
    leaves = [0]  # of the tree of codes, their depths
    while len(leaves) <= len(symbols):
        at = rng.randrange(len(leaves))
        if leaves[at] < 16:
            depth = leaves.pop(at)
            leaves += [depth + 1, depth + 1]
    leaves.remove(max(leaves))
    return bytes(leaves.count(length) for length in range(1, 17)), bytes(rng.sample(symbols, len(symbols)))


def _in_several_scans(made: Coefficients) -> bytes:
    """Write each component in a scan of its own."""
    whole = split(write(made))
    assert whole is not None
    segments = whole[0][:-1]
    parts = []
    for component in range(3):
        alone = replace(made, sampling=[(1, 1)], blocks=made.blocks[component::3])
        if component:
            alone = replace(alone, tables=made.tables[2:] * 2)
        scan = bytes([1, component + 1, 0x11 * (component > 0), 0, 63, 0])
        parts.append(segment(_SOS, scan) + entropy_coded(alone))
    return join(segments, b"".join(parts) + b"\xff\xd9")


# --- Ways to change the headers ---


def _insert(segments: Segments, rng: Random) -> None:
    app = rng.choice((_APP0, _APP1, _APP14, _COM, rng.randrange(0xE0, 0xF0)))
    colors = struct.pack(">5sHHHB", b"Adobe", 100, 0, 0, rng.choice((0, 1, 2, 3)))
    exif = b"Exif\0\0II*\0\x08\0\0\0\1\0" + struct.pack("<HHIHH", 0x0112, 3, 1, rng.randrange(10), 0) + bytes(4)
    body = {
        _APP0: b"JFIF\0" + bytes([rng.randrange(4), rng.randrange(3), 0, 0, 1, 0, 1, 0, 0]),
        _APP1: exif,
        _APP14: colors,
    }.get(app, rng.randbytes(rng.randrange(20)))
    if rng.random() < 0.3:
        body = mutate_bytes(body, rng)
    segments.insert(rng.randrange(len(segments)), (app, body))


def _swap(segments: Segments, rng: Random) -> None:
    a, b = rng.randrange(len(segments)), rng.randrange(len(segments))
    if segments[a][0] != _SOS and segments[b][0] != _SOS:
        segments[a], segments[b] = segments[b], segments[a]


def _repeat(segments: Segments, rng: Random) -> None:
    k = rng.randrange(len(segments))
    marker, body = segments[k]
    segments.insert(rng.randrange(len(segments)), (marker, mutate_bytes(body, rng) if rng.random() < 0.7 else body))


def _merge(segments: Segments, rng: Random) -> None:
    """Join all tables of a kind in one segment."""
    kind = rng.choice((_DHT, _DQT))
    joined = b"".join(body for marker, body in segments if marker == kind)
    rest = [each for each in segments if each[0] != kind]
    segments[:] = [(kind, joined), *rest] if joined else rest


def _drop(segments: Segments, rng: Random) -> None:
    del segments[rng.randrange(len(segments))]


def _restart(segments: Segments, rng: Random) -> None:
    interval = rng.choice((0, 1, 2, 3, 65535))
    segments.insert(rng.randrange(len(segments)), (_DRI, struct.pack(">H", interval)))


def _tables(segments: Segments, rng: Random) -> None:
    """Change Huffman or quantization tables: too many codes, too few symbols, odd sizes, other destinations."""
    chosen = [k for k, (marker, _) in enumerate(segments) if marker in (_DHT, _DQT)]
    if not chosen:
        return
    k = rng.choice(chosen)
    marker, body = segments[k]
    body = bytearray(body)
    way = rng.randrange(5)
    if marker == _DHT and way == 0 and len(body) > 17:  # the code of all ones, or more codes than fit
        longest = max((n for n in range(1, 17) if body[n]), default=1)
        body[longest] = min(255, body[longest] + rng.choice((1, 1, 1, 2, 100)))
        body += bytes([rng.choice((1, 2, 0x11))]) * (17 + sum(body[1:17]) - len(body))
    elif way == 1 and body:
        body[0] = rng.choice((0x00, 0x01, 0x10, 0x11, 0x02, 0x03, 0x20, 0xFF))
    elif way == 2 and len(body) > 17:
        body[rng.randrange(17, len(body))] = rng.choice((0, 1, 5, 10, 11, 12, 15, 16, 0xF0, 0xF1, 0xFF, 0xFA))
    elif marker == _DQT and way == 3:  # 16 bits
        tables = [bytes(body[n : n + 65]) for n in range(0, len(body), 65)]
        body = bytearray(b"".join(bytes([t[0] | 16]) + b"".join(bytes((0, v)) for v in t[1:]) for t in tables))
    else:
        body = bytearray(mutate_bytes(bytes(body), rng))
    segments[k] = marker, bytes(body)


def _frame(segments: Segments, rng: Random) -> None:
    """Change a field of the frame header, of which libjpeg or picstore may take another view."""
    for k, (marker, body) in enumerate(segments):
        if not (0xC0 <= marker <= 0xCF and marker not in (_DHT, 0xC8, 0xCC)) or len(body) < 9:
            continue
        new = bytearray(body)
        way = rng.randrange(8)
        if way == 0:
            marker = rng.choice((0xC0, 0xC1, 0xC1, 0xC2, 0xC3, 0xC5, 0xC9, 0xCA, 0xCF))
        elif way == 1:
            new[0] = rng.choice((8, 12, 16, 0, 2))
        elif way == 2:
            at = rng.choice((1, 3))
            small = int.from_bytes(new[at : at + 2], "big") + rng.choice((-8, -1, 1, 8))
            struct.pack_into(">H", new, at, rng.choice((0, 1, 65535, *[min(max(0, small), 65535)] * 2)))
        elif way == 3:
            new[7 + 3 * rng.randrange((len(new) - 6) // 3)] = rng.choice((0x11, 0x21, 0x12, 0x22, 0x14, 0x41, 0x44, 0))
        elif way == 4:
            _rename(segments, new, rng)
        elif way == 5:
            new[8 + 3 * rng.randrange((len(new) - 6) // 3)] = rng.randrange(5)
        elif way == 6:
            new[5] = rng.choice((0, 1, 2, 3, 4, 255))
        else:
            new = bytearray(mutate_bytes(bytes(new), rng))
        segments[k] = marker, bytes(new)
        return


def _rename(segments: Segments, frame: bytearray, rng: Random) -> None:
    """Give the components other identifiers, in frame and scan."""
    ids = rng.choice((b"RGB", b"\0\1\2", b"\1\x22\x23", b"\1\2\1", b"\5\5\5", b"\3\2\1", b"\xff\0\x80"))
    if segments and segments[-1][0] == _SOS and len(frame) == 15 and len(segments[-1][1]) == 10:
        scan = bytearray(segments[-1][1])
        frame[6:15:3] = scan[1:7:2] = ids
        segments[-1] = _SOS, bytes(scan)


def _scan_header(segments: Segments, rng: Random) -> None:
    """Change components, tables or spectral selection of the scan."""
    body = bytearray(segments[-1][1])
    if len(body) < 6:
        return
    way = rng.randrange(4)
    if way == 0:
        body[2 + 2 * rng.randrange((len(body) - 4) // 2)] = rng.choice((0x00, 0x11, 0x01, 0x10, 0x22, 0x33))
    elif way == 1 and len(body) == 10:
        body[1:5] = body[3:5] + body[1:3]
    elif way == 2:
        body[-3:] = rng.choice((b"\0\x3f\0", b"\0\0\0", b"\1\x3f\0", b"\0\x3f\1", b"\0\x40\0", b"\0\x3f\x10"))
    else:
        body = bytearray(mutate_bytes(bytes(body), rng))
    segments[-1] = _SOS, bytes(body)


# --- Ways to change the entropy-coded data and what follows it ---


def _damage(scan: bytes, rng: Random) -> bytes:
    return mutate_bytes(scan, rng)


def _end(scan: bytes, rng: Random) -> bytes:
    """Change the end: no EOI, trailing bytes, fill bytes, another marker before it."""
    data = scan.removesuffix(b"\xff\xd9")
    extra = rng.choice(
        (b"", b"\xff\xff\xff\xd9", b"\xff\xd9" + rng.randbytes(5), b"\xff\xd9\xff\xd9", b"\xff\xd9\0\xff\xd9")
    )
    between = (
        segment(0xDC, b"\0\x08"),
        segment(_COM, b"end"),
        segment(_SOS, b"\1\1\0\0\x3f\0") + b"\0\0",
        b"\0\0",
        b"\xff\xd0",
    )
    return data + rng.choice((extra, rng.choice(between) + b"\xff\xd9", b"\xff" + rng.randbytes(1) + b"\xff\xd9"))


def _markers(scan: bytes, rng: Random) -> bytes:
    """Drop, add, swap or pad restart markers and stuffing."""
    places = [k for k in range(len(scan) - 1) if scan[k] == 0xFF and (scan[k + 1] == 0 or 0xD0 <= scan[k + 1] <= 0xD7)]
    at = rng.choice(places) if places else rng.randrange(len(scan) + 1)
    way = rng.randrange(5)
    if way == 0:
        return scan[:at] + scan[at + 2 :]
    if way == 1:
        return scan[:at] + b"\xff" * rng.randrange(1, 4) + scan[at:]
    if way == 2:
        return scan[:at] + bytes([0xFF, 0xD0 + rng.randrange(8)]) + scan[at + 2 * rng.randrange(2) :]
    if way == 3:
        return scan[:at] + rng.randbytes(rng.randrange(1, 4)).replace(b"\xff", b"") + scan[at:]
    return scan[:at] + b"\xff\0" + scan[at:]


_HEADER_WAYS: tuple[Callable[[Segments, Random], None], ...] = (
    *(
        _insert,
        _insert,
        _swap,
        _repeat,
        _merge,
        _drop,
        _restart,
        _tables,
        _tables,
        _frame,
        _frame,
        _frame,
        _scan_header,
    ),
)
_SCAN_WAYS: tuple[Callable[[bytes, Random], bytes], ...] = (_damage, _end, _end, _markers, _markers)
