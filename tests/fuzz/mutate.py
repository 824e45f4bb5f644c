"""Mutators of bytes and of JSON, for inputs of every kind."""

from __future__ import annotations

import json
from random import Random
from typing import Any

NUMBERS = (0, 1, 2, 7, 8, 15, 16, 63, 64, 127, 128, 255, 256, 4095, 4096, 65535, 65536, 1 << 20, (1 << 31) - 1, 1 << 31)
NUMBERS += ((1 << 32) - 1, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
_VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0.5,
    1e308,
    "",
    "a",
    "../../x",
    "\x1b[31m",
    "\ud800",
    [],
    [[]],
    {},
    {"a": {}},
)


def mutate_bytes(data: bytes, rng: Random) -> bytes:
    """Flip, replace, remove, repeat or insert bytes, or write a number of note, in one to three places."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        at, way = rng.randrange(len(out) + 1), rng.randrange(7)
        size = rng.choice((1, 2, 4, 8))
        if way == 0 and at < len(out):
            out[at] ^= 1 << rng.randrange(8)
        elif way == 1:
            out[at : at + size] = rng.randbytes(size)[: len(out) - at]
        elif way == 2:
            del out[at : at + rng.choice((1, 2, 4, 16, 64, len(out)))]
        elif way == 3:
            out[at:at] = out[at : at + rng.choice((1, 4, 16, 64))] * rng.choice((1, 2, 8))
        elif way == 4:
            out[at:at] = rng.randbytes(size)
        elif way == 5:
            number = rng.choice(NUMBERS) % (1 << 8 * size)
            out[at : at + size] = number.to_bytes(size, rng.choice(("little", "big")))[: len(out) - at]
        else:
            source = rng.randrange(len(out) + 1)
            out[at : at + 4 * size] = out[source : source + 4 * size]
    return bytes(out)


def mutate_json(value: Any, rng: Random) -> Any:
    """Change a value somewhere in a document, or a member or item: its type, its value, its presence."""
    if isinstance(value, (dict, list)) and value and rng.random() < 0.93:
        out = value.copy()
        keys = list(out) if isinstance(out, dict) else range(len(out))
        key, way = rng.choice(keys), rng.random()
        if way < 0.04:
            del out[key]
        elif way < 0.08 and isinstance(out, dict):
            out[rng.choice((str(key) + "x", "a", ""))] = out[key]
        elif way < 0.08:
            out.insert(key, out[key])
        else:
            out[key] = mutate_json(out[key], rng)
        return out
    return _other_value(value, rng)


def _other_value(value: Any, rng: Random) -> Any:
    if type(value) is int and rng.random() < 0.7:
        return rng.choice((value + 1, value - 1, -value, value << 33, *NUMBERS))
    if type(value) is float and rng.random() < 0.7:
        return rng.choice((-value, value * 1e9, float("nan"), float("inf")))
    if isinstance(value, str) and rng.random() < 0.7:
        return rng.choice((value[:-1], value + "\0", value * 3, value.upper(), "/" + value, value.replace("/", "//")))
    return rng.choice((*_VALUES, rng.choice(NUMBERS), nested(rng.choice((3, 40, 2000)))))


def nested(depth: int) -> Any:
    """Nest lists."""
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def mutate_document(text: bytes, rng: Random) -> bytes:
    """Change a JSON text as a document, or else as bytes; text too deep or too broken stays as it is."""
    if rng.random() < 0.85:
        try:
            return json.dumps(mutate_json(json.loads(text), rng)).encode()
        except (ValueError, RecursionError):
            pass
    return mutate_bytes(text, rng)
