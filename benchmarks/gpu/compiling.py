"""Kernels compiled for GPUs that need not be there: registers, spills, instructions."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.child import MissingError
from benchmarks.gpu.machine_code import longest_loop, parse
from benchmarks.harness import Row, Table
from benchmarks.options import Options

TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942")
_IMAGES = {"images": "*i64"}
# A name, a kernel, types of its arguments, its constants, and options of the launch.
Compiled = tuple[str, Any, dict[str, str], dict[str, int], dict[str, Any]]
# Types of the arguments of each kernel, and its constants on a GPU.
_STREAMS = {"data": "*u8", "segments": "*i32", **_IMAGES, "tables": "*i32", "coefficients": "*i16", "status": "*i32"}


def compiling(options: Options) -> Table:
    """Registers, bytes spilled and instructions of each kernel; Triton compiles without a GPU, and nothing runs."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        raise MissingError("TRITON_INTERPRET is set, with which Triton compiles nothing")
    import triton

    rows: list[Row] = []
    for target in TARGETS[1:2] if options.quick else TARGETS:
        for name, kernel, types, constants, options_ in [*_decoding(), *_augmentation()]:
            row: Row = {"target": target, "kernel": name}
            try:
                made = _compile(kernel, types, constants, options_, target)
                row |= _figures(made, target)
                if "SYMBOLS" in constants and target.startswith("sm_"):
                    row |= _per_symbol(made, constants["SYMBOLS"])
            except Exception as error:  # of Triton's backends: each has its own
                row["problem"] = str(error).strip().splitlines()[-1][:80]
            rows.append(row)
    return Table(f"triton {triton.__version__}, compiled without a GPU", rows)


def _decoding() -> list[Compiled]:
    from picstore.train.cuda import decode_tiles
    from picstore.train.cuda.gpu_huffman import decode_segments, make_tables, sum_differences
    from picstore.train.cuda.gpu_inverse_dct import inverse_dct
    from picstore.train.cuda.gpu_rgb import to_rgb

    tables = {"codes": "*u8", "places": "*i32", **_IMAGES, "tables": "*i32"}
    rounds = {"LANES": decode_tiles.LANES, "ROUNDS": decode_tiles.ROUNDS, "SYMBOLS": decode_tiles.SYMBOLS}
    counts = {"count": "i32", "image_count": "i32"}
    sums = {"segments": "*i32", **_IMAGES, "coefficients": "*i16", **counts}
    summed = {"SEGMENTS": decode_tiles.SEGMENTS, "BLOCKS": decode_tiles.SUMMED}
    samples = {**_IMAGES, "coefficients": "*i16", "quantization": "*i16", "planes": "*u8"}
    pixels = {**_IMAGES, "planes": "*u8", "pixels": "*u8"}
    tile = {"ROWS": decode_tiles.ROWS, "COLUMNS": decode_tiles.COLUMNS}
    return [
        (name, kernel, types, constants, {"num_warps": decode_tiles.WARPS[name.partition(",")[0]]})
        for name, kernel, types, constants in (
            ("make_tables", make_tables, tables, {"LANES": decode_tiles.ENTRIES}),
            ("decode_segments", decode_segments, {**_STREAMS, **counts}, rounds),
            ("sum_differences", sum_differences, sums, summed),
            ("inverse_dct", inverse_dct, samples, {"SIDE": 8, "LANES": decode_tiles.BLOCKS}),
            ("to_rgb", to_rgb, pixels, tile),
            *(
                (f"inverse_dct, {side} × {side}", inverse_dct, samples, {"SIDE": side, "LANES": decode_tiles.BLOCKS})
                for side in (4, 2, 1)
            ),
        )
    ]


def _augmentation() -> list[Compiled]:
    from picstore.train.cuda.augment import FIRST_OPTIONS, OPTIONS
    from picstore.train.cuda.augment_kernels import blur_rows, displace_rows, make_tables, run_phase
    from picstore.train.cuda.gpu_filter_weights import LANES, make_weights

    phase, scratch = {"table": "*i64", "phase": "i32"}, {"levels": "*u8", "rows": "*fp32"}

    def run(out: str, **constants: int) -> tuple[Any, dict[str, str], dict[str, int]]:
        picks = {"FIRST": 1, "CHANNELS_LAST": 0, "CANVAS": 0, "COUNTED": 0, **constants}
        return run_phase, {**phase, "out": out, **scratch, "sums": "*i64"}, picks

    cases = {
        "make_weights": (make_weights, {"table": "*i64"}, {"LANES": LANES}),
        "run_phase, uint8": run("*u8"),
        "run_phase, bfloat16, channels_last": run("*bf16", CHANNELS_LAST=1),
        "run_phase, a later one": run("*bf16", CHANNELS_LAST=1, FIRST=0),
        "run_phase, with a canvas": run("*bf16", CHANNELS_LAST=1, FIRST=0, CANVAS=1, COUNTED=1),
        "blur_rows": (blur_rows, {**phase, **scratch}, {}),
        "displace_rows": (displace_rows, {**phase, "rows": "*fp32"}, {}),
        "make_tables, of levels": (make_tables, phase, {}),
    }
    return [(name, *case, FIRST_OPTIONS if case[2].get("FIRST") else OPTIONS) for name, case in cases.items()]


def _compile(
    kernel: Any, types: dict[str, str], constants: dict[str, int], options: dict[str, Any], target: str
) -> dict[str, Any]:
    """Compile for a target; returns Triton's stages by name."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    source = ASTSource(
        fn=kernel, signature={**types, **dict.fromkeys(constants, "constexpr")}, constexprs=dict(constants)
    )
    cuda = target.startswith("sm_")
    chosen = GPUTarget("cuda", int(target[3:]), 32) if cuda else GPUTarget("hip", target, 64)
    made: dict[str, Any] = triton.compile(source, target=chosen, options=options).asm
    return made


def _per_symbol(made: dict[str, Any], symbols: int) -> Row:
    """Instructions of a symbol of the entropy-coded data, and cycles for which they hold a warp up besides loads."""
    instructions, cycles = longest_loop(parse(_disassemble(made["cubin"], "nvdisasm", "-c", "-hex")))
    return {"instructions a symbol": instructions / symbols, "cycles a symbol": cycles / symbols}


def _figures(made: dict[str, Any], target: str) -> Row:
    """Registers, spills and instructions of a compiled kernel."""
    if not target.startswith("sm_"):
        text = made["amdgcn"]
        numbers = dict(re.findall(r"\.(vgpr_count|vgpr_spill_count|sgpr_spill_count):\s+(\d+)", text))
        spilled = int(numbers["vgpr_spill_count"]) + int(numbers["sgpr_spill_count"])
        code = len(re.findall(r"^\s+[sv]_\w+|^\s+(?:global|flat|buffer|ds)_\w+", text, re.MULTILINE))
        return {"registers": int(numbers["vgpr_count"]), "spilled": spilled, "instructions": code}
    usage = _disassemble(made["cubin"], "cuobjdump", "--dump-resource-usage")
    code = len(re.findall(r"/\*[0-9a-f]{4,}\*/\s+\S", _disassemble(made["cubin"], "nvdisasm", "-c")))
    found = dict(re.findall(r"(REG|STACK|LOCAL):(\d+)", usage))
    return {"registers": int(found["REG"]), "spilled": int(found["STACK"]) + int(found["LOCAL"]), "instructions": code}


def _disassemble(cubin: bytes, tool: str, *arguments: str) -> str:
    """Run a tool of CUDA that Triton brings."""
    import triton

    path = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / tool
    with TemporaryDirectory() as folder:
        (Path(folder) / "kernel.cubin").write_bytes(cubin)
        command = [path, *arguments, Path(folder) / "kernel.cubin"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
