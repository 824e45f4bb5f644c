"""The kernels that the batches of a pipeline need, which are compiled before the first batch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from picstore.arrays import I64
from picstore.errors import UsageError
from picstore.jpeg.cut import cut_all
from picstore.jpeg.decoder.describe import describe_tiles, measure_tiles
from picstore.kernels.filters import BILINEAR
from picstore.storage.container_kernel import read_and_check
from picstore.storage.format.maps import PREFIX as MAP_PREFIX
from picstore.train.batching.batch_kernels import choose_boxes, draw_numbers, enter_records, place_crops
from picstore.train.batching.parameters import draws_by_kernel
from picstore.train.batching.spec import OutputSpec
from picstore.train.cpu import augmix_sum, canvas, noise, normalize, pointwise_color
from picstore.train.cpu.blur_sharpen_equalize import blur, equalize, sharpen, stretch_contrast
from picstore.train.cpu.canvas_positions import displace_positions, map_positions
from picstore.train.cpu.fused import DECODING, STAGES, run_fused
from picstore.train.cpu.targets import clip_polygon
from picstore.train.cpu.warp import apply_edges, warp, warp_map, warp_nearest
from picstore.train.cpu.warp_taps import warp_taps
from picstore.train.transforms import opcodes
from picstore.train.transforms.batch_random import BatchRandom
from picstore.train.transforms.color import ColorJitter, Normalize
from picstore.train.transforms.color_program import ColorProgram, compose_color
from picstore.train.transforms.crops import RandomHorizontalFlip, RandomResizedCrop
from picstore.train.transforms.geometry import Geometry
from picstore.train.transforms.transform_lists import compose
from picstore.train.transforms.transform_plan import TransformPlan, plan_transforms
from picstore.train.transforms.views import ViewGroup

# Number of assumed images for which parameters are drawn, to see which steps occur. A step of probability 0.05 stays
# unseen once in 500,000 trainings; its kernel is then compiled at its first use.
_DRAWS = 256
_SIZES = np.array([(640, 480), (480, 640), (200, 150), (1600, 1200)])  # (width, height) of the assumed images
_BOXES = np.array([[(20.0, 20.0, 120.0, 120.0), (30.0, 40.0, 140.0, 100.0)]])

_OF_STEPS = {
    opcodes.AUTOCONTRAST: [stretch_contrast],
    opcodes.EQUALIZE: [equalize],
    opcodes.SHARPNESS: [sharpen],
    opcodes.WARP: [map_positions],
    opcodes.ELASTIC: [displace_positions],
    opcodes.MIX: [augmix_sum.add_weighted],
    opcodes.NOISE: [noise.add_noise],
    opcodes.BLUR: [blur],
}
_GATHER = {opcodes.NEAREST: canvas.gather_nearest, opcodes.PILLOW_BICUBIC: canvas.gather_cubic}


def stream_kernels(plans: Sequence[TransformPlan]) -> list[Any]:
    """Return the kernels that cut streams for nvJPEG."""
    return [*_gathering(plans), cut_all]


def segment_kernels(plans: Sequence[TransformPlan]) -> list[Any]:
    """Return the kernels that describe tiles to a GPU, and those that decode images to check or replace its results."""
    return [*_gathering(plans), choose_boxes, measure_tiles, describe_tiles, cut_all, *DECODING]


def needed_kernels(plans: Sequence[TransformPlan], output: OutputSpec) -> list[Any]:
    """Return the kernels that the transforms need on the CPU, found by drawing parameters for ``_DRAWS`` images."""
    found = {*_gathering(plans), run_fused, *STAGES}
    for plan in plans:
        for group in plan.groups:
            with contextlib.suppress(UsageError):  # A transform may refuse images of the sizes ``_SIZES``.
                geometry, program = _draw(group)
                found |= {*_of_geometry(geometry, output), *_of_color(program, output)}
    return list(found)


def standard_kernels() -> list[Any]:
    """List the kernels of crops, flips, color changes and normalization on the CPU."""
    crops: list[Any] = [RandomResizedCrop(224), RandomHorizontalFlip()]
    plans = [plan_transforms(steps)[0] for steps in (crops, [*crops, ColorJitter(0.4), Normalize(0.5, 0.5)])]
    return [kernel for plan in plans for kernel in needed_kernels([plan], OutputSpec.from_plans([plan]))]


def _gathering(plans: Sequence[TransformPlan]) -> list[Any]:
    draws = any(draws_by_kernel(group) for plan in plans for group in plan.groups)
    return [read_and_check, enter_records, *([draw_numbers, place_crops] if draws else [])]


def _draw(group: ViewGroup) -> tuple[Geometry, ColorProgram]:
    ids: I64 = np.arange(_DRAWS)
    widths, heights = np.resize(_SIZES, (_DRAWS, 2)).T
    boxes = np.repeat(_BOXES, _DRAWS, axis=0) if group.needs_boxes else None
    draws = BatchRandom(0, 0, ids, ids * 0)
    geometry = compose(group.geometry, Geometry.identity(widths, heights, boxes), draws)
    return geometry, compose_color(group.color, geometry.size, draws)


def _of_geometry(geometry: Geometry, output: OutputSpec) -> Iterator[Any]:
    slanted = geometry.interpolation[~geometry.upright]
    if (slanted == BILINEAR).any():
        yield warp
    if (slanted != BILINEAR).any():
        yield warp_taps
    if geometry.shows_edges.any():
        yield apply_edges
    if "polygons" in output.targets:
        yield clip_polygon
    if set(output.targets) - {"boxes", "keypoints", "polygons", "extra"}:  # Others are attachments, perhaps masks.
        yield warp_nearest
    if any(name.startswith(MAP_PREFIX) for name in output.targets):
        yield warp_map


def _of_color(program: ColorProgram, output: OutputSpec) -> Iterator[Any]:
    steps = set(program.opcode.ravel().tolist()) - {opcodes.NOTHING}
    if any(step <= opcodes.LAST_POINTWISE for step in steps):
        yield pointwise_color.run_pointwise
    for step in steps:
        yield from _OF_STEPS.get(step, [])
    for step in steps & {opcodes.WARP, opcodes.ELASTIC}:
        for sampling in np.unique(program.operands[program.opcode == step][:, opcodes.SAMPLING]).tolist():
            yield _GATHER.get(sampling, canvas.gather_linear)
    if output.dtype != "uint8" or (output.channels_last and not program.empty):
        yield normalize.normalize_image
    if output.dtype == "uint8":
        return
    if opcodes.ERASE_RANDOM in steps:
        yield noise.fill_normals
    if output.dtype != "float32" and steps & {opcodes.ERASE, opcodes.ERASE_RANDOM}:
        yield normalize.round_floats
