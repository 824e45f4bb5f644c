"""Decoding of a batch's tiles on a GPU: the host's side of the kernels.

    bytes, segments ──→ decode_segments ──→ coefficients ──→ inverse_dct ──→ samples ──→ to_rgb ──→ planes of RGB
    Huffman codes ────→ make_tables         int16, zigzag,   lane = block    Y, Cb, Cr   lane = 4 pixels
                                            sum_differences

Pixels equal ``jpeg.decoder``'s, bit for bit. It needs neither nvJPEG nor a JPEG engine.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from picstore.arrays import I64
from picstore.jpeg import segment_words as words
from picstore.train.batching.host_batch import SegmentTables
from picstore.train.cuda.decoded import DecodedImages
from picstore.train.cuda.segments.color import to_rgb
from picstore.train.cuda.segments.entropy import (
    BAD_CODE,
    MARKER,
    SURPLUS,
    TOO_SHORT,
    WRONG_ENTRY_POINT,
    decode_segments,
    make_tables,
    sum_differences,
)
from picstore.train.cuda.segments.samples import inverse_dct
from picstore.train.cuda.triton_jit import INTERPRETED, launching

REASONS = {
    WRONG_ENTRY_POINT: "an entry point where no MCU begins",  # what else is wrong follows from it, or is damage
    BAD_CODE: "a code that its Huffman table lacks, or a block with more than 64 coefficients",
    TOO_SHORT: "its entropy-coded data ends early",
    SURPLUS: "a segment with more bytes than it needs",
    MARKER: "a marker within a segment",
}

LANES, SEGMENTS, BLOCKS, ROWS, COLUMNS, ENTRIES = 32, 2, 64, 8, 32, 128  # of a program
SUMMED = 32  # blocks; most segments have 24
MAX_NUMEL = 1 << 20  # values of one of Triton's tensors
ROUNDS, SYMBOLS = 4, 4
# Registers a thread on sm_90, without a spill, by Triton 3.8 and by 3.6: 52 of decode_segments, 54 and 46 of
# sum_differences, 96 and 122 of inverse_dct, up to 50 of the others.
WARPS = {"make_tables": 1, "decode_segments": 1, "sum_differences": 1, "inverse_dct": 2, "to_rgb": 4}
# The arrays that the kernels read, flat; and how many of their numbers an image has.
_UPLOADED = {
    "data": torch.uint8,
    "images": torch.int64,
    "segments": torch.int32,
    "codes": torch.uint8,
    "places": torch.int32,
    "quantization": torch.int16,
}
_PER_IMAGE = {
    "images": words.IMAGE_WORDS,
    "codes": words.HUFFMAN_TABLES * words.HUFFMAN_BYTES,
    "places": words.HUFFMAN_TABLES * 4,
}
_MOST_BLOCKS = 1 << 21  # that are decoded at once: 268 MB of coefficients
_MOST_IMAGES = (1 << 16) - 1  # CUDA's limit for the second dimension of a grid


def decode_tiles(tables: SegmentTables, *, device: torch.device, locked: bool = False) -> tuple[DecodedImages, I64]:
    """Decode the tiles of a batch on the current stream of a device, and wait for it.

    Args:
        tables: of the batch, some images of which have parts of segments. What depends on the other images is written
            into them.
        device: a GPU; the CPU where Triton's interpreter runs.
        locked: whether the tables' block is page-locked memory; it is copied to such memory otherwise.

    Returns:
        n images, whose rows begin at multiples of 4 bytes, without pixels where an image has no parts; and int64 (n,),
        0 or what is wrong with segments of the image, keys of ``REASONS`` added up.

    Raises:
        MissingDependency: there is no C compiler at the first launch on a machine.
        torch.cuda.OutOfMemoryError: the device has too little memory.
    """
    rows = tables.arrays["images"]
    if not tables.count.all():
        rest = tables.count == 0
        rows[rest] = tables.arrays["places"].reshape(len(rows), -1)[rest] = 0
    parts = list(_parts(rows[:, words.BLOCKS]))
    sums = [_write_firsts(rows[part], tables.first[part], tables.count[part]) for part in parts]
    with _waiting_on_errors(device):
        arrays = _upload(tables, device, locked=locked)
        made = [_decode_part(arrays, rows, part, of_part) for part, of_part in zip(parts, sums, strict=True)]
        status = torch.cat([each for _, each in made]) if len(made) > 1 else made[0][1]
        problems = status.cpu().numpy()  # waits for the kernels
    return DecodedImages.join([images for images, _ in made]), problems.astype(np.int64)


@contextlib.contextmanager
def _waiting_on_errors(device: torch.device) -> Iterator[None]:
    """Make a device the current one; after an error wait for its copies: the memory they read is used again."""
    with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
        try:
            yield
        except BaseException:
            if device.type == "cuda":
                torch.cuda.current_stream(device).synchronize()
            raise


def explain(status: int) -> str:
    """Say what is wrong with the segments of an image."""
    return next(text for flag, text in REASONS.items() if status & flag)


def _parts(blocks: I64) -> Iterator[slice]:
    """Divide images so that each part has few enough blocks and images."""
    if blocks.sum() <= _MOST_BLOCKS and len(blocks) <= _MOST_IMAGES:
        yield slice(0, len(blocks))
        return
    start = total = 0
    for number, count in enumerate(blocks.tolist()):
        if number > start and (total + count > _MOST_BLOCKS or number - start == _MOST_IMAGES):
            yield slice(start, number)
            start, total = number, 0
        total += count
    yield slice(start, len(blocks))


def _write_firsts(rows: I64, first: I64, count: I64) -> I64:
    """Write what images have before them that are decoded at once; returns the sums of all, in the order of words."""
    amounts = np.empty((len(rows), 5), np.int64)
    amounts[:, :3] = rows[:, words.BLOCKS : words.SAMPLES + 1]
    amounts[:, 3] = 3 * rows[:, words.PITCH] * rows[:, words.HEIGHT]
    amounts[:, 4] = count
    ends = amounts.cumsum(axis=0)
    before = ends - amounts
    rows[:, words.FIRST_BLOCK : words.PART_SHIFT] = before
    rows[:, words.PART_SHIFT] = first - before[:, 4]
    rows[:, words.PLANE : words.STRIDE] += (before[:, 2] - rows[:, words.PLANE])[:, None]
    sums: I64 = ends[-1]
    return sums


def _upload(tables: SegmentTables, device: torch.device, *, locked: bool) -> dict[str, torch.Tensor]:
    """Copy bytes and tables to the device at once; returns its arrays by name."""
    places = tables.layout.places()
    block = torch.from_numpy(tables.block[: places["quantization"][0].stop])
    if device.type == "cuda":
        block = (block if locked else block.pin_memory()).to(device, non_blocking=True)
    return {name: block[places[name][0]].view(dtype) for name, dtype in _UPLOADED.items()}


def _decode_part(
    arrays: dict[str, torch.Tensor], rows: I64, part: slice, sums: I64
) -> tuple[DecodedImages, torch.Tensor]:
    """Queue the kernels for some images; returns these and status, int32 (k,), on the device."""
    device = arrays["data"].device
    if part != slice(0, len(rows)):
        rows, arrays = rows[part], dict(arrays)
        for name, per_image in _PER_IMAGE.items():
            arrays[name] = arrays[name][per_image * part.start : per_image * part.stop]
    blocks, entry_count, sample_count, pixel_count, count = sums.tolist()

    def empty(size: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(size, dtype=dtype, device=device)

    pixels = empty(pixel_count, torch.uint8)
    status = torch.zeros(len(rows), dtype=torch.int32, device=device)
    entries = empty(entry_count, torch.int32)
    coefficients = torch.zeros((blocks, 64), dtype=torch.int16, device=device)
    planes = empty(sample_count, torch.uint8)
    with launching():
        _launch(arrays, entries, coefficients, planes, pixels, status, rows, count)
    table = np.empty((len(rows), 3), np.int64)
    table[:, 0] = rows[:, words.PIXELS]
    table[:, 0] += pixels.data_ptr()
    table[:, 1], table[:, 2] = rows[:, words.PITCH] * rows[:, words.HEIGHT], rows[:, words.PITCH]
    return DecodedImages(table, rows[:, : words.HEIGHT + 1].copy(), (pixels,), np.zeros(len(rows), np.int64)), status


def _launch(
    arrays: dict[str, torch.Tensor],
    entries: torch.Tensor,
    coefficients: torch.Tensor,
    planes: torch.Tensor,
    pixels: torch.Tensor,
    status: torch.Tensor,
    rows: I64,
    count: int,
) -> None:
    """Launch the kernels, whose programs are as large as they can be where each operation is interpreted."""
    images, segments, places = arrays["images"], arrays["segments"], arrays["places"]
    n, most = len(rows), int(rows[:, words.BLOCKS].max())
    lanes, summed, blocks, height, width = LANES, SEGMENTS, BLOCKS, ROWS, COLUMNS
    if INTERPRETED:
        lanes, blocks, height, width = max(_power_of_two(count), 2), _power_of_two(most), 64, 64
        summed = min(lanes, MAX_NUMEL // SUMMED)
    tiles = -(-rows[:, words.WIDTH] // (4 * width)) * -(-rows[:, words.HEIGHT] // height)
    options: dict[str, dict[str, Any]] = {name: {"num_warps": warps} for name, warps in WARPS.items()}
    make_tables[(words.HUFFMAN_TABLES * n,)](
        arrays["codes"],
        places,
        images,
        entries,
        LANES=4096 if INTERPRETED else ENTRIES,
        **options["make_tables"],
    )
    decode_segments[(-(-count // lanes),)](
        arrays["data"],
        segments,
        images,
        entries,
        coefficients,
        status,
        count,
        n,
        LANES=lanes,
        ROUNDS=ROUNDS,
        SYMBOLS=SYMBOLS,
        **options["decode_segments"],
    )
    sum_differences[(-(-count // summed),)](
        segments, images, coefficients, count, n, SEGMENTS=summed, BLOCKS=SUMMED, **options["sum_differences"]
    )
    grid, tables = (-(-most // blocks), n), arrays["quantization"]
    for side in sorted({*rows[:, words.SIDE : words.SIDE + 2].ravel().tolist()} - {0}):
        inverse_dct[grid](images, coefficients, tables, planes, SIDE=side, LANES=blocks, **options["inverse_dct"])
    to_rgb[(int(tiles.max()), n)](images, planes, pixels, ROWS=height, COLUMNS=width, **options["to_rgb"])


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()
