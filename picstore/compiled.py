"""Kernels: functions that numba compiles to machine code, which run without the GIL. The one place that knows how."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numba
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

_WORD64 = ir.IntType(64)


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function at its first call, and keep the machine code on disk where there is a place for it."""
    try:
        dispatcher = numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # neither the package's folder nor the user's cache folder can be written
        return numba.njit(nogil=True)(function)
    # numba compiles anew when the file of the function changes, but not when those change that it calls, in which case
    # an upgrade would go on with old code.
    index = dispatcher._cache._cache_file
    index._source_stamp = (index._source_stamp, _sources())
    return dispatcher


@lru_cache(maxsize=1)
def _sources() -> str:
    """A digest of all files that kernels may be made of."""
    digest = hashlib.sha256()
    package = Path(__file__).parent
    for folder in (package, package / "jpeg", package / "train"):
        for path in sorted(folder.glob("*.py")):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def inlined(function: Callable[..., Any]) -> Any:
    """A part of a kernel: numba copies it into its callers, which saves the call where that would cost as much."""
    return numba.njit(nogil=True, inline="always")(function)


@intrinsic
def _pointer(typing: Any, address: Any, kind: Any) -> Any:  # noqa: ARG001 - numba's form
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(kind.dtype)(types.uint64, kind), generate


@kernel
def array_at(address, size, kind):  # type: ignore[no-untyped-def]
    """For kernels: an array over memory that the caller keeps alive; with it a kernel can take a list of buffers.

    Args:
        address: uint64.
        size: number of elements.
        kind: their type, such as ``np.uint8``.
    """
    return numba.carray(_pointer(address, kind), (size,))


@intrinsic
def _memcpy(typing: Any, target: Any, source: Any, count: Any) -> Any:  # noqa: ARG001 - numba's form
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        byte = cgutils.voidptr_t
        to, start = (builder.inttoptr(value, byte) for value in arguments[:2])
        cgutils.raw_memcpy(builder, to, start, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.uintp, types.uintp, types.intp), generate


@intrinsic
def _load_u64(typing: Any, address: Any) -> Any:  # noqa: ARG001 - numba's form
    """For kernels: the 8 bytes at any address as a big-endian number; the caller bounds it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        word = builder.load(builder.inttoptr(arguments[0], _WORD64.as_pointer()), align=1)
        return builder.bswap(word)

    return types.uint64(types.uint64), generate


load_u64: Any = _load_u64


@intrinsic
def _load_u16(typing: Any, address: Any) -> Any:  # noqa: ARG001 - numba's form
    """For kernels: an element of a uint16 array by its address; the caller bounds it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        return builder.load(builder.inttoptr(arguments[0], ir.IntType(16).as_pointer()), align=2)

    return types.uint16(types.uint64), generate


load_u16: Any = _load_u16


def _store(kind: Any) -> Any:
    @intrinsic
    def store(typing: Any, address: Any, value: Any) -> Any:  # noqa: ARG001 - numba's form
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
            word = arguments[1] if kind.bitwidth == 8 else builder.bswap(arguments[1])
            pointer = builder.inttoptr(arguments[0], ir.IntType(kind.bitwidth).as_pointer())
            builder.store(word, pointer, align=1)
            return context.get_dummy_value()

        return types.void(types.uint64, kind), generate

    return store


# For kernels: write a number as so many big-endian bytes to any address; the caller bounds it.
store_u8, store_u32, store_u64 = _store(types.uint8), _store(types.uint32), _store(types.uint64)


@intrinsic
def _prefetch(typing: Any, address: Any) -> Any:  # noqa: ARG001 - numba's form
    """For kernels: fetch the cache line at an address into the second-level cache; any address is harmless."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        byte, number = cgutils.voidptr_t, ir.IntType(32)
        shape = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        fetch = builder.module.declare_intrinsic("llvm.prefetch", [byte], shape)
        read, second_level, data = number(0), number(2), number(1)
        builder.call(fetch, [builder.inttoptr(arguments[0], byte), read, second_level, data])
        return context.get_dummy_value()

    return types.void(types.uint64), generate


prefetch: Any = _prefetch


@kernel
def copy_bytes(out, to, source, begin, count):  # type: ignore[no-untyped-def]
    """For kernels: ``out[to : to + count] = source[begin : begin + count]``, uint8, by memcpy; 5 times as fast.

    Raises:
        IndexError: a range is not within its array.
    """
    if count < 0 or to < 0 or begin < 0 or to + count > out.size or begin + count > source.size:
        raise IndexError("a copy leaves its array")
    _memcpy(out.ctypes.data + to, source.ctypes.data + begin, count)
