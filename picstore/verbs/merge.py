"""``picstore.merge``: join the shards of a conversion to one dataset."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from picstore.display.progress import ProgressOption, open_display
from picstore.results import ConvertResult
from picstore.verbs.common_arguments import EngineName, open_engine

if TYPE_CHECKING:
    from picstore.storage.location.resolve import Where


def merge(
    out: Where,
    shards: Sequence[Where] = (),
    *,
    max_errors: int | str = "1%",
    workers: int | None = None,
    engine: EngineName = "local",
    progress: ProgressOption = False,
) -> ConvertResult:
    """Join the shards that `picstore convert --shard` made to one dataset DST, with the bytes of a single run.

    Each SHARD is the destination of such a run; shards that were converted into DST itself are not named. The files of
    the shards are linked, or copied between file systems, and not removed. If shards are missing, the merge fails and
    can be repeated.

    Args:
        out: path or URL of the dataset; shards may have been converted there.
        shards: paths or URLs of the shards outside of ``out``.
        max_errors: see :func:`picstore.convert`.
        workers, engine, progress: see :func:`picstore.convert`.

    Raises:
        Unfinished: some images of the conversion are in no given shard; files that were copied stay for the next call.
        TooManyFailures: more inputs failed than ``max_errors`` allows; the dataset is finished.
        UsageError: the shards are of different jobs, a shard is still being converted, or the destination is another
            dataset.
        NotADataset, Damage: a location holds no shard, or its job file cannot be read.
        PicstoreError: files of a shard were lost, or the cluster cannot be reached.
        MissingDependency: Ray is not installed.
    """
    from picstore.prepare.convert import merge_shards
    from picstore.storage.location.overlap_check import require_apart
    from picstore.verbs.conversion import Conversion, parse_limit

    started = time.monotonic()
    parse_limit(max_errors)
    require_apart(out, shards, may_be_equal=True)
    with open_engine(engine, workers) as processes, open_display("merge", progress) as display:
        conversion = Conversion(display, started)
        display.begin_stage("files")
        done = merge_shards.merge(out, shards, workers=processes)
    return conversion.finish(done, out, max_errors=max_errors)
