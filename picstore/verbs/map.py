"""``picstore.map``: make a column of a dataset by a function of its images."""

from __future__ import annotations

import math
import pickle
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Literal, get_args

from picstore.display.progress import ProgressOption, open_display
from picstore.errors import UsageError
from picstore.results import MapResult, ReasonCount
from picstore.verbs.common_arguments import count_workers, open_dataset, open_engine

if TYPE_CHECKING:
    from picstore.storage.dataset import Dataset
    from picstore.storage.location.resolve import Where
    from picstore.train.batch import Batch
    from picstore.train.transforms.transform_plan import Transforms

MapEngine = Literal["threads", "processes", "ray"]


def map(  # noqa: A001 - the name of the public function
    dataset: Where | Dataset,
    function: Callable[[Batch], Any],
    *,
    column: str,
    transform: Transforms | None = None,
    size: int = 224,
    batch_size: int = 64,
    dtype: Any = None,
    reducing_gap: float | None = None,
    targets: Sequence[str] = (),
    where: str | None = None,
    root: Where | None = None,
    engine: MapEngine = "threads",
    workers: int | None = None,
    resume: bool = False,
    max_errors: int | str = "1%",
    progress: ProgressOption = False,
) -> MapResult:
    """Call a function with batches of a dataset's images, and save the values that it returns as a column.

    Each value is stored under its record's id. All values are saved together at the end; until then the dataset is
    unchanged. An interrupted run continues with ``resume``. An image that is damaged, or for which the function raises
    an exception, gets no value; the ledger, ``map-COLUMN.jsonl`` in the dataset, has a line for each such image. The
    function is called with gradients disabled.

    Args:
        dataset: path or URL, or an open dataset or selection. Records outside of the selection keep their values.
        function: function that takes a :class:`Batch` on the CPU, as a training loop does, and returns a tensor, an
            array or a list with one value for each image: a number, a string, a boolean, which becomes 0 or 1, or an
            array of numbers, whose shape must be the same for all images. If the function raises an exception for a
            batch, it is called again for each image of the batch alone.
        column: name of the column; an existing column is replaced.
        transform: list of transforms, as for :class:`Loader`, without transforms of whole batches; None for
            Resize(size) and CenterCrop(size).
        size: width and height of the images in pixels, if ``transform`` is None.
        batch_size: largest number of images in a batch.
        dtype, reducing_gap, targets: as for :class:`Loader`.
        where: see :func:`picstore.shuffle`.
        root: see :func:`picstore.info`.
        engine: "threads" calls the function in this process, one batch at a time, while threads make the next batches;
            "processes" calls it in several processes of this machine, and "ray" in tasks on a Ray cluster. Such a
            process must be able to import the function's module. The values do not depend on the engine.
        workers: number of threads, processes or tasks; None for the number of cores.
        resume: continue an interrupted run, with the same function.
        max_errors: number or percentage of images that may get no value.
        progress: see :func:`picstore.convert`.

    Raises:
        UsageError: an argument is wrong, the function returned values that no column can hold, or the dataset cannot be
            edited. Nothing is written.
        Unfinished: an earlier run for the column was interrupted, and ``resume`` is false.
        TooManyFailures: more images have no value than ``max_errors`` allows. The column is not written.
        NotADataset, UnsupportedVersion, Damage: the dataset cannot be opened.
        Conflict: each attempt to save the column failed, because another process had just edited the dataset.
        MissingDependency, PicstoreError: Ray is not installed, the cluster cannot be reached, or a process died twice.
    """
    started = time.monotonic()
    if engine not in get_args(MapEngine):
        raise UsageError(f"engine {engine!r} is unknown; known are {', '.join(get_args(MapEngine))}")
    _check_function(function, engine)
    count = count_workers(workers)
    with open_display("map", progress) as display:
        display.begin_stage("starting")
        from picstore.prepare.engine.worker_processes import LocalEngine
        from picstore.train.map_batches import make_map_job
        from picstore.train.map_column import describe_value, make_mapped_column
        from picstore.train.transforms.crops import CenterCrop
        from picstore.train.transforms.resizing import Resize
        from picstore.verbs.conversion import parse_limit

        limit = parse_limit(max_errors)
        selected = open_dataset(dataset, root)
        if where is not None:
            selected = selected.where(where)
        job = make_map_job(
            selected,
            function,
            transform=[Resize(size), CenterCrop(size)] if transform is None else transform,
            targets=targets,
            dtype=dtype,
            reducing_gap=reducing_gap,
            batch_size=batch_size,
        )
        settings = {
            "function": _name(function),
            "batch_size": job.batch_size,
            "transform": describe_value([job.source.plan, job.callables]),
            "dtype": job.output.dtype,
        }
        local = nullcontext(count if engine == "threads" else LocalEngine(count, math.inf))
        with open_engine("ray", workers) if engine == "ray" else local as processes:
            made = make_mapped_column(
                selected,
                job,
                column,
                settings=settings,
                engine=processes,
                resume=resume,
                limit=limit(len(selected)),
                progress=display,
            )
    reasons = Counter(failure.reason for failure in made.failures).most_common()
    return MapResult(
        dataset=str(selected.path),
        column=column,
        uuid=made.uuid,
        images=len(selected),
        values=made.values,
        form=None if made.form is None else str(made.form),
        failed=len(made.failures),
        reasons=[ReasonCount(status="failed", reason=reason, count=count) for reason, count in reasons],
        ledger=made.ledger,
        seconds=round(time.monotonic() - started, 3),
    )


def _name(function: Any) -> str:
    """Return a function's module and name, by which a resumed run checks that it has the interrupted run's function."""
    named = function if hasattr(function, "__qualname__") else getattr(function, "func", type(function))
    return f"{named.__module__}.{named.__qualname__}"


def _check_function(function: Any, engine: str) -> None:
    if not callable(function):
        raise UsageError(f"function is {function!r}; give a function of a batch")
    if engine != "processes":
        return
    remedy = 'define it in a module of its own, or give engine="threads"'
    try:
        pickled = pickle.dumps(function)
    except Exception as error:  # An object's ``__reduce__``, which pickle calls, may raise any exception.
        raise UsageError(f"a process cannot have the function: {error}; {remedy}") from error
    if b"__main__" in pickled:
        raise UsageError(f"processes do not import your main module, which defines {function!r}; {remedy}")
