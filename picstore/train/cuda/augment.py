"""Augmentation of decoded images on a GPU: the host's side of the kernels.

A batch, or several, takes one table of descriptors, copied to the GPU at once, and two launches: filter weights, and
pixels. Minified slanted images add two launches, and each color step that reads other pixels adds one or two launches.
The host never waits for the GPU. Only this package imports Triton, and it is imported only if images are on a GPU.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from picstore.arrays import I64
from picstore.errors import UsageError, counted
from picstore.train.cuda.augment_kernels import blur_rows, displace_rows, make_tables, run_phase
from picstore.train.cuda.augment_layout import COUNTS, MIXED, ORIGINALS, TABLES, WEIGHTS
from picstore.train.cuda.augment_table import (
    CANVAS_STEPS,
    ROW_STEPS,
    TABLE_STEPS,
    ColorPhases,
    DescriptorTable,
    make_descriptor_table,
)
from picstore.train.cuda.decoded import MAX_VALUES, DecodedImages
from picstore.train.cuda.gpu_filter_weights import LANES, make_weights
from picstore.train.cuda.resample_params import ResampleParams, make_resample_params, minify_slanted
from picstore.train.cuda.triton_jit import launching
from picstore.train.transforms import opcodes
from picstore.train.transforms.color_program import ColorProgram
from picstore.train.transforms.geometry import Geometry
from picstore.train.transforms.opcodes import OutputDtype
from picstore.train.transforms.padding_and_edges import CONSTANT, border_indices

_COUNTS = 3 * 256  # number of counters of an image's pixels: one for each level of each channel
_MAX_IMAGES = (1 << 16) - 1  # CUDA's limit for the second dimension of a grid, which counts images
# Launch options of the augmentation kernels. Multiplications and additions are not fused, because a fused operation
# rounds once but the CPU's kernels round twice, and colors must equal the CPU's.
OPTIONS = {"num_warps": 4, "num_stages": 1, "enable_fp_fusion": False}
# Launch options of phase 0, which resamples. With at most 80 registers a thread, 6 programs fit on a multiprocessor;
# without a limit, bicubic warps take 96; with 72, registers spill on sm_80. AMD's compiler has no option for a limit.
FIRST_OPTIONS = OPTIONS if torch.version.hip else {**OPTIONS, "maxnreg": 80}


def augment(
    images: Sequence[torch.Tensor] | DecodedImages,
    origins: npt.ArrayLike,
    geometry: Geometry,
    program: ColorProgram,
    *,
    dtype: str = "uint8",
    channels_last: bool = False,
    factors: npt.ArrayLike = 1,
    counts: Sequence[int] | None = None,
) -> Any:
    """Resample images and run their color programs, on the current stream of the images' GPU.

    Pixels equal those of ``cpu.render.render`` and ``cpu.run_color.run_color`` bit for bit.

    Args:
        images: n images on one device, uint8 (3, h, w), or (1, h, w) for grey, with contiguous rows. Each covers at
            least its ``geometry.reach``. Memory allocated on another stream must stay unchanged until the current
            stream has run the kernels.
        origins: int (n, 2), left and top of the decoded pixels, in source pixels.
        dtype: dtype of the outputs: uint8, float16, bfloat16 or float32.
        channels_last: whether the outputs' channels come last in memory.
        factors: int (n,) or one for all, factors by which decoding divided the sides.
        counts: number of images of each batch if the images are those of several batches. Each batch's outputs then
            have a block of memory of their own.

    Returns:
        A tensor (n, 3, H, W), or a list of n tensors (3, h, w) in one block of memory if sizes differ; with ``counts``,
        a list of such results, one for each batch.

    Raises:
        UsageError: an argument has a value, shape, dtype, layout or device that is not possible.
        MissingDependency: Triton is not installed; the import of this module raises it.
    """
    output = OutputDtype.from_dtype(dtype)
    origins = np.asarray(origins, dtype=np.int64)
    count = len(images)
    if not 0 < count <= _MAX_IMAGES or len(geometry.size) != count or len(program.opcode) != count:
        raise UsageError(
            f"there are {counted(count, 'image')}, {len(geometry.size)} geometries and {len(program.opcode)} programs; "
            f"give one of each for every image, 1 to {_MAX_IMAGES}"
        )
    if origins.shape != (count, 2):
        raise UsageError(f"origins have shape {origins.shape}; give left and top for each of {counted(count, 'image')}")
    decoded = images if isinstance(images, DecodedImages) else DecodedImages.from_tensors(images)
    decoded, corners = _with_borders(decoded, origins, geometry)
    by = np.broadcast_to(np.asarray(factors, dtype=np.int64), count)
    params = make_resample_params(geometry, decoded.planes, decoded.sizes, corners, by)
    sizes = np.split(geometry.size, np.cumsum(counts)[:-1]) if counts else [geometry.size]
    made = [_outputs(each, output, channels_last, decoded.device) for each in sizes]
    memory, results = zip(*made, strict=True)
    batch = memory[0]
    phases = ColorPhases.from_program(program, geometry.size, floats=output != OutputDtype.UINT8)
    with torch.cuda.device(batch.device) if batch.is_cuda else contextlib.nullcontext():
        indices, minified, params = minify_slanted(params, geometry, corners, by)
        if len(indices) == 0:
            _launch_all([(_table(params, phases, memory), batch, channels_last)])
            return list(results) if counts else results[0]
        first = make_descriptor_table(minified, ColorPhases.empty(len(indices)))
        pixels = torch.empty(first.values, dtype=torch.uint8, device=batch.device)
        planes = params.planes.copy()
        plane_sizes = params.source_size[indices].prod(axis=1)
        planes[indices] = np.stack(
            [pixels.data_ptr() + first.offsets, plane_sizes, params.source_size[indices, 0]], axis=1
        )
        first.place_outputs(pixels.data_ptr() + first.offsets)
        second = _table(replace(params, planes=planes), phases, memory)
        _launch_all([(first, pixels, False), (second, batch, channels_last)])
    return list(results) if counts else results[0]


def _table(params: ResampleParams, phases: ColorPhases, memory: Sequence[torch.Tensor]) -> DescriptorTable:
    """Build all images' descriptor table with each output's address; outputs fill the tensors ``memory`` in order."""
    table = make_descriptor_table(params, phases)
    begins = np.cumsum([0, *(block.numel() for block in memory)])
    of = np.searchsorted(begins, table.offsets, side="right") - 1
    addresses = np.array([block.data_ptr() for block in memory])
    table.place_outputs(addresses[of] + memory[0].element_size() * (table.offsets - begins[of]))
    return table


def _with_borders(images: DecodedImages, origins: I64, geometry: Geometry) -> tuple[DecodedImages, I64]:
    """Replace each image whose padding repeats or mirrors its border by the used part of the padded image.

    Return all n images, replaced or not, and each image's left and top in source pixels, int64 (n, 2).
    """
    others = np.flatnonzero(geometry.border != CONSTANT).tolist()
    if not others:
        return images, origins
    slots, made, origins = [], [], origins.copy()
    for slot in others:
        left, top, right, bottom = geometry.window[slot].tolist()
        width, height = geometry.source_size[slot].tolist()
        if left < right and top < bottom:
            border, (x, y), image = int(geometry.border[slot]), origins[slot], images[slot]
            rows = torch.from_numpy(border_indices(top, bottom, height, border) - y).to(image.device)
            columns = torch.from_numpy(border_indices(left, right, width, border) - x).to(image.device)
            slots.append(slot)
            made.append(image[:, rows][:, :, columns].contiguous())
            origins[slot] = left, top
    return images.replaced(slots, made), origins


def _outputs(
    sizes: I64, output: OutputDtype, channels_last: bool, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor | list[torch.Tensor]]:
    """Allocate outputs; return their memory as a tensor, and the outputs: this tensor, or a list if sizes differ."""
    values = 3 * sizes[:, 0] * sizes[:, 1]
    if values.min() <= 0 or values.max() >= MAX_VALUES:
        found = np.unique(sizes, axis=0).tolist()
        raise UsageError(f"outputs have sizes {found}; each needs at least a pixel and below {MAX_VALUES} values")
    dtype = getattr(torch, output.name.lower())
    if (sizes == sizes[0]).all():
        width, height = sizes[0].tolist()
        layout = torch.channels_last if channels_last else torch.contiguous_format
        made = torch.empty((len(sizes), 3, height, width), dtype=dtype, device=device, memory_format=layout)
        return made, made
    memory = torch.empty(int(values.sum()), dtype=dtype, device=device)
    images = []
    for image, (width, height) in zip(torch.split(memory, values.tolist()), sizes.tolist(), strict=True):
        pixels = image.view(height, width, 3).permute(2, 0, 1) if channels_last else image.view(3, height, width)
        images.append(pixels)
    return memory, images


def _launch_all(jobs: Sequence[tuple[DescriptorTable, torch.Tensor, bool]]) -> None:
    """Copy the descriptor tables of all jobs to the device at once, then launch the jobs in turn.

    A job is a descriptor table, the tensor for its outputs, and whether the outputs' channels come last.
    """
    device = jobs[0][1].device
    held = [_allocate_workspace(table, device) for table, _, _ in jobs]
    ends = list(accumulate((table.size for table, _, _ in jobs), initial=0))
    packed = torch.empty(ends[-1], dtype=torch.int64, pin_memory=device.type == "cuda")
    for (table, _, _), start, end in zip(jobs, ends, ends[1:], strict=False):
        table.write(packed.numpy()[start:end])
    # ``packed`` may be freed while this copy runs, because torch reuses page-locked memory only after copies from it.
    split = torch.split(packed.to(device, non_blocking=True), [table.size for table, _, _ in jobs])
    with launching():
        for (table, out, channels_last), words in zip(jobs, split, strict=True):
            _launch(table, words, out, channels_last)
    # Free the workspaces only after the launches: torch then gives their memory only to later work on this stream.
    held.clear()


def _allocate_workspace(table: DescriptorTable, device: torch.device) -> list[torch.Tensor]:
    """Allocate memory for filter weights, histograms and AugMix's sums; write the addresses to the table's header.

    Return the memory as tensors, which must not be freed before the kernels are launched.
    """
    starts = frozenset[int]().union(*table.starts)
    workspace = {WEIGHTS: torch.zeros(table.weights, dtype=torch.int32, device=device)}
    if starts & TABLE_STEPS:
        counts = len(table.starts) * table.count * _COUNTS
        workspace[COUNTS] = torch.zeros(counts, dtype=torch.int32, device=device)
        workspace[TABLES] = torch.empty(table.count * _COUNTS, dtype=torch.uint8, device=device)
    if opcodes.MIX in starts:
        workspace[MIXED] = torch.empty(table.values, dtype=torch.float32, device=device)
        workspace[ORIGINALS] = torch.empty(table.values, dtype=torch.uint8, device=device)
    for word, part in workspace.items():
        table.header[word.value] = part.data_ptr()
    return [*workspace.values()]


def _launch(table: DescriptorTable, words: torch.Tensor, out: torch.Tensor, channels_last: bool) -> None:
    """Launch the kernels for all images of a descriptor table, phase by phase; ``words`` is the table on the device."""
    device, several = out.device, len(table.starts) > 1
    passes = any(starts & ROW_STEPS for starts in table.starts)
    levels = torch.empty(2 * table.values if several else 0, dtype=torch.uint8, device=device)
    rows = torch.empty(table.values if passes else 0, dtype=torch.float32, device=device)
    sums = torch.zeros(len(table.starts) * table.count if several else 0, dtype=torch.int64, device=device)
    grid = (table.tiles, table.count)
    if table.weights:
        make_weights[(2, table.count)](words, LANES=LANES, **OPTIONS)
    for phase, starts in enumerate(table.starts):
        following = table.starts[phase + 1] if phase + 1 < len(table.starts) else frozenset()
        if opcodes.BLUR in starts:
            blur_rows[grid](words, phase, levels, rows, **OPTIONS)
        if opcodes.ELASTIC in starts:
            displace_rows[grid](words, phase, rows, **OPTIONS)
        if starts & TABLE_STEPS:
            make_tables[(1, table.count)](words, phase, **OPTIONS)
        canvas, counted = bool(starts & CANVAS_STEPS), bool(following & TABLE_STEPS)
        constants = {"FIRST": phase == 0, "CHANNELS_LAST": channels_last, "CANVAS": canvas, "COUNTED": counted}
        chosen = OPTIONS if phase else FIRST_OPTIONS
        run_phase[grid](words, phase, out, levels, rows, sums, **constants, **chosen)
