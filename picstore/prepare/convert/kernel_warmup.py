"""Loading of a conversion's code; imports little, so that a fork server starts before all else is imported."""

from __future__ import annotations

import importlib

from picstore.prepare.engine import worker_processes
from picstore.prepare.image.encode_settings import EncodeSettings


def start_fork_server(encode: EncodeSettings) -> None:
    """Start the fork server, which loads, or on first use compiles, the code for these settings."""
    worker_processes.start_fork_server(*_modules(encode))


def load_kernels(encode: EncodeSettings) -> None:
    """Load, or on first use compile, the code for these settings in this process."""
    for name in _modules(encode):
        importlib.import_module(name)


def _modules(encode: EncodeSettings) -> list[str]:
    """Return the names of the modules whose import loads the code for some settings."""
    names = ["warmup", "warmup_pixels"] if encode.resize is not None or encode.reencode else ["warmup"]
    return [f"picstore.prepare.convert.{name}" for name in names]
