"""Weighted sums of chains of steps, of AugMix: depths and weights, drawn for a batch at once, and their program."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from picstore.arrays import F64, I64
from picstore.train.transforms import opcodes
from picstore.train.transforms.batch_random import BatchRandom
from picstore.train.transforms.color_program import ColorProgram

DEEPEST = 3  # greatest random depth of a chain

_TRIES = 8  # each is taken with a probability of at least 0.95


def mix_chains(weights: F64, chains: Sequence[Sequence[ColorProgram]]) -> ColorProgram:
    """Weighted sums of images and of chains of steps that begin with them.

    Args:
        weights: float64 (n, k + 1), of the image and of each chain.
        chains: k lists of steps.
    """
    count = len(weights)
    programs = [ColorProgram.from_step(opcodes.MIX, [weights[:, 0], opcodes.MIX_FIRST], count=count)]
    for k, chain in enumerate(chains, 1):
        place = opcodes.MIX_LAST if k == len(chains) else opcodes.MIX_NEXT
        programs += [*chain, ColorProgram.from_step(opcodes.MIX, [weights[:, k], place], count=count)]
    return ColorProgram.chain(programs)


def draw_depths(depth: int, random: BatchRandom) -> I64:
    """Depths of a chain for all images, int64 (n,): ``depth``, or below 1 random from 1 to 3. Uses 1 random number."""
    drawn = 1 + np.floor(DEEPEST * random.uniform(1)[:, 0]).astype(np.int64)
    return np.full_like(drawn, depth) if depth > 0 else drawn


def draw_weights(alpha: float, chains: int, random: BatchRandom) -> F64:
    """Weights of the image and of its chains, float64 (n, 1 + chains).

    The image's is of a beta distribution, and a Dirichlet distribution divides the rest, all of parameter ``alpha``.
    Uses 2 + ``chains`` random numbers, or 25 times as many unless ``alpha`` is 1.
    """
    share, parts = _dirichlet(alpha, 2, random), _dirichlet(alpha, chains, random)
    return np.concatenate([share[:, :1], share[:, 1:] * parts], axis=1)


def _dirichlet(alpha: float, count: int, random: BatchRandom) -> F64:
    """Symmetric Dirichlet variates, float64 (n, count)."""
    variates = np.stack([_gamma(alpha, random) for _ in range(count)], axis=1)
    shares: F64 = variates / variates.sum(axis=1, keepdims=True)
    return shares


def _gamma(alpha: float, random: BatchRandom) -> F64:
    """Gamma variates, float64 (n,) (Marsaglia and Tsang, "A simple method for generating gamma variables", 2000)."""
    if alpha == 1:
        return -np.log1p(-random.uniform(1)[:, 0])
    numbers = random.uniform(3 * _TRIES + 1)
    radius, turn, chance = numbers[:, :-1].reshape(-1, 3, _TRIES).transpose(1, 0, 2)
    normal = np.sqrt(-2 * np.log1p(-radius)) * np.cos(2 * math.pi * turn)
    shape = (alpha + 1 if alpha < 1 else alpha) - 1 / 3
    cube = (1 + normal / math.sqrt(9 * shape)) ** 3
    with np.errstate(divide="ignore", invalid="ignore"):
        taken = (cube > 0) & (np.log(chance) < normal**2 / 2 + shape * (1 - cube + np.log(cube)))
    variates = shape * np.take_along_axis(cube, taken.argmax(axis=1)[:, None], axis=1)[:, 0]
    return variates * (1 - numbers[:, -1]) ** (1 / alpha) if alpha < 1 else variates
