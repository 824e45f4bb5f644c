"""``picstore.index``: make a data set that refers to images where they lie."""

from __future__ import annotations

import time

from picstore.display.progress import ProgressOption, open_display
from picstore.prepare.convert.kernel_warmup import start_fork_server
from picstore.prepare.image.encode_settings import IMAGE_TIMEOUT, EncodeSettings
from picstore.results import ConvertResult
from picstore.storage.location.overlap_check import require_apart
from picstore.storage.location.resolve import Where, locate
from picstore.storage.references import indexed_folder
from picstore.storage.sizes import parse_size


def index(
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
    shuffle: bool | None = None,
    max_pixels: int = 1 << 28,
    image_timeout: float = IMAGE_TIMEOUT,
    file_size: int | str = "256MiB",
    container_size: int | str = "8MiB",
    seed: int = 0,
    workers: int | None = None,
    resume: bool = False,
    max_errors: int | str = "1%",
    progress: ProgressOption = False,
) -> ConvertResult:
    """Index the images of a source in a new data set that refers to them where they lie.

    Args:
        source: path or URL of the images, which stay there as long as the index is used.
        out: path or URL of the index, which does not exist or is empty.
        shuffle: whether each container refers to images from all of the source; None for images with a file each.
        kind, root, synsets, annotations, image_field, label_field: see :func:`picstore.convert`.
        split, targets, hidden, classes: see :func:`picstore.convert`.
        max_pixels, image_timeout, file_size, container_size, seed: see :func:`picstore.convert`.
        workers, resume, max_errors, progress: see :func:`picstore.convert`.

    Raises:
        UsageError: no image of the source lies in a file as it is, or as for :func:`picstore.convert`.
        TooManyFailures, NotADataset, Unfinished, Damage, MissingDependency, PicstoreError: as for
            :func:`picstore.convert`.
    """
    started = time.monotonic()
    settings = EncodeSettings(max_pixels=max_pixels)
    with open_display("index", progress) as display:
        display.begin_stage("starting")
        start_fork_server(settings)  # it imports while this process does
        from picstore.prepare.convert.conversion_job import ConvertOptions, convert
        from picstore.prepare.convert.reference_records import (
            is_of_files,
            references_root,
            require_references,
            shuffled,
        )
        from picstore.prepare.convert.resumable_job import DatasetShape
        from picstore.verbs.common_arguments import open_engine
        from picstore.verbs.conversion import Conversion, SourceOptions, parse_limit

        parse_limit(max_errors)  # before hours of work
        sizes = {"file_size": parse_size(file_size), "container_size": parse_size(container_size)}
        shape = DatasetShape(streams=1, seed=seed, **sizes)
        location, folder = locate(source).absolute(), None if root is None else locate(root)
        conversion = Conversion(display, started)
        options = SourceOptions(
            kind, folder, synsets, annotations, image_field, label_field, split, targets, hidden, classes
        )
        with open_engine("local", workers) as processes:
            require_apart(out, (source, *indexed_folder(source)))
            listing = conversion.list_inputs(location, options, engine=processes)
            require_references(listing)
            if is_of_files(listing) if shuffle is None else shuffle:
                listing = shuffled(listing, seed)
            conversion.wait_for_kernels()
            given = ConvertOptions(
                encode=settings,
                shape=shape,
                workers=processes,
                progress=display,
                image_timeout=image_timeout,
                references=references_root(location, folder),
            )
            done = convert(listing, out, given, resume=resume)
    return conversion.finish(done, out, max_errors=max_errors)
