"""Kernels of picstore's decoder for GPUs on all images of a kind at once, where Triton's interpreter runs them.

The interpreter takes a tenth of a second and more for a launch, and an image has launches of its own for its samples
and its pixels. Images of one size and sampling are stacked to a tall one, of which the kernels make what they make of
each: between two images rows of samples are repeated, as the kernels repeat them at an edge. All that the kernels read
or write lies between guard pages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from picstore.jpeg import gpu_segment_layout as words
from picstore.train.cuda import gpu_huffman, gpu_inverse_dct, gpu_rgb

_LANES, _ROWS = 1 << 16, 1 << 12  # of a program, at most
_UNTOUCHED = 0x5A5A
_KIND = [words.ACROSS, words.DOWN, words.COMPONENTS, words.INTERVAL, words.PER_ROW]
_SIZES = [words.ACROSS, words.DOWN, words.COMPONENTS, words.WIDTH, words.HEIGHT, *range(words.STRIDE, words.STRIDE + 3)]


class GuardedTorch:
    """Replacement of a module's ``torch`` whose new tensors lie between guard pages, on the CPU."""

    def __init__(self, *, flush_left: bool) -> None:
        from guard_pages import GuardedNumpy

        self._numpy = GuardedNumpy(flush_left=flush_left)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def zeros(self, shape: Any, *, dtype: torch.dtype, **_: Any) -> torch.Tensor:
        """Make a tensor of zeros."""
        return torch.from_numpy(self._numpy.zeros(shape, _kind(dtype)))

    def empty(self, shape: Any, *, dtype: torch.dtype, **_: Any) -> torch.Tensor:
        """Make a tensor of which nothing may be used before it is written."""
        return torch.from_numpy(self._numpy.empty(shape, _kind(dtype)))

    def from_numpy(self, array: np.ndarray[Any, Any]) -> torch.Tensor:
        """Copy an array."""
        return torch.from_numpy(self._numpy.array(array))


class GuardedUpload:
    """Replacement of ``segments.decode``'s upload of one batch: each array lies between guard pages.

    Attributes:
        data: the streams that the kernels read.
    """

    def __init__(self, guarded: GuardedTorch) -> None:
        self._guarded = guarded
        self.data: Any = None

    def __call__(self, tables: Any, images: torch.Tensor, device: Any, **_: Any) -> dict[str, torch.Tensor]:
        (one,) = tables
        names = ("data", "segments", "codes", "places", "quantization")
        made = {name: self._guarded.from_numpy(one.arrays[name]) for name in names}
        begin = {name: one.layout.places()[name][0].start for name in names}
        rows = _rows(images).copy()  # whose words count from the begin of the batch's memory
        rows[:, words.PART_SHIFT] -= begin["segments"] // 4
        rows[:, words.QUANTIZATION : words.PLANE] -= begin["quantization"] // 128
        rows[:, words.CODES] -= begin["codes"]
        rows[:, words.PLACES] -= begin["places"] // 4
        self.data = made["data"].numpy()
        return made | {"images": self._guarded.from_numpy(rows)}


def _kind(dtype: torch.dtype) -> np.dtype[Any]:
    return np.dtype(str(dtype).removeprefix("torch."))


class Stacked:
    """Replacement of a kernel of ``segments.decode``, launched with the same arguments."""

    def __init__(self, launch: Callable[..., None], guarded: GuardedTorch) -> None:
        self._launch, self._guarded = launch, guarded

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda *arguments, **_: self._launch(self._guarded, *arguments)


class Spaced:
    """Replacement of ``decode_segments``, which lays blocks between images that nothing may write to."""

    def __init__(self, kernel: Any, guarded: GuardedTorch) -> None:
        self._kernel, self._guarded = kernel, guarded

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def launch(
            data: Any, segments: Any, images: Any, tables: Any, coefficients: Any, *rest: Any, **options: Any
        ) -> None:
            rows, shape = _rows(images).copy(), (len(coefficients) + images.numel() // words.IMAGE_WORDS + 1, 64)
            rows[:, words.FIRST_BLOCK] += 1 + np.arange(len(rows))
            between = np.append(rows[:, words.FIRST_BLOCK] - 1, shape[0] - 1)
            spaced = self._guarded.zeros(shape, dtype=torch.int16, device=torch.device("cpu"))
            spaced.numpy()[between] = _UNTOUCHED
            self._kernel[grid](data, segments, self._guarded.from_numpy(rows), tables, spaced, *rest, **options)
            if (spaced.numpy()[between] != _UNTOUCHED).any():
                raise AssertionError("a lane wrote outside of its image's blocks")
            coefficients.numpy()[:] = np.delete(spaced.numpy(), between, axis=0)

        return launch


def _rows(images: Any) -> np.ndarray[Any, Any]:
    """Words of images, a row each."""
    rows: np.ndarray[Any, Any] = images.numpy().reshape(-1, words.IMAGE_WORDS)
    return rows


def _groups(rows: np.ndarray[Any, Any]) -> Iterator[np.ndarray[Any, Any]]:
    """Indices of equal rows, which begin with sampling factors, 0 for images without tiles."""
    _, inverse = np.unique(rows, axis=0, return_inverse=True)
    inverse = inverse.reshape(-1)
    order = np.argsort(inverse, kind="stable")
    for members in np.split(order, np.flatnonzero(np.diff(inverse[order])) + 1):
        if rows[members[0], 0]:
            yield members


def _ranges(firsts: Any, counts: Any) -> np.ndarray[Any, Any]:
    """Join ranges of numbers."""
    made: np.ndarray[Any, Any] = np.repeat(firsts - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
    return made


def make_tables(guarded: Any, codes: Any, places: Any, images: Any, entries: Any) -> None:
    """Make lookup tables, the arguments of ``gpu_huffman.make_tables``; equal ones once."""
    rows, at, out = codes.numpy().reshape(-1, words.HUFFMAN_BYTES), places.numpy().reshape(-1, 4), entries.numpy()
    begins = np.repeat(_rows(images)[:, words.TABLES], words.HUFFMAN_TABLES) + at[:, words.FIRST_ENTRY]
    raw = np.concatenate([rows, at[:, words.ENTRY_COUNT :].view(np.uint8)], axis=1)
    raw = np.ascontiguousarray(raw).view(f"V{raw.shape[1]}")[:, 0]
    _, one, inverse = np.unique(raw, return_index=True, return_inverse=True)
    counts, first_of = at[one, words.ENTRY_COUNT].astype(np.int64), at[one].copy()
    first_of[:, words.FIRST_ENTRY] = np.cumsum(counts) - counts
    made = guarded.empty(int(counts.sum()), dtype=torch.int32, device=None)
    from_first = np.zeros((-(-len(one) // words.HUFFMAN_TABLES), words.IMAGE_WORDS), np.int64)
    from_first[:, words.CODES] = words.HUFFMAN_TABLES * words.HUFFMAN_BYTES * np.arange(len(from_first))
    from_first[:, words.PLACES] = words.HUFFMAN_TABLES * 4 * np.arange(len(from_first))
    tables = (guarded.from_numpy(each) for each in (rows[one], first_of, from_first))
    gpu_huffman.make_tables[(len(one),)](*tables, made, LANES=1024)
    sizes = counts[inverse]
    out[_ranges(begins, sizes)] = made.numpy()[_ranges(first_of[inverse, words.FIRST_ENTRY], sizes)]


def inverse_dct(guarded: Any, images: Any, coefficients: Any, quantization: Any, planes: Any) -> None:
    """Make the samples of all images, given the kernel's arguments; images of a kind in one launch."""
    rows, factors, out = _rows(images), quantization.numpy().reshape(-1, 64), planes.numpy()
    components = np.minimum(np.arange(3), rows[:, [words.COMPONENTS]] - 1)
    tables = np.take_along_axis(rows[:, words.QUANTIZATION : words.PLANE], components, axis=1)
    hashed = factors.astype(np.int64) @ np.random.default_rng(0).integers(1, 1 << 40, 64)
    for members in _groups(np.concatenate([rows[:, _KIND], hashed[tables]], axis=1)):
        one, counts = rows[members[0]].copy(), rows[members, words.BLOCKS]
        h, v, per_mcu = one[words.ACROSS], one[words.DOWN], 1
        if one[words.COMPONENTS] == 3:
            per_mcu = h * v + 2
        mcu_rows = counts // (per_mcu * one[words.INTERVAL] * one[words.PER_ROW])
        one[words.FIRST_BLOCK], one[words.BLOCKS], at = 0, counts.sum(), 0
        places = []
        for c in range(one[words.COMPONENTS]):
            sizes = one[words.STRIDE + c] * 8 * (v if c == 0 else 1) * mcu_rows
            places.append((slice(at, at + sizes.sum()), _ranges(rows[members, words.PLANE + c], sizes)))
            one[words.PLANE + c] = at
            at += sizes.sum()
        blocks = guarded.from_numpy(coefficients.numpy()[_ranges(rows[members, words.FIRST_BLOCK], counts)])
        made = guarded.empty(at, dtype=torch.uint8, device=None)
        lanes = min(1 << int(counts.sum() - 1).bit_length(), _LANES)
        table = guarded.from_numpy(one[None])
        launch = gpu_inverse_dct.inverse_dct[(-(-int(counts.sum()) // lanes), 1)]
        launch(table, blocks, quantization, made, SIDE=8, LANES=lanes)
        for part, target in places:
            out[target] = made.numpy()[part]


def to_rgb(guarded: Any, images: Any, planes: Any, pixels: Any) -> None:
    """Make the pixels of all images, the arguments of ``gpu_rgb.to_rgb``; images of a size in one launch."""
    rows, levels, out = _rows(images), planes.numpy(), pixels.numpy()
    for members in _groups(rows[:, _SIZES]):
        one, n = rows[members[0]].copy(), len(members)
        height, down, pitch = (int(one[word]) for word in (words.HEIGHT, words.DOWN, words.PITCH))
        chroma = (height + down - 1) // down
        stacked, at = [], 0
        for c in range(one[words.COMPONENTS]):
            factor, last = (down, height - 1) if c == 0 else (1, chroma - 1)
            y = np.clip(np.arange(-factor, (chroma + 1) * factor), 0, last)
            stride = int(one[words.STRIDE + c])
            lines = rows[members, words.PLANE + c, None] + y * stride
            stacked.append(levels[lines[:, :, None] + np.arange(stride)].ravel())
            one[words.PLANE + c] = at
            at += stacked[-1].size
        tall = (chroma + 2) * down
        one[words.HEIGHT], one[words.PIXELS] = n * tall, 0
        made = guarded.empty(3 * n * tall * pitch, dtype=torch.uint8, device=None)
        columns = 1 << (-(-int(one[words.WIDTH]) // 4) - 1).bit_length()
        grid = (-(-n * tall // _ROWS), 1)
        sources = guarded.from_numpy(one[None]), guarded.from_numpy(np.concatenate(stacked))
        gpu_rgb.to_rgb[grid](*sources, made, ROWS=_ROWS, COLUMNS=columns)
        each = made.numpy().reshape(3, n, tall, pitch)[:, :, down : down + height]
        size = 3 * height * pitch
        out[_ranges(rows[members, words.PIXELS], np.full(n, size))] = each.transpose(1, 0, 2, 3).ravel()
