"""Option types and options that several verbs share."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])
PATH = click.Path(path_type=Path)

_UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}


def size(text: str) -> int:
    """A size in bytes: ``8MiB``, ``512KiB``, ``1GiB`` or a plain number."""
    match = re.fullmatch(r"\s*(\d{1,18})\s*([A-Za-z]*)\s*", text)
    if match is None or match[2].upper() not in _UNITS:
        raise click.BadParameter(f"{text!r} is not a size; write 8MiB, 512KiB or a number of bytes")
    return int(match[1]) * _UNITS[match[2].upper()]


def share(text: str) -> Callable[[int], float]:
    """A number of inputs, or a share of them, ``10`` or ``1%``: a function of how many there are."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(%?)", text.strip())
    if match is None or (not match[2] and "." in match[1]):
        raise click.BadParameter(f"{text!r} is neither a number of inputs nor a share such as 1%")
    limit = float(match[1])
    return (lambda inputs: inputs * limit / 100) if match[2] else (lambda _: limit)


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
        help="Instead of converting, encode N images (200) at a range of qualities, and print PSNR, SSIM and bytes.",
    )
    return number(click.option("--plot", type=PATH, metavar="FILE", help="Also draw these, as SVG.")(function))


def seed(function: F) -> F:
    """``--seed``."""
    return click.option(
        "--seed", type=click.IntRange(0, (1 << 64) - 1), default=0, show_default=True, help="Of the permutations."
    )(function)


def engine(function: F) -> F:
    """``--engine``."""
    return click.option(
        "--engine",
        type=click.Choice(["local"]),
        default="local",
        show_default=True,
        expose_value=False,
        help="Where the work runs.",
    )(function)
