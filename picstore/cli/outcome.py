"""What became of the inputs of a conversion, in words."""

from __future__ import annotations


def text_of_outcome(outcome: dict[str, int]) -> str:
    """Such as ``399 lossless, 1 reencoded, 0 failed; 43.0 MB of JPEGs from 43.3 MB, -0.7 %``."""
    counts = ", ".join(f"{outcome[status]:,} {status}" for status in ("lossless", "reencoded", "failed"))
    source, jpeg = outcome["source_bytes"], outcome["jpeg_bytes"]
    if not source:
        return counts
    return f"{counts}; {jpeg / 1e6:,.1f} MB of JPEGs from {source / 1e6:,.1f} MB, {jpeg / source - 1:+.1%}"
