"""The augmentation kernels that the host launches: each program makes one tile of one image, as its descriptor says.

One launch of ``run_phase`` resamples, runs color steps, and converts a batch to the output's dtype and layout. Each
step that reads other pixels begins a further launch, a *phase*, which reads the levels of the previous phase. Blur and
elastic displacement take one more launch for the horizontal pass, and equalization one for tables. Images with fewer
phases than others are finished earlier.
"""

from __future__ import annotations

from picstore.train.cuda.augment_layout import (
    COUNTS,
    IMAGES,
    MIXED,
    OFFSET,
    OPERANDS,
    ORIGINALS,
    OUTPUT,
    PHASES,
    SIZE,
    STEP,
    STEPS,
    TABLES,
    TILE_HEIGHT,
    TILE_WIDTH,
    TILES,
    VALUES,
    find_descriptor,
    load_f32,
    load_i32,
)
from picstore.train.cuda.gpu_canvas import displaced_row, looked_up, mixed, moved, sharpened
from picstore.train.cuda.gpu_color import blended, grey_of, rounded, run_steps, smoothed, smoothing_row
from picstore.train.cuda.gpu_resample import sampled
from picstore.train.cuda.triton_jit import device_function, kernel, tl
from picstore.train.transforms import opcodes

_CONTRAST, _BLUR = tl.constexpr(opcodes.CONTRAST), tl.constexpr(opcodes.BLUR)
_AUTOCONTRAST, _EQUALIZE = tl.constexpr(opcodes.AUTOCONTRAST), tl.constexpr(opcodes.EQUALIZE)
_SHARPNESS, _ELASTIC, _MIX = tl.constexpr(opcodes.SHARPNESS), tl.constexpr(opcodes.ELASTIC), tl.constexpr(opcodes.MIX)

_LEVELS, _PER_LEVEL = tl.constexpr(256), tl.constexpr(1 / 255)


@kernel
def run_phase(
    table,
    phase,
    out,
    levels,
    rows,
    sums,
    FIRST: tl.constexpr,
    CHANNELS_LAST: tl.constexpr,
    CANVAS: tl.constexpr,
    COUNTED: tl.constexpr,
):
    """Run one phase of all color programs: resampling, or a step that needs whole images, and then pointwise steps.

    Args:
        table: a table of descriptors, see ``augment_layout.py``.
        phase: number of the phase, from 0.
        out: pointer that only gives the outputs' dtype, uint8, float16, bfloat16 or float32.
        levels: uint8, twice the outputs' number of values: levels that even phases write, then those of odd phases.
        rows: float32, one for each value of the outputs: results of ``blur_rows`` and ``displace_rows``.
        sums: int64 (phases, images), zero before phase 0: sums of an image's grey levels after each phase.
        FIRST: whether this is phase 0, which resamples.
        CHANNELS_LAST: whether the channels of the output come last.
        CANVAS: whether the phase begins, in any image, with a step other than contrast and blur. Most transforms have
            no such step, and need a kernel with fewer registers.
        COUNTED: whether the next phase begins, in any image, with a step that needs the image's histogram.
    """
    descriptor = find_descriptor(table)
    begin = load_i32(descriptor, load_i32(descriptor, PHASES) + phase)
    end = load_i32(descriptor, load_i32(descriptor, PHASES) + phase + 1)
    count = load_i32(descriptor, STEPS + 1)
    if tl.program_id(0) >= load_i32(descriptor, TILES):
        return
    if (phase > 0) & (begin == count):
        return
    y, x = _pixels(descriptor)
    values = tl.load(table + VALUES)
    sums += tl.program_id(1)
    if FIRST:
        r, g, b = sampled(table, descriptor, y, x)
        start = begin
    else:
        previous = levels + (phase + 1) % 2 * values + tl.load(descriptor + OFFSET)
        step = descriptor + load_i32(descriptor, STEPS) + begin * STEP
        opcode = load_i32(step, 0)
        if opcode == _BLUR:
            r, g, b = _blurred_down(table, descriptor, step, rows, y, x)
        elif CANVAS and opcode != _CONTRAST:
            r, g, b = _canvas_step(table, descriptor, step, previous, rows, y, x)
        else:
            total = tl.load(sums + (phase - 1) * tl.load(table + IMAGES))
            r, g, b = _contrasted(descriptor, step, previous, total, y, x)
        start = begin + 1
    r, g, b = run_steps(descriptor, start, end, r, g, b, y, x)
    if end == count:
        address = tl.load(descriptor + OUTPUT).to(out.dtype)
        _store_tile(descriptor, address, r, g, b, y, x, CHANNELS_LAST)
    else:
        _store_tile(descriptor, levels + phase % 2 * values + tl.load(descriptor + OFFSET), r, g, b, y, x, False)
        following = load_i32(descriptor + load_i32(descriptor, STEPS) + end * STEP, 0)
        if COUNTED and (following == _EQUALIZE) | (following == _AUTOCONTRAST):
            _count_levels(table, descriptor, phase, r, g, b, y, x)
        if following == _CONTRAST:
            grey = tl.where(_inside(descriptor, y, x), grey_of(r, g, b), 0.0).to(tl.int32)
            tl.atomic_add(sums + phase * tl.load(table + IMAGES), tl.sum(grey).to(tl.int64))


@kernel
def blur_rows(table, phase, levels, rows):
    """For images whose ``phase`` begins with a blur, write ``levels``, blurred along rows, to ``rows``."""
    descriptor = find_descriptor(table)
    begin = load_i32(descriptor, load_i32(descriptor, PHASES) + phase)
    if tl.program_id(0) >= load_i32(descriptor, TILES):
        return
    if begin == load_i32(descriptor, STEPS + 1):
        return
    step = descriptor + load_i32(descriptor, STEPS) + begin * STEP
    if load_i32(step, 0) != _BLUR:
        return
    y, x = _pixels(descriptor)
    width, height = load_i32(descriptor, SIZE), load_i32(descriptor, SIZE + 1)
    offset = tl.load(descriptor + OFFSET)
    source = levels + (phase + 1) % 2 * tl.load(table + VALUES) + offset
    groups, weights = smoothing_row(table, step, 0)
    line = tl.minimum(y, height - 1) * width
    column = tl.minimum(x, width - 1)
    for channel in range(3):
        plane = channel * (width * height)
        blurred = smoothed(source + plane, line, column, width, 1, groups, weights)
        tl.store(rows + offset + plane + y * width + x, blurred, _inside(descriptor, y, x))


@kernel
def displace_rows(table, phase, rows):
    """For images whose ``phase`` begins with an elastic step, write its noise, blurred along rows, to ``rows``."""
    descriptor = find_descriptor(table)
    begin = load_i32(descriptor, load_i32(descriptor, PHASES) + phase)
    if tl.program_id(0) >= load_i32(descriptor, TILES):
        return
    if begin == load_i32(descriptor, STEPS + 1):
        return
    step = descriptor + load_i32(descriptor, STEPS) + begin * STEP
    if load_i32(step, 0) != _ELASTIC:
        return
    y, x = _pixels(descriptor)
    width, height = load_i32(descriptor, SIZE), load_i32(descriptor, SIZE + 1)
    line, column = tl.minimum(y, height - 1), tl.minimum(x, width - 1)
    pixel = rows + tl.load(descriptor + OFFSET) + y * width + x
    inside = _inside(descriptor, y, x)
    tl.store(pixel, displaced_row(table, step, 0, line, column, width, height), inside)
    tl.store(pixel + width * height, displaced_row(table, step, 1, line, column, width, height), inside)


@kernel
def make_tables(table, phase):
    """For images whose ``phase`` begins with autocontrast or equalize, compute each level's new value by channel."""
    descriptor = find_descriptor(table)
    begin = load_i32(descriptor, load_i32(descriptor, PHASES) + phase)
    if begin == load_i32(descriptor, STEPS + 1):
        return
    opcode = load_i32(descriptor + load_i32(descriptor, STEPS) + begin * STEP, 0)
    if (opcode != _EQUALIZE) & (opcode != _AUTOCONTRAST):
        return
    levels = tl.arange(0, _LEVELS)
    counts = _counts(table, phase - 1) + levels
    tables = tl.load(table + TABLES).to(tl.pointer_type(tl.uint8)) + tl.program_id(1) * 3 * _LEVELS + levels
    for channel in range(3):
        counted = tl.load(counts + channel * _LEVELS)
        becomes = _equalized(counted, levels) if opcode == _EQUALIZE else _stretched(counted, levels)
        tl.store(tables + channel * _LEVELS, becomes.to(tl.uint8))


@device_function
def _counts(table, phase):
    """Return the address of the histogram of this program's image after ``phase``: int32 (3, 256), counts of pixels."""
    image = phase * tl.load(table + IMAGES) + tl.program_id(1)
    return tl.load(table + COUNTS).to(tl.pointer_type(tl.int32)) + image * 3 * _LEVELS


@device_function
def _count_levels(table, descriptor, phase, r, g, b, y, x):
    counts, inside = _counts(table, phase), _inside(descriptor, y, x)
    one = tl.full(inside.shape, 1, tl.int32)
    tl.atomic_add(counts + r.to(tl.int32), one, inside)
    tl.atomic_add(counts + _LEVELS + g.to(tl.int32), one, inside)
    tl.atomic_add(counts + 2 * _LEVELS + b.to(tl.int32), one, inside)


@device_function
def _equalized(counts, levels):
    """Return the new value of each level for an equalized histogram, as ``train/cpu/blur_sharpen_equalize.py`` does."""
    highest = tl.max(tl.where(counts > 0, levels, 0))
    step = (tl.sum(counts) - tl.sum(tl.where(levels == highest, counts, 0))) // 255
    below = tl.cumsum(counts) - counts + step // 2
    return tl.where(step > 0, tl.minimum(below // tl.maximum(step, 1), 255), levels)


@device_function
def _stretched(counts, levels):
    """Return the new value of each level, so that an image's lowest level becomes 0 and its highest becomes 255."""
    low, high = tl.min(tl.where(counts > 0, levels, 255)), tl.max(tl.where(counts > 0, levels, 0))
    scale = tl.maximum(high - low, 1).to(tl.float32) * _PER_LEVEL
    above = tl.maximum(levels - low, 0).to(tl.float32)
    stretched = tl.minimum(tl.math.div_rn(above, tl.full(above.shape, 1.0, tl.float32) * scale), 255.0)
    return tl.where(high > low, tl.floor(stretched).to(tl.int32), levels)


@device_function
def _canvas_step(table, descriptor, step, levels, rows, y, x):
    """Run the step of CANVAS_STEPS that begins a phase, on the previous phase's ``levels``; return new r, g, b."""
    opcode = load_i32(step, 0)
    offset = tl.load(descriptor + OFFSET)
    if opcode == _SHARPNESS:
        r, g, b = sharpened(descriptor, step, levels, y, x)
    elif (opcode == _EQUALIZE) | (opcode == _AUTOCONTRAST):
        tables = tl.load(table + TABLES).to(tl.pointer_type(tl.uint8)) + tl.program_id(1) * 3 * _LEVELS
        r, g, b = looked_up(descriptor, levels, tables, y, x)
    elif opcode == _MIX:
        sums = tl.load(table + MIXED).to(tl.pointer_type(tl.float32)) + offset
        originals = tl.load(table + ORIGINALS).to(tl.pointer_type(tl.uint8)) + offset
        width = load_i32(descriptor, SIZE)
        plane, pixel, inside = width * load_i32(descriptor, SIZE + 1), y * width + x, _inside(descriptor, y, x)
        r = mixed(step, levels, sums, originals, 0, pixel, inside)
        g = mixed(step, levels, sums, originals, plane, pixel, inside)
        b = mixed(step, levels, sums, originals, 2 * plane, pixel, inside)
    else:
        r, g, b = moved(table, descriptor, step, levels, rows + offset, y, x)
    return r, g, b


@device_function
def _pixels(descriptor):
    """Return the coordinates in the output of the pixels of this program's tile: int32 y (h, 1) and x (1, w)."""
    across = (load_i32(descriptor, SIZE) + TILE_WIDTH - 1) // TILE_WIDTH
    tile = tl.program_id(0)
    y = tile // across * TILE_HEIGHT + tl.arange(0, TILE_HEIGHT)
    x = tile % across * TILE_WIDTH + tl.arange(0, TILE_WIDTH)
    return y[:, None], x[None, :]


@device_function
def _inside(descriptor, y, x):
    return (y < load_i32(descriptor, SIZE + 1)) & (x < load_i32(descriptor, SIZE))


@device_function
def _store_tile(descriptor, out, r, g, b, y, x, CHANNELS_LAST: tl.constexpr):
    """Store r, g, b of this program's tile in the image that begins at ``out``, converted to the dtype of ``out``."""
    width, height = load_i32(descriptor, SIZE), load_i32(descriptor, SIZE + 1)
    inside = _inside(descriptor, y, x)
    pixel = y * width + x
    if CHANNELS_LAST:
        pixel *= 3
        plane = 1
    else:
        plane = width * height
    tl.store(out + pixel, _converted(r, out), inside)
    tl.store(out + pixel + plane, _converted(g, out), inside)
    tl.store(out + pixel + 2 * plane, _converted(b, out), inside)


@device_function
def _converted(value, out):
    """Convert values to the dtype of ``out``, rounded with ties to even."""
    if out.dtype.element_ty == tl.bfloat16:
        bits = value.to(tl.uint32, bitcast=True)  # Round here, because Triton's interpreter truncates.
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return bits.to(tl.uint16).to(tl.bfloat16, bitcast=True)
    else:  # noqa: RET505 - the compiler takes one branch or the other
        return value.to(out.dtype.element_ty)


@device_function
def _contrasted(descriptor, step, levels, total, y, x):
    """Run a contrast step: blend ``levels`` with the image's mean grey level; ``total`` is the sum of grey levels."""
    width, height = load_i32(descriptor, SIZE), load_i32(descriptor, SIZE + 1)
    inside = _inside(descriptor, y, x)
    pixel = levels + y * width + x
    plane = width * height
    mean = (total.to(tl.float64) / plane.to(tl.float64)).to(tl.float32)
    factor, offset = load_f32(step, OPERANDS), mean * load_f32(step, OPERANDS + 1)
    r = blended(tl.load(pixel, inside, 0).to(tl.float32), factor, offset)
    g = blended(tl.load(pixel + plane, inside, 0).to(tl.float32), factor, offset)
    b = blended(tl.load(pixel + 2 * plane, inside, 0).to(tl.float32), factor, offset)
    return r, g, b


@device_function
def _blurred_down(table, descriptor, step, rows, y, x):
    """Return r, g, b of the pixels (y, x) of ``rows``, blurred along columns; ``blur_rows`` blurred them along rows."""
    width, height = load_i32(descriptor, SIZE), load_i32(descriptor, SIZE + 1)
    source = rows + tl.load(descriptor + OFFSET)
    groups, weights = smoothing_row(table, step, 1)
    line = tl.minimum(y, height - 1)
    column = tl.minimum(x, width - 1)
    plane = width * height
    r = smoothed(source, column, line, height, width, groups, weights)
    g = smoothed(source + plane, column, line, height, width, groups, weights)
    b = smoothed(source + 2 * plane, column, line, height, width, groups, weights)
    return rounded(r), rounded(g), rounded(b)
