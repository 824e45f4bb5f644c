"""Decoding of tiles on a GPU, of one batch or of several at once: the host's side of the kernels.

    bytes, segments ──→ decode_segments ──→ coefficients ──→ inverse_dct ──→ samples ──→ to_rgb ──→ planes of RGB
    Huffman codes ────→ make_tables         int16, zigzag,   lane = block    Y, Cb, Cr   lane = 4 pixels
                                            sum_differences

Pixels equal ``jpeg.decoder``'s, bit for bit. Neither nvJPEG nor a JPEG engine is needed. A batch of 256 images fills a
third of a GPU while Huffman codes are read, so that several waiting batches take hardly longer than one batch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch

from picstore.arrays import I64
from picstore.jpeg import gpu_segment_layout as words
from picstore.train.batching.host_batch import SegmentTables
from picstore.train.cuda.decoded import DecodedImages
from picstore.train.cuda.gpu_huffman import (
    BAD_CODE,
    MARKER,
    SURPLUS,
    TOO_SHORT,
    WRONG_ENTRY_POINT,
    decode_segments,
    make_tables,
    sum_differences,
)
from picstore.train.cuda.gpu_inverse_dct import inverse_dct
from picstore.train.cuda.gpu_rgb import to_rgb
from picstore.train.cuda.triton_jit import INTERPRETED, launching

# Text for each bit of a status. The first set bit is shown, because a wrong entry point causes other errors too.
REASONS = {
    WRONG_ENTRY_POINT: "an entry point where no MCU begins",
    BAD_CODE: "a code that its Huffman table lacks, or a block with more than 64 coefficients",
    TOO_SHORT: "its entropy-coded data ends early",
    SURPLUS: "a segment with more bytes than it needs",
    MARKER: "a marker within a segment",
}

# Amounts that one program of each kernel computes: decode_segments decodes LANES parts of segments, sum_differences
# adds up SEGMENTS parts, inverse_dct transforms BLOCKS blocks, to_rgb converts ROWS × COLUMNS groups of four pixels,
# and make_tables computes ENTRIES entries at once.
LANES, SEGMENTS, BLOCKS, ROWS, COLUMNS, ENTRIES = 32, 2, 64, 8, 32, 128
SUMMED = 32  # number of blocks of a segment whose DC differences are added up at once; most segments have 24 blocks
MAX_NUMEL = 1 << 20  # maximum number of values of a tensor in a Triton kernel
ROUNDS, SYMBOLS = 4, 4
# Number of warps of a program of each kernel. A thread then takes, on sm_90 with Triton 3.8 (in parentheses: 3.6), this
# number of registers, none spilled: decode_segments 52, sum_differences 54 (46), inverse_dct 96 (122), others up to 50.
WARPS = {"make_tables": 1, "decode_segments": 1, "sum_differences": 1, "inverse_dct": 2, "to_rgb": 4}
# Arrays of segment tables that are copied to the GPU, with their dtypes. Kernels see the memory of all batches as one
# array of each dtype; an image's words (``jpeg/gpu_segment_layout.py``) hold indices in these arrays.
_UPLOADED = {
    "data": torch.uint8,
    "segments": torch.int32,
    "codes": torch.uint8,
    "places": torch.int32,
    "quantization": torch.int16,
}
MOST_BLOCKS = 1 << 22  # maximum number of 8 × 8 blocks to decode at once, whose coefficients take 537 MB
_QUANTIZATION_BYTES = 128  # size in bytes of a quantization table, 64 int16
_MOST_IMAGES = (1 << 16) - 1  # CUDA's limit for the second dimension of a grid, which counts images


@dataclass(frozen=True, slots=True, eq=False)
class DecodeStatus:
    """Errors that a GPU finds in the images of a queued decoding; only ``wait`` waits for the GPU."""

    _status: torch.Tensor  # int32 (n,) in CPU memory, bits of each image's errors, see ``REASONS``
    _decoded: torch.cuda.Event | None

    def wait(self) -> I64:
        """Wait until the kernels have run, and the memory of the tables is no longer read.

        Returns:
            int64 (n,): 0 for a sound image, otherwise the sum of those keys of ``REASONS`` that apply.
        """
        if self._decoded is not None:
            self._decoded.synchronize()
        return self._status.numpy().astype(np.int64)


def decode_tiles(
    tables: Sequence[SegmentTables], *, device: torch.device, locked: Sequence[bool] = ()
) -> tuple[DecodedImages, DecodeStatus]:
    """Queue the decoding of the JPEG tiles of one or several batches on the current stream of a device.

    Args:
        tables: segment tables of each batch, which must not change before ``DecodeStatus.wait`` has returned.
        device: a GPU, or the CPU with Triton's interpreter.
        locked: for each batch, whether the memory of its tables is page-locked; if not, they are copied to such memory.

    Returns:
        The images of all batches in turn, and the images' status. Rows of pixels begin at multiples of 4 bytes. An
        image without segments to decode has no pixels.

    Raises:
        MissingDependency: the machine has no C compiler for the first launch.
        torch.cuda.OutOfMemoryError: the device has too little memory.
    """
    with _waiting_on_errors(device):
        starts = list(accumulate((each.layout.uploaded for each in tables), initial=0))
        # ``joined`` may be freed before its copy has ended, because torch does not reuse page-locked memory until then.
        count, on_gpu = sum(len(each.count) for each in tables), device.type == "cuda"
        joined = torch.empty((count, words.IMAGE_WORDS), dtype=torch.int64, pin_memory=on_gpu)
        rows = joined.numpy()
        _join_words(rows, tables, starts)
        first, parts = (np.concatenate([getattr(each, name) for each in tables]) for name in ("first", "count"))
        slices = list(_parts(rows[:, words.BLOCKS]))
        sums = [_write_firsts(rows[part], first[part], parts[part]) for part in slices]
        arrays = _upload(tables, joined, device, starts=starts, locked=locked)
        made = [_decode_part(arrays, rows, part, of_part) for part, of_part in zip(slices, sums, strict=True)]
        status = torch.cat([each for _, each in made]) if len(made) > 1 else made[0][1]
        decoded = None
        if on_gpu:
            status = torch.empty(count, dtype=torch.int32, pin_memory=True).copy_(status, non_blocking=True)
            decoded = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            decoded.record()
    return DecodedImages.join([images for images, _ in made]), DecodeStatus(status, decoded)


def _join_words(rows: I64, tables: Sequence[SegmentTables], starts: Sequence[int]) -> None:
    """Copy the int64 words that describe all batches' images to ``rows``, (images, IMAGE_WORDS).

    Words that are indices in a batch's arrays become indices in the arrays on the GPU, which join all batches.
    """
    at = 0
    for each, start in zip(tables, starts, strict=False):
        mine, places, n = rows[at : at + len(each.count)], each.layout.places(), len(each.count)
        mine[...] = each.arrays["images"]
        if not each.count.all():
            rest = each.count == 0
            mine[rest] = each.arrays["places"].reshape(n, -1)[rest] = 0
        begin = {name: start + places[name][0].start for name in _UPLOADED}
        mine[:, words.DATA] += begin["data"]
        mine[:, words.QUANTIZATION : words.PLANE] += begin["quantization"] // _QUANTIZATION_BYTES
        mine[:, words.PART_SHIFT] = begin["segments"] // 4
        numbers = words.HUFFMAN_TABLES * np.arange(n)
        mine[:, words.CODES] = begin["codes"] + words.HUFFMAN_BYTES * numbers
        mine[:, words.PLACES] = begin["places"] // 4 + 4 * numbers
        at += n


@contextlib.contextmanager
def _waiting_on_errors(device: torch.device) -> Iterator[None]:
    """Make a device current in a ``with`` block; after an error, wait until the device no longer reads host memory."""
    with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
        try:
            yield
        except BaseException:
            if device.type == "cuda":
                torch.cuda.current_stream(device).synchronize()
            raise


def explain(status: int) -> str:
    """Return why an image's segments are unsound: the first of ``REASONS`` that its status, which is not 0, states."""
    return next(text for flag, text in REASONS.items() if status & flag)


def _parts(blocks: I64) -> Iterator[slice]:
    """Yield slices of images to decode together: at most _MOST_IMAGES images with at most MOST_BLOCKS blocks.

    ``blocks`` (n,) holds each image's number of blocks. An image with more than MOST_BLOCKS is a slice of its own.
    """
    if blocks.sum() <= MOST_BLOCKS and len(blocks) <= _MOST_IMAGES:
        yield slice(0, len(blocks))
        return
    start = total = 0
    for number, count in enumerate(blocks.tolist()):
        if number > start and (total + count > MOST_BLOCKS or number - start == _MOST_IMAGES):
            yield slice(start, number)
            start, total = number, 0
        total += count
    yield slice(start, len(blocks))


def _write_firsts(rows: I64, first: I64, count: I64) -> I64:
    """Write to ``rows`` the index of each image's first block, table entry, sample, pixel byte and part of a segment.

    Return the number of each in all images together, int64 (5,).
    """
    amounts = np.empty((len(rows), 5), np.int64)
    amounts[:, :3] = rows[:, words.BLOCKS : words.SAMPLES + 1]
    amounts[:, 3] = 3 * rows[:, words.PITCH] * rows[:, words.HEIGHT]
    amounts[:, 4] = count
    ends = amounts.cumsum(axis=0)
    before = ends - amounts
    rows[:, words.FIRST_BLOCK : words.PART_SHIFT] = before
    rows[:, words.PART_SHIFT] += words.PART_WORDS * (first - before[:, 4])
    rows[:, words.PLANE : words.STRIDE] += (before[:, 2] - rows[:, words.PLANE])[:, None]
    sums: I64 = ends[-1]
    return sums


def _upload(
    tables: Sequence[SegmentTables],
    images: torch.Tensor,
    device: torch.device,
    *,
    starts: Sequence[int],
    locked: Sequence[bool],
) -> dict[str, torch.Tensor]:
    """Copy to the device what kernels read of all batches' tables; return the kernels' input arrays by name."""
    block = torch.empty(starts[-1], dtype=torch.uint8, device=device)
    for number, each in enumerate(tables):
        host = torch.from_numpy(each.block[: each.layout.uploaded])
        if device.type == "cuda" and not (locked and locked[number]):
            host = host.pin_memory()
        block[starts[number] : starts[number + 1]].copy_(host, non_blocking=True)
    arrays = {name: block.view(dtype) for name, dtype in _UPLOADED.items()}
    return arrays | {"images": images.to(device, non_blocking=True)}


def _decode_part(
    arrays: dict[str, torch.Tensor], rows: I64, part: slice, sums: I64
) -> tuple[DecodedImages, torch.Tensor]:
    """Queue the kernels that decode k images, the slice ``part`` of all; ``sums`` is the result of ``_write_firsts``.

    Return the images, and their status on the device, int32 (k,).
    """
    device = arrays["data"].device
    if part != slice(0, len(rows)):
        rows, arrays = rows[part], {**arrays, "images": arrays["images"][part]}
    blocks, entry_count, sample_count, pixel_count, count = sums.tolist()

    def empty(size: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(size, dtype=dtype, device=device)

    pixels = empty(pixel_count, torch.uint8)
    status = torch.zeros(len(rows), dtype=torch.int32, device=device)
    made = {"entries": empty(entry_count, torch.int32), "pixels": pixels, "status": status}
    made["coefficients"] = torch.zeros((blocks, 64), dtype=torch.int16, device=device)
    made["planes"] = empty(sample_count, torch.uint8)
    with launching():
        _launch(arrays | made, rows, count)
    table = np.empty((len(rows), 3), np.int64)
    table[:, 0] = rows[:, words.PIXELS]
    table[:, 0] += pixels.data_ptr()
    table[:, 1], table[:, 2] = rows[:, words.PITCH] * rows[:, words.HEIGHT], rows[:, words.PITCH]
    return DecodedImages(table, rows[:, : words.HEIGHT + 1].copy(), (pixels,), np.zeros(len(rows), np.int64)), status


def _launch(arrays: dict[str, torch.Tensor], rows: I64, count: int) -> None:
    """Launch the decoding kernels for the images that ``rows`` describes, which have ``count`` parts of segments.

    In Triton's interpreter an operation is slow whatever its size, so a program there computes as much as possible.
    """
    images, segments, entries = arrays["images"], arrays["segments"], arrays["entries"]
    coefficients, planes = arrays["coefficients"], arrays["planes"]
    n, most = len(rows), int(rows[:, words.BLOCKS].max())
    lanes, summed, blocks, height, width = LANES, SEGMENTS, BLOCKS, ROWS, COLUMNS
    if INTERPRETED:
        lanes, blocks, height, width = max(_power_of_two(count), 2), _power_of_two(most), 64, 64
        summed = min(lanes, MAX_NUMEL // SUMMED)
    tiles = -(-rows[:, words.WIDTH] // (4 * width)) * -(-rows[:, words.HEIGHT] // height)
    options: dict[str, dict[str, Any]] = {name: {"num_warps": warps} for name, warps in WARPS.items()}
    made_at_once, rounds = 4096 if INTERPRETED else ENTRIES, {"ROUNDS": ROUNDS, "SYMBOLS": SYMBOLS}
    make_tables[(words.HUFFMAN_TABLES * n,)](
        arrays["codes"], arrays["places"], images, entries, LANES=made_at_once, **options["make_tables"]
    )
    sources = arrays["data"], segments, images, entries
    decode_segments[(-(-count // lanes),)](
        *sources, coefficients, arrays["status"], count, n, LANES=lanes, **rounds, **options["decode_segments"]
    )
    sum_differences[(-(-count // summed),)](
        segments, images, coefficients, count, n, SEGMENTS=summed, BLOCKS=SUMMED, **options["sum_differences"]
    )
    grid, tables = (-(-most // blocks), n), arrays["quantization"]
    for side in sorted({*rows[:, words.SIDE : words.SIDE + 2].ravel().tolist()} - {0}):
        inverse_dct[grid](images, coefficients, tables, planes, SIDE=side, LANES=blocks, **options["inverse_dct"])
    to_rgb[(int(tiles.max()), n)](images, planes, arrays["pixels"], ROWS=height, COLUMNS=width, **options["to_rgb"])


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()
