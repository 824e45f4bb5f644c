"""``picstore warm``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from picstore.cli import options
from picstore.cli.terminal import echo, echo_json
from picstore.errors import MissingDependency, PicstoreError


@click.command("warm")
@click.option(
    "--recipe",
    metavar="FILE|NAME",
    help="Compile what training by a recipe needs: a TOML file with a list `transform`, such as the configuration of "
    "a mux, or a name in picstore.recipes.  [default: what convert, and cropping and flipping, need]",
)
@click.option("--processes", type=click.IntRange(min=1), help="Processes that compile.  [default: number of cores]")
@options.as_json
def command(recipe: str | None, processes: int | None, as_json: bool) -> None:
    """Compile kernels now, which their first use would otherwise wait for, once on a machine.

    They are kept in NUMBA_CACHE_DIR, if it is set, else beside the package, or in the user's cache folder if that
    cannot be written.
    """
    from picstore.kernels.ahead import compile_ahead
    from picstore.kernels.cache import cache_folders

    kernels = _kernels_of_convert() if recipe is None else []
    try:
        kernels += _kernels_of_training(recipe)
    except MissingDependency:
        if recipe is not None:
            raise
    folder = cache_folders()[0]
    if folder is None:
        raise PicstoreError("no folder for compiled kernels can be written; set NUMBA_CACHE_DIR to one")
    done = compile_ahead(kernels, processes=processes)
    if as_json:
        echo_json({**asdict(done), "folder": str(folder)})
    else:
        compiled = f"{done.compiled} kernel{'s' * (done.compiled != 1)} compiled in {done.seconds:.1f} s"
        echo(f"{compiled}, {done.cached} were there; in {folder}")


def _kernels_of_convert() -> list[Any]:
    from picstore.prepare.convert.needed_kernels import MARKERS_AND_ENCODER, PIXELS

    return [*MARKERS_AND_ENCODER, *PIXELS]


def _kernels_of_training(recipe: str | None) -> list[Any]:
    import picstore
    from picstore.recipes import find_recipe
    from picstore.train.core import make_output
    from picstore.train.cpu.needed_kernels import needed_kernels
    from picstore.train.transforms.compose import plan_transforms

    standard: list[Any] = [picstore.RandomResizedCrop(224), picstore.RandomHorizontalFlip()]
    lists, given = ([standard], {}) if recipe is None else find_recipe(recipe)
    plans = [plan_transforms(each, targets=tuple(given.get("targets", ())))[0] for each in lists]
    return needed_kernels(plans, make_output(plans, given.get("dtype"), given.get("memory_format")))
