"""Internal: the command line ``picstore``. A verb's command is built only when needed, so that ``--help`` is fast."""

from __future__ import annotations

import errno
import io
import signal
import sys
from types import FrameType
from typing import Any

import click

from picstore._version import __version__
from picstore.cli.print_result import echo
from picstore.errors import PicstoreError

_VERBS = {
    "audit": "Tell which images a training had seen, and when, from a checkpoint.",
    "bench": "Measure how fast this machine loads a dataset, stage by stage.",
    "convert": "Convert images, from folders or other loaders' formats, to a dataset.",
    "delete": "Delete images from a dataset by id, without rewriting files.",
    "dupes": "List near-duplicates in a dataset, or images that two datasets share.",
    "export": "Export a dataset as folders, WebDataset, MDS or Parquet.",
    "index": "Index images where they lie, to train on them without a copy.",
    "info": "Print contents, origin and shuffling of a dataset.",
    "merge": "Join the shards of a conversion to one dataset.",
    "repair": "Repair a damaged dataset: restore its manifest and index, delete lost records.",
    "shuffle": "Write a shuffled copy of a dataset.",
    "verify": "Check every checksum of a dataset and report damage.",
    "view": "Show a dataset on a web page of this machine.",
    "warm": "Compile kernels ahead of their first use.",
}

_EPILOG = (
    "Exit codes: 0 success; 1 failure; 2 wrong usage; 3 damage found, or more failed inputs than --max-errors; "
    "4 a library is not installed."
)


class _Verbs(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _VERBS:
            return None
        from picstore.cli.make_command import make_command

        return make_command(cmd_name, _EPILOG)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args[0] not in _VERBS and not args[0].startswith("-"):
            from difflib import get_close_matches

            meant = "".join(f" Did you mean {each!r}?" for each in get_close_matches(args[0], _VERBS, 1))
            ctx.fail(f"No such verb {args[0]!r}.{meant}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl([(verb, _VERBS[verb]) for verb in self.list_commands(ctx)])


@click.group(cls=_Verbs, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="picstore")
def program() -> None:
    """Image datasets for training: convert, shuffle, verify, and stream augmented batches."""


class _Terminated(BaseException):
    """Exception raised when SIGTERM is received, which schedulers send; the command then ends as after Ctrl-C."""


def _terminate(*_: object) -> None:
    raise _Terminated


def _signal_again(ignored: sys.UnraisableHookArgs) -> None:
    """Send SIGTERM or SIGINT again if Python discarded the exception of its handler; report other errors as usual.

    Python calls this hook with each exception that it discards, for example while it cleans up import locks.
    """
    if ignored.exc_type not in (_Terminated, KeyboardInterrupt):
        sys.__unraisablehook__(ignored)
        return
    number = signal.SIGTERM if ignored.exc_type is _Terminated else signal.SIGINT

    def send(_: int, frame: FrameType | None) -> None:
        while frame is not None and frame.f_code is not _signal_again.__code__:
            frame = frame.f_back
        if frame is None:
            signal.raise_signal(number)
        else:
            # ``_signal_again`` still runs, because the machine is busy. Wait another 0.01 s: Python would discard an
            # exception that a signal's handler raises while this hook runs.
            signal.setitimer(signal.ITIMER_REAL, 0.01)

    signal.signal(signal.SIGALRM, send)
    signal.setitimer(signal.ITIMER_REAL, 0.01)  # SIGALRM calls ``send`` in 0.01 s, when that callback has ended.


def _hint() -> str:
    """Return the end of the message on an interruption: how to resume the command, "" if it has no --resume."""
    return "; continue with the same command and --resume" if sys.argv[1:2] in (["convert"], ["index"]) else ""


def main() -> None:
    """Run the ``picstore`` command; an error prints one line on stderr and sets the exit code."""
    signal.signal(signal.SIGTERM, _terminate)
    sys.unraisablehook = _signal_again
    try:
        # Without standalone mode, click does not exit, but returns the code that a command passed to ``Context.exit``.
        code = program.main(prog_name="picstore", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except click.ClickException as error:
        text = io.StringIO()
        error.show(text)
        echo(*text.getvalue().rstrip("\n").split("\n"), err=True)
        sys.exit(error.exit_code)
    except _Terminated:
        echo(f"picstore: ended by SIGTERM{_hint()}", err=True)
        sys.exit(128 + signal.SIGTERM)
    except (click.Abort, KeyboardInterrupt):
        echo(f"picstore: interrupted{_hint()}", err=True)
        sys.exit(128 + signal.SIGINT)
    except PicstoreError as error:
        echo(f"picstore: {error}", err=True)
        sys.exit(error.exit_code)
    except OSError as error:
        file = f"{error.filename}: " if error.filename else ""
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        remedy = f"; make room{_hint().replace(';', ', then')}" if full else ""
        echo(f"picstore: {file}{error.strerror or error}{remedy}", err=True)
        sys.exit(1)
