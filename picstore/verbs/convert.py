"""``picstore.convert``: make a data set of images."""

from __future__ import annotations

import time

from picstore.display.progress import ProgressOption, open_display
from picstore.errors import UsageError
from picstore.prepare.convert.kernel_warmup import start_fork_server
from picstore.prepare.image.encode_settings import IMAGE_TIMEOUT, EncodeSettings, Size, parse_color
from picstore.results import ConvertResult
from picstore.storage.location.overlap_check import require_apart
from picstore.storage.location.resolve import Where
from picstore.storage.references import indexed_folder
from picstore.storage.sizes import parse_size


def convert(
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
    quality: int = 90,
    subsampling: str = "420",
    background: str | tuple[int, int, int] = "ffffff",
    max_pixels: int = 1 << 28,
    image_timeout: float = IMAGE_TIMEOUT,
    reencode: bool = False,
    encoder: str = "turbo",
    streams: int = 16,
    file_size: int | str = "256MiB",
    container_size: int | str = "8MiB",
    seed: int = 0,
    workers: int | None = None,
    engine: str = "local",
    shard: str | None = None,
    resume: bool = False,
    retry_failed: bool = False,
    dedupe: bool = False,
    max_errors: int | str = "1%",
    progress: ProgressOption = False,
) -> ConvertResult:
    """Convert the images of a source, in many formats, to a new data set.

    An interrupted conversion, by KeyboardInterrupt too, leaves no process and no finished data set; the same call with
    ``resume=True`` continues it. No main guard is needed: the processes do not import the caller's main module.

    Args:
        source: path or URL of the images.
        out: path or URL of the data set, which does not exist or is empty.
        kind: format of the source, as ``--source``; "auto" recognizes it.
        root: folder that the paths in a list or table are relative to; of an index, the folder of its images.
        synsets: file of synset names in the order of labels, for imagenet.
        annotations: COCO file of objects or keypoints.
        image_field, label_field: columns of image and label; None finds them by usual names.
        targets: form of fields that describe objects, such as "boxes:xywh" or "boxes:cxcywh-normalized,polygons";
            None for metadata, unless the source defines them, as COCO does.
        hidden: take files and folders whose names begin with a dot, which are counted otherwise.
        split: split to read where the source holds several, such as "train"; "all" for all shards together.
        classes: file of class names, one per line, in the order of labels.
        resize: "shorter:256", "longer:512" or "256x256"; None keeps the size.
        quality: of JPEGs, 1 to 100.
        subsampling: of the chroma, "420", "422" or "444".
        background: color under transparent pixels, "ffffff" or (255, 255, 255).
        max_pixels: of an image; larger images fail.
        image_timeout: seconds to decode and encode an image, which fails if it takes longer; 0 for no limit.
        reencode: re-encode also JPEGs that could be stored without loss.
        encoder: "turbo" or "mozjpeg".
        streams: number of sub-directories.
        file_size, container_size: target sizes, in bytes or such as "256MiB".
        seed: of the deal of images to streams.
        workers: number of processes; None for the number of cores. The result does not depend on it.
        engine: "local", or "ray" for the cluster of RAY_ADDRESS.
        shard: "0/4" converts only the first of four shards, which :func:`picstore.merge` joins.
        resume: continue an interrupted conversion.
        retry_failed: convert the failed inputs of the finished data set again, and read no others.
        dedupe: convert only the first of several inputs with equal bytes.
        max_errors: number or percentage of inputs that may fail.
        progress: True shows a bar, or a line a minute where there is no terminal; a function is called with a
            :class:`picstore.results.ProgressReport`.

    Raises:
        TooManyFailures: more inputs failed than ``max_errors`` allows. The data set is finished, and the error's
            ``result`` tells about it.
        UsageError: an argument is out of range, or contradicts another or the destination.
        NotADataset: the source holds no images, or the destination other files.
        Unfinished: a conversion was begun in the destination, and ``resume`` is false.
        Damage: the source or a job file is damaged.
        MissingDependency: a library is not installed.
        PicstoreError: a store cannot be reached, or a process dies again and again.
    """
    started = time.monotonic()
    if retry_failed and shard is not None:
        raise UsageError("retry_failed and shard exclude each other; leave one out")
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
        start_fork_server(settings)  # it imports while this process does
        from picstore.prepare.convert import conversion_job as driver
        from picstore.prepare.convert.resumable_job import DatasetShape, Shard
        from picstore.prepare.convert.retry import retry_failed as retry
        from picstore.verbs.common_arguments import open_engine
        from picstore.verbs.conversion import Conversion, SourceOptions, parse_limit

        parse_limit(max_errors)  # before hours of work
        one_shard = None if shard is None else Shard.parse(shard)
        sizes = {"file_size": parse_size(file_size), "container_size": parse_size(container_size)}
        shape = DatasetShape(streams=streams, seed=seed, **sizes)
        conversion = Conversion(display, started)
        options = SourceOptions(
            kind, root, synsets, annotations, image_field, label_field, split, targets, hidden, classes
        )
        with open_engine(engine, workers) as processes:
            require_apart(out, (source, *indexed_folder(source)))
            listing = conversion.list_inputs(source, options, engine=processes, dedupe=dedupe)
            conversion.wait_for_kernels()
            given = driver.ConvertOptions(
                encode=settings, shape=shape, workers=processes, progress=display, image_timeout=image_timeout
            )
            if retry_failed:
                done = retry(listing, out, given)
            else:
                done = driver.convert(listing, out, given, resume=resume, shard=one_shard)
    return conversion.finish(done, out, max_errors=max_errors)
