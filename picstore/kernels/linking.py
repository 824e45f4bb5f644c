"""Linking of functions into kernels without compiling each function to machine code.

At every level of calls, numba optimizes a function together with all functions that it calls, and compiles the result
to machine code. For functions that only kernels call, this work is wasted: 3.2 of 16 s for the kernels of a training.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cache
from typing import Any

from llvmlite.binding import parse_bitcode

from picstore.kernels.numba_names import LINKING, available

# Prefix that numba gives to the names of functions that Python can call.
_WRAPPER = "_ZN7cpython"


@cache
def _linked_library(library_class: Any) -> Any:  # noqa: C901 - a class, as numba's may not be there to be subclassed
    """Subclass ``library_class``, numba's class for one function's code, to compile only what Python can call.

    From a cached library (object of the class), only machine code is loaded; its bitcode is parsed only if LLVM must
    link it into another kernel. Parsing bitcode and looking up symbols took 25 of the 67 ms in which a training process
    loads its kernels.
    """

    class LinkedLibrary(library_class):  # type: ignore[misc]
        # Bitcode of a library that was loaded from the cache, until it is parsed; None for other libraries.
        _bitcode: bytes | None = None

        def serialize_using_object_code(self) -> tuple[str, str, Any]:
            name, kind, data = super().serialize_using_object_code()
            module = self._get_module_for_linking()
            defined = [each.name for each in (*module.functions, *module.global_variables) if not each.is_declaration]
            return name, kind, (*data, defined)

        @classmethod
        def _unserialize(cls, codegen: Any, state: tuple[str, str, Any]) -> Any:
            name, _, (code, bitcode, defined) = state
            library = codegen.create_library(name)
            library._bitcode = bitcode
            library.enable_object_caching()
            library._set_compiled_object(code)
            library._finalize_final_module()
            codegen._engine._defined_symbols.update(defined)
            return library

        def _get_module_for_linking(self) -> Any:
            if self._bitcode is not None:
                self._shared_module, self._bitcode = parse_bitcode(self._bitcode), None
            return super()._get_module_for_linking()

        def _is_called(self) -> bool:
            functions = self._final_module.functions
            return any(each.name.startswith(_WRAPPER) and not each.is_declaration for each in functions)

        def _optimize_functions(self, ll_module: Any) -> None:
            ll_module.data_layout = self._codegen._data_layout

        def _optimize_final_module(self) -> None:
            if self._is_called():
                super()._optimize_final_module()

        def _finalize_final_module(self) -> None:
            from_cache = self._bitcode is not None or self._shared_module is not None
            if from_cache or self._is_called():
                super()._finalize_final_module()
            else:
                self._finalize_dynamic_globals()
                self._finalized = True

    return LinkedLibrary


@contextlib.contextmanager
def linked_only(dispatcher: Any) -> Iterator[None]:
    """Make numba use :func:`_linked_library` within a ``with`` block. The caller lets only one thread compile."""
    codegen = dispatcher.targetctx.codegen() if available(LINKING) else None
    # Do nothing in a nested call, which compiles a kernel for another kernel: numba's methods are already replaced.
    if codegen is None or "set_env" in vars(codegen):
        yield
        return
    set_env = codegen.set_env

    def set_defined_env(name: str, env: Any) -> None:
        # Functions that Python cannot call have no machine code, and so no symbol for an ``Environment``.
        if codegen._engine.is_symbol_defined(name):
            set_env(name, env)

    codegen._library_class, codegen.set_env = _linked_library(codegen._library_class), set_defined_env
    try:
        yield
    finally:
        del codegen._library_class, codegen.set_env
