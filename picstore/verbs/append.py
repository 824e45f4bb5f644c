"""``picstore.append``: add images to a finished data set."""

from __future__ import annotations

import time
from typing import Any

from picstore.display.progress import ProgressOption, open_display
from picstore.prepare.convert.kernel_warmup import start_fork_server
from picstore.prepare.image.encode_settings import IMAGE_TIMEOUT, EncodeSettings, parse_color
from picstore.results import ConvertResult
from picstore.storage.location.overlap_check import require_apart
from picstore.storage.location.resolve import Where, locate
from picstore.storage.manifest import Manifest, read_manifest
from picstore.storage.references import indexed_folder
from picstore.storage.sizes import parse_size


def append(
    source: Where,
    out: Where,
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
    subsampling: str | None = None,
    background: str | tuple[int, int, int] | None = None,
    max_pixels: int | None = None,
    image_timeout: float = IMAGE_TIMEOUT,
    reencode: bool | None = None,
    encoder: str | None = None,
    streams: int | None = None,
    file_size: int | str | None = None,
    container_size: int | str | None = None,
    seed: int | None = None,
    workers: int | None = None,
    engine: str = "local",
    resume: bool = False,
    dedupe: bool = False,
    max_errors: int | str = "1%",
    progress: ProgressOption = False,
) -> ConvertResult:
    """Convert the images of a source, and add them to a finished data set: ``picstore convert --append``.

    The data set is complete at any time: readers see the new images when all are there. An interrupted append leaves
    it as it was, and the same call with ``resume=True`` continues it.

    Args:
        source: path or URL of the images.
        out: the data set.
        kind, root, synsets, annotations, image_field, label_field: see :func:`picstore.convert`.
        split, targets, hidden, classes: see :func:`picstore.convert`.
        image_timeout, workers, engine, dedupe, max_errors, progress: see :func:`picstore.convert`.
        resize, quality, subsampling, background, max_pixels, reencode, encoder: None for the data set's.
        streams, file_size, container_size, seed: None for the data set's.
        resume: continue an interrupted append of the same source.

    Returns:
        ``inputs``, ``outcome`` and their like are of the new inputs, ``images`` and ``bytes`` of the whole data set.

    Raises:
        TooManyFailures, MissingDependency, PicstoreError: as for :func:`picstore.convert`.
        UsageError: source and data set do not fit together, or another append is unfinished.
        Conflict: the classes were changed, or another append ended meanwhile.
        Unfinished: an append was begun here, and ``resume`` is false.
        NotADataset, Damage: the data set or the job file cannot be read.
    """
    started = time.monotonic()
    require_apart(out, (source, *indexed_folder(source)))
    encode = {
        "resize": resize,
        "quality": quality,
        "subsampling": subsampling,
        "background": None if background is None else parse_color(background),
        "max_pixels": max_pixels,
        "reencode": reencode,
        "encoder": encoder,
    }
    shape = {
        "streams": streams,
        "file_size": None if file_size is None else parse_size(file_size),
        "container_size": None if container_size is None else parse_size(container_size),
        "seed": seed,
    }
    with open_display("convert", progress) as display:
        display.begin_stage("starting")
        manifest = read_manifest(locate(out))
        settings = EncodeSettings.from_json({**(manifest.encode or {}), **_given(encode)})
        start_fork_server(settings)  # it imports while this process does
        from picstore.prepare.convert import append_images as driver
        from picstore.prepare.convert.conversion_job import ConvertOptions
        from picstore.prepare.convert.resumable_job import DatasetShape
        from picstore.verbs.common_arguments import open_engine
        from picstore.verbs.conversion import Conversion, SourceOptions, parse_limit

        parse_limit(max_errors)  # before hours of work
        conversion = Conversion(display, started)
        options = SourceOptions(
            kind, root, synsets, annotations, image_field, label_field, split, targets, hidden, classes
        )
        with open_engine(engine, workers) as processes:
            listing = conversion.list_inputs(source, options, engine=processes, dedupe=dedupe)
            conversion.wait_for_kernels()
            given = ConvertOptions(
                encode=settings,
                shape=DatasetShape(**{**_shape_of(manifest), **_given(shape)}),
                workers=processes,
                progress=display,
                image_timeout=image_timeout,
            )
            done = driver.append(listing, out, given, resume=resume)
    return conversion.finish(done, out, max_errors=max_errors)


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _shape_of(manifest: Manifest) -> dict[str, Any]:
    """Return the arguments of DatasetShape that a data set was made with."""
    shape = {"container_size": manifest.container_size, **manifest.provenance.get("shape", {})}
    return {name: shape[name] for name in ("streams", "file_size", "container_size", "seed") if name in shape}
