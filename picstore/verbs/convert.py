"""``picstore.convert``: write a dataset of images, or add images to a dataset."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

from picstore.display.progress import ProgressOption, open_display
from picstore.errors import UsageError
from picstore.results import ConvertResult
from picstore.verbs.common_arguments import (
    EngineName,
    encode_settings,
    open_engine,
    refuse_destination,
    require_apart_from_source,
    require_range,
    start_fork_server,
)

if TYPE_CHECKING:
    from picstore.storage.location.resolve import Where

P = ParamSpec("P")
R = TypeVar("R")


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
    maps: Sequence[str] = (),
    keep_alpha: str | None = None,
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
    streams: int | None = None,
    file_size: int | str | None = None,
    container_size: int | str | None = None,
    seed: int | None = None,
    workers: int | None = None,
    engine: EngineName = "local",
    shard: str | None = None,
    append: bool = False,
    resume: bool = False,
    retry_failed: bool = False,
    dedupe: bool = False,
    max_errors: int | str = "1%",
    progress: ProgressOption = False,
) -> ConvertResult:
    """Convert the images of a source, in many formats, to a dataset.

    An interrupted conversion leaves no process and no finished dataset; the same call with ``resume=True`` continues
    it. No main guard is needed: the processes do not import the caller's main module.

    Args:
        source: path or URL of the images.
        out: path or URL of the dataset, which must not exist or must be empty.
        kind: format of SRC: auto (look at SRC), folder (a sub-folder per class), list (lines `path label`), table (CSV
            or JSONL), imagenet (a tar per synset), coco, voc, yolo, webdataset, mds, litdata, ffcv, parquet, lmdb,
            hdf5, recordio, tfrecord, picpoc, index (of `picstore index`), or a source of another package.
        root: folder that the paths in a list or table are relative to, and must lie below; for an index, the folder or
            URL of its images. None for the folder of SRC, or the folder that an index names, if you made the index.
        synsets: file of synset names in the order of labels, for imagenet; None for sorted names.
        annotations: COCO file of objects or keypoints, for coco.
        image_field: column or field that holds the image. None for the one with a usual name.
        label_field: column or field that holds the label. None for the one with a usual name.
        split: split to read if SRC holds several, such as train, val or test; all reads all shards together.
        targets: forms of the fields that describe objects, separated by commas: boxes:xyxy, boxes:xywh or boxes:cxcywh,
            polygons, keypoints; for coordinates from 0 to 1, boxes:xyxy-normalized, polygons:normalized and so on. None
            for metadata, unless SRC defines targets, as COCO does.
        maps: map to store beside each image, such as depth, and what its values mean: a name, =PATTERN if files lie
            beside the images (* is an image's name without suffix), and any of dtype, channels, scale, unit,
            interpolation, fill and invalid, such as depth=../depth/*.png,scale=0.001,unit=m,interpolation=linear; see
            docs/maps.md.
        keep_alpha: map in which to store the alpha of transparent images, such as map:alpha; otherwise their alpha is
            lost.
        hidden: include files and folders whose names begin with a dot, which are otherwise only counted.
        classes: file of class names, one per line, in the order of labels. None for names found in SRC.
        resize: size of the stored images: shorter:256 or longer:512 (keep the ratio, never enlarge), or 256x256. None
            for the size of the source image.
        quality: JPEG quality, 1 to 100; None for 90.
        subsampling: chroma subsampling; None for 420.
        background: background color of transparent images; None for ffffff.
        max_pixels: maximum number of pixels of an image; larger images fail. None for 268435456.
        image_timeout: maximum time in seconds to decode and encode an image, which fails if it takes longer; 0 for no
            limit.
        reencode: re-encode JPEGs that could be stored without loss.
        encoder: JPEG encoder; mozjpeg needs picstore[mozjpeg]. None for turbo.
        streams: number of sub-directories that images are spread over; None for 16.
        file_size: target size of each file; None for 256MiB.
        container_size: target size of a container, the unit of reading and checking; None for 8MiB.
        seed: random seed by which images are distributed to streams; None for 0.
        workers: number of processes, which does not change the result; None for the number of cores.
        engine: run on this machine (local), or on the Ray cluster of RAY_ADDRESS (ray, needs picstore[ray]).
        shard: convert only shard I (from 0) of N; :func:`picstore.merge` joins the shards. None for all of SRC.
        append: add the images to the finished dataset DST, whose settings are then the defaults of the other options.
        resume: continue an interrupted conversion.
        retry_failed: convert the failed inputs of the finished dataset DST again, and read no other inputs.
        dedupe: convert only the first of several inputs with equal bytes.
        max_errors: number or percentage of inputs that may fail; with more, the exit code is 3.
        progress: True shows a bar, or a line a minute without a terminal; a function is called with a
            :class:`picstore.results.ProgressReport`.

    Returns:
        With ``append``, ``images``, ``classes`` and ``bytes`` of the result describe the whole dataset, and the counts
        of inputs describe only the new inputs.

    Raises:
        TooManyFailures: more inputs failed than ``max_errors`` allows. The dataset is finished, and ``result`` of the
            error describes it.
        UsageError: an argument is out of range, or contradicts another or the destination.
        NotADataset: the source holds no images, or the destination holds other files.
        Unfinished: a conversion was begun in the destination, and ``resume`` is false.
        Conflict: while images were appended, the classes were changed, or another append ended.
        Damage: the source or a job file is damaged.
        MissingDependency: a library is not installed.
        PicstoreError: a store cannot be reached, or a process keeps dying.
    """
    given, started = locals(), time.monotonic()
    if append + retry_failed + (shard is not None) > 1:
        raise UsageError("append, retry_failed and shard exclude each other; leave out all but one")
    require_range("image_timeout", image_timeout, 0, 86_400)
    with open_display("convert", progress) as display:
        display.begin_stage("starting")
        require_apart_from_source(out, source)
        stored = _stored_settings(out) if append else {}
        from picstore.prepare.image.map_requests import parse_requests

        settings = encode_settings(given, stored.get("encode"))
        requests = parse_requests(maps)
        from picstore.prepare.convert.row_division import Shard

        one_shard = None if shard is None else Shard.parse(shard)
        if not append and not retry_failed:
            refuse_destination(out, resume=resume, shard=one_shard)
        start_fork_server(settings)  # Start the server process now, so that it imports modules while this process does.
        from picstore.prepare.convert import append_images, conversion_job, retry
        from picstore.prepare.convert.map_inputs import require_stored_maps, with_alpha
        from picstore.verbs.conversion import Conversion, dataset_shape, parse_limit

        parse_limit(max_errors)  # Reject an invalid limit now rather than after hours of work.
        shape = dataset_shape(given, stored.get("shape"))
        conversion = Conversion(display, started)
        with open_engine(engine, workers) as processes:
            if append:
                requests = require_stored_maps(requests, stored["maps"])
            listing = conversion.list_inputs(source, given, engine=processes, dedupe=dedupe, maps=requests)
            listing = with_alpha(listing, keep_alpha)
            conversion.wait_for_kernels()
            options = conversion_job.ConvertOptions(
                encode=settings, shape=shape, workers=processes, progress=display, image_timeout=image_timeout
            )
            if append:
                done = append_images.append(listing, out, options, resume=resume)
            elif retry_failed:
                done = retry.retry_failed(listing, out, options)
            else:
                done = conversion_job.convert(listing, out, options, resume=resume, shard=one_shard)
    return conversion.finish(done, out, max_errors=max_errors)


def _stored_settings(out: Where) -> dict[str, Any]:
    from picstore.storage.location.resolve import locate
    from picstore.storage.manifest import read_manifest

    manifest = read_manifest(locate(out))
    shape = {"container_size": manifest.container_size, **manifest.provenance.get("shape", {})}
    return {"encode": manifest.encode, "shape": shape, "maps": manifest.provenance.get("maps", {})}


def _with_parameters_of(function: Callable[P, R], *without: str) -> Callable[[Callable[..., R]], Callable[P, R]]:
    """Return a decorator that gives a function the signature of ``function`` without the parameters ``without``."""

    def decorate(decorated: Callable[..., R]) -> Callable[P, R]:
        whole = inspect.signature(function)
        kept = [each for name, each in whole.parameters.items() if name not in without]
        decorated.__signature__ = whole.replace(parameters=kept)  # type: ignore[attr-defined]
        return decorated

    return decorate


@_with_parameters_of(convert, "append", "shard", "retry_failed")
def append(source: Where, out: Where, **options: Any) -> ConvertResult:
    """Add the images of a source to a finished dataset, as :func:`picstore.convert` does with ``append=True``.

    The dataset is complete at any time: readers see the new images only after all are written. An interrupted append
    leaves the dataset unchanged; the same call with ``resume=True`` continues the append. Options are those of
    :func:`picstore.convert` except ``shard`` and ``retry_failed``; a setting that is None is the dataset's.
    """
    return convert(source, out, append=True, **options)
