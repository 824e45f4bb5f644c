"""``picstore view``."""

from __future__ import annotations

import contextlib
import signal
import webbrowser
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from picstore.cli import options
from picstore.cli.terminal import echo
from picstore.errors import MissingDependency
from picstore.storage.location.resolve import Location, locate


@click.command("view")
@click.argument("dataset", metavar="DATASET", type=locate)
@click.option("--port", type=click.IntRange(0, 65_535), default=0, help="Port to listen on.  [default: any free one]")
@click.option("--open", "opens", is_flag=True, help="Open the page in the browser of this machine.")
@click.option(
    "--recipe",
    metavar="FILE|NAME",
    help="Recipe to show first: a TOML file with a list `transform`, or a name in picstore.recipes.",
)
@click.option(
    "--state",
    metavar="FILE",
    type=options.PATH,
    help="Checkpoint in JSON that holds loader.state_dict(): the batch before it is drawn.",
)
@click.option(
    "--inputs",
    metavar="DIR",
    type=options.PATH,
    help="Folder that DATASET was converted from, to show the pictures that failed.",
)
@options.selection
@options.root
def command(
    dataset: Location,
    port: int,
    opens: bool,
    recipe: str | None,
    state: Path | None,
    inputs: Path | None,
    root: Location | None,
    **selection: Any,
) -> None:
    """Show DATASET on a web page of this machine.

    It prints the address, which holds a token, and serves until it is interrupted. Nothing is changed, and nothing but
    the loopback interface is listened on. For a machine far away: ssh -L PORT:127.0.0.1:PORT.
    """
    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        raise MissingDependency("the page needs Starlette and uvicorn: pip install 'picstore[view]'")
    with _ending_at_once():
        from picstore.verbs.selection import open_selection
        from picstore.view.records import Records
        from picstore.view.security import new_token, redirecting_file
        from picstore.view.server import bind, end_by, serve
        from picstore.view.session import Session

        records = Records(open_selection(dataset, root=root, **selection))
        session = Session(records, recipe, None if state is None else _read_state(state), inputs)
        if recipe is not None:
            _check_recipe(recipe)
    token = new_token()
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(bind(port))
        address = f"http://127.0.0.1:{listening.getsockname()[1]}/{token}/"
        echo(f"{dataset}: {len(records.dataset):,} images", f"  {address}", "  Ctrl-C ends it")
        if opens:
            webbrowser.open(stack.enter_context(redirecting_file(address)))
        number = serve(session, listening, token=token)
    end_by(number)


@contextlib.contextmanager
def _ending_at_once() -> Iterator[None]:
    """Have signals end the process while there is nothing to clean up.

    Modules that are imported, numba's for instance, drop every exception of some attempts, a signal's too.
    """
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _read_state(path: Path) -> dict[str, Any]:
    from picstore.view.replay import read_state

    return read_state(path)


def _check_recipe(name: str) -> None:
    """Raise UsageError here for a recipe that cannot be used, not on the page."""
    from picstore.view.recipes import Recipe

    Recipe.find(name)
