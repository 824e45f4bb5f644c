"""Option types, and options that several verbs share."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from picstore.errors import UsageError

if TYPE_CHECKING:
    from picstore.prepare.engine.processes import Engine
    from picstore.storage.location.resolve import Location

F = TypeVar("F", bound=Callable[..., Any])
PATH = click.Path(path_type=Path)


def location(text: str) -> Location:
    """Parse a path, or a URL of an object store."""
    from picstore.storage.location.resolve import locate

    return locate(text)


def size(text: str) -> int:
    """Parse a size in bytes: ``8MiB``, ``512KiB``, ``1GiB`` or a plain number."""
    from picstore.storage.sizes import parse_size

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


def max_errors(function: F) -> F:
    """Add ``--max-errors``."""
    return click.option(
        "--max-errors",
        metavar="N|P%",
        type=failure_limit,
        default="1%",
        show_default=True,
        help="Number or percentage of inputs that may fail; with more, the exit code is 3.",
    )(function)


def workers(function: F) -> F:
    """Add ``--workers``; None stands for the number of cores."""
    return click.option(
        "--workers", type=click.IntRange(min=1), help="Number of processes.  [default: number of cores]"
    )(function)


def as_json(function: F) -> F:
    """Add ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")(function)


def image_timeout(function: F) -> F:
    """Add ``--image-timeout``."""
    return click.option(
        "--image-timeout",
        type=click.FloatRange(0, 86_400),
        default=300,  # settings.IMAGE_TIMEOUT
        show_default=True,
        metavar="SECONDS",
        help="Maximum time to decode and encode an image, which fails if it takes longer; 0 for no limit.",
    )(function)


def measure(function: F) -> F:
    """Add ``--measure`` and ``--plot``."""
    number = click.option(
        "--measure",
        type=click.IntRange(1),
        is_flag=False,
        flag_value=200,
        metavar="[N]",
        help="Encode N images (200 if N is omitted) at several qualities and subsamplings, print PSNR, SSIM and bytes, "
        "and convert nothing.",
    )
    return number(
        click.option(
            "--plot", type=PATH, metavar="FILE", help="SVG file for a plot of --measure; needs picstore[plot]."
        )(function)
    )


def seed(function: F) -> F:
    """Add ``--seed``."""
    return click.option(
        "--seed", type=click.IntRange(0, (1 << 64) - 1), default=0, show_default=True, help="Random seed."
    )(function)


def cache(function: F) -> F:
    """Add ``--cache`` and ``--cache-limit``."""
    function = click.option(
        "--cache-limit", metavar="SIZE", default="50GiB", show_default=True, help="Maximum size of the --cache folder."
    )(function)
    return click.option(
        "--cache", metavar="DIR", type=PATH, help="Folder that caches containers of a remote data set.  [default: none]"
    )(function)


def engine(function: F) -> F:
    """Add ``--engine``."""
    return click.option(
        "--engine",
        type=click.Choice(["local", "ray"]),
        default="local",
        show_default=True,
        help="Run on this machine (local), or on the Ray cluster of RAY_ADDRESS (ray, needs picstore[ray]).",
    )(function)


def make_engine(engine: str, workers: int | None) -> AbstractContextManager[Engine]:
    """Make the engine of ``--engine`` and ``--workers``."""
    from picstore.prepare.engine.processes import LocalEngine, default_workers

    if engine == "ray":
        from picstore.prepare.engine.ray import connect

        return connect(workers)
    return nullcontext(LocalEngine(workers or default_workers()))
