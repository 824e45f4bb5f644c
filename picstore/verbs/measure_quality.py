"""``picstore.measure_quality``: bytes, PSNR and SSIM of a source's images at several qualities."""

from __future__ import annotations

import os
from dataclasses import replace

from picstore.display.figures import draw_qualities, require_matplotlib
from picstore.display.progress import ProgressOption, open_display
from picstore.errors import UsageError
from picstore.prepare.image.encode_settings import IMAGE_TIMEOUT, EncodeSettings, Size, parse_color
from picstore.results import QualityResult
from picstore.storage.location.resolve import Where, locate_writable


def measure_quality(
    source: Where,
    images: int = 200,
    *,
    kind: str = "auto",
    root: Where | None = None,
    synsets: Where | None = None,
    annotations: Where | None = None,
    image_field: str | None = None,
    label_field: str | None = None,
    split: str | None = None,
    targets: str | None = None,
    hidden: bool = False,
    classes: Where | None = None,
    resize: str | None = None,
    quality: int = 90,
    subsampling: str = "420",
    background: str | tuple[int, int, int] = "ffffff",
    max_pixels: int = 1 << 28,
    image_timeout: float = IMAGE_TIMEOUT,
    reencode: bool = False,
    encoder: str = "turbo",
    seed: int = 0,
    workers: int | None = None,
    plot: str | os.PathLike[str] | None = None,
    progress: ProgressOption = False,
) -> QualityResult:
    """Encode a sample of a source's images at several qualities and subsamplings: ``picstore convert --measure``.

    No data set is made. Where all images would stay without loss, it is what ``reencode=True`` would make of them.

    Args:
        images: size of the sample, drawn evenly over the source by ``seed``.
        plot: SVG file for a plot, which needs ``picstore[plot]``; where nothing was measured, none is written.
        source, kind, root, synsets, annotations, image_field, label_field, split, targets, hidden, classes: see
            :func:`picstore.convert`.
        resize, quality, subsampling, background, max_pixels, image_timeout: see :func:`picstore.convert`.
        reencode, encoder, workers, progress: see :func:`picstore.convert`.

    Raises:
        UsageError, NotADataset, Damage, MissingDependency, PicstoreError: as for :func:`picstore.convert`.
    """
    if images < 1:
        raise UsageError(f"images={images}; give at least 1")
    if plot is not None:
        require_matplotlib()
    settings = EncodeSettings(
        resize=None if resize is None else Size.parse(resize),
        quality=quality,
        subsampling=subsampling,
        background=parse_color(background),
        max_pixels=max_pixels,
        reencode=reencode,
        encoder=encoder,
    )
    with open_display("convert", progress) as display:
        display.begin_stage("starting")
        from picstore.prepare.engine.worker_processes import LocalEngine
        from picstore.prepare.psnr_ssim import QualityReport
        from picstore.prepare.psnr_ssim import measure_quality as measure
        from picstore.verbs.common_arguments import count_workers
        from picstore.verbs.conversion import SourceOptions

        processes = count_workers(workers)
        display.begin_stage("listing")
        options = SourceOptions(
            kind, root, synsets, annotations, image_field, label_field, split, targets, hidden, classes
        )
        listing = options.open(source, LocalEngine(processes))
        for remark in listing.remarks:
            display.remark(remark)

        def measured() -> QualityReport:
            display.begin_stage("measuring")
            display.set_total(min(images, len(listing.inputs)), 0)
            return measure(
                listing,
                encode=settings,
                images=images,
                seed=seed,
                workers=processes,
                image_timeout=image_timeout,
                on_progress=display.advance,
            )

        report = measured()
        lossless = report.lossless
        if not report.images and lossless:
            settings = replace(settings, reencode=True)
            report = measured()
    result = QualityResult(
        images=len(report.images),
        lossless=lossless,
        failed=report.failed,
        reencode=settings.reencode,
        source_bytes=report.source_bytes,
        encoder=settings.encoder,
        subsampling=settings.subsampling,
        resize=None if settings.resize is None else str(settings.resize),
        quality=settings.quality,
        qualities=report.rows(),
    )
    if plot is not None and result.images:
        locate_writable(plot).write(draw_qualities(result.qualities, title=quality_title(result)))
    return result


def quality_title(result: QualityResult) -> str:
    """Say what was measured: ``200 images, turbo, resized to shorter:256``."""
    resized = "" if result.resize is None else f", resized to {result.resize}"
    return f"{result.images:,} images, {result.encoder}{resized}"
