"""``picstore.measure_quality``: measure bytes, PSNR and SSIM of a source's images encoded at several qualities."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from picstore.display.progress import ProgressOption, open_display
from picstore.results import QualityResult
from picstore.verbs.common_arguments import MAX_SEED, count_workers, encode_settings, require_range

if TYPE_CHECKING:
    from picstore.prepare.psnr_ssim import QualityReport
    from picstore.storage.location.resolve import Where


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
    quality: int | None = None,
    subsampling: Literal["420", "422", "444"] | None = None,
    background: str | tuple[int, int, int] | None = None,
    max_pixels: int | None = None,
    image_timeout: float = 300.0,
    reencode: bool | None = None,
    encoder: Literal["turbo", "mozjpeg"] | None = None,
    seed: int | None = None,
    workers: int | None = None,
    plot: str | os.PathLike[str] | None = None,
    progress: ProgressOption = False,
) -> QualityResult:
    """Encode a sample of a source's images at several qualities and subsamplings: ``picstore convert --measure``.

    No dataset is written. Images that can be stored without loss are left out; if all images can be, all
    are encoded as with ``reencode=True``.

    Args:
        images: size of the sample, drawn evenly over the source by ``seed``.
        plot: SVG file for a plot, which needs ``picstore[plot]``; no file is written if nothing was measured.
        source, kind, root, synsets, annotations, image_field, label_field, split, targets, hidden, classes: see
            :func:`picstore.convert`.
        resize, quality, subsampling, background, max_pixels, image_timeout, reencode, encoder, workers, progress: see
            :func:`picstore.convert`.
        seed: random seed of the sample; None for 0.

    Raises:
        UsageError, NotADataset, Damage, MissingDependency, PicstoreError: as for :func:`picstore.convert`.
    """
    given = locals()
    require_range("images", images, 1)
    require_range("image_timeout", image_timeout, 0, 86_400)
    require_range("seed", seed, 0, MAX_SEED)
    settings = encode_settings(given)
    with open_display("convert", progress) as display:
        display.begin_stage("starting")
        from picstore.display.figures import draw_qualities, require_matplotlib
        from picstore.prepare import psnr_ssim
        from picstore.prepare.engine.worker_processes import LocalEngine
        from picstore.storage.location.resolve import locate_writable
        from picstore.verbs.conversion import open_inputs

        if plot is not None:
            require_matplotlib()
            drawn = locate_writable(plot)
        processes = count_workers(workers)
        display.begin_stage("listing")
        listing = open_inputs(source, given, LocalEngine(processes))
        for remark in listing.remarks:
            display.remark(remark)

        def measured() -> QualityReport:
            display.begin_stage("measuring")
            display.set_total(min(images, len(listing.inputs)), 0)
            return psnr_ssim.measure_quality(
                listing,
                encode=settings,
                images=images,
                seed=seed or 0,
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
        drawn.write(draw_qualities(result.qualities, title=result.title))
    return result
