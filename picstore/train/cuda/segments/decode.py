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

from picstore.arrays import I64, U8, Array
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
# Registers a thread on sm_90, without a spill: 52 of decode_segments, 54 of sum_differences, 96 of inverse_dct, 48 of
# the others.
WARPS = {"make_tables": 1, "decode_segments": 1, "sum_differences": 1, "inverse_dct": 2, "to_rgb": 4}
_MOST_BLOCKS = 1 << 21  # that are decoded at once: 268 MB of coefficients
_MOST_IMAGES = (1 << 16) - 1  # CUDA's limit for the second dimension of a grid


def decode_tiles(data: U8, tables: SegmentTables, slots: I64, *, device: torch.device) -> tuple[DecodedImages, I64]:
    """Decode the tiles of some slots on the current stream of a device, and wait for it.

    Args:
        data: of the batch, in the host's memory.
        tables: of the batch.
        slots: int64 (k,), with segments.
        device: a GPU; the CPU where Triton's interpreter runs.

    Returns:
        k images, whose rows begin at multiples of 4 bytes; and int64 (k,), 0 or what is wrong with segments of the
        image, keys of ``REASONS`` added up.

    Raises:
        MissingDependency: there is no C compiler at the first launch on a machine.
        torch.cuda.OutOfMemoryError: the device has too little memory.
    """
    stream = _upload(data, device)
    images, found = [], []
    with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
        for part in _parts(tables.images[slots, words.BLOCKS]):
            made, status = _decode_part(stream, tables, slots[part], device)
            images.append(made)
            found.append(status)
        problems = torch.cat(found).cpu().numpy()  # waits for the kernels
    return DecodedImages.join(images), problems.astype(np.int64)


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


def _upload(array: Array, device: torch.device) -> torch.Tensor:
    """Copy to the device, by page-locked memory."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def _before(counts: I64) -> I64:
    """Sum of the counts before each."""
    sums: I64 = np.cumsum(counts) - counts
    return sums


def _decode_part(
    stream: torch.Tensor, tables: SegmentTables, slots: I64, device: torch.device
) -> tuple[DecodedImages, torch.Tensor]:
    """Queue the kernels for some slots; returns images and status, int32 (k,), on the device."""
    n, counts = len(slots), tables.count[slots]
    rows = tables.images[slots]
    first_entry, sizes = _before(rows[:, words.ENTRIES]), 3 * rows[:, words.PITCH] * rows[:, words.HEIGHT]
    rows[:, words.FIRST_BLOCK], rows[:, words.TABLES] = _before(rows[:, words.BLOCKS]), first_entry
    rows[:, words.PLANE : words.STRIDE] += _before(rows[:, words.SAMPLES])[:, None]
    rows[:, words.PIXELS] = _before(sizes)
    codes, places, quantization = tables.codes, tables.places, tables.quantization
    if n < len(tables.images):
        chosen = (words.HUFFMAN_TABLES * slots[:, None] + np.arange(words.HUFFMAN_TABLES)).ravel()
        codes, places, quantization = codes[chosen], places[chosen], quantization[chosen]
        rows[:, words.QUANTIZATION : words.PLANE] -= words.HUFFMAN_TABLES * (slots - np.arange(n))[:, None]

    def empty(size: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(size, dtype=dtype, device=device)

    pixels = empty(int(sizes.sum()), torch.uint8)
    status = torch.zeros(n, dtype=torch.int32, device=device)
    uploaded = {
        "images": _upload(rows, device),
        "segments": _upload(_segments_of(tables, slots, counts), device),
        "codes": _upload(codes, device),
        "places": _upload(places, device),
        "firsts": _upload(np.repeat(first_entry, words.HUFFMAN_TABLES), device),
        "quantization": _upload(quantization, device),
    }
    entries = empty(int(rows[:, words.ENTRIES].sum()), torch.int32)
    coefficients = torch.zeros((int(rows[:, words.BLOCKS].sum()), 64), dtype=torch.int16, device=device)
    planes = empty(int(rows[:, words.SAMPLES].sum()), torch.uint8)
    with launching():
        _launch(stream, uploaded, entries, coefficients, planes, pixels, status, rows)
    width, height, pitch = rows[:, [words.WIDTH, words.HEIGHT, words.PITCH]].T
    addresses = np.stack([pixels.data_ptr() + rows[:, words.PIXELS], pitch * height, pitch], axis=1)
    block = np.zeros(n, np.int64)
    return DecodedImages(addresses, np.stack([width, height], axis=1), (pixels,), block), status


def _segments_of(tables: SegmentTables, slots: I64, counts: I64) -> Array:
    """Words of the segments of some slots, each with the number of its image among them."""
    ends = np.cumsum(counts, dtype=np.int32)
    index = np.arange(ends[-1], dtype=np.int32)
    index += np.repeat((tables.first[slots] - ends + counts).astype(np.int32), counts)
    # As numbers of 16 bytes they are taken five times as fast.
    taken = tables.segments.view(np.complex128).take(index, axis=0)
    segments: Array = taken.view(np.int32)
    segments[:, words.IMAGE] = np.repeat(np.arange(len(slots), dtype=np.int32), counts)
    return segments


def _launch(
    stream: torch.Tensor,
    uploaded: dict[str, torch.Tensor],
    entries: torch.Tensor,
    coefficients: torch.Tensor,
    planes: torch.Tensor,
    pixels: torch.Tensor,
    status: torch.Tensor,
    rows: I64,
) -> None:
    """Launch the kernels, whose programs are as large as they can be where each operation is interpreted."""
    images, segments, quantization = (uploaded[name] for name in ("images", "segments", "quantization"))
    count, most = len(segments), int(rows[:, words.BLOCKS].max())
    lanes, summed, blocks, height, width = LANES, SEGMENTS, BLOCKS, ROWS, COLUMNS
    if INTERPRETED:
        lanes, blocks, height, width = max(_power_of_two(count), 2), _power_of_two(most), 64, 64
        summed = min(lanes, MAX_NUMEL // SUMMED)
    tiles = -(-rows[:, words.WIDTH] // (4 * width)) * -(-rows[:, words.HEIGHT] // height)
    options: dict[str, dict[str, Any]] = {name: {"num_warps": warps} for name, warps in WARPS.items()}
    make_tables[(len(uploaded["codes"]),)](
        uploaded["codes"],
        uploaded["places"],
        uploaded["firsts"],
        entries,
        LANES=4096 if INTERPRETED else ENTRIES,
        **options["make_tables"],
    )
    decode_segments[(-(-count // lanes),)](
        stream,
        segments,
        images,
        entries,
        coefficients,
        status,
        count,
        LANES=lanes,
        ROUNDS=ROUNDS,
        SYMBOLS=SYMBOLS,
        **options["decode_segments"],
    )
    sum_differences[(-(-count // summed),)](
        segments, images, coefficients, count, SEGMENTS=summed, BLOCKS=SUMMED, **options["sum_differences"]
    )
    inverse_dct[(-(-most // blocks), len(rows))](
        images, coefficients, quantization, planes, LANES=blocks, **options["inverse_dct"]
    )
    to_rgb[(int(tiles.max()), len(rows))](images, planes, pixels, ROWS=height, COLUMNS=width, **options["to_rgb"])


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()
