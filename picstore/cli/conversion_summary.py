"""Outcome of a conversion: counts, bytes, formats and reasons, as text and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from picstore.cli.terminal import echo, echo_json
from picstore.errors import TooManyFailures

if TYPE_CHECKING:
    from picstore.display.progress import Display
    from picstore.results import ConvertResult, FormatCount

_SHOWN_REASONS = 8
_SHOWN_FORMATS = 10


def format_outcome(outcome: dict[str, int]) -> str:
    """Format as ``399 lossless, 1 reencoded, 0 failed; 43.0 MB of JPEGs from 43.3 MB, -0.7 %``."""
    indexed = outcome.get("indexed")
    known = ("indexed", "failed", "lost") if indexed else ("lossless", "reencoded", "failed", "lost", "duplicate")
    counts = ", ".join(f"{outcome[status]:,} {status}" for status in known if status in outcome)
    source, jpeg = outcome["source_bytes"], outcome["jpeg_bytes"]
    if indexed:
        return f"{counts}; {source / 1e6:,.1f} MB stay where they are"
    if not source:
        return counts
    return f"{counts}; {jpeg / 1e6:,.1f} MB of JPEGs from {source / 1e6:,.1f} MB" + _format_change(source, jpeg)


def report_outcome(verb: str, convert: Callable[[Display], ConvertResult], *, as_json: bool) -> None:
    """Convert with the progress of a verb, and print the result, also when too many inputs failed."""
    from picstore.cli.progress import show_progress

    try:
        with show_progress(verb) as bar:
            result = convert(bar)
    except TooManyFailures as error:
        if error.result is not None:
            _print(error.result, as_json=as_json)
        raise
    _print(result, as_json=as_json)


def format_lines(formats: Iterable[FormatCount]) -> list[str]:
    """Format a line for each of the most frequent formats, and one for all others."""
    rows = [(each.format, each.inputs, each.lossless, each.source_bytes, each.jpeg_bytes) for each in formats]
    rest = rows[_SHOWN_FORMATS:]
    if len(rest) > 1:
        inputs, lossless, source, jpeg = (sum(row[k] for row in rest) for k in (1, 2, 3, 4))  # type: ignore[misc]
        rows[_SHOWN_FORMATS:] = [(f"{len(rest)} others", inputs, lossless, source, jpeg)]
    width = max((len(name) for name, *_ in rows), default=0)
    return [
        f"  {inputs:>9,} {name:<{width}} {lossless:>9,} lossless, "
        f"{source / 1e6:,.1f} MB to {jpeg / 1e6:,.1f} MB" + _format_change(source, jpeg)
        for name, inputs, lossless, source, jpeg in rows
    ]


def _format_change(before: int, after: int) -> str:
    return f", {after / before - 1:+.1%}" if before else ""


def _print(result: ConvertResult, *, as_json: bool) -> None:
    if as_json:
        echo_json(result.to_json())
        return
    contents = "in this shard"
    if result.bytes is not None:
        contents = f"of {result.classes} classes, {result.bytes / 1e6:,.1f} MB"
    rate = result.inputs / max(result.seconds, 1e-9)
    echo(f"{result.dataset}: {result.images:,} images {contents}, {result.seconds:.1f} s ({rate:,.0f} images/s)")
    echo("  " + format_outcome(result.outcome))
    if result.stages:
        echo("  seconds: " + ", ".join(f"{stage} {value:.1f}" for stage, value in result.stages.items()))
    formats = [] if result.outcome.get("indexed") else result.formats
    echo(*format_lines(formats))
    named = {each.format for each in formats}
    reasons = [each for each in result.reasons if each.reason not in named]
    for each in reasons[:_SHOWN_REASONS]:
        echo(f"  {each.count:>9,} {each.status}: {each.reason}")
    others = len(reasons) - _SHOWN_REASONS
    if others > 0:
        echo(f"  and {others} other reasons" + (f", see {result.dataset}/ledger.jsonl" if result.uuid else ""))
