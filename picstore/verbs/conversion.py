"""The listing of inputs and the result of ``convert``, ``append``, ``index`` and ``merge``."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from picstore.cores import count_cores
from picstore.display.progress import Display
from picstore.errors import TooManyFailures, UsageError
from picstore.prepare.convert.finish_dataset import ConversionResult
from picstore.prepare.convert.ledger import Tally
from picstore.prepare.engine.worker_processes import Engine, wait_for_fork_server
from picstore.prepare.sources.dedupe import mark_duplicates
from picstore.prepare.sources.inputs import Listing
from picstore.prepare.sources.open import open_source
from picstore.results import ConvertResult, FormatCount, ReasonCount
from picstore.storage.location.resolve import Where, locate


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The arguments that say how to read a source; see :func:`open_source`."""

    kind: str
    root: Where | None
    synsets: Where | None
    annotations: Where | None
    image_field: str | None
    label_field: str | None
    split: str | None
    targets: str | None
    hidden: bool
    classes: Where | None

    def open(self, source: Where, engine: Engine) -> Listing:
        """List the inputs of a source."""
        given = {name: getattr(self, name) for name in self.__slots__}
        return open_source(source, engine=engine, **{**given, "hidden": self.hidden or None})


def parse_limit(max_errors: int | str) -> Callable[[int], float]:
    """Parse a number of inputs, ``10``, or a fraction of them, ``1%``, to a function of the number of inputs.

    Raises:
        UsageError: it is neither.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(%?)", str(max_errors).strip())
    if match is None or (not match[2] and "." in match[1]):
        raise UsageError(f"max_errors {max_errors!r} is neither a number of inputs nor a percentage such as 1%")
    limit = float(match[1])
    return (lambda inputs: inputs * limit / 100) if match[2] else (lambda _: limit)


@dataclass(slots=True)
class Conversion:
    """A conversion from its start to its result.

    Attributes:
        started: by the monotonic clock.
        seconds: of its stages so far.
        remarks: on the source.
    """

    display: Display
    started: float
    seconds: dict[str, float] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    _before: float = 0.0

    def __post_init__(self) -> None:
        self._end_stage("starting")

    def _end_stage(self, stage: str) -> None:
        now = time.monotonic() - self.started
        self.seconds[stage] = now - self._before
        self._before = now

    def list_inputs(self, source: Where, options: SourceOptions, *, engine: Engine, dedupe: bool = False) -> Listing:
        """List the inputs of a source, and tell its remarks on them."""
        self.display.begin_stage("listing")
        listing = options.open(source, engine)
        for remark in listing.remarks:
            self.display.remark(remark)
        self.remarks += listing.remarks
        self._end_stage("listing")
        if dedupe:
            self.display.begin_stage("dedupe")
            listing = mark_duplicates(listing, workers=count_cores())
            self._end_stage("dedupe")
        return listing

    def wait_for_kernels(self) -> None:
        """Wait until the engine has loaded the kernels, or has compiled them, which a bar of their own shows."""
        self.display.begin_stage("kernels")
        wait_for_fork_server()
        self._end_stage("kernels")

    def finish(self, done: ConversionResult, out: Where, *, max_errors: int | str) -> ConvertResult:
        """Make the result; TooManyFailures, with the result, if more inputs failed than ``max_errors`` allows."""
        manifest, tally = done.manifest, done.tally
        reasons = [(key, count) for key, count in tally.reasons.most_common() if any(key[1:])]
        stages = {**self.seconds, **done.seconds}
        result = ConvertResult(
            dataset=str(locate(out)),
            uuid=manifest.uuid if manifest else None,
            inputs=tally.inputs,
            images=manifest.images if manifest else tally.images,
            classes=len(manifest.classes) if manifest else None,
            bytes=manifest.bytes if manifest else None,
            seconds=round(time.monotonic() - self.started, 3),
            stages={stage: round(value, 3) for stage, value in stages.items()},
            outcome=tally.outcome(),
            status=dict(tally.status),
            formats=count_formats(tally),
            reasons=[ReasonCount(status=status, reason=reason, count=count) for (status, reason), count in reasons],
            remarks=self.remarks,
        )
        if tally.failed + tally.lost > parse_limit(max_errors)(tally.inputs + tally.lost):
            ledger = f", see {locate(out) / 'ledger.jsonl'}" if manifest else ""
            lost = f", and about {tally.lost:,} more are lost in damaged files" if tally.lost else ""
            raise TooManyFailures(
                f"{tally.failed} of {tally.inputs} inputs failed{lost}, more than --max-errors allows; "
                f"{locate(out)} is finished{ledger}",
                result,
            )
        return result


def count_formats(tally: Tally) -> list[FormatCount]:
    """Count the converted inputs by format of the source, the most frequent first."""
    return [
        FormatCount(
            format=name, inputs=of.inputs, lossless=of.lossless, source_bytes=of.source_bytes, jpeg_bytes=of.bytes
        )
        for name, of in tally.formats().items()
    ]
