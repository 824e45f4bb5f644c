"""CRC-32C (Castagnoli), the checksum of all stored bytes (RFC 3720, appendix B.4, has test values)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import TypeAlias

import numpy as np

from picstore.arrays import I64, U8, U32, Table
from picstore.storage.location.abstract_location import Buffer

# Function that returns the CRC-32C of previous and further bytes; its arguments are the CRC of the previous bytes, and
# the address and number of the further bytes.
Function: TypeAlias = "Callable[[int, int, int], int]"


def _load() -> tuple[Callable[[Buffer | U8], int], Function]:
    """Return two functions that compute CRC-32Cs: a Python function, and a ``Function`` that releases the GIL.

    Both come from google-crc32c if it is installed, else from picstore. google-crc32c's Python function holds the GIL,
    for 0.6 ms per container of 2.6 MB.
    """
    try:
        from google_crc32c import _crc32c, extend

        function = ctypes.CDLL(_crc32c.__file__).crc32c_extend
    except (ImportError, OSError, AttributeError):
        # google-crc32c is missing or has no C extension. Import picstore's own function only now, because the import
        # loads LLVM.
        from picstore.kernels.crc32c import compile_crc32c

        own = compile_crc32c()
        return lambda data: own(0, *_place(data)), own
    function.argtypes, function.restype = (ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t), ctypes.c_uint32
    # google-crc32c's ``extend`` rejects a memoryview, but accepts an array in the same memory.
    as_array = np.frombuffer
    return (
        lambda data: int(extend(0, data if isinstance(data, np.ndarray) else as_array(data, np.uint8))),
        function,
    )


def _place(data: Buffer | U8) -> tuple[int, int]:
    view = np.frombuffer(data, np.uint8)
    return view.ctypes.data, view.size


_short, _without_lock = _load()
# Smallest buffer in bytes whose CRC is computed without the GIL; for a smaller one, releasing the GIL does not pay.
_LONG = 1 << 19
_BITS = np.arange(32, dtype=np.uint32)


def crc32c(data: Buffer | U8) -> int:
    """Return the CRC-32C of a buffer's bytes; an array takes 0.5 µs less than a memoryview."""
    return _short(data) if len(data) < _LONG else _without_lock(0, *_place(data))


def crc32c_address() -> int:
    """Return the address of the C function by which kernels compute a CRC-32C.

    The C function has the arguments of ``Function`` and returns uint32.
    """
    return ctypes.cast(_without_lock, ctypes.c_void_p).value or 0  # type: ignore[arg-type]


def combine_crcs(crcs: U32, lengths: I64) -> int:
    """Return the CRC-32C of byte strings joined in order, from each string's CRC and number of bytes.

    The joined string must have less than 2**32 bytes. Combining takes 1 to 8 µs, computing a photograph's CRC anew
    20 µs. A new CRC would also hide bits that have flipped in memory since the strings' CRCs were computed.
    """
    return int(combine_runs(crcs, lengths, np.zeros(1, np.int64))[0]) if len(crcs) else 0


def combine_runs(crcs: U32, lengths: I64, starts: I64) -> U32:
    """Return the CRC-32C of each of n runs of consecutive byte strings, uint32 (n,); run i begins at ``starts[i]``.

    ``crcs`` and ``lengths`` hold the CRC-32C and number of bytes of each string.
    """
    ends = np.cumsum(lengths)
    last = np.append(starts[1:], len(crcs)) - 1
    after = np.repeat(ends[last], np.diff(starts, append=len(crcs))) - ends
    for powers in _zero_byte_operators():
        crcs = _apply(powers[after & 15], crcs)
        after >>= 4
        if not after.any():
            break
    return np.bitwise_xor.reduceat(crcs, starts)


def _apply(operators: U32, crcs: U32) -> U32:
    """Apply to each of n CRCs a linear map of its own; return the results, uint32 (n,).

    Row i of ``operators``, uint32 (n, 32), is the map for CRC i, stored as its results for 1, 2, 4, …, 2**31.
    """
    product: U32 = np.bitwise_xor.reduce((crcs[:, None] >> _BITS & 1) * operators, axis=1)
    return product


@cache
def _zero_byte_operators() -> U32:
    """Return linear maps of CRCs, uint32 (8, 16, 32); [k, d] is the map f for strings of d * 16**k bytes.

    Appending a string b to bytes with CRC c gives the CRC f(c) ^ crc32c(b), where f is linear and depends only on b's
    length. For one bit, f shifts c to the right; if a 1 drops out, the result is XORed with RFC 3720's reflected
    polynomial. A map is stored as its results for 1, 2, 4, …, 2**31.
    """
    identity = np.uint32(1) << _BITS
    step = identity
    for _ in range(8):
        step = np.where(step & 1, step >> 1 ^ np.uint32(0x82F63B78), step >> 1)
    digits = []
    for _ in range(8):
        powers = [identity]
        for _ in range(16):
            powers.append(_apply(np.broadcast_to(step, (32, 32)), powers[-1]))
        digits.append(powers[:16])
        step = powers[16]
    return np.array(digits)


def masked(crc: int) -> int:
    """Mask a CRC, by rotating it and adding a constant, before storing it among bytes that another CRC covers.

    All byte strings of one length that end in their plain CRC have the same CRC, so the CRC of a table whose entries
    ended in plain CRCs would detect nothing. See: Snappy framing format, section 3.
    """
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def entry_crcs(table: Table) -> U32:
    """Compute the :func:`masked` CRC-32C of each table entry except the four bytes at its end, which store that CRC."""
    size = table.dtype.itemsize
    raw = memoryview(table.tobytes())
    crcs = [masked(crc32c(raw[k : k + size - 4])) for k in range(0, len(raw), size)]
    return np.array(crcs, dtype=np.uint32).reshape(table.shape)
