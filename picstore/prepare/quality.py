"""What quality and subsampling cost: PSNR, SSIM and bytes of some images, encoded in several ways.

For ``convert --measure``.
"""

from __future__ import annotations

import io
from collections import deque
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from PIL import Image

from picstore import rng
from picstore.arrays import F32, U8
from picstore.errors import ImageError
from picstore.prepare.engine import processes
from picstore.prepare.image.encode import decode_any, encode
from picstore.prepare.image.settings import IMAGE_TIMEOUT, EncodeSettings
from picstore.prepare.image.training_jpeg import LOSSLESS, make_training_jpeg
from picstore.prepare.progress import ProgressCallback
from picstore.prepare.sources.inputs import Input, Listing, read_input

QUALITIES = tuple(range(50, 100, 5))
SUBSAMPLINGS = ("420", "444")  # measured always, so that they can be compared
LOW = 5  # per cent of the images; their SSIM is what a user is warned by
_MAX_PSNR = 100.0  # dB, of images that come back equal, so that a mean stays finite

# Wang, Bovik, Sheikh and Simoncelli, "Image quality assessment: from error visibility to structural similarity", 2004.
_RADIUS, _SIGMA = 5, 1.5
_C1, _C2 = 6.5025, 58.5225  # (0.01 × 255)², (0.03 × 255)²
_BELL = np.exp(-(np.arange(-_RADIUS, _RADIUS + 1) ** 2) / (2 * _SIGMA**2))
_TAPS: F32 = (_BELL / _BELL.sum()).astype(np.float32)
_STRIP = 32  # rows at a time, so that the planes of a strip stay in the second-level cache: 2.8 times as fast


@dataclass(frozen=True, slots=True)
class Loss:
    """What encoding did to one image: bytes of the JPEG, PSNR (dB) and SSIM of its RGB or grey values."""

    bytes: int
    psnr: float
    ssim: float


@dataclass(frozen=True, slots=True)
class Measured:
    """Losses of a sample.

    Attributes:
        tried: the settings that were measured, of each subsampling by rising quality.
        losses: of each image that would be encoded, one for each of ``tried``.
        source_bytes: of those images' files.
        lossless: images that would be kept as they are, whatever the quality.
        failed: images that cannot be read.
    """

    tried: tuple[EncodeSettings, ...]
    losses: list[tuple[Loss, ...]]
    source_bytes: int
    lossless: int
    failed: int

    def rows(self) -> list[dict[str, Any]]:
        """Of each settings the mean bytes, what is saved against the files, mean PSNR and SSIM, and the low SSIM."""
        rows = []
        for settings, losses in zip(self.tried, zip(*self.losses, strict=True), strict=False):
            size = sum(loss.bytes for loss in losses)
            ssim = [loss.ssim for loss in losses]
            rows.append(
                {
                    "subsampling": settings.subsampling,
                    "quality": settings.quality,
                    "bytes": round(size / len(losses)),
                    "saved": 1 - size / self.source_bytes,
                    "psnr": float(np.mean([loss.psnr for loss in losses])),
                    "ssim": float(np.mean(ssim)),
                    "ssim_low": float(np.percentile(ssim, LOW)),
                }
            )
        return rows


@dataclass(frozen=True, slots=True)
class _Task:
    number: int
    source: Input
    encode: EncodeSettings
    tried: tuple[EncodeSettings, ...]
    image_timeout: float


def measure_quality(
    listing: Listing,
    *,
    encode: EncodeSettings,
    images: int,
    seed: int,
    workers: int,
    image_timeout: float = IMAGE_TIMEOUT,
    on_progress: ProgressCallback = lambda _: None,
) -> Measured:
    """Encode a sample of a source's images at ``QUALITIES`` and ``SUBSAMPLINGS`` and those of the settings.

    Nothing is written.

    Args:
        listing: the source.
        encode: the settings of the conversion that is planned.
        images: how many to take, evenly over the source.
        seed: which.
        workers: processes; they do not change the result.
        image_timeout: seconds that an image may take with one of the settings.
        on_progress: called with the number of images done.
    """
    processes.start_fork_server("picstore.prepare.convert.warmup", "picstore.prepare.convert.warmup_pixels")
    tried = variants(encode)
    numbers = sample(len(listing.inputs), images, seed=seed)
    tasks = deque(_Task(number, listing.inputs[number], encode, tried, image_timeout) for number in numbers)
    ended = processes.run(measure_one, tasks, workers=workers, on_progress=on_progress)
    outcomes = {task.number: outcome for task, outcome in ended}
    found = [outcomes[number] for number in numbers]
    encoded = [each for each in found if isinstance(each, tuple)]
    lossless = found.count(LOSSLESS)
    return Measured(
        tried,
        [losses for _, losses in encoded],
        sum(size for size, _ in encoded),
        lossless,
        len(found) - len(encoded) - lossless,
    )


def variants(encode: EncodeSettings) -> tuple[EncodeSettings, ...]:
    """What is measured for the settings of a conversion: each subsampling, and of each the qualities, rising."""
    return tuple(
        replace(encode, subsampling=subsampling, quality=quality)
        for subsampling in sorted({*SUBSAMPLINGS, encode.subsampling})
        for quality in sorted({*QUALITIES, encode.quality})
    )


def sample(inputs: int, count: int, *, seed: int) -> list[int]:
    """``count`` of the numbers below ``inputs``, one drawn in each of ``count`` equal stretches, rising."""
    count = min(count, inputs)
    edges = [inputs * k // max(1, count) for k in range(count + 1)]
    drawn = rng.unit(rng.key(rng.MEASURE, seed), np.arange(count))
    return [int(low + share * (high - low)) for low, high, share in zip(edges, edges[1:], drawn, strict=False)]


def measure_one(task: _Task, on_progress: ProgressCallback) -> tuple[int, tuple[Loss, ...]] | str:
    """Bytes of the file and what each of the settings makes of it; or ``"lossless"``, or why it cannot be read."""
    try:
        data = read_input(task.source)
        with processes.time_limit(task.image_timeout):
            if not task.encode.reencode:
                made = make_training_jpeg(data, settings=task.encode, name=task.source.name)
                if made.status == LOSSLESS:
                    return LOSSLESS
            image = decode_any(data, settings=task.encode, name=task.source.name).image
        losses = []
        for settings in task.tried:
            with processes.time_limit(task.image_timeout):
                losses.append(_loss(image, settings))
    except ImageError as error:
        return str(error)
    finally:
        on_progress(1)
    return len(data), tuple(losses)


def _loss(image: Image.Image, settings: EncodeSettings) -> Loss:
    jpeg = encode(image, settings=settings)
    with Image.open(io.BytesIO(jpeg)) as decoded:
        decoded.load()
        one, other = np.asarray(image), np.asarray(decoded)
    similarity = np.mean([ssim(x, y) for x, y in zip(_planes(one), _planes(other), strict=True)])
    return Loss(len(jpeg), psnr(one, other), float(similarity))


def psnr(one: U8, other: U8) -> float:
    """Peak signal-to-noise ratio of two uint8 arrays of one shape, over all their values, in dB; at most 100."""
    # Sums of such integers are exact in float64, in whatever order a BLAS adds them; in float32 they are not.
    difference = np.subtract(one, other, dtype=np.int16).ravel().astype(np.float64)
    error = float(np.dot(difference, difference)) / difference.size
    return min(_MAX_PSNR, 10 * float(np.log10(255**2 / error))) if error else _MAX_PSNR


def ssim(one: F32, other: F32) -> float:
    """Mean structural similarity of two planes of values in 0 … 255, float32 (H, W), by a Gaussian of 11 × 11 pixels.

    The mean is over windows that lie inside; sides of less than 11 pixels are mirrored.
    """
    missing = [(0, max(0, len(_TAPS) - side)) for side in one.shape]
    one, other = (np.pad(plane, missing, mode="symmetric") for plane in (one, other))
    rows = one.shape[0] - 2 * _RADIUS
    total = 0.0
    for top in range(0, rows, _STRIP):
        strip = slice(top, min(top + _STRIP, rows) + 2 * _RADIUS)
        total += float(_similarity(one[strip], other[strip]).sum(dtype=np.float64))
    return total / float(rows * (one.shape[1] - 2 * _RADIUS))


def _similarity(x: F32, y: F32) -> F32:
    mean_x, mean_y = _blurred(x), _blurred(y)
    product, squares = mean_x * mean_y, mean_x * mean_x + mean_y * mean_y
    covariance = _blurred(x * y) - product
    variances = _blurred(x * x + y * y) - squares  # the sum of both
    above = (2 * product + _C1) * (2 * covariance + _C2)
    similar: F32 = np.divide(above, (squares + _C1) * (variances + _C2), dtype=np.float32)
    return similar


def _blurred(plane: F32) -> F32:
    """The weighted mean of each window that lies inside."""
    for axis in (0, 1):
        size = plane.shape[axis] - 2 * _RADIUS
        plane = np.moveaxis(plane, axis, 0)
        rows = [plane[k : k + size] for k in range(len(_TAPS))]
        summed: F32 = rows[_RADIUS] * _TAPS[_RADIUS]
        for k in range(_RADIUS):
            summed += _TAPS[k] * (rows[k] + rows[-1 - k])
        plane = np.moveaxis(summed, 0, axis)
    return plane


def _planes(pixels: U8) -> F32:
    """The channels of an image (H, W, 3) or (H, W), one after the other."""
    return np.ascontiguousarray(np.moveaxis(np.atleast_3d(pixels), 2, 0), dtype=np.float32)
