"""Functions of C that kernels call: of the system's library for files, and a checksum by its address."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from picstore.kernels.jit import intrinsic_function

# ``open`` takes the address of a path and flags, ``pread`` a descriptor, an address, a size and an offset. Errors are
# negative results. There is no fstat: the C library of Linux has exported it since 2021 only.
open_file: Any = types.ExternalFunction("open", types.int32(types.uintp, types.int32))
read_at: Any = types.ExternalFunction("pread", types.intp(types.int32, types.uintp, types.uintp, types.int64))
close_file: Any = types.ExternalFunction("close", types.int32(types.int32))


def _emit_extend(builder: Any, function: Any, before: Any, data: Any, size: Any) -> Any:
    byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
    kind = ir.FunctionType(word, [word, byte, ir.IntType(64)])
    return builder.call(builder.inttoptr(function, kind.as_pointer()), [before, builder.inttoptr(data, byte), size])


_extend_type = types.uint32(types.uint64, types.uint32, types.uint64, types.uint64)
# Calls a checksum's function at an address with the checksum of the bytes before, and the address and size of bytes.
extend_checksum: Any = intrinsic_function(_extend_type, _emit_extend)
