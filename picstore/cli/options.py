"""Option types and options that several verbs share."""

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


def place(text: str) -> Location:
    """A data set's place: a path, or a URL of an object store."""
    from picstore.storage.location.resolve import locate

    return locate(text)


def size(text: str) -> int:
    """A size in bytes: ``8MiB``, ``512KiB``, ``1GiB`` or a plain number."""
    from picstore.storage.sizes import parse_size

    try:
        return parse_size(text)
    except UsageError as error:
        raise click.BadParameter(str(error)) from error


def share(text: str) -> Callable[[int], float]:
    """A number of inputs, or a share of them, ``10`` or ``1%``: a function of how many there are."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(%?)", text.strip())
    if match is None or (not match[2] and "." in match[1]):
        raise click.BadParameter(f"{text!r} is neither a number of inputs nor a share such as 1%")
    limit = float(match[1])
    return (lambda inputs: inputs * limit / 100) if match[2] else (lambda _: limit)


def max_errors(function: F) -> F:
    """``--max-errors``."""
    return click.option(
        "--max-errors",
        type=share,
        default="1%",
        show_default=True,
        help="Exit with code 3 if more inputs failed; the data set is finished all the same.",
    )(function)


def workers(function: F) -> F:
    """``--workers``: None stands for one a core."""
    return click.option("--workers", type=click.IntRange(min=1), help="Processes.  [default: one a core]")(function)


def as_json(function: F) -> F:
    """``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")(function)


def image_timeout(function: F) -> F:
    """``--image-timeout``."""
    return click.option(
        "--image-timeout",
        type=click.FloatRange(0, 86_400),
        default=300,  # settings.IMAGE_TIMEOUT
        show_default=True,
        metavar="SECONDS",
        help="An image fails that takes longer to decode and encode; 0: no limit.",
    )(function)


def measure(function: F) -> F:
    """``--measure`` and ``--plot``."""
    number = click.option(
        "--measure",
        type=click.IntRange(1),
        is_flag=False,
        flag_value=200,
        metavar="[N]",
        help="Instead of converting, encode N images (200) at a range of qualities, subsampled 4:2:0 and 4:4:4, and "
        "print PSNR, SSIM and bytes.",
    )
    return number(
        click.option("--plot", type=PATH, metavar="FILE", help="SVG file to draw these in; needs picstore[plot].")(
            function
        )
    )


def seed(function: F) -> F:
    """``--seed``."""
    return click.option(
        "--seed", type=click.IntRange(0, (1 << 64) - 1), default=0, show_default=True, help="Of the permutations."
    )(function)


def cache(function: F) -> F:
    """``--cache`` and ``--cache-limit``."""
    function = click.option(
        "--cache-limit", metavar="SIZE", default="50GiB", show_default=True, help="What FOLDER may hold."
    )(function)
    return click.option("--cache", metavar="FOLDER", type=PATH, help="Keep containers of a data set far away here.")(
        function
    )


def engine(function: F) -> F:
    """``--engine``."""
    return click.option(
        "--engine",
        type=click.Choice(["local", "ray"]),
        default="local",
        show_default=True,
        help="Where the work runs: on this machine, or on a Ray cluster (RAY_ADDRESS), which needs picstore[ray].",
    )(function)


def make_engine(engine: str, workers: int | None) -> AbstractContextManager[Engine]:
    """The engine that ``--engine`` and ``--workers`` ask for, while it is needed."""
    from picstore.prepare.engine.processes import LocalEngine, default_workers

    if engine == "ray":
        from picstore.prepare.engine.ray import connect

        return connect(workers)
    return nullcontext(LocalEngine(workers or default_workers()))
