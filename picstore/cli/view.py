"""``picstore view``."""

from __future__ import annotations

import contextlib
import signal
import webbrowser
from collections.abc import Iterator
from typing import Any

import click

from picstore.cli import options
from picstore.cli.terminal import echo
from picstore.storage.location.resolve import Location, locate


@click.command("view")
@click.argument("dataset", metavar="DATASET", type=locate)
@click.argument("other", metavar="[OTHER]", type=locate, required=False)
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
@click.option("--embed", is_flag=True, help="Let pages of this machine, such as a notebook, show the page in a frame.")
@options.selection
@options.root
@click.option("--other-root", metavar="DIR", type=locate, help="The same as --root, of OTHER.")
def command(dataset: Location, other: Location | None, opens: bool, **given: Any) -> None:
    """Show DATASET on a web page of this machine, with OTHER beside it.

    It prints the address, which holds a token, and serves until it is interrupted. Nothing is changed, and nothing but
    the loopback interface is listened on. For a machine far away: ssh -L PORT:127.0.0.1:PORT. With OTHER, a page
    compares both: classes, sizes, qualities, and images that both have.
    """
    with _ending_at_once():
        from picstore.verbs.view import open_page

        roots = given.pop("root"), given.pop("other_root")
        selection = {name: given.pop(name) for name in ("where", "split", "part", "split_seed", "split_by")}
        page = open_page(dataset, other, selection=selection, roots=roots, **given)
        from picstore.viewer.security import redirecting_file
        from picstore.viewer.server import end_by
    with contextlib.ExitStack() as stack:
        echo(*(f"{name}: {images:,} images" for name, images in page.shown), f"  {page.address}")
        if given["embed"]:
            echo(f"  in a notebook: IPython.display.IFrame({page.address!r}, '100%', 800)")
        echo("  Ctrl-C ends it")
        if opens:
            webbrowser.open(stack.enter_context(redirecting_file(page.address)))
        number = page.serve()
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
