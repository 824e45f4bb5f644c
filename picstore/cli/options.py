"""Option types, and options that several verbs share."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from picstore.errors import UsageError
from picstore.storage.sizes import parse_size

if TYPE_CHECKING:
    from picstore.prepare.engine.processes import Engine

PATH = click.Path(path_type=Path)


def size(text: str) -> int:
    """Parse a size in bytes: ``8MiB``, ``512KiB``, ``1GiB`` or a plain number."""
    try:
        return parse_size(text)
    except UsageError as error:
        raise click.BadParameter(str(error)) from error


def failure_limit(text: str) -> Callable[[int], float]:
    """Parse a number of inputs, ``10``, or a fraction of them, ``1%``, to a function of the number of inputs."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(%?)", text.strip())
    if match is None or (not match[2] and "." in match[1]):
        raise click.BadParameter(f"{text!r} is neither a number of inputs nor a percentage such as 1%")
    limit = float(match[1])
    return (lambda inputs: inputs * limit / 100) if match[2] else (lambda _: limit)


max_errors = click.option(
    "--max-errors",
    metavar="N|P%",
    type=failure_limit,
    default="1%",
    show_default=True,
    help="Number or percentage of inputs that may fail; with more, the exit code is 3.",
)
workers = click.option("--workers", type=click.IntRange(min=1), help="Number of processes.  [default: number of cores]")
as_json = click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
seed = click.option("--seed", type=click.IntRange(0, (1 << 64) - 1), default=0, show_default=True, help="Random seed.")
engine = click.option(
    "--engine",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Run on this machine (local), or on the Ray cluster of RAY_ADDRESS (ray, needs picstore[ray]).",
)


def make_engine(engine: str, workers: int | None) -> AbstractContextManager[Engine]:
    """Make the engine of ``--engine`` and ``--workers``."""
    from picstore.prepare.engine.processes import LocalEngine, default_workers

    if engine == "ray":
        from picstore.prepare.engine.ray import connect

        return connect(workers)
    return nullcontext(LocalEngine(workers or default_workers()))
