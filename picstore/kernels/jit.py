"""Compilation of kernels by numba to machine code that runs without the GIL, and the functions that kernels call."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

from picstore.kernels.kernel_cache import KernelCache
from picstore.kernels.linking import linked_only
from picstore.kernels.numba_names import CACHE, CALLS, available, device_options, find, inline_options

_byte_pointer = ir.IntType(8).as_pointer()
# First kernel of each signature; ``_copying_caller`` calls it if numba lacks the names of the group CALLS.
_kernels: dict[str, Any] = {}
_lock: Any = find("numba.core.compiler_lock.global_compiler_lock") or threading.RLock()


def kernel(signature: str) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that compiles a function at its first call, if ``ahead.py`` has not, and caches machine code.

    A process loads a cached kernel in 5 ms. Kernels should therefore be few; functions that only kernels call are
    device functions.

    Args:
        signature: types of the arguments in numba's notation; a kernel with a :func:`caller` also needs the type of its
            result.
    """

    def make_dispatcher(function: Callable[..., Any]) -> Any:
        dispatcher: Any = numba.njit(nogil=True)(function)
        if available(CACHE):
            dispatcher._cache = KernelCache(function)
        if hasattr(dispatcher, "compile"):
            dispatcher.compile = _compiling(dispatcher, dispatcher.compile)
        dispatcher.signature = signature
        _kernels.setdefault(signature, dispatcher)
        return dispatcher

    return make_dispatcher


def arguments_of(function: Any) -> Any:
    """Return the types of a kernel's arguments, as objects of numba."""
    return find("numba.core.sigutils.normalize_signature")(function.signature)[0]


def compile_kernel(function: Any) -> Any:
    """Compile a kernel for its signature, or load its machine code from the cache."""
    if hasattr(function, "compile"):
        function.compile(arguments_of(function) if available(CACHE) else function.signature)


def is_cached(function: Any) -> bool:
    """Return whether this process or the cache has a kernel's machine code for its signature."""
    if not available(CACHE):
        return bool(getattr(function, "signatures", ()))
    arguments = arguments_of(function)
    return arguments in function.overloads or function._cache.holds(arguments, function.targetctx)


def address_of(function: Any) -> int:
    """Compile or load a kernel; return the address that its :func:`caller` takes, which is never 0."""
    compile_kernel(function)
    if not available(CALLS):
        return 1
    compiled = function.overloads[arguments_of(function)]
    address: int = compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name)
    return address


def caller(signature: str) -> Any:
    """Return a function by which kernels call a kernel of type ``signature``, given the kernel's address.

    The calling kernel's machine code contains no copy of the called kernel, so kernels are compiled once, in
    parallel. Called kernels take 10 µs or more, so a copy would gain nothing.

    Returns:
        A function that takes the address, and a tuple of the kernel's arguments.
    """
    if not available(CALLS):
        return _copying_caller(signature)
    arguments, result = find("numba.core.sigutils.normalize_signature")(signature)

    def generate(context: Any, builder: Any, typed: Any, values: Any) -> Any:
        convention = context.call_conv
        address, packed = values
        unpacked = [builder.extract_value(packed, k) for k in range(len(arguments))]
        given = zip(unpacked, typed.args[1], arguments, strict=True)
        cast = [context.cast(builder, value, of, to) for value, of, to in given]
        pointer = builder.inttoptr(address, convention.get_function_type(result, arguments).as_pointer())
        status, returned = convention.call_function(builder, pointer, result, arguments, cast)
        with builder.if_then(status.is_error, likely=False):
            convention.return_status_propagate(builder, status)
        return returned

    def call(typing: Any, address: Any, packed: Any) -> Any:  # noqa: ARG001 - numba's signature
        return result(types.int64, packed), generate

    return intrinsic(call)


def _copying_caller(signature: str) -> Any:
    """Do as :func:`caller` with numba's public names only; but each called kernel is then copied into its callers."""

    def call(address, packed): ...

    @overload(call)
    def call_kernel(address, packed):  # noqa: ARG001 - the names are compared
        # If no kernel has this signature, there is no address to pass, so the returned function is never called.
        if (target := _kernels.get(signature)) is None:
            return lambda address, packed: 1  # noqa: ARG005
        return lambda address, packed: target(*packed)  # noqa: ARG005

    return call


def device_function(function: Callable[..., Any]) -> Any:
    """Decorate a function that only kernels call; without wrappers for calls from Python it compiles faster."""
    return numba.njit(**device_options())(function)


def _compiling(dispatcher: Any, compile_: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that compiles or loads a kernel without garbage collection.

    Collections would take 0.1 of the 0.4 s in which a process loads its first kernel, and a fifth of the time to
    compile a kernel.
    """

    def compile_without_collection(signature: Any) -> Any:
        # Compile in one thread at a time, because a thread that is done enables garbage collection for all threads.
        with _lock, linked_only(dispatcher):
            collecting = gc.isenabled()
            gc.disable()
            try:
                return compile_(signature)
            finally:
                if collecting:
                    gc.enable()

    return compile_without_collection


def inlined(function: Callable[..., Any]) -> Any:
    """Decorate a short device function, which LLVM is to copy into its callers: a copy costs no more than a call.

    numba's own inlining would infer the types of each copy again, a tenth of the decoder's compile time.
    """
    return numba.njit(**inline_options())(function)


def _llvm_type(dtype: Any) -> Any:
    if isinstance(dtype, types.Float):
        return ir.DoubleType() if dtype.bitwidth == 64 else ir.FloatType()
    return ir.IntType(dtype.bitwidth)


@intrinsic
def _pointer(typing: Any, address: Any, dtype: Any) -> Any:  # noqa: ARG001 - numba's signature
    def generate(_: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], _llvm_type(signature.return_type.dtype).as_pointer())

    return types.CPointer(dtype.dtype)(types.uint64, dtype), generate


@device_function
def array_at(address, size, dtype):
    """Return memory as an array, so that kernels can take buffers by address; callers keep the buffers alive.

    ``address`` is uint64, ``size`` the number of elements, ``dtype`` their type, such as ``np.uint8``.
    """
    return numba.carray(_pointer(address, dtype), (size,))


def intrinsic_function(signature: Any, emit: Callable[..., Any]) -> Any:
    """Return a function for kernels; ``emit(builder, *arguments)`` adds its instructions to LLVM's ``builder``."""

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        result = emit(builder, *arguments)
        return ir.Constant(_byte_pointer, None) if signature.return_type == types.void else result

    typed = signature, generate
    # Functions to choose from by number of arguments, because numba requires a parameter for each argument.
    typings: dict[int, Callable[..., Any]] = {
        1: lambda _context, _a: typed,
        2: lambda _context, _a, _b: typed,
        3: lambda _context, _a, _b, _c: typed,
        4: lambda _context, _a, _b, _c, _d: typed,
        5: lambda _context, _a, _b, _c, _d, _e: typed,
    }
    return intrinsic(typings[len(signature.args)])


def load_function(bits: int, *, align: int = 1, big_endian: bool = False) -> Any:
    """Return a function for kernels that loads an unsigned integer from an address; callers check bounds."""

    def emit(builder: Any, address: Any) -> Any:
        number = builder.load(builder.inttoptr(address, ir.IntType(bits).as_pointer()), align=align)
        return builder.bswap(number) if big_endian else number

    return intrinsic_function(getattr(types, f"uint{bits}")(types.uint64), emit)


def store_function(dtype: Any, *, big_endian: bool = False) -> Any:
    """Return a function for kernels that stores an integer at an address, at any alignment; callers check bounds."""

    def emit(builder: Any, address: Any, number: Any) -> None:
        number = builder.bswap(number) if big_endian else number
        builder.store(number, builder.inttoptr(address, ir.IntType(dtype.bitwidth).as_pointer()), align=1)

    return intrinsic_function(types.void(types.uint64, dtype), emit)


load_u64, load_u16 = load_function(64, big_endian=True), load_function(16, align=2)
store_u8 = store_function(types.uint8)
store_u32, store_u64 = (store_function(dtype, big_endian=True) for dtype in (types.uint32, types.uint64))


def _emit_memcpy(builder: Any, target: Any, source: Any, count: Any) -> None:
    to, start = (builder.inttoptr(address, _byte_pointer) for address in (target, source))
    copy = builder.module.declare_intrinsic("llvm.memcpy", [_byte_pointer, _byte_pointer, count.type])
    builder.call(copy, [to, start, count, ir.IntType(1)(0)])


# Copies bytes as C's memcpy does, given addresses of target and source, and number of bytes. Callers check bounds.
memcpy = intrinsic_function(types.void(types.uintp, types.uintp, types.intp), _emit_memcpy)


# Returns the number of set bits of a uint64.
popcount = intrinsic_function(types.uint64(types.uint64), lambda builder, number: builder.ctpop(number))


def _emit_prefetch(builder: Any, address: Any) -> None:
    byte, number = _byte_pointer, ir.IntType(32)
    function_type = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
    fetch = builder.module.declare_intrinsic("llvm.prefetch", [byte], function_type)
    read, second_level, data = number(0), number(2), number(1)
    builder.call(fetch, [builder.inttoptr(address, byte), read, second_level, data])


# Prefetches the cache line at an address into the second-level cache; any address is permitted.
prefetch = intrinsic_function(types.void(types.uint64), _emit_prefetch)


@device_function
def copy_bytes(out, to, source, begin, count):
    """Do ``out[to : to + count] = source[begin : begin + count]``, 5 times as fast; raise IndexError out of bounds."""
    if count < 0 or to < 0 or begin < 0 or to + count > out.size or begin + count > source.size:
        raise IndexError("copy_bytes: range outside of its array")
    memcpy(out.ctypes.data + to, source.ctypes.data + begin, count)


def c_function(name: str, result: Any, *arguments: Any) -> Any:
    """Return a function by which kernels call a function of the system's C library, of the given numba types."""

    def emit(builder: Any, *values: Any) -> Any:
        declared = ir.FunctionType(_llvm_type(result), [_llvm_type(each) for each in arguments])
        return builder.call(builder.module.globals.get(name) or ir.Function(builder.module, declared, name), values)

    return intrinsic_function(result(*arguments), emit)


# Functions of C. ``open`` takes the address of a path, and flags; ``pread`` takes a file descriptor, an address, a size
# and an offset. Negative results are errors. ``fstat`` is not used, because glibc exports it only since 2.33.
open_file = c_function("open", types.int32, types.uintp, types.int32)
read_at = c_function("pread", types.intp, types.int32, types.uintp, types.uintp, types.int64)
close_file = c_function("close", types.int32, types.int32)


def _emit_extend(builder: Any, function: Any, before: Any, data: Any, size: Any) -> Any:
    byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
    kind = ir.FunctionType(word, [word, byte, ir.IntType(64)])
    return builder.call(builder.inttoptr(function, kind.as_pointer()), [before, builder.inttoptr(data, byte), size])


_extend_type = types.uint32(types.uint64, types.uint32, types.uint64, types.uint64)
# Calls the function at an address with three arguments: the checksum so far; address and number of further bytes.
extend_checksum: Any = intrinsic_function(_extend_type, _emit_extend)
