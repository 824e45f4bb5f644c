"""Start of a conversion's fork server; imports little, so that the server starts before all else is imported."""

from __future__ import annotations

from picstore.prepare.engine import processes
from picstore.prepare.image.settings import EncodeSettings


def start_fork_server(encode: EncodeSettings) -> None:
    """Start the fork server, which loads, or on first use compiles, the code for these settings."""
    modules = ["warmup", "warmup_pixels"] if encode.resize is not None or encode.reencode else ["warmup"]
    processes.start_fork_server(*(f"picstore.prepare.convert.{name}" for name in modules))
