"""Parameters that were drawn for an image, in words."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from picstore.arrays import F64
from picstore.train.transforms import opcodes
from picstore.train.transforms.color_program import ColorProgram
from picstore.train.transforms.geometry import Geometry

_NAMES: dict[int, Callable[[Sequence[float]], str]] = {
    opcodes.SCALE: lambda o: f"brightness × {o[0]:.3g}",
    opcodes.CONTRAST: lambda o: f"contrast × {o[0]:.3g}",
    opcodes.SATURATION: lambda o: f"saturation × {o[0]:.3g}" if o[0] else "grey",
    opcodes.HUE: lambda o: f"hue {360 * o[0]:+.0f}°",
    opcodes.SOLARIZE: lambda o: f"solarize from {o[0]:.0f}",
    opcodes.POSTERIZE: lambda o: f"posterize to {256 / o[0]:.0f} levels",
    opcodes.SOLARIZE_ADD: lambda o: f"add {o[0]:.0f} below {o[1]:.0f}",
    opcodes.PERMUTE: lambda _: "channels permuted",
    opcodes.AUTOCONTRAST: lambda _: "autocontrast",
    opcodes.EQUALIZE: lambda _: "equalize",
    opcodes.SHARPNESS: lambda o: f"sharpness × {o[0]:.3g}",
    opcodes.WARP: lambda o: _describe_warp(o),
    opcodes.ELASTIC: lambda o: f"elastic, {o[0]:.3g} and {o[1]:.3g} pixels",
    opcodes.MIX: lambda o: f"chain of weight {o[0]:.2f}",
    opcodes.NOISE: lambda o: f"noise of {o[1]:.3g} levels",
    opcodes.BLUR: lambda o: f"blur, σ {o[2]:.2f} pixels",
    opcodes.ERASE: lambda o: f"erased {_box(o)}",
    opcodes.ERASE_RANDOM: lambda o: f"noise in {_box(o)}",
}


def describe(geometry: Geometry, program: ColorProgram, row: int) -> list[str]:
    """Describe what is done to an image: where it was cut out, its turns, and the steps of color."""
    steps = zip(program.opcode[row].tolist(), program.operands[row].tolist(), strict=True)
    named = [_NAMES[code](operands) for code, operands in steps if code in _NAMES]
    return [*_describe_geometry(geometry, row), *named]


def frame_of(geometry: Geometry, row: int) -> list[list[float]]:
    """Corners of the region that becomes the output, in pixels of the image, clockwise from the output's left top."""
    across, down, corner = geometry.frame[row].T
    corners: F64 = np.stack([corner, corner + across, corner + across + down, corner + down])
    return np.round(corners, 2).tolist()  # type: ignore[no-any-return]


def normalization(program: ColorProgram, row: int) -> tuple[F64, F64]:
    """Means and deviations by which an image's values were normalized, float64 (3,) each; 0 and 1 if they were not."""
    found = np.flatnonzero(program.opcode[row] == opcodes.NORMALIZE)
    operands = program.operands[row, found[-1]] if len(found) else np.array([0, 0, 0, 1, 1, 1.0])
    return operands[:3], operands[3:6]


def _describe_geometry(geometry: Geometry, row: int) -> list[str]:
    if not geometry.upright[row]:
        (ax, ay), (bx, by) = geometry.frame[row, :, 0], geometry.frame[row, :, 1]
        turned = np.degrees(np.arctan2(ay, ax))
        sides = f"{np.hypot(ax, ay):.0f} × {np.hypot(bx, by):.0f}"
        mirrored = ["mirrored"] if ax * by - ay * bx < 0 else []
        return [sides, f"turned by {turned:.0f}°", *mirrored]
    left, top, across, down = geometry.box[row].tolist()
    flips = zip(geometry.flip[row].tolist(), ("mirrored", "upside down"), strict=True)
    return [
        f"{across:.0f} × {down:.0f} at {left:.0f}, {top:.0f}",
        *(name for flipped, name in flips if flipped),
    ]


def _describe_warp(operands: Sequence[float]) -> str:
    a, b, _, d, e, _, g, h = operands[:8]
    if g or h:
        return "perspective"
    if abs(a * a + d * d - 1) < 1e-3 and abs(a - e) < 1e-3 and abs(b + d) < 1e-3 and (b or d):
        return f"rotated by {np.degrees(np.arctan2(d, a)):.0f}°"
    return "sheared" if b or d else "shifted"


def _box(operands: Sequence[float]) -> str:
    left, top, right, bottom = operands[:4]
    return f"{right - left:.0f} × {bottom - top:.0f} at {left:.0f}, {top:.0f}"
