"""CRC-32C by an instruction of the CPU, for platforms without a wheel of google-crc32c.

LLVM compiles the loop in 15 ms; importing numba would take 300 ms. Called by ctypes, the code runs without the GIL.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Callable

import llvmlite.binding as llvm

# Functions ``word`` and ``byte`` in LLVM's language, which extend a CRC by 8 bytes and by one byte: for x86 and ARM by
# an instruction of the CPU, for other CPUs by bitwise division.
_X86 = """
declare i64 @llvm.x86.sse42.crc32.64.64(i64, i64)
declare i32 @llvm.x86.sse42.crc32.32.8(i32, i8)
define private i64 @word(i64 %crc, i64 %data) alwaysinline {
  %result = call i64 @llvm.x86.sse42.crc32.64.64(i64 %crc, i64 %data)
  ret i64 %result
}
define private i64 @byte(i64 %crc, i8 %data) alwaysinline {
  %narrow = trunc i64 %crc to i32
  %result = call i32 @llvm.x86.sse42.crc32.32.8(i32 %narrow, i8 %data)
  %wide = zext i32 %result to i64
  ret i64 %wide
}
"""
_ARM = """
declare i32 @llvm.aarch64.crc32cx(i32, i64)
declare i32 @llvm.aarch64.crc32cb(i32, i32)
define private i64 @word(i64 %crc, i64 %data) alwaysinline {
  %narrow = trunc i64 %crc to i32
  %result = call i32 @llvm.aarch64.crc32cx(i32 %narrow, i64 %data)
  %wide = zext i32 %result to i64
  ret i64 %wide
}
define private i64 @byte(i64 %crc, i8 %data) alwaysinline {
  %narrow = trunc i64 %crc to i32
  %number = zext i8 %data to i32
  %result = call i32 @llvm.aarch64.crc32cb(i32 %narrow, i32 %number)
  %wide = zext i32 %result to i64
  ret i64 %wide
}
"""
_DIVISION = """
define private i64 @divided(i64 %number, i64 %bits) {
entry:
  br label %loop
loop:
  %k = phi i64 [0, %entry], [%next, %loop]
  %a = phi i64 [%number, %entry], [%b, %loop]
  %lowest = and i64 %a, 1
  %mask = sub i64 0, %lowest
  %term = and i64 %mask, 2197175160  ; RFC 3720's polynomial, reflected
  %half = lshr i64 %a, 1
  %b = xor i64 %half, %term
  %next = add i64 %k, 1
  %more = icmp ult i64 %next, %bits
  br i1 %more, label %loop, label %end
end:
  ret i64 %b
}
define private i64 @word(i64 %crc, i64 %data) {
  %number = xor i64 %crc, %data
  %result = call i64 @divided(i64 %number, i64 64)
  ret i64 %result
}
define private i64 @byte(i64 %crc, i8 %data) {
  %wide = zext i8 %data to i64
  %number = xor i64 %crc, %wide
  %result = call i64 @divided(i64 %number, i64 8)
  ret i64 %result
}
"""
_LOOPS = """
define i32 @extend(i32 %before, ptr %data, i64 %size) {
entry:
  %inverted = xor i32 %before, -1
  %start = zext i32 %inverted to i64
  %whole = and i64 %size, -8
  br label %words
words:
  %at = phi i64 [0, %entry], [%at8, %each_word]
  %crc = phi i64 [%start, %entry], [%crc8, %each_word]
  %more_words = icmp ult i64 %at, %whole
  br i1 %more_words, label %each_word, label %bytes
each_word:
  %word_at = getelementptr i8, ptr %data, i64 %at
  %word = load i64, ptr %word_at, align 1
  %crc8 = call i64 @word(i64 %crc, i64 %word)
  %at8 = add i64 %at, 8
  br label %words
bytes:
  %byte_number = phi i64 [%at, %words], [%byte_number1, %each_byte]
  %crc_so_far = phi i64 [%crc, %words], [%crc1, %each_byte]
  %more_bytes = icmp ult i64 %byte_number, %size
  br i1 %more_bytes, label %each_byte, label %end
each_byte:
  %byte_at = getelementptr i8, ptr %data, i64 %byte_number
  %byte = load i8, ptr %byte_at
  %crc1 = call i64 @byte(i64 %crc_so_far, i8 %byte)
  %byte_number1 = add i64 %byte_number, 1
  br label %bytes
end:
  %last = trunc i64 %crc_so_far to i32
  %result = xor i32 %last, -1
  ret i32 %result
}
"""
# For each machine type: LLVM's name of the CPU feature that includes a CRC instruction, LLVM's option that enables the
# instruction, and the source of the functions that use it.
_INSTRUCTIONS = {
    "x86_64": ("sse4.2", "+crc32", _X86),
    "aarch64": ("crc", "+crc", _ARM),
    "arm64": ("crc", "+crc", _ARM),
}
_code: list[llvm.ExecutionEngine] = []  # owners of the compiled machine code, which would be freed without them


def compile_crc32c(*, instruction: bool = True) -> Callable[[int, int, int], int]:
    """Compile a function of (CRC of previous bytes, address, size) that extends the CRC by the bytes at the address.

    Args:
        instruction: whether to use the CPU's instruction, if it has one, at 5 GB/s; bitwise division runs at 0.1 GB/s.
    """
    feature, features, step = _INSTRUCTIONS.get(platform.machine(), ("", "", _DIVISION))
    if not (instruction and feature and _has(feature)):
        features, step = "", _DIVISION
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(features=features, opt=2, jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(step + _LOOPS), machine)
    engine.finalize_object()
    _code.append(engine)
    kind = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t)
    return kind(engine.get_function_address("extend"))


def _has(feature: str) -> bool:
    """Return whether the CPU has the feature with this name in LLVM; all Apple CPUs have ``crc``."""
    try:
        return bool(llvm.get_host_cpu_features().get(feature)) or (sys.platform, feature) == ("darwin", "crc")
    except RuntimeError:  # LLVM does not know this system's features.
        return False
