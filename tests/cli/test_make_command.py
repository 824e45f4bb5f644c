"""Commands are made of the signatures and docstrings of the verbs."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from commands import picstore_command

import picstore
from picstore.cli import program
from picstore.prepare.convert.row_division import DatasetShape
from picstore.prepare.exports.run_export import FORMATS
from picstore.prepare.image.encode_settings import ENCODERS, IMAGE_TIMEOUT, SUBSAMPLINGS, EncodeSettings
from picstore.prepare.upkeep.near_duplicates import DEFAULT_DISTANCE
from picstore.prepare.upkeep.shuffled_copy import METHODS
from picstore.storage.sizes import parse_size

GUIDE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
VERBS = program.list_commands(click.Context(program))
# Options of a command that its function in picstore does not have, and the other way round.
MORE = {
    "audit": {"steps", "id", "ids", "path", "counts", "unseen", "csv"},
    "convert": {"measure", "plot"},
    "delete": {"id"},
    "view": {"open"},
}
SHOWN = {"as_json", "quiet"}


def command(verb: str) -> click.Command:
    made = program.get_command(click.Context(program), verb)
    assert made is not None
    return made


def options(verb: str) -> dict[str, click.Option]:
    return {str(each.name): each for each in command(verb).params if isinstance(each, click.Option)}


def defaults(verb: str) -> Iterator[tuple[str, str]]:
    """The defaults that the help of a verb shows, by option."""
    for name, option in options(verb).items():
        found = re.search(r"\[default: (.*)\]$", option.help or "")
        if found is not None or (option.show_default and option.default is not None):
            yield name, found[1] if found else str(option.default)


@pytest.mark.parametrize("verb", sorted(set(VERBS) - {"bench"}))
def test_a_command_has_the_parameters_of_its_function(verb: str) -> None:
    of_function = inspect.signature(getattr(picstore, verb)).parameters
    of_command = {each.name for each in command(verb).params} - SHOWN - MORE.get(verb, set())
    assert of_command == set(of_function) - {"progress"}


@pytest.mark.parametrize("verb", VERBS)
def test_help_is_worded_for_the_command_line(verb: str) -> None:
    text = picstore_command(verb, "--help").stdout
    for word in ("``", ":func:", "None for", "True", "` has it", "` has them", "see `picstore "):
        assert word not in text


def test_texts_of_shared_arguments_are_found_where_they_are_referred_to() -> None:
    assert options("verify")["root"].help == options("export")["root"].help != options("convert")["root"].help
    assert options("export")["where"].help == options("shuffle")["where"].help
    assert dict(defaults("warm"))["processes"] == dict(defaults("index"))["workers"] == "number of cores"
    assert options("shuffle")["part"].help == "The part of --split to take; 1 is the first."


def test_choices_are_those_that_the_work_takes() -> None:
    def choices(verb: str, name: str) -> set[str]:
        kind = options(verb)[name].type
        assert isinstance(kind, click.Choice)
        return set(kind.choices)

    assert choices("export", "format") == set(FORMATS)
    assert choices("shuffle", "method") == set(METHODS)
    assert choices("convert", "encoder") == set(ENCODERS)
    assert choices("convert", "subsampling") == set(SUBSAMPLINGS)


def test_defaults_of_settings_are_those_that_conversions_have() -> None:
    shown, settings, shape = dict(defaults("convert")), EncodeSettings().to_json(), DatasetShape()
    for name in ("quality", "subsampling", "max_pixels", "encoder"):
        assert shown[name] == str(settings[name])
    assert bytes.fromhex(shown["background"]) == bytes(settings["background"])
    for name in ("streams", "file_size", "container_size", "seed"):
        assert parse_size(shown[name]) == getattr(shape, name)
    assert float(shown["image_timeout"]) == IMAGE_TIMEOUT
    assert int(dict(defaults("dupes"))["distance"]) == DEFAULT_DISTANCE


@pytest.mark.parametrize("verb", VERBS)
def test_the_guide_has_the_defaults_of_the_command(verb: str) -> None:
    section = re.search(rf"^## picstore {verb}\b.*?(?=^## picstore |\Z)", GUIDE, re.MULTILINE | re.DOTALL)
    assert section is not None
    shown = dict(defaults(verb))
    for option, default in re.findall(r"^- `--([\w-]+)[^`]*` \(default ([^:)]+)\)", section[0], re.MULTILINE):
        name = {"source": "kind"}.get(option, option.replace("-", "_"))
        assert shown[name] == default.strip("`"), option


def test_an_option_with_an_optional_value_has_the_default_of_the_verb() -> None:
    default = inspect.signature(picstore.measure_quality).parameters["images"].default
    assert options("convert")["measure"].flag_value == default
