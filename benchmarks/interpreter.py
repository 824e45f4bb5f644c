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
    a table of types for each result. NumPy 2.4 and newer run with Triton 3.6 too.
    """
    if os.environ.get("TRITON_INTERPRET") != "1" or not find_spec("triton"):
        return
    from triton.runtime import interpreter

    patch = interpreter._patch_lang
    patched: set[int] = set()  # modules of Triton's language in the launch that runs

    def patch_once(function: Any) -> Any:
        language = {id(each) for each in function.__globals__.values() if inspect.ismodule(each)}
        language &= {id(interpreter.tl), id(interpreter.tl.core)}
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
