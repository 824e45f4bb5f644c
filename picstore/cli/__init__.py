"""The command line: one module a verb, loaded when its verb is called, so that ``picstore --help`` is instant."""

from __future__ import annotations

import errno
import importlib
import signal
import sys

import click

from picstore._version import __version__
from picstore.errors import PicstoreError

# verb: what `picstore --help` says of it; the module of that name holds its command, `command`
_VERBS = {
    "bench": "Measure how fast a data set can be trained on, stage by stage.",
    "convert": "Turn images, from folders or the formats of other loaders, into a data set.",
    "delete": "Leave records out of a data set from now on, by their ids.",
    "export": "Write a data set as folders, WebDataset or MDS.",
    "info": "Say what a data set holds and how well it is shuffled.",
    "merge": "Make one data set of the shards of a conversion.",
    "repair": "Make readable again what is left of a damaged data set.",
    "shuffle": "Write a shuffled copy of a data set.",
    "verify": "Read a whole data set and report every damaged place.",
}

_EPILOG = (
    "Exit codes: 0 done; 1 failure; 2 wrong usage; 3 damage found, or more inputs failed than --max-errors; "
    "4 something needed is not installed."
)


class _Verbs(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _VERBS:
            return None
        command: click.Command = importlib.import_module(f"picstore.cli.{cmd_name}").command
        command.epilog = _EPILOG
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl([(verb, _VERBS[verb]) for verb in self.list_commands(ctx)])


@click.group(cls=_Verbs, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="picstore")
def program() -> None:
    """Image data sets for training: convert, shuffle, verify, and stream augmented batches."""


class _Terminated(BaseException):
    """SIGTERM, which schedulers send: what was begun is given up as by Ctrl-C, which click would make of it."""


def _terminate(*_: object) -> None:
    raise _Terminated


def _hint() -> str:
    """What to do after a verb did not come to its end."""
    return "; the same command with --resume goes on" if sys.argv[1:2] == ["convert"] else ""


def main() -> None:
    """Entry point of the ``picstore`` command: errors become one line on stderr and an exit code."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        # Without standalone mode the code that a verb gives to Context.exit is returned.
        code = program.main(prog_name="picstore", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except _Terminated:
        click.echo(f"picstore: ended by SIGTERM{_hint()}", err=True)
        sys.exit(128 + signal.SIGTERM)
    except (click.Abort, KeyboardInterrupt):
        click.echo(f"picstore: interrupted{_hint()}", err=True)
        sys.exit(128 + signal.SIGINT)
    except PicstoreError as error:
        click.echo(f"picstore: {error}", err=True)
        sys.exit(error.exit_code)
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        remedy = f"; make room{_hint().replace(';', ', then')}" if full else ""
        click.echo(f"picstore: {place}{error.strerror or error}{remedy}", err=True)
        sys.exit(1)
