"""``picstore.merge``: join the shards of a conversion."""

from __future__ import annotations

import time
from collections.abc import Sequence

from picstore.display.progress import ProgressOption, open_display
from picstore.prepare.convert import merge_shards
from picstore.results import ConvertResult
from picstore.storage.location.overlap_check import require_apart
from picstore.storage.location.resolve import Where
from picstore.verbs.common_arguments import open_engine
from picstore.verbs.conversion import Conversion, parse_limit


def merge(
    out: Where,
    shards: Sequence[Where] = (),
    *,
    max_errors: int | str = "1%",
    workers: int | None = None,
    engine: str = "local",
    progress: ProgressOption = False,
) -> ConvertResult:
    """Join the shards that ``picstore.convert(…, shard="0/4")`` made to one data set, with the bytes of a single run.

    Args:
        out: where the data set is made; shards may have been converted there.
        shards: locations of other shards. Their files are linked, or copied between file systems, and stay.
        workers: number of processes that copy files; None for the number of cores.
        engine: "local", or "ray" for the cluster of RAY_ADDRESS, whose nodes must see all locations.
        max_errors, progress: as :func:`picstore.convert` has them.

    Raises:
        Unfinished: rows are missing; files copied so far stay for the next call.
        TooManyFailures: more inputs failed than ``max_errors`` allows; the data set is finished.
        UsageError: the shards are of different jobs, one is still being converted, or the destination is another
            data set.
        NotADataset, Damage: a location holds no shard, or its job file cannot be read.
        PicstoreError: files of a row were lost, or the cluster cannot be reached.
        MissingDependency: Ray is not installed.
    """
    started = time.monotonic()
    parse_limit(max_errors)
    require_apart(out, shards, may_be_equal=True)
    with open_engine(engine, workers) as processes, open_display("merge", progress) as display:
        conversion = Conversion(display, started)
        display.begin_stage("files")
        done = merge_shards.merge(out, shards, workers=processes)
    return conversion.finish(done, out, max_errors=max_errors)
