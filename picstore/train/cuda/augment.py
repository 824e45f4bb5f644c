"""Decoded images on a GPU to the batch: the host's side of the kernels.

What happens to the images of a batch is put into one table, which goes to the GPU in one copy; then all of it is one
launch, two where a picture is turned and made smaller, and one or two more where an image's mean or a blur is needed.
Nothing here waits for the GPU.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from picstore.errors import UsageError
from picstore.train.cuda.color_phases import Phases
from picstore.train.cuda.descriptor_table import Table, make_table
from picstore.train.cuda.kernels import blur_rows, make_phase
from picstore.train.cuda.resample_params import made_smaller, views_of
from picstore.train.cuda.triton_jit import INTERPRETED
from picstore.train.transforms.color_program import ColorProgram
from picstore.train.transforms.geometry import Geometry
from picstore.train.transforms.opcodes import OutputDtype

_MOST = 1 << 31  # values of one image: offsets in it are 32-bit integers
_MOST_IMAGES = (1 << 16) - 1  # CUDA's of a grid in its second direction
# Fused, a multiplication and an addition round once where the CPU rounds twice, and colour would differ.
_OPTIONS = {"num_warps": 4, "num_stages": 1, "enable_fp_fusion": False}


def augment(
    images: Sequence[torch.Tensor],
    origins: npt.ArrayLike,
    factors: npt.ArrayLike,
    geometry: Geometry,
    program: ColorProgram,
    *,
    dtype: str = "uint8",
    channels_last: bool = False,
    out: torch.Tensor | None = None,
) -> torch.Tensor | list[torch.Tensor]:
    """Resample and colour a batch, on the current stream of the images' GPU.

    The pixels are those of ``render`` and ``run_color`` within a level before colour; colour itself is the same to
    the bit, but for blur.

    Args:
        images: n of uint8 (3, h, w), or (1, h, w) for grey, contiguous, on one device: at least ``geometry.reach`` of
            each. Memory of another stream must stay as it is until this one has come here.
        origins: int (n, 2), left and top of what was decoded, in source pixels.
        factors: int (n,), by how much smaller it was decoded: 1, 2, 4 or 8.
        geometry: of the n images.
        program: of the n images.
        dtype: of the outputs: uint8, float16, bfloat16 or float32.
        channels_last: the layout of the outputs.
        out: (n, 3, H, W) of that type and layout, without gaps, where all outputs have one size; a new tensor where it
            is None.

    Returns:
        ``out``, or a list of n (3, h, w) where sizes differ, all in one piece of memory.

    Raises:
        UsageError: an argument is none of these.
        MissingDependency: Triton is not installed; raised when this module is imported.
    """
    finish = OutputDtype.from_dtype(dtype)
    origins, factors = np.asarray(origins, dtype=np.int64), np.asarray(factors, dtype=np.int64)
    count = len(images)
    if not 0 < count <= _MOST_IMAGES or len(geometry.size) != count or len(program.opcode) != count:
        raise UsageError(
            f"there are {count} images, {len(geometry.size)} geometries and {len(program.opcode)} programs; give one "
            f"of each for every image, 1 to {_MOST_IMAGES}"
        )
    if origins.shape != (count, 2) or factors.shape != (count,) or (factors < 1).any():
        raise UsageError(
            f"origins have the shape {origins.shape} and factors {factors.shape}; give a left, a top and a factor, at "
            f"least 1, for each of {count} images"
        )
    planes, source = _sources(images)
    views = views_of(geometry, planes, source, origins, factors)
    batch, pictures = _outputs(geometry, finish, channels_last, images[0].device, out)
    phases = Phases.of(program, geometry.size, floats=finish != OutputDtype.UINT8)
    with torch.cuda.device(batch.device) if batch.is_cuda else contextlib.nullcontext():
        which, smaller, onto = made_smaller(views, geometry, origins, factors)
        if len(which) == 0:
            _run_all([(make_table(onto, phases), batch, channels_last)])
            return pictures
        small = make_table(smaller, Phases.none(len(which)))
        pixels = torch.empty(small.values, dtype=torch.uint8, device=batch.device)
        planes = onto.planes.copy()
        planes[which] = np.stack([pixels.data_ptr() + small.targets, onto.source[which].prod(axis=1)], axis=1)
        table = make_table(replace(onto, planes=planes), phases)
        _run_all([(small, pixels, False), (table, batch, channels_last)])
    return pictures


def _sources(images: Sequence[torch.Tensor]) -> tuple[Any, Any]:
    """Addresses and distances of planes, int64 (n, 2), and widths and heights, (n, 2)."""
    device = images[0].device
    if device.type != ("cpu" if INTERPRETED else "cuda"):
        where = "the CPU, as TRITON_INTERPRET is set" if INTERPRETED else "a GPU"
        raise UsageError(f"the images are on {device}; kernels take them on {where}")
    rows = []
    for image in images:
        planes, height, width = image.shape if image.dim() == 3 else (0, 0, 0)
        known = planes in (1, 3) and image.dtype is torch.uint8 and image.is_contiguous() and image.device == device
        if not known or not 0 < height * width < _MOST:
            raise UsageError(
                f"an image is {image.dtype} {tuple(image.shape)} on {image.device}; give contiguous uint8 of shape "
                f"(3, height, width) or (1, height, width), not empty, all on {device}"
            )
        rows.append((image.data_ptr(), height * width if planes == 3 else 0, width, height))
    table = np.array(rows, dtype=np.int64)
    return table[:, :2].copy(), table[:, 2:].copy()


def _outputs(
    geometry: Geometry, finish: OutputDtype, channels_last: bool, device: torch.device, out: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | list[torch.Tensor]]:
    """The memory to write to, image after image without gaps, and what of it is returned."""
    sizes, values = geometry.size, 3 * geometry.size.prod(axis=1)
    width, height = sizes[0].tolist()
    if (values <= 0).any() or (values >= _MOST).any():
        found = np.unique(sizes, axis=0).tolist()
        raise UsageError(f"outputs have the sizes {found}; make each of them a pixel or more, below {_MOST} values")
    dtype = getattr(torch, finish.name.lower())
    if (sizes != sizes[0]).any():
        if out is not None:
            found = np.unique(sizes, axis=0).tolist()
            raise UsageError(
                f"outputs have the sizes {found}, out has one; leave it away, or end the list with a transform that "
                "gives all the same size"
            )
        memory = torch.empty(int(values.sum()), dtype=dtype, device=device)
        return memory, _split(memory, sizes.tolist(), channels_last)
    shape = (len(sizes), 3, height, width)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    if out is None:
        out = torch.empty(shape, dtype=dtype, device=device, memory_format=layout)
    if out.shape != shape or out.dtype != dtype or out.device != device or not out.is_contiguous(memory_format=layout):
        raise UsageError(
            f"out is {out.dtype} {tuple(out.shape)} on {out.device}; give {dtype} {shape} on {device}, "
            f"{'with the channels last' if channels_last else 'contiguous'}"
        )
    return out, out


def _split(memory: torch.Tensor, sizes: list[list[int]], channels_last: bool) -> list[torch.Tensor]:
    """Pictures (3, h, w) that lie one after the other."""
    parts = torch.split(memory, [3 * width * height for width, height in sizes])
    if channels_last:
        pairs = zip(parts, sizes, strict=True)
        return [part.view(height, width, 3).permute(2, 0, 1) for part, (width, height) in pairs]
    return [part.view(3, height, width) for part, (width, height) in zip(parts, sizes, strict=True)]


def _run_all(jobs: Sequence[tuple[Table, torch.Tensor, bool]]) -> None:
    """Make outputs after outputs; their tables go to the device in one copy, for which nobody waits."""
    device = jobs[0][1].device
    sizes = [table.words.size for table, _, _ in jobs]
    packed = torch.empty(sum(sizes), dtype=torch.int64, pin_memory=device.type == "cuda")
    np.concatenate([table.words for table, _, _ in jobs], out=packed.numpy())
    # torch keeps page-locked memory from being reused until the copy is done.
    words = torch.split(packed.to(device, non_blocking=True), sizes)
    for (table, out, channels_last), its_words in zip(jobs, words, strict=True):
        _run(table, its_words, out, channels_last)


def _run(table: Table, words: torch.Tensor, out: torch.Tensor, channels_last: bool) -> None:
    """Launch all phases."""
    device, several = out.device, len(table.blurs) > 1
    levels = torch.empty(2 * table.values if several else 0, dtype=torch.uint8, device=device)
    rows = torch.empty(table.values if any(table.blurs) else 0, dtype=torch.float32, device=device)
    sums = torch.zeros(len(table.blurs) * table.count if several else 0, dtype=torch.int64, device=device)
    grid = (table.tiles, table.count)
    for phase, blurs in enumerate(table.blurs):
        if blurs:
            blur_rows[grid](words, phase, levels, rows, **_OPTIONS)
        make_phase[grid](words, phase, out, levels, rows, sums, FIRST=phase == 0, LAST=channels_last, **_OPTIONS)
