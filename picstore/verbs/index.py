"""``picstore.index``: write a dataset that refers to images where they are stored."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from picstore.display.progress import ProgressOption, open_display
from picstore.results import ConvertResult
from picstore.verbs.common_arguments import (
    encode_settings,
    open_engine,
    refuse_destination,
    require_apart_from_source,
    require_range,
    start_fork_server,
)

if TYPE_CHECKING:
    from picstore.storage.location.resolve import Where


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
    maps: Sequence[str] = (),
    hidden: bool = False,
    classes: Where | None = None,
    shuffle: bool | None = None,
    max_pixels: int | None = None,
    image_timeout: float = 300.0,
    file_size: int | str | None = None,
    container_size: int | str | None = None,
    seed: int | None = None,
    workers: int | None = None,
    resume: bool = False,
    max_errors: int | str = "1%",
    progress: ProgressOption = False,
) -> ConvertResult:
    """Index the images of SRC in DST, a dataset that refers to the images where they are stored.

    Loader, verify and all other readers read DST like a converted dataset, as long as SRC exists.
    `picstore convert DST NEW` copies the images to a dataset NEW, in the same order and with the same ids.

    Args:
        source: path or URL of the images.
        out: path or URL of the index, which must not exist or must be empty.
        kind, root, synsets, annotations, image_field, label_field: see :func:`picstore.convert`.
        split, targets, hidden, classes: see :func:`picstore.convert`.
        maps: map to refer to beside each image, as for :func:`picstore.convert`; its file must be a PNG of the image's
            size: gray of 8 or 16 bits, RGB or RGBA of 8 bits, or with a palette.
        shuffle: let each container, which is read at once, refer to images from all of SRC instead of to neighbors.
            None for shuffling if each image has its own file.
        max_pixels, image_timeout, file_size, container_size, seed: see :func:`picstore.convert`.
        workers: see :func:`picstore.convert`.
        resume: continue an index that was interrupted while it was written.
        max_errors, progress: see :func:`picstore.convert`.

    Raises:
        UsageError: no image of the source is stored unchanged in a file, or as for :func:`picstore.convert`.
        TooManyFailures, NotADataset, Unfinished, Damage, MissingDependency, PicstoreError: as for
            :func:`picstore.convert`.
    """
    given, started = locals(), time.monotonic()
    require_range("image_timeout", image_timeout, 0, 86_400)
    settings = encode_settings(given)
    with open_display("index", progress) as display:
        display.begin_stage("starting")
        require_apart_from_source(out, source)
        refuse_destination(out, resume=resume)
        start_fork_server(settings)  # Start the server process now, so that it imports modules while this process does.
        from picstore.prepare.convert import input_records as references
        from picstore.prepare.convert.conversion_job import ConvertOptions, convert
        from picstore.prepare.image.map_requests import parse_requests
        from picstore.storage.location.resolve import locate
        from picstore.verbs.conversion import Conversion, dataset_shape, parse_limit

        parse_limit(max_errors)  # Reject an invalid limit now rather than after hours of work.
        shape = dataset_shape(given, {"streams": 1})
        requests = parse_requests(maps)
        location, folder = locate(source).absolute(), None if root is None else locate(root)
        conversion = Conversion(display, started)
        with open_engine("local", workers) as processes:
            listing = conversion.list_inputs(location, {**given, "root": folder}, engine=processes, maps=requests)
            references.require_references(listing)
            if references.is_of_files(listing) if shuffle is None else shuffle:
                listing = references.shuffled(listing, shape.seed)
            conversion.wait_for_kernels()
            options = ConvertOptions(
                encode=settings,
                shape=shape,
                workers=processes,
                progress=display,
                image_timeout=image_timeout,
                references=references.references_root(location, folder),
            )
            done = convert(listing, out, options, resume=resume)
    return conversion.finish(done, out, max_errors=max_errors)
