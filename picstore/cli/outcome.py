"""Outcome of a conversion: counts, bytes, formats and reasons, as text and as JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from picstore.cli.terminal import echo, echo_json
from picstore.errors import TooManyFailures

if TYPE_CHECKING:
    from picstore.prepare.convert.finish import ConversionResult
    from picstore.prepare.convert.ledger import FormatTotals
    from picstore.storage.location.resolve import Location

_SHOWN_REASONS = 8
_SHOWN_FORMATS = 10


def format_outcome(outcome: dict[str, int]) -> str:
    """Format as ``399 lossless, 1 reencoded, 0 failed; 43.0 MB of JPEGs from 43.3 MB, -0.7 %``."""
    indexed = outcome.get("indexed")
    known = ("indexed", "failed") if indexed else ("lossless", "reencoded", "failed", "duplicate")
    counts = ", ".join(f"{outcome[status]:,} {status}" for status in known if status in outcome)
    source, jpeg = outcome["source_bytes"], outcome["jpeg_bytes"]
    if indexed:
        return f"{counts}; {source / 1e6:,.1f} MB stay where they are"
    if not source:
        return counts
    return f"{counts}; {jpeg / 1e6:,.1f} MB of JPEGs from {source / 1e6:,.1f} MB" + _format_change(source, jpeg)


def report_outcome(
    result: ConversionResult,
    destination: Location,
    seconds: float,
    *,
    as_json: bool,
    max_errors: Callable[[int], float],
) -> None:
    """Print the result of a conversion or of a shard.

    Raises:
        TooManyFailures: more inputs failed than ``max_errors`` allows for their number.
    """
    if as_json:
        echo_json(_to_json(result, destination, seconds))
    else:
        _print(result, destination, seconds)
    tally = result.tally
    if tally.failed > max_errors(tally.inputs):
        ledger = f", see {destination / 'ledger.jsonl'}" if result.manifest else ""
        raise TooManyFailures(
            f"{tally.failed} of {tally.inputs} inputs failed, more than --max-errors allows; "
            f"{destination} is finished{ledger}"
        )


def _to_json(result: ConversionResult, destination: Location, seconds: float) -> dict[str, Any]:
    manifest, tally = result.manifest, result.tally
    return {
        "dataset": str(destination),
        "uuid": manifest.uuid if manifest else None,
        "inputs": tally.inputs,
        "images": manifest.images if manifest else tally.images,
        "bytes": manifest.bytes if manifest else None,
        "seconds": round(seconds, 3),
        "stages": {stage: round(value, 3) for stage, value in result.seconds.items()},
        "outcome": tally.outcome(),
        "status": dict(tally.status),
        "formats": [
            {"format": name, "inputs": of.inputs, "lossless": of.lossless}
            | {"source_bytes": of.source_bytes, "jpeg_bytes": of.bytes}
            for name, of in tally.formats().items()
        ],
        "reasons": [
            {"status": status, "reason": reason, "count": count} for (status, reason), count in _reasons(result)
        ],
    }


def _reasons(result: ConversionResult) -> list[tuple[tuple[str, str], int]]:
    """Return (status, reason) with its number of inputs, the most frequent first."""
    return [(key, count) for key, count in result.tally.reasons.most_common() if any(key[1:])]


def format_lines(formats: dict[str, FormatTotals]) -> list[str]:
    """Format a line for each of the most frequent formats, and one for all others."""
    rows = list(formats.items())
    rest = rows[_SHOWN_FORMATS:]
    if len(rest) > 1:
        others = rest[0][1]
        for _, totals in rest[1:]:
            others += totals
        rows[_SHOWN_FORMATS:] = [(f"{len(rest)} others", others)]
    width = max((len(name) for name, _ in rows), default=0)
    return [
        f"  {totals.inputs:>9,} {name:<{width}} {totals.lossless:>9,} lossless, "
        f"{totals.source_bytes / 1e6:,.1f} MB to {totals.bytes / 1e6:,.1f} MB"
        + _format_change(totals.source_bytes, totals.bytes)
        for name, totals in rows
    ]


def _format_change(before: int, after: int) -> str:
    return f", {after / before - 1:+.1%}" if before else ""


def _print(result: ConversionResult, destination: Location, seconds: float) -> None:
    manifest, tally = result.manifest, result.tally
    contents = f"of {len(manifest.classes)} classes, {manifest.bytes / 1e6:,.1f} MB" if manifest else "in this shard"
    rate = tally.inputs / max(seconds, 1e-9)
    images = manifest.images if manifest else tally.images
    echo(f"{destination}: {images:,} images {contents}, {seconds:.1f} s ({rate:,.0f} images/s)")
    echo("  " + format_outcome(tally.outcome()))
    if result.seconds:
        echo("  seconds: " + ", ".join(f"{stage} {value:.1f}" for stage, value in result.seconds.items()))
    formats = {} if manifest and manifest.references else tally.formats()
    for line in format_lines(formats):
        echo(line)
    reasons = [item for item in _reasons(result) if item[0][1] not in formats]
    for (status, reason), count in reasons[:_SHOWN_REASONS]:
        echo(f"  {count:>9,} {status}: {reason}")
    others = len(reasons) - _SHOWN_REASONS
    if others > 0:
        echo(f"  and {others} other reasons" + (f", see {destination / 'ledger.jsonl'}" if manifest else ""))
