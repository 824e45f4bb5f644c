"""What became of the inputs of a conversion, for people and as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from picstore.errors import TooManyFailures

if TYPE_CHECKING:
    from picstore.prepare.convert.finish import ConversionResult
    from picstore.prepare.convert.ledger import FormatTotals
    from picstore.storage.location.resolve import Location

_SHOWN_REASONS = 8
_SHOWN_FORMATS = 10


def text_of_outcome(outcome: dict[str, int]) -> str:
    """Such as ``399 lossless, 1 reencoded, 0 failed; 43.0 MB of JPEGs from 43.3 MB, -0.7 %``."""
    statuses = (name for name in ("lossless", "reencoded", "failed", "duplicate") if name in outcome)
    counts = ", ".join(f"{outcome[status]:,} {status}" for status in statuses)
    source, jpeg = outcome["source_bytes"], outcome["jpeg_bytes"]
    if not source:
        return counts
    return f"{counts}; {jpeg / 1e6:,.1f} MB of JPEGs from {source / 1e6:,.1f} MB" + _change(source, jpeg)


def report(
    converted: ConversionResult,
    destination: Location,
    seconds: float,
    *,
    as_json: bool,
    max_errors: Callable[[int], float],
) -> None:
    """Print what a conversion, or a shard of one, came to; TooManyFailures where more failed than is allowed."""
    if as_json:
        click.echo(json.dumps(_document(converted, destination, seconds)))
    else:
        _print(converted, destination, seconds)
    tally = converted.tally
    if tally.failed > max_errors(tally.inputs):
        ledger = f", see {destination / 'ledger.jsonl'}" if converted.manifest else ""
        raise TooManyFailures(
            f"{tally.failed} of {tally.inputs} inputs failed, more than --max-errors allows; "
            f"{destination} is finished{ledger}"
        )


def _document(converted: ConversionResult, destination: Location, seconds: float) -> dict[str, Any]:
    manifest, tally = converted.manifest, converted.tally
    return {
        "dataset": str(destination),
        "uuid": manifest.uuid if manifest else None,
        "inputs": tally.inputs,
        "images": manifest.images if manifest else tally.images,
        "bytes": manifest.bytes if manifest else None,
        "seconds": round(seconds, 3),
        "stages": {stage: round(value, 3) for stage, value in converted.seconds.items()},
        "outcome": tally.outcome(),
        "status": dict(tally.status),
        "formats": [
            {
                "format": name,
                "inputs": share.inputs,
                "lossless": share.lossless,
                "source_bytes": share.source_bytes,
                "jpeg_bytes": share.bytes,
            }
            for name, share in tally.formats().items()
        ],
        "reasons": [
            {"status": status, "reason": reason, "count": count} for (status, reason), count in _reasons(converted)
        ],
    }


def _reasons(converted: ConversionResult) -> list[tuple[tuple[str, str], int]]:
    return [(key, count) for key, count in converted.tally.reasons.most_common() if any(key[1:])]


def lines_of_formats(formats: dict[str, FormatTotals]) -> list[str]:
    """A line for each of the most frequent formats, and one for the others."""
    rows = list(formats.items())
    rest = rows[_SHOWN_FORMATS:]
    if len(rest) > 1:
        others = rest[0][1]
        for _, share in rest[1:]:
            others += share
        rows[_SHOWN_FORMATS:] = [(f"{len(rest)} others", others)]
    width = max((len(name) for name, _ in rows), default=0)
    return [
        f"  {share.inputs:>9,} {name:<{width}} {share.lossless:>9,} lossless, "
        f"{share.source_bytes / 1e6:,.1f} MB to {share.bytes / 1e6:,.1f} MB" + _change(share.source_bytes, share.bytes)
        for name, share in rows
    ]


def _change(before: int, after: int) -> str:
    return f", {after / before - 1:+.1%}" if before else ""


def _print(converted: ConversionResult, destination: Location, seconds: float) -> None:
    manifest, tally = converted.manifest, converted.tally
    made = f"of {len(manifest.classes)} classes, {manifest.bytes / 1e6:,.1f} MB" if manifest else "in this shard"
    rate = tally.inputs / max(seconds, 1e-9)
    images = manifest.images if manifest else tally.images
    click.echo(f"{destination}: {images:,} images {made}, {seconds:.1f} s ({rate:,.0f} images/s)")
    click.echo("  " + text_of_outcome(tally.outcome()))
    if converted.seconds:
        click.echo("  seconds: " + ", ".join(f"{stage} {value:.1f}" for stage, value in converted.seconds.items()))
    formats = tally.formats()
    for line in lines_of_formats(formats):
        click.echo(line)
    reasons = [item for item in _reasons(converted) if item[0][1] not in formats]
    for (status, reason), count in reasons[:_SHOWN_REASONS]:
        click.echo(f"  {count:>9,} {status}: {reason}")
    others = len(reasons) - _SHOWN_REASONS
    if others > 0:
        click.echo(f"  and {others} other reasons" + (f", see {destination / 'ledger.jsonl'}" if manifest else ""))
