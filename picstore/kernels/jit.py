"""Compilation of kernels by numba: machine code that runs without the GIL, and its cache on disk."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import os
import re
from collections.abc import Callable
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import numba
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.compiler_lock import global_compiler_lock
from numba.core.runtime import rtsys
from numba.core.sigutils import normalize_signature
from numba.extending import intrinsic

from picstore.kernels.linking import linked_only

_ROOT = Path(__file__).parents[2]
# Without an anchor to a line's beginning, the search is five times as fast.
_IMPORT = re.compile(rb"from (picstore[.\w]*) import (\([^)]*\)|.*)")
_NAME = re.compile(r"\w+")
# numba's type annotations lack the last two.
_DEVICE_FUNCTION: dict[str, Any] = {"nogil": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def kernel(signature: str) -> Callable[[Callable[..., Any]], Any]:
    """Decorator: compile a function at its first call, and cache the machine code on disk if a folder is writable.

    A later process loads a kernel in 5 ms. Kernels are therefore few; functions that only kernels call are device
    functions.

    Args:
        signature: types of the arguments in numba's notation, by which ``ahead.py`` compiles before there are any; with
            the type of the result for a :func:`caller`.
    """

    def make_dispatcher(function: Callable[..., Any]) -> Any:
        dispatcher: Any
        try:
            dispatcher = numba.njit(nogil=True, cache=True)(function)
        except RuntimeError:  # neither the package's folder nor the user's cache folder can be written
            dispatcher = numba.njit(nogil=True)(function)
        else:
            with contextlib.suppress(AttributeError):  # private to numba; a release without them caches by its own rule
                dispatcher._cache.load_overload = _loading(dispatcher._cache, function.__module__)
                dispatcher._cache._impl.reduce = _reducing(dispatcher._cache._impl.reduce)
        dispatcher.compile = _compiling(dispatcher.compile, dispatcher.targetctx)
        dispatcher.signature = signature
        return dispatcher

    return make_dispatcher


def compile_kernel(function: Any) -> Any:
    """Compile a kernel for its signature, or load it; returns numba's result of compiling."""
    arguments, _ = normalize_signature(function.signature)
    function.compile(arguments)
    return function.overloads[arguments]


def is_cached(function: Any) -> bool:
    """Whether the cache holds a kernel's machine code for its signature, or this process does."""
    arguments, _ = normalize_signature(function.signature)
    if arguments in function.overloads:
        return True
    try:
        cache, codegen = function._cache, function.targetctx.codegen()
        index = cache._cache_file
        index._source_stamp = _stamp(index._source_stamp, function.__module__)
        name = index._load_index().get(cache._index_key(arguments, codegen))
        return name is not None and Path(index._data_path(name)).exists()
    except AttributeError:  # private to numba, see ``kernel``; or there is no cache
        return False


def address_of(function: Any) -> int:
    """Compile or load a kernel; returns the address that its :func:`caller` takes."""
    compiled = compile_kernel(function)
    address: int = compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name)
    return address


def caller(signature: str) -> Any:
    """Make a function of kernels that calls a kernel of this signature by its address.

    The caller's machine code holds no copy of the kernel, so both compile at the same time, and none twice. A copy
    would gain nothing: such kernels take 10 µs and more.

    Returns:
        A function of the address and the tuple of the kernel's arguments.
    """
    arguments, result = normalize_signature(signature)

    def generate(context: Any, builder: Any, typed: Any, values: Any) -> Any:
        convention = context.call_conv
        address, packed = values
        given = zip(cgutils.unpack_tuple(builder, packed), typed.args[1], arguments, strict=True)
        cast = [context.cast(builder, value, of, to) for value, of, to in given]
        pointer = builder.inttoptr(address, convention.get_function_type(result, arguments).as_pointer())
        status, returned = convention.call_function(builder, pointer, result, arguments, cast)
        with cgutils.if_unlikely(builder, status.is_error):
            convention.return_status_propagate(builder, status)
        return returned

    def call(typing: Any, address: Any, packed: Any) -> Any:  # noqa: ARG001 - numba's signature
        return result(types.int64, packed), generate

    return intrinsic(call)


def device_function(function: Callable[..., Any]) -> Any:
    """Decorator for functions that only kernels call: without wrappers for Python, they compile faster."""
    return numba.njit(**_DEVICE_FUNCTION)(function)


def _loading(cache: Any, module: str) -> Callable[[Any, Any], Any]:
    """Make the function by which a kernel's cache loads machine code, instead of numba's own.

    numba recompiles when the function's own file changes, not when a file that it imports does: after an upgrade stale
    code would run. And it fills the registries of all that it can compile before it loads a first kernel, which takes
    70 of 135 ms. Only compiling needs them, and fills them itself.
    """
    load, guard = cache._load_overload, cache._guard_against_spurious_io_errors
    index = cache._cache_file

    def load_overload(signature: Any, context: Any) -> Any:
        index._source_stamp = _stamp(index._source_stamp, module)  # of saving too, which loading precedes
        rtsys.initialize(context)  # adds the symbols that machine code may refer to
        with guard():
            return load(signature, context)

    return load_overload


def _reducing(reduce: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Make the function that chooses what a kernel's cache keeps: of environments, in which errors find objects, ours.

    Those of numba's own functions would import its modules of all that NumPy's arrays can do, 15 ms.
    """

    def reduce_kernel(compiled: Any) -> Any:
        *kept, environments = reduce(compiled)
        return *kept, tuple(each for each in environments if each.globals["__name__"].startswith("picstore"))

    return reduce_kernel


def _stamp(stamp: Any, module: str) -> tuple[Any, str]:
    """Add the digest of a kernel's sources to numba's stamp of its file, once."""
    digest = _source_digest(module)
    return stamp if stamp[-1] == digest else (stamp, digest)


def _compiling(compile_: Callable[[Any], Any], context: Any) -> Callable[[Any], Any]:
    """Compile or load a kernel with Python's garbage collection off, and what it calls without machine code.

    Collections traverse the objects of torch and numba: 0.1 of the 0.4 s in which a process loads its first kernel, and
    a fifth of the time to compile one.
    """

    def compile_without_collection(signature: Any) -> Any:
        # One thread at a time, so that none enables what another has disabled.
        with global_compiler_lock, linked_only(context.codegen()):
            collecting = gc.isenabled()
            gc.disable()
            try:
                return compile_(signature)
            finally:
                if collecting:
                    gc.enable()

    return compile_without_collection


@cache
def _source_digest(module: str) -> str:
    """SHA-256 of a module's source and of the picstore modules that it imports, directly or indirectly.

    Changes to other modules leave the cached code valid.
    """
    digests = {module: _read_source(module)[0]}
    waiting = [module]
    while waiting:
        for name in _read_source(waiting.pop())[1]:
            if name not in digests:
                digests[name] = _read_source(name)[0]
                waiting.append(name)
    return hashlib.sha256(b"".join(digests[name] for name in sorted(digests))).hexdigest()


@cache
def _read_source(module: str) -> tuple[bytes, tuple[str, ...]]:
    """Digest a module's source, and list the names that it imports from picstore; neither of what is no module."""
    path = f"{_ROOT}/{module.replace('.', '/')}.py"
    if not os.path.isfile(path):  # noqa: PTH113 - of the 500 names that the standard job asks for, 400 are no modules
        return b"", ()
    with open(path, "rb") as file:  # noqa: PTH123
        source = file.read()
    found = ((package.decode(), names.decode()) for package, names in _IMPORT.findall(source))
    imported = [[package, *(f"{package}.{name}" for name in _NAME.findall(names))] for package, names in found]
    return hashlib.sha256(source).digest(), tuple(chain.from_iterable(imported))


def inlined(function: Callable[..., Any]) -> Any:
    """Decorator: copy a device function into its callers, for functions as cheap as a call.

    LLVM copies it: numba's own inlining infers the types of each copy again, a tenth of the decoder's compilation.
    """
    return numba.njit(**_DEVICE_FUNCTION, forceinline=True)(function)


@intrinsic
def _pointer(typing: Any, address: Any, dtype: Any) -> Any:  # noqa: ARG001 - numba's signature
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(dtype.dtype)(types.uint64, dtype), generate


@device_function
def array_at(address, size, dtype):  # type: ignore[no-untyped-def]
    """View memory that the caller keeps alive as an array, so that a kernel can take a list of buffers.

    Args:
        address: uint64.
        size: number of elements.
        dtype: their type, such as ``np.uint8``.
    """
    return numba.carray(_pointer(address, dtype), (size,))


def intrinsic_function(signature: Any, emit: Callable[..., Any]) -> Any:
    """Make a function of kernels: ``emit`` takes LLVM's builder and the arguments, and returns the result, if any."""

    def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        result = emit(builder, *arguments)
        return context.get_dummy_value() if signature.return_type == types.void else result

    typed = signature, generate
    typings: dict[int, Callable[..., Any]] = {  # numba counts the parameters
        1: lambda _context, _a: typed,
        2: lambda _context, _a, _b: typed,
        3: lambda _context, _a, _b, _c: typed,
        4: lambda _context, _a, _b, _c, _d: typed,
        5: lambda _context, _a, _b, _c, _d, _e: typed,
    }
    return intrinsic(typings[len(signature.args)])


def load_function(bits: int, *, align: int = 1, big_endian: bool = False) -> Any:
    """Make a load of an unsigned integer by its address; the caller checks bounds."""

    def emit(builder: Any, address: Any) -> Any:
        number = builder.load(builder.inttoptr(address, ir.IntType(bits).as_pointer()), align=align)
        return builder.bswap(number) if big_endian else number

    return intrinsic_function(getattr(types, f"uint{bits}")(types.uint64), emit)


def store_function(dtype: Any, *, big_endian: bool = False) -> Any:
    """Make a store of an integer at any address; the caller checks bounds."""

    def emit(builder: Any, address: Any, number: Any) -> None:
        number = builder.bswap(number) if big_endian else number
        builder.store(number, builder.inttoptr(address, ir.IntType(dtype.bitwidth).as_pointer()), align=1)

    return intrinsic_function(types.void(types.uint64, dtype), emit)


load_u64, load_u16 = load_function(64, big_endian=True), load_function(16, align=2)
store_u8 = store_function(types.uint8)
store_u32, store_u64 = (store_function(dtype, big_endian=True) for dtype in (types.uint32, types.uint64))


def _emit_memcpy(builder: Any, target: Any, source: Any, count: Any) -> None:
    to, start = (builder.inttoptr(address, cgutils.voidptr_t) for address in (target, source))
    cgutils.raw_memcpy(builder, to, start, count, 1)


# Copies ``count`` bytes to one address from another; the caller checks bounds.
memcpy = intrinsic_function(types.void(types.uintp, types.uintp, types.intp), _emit_memcpy)


# Counts the bits of a uint64 that are one.
popcount = intrinsic_function(types.uint64(types.uint64), lambda builder, number: builder.ctpop(number))


def _emit_prefetch(builder: Any, address: Any) -> None:
    byte, number = cgutils.voidptr_t, ir.IntType(32)
    function_type = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
    fetch = builder.module.declare_intrinsic("llvm.prefetch", [byte], function_type)
    read, second_level, data = number(0), number(2), number(1)
    builder.call(fetch, [builder.inttoptr(address, byte), read, second_level, data])


# Prefetches the cache line at an address into the second-level cache; any address is harmless.
prefetch = intrinsic_function(types.void(types.uint64), _emit_prefetch)


@device_function
def copy_bytes(out, to, source, begin, count):  # type: ignore[no-untyped-def]
    """``out[to : to + count] = source[begin : begin + count]``, 5 times as fast; IndexError for ranges outside."""
    if count < 0 or to < 0 or begin < 0 or to + count > out.size or begin + count > source.size:
        raise IndexError("copy_bytes: range outside of its array")
    memcpy(out.ctypes.data + to, source.ctypes.data + begin, count)
