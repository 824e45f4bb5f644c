"""Vector functions on ARM64, by compiling them for it here: arithmetic in Neon's registers, none of it scalar."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import llvmlite.binding as llvm
import llvmlite.ir as ir
import pytest
from numba.core import types

from picstore.kernels import simd

# The most instructions that each may have; AVX2, of twice the width, takes 368, 74, 447, 105, 62, 77 and 116.
FUNCTIONS = {
    "jpeg.decoder.idct": {"inverse_dct": 760},
    "jpeg.decoder.ycc_to_rgb": {"_to_rgb": 110},
    "jpeg.encoder.fdct": {"forward_dct": 600},
    "jpeg.encoder.rgb_to_ycc": {"_convert_pixels": 110},
    "kernels.resample_passes": {"_transpose_columns": 90, "_sum_rows": 185, "_sum_columns": 180},
}
CASES = [(module, name, most) for module, names in FUNCTIONS.items() for name, most in names.items()]
I64 = ir.IntType(64)


@cache
def arm() -> llvm.TargetMachine:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple("aarch64-unknown-linux-gnu")
    return target.create_target_machine(cpu="neoverse-n1", opt=3)


def instructions(emit: Callable[..., Any], signature: Any) -> Counter[str]:
    """Count the instructions that LLVM makes for ARM64 of what a vector function emits."""
    module = ir.Module()
    module.triple, module.data_layout = arm().triple, str(arm().target_data)
    result = ir.VoidType() if signature.return_type == types.void else I64
    function = ir.Function(module, ir.FunctionType(result, [I64] * len(signature.args)), "function")
    builder = ir.IRBuilder(function.append_basic_block())
    value = emit(builder, *function.args)
    builder.ret_void() if value is None else builder.ret(value)
    parsed = llvm.parse_assembly(str(module))
    passes = llvm.create_pass_builder(arm(), llvm.create_pipeline_tuning_options(speed_level=3))
    passes.getModulePassManager().run(parsed, passes)
    return Counter(re.findall(r"^\t([a-z]\w*)\t", arm().emit_assembly(parsed), re.MULTILINE))


@pytest.mark.parametrize(("module", "name", "most"), CASES, ids=[name for _, name, _ in CASES])
def test_vectors_stay_in_the_registers_of_neon(
    monkeypatch: pytest.MonkeyPatch, module: str, name: str, most: int
) -> None:
    if not hasattr(llvm, "create_pass_builder"):
        pytest.skip("an LLVM before 15")
    monkeypatch.setattr(simd, "_X86", False)
    monkeypatch.setattr(simd, "intrinsic_function", lambda signature, emit: (emit, signature))
    spec = importlib.util.find_spec(f"picstore.{module}")
    assert spec is not None and spec.loader is not None
    fresh = importlib.util.module_from_spec(spec)  # beside the one that kernels are made of
    monkeypatch.setitem(sys.modules, spec.name, fresh)  # where dataclasses look for their module
    spec.loader.exec_module(fresh)
    counted = instructions(*getattr(fresh, name))
    assert sum(counted.values()) <= most, counted.most_common()
    between_registers = ("umov", "smov", "ldrb", "strb", "ldrh", "strh", "ldrsh", "csel", "cset")
    assert not [each for each in between_registers if counted[each]]
    loads = sum(counted[each] for each in ("ldr", "ldp", "ld1", "ld2", "ld3", "ldur"))
    assert loads < sum(counted.values()) / 3
