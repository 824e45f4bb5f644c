"""``picstore warm``."""

from __future__ import annotations

import click

from picstore.cli import options
from picstore.cli.terminal import echo, echo_json


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
    from picstore.verbs.warm import warm

    done = warm(recipe, processes=processes)
    if as_json:
        echo_json(done.to_json())
    else:
        compiled = f"{done.compiled} kernel{'s' * (done.compiled != 1)} compiled in {done.seconds:.1f} s"
        echo(f"{compiled}, {done.cached} were there; in {done.folder}")
