"""The two kernels. Each program makes one tile of one image; what it must do stands in the image's row of the table.

A batch is one launch of ``make_phase``, in which all is done: resampling, colour, the type and layout of the output.
Contrast and blur each take a further launch, a *phase*, which reads the levels that the one before has left; blur
takes one of ``blur_rows`` besides, for its horizontal half. Images that need fewer phases than others are done earlier.
"""

from __future__ import annotations

from picstore.train.cuda.color import blended, grey_of, nearest, run_steps, smoothed
from picstore.train.cuda.descriptor import (
    HEADER,
    NUMBERS,
    PHASES,
    ROWS,
    SIZE,
    STEP,
    STEPS,
    TARGET,
    TILE_HEIGHT,
    TILE_WIDTH,
    TILES,
    VALUES,
    WIDTH_OF_ROW,
    single,
    whole,
)
from picstore.train.cuda.resample import sampled
from picstore.train.cuda.triton_jit import device_function, kernel, tl
from picstore.train.transforms import opcodes

_CONTRAST = tl.constexpr(opcodes.CONTRAST)
_BLUR = tl.constexpr(opcodes.BLUR)


@kernel
def make_phase(table, phase, out, levels, rows, sums, FIRST: tl.constexpr, LAST: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803 - what picks code is in capitals
    """One phase of a batch.

    Args:
        table: see ``row.py``.
        phase: counts from 0.
        out: pointer to the outputs, uint8, float16, bfloat16 or float32.
        levels: uint8, twice as many as there are outputs: planes of what is to go on, of even phases and of odd ones.
        rows: float32, as many as outputs: what ``blur_rows`` has made.
        sums: int64 (phases, images), zero before phase 0: sums of grey levels.
        FIRST: whether this is phase 0, which resamples.
        LAST: whether the channels of the output come last.
    """
    row = _row(table)
    begin = whole(row, whole(row, PHASES) + phase)
    end = whole(row, whole(row, PHASES) + phase + 1)
    count = whole(row, STEPS + 1)
    if tl.program_id(0) >= whole(row, TILES):
        return
    if (phase > 0) & (begin == count):
        return
    y, x = _pixels(row)
    values = tl.load(table + VALUES)
    sums += tl.program_id(1)
    if FIRST:
        r, g, b = sampled(row, y, x)
        start = begin
    else:
        behind = levels + (phase + 1) % 2 * values + tl.load(row + TARGET)
        step = row + whole(row, STEPS) + begin * STEP
        if whole(step, 0) == _BLUR:
            r, g, b = _blurred_down(row, step, rows, y, x)
        else:
            total = tl.load(sums + (phase - 1) * tl.load(table + ROWS))
            r, g, b = _contrasted(row, step, behind, total, y, x)
        start = begin + 1
    r, g, b = run_steps(row, start, end, r, g, b, y, x)
    if end == count:
        _put(row, out + tl.load(row + TARGET), r, g, b, y, x, LAST)
    else:
        _put(row, levels + phase % 2 * values + tl.load(row + TARGET), r, g, b, y, x, False)
        if whole(row + whole(row, STEPS) + end * STEP, 0) == _CONTRAST:
            grey = tl.where(_inside(row, y, x), grey_of(r, g, b), 0.0).to(tl.int32)
            tl.atomic_add(sums + phase * tl.load(table + ROWS), tl.sum(grey).to(tl.int64))


@kernel
def blur_rows(table, phase, levels, rows):  # type: ignore[no-untyped-def]
    """The horizontal half of the blur of those images with which ``phase``, not 0, begins; arguments as above."""
    row = _row(table)
    begin = whole(row, whole(row, PHASES) + phase)
    if tl.program_id(0) >= whole(row, TILES):
        return
    if begin == whole(row, STEPS + 1):
        return
    step = row + whole(row, STEPS) + begin * STEP
    if whole(step, 0) != _BLUR:
        return
    y, x = _pixels(row)
    width, height = whole(row, SIZE), whole(row, SIZE + 1)
    target = tl.load(row + TARGET)
    source = levels + (phase + 1) % 2 * tl.load(table + VALUES) + target
    radius = single(step, NUMBERS).to(tl.int32)
    slope, weight = single(step, NUMBERS + 2), single(step, NUMBERS + 3)
    line = tl.minimum(y, height - 1) * width
    column = tl.minimum(x, width - 1)
    for channel in range(3):
        plane = channel * (width * height)
        line_of = smoothed(source + plane, line, column, width, 1, radius, slope, weight)
        tl.store(rows + target + plane + y * width + x, line_of, _inside(row, y, x))


@device_function
def _row(table):  # type: ignore[no-untyped-def]
    """This program's row."""
    return table + HEADER + tl.program_id(1) * tl.load(table + WIDTH_OF_ROW)


@device_function
def _pixels(row):  # type: ignore[no-untyped-def]
    """This program's pixels: int32 y (h, 1) and x (1, w)."""
    across = (whole(row, SIZE) + TILE_WIDTH - 1) // TILE_WIDTH
    tile = tl.program_id(0)
    y = tile // across * TILE_HEIGHT + tl.arange(0, TILE_HEIGHT)
    x = tile % across * TILE_WIDTH + tl.arange(0, TILE_WIDTH)
    return y[:, None], x[None, :]


@device_function
def _inside(row, y, x):  # type: ignore[no-untyped-def]
    return (y < whole(row, SIZE + 1)) & (x < whole(row, SIZE))


@device_function
def _put(row, out, r, g, b, y, x, LAST: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """Store a tile, rounded to the type of ``out``."""
    width, height = whole(row, SIZE), whole(row, SIZE + 1)
    inside = _inside(row, y, x)
    pixel = y * width + x
    if LAST:
        pixel *= 3
        plane = 1
    else:
        plane = width * height
    tl.store(out + pixel, _as(r, out), inside)
    tl.store(out + pixel + plane, _as(g, out), inside)
    tl.store(out + pixel + 2 * plane, _as(b, out), inside)


@device_function
def _as(value, out):  # type: ignore[no-untyped-def]
    """Values in the type of ``out``, to the nearest, ties to even."""
    if out.dtype.element_ty == tl.bfloat16:
        bits = value.to(tl.uint32, bitcast=True)  # written out, as Triton's interpreter cuts bits off
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return bits.to(tl.uint16).to(tl.bfloat16, bitcast=True)
    else:  # noqa: RET505 - the compiler takes one branch or the other
        return value.to(out.dtype.element_ty)


@device_function
def _contrasted(row, step, levels, total, y, x):  # type: ignore[no-untyped-def]
    """The levels of the phase before, away from or towards their mean grey level."""
    width, height = whole(row, SIZE), whole(row, SIZE + 1)
    inside = _inside(row, y, x)
    pixel = levels + y * width + x
    plane = width * height
    mean = (total.to(tl.float64) / plane.to(tl.float64)).to(tl.float32)
    factor, offset = single(step, NUMBERS), mean * single(step, NUMBERS + 1)
    r = blended(tl.load(pixel, inside, 0).to(tl.float32), factor, offset)
    g = blended(tl.load(pixel + plane, inside, 0).to(tl.float32), factor, offset)
    b = blended(tl.load(pixel + 2 * plane, inside, 0).to(tl.float32), factor, offset)
    return r, g, b


@device_function
def _blurred_down(row, step, rows, y, x):  # type: ignore[no-untyped-def]
    """The vertical half of a blur."""
    width, height = whole(row, SIZE), whole(row, SIZE + 1)
    source = rows + tl.load(row + TARGET)
    radius = single(step, NUMBERS + 1).to(tl.int32)
    slope, weight = single(step, NUMBERS + 2), single(step, NUMBERS + 4)
    line = tl.minimum(y, height - 1)
    column = tl.minimum(x, width - 1)
    plane = width * height
    r = smoothed(source, column, line, height, width, radius, slope, weight)
    g = smoothed(source + plane, column, line, height, width, radius, slope, weight)
    b = smoothed(source + 2 * plane, column, line, height, width, radius, slope, weight)
    return nearest(r), nearest(g), nearest(b)
