"""Triton's interpreter without the half of its time that changes no result, for tests and benchmarks."""

from __future__ import annotations

import inspect
import os
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np


@cache
def quicken() -> None:
    """Where this process interprets Triton's kernels: patch its language once a launch, and add numbers once.

    The interpreter patches it at each call of a function too, a third of its time. It adds, subtracts and multiplies
    integers once more in 64 bits, for an assertion of no overflow that Triton leaves out as ``debug`` is off, and makes
    a table of types, checks of the shape and a name for each result. NumPy 2.4 and newer run with Triton 3.6 too.
    """
    if os.environ.get("TRITON_INTERPRET") != "1" or not find_spec("triton"):
        return
    from triton.runtime import interpreter

    patch = interpreter._patch_lang
    patched: set[int] = set()  # modules of Triton's language in the launch that runs

    @cache
    def language_of(function: Any) -> set[int]:
        modules = {id(each) for each in function.__globals__.values() if inspect.ismodule(each)}
        return modules & {id(interpreter.tl), id(interpreter.tl.core)}

    def patch_once(function: Any) -> Any:
        language = language_of(function)
        if language and language <= patched:
            return interpreter._LangPatchScope()
        scope = patch(function)
        restore = scope.restore
        scope.restore = lambda: (patched.clear(), restore())
        patched.update(language)
        return scope

    interpreter._patch_lang = patch_once
    patch_tensor = interpreter._patch_lang_tensor

    def patch_with_item(tensor: Any, scope: Any) -> None:  # Triton 3.6: int() of an array, which NumPy 2.4 refuses
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch_with_item
    builder = interpreter.interpreter_builder
    if not builder.options.debug:
        builder.options = replace(builder.options, sanitize_overflow=False)
    scalar_dtype = cache(interpreter._get_np_dtype)

    def np_dtype(kind: Any) -> np.dtype[Any]:
        scalar = kind.scalar
        return np.dtype(np.uint64) if isinstance(scalar, interpreter.tl.pointer_type) else scalar_dtype(scalar)

    interpreter._get_np_dtype = np_dtype
    semantic = interpreter.interpreter_semantic

    def patch_attribute(of: Any, name: str, member: Any, _: Any, scope: Any) -> None:
        scope.set_attr(of, name, lambda *given, **named: member(*given, **{**named, "_semantic": semantic}))

    interpreter._patch_attr = patch_attribute
    _share_shapes(interpreter.tl.core, semantic)


def _share_shapes(core: Any, semantic: Any) -> None:
    """Check and name the shape of a block once for all blocks of it, and broadcast no block to its own shape."""
    init_block, init_tensor = core.block_type.__init__, core.tensor.__init__
    blocks: dict[tuple[Any, ...], dict[str, Any]] = {}  # attributes of a block's type, by its elements' and its shape
    shapes: dict[tuple[Any, ...], Any] = {}
    scalars: dict[str, Any] = {}  # attributes that all scalars have

    def block(self: Any, element_ty: Any, shape: Any) -> None:
        sides = tuple(shape)
        known = blocks.get((element_ty.name, sides))
        if known is None:
            init_block(self, element_ty, shape)
            self.shape = shapes.setdefault(tuple(self.shape), self.shape)
            known = blocks[element_ty.name, sides] = {**vars(self), "of_tensors": {}}
        self.__dict__.update(known, element_ty=element_ty)

    def tensor(self: Any, handle: Any, type: Any) -> None:
        known = type.of_tensors if isinstance(type, core.block_type) else scalars
        if not known:
            init_tensor(self, handle, type)
            known.update((name, vars(self)[name]) for name in ("shape", "numel"))
        self.__dict__.update(known, handle=handle, type=type, dtype=type.scalar)

    core.block_type.__init__, core.tensor.__init__ = block, tensor
    equal, broadcast = core.dtype.__eq__, semantic.broadcast_impl_value

    def broadcast_others(one: Any, other: Any) -> Any:
        alike = getattr(one.type, "shape", None) is getattr(other.type, "shape", None)
        return (one, other) if alike else broadcast(one, other)

    core.dtype.__eq__ = lambda self, other: self is other or equal(self, other)
    semantic.broadcast_impl_value = broadcast_others
