"""Images, programs and their pixels, for the tests of color transforms."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torchvision.transforms.v2 import functional

from picstore.arrays import F64, U8
from picstore.train.cpu.run_color import run_color
from picstore.train.transforms.batch_random import BatchRandom
from picstore.train.transforms.color_program import ColorProgram, ColorTransform, check_color, compose_color
from picstore.train.transforms.opcodes import OutputDtype


def noise(height: int, width: int, seed: int = 0) -> U8:
    """Independent uniform levels: uint8 (3, height, width)."""
    return np.random.default_rng(seed).integers(0, 256, (3, height, width), dtype=np.uint8)


def smooth(height: int, width: int, seed: int = 0) -> U8:
    """Like a photograph in that neighbors are alike, and with levels of 40 to 215."""
    coarse = torch.from_numpy(np.random.default_rng(seed).integers(40, 216, (3, height // 8 + 2, width // 8 + 2)))
    image = functional.resize(coarse.to(torch.uint8), [max(height, 8), max(width, 8)], antialias=True)
    return np.ascontiguousarray(image.numpy()[:, :height, :width])


def program_of(
    transforms: Sequence[ColorTransform], count: int, *, width: int = 20, height: int = 30, seed: int = 0
) -> ColorProgram:
    """The program of ``count`` images of the same size."""
    check_color(transforms)
    return compose_color(transforms, np.tile([width, height], (count, 1)), BatchRandom(seed, 0, np.arange(count)))


def run(program: ColorProgram, slot: int, image: U8) -> U8:
    """The image after its steps."""
    done = image.copy()
    run_color(program, slot, done, done, OutputDtype.UINT8)
    return done


def differences(ours: U8, theirs: U8 | torch.Tensor) -> U8:
    """Absolute differences of levels."""
    return np.abs(ours.astype(int) - np.asarray(theirs).astype(int))


def same_distribution(ours: F64, theirs: F64) -> bool:
    """The two-sample test of Kolmogorov and Smirnov: wrong 1 time in 10,000 for samples of one distribution."""
    ours, theirs = np.sort(np.asarray(ours, float)), np.sort(np.asarray(theirs, float))
    grid = np.concatenate([ours, theirs])
    below = np.searchsorted(ours, grid, "right") / len(ours) - np.searchsorted(theirs, grid, "right") / len(theirs)
    return bool(np.abs(below).max() < 2.23 * np.sqrt((len(ours) + len(theirs)) / (len(ours) * len(theirs))))


def same_frequencies(ours: Sequence[object], theirs: Sequence[object]) -> bool:
    """The chi-squared test of two samples of names: wrong 1 time in 10,000 for samples of one distribution."""
    names = sorted({*ours, *theirs}, key=str)
    counts = np.array([[list(sample).count(name) for name in names] for sample in (ours, theirs)], float)
    expected = counts.sum(axis=1, keepdims=True) * counts.sum(axis=0) / counts.sum()
    degrees = max(len(names) - 1, 1)
    most = degrees * (1 - 2 / (9 * degrees) + 3.719 * np.sqrt(2 / (9 * degrees))) ** 3  # Wilson and Hilferty, 1931
    return bool(((counts - expected) ** 2 / expected).sum() < most)
