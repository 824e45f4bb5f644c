"""Running programs of colour: the pixels of one image, step by step.

Apart from ``colour.py``, so that a process that only composes programs needs no compiler.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from picstore import rng
from picstore.arrays import U8, Array
from picstore.errors import UsageError
from picstore.kernels.strided import strided_image
from picstore.train.cpu.blur import blur
from picstore.train.cpu.noise import add_noise
from picstore.train.cpu.normalize import convert, patterns_of
from picstore.train.cpu.normals import standard_normals
from picstore.train.cpu.pointwise import run_pointwise
from picstore.train.transforms import opcodes
from picstore.train.transforms.color_program import Program
from picstore.train.transforms.opcodes import OutputDtype

# Arrays of bit patterns for each finish: their dtype, and which dtypes of the same size ``out`` may have.
_PATTERNS: dict[int, tuple[Any, tuple[Any, ...]]] = {
    OutputDtype.UINT8: (np.uint8, (np.dtype(np.uint8),)),
    OutputDtype.FLOAT32: (np.uint32, (np.dtype(np.float32), np.dtype(np.uint32))),
    OutputDtype.FLOAT16: (np.uint16, (np.dtype(np.float16), np.dtype(np.uint16), np.dtype(np.int16))),
    OutputDtype.BFLOAT16: (np.uint16, (np.dtype(np.uint16), np.dtype(np.int16))),
}


def develop(program: Program, slot: int, image: U8, out: Array, finish: OutputDtype) -> None:
    """Run the steps of image ``slot``: a kernel for each run of pointwise steps, noise and blur, without the GIL.

    Python takes 2 µs, and 1 µs for each kernel.

    Args:
        program: of the batch.
        slot: number of the image.
        image: uint8 (3, H, W), C-contiguous; overwritten. May be ``out`` itself, and then, where the program is
            empty, have any strides.
        out: (3, H, W), any strides, uint8, float32 or, as its bits, 16-bit integers; otherwise separate memory.
        finish: what ``out`` holds.

    Raises:
        UsageError: an array has another type, shape or layout, or is empty.
    """
    steps = program.codes[slot]
    if image is out and finish == OutputDtype.UINT8 and steps[0] == opcodes.NORMALIZE:
        return
    pattern, possible = _PATTERNS[finish]
    if image.dtype != np.uint8 or image.ndim != 3 or len(image) != 3 or not image.flags.c_contiguous:
        raise UsageError(f"image is {image.dtype} {image.shape}; give contiguous uint8 of shape (3, height, width)")
    if out.dtype not in possible or out.shape != image.shape or image.size == 0:
        raise UsageError(f"out is {out.dtype} {out.shape}; give {finish.name} {image.shape}, not empty")
    normalize = steps.index(opcodes.NORMALIZE)
    _run_levels(program, slot, normalize, image)
    bits = out if out.dtype == pattern else out.view(pattern)
    if image is not out:
        convert(image, program.value, slot, normalize, int(finish), strided_image(bits))
    for step in range(normalize + 1, len(steps)):
        if steps[step] != opcodes.NOTHING:
            _erase(program, slot, step, int(finish), bits)


def _run_levels(program: Program, slot: int, end: int, image: U8) -> None:
    """The steps before ``end``, in place. Kernels apart, so that those that no transform needs are not compiled."""
    steps = program.codes[slot]
    step = 0
    while step < end:
        begin, code = step, steps[step]
        step += 1
        if code <= opcodes.LAST_POINTWISE:
            while step < end and steps[step] <= opcodes.LAST_POINTWISE:
                step += 1
            run_pointwise(program.code, program.value, slot, begin, step, image)
        elif code == opcodes.NOISE:
            add_noise(program.value, program.key, slot, begin, image)
        elif code == opcodes.BLUR:
            blur(program.value, slot, begin, image)
        else:
            _erase(program, slot, begin, opcodes.BYTES, image)


def _erase(program: Program, slot: int, step: int, kind: int, out: Array) -> None:
    """Erase. Copying is left to NumPy, which needs no kernel for each type and layout."""
    left, top, right, bottom = program.value[slot, step, :4].astype(np.int64).tolist()
    part = out[:, max(top, 0) : max(bottom, 0), max(left, 0) : max(right, 0)]
    if program.code[slot, step] == opcodes.ERASE:
        color = program.value[slot, step, 4:7].astype(np.float32)
        part[:] = patterns_of(color, kind)[:, None, None]
    elif kind == opcodes.BYTES:
        levels = rng.bits(program.key[slot, step], np.arange(part.size)) >> np.uint64(56)
        part[:] = levels.reshape(part.shape)
    else:
        normals = standard_normals(int(program.key[slot, step]), part.size)
        part[:] = patterns_of(normals, kind).reshape(part.shape)
