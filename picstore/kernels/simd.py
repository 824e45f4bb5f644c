"""Explicit SIMD for kernels: integer vectors, and loads and stores at addresses.

LLVM often fails to vectorize such arithmetic if it is written as a loop, and to find two instructions of x86 that treat
each 128 bits separately. numba runs a function decorated with ``vector_function`` while it compiles a kernel:
arithmetic on ``Vector`` becomes the kernel's instructions, for the vector registers of the machine.
"""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import llvmlite.ir as ir
from numba import config, types

from picstore.kernels.jit import intrinsic_function, load_function, store_function
from picstore.kernels.numba_names import find

_X86 = platform.machine() in ("x86_64", "AMD64")
# LLVM's names of x86 instructions for 128 bits; for 256 bits the name is "avx2." followed by the key.
_SSE2 = {"pmadd.wd": "sse2.pmadd.wd", "packssdw": "sse2.packssdw.128", "packsswb": "sse2.packsswb.128"}


def _has_avx2() -> bool:
    """Return whether kernels are compiled for AVX2: the CPU has AVX2, and NUMBA_CPU_NAME names no other CPU."""
    features, of_host = getattr(config, "CPU_FEATURES", ""), find("numba.core.codegen.get_host_cpu_features")
    if features is None and of_host is not None:
        features = of_host()
    return "+avx2" in (features or "").split(",")


class Vector:
    """Vector of signed integers in a kernel; an ``int`` as operand stands for a vector that repeats the number."""

    __slots__ = ("_builder", "value")

    def __init__(self, builder: Any, value: Any) -> None:
        self._builder = builder
        self.value = value

    def _operand(self, other: Vector | int) -> Any:
        if isinstance(other, Vector):
            return other.value
        return ir.Constant(self.value.type, [other] * self.value.type.count)

    def __add__(self, other: Vector | int) -> Vector:
        return Vector(self._builder, self._builder.add(self.value, self._operand(other)))

    def __sub__(self, other: Vector | int) -> Vector:
        return Vector(self._builder, self._builder.sub(self.value, self._operand(other)))

    def __mul__(self, other: Vector | int) -> Vector:
        return Vector(self._builder, self._builder.mul(self.value, self._operand(other)))

    def __xor__(self, other: Vector | int) -> Vector:
        return Vector(self._builder, self._builder.xor(self.value, self._operand(other)))

    def __or__(self, other: Vector | int) -> Vector:
        return Vector(self._builder, self._builder.or_(self.value, self._operand(other)))

    def __lshift__(self, bits: int) -> Vector:
        return Vector(self._builder, self._builder.shl(self.value, self._operand(bits)))

    def __rshift__(self, bits: int) -> Vector:
        """Shift each element right; copy the sign bit, so that negative numbers round down too."""
        return Vector(self._builder, self._builder.ashr(self.value, self._operand(bits)))

    def _type(self, bits: int) -> Any:
        return ir.VectorType(ir.IntType(bits), self.value.type.count)

    def widened(self, bits: int, *, signed: bool = True) -> Vector:
        """Return the elements as integers of ``bits`` bits, extended by copies of the sign bit, or by zeros."""
        extend = self._builder.sext if signed else self._builder.zext
        return Vector(self._builder, extend(self.value, self._type(bits)))

    def narrowed(self, bits: int) -> Vector:
        """Return the lowest ``bits`` bits of each element."""
        return Vector(self._builder, self._builder.trunc(self.value, self._type(bits)))

    def clamped(self, least: int, most: int) -> Vector:
        value, builder = self.value, self._builder
        for sign, bound in (("<", least), (">", most)):
            limit = self._operand(bound)
            value = builder.select(builder.icmp_signed(sign, value, limit), limit, value)
        return Vector(builder, value)

    def is_zero(self) -> Vector:
        """Return a mask for :meth:`chosen`: each 128 bits become all ones if they are zero, otherwise all zeros."""
        words = self.cast(64)
        either = words | words.shuffled(words, [k ^ 1 for k in range(words.value.type.count)])
        is_zero = self._builder.icmp_unsigned("==", either.value, words.filled(0).value)
        return Vector(self._builder, self._builder.sext(is_zero, words.value.type)).cast(self.value.type.element.width)

    def nonzero(self) -> Any:
        """Return a number in which bit *k* is set if element *k* is not zero."""
        bits = self._builder.icmp_signed("!=", self.value, self._operand(0))
        number = self._builder.bitcast(bits, ir.IntType(self.value.type.count))
        return self._builder.zext(number, ir.IntType(64))

    def chosen(self, mask: Vector, other: Vector) -> Vector:
        """Return the bits of this vector where ``mask`` has ones, and the bits of ``other`` where it has zeros."""
        different = Vector(self._builder, self._builder.and_((self ^ other).value, mask.value))
        return different ^ other

    def filled(self, *numbers: int) -> Vector:
        """Return a vector of this vector's type that holds ``numbers`` again and again, such as a, b, a, b."""
        count = self.value.type.count
        return Vector(self._builder, ir.Constant(self.value.type, list(numbers) * (count // len(numbers))))

    def cast(self, bits: int) -> Vector:
        """Return this vector's bits, unchanged, as elements of ``bits`` bits."""
        count = self.value.type.count * self.value.type.element.width // bits
        return Vector(self._builder, self._builder.bitcast(self.value, ir.VectorType(ir.IntType(bits), count)))

    def interleaved(self, other: Vector) -> tuple[Vector, Vector]:
        """In each 128 bits, interleave both vectors' elements, of the lower 64 bits and of the upper; return both."""
        count = self.value.type.count
        part = 128 // self.value.type.element.width
        lower = [begin + k // 2 + k % 2 * count for begin in range(0, count, part) for k in range(part)]
        return self.shuffled(other, lower), self.shuffled(other, [k + part // 2 for k in lower])

    def sums_of_products(self, other: Vector) -> Vector:
        """Multiply two 256-bit vectors of int16 elementwise; return the int32 sums of adjacent pairs of products."""
        if _X86:
            return self._instruction("pmadd.wd", other, 32)
        parities = range(0, self.value.type.count, 2), range(1, self.value.type.count, 2)
        even, odd = (self.shuffled(self, k).widened(32) * other.shuffled(other, k).widened(32) for k in parities)
        return even + odd

    def interleaved_sums(self, other: Vector, factors: Vector) -> list[Vector]:
        """Interleave two 256-bit vectors of int16; return :meth:`sums_of_products` of each half with ``factors``."""
        if _X86:
            return [mixed.sums_of_products(factors) for mixed in self.interleaved(other)]
        first, second = (factors.shuffled(factors, range(k, 16, 2)).widened(32) for k in range(2))
        halves = [[begin + k for begin in (half, 8 + half) for k in range(4)] for half in (0, 4)]
        parts = [(self.shuffled(self, half), other.shuffled(other, half)) for half in halves]
        return [a.widened(32) * first + b.widened(32) * second for a, b in parts]

    def packed(self, other: Vector) -> Vector:
        """Clamp the elements of two 256-bit vectors to integers of half as many bits, and join them in one vector.

        Each 128 bits of the result hold 64 bits of this vector, then 64 bits of ``other``.
        """
        count, bits = self.value.type.count, self.value.type.element.width
        if _X86:
            return self._instruction({32: "packssdw", 16: "packsswb"}[bits], other, bits // 2)
        part, least = 128 // bits, -(1 << bits // 2 - 1)
        order = [start + begin + k for begin in range(0, count, part) for start in (0, count) for k in range(part)]
        return self.shuffled(other, order).clamped(least, -least - 1).narrowed(bits // 2)

    def _instruction(self, name: str, other: Vector, bits: int) -> Vector:
        """Run the x86 instruction ``name`` (key of _SSE2) on two 256-bit vectors; return elements of ``bits`` bits."""
        if _has_avx2():
            return self._call("avx2." + name, other, bits)
        count = self.value.type.count
        halves = range(count // 2), range(count // 2, count)
        low, high = (self.shuffled(self, half)._call(_SSE2[name], other.shuffled(other, half), bits) for half in halves)
        return low.shuffled(high, range(256 // bits))

    def _call(self, name: str, other: Vector, bits: int) -> Vector:
        own = self.value.type
        result = ir.VectorType(ir.IntType(bits), own.count * own.element.width // bits)
        signature = ir.FunctionType(result, [own] * 2)
        module, name = self._builder.module, "llvm.x86." + name
        function = module.globals.get(name) or ir.Function(module, signature, name)
        return Vector(self._builder, self._builder.call(function, [self.value, other.value]))

    def shuffled(self, other: Vector, indices: Sequence[int]) -> Vector:
        """Return a vector of the elements at ``indices`` of this vector and ``other``, joined in this order."""
        mask = ir.Constant(ir.VectorType(ir.IntType(32), len(indices)), list(indices))
        return Vector(self._builder, self._builder.shuffle_vector(self.value, other.value, mask))


# Body of a loop of ``VectorMemory.repeat``: takes the index of the repetition and the vectors, returns the new vectors.
_Step = Callable[[Any, list[Vector]], list[Vector]]


@contextlib.contextmanager
def _repeated(builder: Any, count: Any) -> Iterator[Any]:
    """Build a loop of ``count`` rounds around the instructions of a ``with`` block; yield the index of the round."""
    before, condition = builder.basic_block, builder.append_basic_block("repeat")
    body, end = builder.append_basic_block("repeat.body"), builder.append_basic_block("repeat.end")
    builder.branch(condition)
    builder.position_at_end(condition)
    index = builder.phi(count.type)
    builder.cbranch(builder.icmp_signed("<", index, count), body, end)
    builder.position_at_end(body)
    yield index
    following = builder.add(index, count.type(1), flags=["nsw"])
    index.add_incoming(count.type(0), before)
    index.add_incoming(following, builder.basic_block)
    builder.branch(condition)
    builder.position_at_end(end)


class VectorMemory:
    """Builder of the loads, stores and loops in the code of a :func:`vector_function`, by means of LLVM's builder."""

    def __init__(self, builder: Any) -> None:
        self._builder = builder

    def offset(self, address: Any, count: Any, times: int = 1) -> Any:
        """Return ``address + times * count`` in bytes; ``count`` is an ``int``, or a number computed by the kernel."""
        number = ir.IntType(64)
        if times != 1:
            count = self._builder.mul(count, ir.Constant(number, times))
        return self._builder.add(address, ir.Constant(number, count) if isinstance(count, int) else count)

    def load(self, address: Any, count: int, bits: int) -> Vector:
        """Load a vector of ``count`` neighboring integers of ``bits`` bits, at any alignment."""
        pointer = self._builder.inttoptr(address, ir.VectorType(ir.IntType(bits), count).as_pointer())
        return Vector(self._builder, self._builder.load(pointer, align=1))

    def load_number(self, address: Any) -> Any:
        """Load an integer of 64 bits, such as an address, at any alignment."""
        pointer = self._builder.inttoptr(address, ir.IntType(64).as_pointer())
        return self._builder.load(pointer, align=1)

    def repeat(self, count: Any, vectors: list[Vector], step: _Step) -> list[Vector]:
        """Apply ``step`` to vectors in registers, ``count`` times; ``count`` is a number that the kernel computes."""
        builder, slots = self._builder, []
        for vector in vectors:
            with builder.goto_entry_block():
                slots.append(builder.alloca(vector.value.type))
            builder.store(vector.value, slots[-1])
        with _repeated(builder, count) as index:
            results = step(index, [Vector(builder, builder.load(slot)) for slot in slots])
            for slot, result in zip(slots, results, strict=True):
                builder.store(result.value, slot)
        return [Vector(builder, builder.load(slot)) for slot in slots]

    def store(self, address: Any, vector: Vector) -> None:
        """Store a vector at an address, at any alignment."""
        pointer = self._builder.inttoptr(address, vector.value.type.as_pointer())
        self._builder.store(vector.value, pointer, align=1)

    def zeros(self, count: int, bits: int) -> Vector:
        return Vector(self._builder, ir.Constant(ir.VectorType(ir.IntType(bits), count), None))

    def splat(self, number: Any, count: int, bits: int) -> Vector:
        """Return a vector of ``count`` copies of a number, which the kernel computes, as elements of ``bits`` bits."""
        first = self._builder.trunc(number, ir.IntType(bits))
        zeros, index = self.zeros(count, bits), ir.Constant(ir.IntType(32), 0)
        vector = Vector(self._builder, self._builder.insert_element(zeros.value, first, index))
        return vector.shuffled(vector, [0] * count)


def transposed(rows: list[Vector]) -> list[Vector]:
    """Transpose 8 × 8 matrices; the same 128 bits of all vectors (eight of int16, or four of bytes) are a matrix."""
    half = len(rows) // 2
    # Interleaving the first and the second half of 64 elements three times transposes them as an 8 × 8 matrix.
    for _ in range(3):
        rows = [mixed for a, b in zip(rows[:half], rows[half:], strict=True) for mixed in a.interleaved(b)]
    return rows


def vector_function(arity: int, *, returns: bool = False) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that inlines a function of ``VectorMemory`` and ``arity`` uint64 arguments into its callers.

    With ``returns``, the function returns an integer of 64 bits.
    """
    signature = (types.uint64 if returns else types.void)(*[types.uint64] * arity)
    return lambda function: intrinsic_function(
        signature, lambda builder, *arguments: function(VectorMemory(builder), *arguments)
    )


def _emit_load_byte(builder: Any, address: Any) -> Any:
    byte = builder.load(builder.inttoptr(address, ir.IntType(8).as_pointer()))
    return builder.zext(byte, ir.IntType(64))


def _emit_count(name: str) -> Any:
    """Return a function for kernels that counts a uint64's leading ("ctlz") or trailing ("cttz") zero bits."""

    def emit(builder: Any, number: Any) -> Any:
        return getattr(builder, name)(number, ir.Constant(ir.IntType(1), 0))

    return intrinsic_function(types.int64(types.uint64), emit)


leading_zeros, trailing_zeros = _emit_count("ctlz"), _emit_count("cttz")

# Functions that load or store a number in the machine's byte order, at any alignment; callers check bounds.
load_u8, load_u32, load_native_u64 = load_function(8), load_function(32), load_function(64)
store_i16, store_i32, store_native_u64 = map(store_function, (types.int16, types.int32, types.uint64))
# Loads a byte, and returns it as int64.
load_byte = intrinsic_function(types.int64(types.uint64), _emit_load_byte)
