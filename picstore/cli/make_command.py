"""Commands built from functions: a verb's signature defines the command's options, its docstring their help texts.

``picstore VERB`` calls ``picstore.VERB``, or the function of this name in ``command_functions.py`` if the command does
more. Four rules convert docstrings to help texts:

- The text before ``Args:`` describes the command, the text of an argument describes its option.
- ``None for X`` at the end of an argument's text is shown as the default X.
- ``as :func:`picstore.OTHER` …`` is replaced by the text of that verb, or of its argument of the same name.
- In double backquotes, the name of an argument becomes the name of its option.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from inspect import Parameter
from typing import Any, get_args

import click

from picstore.cli import command_functions
from picstore.cli.print_result import print_result
from picstore.errors import TooManyFailures
from picstore.verbs import common_arguments

# Positional parameters of the commands, and their names in the usage line; all other parameters are options.
_ARGUMENTS = {
    "checkpoint": "STATE",
    "source": "SRC",
    "dataset": "DATASET",
    "other": "OTHER",
    "out": "DST",
    "shards": "SHARD",
}
# Names of a parameter's option, by parameter; for all others, the name is ``--`` and the parameter's name.
_NAMES = {"kind": ["--source"], "maps": ["--map"], "color": ["--color", "--colour"]}
# Placeholders for an option's value in help texts, each with the names of the parameters whose options show it.
_METAVARS = {
    "FILE": "croissant synsets annotations classes ids plot state csv",
    "DIR": "root other_root inputs cache",
    "SIZE": "resize file_size container_size shard_size cache_limit",
    "NAME": "image_field label_field split",
    "FILE|NAME": "recipe",
    "KIND": "kind",
    "FORMS": "targets",
    "map:NAME": "keep_alpha",
    "NAME[=FILES][,KEY=VALUE…]": "maps",
    "COLOR": "background",
    "SECONDS": "image_timeout",
    "I/N": "shard",
    "N|P%": "max_errors",
    "SQL": "where",
    "COLUMN": "split_by weights balance",
    "A:B": "steps",
    "PATH": "path",
    "[N]": "measure",
}
_METAVAR_OF = {name: metavar for metavar, names in _METAVARS.items() for name in names.split()}
_VALUE_IF_OMITTED = {"measure": 200}  # values of options that are given without a value, by parameter
_OTHER_VERB = re.compile(r"\b(?:[Aa]s|see) :func:`picstore\.(\w+)`")
_NONE_FOR = re.compile(r"(?:; |\. |^)None for (?:the )?(.+?)\.?$")


def make_command(verb: str, epilog: str) -> click.Command:
    """Build the click command of a verb; ``epilog`` is the text at the end of the command's help."""
    functions = _functions(verb)
    parameters = _parameters(functions)
    shows_progress = parameters.pop("progress", None) is not None
    names = {name: _argument(each, parameters) or _option_names(each)[0] for name, each in parameters.items()}
    made: list[click.Parameter] = []
    for name, each in parameters.items():
        text = _for_shell(_text(functions, name), names)
        made.append(_make_argument(each, names[name]) if name in _ARGUMENTS else _make_option(each, text))
    if shows_progress:
        text = "Show no progress: no bar on a terminal, and elsewhere no line a minute."
        made.append(click.Option(["--quiet"], is_flag=True, help=text))
    run = functions[0]
    if run.__annotations__["return"] != "None":
        made.append(click.Option(["--json", "as_json"], is_flag=True, help="Print the result as one JSON object."))
        run = _printing(run, verb, shows_progress=shows_progress)
    return click.Command(verb, params=made, callback=run, help=_for_shell(_text(functions), names), epilog=epilog)


def load_verb(verb: str) -> Callable[..., Any]:
    """Import and return the function of a verb, ``picstore.VERB``."""
    function: Callable[..., Any] = getattr(importlib.import_module(f"picstore.verbs.{verb}"), verb)
    return function


def _functions(verb: str) -> list[Callable[..., Any]]:
    """Return the functions whose parameters become arguments of a verb's command, which calls the first one.

    The second function, if any, is the verb's; the first function passes its ``**options`` to the second.
    """
    own = getattr(command_functions, verb, None)
    if own is None:
        return [load_verb(verb)]
    return [own, load_verb(verb)] if "options" in inspect.signature(own).parameters else [own]


def _parameters(functions: Sequence[Callable[..., Any]]) -> dict[str, Parameter]:
    """Return the first function's parameters by name; the second's keyword-only parameters replace ``**options``."""
    own = dict(inspect.signature(functions[0]).parameters)
    own.pop("options", None)
    passed = [each for of in functions[1:] for each in inspect.signature(of).parameters.values()]
    return {each.name: each for each in passed if each.kind is each.KEYWORD_ONLY} | own


def _printing(function: Callable[..., Any], verb: str, *, shows_progress: bool) -> Callable[..., None]:
    def run(*, as_json: bool, quiet: bool = False, **given: Any) -> None:
        try:
            if shows_progress:
                from picstore.display.progress import Silence, open_display

                silence = nullcontext(Silence(remarks=True))
                with silence if quiet else open_display(verb, True, as_json=as_json) as display:
                    result = function(**given, progress=display)
            else:
                result = function(**given)
        except TooManyFailures as error:
            if error.result is not None:
                print_result(error.result, as_json=as_json)
            raise
        print_result(result, as_json=as_json)
        click.get_current_context().exit(result.exit_code)

    return run


def _argument(parameter: Parameter, parameters: Mapping[str, Parameter]) -> str | None:
    """Return a parameter's name in the usage line and help texts if it is positional; None if it is an option."""
    name = _ARGUMENTS.get(parameter.name)
    return "OUT" if name == "DST" and "dataset" in parameters else name


def _make_argument(parameter: Parameter, name: str) -> click.Argument:
    several, required = "Sequence[" in parameter.annotation, parameter.default is parameter.empty
    shown = (name if required else f"[{name}]") + "…" * several
    return click.Argument([parameter.name], metavar=shown, nargs=-1 if several else 1, required=required)


def _option_names(parameter: Parameter) -> list[str]:
    return [*_NAMES.get(parameter.name, ["--" + parameter.name.replace("_", "-")])]


def _make_option(parameter: Parameter, text: str) -> click.Option:
    names, kinds, default = _option_names(parameter), parameter.annotation.split(" | "), parameter.default
    given: dict[str, Any] = {"metavar": _METAVAR_OF.get(parameter.name)}
    none_for = _NONE_FOR.search(text)
    if none_for is not None:
        text = f"{text[: none_for.start()].rstrip('.')}.  [default: {none_for[1]}]"
    if "bool" in kinds:
        if default is True or none_for is not None:
            names[-1] += f"/--no-{names[-1][2:]}"
        given["is_flag"] = True
    elif "Sequence[int]" in kinds:
        given.update(type=click.INT, multiple=True, default=())
    elif "Sequence[str]" in kinds:
        given.update(type=click.STRING, multiple=True, default=())
    elif "Sequence[float]" in kinds:
        given.update(type=_fractions, metavar="F[,F…]")
    else:
        given["type"] = _value_type(kinds)
        if parameter.name in _VALUE_IF_OMITTED:
            given.update(is_flag=False, flag_value=_VALUE_IF_OMITTED[parameter.name])
    if default is parameter.empty:
        given["required"] = True
    elif default != ():
        given["default"] = int(default) if isinstance(default, float) and default.is_integer() else default
        given["show_default"] = default is not None and default is not False
    return click.Option([*names, parameter.name], help=text[:1].upper() + text[1:], **given)


def _value_type(kinds: list[str]) -> Any:
    for kind in kinds:
        alias = getattr(common_arguments, kind, None)
        if choices := get_args(alias) or re.findall(r"'(\w+)'", kind):
            return click.Choice(choices)
    if "float" in kinds:
        return click.FLOAT
    return click.INT if "int" in kinds and "str" not in kinds else click.STRING


def _fractions(text: str) -> tuple[float, ...]:
    try:
        return tuple(map(float, text.split(",")))
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is not a list of numbers such as 0.8,0.1") from error


def _text(functions: Sequence[Callable[..., Any]], argument: str = "") -> str:
    """Return an argument's description from the first docstring that has one; for "", the function's description."""
    text = next((found for each in functions if (found := _texts(each).get(argument))), "")
    other = _OTHER_VERB.search(text)
    return text if other is None else _text([load_verb(other[1])], argument)


def _texts(function: Callable[..., Any]) -> dict[str, str]:
    """Return the parts of a function's docstring: each argument's description by its name, the function's under ""."""
    description, _, rest = inspect.cleandoc(function.__doc__ or "").partition("\n\nArgs:\n")
    texts = {"": description.partition("\n\nRaises:\n")[0]}
    for entry in re.split(r"\n(?=    \S)", rest.partition("\n\n")[0]):
        names, _, text = entry.strip().partition(": ")
        texts |= dict.fromkeys(names.split(", "), " ".join(text.split()))
    return texts


def _for_shell(text: str, names: Mapping[str, str]) -> str:
    """Replace the names of parameters in a docstring by the shell's names, such as ``max_errors`` by ``--max-errors``.

    ``names`` maps each parameter to the name of its option or positional argument.
    """
    text = re.sub(r":func:`picstore\.(\w+)`", r"`picstore \1`", text)

    def plain(found: re.Match[str]) -> str:
        word = found[1]
        return names.get(word.partition("=")[0], f"`{word}`" if " " in word else word)

    return re.sub(r"``([^`]+)``", plain, text)
