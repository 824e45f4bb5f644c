"""Steps that ``convert``, ``append``, ``index`` and ``merge`` share, from reading their arguments to their result."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from picstore.cores import count_cores
from picstore.display.progress import Display
from picstore.errors import TooManyFailures, UsageError, counted
from picstore.prepare.convert.conversion_job import StageClock
from picstore.prepare.convert.finish_dataset import ConversionResult
from picstore.prepare.convert.map_inputs import with_maps
from picstore.prepare.convert.row_division import DatasetShape
from picstore.prepare.engine.worker_processes import Engine, wait_for_fork_server
from picstore.prepare.image.map_requests import MapRequest
from picstore.prepare.sources.dedupe import mark_duplicates
from picstore.prepare.sources.inputs import Listing
from picstore.prepare.sources.open import open_source
from picstore.results import ConvertResult, ReasonCount
from picstore.storage.location.resolve import Where, locate
from picstore.storage.sizes import parse_size
from picstore.verbs.common_arguments import given_arguments

# Arguments of ``convert`` and ``index`` that are passed to ``open_source``, because they say how to read the source.
_SOURCE = (
    *("kind", "root", "synsets", "annotations", "image_field", "label_field"),
    *("split", "targets", "hidden", "classes"),
)


def open_inputs(
    source: Where, arguments: Mapping[str, Any], engine: Engine, maps: Sequence[MapRequest] = ()
) -> Listing:
    """List the inputs of a source; ``arguments`` are the verb's arguments that say how to read the source."""
    options = given_arguments(arguments, _SOURCE)
    fields = tuple(each.name for each in maps if not each.files)
    return open_source(source, engine=engine, maps=fields, **{**options, "hidden": options["hidden"] or None})


def dataset_shape(arguments: Mapping[str, Any], stored: Mapping[str, Any] | None = None) -> DatasetShape:
    """Return a dataset's streams, sizes and seed: arguments that are not None, else ``stored`` values, else defaults.

    Raises:
        UsageError: an argument is out of range.
    """
    names = DatasetShape.__slots__
    values = {**given_arguments(stored or {}, names), **given_arguments(arguments, names)}
    for name in ("file_size", "container_size"):
        if name in values:
            values[name] = parse_size(values[name])
    return DatasetShape(**values)


def parse_limit(max_errors: int | str) -> Callable[[int], float]:
    """Parse ``max_errors``, such as ``10`` or ``1%``, as a function from the number of inputs to how many may fail.

    Raises:
        UsageError: the text is neither a number nor a percentage.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(%?)", str(max_errors).strip())
    if match is None or (not match[2] and "." in match[1]):
        raise UsageError(f"max_errors {max_errors!r} is neither a number of inputs nor a percentage such as 1%")
    limit = float(match[1])
    return (lambda inputs: inputs * limit / 100) if match[2] else (lambda _: limit)


class Conversion:
    """Stages of a conversion, from listing the inputs to returning the result.

    Args:
        started: value of ``time.monotonic()`` when the conversion began.
    """

    def __init__(self, display: Display, started: float) -> None:
        self._display, self._started = display, started
        self._clock = StageClock(display, "starting", started)
        self._remarks: list[str] = []

    def list_inputs(
        self,
        source: Where,
        arguments: Mapping[str, Any],
        *,
        engine: Engine,
        dedupe: bool = False,
        maps: Sequence[MapRequest] = (),
    ) -> Listing:
        """List the inputs of a source, and show the remarks that the listing has, such as on skipped files."""
        self._clock.begin_stage("listing")
        listing = with_maps(open_inputs(source, arguments, engine, maps), maps)
        for remark in listing.remarks:
            self._display.remark(remark)
        self._remarks += listing.remarks
        if dedupe:
            self._clock.begin_stage("dedupe")
            listing = mark_duplicates(listing, workers=count_cores())
        return listing

    def wait_for_kernels(self) -> None:
        """Wait until the fork server has loaded or compiled the kernels; compiling shows a progress bar of its own."""
        self._clock.begin_stage("kernels")
        wait_for_fork_server()
        self._clock.end_stage()

    def finish(self, done: ConversionResult, out: Where, *, max_errors: int | str) -> ConvertResult:
        """Return the result of a conversion; raise TooManyFailures with the result if too many inputs failed."""
        self._clock.end_stage()
        manifest, tally = done.manifest, done.tally
        reasons = [(key, count) for key, count in tally.reasons.most_common() if any(key[1:])]
        stages = {**self._clock.seconds, **done.seconds}
        result = ConvertResult(
            dataset=str(locate(out)),
            uuid=manifest.uuid if manifest else None,
            inputs=tally.inputs,
            images=manifest.images if manifest else tally.images,
            classes=len(manifest.classes) if manifest else None,
            bytes=manifest.bytes if manifest else None,
            seconds=round(time.monotonic() - self._started, 3),
            stages={stage: round(value, 3) for stage, value in stages.items()},
            outcome=tally.outcome(),
            status=dict(tally.status),
            formats=tally.formats(),
            reasons=[ReasonCount(status=status, reason=reason, count=count) for (status, reason), count in reasons],
            remarks=self._remarks,
        )
        if tally.failed + tally.lost > parse_limit(max_errors)(tally.inputs + tally.lost):
            ledger = f", see {locate(out) / 'ledger.jsonl'}" if manifest else ""
            lost = f", and about {tally.lost:,} more are lost in damaged files" if tally.lost else ""
            raise TooManyFailures(
                f"{tally.failed} of {counted(tally.inputs, 'input')} failed{lost}, more than --max-errors allows; "
                f"{locate(out)} is finished{ledger}",
                result,
            )
        return result
