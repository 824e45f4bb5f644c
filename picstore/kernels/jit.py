"""Kernels: functions that numba compiles to machine code, which run without the GIL. The one place that knows how."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.compiler_lock import global_compiler_lock
from numba.extending import intrinsic

_PACKAGE = Path(__file__).parents[1]
_IMPORT = re.compile(rb"^ *from (picstore[.\w]*) import ((?:[^(\n]|\([^)]*\))*)", re.MULTILINE)
_WORD64 = ir.IntType(64)
# numba's annotations lack the last two.
_DEVICE_FUNCTION: dict[str, Any] = {"nogil": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function at its first call, and keep the machine code on disk where there is a place for it.

    Each takes 5 ms to load in a later process, so there are few, and all that only kernels call are parts of them.
    """
    dispatcher: Any
    try:
        dispatcher = numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # neither the package's folder nor the user's cache folder can be written
        dispatcher = numba.njit(nogil=True)(function)
    else:
        # numba compiles anew when the file of the function changes, but not when those change that it calls, in which
        # case an upgrade would go on with old code. These names are numba's own: a release may do without them.
        with contextlib.suppress(AttributeError):
            index = dispatcher._cache._cache_file
            index._source_stamp = (index._source_stamp, _sources(function.__module__))
    dispatcher.compile = _uncollected(dispatcher.compile)
    return dispatcher


def device_function(function: Callable[..., Any]) -> Any:
    """A function that kernels call, and nobody else: without what Python needs to call it, it compiles sooner."""
    return numba.njit(**_DEVICE_FUNCTION)(function)


def _uncollected(compile_: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Compile or load without Python's garbage collection.

    It would look through all of torch and numba time and again: 0.1 of 0.4 s to load a process's first kernel, and a
    fifth of the time to compile one.
    """

    def compile_uncollected(signature: Any) -> Any:
        with global_compiler_lock:  # one thread at a time, so that none turns on what another has turned off
            collecting = gc.isenabled()
            gc.disable()
            try:
                return compile_(signature)
            finally:
                if collecting:
                    gc.enable()

    return compile_uncollected


@cache
def _sources(module: str) -> str:
    """Digest of a module's source and of all picstore modules that it imports, directly or not.

    A change elsewhere leaves the machine code valid. Imports form no circle (``tests/test_layers.py``).
    """
    path = _PACKAGE.parent.joinpath(*module.split(".")).with_suffix(".py")
    if not path.exists():  # a package, or a name within a module that is digested itself
        return ""
    source = path.read_bytes()
    digest = hashlib.sha256(source)
    for package, names in _IMPORT.findall(source):
        for name in (b"", *re.findall(rb"\w+", names)):
            digest.update(_sources((package + b"." * bool(name) + name).decode()).encode())
    return digest.hexdigest()


def inlined(function: Callable[..., Any]) -> Any:
    """A part of a kernel: numba copies it into its callers, which saves the call where that would cost as much."""
    return numba.njit(nogil=True, inline="always")(function)


@intrinsic
def _pointer(typing: Any, address: Any, kind: Any) -> Any:  # noqa: ARG001 - numba's form
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(kind.dtype)(types.uint64, kind), generate


@device_function
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
    """For kernels: copy bytes from one address to another; the caller bounds them."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        byte = cgutils.voidptr_t
        to, start = (builder.inttoptr(value, byte) for value in arguments[:2])
        cgutils.raw_memcpy(builder, to, start, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.uintp, types.uintp, types.intp), generate


memcpy: Any = _memcpy


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


@device_function
def copy_bytes(out, to, source, begin, count):  # type: ignore[no-untyped-def]
    """For kernels: ``out[to : to + count] = source[begin : begin + count]``, uint8, by memcpy; 5 times as fast.

    Raises:
        IndexError: a range is not within its array.
    """
    if count < 0 or to < 0 or begin < 0 or to + count > out.size or begin + count > source.size:
        raise IndexError("a copy leaves its array")
    memcpy(out.ctypes.data + to, source.ctypes.data + begin, count)
