"""Vector arithmetic for kernels, written out: what LLVM would have to find in loops by itself, and often does not.

A function decorated with ``lanes`` is run while a kernel is compiled; its arithmetic on ``Lanes`` becomes instructions
of the kernel, on whatever vectors the machine has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import llvmlite.ir as ir
from numba.core import types
from numba.extending import intrinsic


class Lanes:
    """A vector of signed integers that a kernel will compute; integers in expressions stand for all lanes."""

    __slots__ = ("_builder", "value")

    def __init__(self, builder: Any, value: Any) -> None:
        self._builder = builder
        self.value = value

    def _all(self, other: Lanes | int) -> Any:
        if isinstance(other, Lanes):
            return other.value
        return ir.Constant(self.value.type, [other] * self.value.type.count)

    def __add__(self, other: Lanes | int) -> Lanes:
        return Lanes(self._builder, self._builder.add(self.value, self._all(other)))

    def __sub__(self, other: Lanes | int) -> Lanes:
        return Lanes(self._builder, self._builder.sub(self.value, self._all(other)))

    def __mul__(self, other: Lanes | int) -> Lanes:
        return Lanes(self._builder, self._builder.mul(self.value, self._all(other)))

    def __xor__(self, other: Lanes | int) -> Lanes:
        return Lanes(self._builder, self._builder.xor(self.value, self._all(other)))

    def __lshift__(self, bits: int) -> Lanes:
        return Lanes(self._builder, self._builder.shl(self.value, self._all(bits)))

    def __rshift__(self, bits: int) -> Lanes:
        """Rounds down."""
        return Lanes(self._builder, self._builder.ashr(self.value, self._all(bits)))

    def _kind(self, bits: int) -> Any:
        return ir.VectorType(ir.IntType(bits), self.value.type.count)

    def widened(self, bits: int, *, signed: bool = True) -> Lanes:
        """The same numbers in lanes of more bits."""
        extend = self._builder.sext if signed else self._builder.zext
        return Lanes(self._builder, extend(self.value, self._kind(bits)))

    def narrowed(self, bits: int) -> Lanes:
        """The lowest bits of each lane."""
        return Lanes(self._builder, self._builder.trunc(self.value, self._kind(bits)))

    def clamped(self, least: int, most: int) -> Lanes:
        """Numbers outside of a range become its ends."""
        value, builder = self.value, self._builder
        for sign, bound in (("<", least), (">", most)):
            end = self._all(bound)
            value = builder.select(builder.icmp_signed(sign, value, end), end, value)
        return Lanes(builder, value)

    def picked(self, other: Lanes, places: Sequence[int]) -> Lanes:
        """Lanes of this vector and the other behind it, by their places."""
        mask = ir.Constant(ir.VectorType(ir.IntType(32), len(places)), list(places))
        return Lanes(self._builder, self._builder.shuffle_vector(self.value, other.value, mask))


class Memory:
    """The addresses that a function of ``lanes`` was called with."""

    def __init__(self, builder: Any) -> None:
        self._builder = builder

    def at(self, address: Any, offset: int) -> Any:
        """An address some bytes on."""
        return self._builder.add(address, ir.Constant(ir.IntType(64), offset))

    def load(self, address: Any, count: int, bits: int) -> Lanes:
        """``count`` neighbouring integers, at any alignment."""
        kind = ir.VectorType(ir.IntType(bits), count).as_pointer()
        return Lanes(self._builder, self._builder.load(self._builder.inttoptr(address, kind), align=1))

    def zeros(self, count: int, bits: int) -> Lanes:
        return Lanes(self._builder, ir.Constant(ir.VectorType(ir.IntType(bits), count), None))

    def store(self, address: Any, lanes: Lanes) -> None:
        pointer = self._builder.inttoptr(address, lanes.value.type.as_pointer())
        self._builder.store(lanes.value, pointer, align=1)

    def splat(self, number: Any, count: int, bits: int) -> Lanes:
        """An argument in all lanes."""
        kind = ir.VectorType(ir.IntType(bits), count)
        first = self._builder.trunc(number, ir.IntType(bits))
        vector = self._builder.insert_element(ir.Constant(kind, None), first, ir.Constant(ir.IntType(32), 0))
        return Lanes(self._builder, vector).picked(Lanes(self._builder, vector), [0] * count)

    def next(self, address: Any, stride: Any) -> Any:
        """The sum of two arguments."""
        return self._builder.add(address, stride)


def lanes(count: int) -> Callable[[Callable[..., None]], Any]:
    """For kernels: make a function of ``Memory`` and ``count`` uint64 numbers, such as addresses, part of a kernel."""

    def decorate(function: Callable[..., None]) -> Any:
        def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
            function(Memory(builder), *arguments)
            return context.get_dummy_value()

        form = types.void(*[types.uint64] * count), generate
        forms: dict[int, Callable[..., Any]] = {  # numba looks at parameters
            2: lambda _context, _a, _b: form,
            3: lambda _context, _a, _b, _c: form,
            4: lambda _context, _a, _b, _c, _d: form,
        }
        return intrinsic(forms[count])

    return decorate


def _load(bits: int) -> Any:
    def generate(_: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer()), align=1)

    form = getattr(types, f"uint{bits}")(types.uint64), generate
    return intrinsic(lambda _context, _address: form)


def _store(bits: int, kind: Any) -> Any:
    def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        builder.store(arguments[1], builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer()), align=1)
        return context.get_dummy_value()

    form = types.void(types.uint64, kind), generate
    return intrinsic(lambda _context, _address, _value: form)


def _load_byte() -> Any:
    def generate(_: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        byte = builder.load(builder.inttoptr(arguments[0], ir.IntType(8).as_pointer()))
        return builder.zext(byte, ir.IntType(64))

    form = types.int64(types.uint64), generate
    return intrinsic(lambda _context, _address: form)


# For kernels: read and write an element of an array by its address; the caller bounds it.
load_u8, load_u32, load_native_u64 = _load(8), _load(32), _load(64)
store_i16, store_i32, store_native_u64 = _store(16, types.int16), _store(32, types.int32), _store(64, types.uint64)
load_byte = _load_byte()  # as int64
