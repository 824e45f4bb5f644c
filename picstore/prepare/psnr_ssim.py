"""Quality measurement for ``convert --measure``: bytes, PSNR and SSIM of some images at several encoder settings."""

from __future__ import annotations

import io
from collections import deque
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from PIL import Image

from picstore import rng
from picstore.arrays import F32, U8
from picstore.display.progress import ProgressCallback
from picstore.errors import ImageError
from picstore.prepare.convert.kernel_warmup import start_fork_server
from picstore.prepare.engine import worker_processes
from picstore.prepare.image.decoder_process import decode_any
from picstore.prepare.image.encode_settings import IMAGE_TIMEOUT, EncodeSettings
from picstore.prepare.image.training_jpeg import LOSSLESS, encode, make_training_jpeg
from picstore.prepare.sources.inputs import Input, Listing, read_input

QUALITIES = tuple(range(50, 100, 5))
# Subsamplings that are always measured, for comparison with the subsampling of the conversion.
SUBSAMPLINGS = ("420", "444")
# Percentile of the images' SSIM that the report states besides the mean, because it shows the worst images' quality.
LOW_PERCENTILE = 5
# PSNR in dB that stands for equal images, whose true PSNR is infinite and would make means infinite.
_MAX_PSNR = 100.0

# Window and constants of Wang et al., "Image quality assessment: from error visibility to structural similarity", 2004.
_RADIUS, _SIGMA = 5, 1.5
_C1, _C2 = 6.5025, 58.5225  # (0.01 × 255)², (0.03 × 255)²
_GAUSSIAN = np.exp(-(np.arange(-_RADIUS, _RADIUS + 1) ** 2) / (2 * _SIGMA**2))
_WEIGHTS: F32 = (_GAUSSIAN / _GAUSSIAN.sum()).astype(np.float32)
# Number of rows whose SSIM is computed at a time: their planes fit into the L2 cache, which is 2.8 times as fast.
_STRIP_ROWS = 32


@dataclass(frozen=True, slots=True)
class ImageQuality:
    """Size in bytes of an encoded image, its PSNR in dB over RGB or grey, and the mean SSIM of its channels."""

    bytes: int
    psnr: float
    ssim: float


@dataclass(frozen=True, slots=True)
class QualityReport:
    """Measurements of images that are a sample of a source.

    Attributes:
        settings: measured settings, ordered by subsampling, then by quality.
        images: for each image that was encoded, a measurement for each of ``settings``.
        source_bytes: total size in bytes of the source files of ``images``.
        lossless: number of images that ``picstore convert`` stores without loss, whatever the quality.
        failed: number of images that cannot be read.
    """

    settings: tuple[EncodeSettings, ...]
    images: list[tuple[ImageQuality, ...]]
    source_bytes: int
    lossless: int
    failed: int

    def rows(self) -> list[dict[str, Any]]:
        """Return for each of ``settings``: mean bytes, share saved, mean PSNR, mean and 5th percentile of SSIM."""
        rows = []
        for settings, images in zip(self.settings, zip(*self.images, strict=True), strict=False):
            size = sum(image.bytes for image in images)
            ssim = [image.ssim for image in images]
            row = {"subsampling": settings.subsampling, "quality": settings.quality}
            row |= {"bytes": round(size / len(images)), "saved": 1 - size / self.source_bytes}
            row |= {"psnr": float(np.mean([image.psnr for image in images])), "ssim": float(np.mean(ssim))}
            rows.append({**row, "ssim_low": float(np.percentile(ssim, LOW_PERCENTILE))})
        return rows


@dataclass(frozen=True, slots=True)
class _Task:
    number: int
    source: Input
    encode: EncodeSettings
    settings: tuple[EncodeSettings, ...]
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
) -> QualityReport:
    """Encode a sample of images at several qualities and subsamplings, and compare each JPEG with its source image.

    Args:
        encode: settings of the planned conversion. Its quality and subsampling are measured, and all of ``QUALITIES``
            and ``SUBSAMPLINGS``.
        images: number of images in the sample, which ``seed`` draws evenly over the source.
        image_timeout: limit in seconds for decoding an image, and for each encoding.
        on_progress: function that takes the number of images measured since its last call.

    Raises:
        PicstoreError: an object store cannot be reached.
    """
    start_fork_server(replace(encode, reencode=True))
    settings = settings_to_measure(encode)
    numbers = sample_numbers(len(listing.inputs), images, seed=seed)
    tasks = deque(_Task(number, listing.inputs[number], encode, settings, image_timeout) for number in numbers)
    ended = worker_processes.LocalEngine(workers).run(measure_image, tasks, on_progress=on_progress)
    outcomes = {task.number: outcome for task, outcome in ended}
    results = [outcomes[number] for number in numbers]
    encoded = [each for each in results if isinstance(each, tuple)]
    lossless = results.count(LOSSLESS)
    source_bytes, failed = sum(size for size, _ in encoded), len(results) - len(encoded) - lossless
    return QualityReport(settings, [measured for _, measured in encoded], source_bytes, lossless, failed)


def settings_to_measure(encode: EncodeSettings) -> tuple[EncodeSettings, ...]:
    """Return a copy of ``encode`` for each pair of a subsampling and a quality to measure; its own pair is included."""
    return tuple(
        replace(encode, subsampling=subsampling, quality=quality)
        for subsampling in sorted({*SUBSAMPLINGS, encode.subsampling})
        for quality in sorted({*QUALITIES, encode.quality})
    )


def sample_numbers(inputs: int, count: int, *, seed: int) -> list[int]:
    """Draw ``count`` ascending indices below ``inputs``, one at random from each of ``count`` equal intervals."""
    count = min(count, inputs)
    edges = [inputs * k // max(1, count) for k in range(count + 1)]
    drawn = rng.unit(rng.key(rng.MEASURE, seed), np.arange(count))
    return [int(low + position * (high - low)) for low, high, position in zip(edges, edges[1:], drawn, strict=False)]


def measure_image(task: _Task, on_progress: ProgressCallback) -> tuple[int, tuple[ImageQuality, ...]] | str:
    """Return an image file's size in bytes and its measurements, or ``"lossless"``, or the message of a failure."""
    try:
        data = read_input(task.source)
        with worker_processes.time_limit(task.image_timeout):
            if not task.encode.reencode:
                made = make_training_jpeg(data, settings=task.encode, name=task.source.name)
                if made.status == LOSSLESS:
                    return LOSSLESS
            image = decode_any(data, settings=task.encode, name=task.source.name).image
        measured = []
        for settings in task.settings:
            with worker_processes.time_limit(task.image_timeout):
                measured.append(_encode_and_compare(image, settings))
    except ImageError as error:
        return str(error)
    finally:
        on_progress(1)
    return len(data), tuple(measured)


def _encode_and_compare(image: Image.Image | U8, settings: EncodeSettings) -> ImageQuality:
    jpeg = encode(image, settings=settings).jpeg
    with Image.open(io.BytesIO(jpeg)) as decoded:
        decoded.load()
        before, after = np.asarray(image), np.asarray(decoded)
    similarity = np.mean([ssim(x, y) for x, y in zip(_planes(before), _planes(after), strict=True)])
    return ImageQuality(len(jpeg), psnr(before, after), float(similarity))


def psnr(one: U8, other: U8) -> float:
    """Return the PSNR in dB over all values of two uint8 arrays of equal shape; a PSNR above 100 counts as 100."""
    # In float64, sums of these integers are exact in whatever order a BLAS adds them; in float32, they are not.
    difference = np.subtract(one, other, dtype=np.int16).ravel().astype(np.float64)
    error = float(np.dot(difference, difference)) / difference.size
    return min(_MAX_PSNR, 10 * float(np.log10(255**2 / error))) if error else _MAX_PSNR


def ssim(one: F32, other: F32) -> float:
    """Return the mean SSIM of two planes, float32 (H, W) with values 0 … 255, over Gaussian windows of 11 × 11 pixels.

    Only windows that lie inside the planes count. Planes with a side of less than 11 pixels are mirrored at their
    edges.
    """
    missing = [(0, max(0, len(_WEIGHTS) - side)) for side in one.shape]
    one, other = (np.pad(plane, missing, mode="symmetric") for plane in (one, other))
    rows = one.shape[0] - 2 * _RADIUS
    total = 0.0
    for top in range(0, rows, _STRIP_ROWS):
        strip = slice(top, min(top + _STRIP_ROWS, rows) + 2 * _RADIUS)
        total += float(_ssim_map(one[strip], other[strip]).sum(dtype=np.float64))
    return total / float(rows * (one.shape[1] - 2 * _RADIUS))


def _ssim_map(x: F32, y: F32) -> F32:
    mean_x, mean_y = _blur(x), _blur(y)
    product, squares = mean_x * mean_y, mean_x * mean_x + mean_y * mean_y
    covariance = _blur(x * y) - product
    variances = _blur(x * x + y * y) - squares  # per window, variance of x + variance of y
    numerator = (2 * product + _C1) * (2 * covariance + _C2)
    return np.divide(numerator, (squares + _C1) * (variances + _C2), dtype=np.float32)


def _blur(plane: F32) -> F32:
    """Return the Gaussian-weighted mean of each window of a plane that lies inside the plane."""
    for axis in (0, 1):
        size = plane.shape[axis] - 2 * _RADIUS
        plane = np.moveaxis(plane, axis, 0)
        rows = [plane[k : k + size] for k in range(len(_WEIGHTS))]
        summed: F32 = rows[_RADIUS] * _WEIGHTS[_RADIUS]
        for k in range(_RADIUS):
            summed += _WEIGHTS[k] * (rows[k] + rows[-1 - k])
        plane = np.moveaxis(summed, 0, axis)
    return plane


def _planes(pixels: U8) -> F32:
    """Return the channels of an image, (H, W, 3) or (H, W), as planes, float32 (C, H, W)."""
    return np.ascontiguousarray(np.moveaxis(np.atleast_3d(pixels), 2, 0), dtype=np.float32)
