"""A numba without some of its private names, as picstore's modules see it; numba itself goes on using them."""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any

from numba.core import callconv, codegen, compiler, cpu, dispatcher
from numba.core.runtime.nrt import rtsys

# The classes of the objects that ``picstore.kernels.numba_names`` names.
CLASSES = {
    "dispatcher": dispatcher.Dispatcher,
    "context": cpu.CPUContext,
    "codegen": codegen.JITCPUCodegen,
    "engine": codegen.JitEngine,
    "library": codegen.JITCodeLibrary,
    "convention": callconv.CPUCallConv,
    "rtsys": type(rtsys),
}
STAND_INS = {"result": (compiler, "CompileResult"), "options": (cpu, "CPUTargetOptions")}


def _asked_by_picstore() -> bool:
    return str(sys._getframe(2).f_globals.get("__name__", "")).startswith("picstore.")


def hide(full: str) -> None:
    """Hide a name, ``module.name`` or the attribute of an object."""
    owner, _, name = full.rpartition(".")
    if owner in STAND_INS:
        module, class_name = STAND_INS[owner]
        real = getattr(module, class_name)
        attributes = {each: getattr(real, each) for each in dir(real) if each != name and not each.startswith("__")}
        _hook_module(module, class_name, types.SimpleNamespace(**attributes))
    elif owner in CLASSES:
        _hook_class(CLASSES[owner], name)
    else:
        _hook_module(importlib.import_module(owner), name, None)


def _hook_class(owner: Any, name: str) -> None:
    original = owner.__getattribute__

    def get(self: Any, wanted: str) -> Any:
        if wanted == name and _asked_by_picstore():
            raise AttributeError(f"{wanted} is hidden")
        return original(self, wanted)

    owner.__getattribute__ = get


def _hook_module(module: Any, name: str, stand_in: Any) -> None:
    class Hooked(type(module)):  # type: ignore[misc]
        def __getattribute__(self, wanted: str) -> Any:
            if wanted == name and _asked_by_picstore():
                if stand_in is None:
                    raise AttributeError(f"{wanted} is hidden")
                return stand_in
            return super().__getattribute__(wanted)

    module.__class__ = Hooked
