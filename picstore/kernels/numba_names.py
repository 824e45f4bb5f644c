"""All private names of numba that picstore uses, because any release of numba may remove a private name.

Each name belongs to a group, which is used only if numba has all of the group's names. Without a group, picstore
compiles with numba's public names: results are the same, and ``_COSTS`` says what is slower.
"""

from __future__ import annotations

import importlib
import sys
from functools import cache
from typing import Any

import numba

CACHE, LINKING, CALLS = "cache", "linking", "calls"
# Names of attributes in numba that picstore uses, by group and by owner. An owner is a module, or an object that
# ``_find_owner`` finds by a word, such as "codegen".
_ATTRIBUTES: dict[str, dict[str, str]] = {
    CACHE: {
        "dispatcher": "_cache compile overloads targetctx",
        "context": "codegen",
        "codegen": "magic_tuple",
        "numba.core.compiler": "CompileResult",
        "result": "_reduce _rebuild library target_context",
        "numba.core.runtime": "rtsys",
        "rtsys": "initialize",
        "numba.core.serialize": "dumps",
        "numba.core.sigutils": "normalize_signature",
    },
    LINKING: {
        "dispatcher": "compile targetctx",
        "context": "codegen",
        "codegen": "_library_class _data_layout _engine create_library set_env",
        "engine": "is_symbol_defined _defined_symbols",
        "library": "_codegen _final_module _shared_module _finalized _unserialize _optimize_functions "
        "_optimize_final_module _finalize_final_module _finalize_dynamic_globals _get_module_for_linking "
        "_set_compiled_object enable_object_caching serialize_using_object_code",
    },
    CALLS: {
        "dispatcher": "compile overloads targetctx",
        "context": "call_conv cast",
        "convention": "get_function_type call_function return_status_propagate",
        "numba.core.compiler": "CompileResult",
        "result": "library fndesc",
        "library": "get_pointer_to_function",
        "numba.core.sigutils": "normalize_signature",
    },
}
NAMES = {
    group: tuple(f"{owner}.{name}" for owner, names in owners.items() for name in names.split())
    for group, owners in _ATTRIBUTES.items()
}
_MISSING = object()
_COSTS = {
    CACHE: "each process compiles its kernels anew",
    LINKING: "kernels take longer to compile",
    CALLS: "kernels take longer to compile",
}
# Undocumented options of ``numba.njit``: two omit the wrappers for calls from Python; the third tells LLVM to inline.
OPTIONS = "no_cpython_wrapper", "no_cfunc_wrapper", "forceinline"


@cache
def available(group: str) -> bool:
    """Return whether numba has all names of a group of ``NAMES``; if not, print on stderr what will be slower."""
    missing = [name for name in NAMES[group] if find(name, _MISSING) is _MISSING]
    if missing and sys.stderr is not None:
        text = f"numba {numba.__version__} has no {', '.join(missing)}: {_COSTS[group]}"
        print(f"picstore: {text}; an earlier numba has it", file=sys.stderr, flush=True)
    return not missing


def find(name: str, otherwise: Any = None) -> Any:
    """Return the object with a name from ``NAMES``; return ``otherwise`` if numba does not have it."""
    owner, _, attribute = name.rpartition(".")
    try:
        return getattr(_find_owner(owner), attribute)
    except (ImportError, AttributeError):
        return otherwise


def _find_owner(name: str) -> Any:
    if name.startswith("numba."):
        return importlib.import_module(name)
    if name == "dispatcher":
        return _probe()
    if name == "result":
        return find("numba.core.compiler.CompileResult")
    if name == "library":
        return _library()
    made_by = {
        "context": "dispatcher.targetctx",
        "engine": "codegen._engine",
        "convention": "context.call_conv",
        "rtsys": "numba.core.runtime.rtsys",
    }
    if name == "codegen":
        make = find("context.codegen")
        return make and make()
    return find(made_by[name])


@cache
def _probe() -> Any:
    """Return numba's dispatcher of a function that is never compiled, to look up the attributes of dispatchers."""

    def nothing() -> None: ...

    return numba.njit(nothing)


@cache
def _library() -> Any:
    create = find("codegen.create_library")
    return create and create("picstore")


@cache
def device_options() -> dict[str, Any]:
    """Return the options of ``numba.njit`` for functions that only kernels call, if this numba has them."""
    known = find("numba.core.cpu.CPUTargetOptions")
    return {"nogil": True, **{name: True for name in OPTIONS[:2] if hasattr(known, name)}}


@cache
def inline_options() -> dict[str, Any]:
    """Return the options of ``numba.njit`` for functions that LLVM copies into their callers."""
    known = find("numba.core.cpu.CPUTargetOptions")
    return {**device_options(), **{name: True for name in OPTIONS[2:] if hasattr(known, name)}}
