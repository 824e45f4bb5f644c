"""Execution of the color programs of ``color_program.py`` on the CPU, one image at a time, step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from picstore import rng
from picstore.arrays import F64, U8, Array
from picstore.errors import UsageError
from picstore.kernels.strided import strided_image
from picstore.train.cpu.augmix_sum import Mixture
from picstore.train.cpu.blur_sharpen_equalize import blur, equalize, sharpen, stretch_contrast
from picstore.train.cpu.canvas import move_pixels
from picstore.train.cpu.noise import add_noise, standard_normals
from picstore.train.cpu.normalize import bit_patterns, normalize_image
from picstore.train.cpu.pointwise_color import run_pointwise
from picstore.train.transforms import opcodes
from picstore.train.transforms.color_program import ColorProgram
from picstore.train.transforms.opcodes import OutputDtype

# Kernels of color steps by opcode: ``_OF_IMAGES`` for steps without operands, ``_OF_OPERANDS`` for the others.
_OF_IMAGES: dict[int, Callable[[U8], None]] = {opcodes.AUTOCONTRAST: stretch_contrast, opcodes.EQUALIZE: equalize}
_OF_OPERANDS: dict[int, Callable[[F64, int, int, U8], None]] = {opcodes.SHARPNESS: sharpen, opcodes.BLUR: blur}

# For each output dtype, the integer dtype in which kernels write the bits of values, and the dtypes that ``out`` may
# have; NumPy has no bfloat16, so 16-bit integers hold its bits.
_PATTERNS: dict[int, tuple[Any, tuple[Any, ...]]] = {
    OutputDtype.UINT8: (np.uint8, (np.dtype(np.uint8),)),
    OutputDtype.FLOAT32: (np.uint32, (np.dtype(np.float32), np.dtype(np.uint32))),
    OutputDtype.FLOAT16: (np.uint16, (np.dtype(np.float16), np.dtype(np.uint16), np.dtype(np.int16))),
    OutputDtype.BFLOAT16: (np.uint16, (np.dtype(np.uint16), np.dtype(np.int16))),
}


def run_color(program: ColorProgram, slot: int, image: U8, out: Array, dtype: OutputDtype) -> None:
    """Run the color steps of image ``slot`` without the GIL.

    Args:
        program, slot: color program of the batch, and index of the image.
        image: uint8 (3, H, W), overwritten; C-contiguous, unless the program is empty and ``image`` is ``out``.
        out: (3, H, W), any strides: uint8, float32, or 16-bit floats or their bits; ``image`` or separate memory.

    Raises:
        UsageError: an array has another dtype, shape or layout, or is empty.
    """
    steps = program.opcode_lists[slot]
    if image is out and dtype == OutputDtype.UINT8 and steps[0] == opcodes.NORMALIZE:
        return
    pattern, possible = _PATTERNS[dtype]
    if image.dtype != np.uint8 or image.ndim != 3 or len(image) != 3 or not image.flags.c_contiguous:
        raise UsageError(f"image is {image.dtype} {image.shape}; give contiguous uint8 of shape (3, height, width)")
    if out.dtype not in possible or out.shape != image.shape or image.size == 0:
        raise UsageError(f"out is {out.dtype} {out.shape}; give {dtype.name} {image.shape}, not empty")
    normalize = steps.index(opcodes.NORMALIZE)
    _run_on_levels(program, slot, normalize, image)
    bits = out if out.dtype == pattern else out.view(pattern)
    if image is not out:
        normalize_image(image, program.operands, slot, normalize, int(dtype), strided_image(bits))
    for step in range(normalize + 1, len(steps)):
        if steps[step] != opcodes.NOTHING:
            _erase(program, slot, step, dtype, bits)


def _run_on_levels(program: ColorProgram, slot: int, end: int, image: U8) -> None:
    """Run an image's steps before ``end`` in place, each kind by its kernel, so that only used kernels are compiled."""
    steps = program.opcode_lists[slot]
    mixture = Mixture(image)
    step = 0
    while step < end:
        begin, opcode = step, steps[step]
        step += 1
        if opcode <= opcodes.LAST_POINTWISE:
            while step < end and steps[step] <= opcodes.LAST_POINTWISE:
                step += 1
            run_pointwise(program.opcode, program.operands, slot, begin, step, image)
        elif opcode in _OF_IMAGES:
            _OF_IMAGES[opcode](image)
        elif opcode in _OF_OPERANDS:
            _OF_OPERANDS[opcode](program.operands, slot, begin, image)
        elif opcode == opcodes.NOISE:
            add_noise(program.operands, program.key, slot, begin, image)
        elif opcode in (opcodes.WARP, opcodes.ELASTIC):
            move_pixels(program, slot, begin, image)
        elif opcode == opcodes.MIX:
            mixture.add(*program.operands[slot, begin, :2].tolist())
        else:
            _erase(program, slot, begin, OutputDtype.UINT8, image)


def _erase(program: ColorProgram, slot: int, step: int, dtype: OutputDtype, out: Array) -> None:
    """Erase a box of ``out`` by NumPy, because a kernel would have to be compiled for each dtype and layout."""
    left, top, right, bottom = program.operands[slot, step, :4].astype(np.int64).tolist()
    box = out[:, max(top, 0) : max(bottom, 0), max(left, 0) : max(right, 0)]
    if program.opcode[slot, step] == opcodes.ERASE:
        color = program.operands[slot, step, 4:7].astype(np.float32)
        box[:] = bit_patterns(color, dtype)[:, None, None]
    elif dtype == OutputDtype.UINT8:
        levels = rng.bits(program.key[slot, step], np.arange(box.size)) >> np.uint64(56)
        box[:] = levels.reshape(box.shape)
    else:
        normals = standard_normals(int(program.key[slot, step]), box.size)
        box[:] = bit_patterns(normals, dtype).reshape(box.shape)
