"""Every public transform of torchvision.transforms.v2 is here with its parameters, or the docs name it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from torch import nn
from torchvision.transforms import v2

import picstore

DOCS = Path(__file__).parents[3] / "docs"
PAGES = (DOCS / "transforms.md", DOCS / "reference" / "transforms.md")
MIXING = {"labels_getter": "labels are the records'", "p": "ours", "label_smoothing": "ours"}
# By name, the parameters that differ, and why.
DIFFERENCES = {
    "CutMix": MIXING,
    "MixUp": MIXING,
    "Grayscale": {"num_output_channels": "batches have three channels"},
    "RandomCrop": {"multiple_of": "ours"},
}


def names() -> list[str]:
    classes = inspect.getmembers(v2, inspect.isclass)
    return [name for name, cls in classes if issubclass(cls, nn.Module) and not name.startswith("_")]


def named() -> set[str]:
    """Return the names in the sections of both pages that say what picstore replaces, leaves out, calls and lacks."""
    guide = PAGES[0].read_text(encoding="utf-8").split("## torchvision's transforms", 1)[1].split("\n#", 1)[0]
    reference = PAGES[1].read_text(encoding="utf-8").split("## What picstore lacks", 1)[1]
    reference = reference.split("\n\nTransforms that have", 1)[0]
    return {name for text in re.findall(r"`([^`]+)`", guide + reference) for name in re.findall(r"\w+", text)}


def parameters(transform: type, besides: Sequence[str]) -> list[tuple[str, Any]]:
    """Names and defaults of a constructor's parameters, in order."""
    given = [each for each in inspect.signature(transform).parameters.values() if each.name not in besides]
    return [(each.name, getattr(each.default, "value", each.default)) for each in given]


def test_every_transform_of_torchvision_is_here_or_named_in_the_docs():
    assert set(names()) - set(picstore.__all__) - named() == set()
    assert named() & set(picstore.__all__) & set(names()) == {"Normalize"}  # is called after a function


@pytest.mark.parametrize("name", sorted(set(names()) & set(picstore.__all__)))
def test_parameters_have_names_order_and_defaults_of_torchvision(name: str):
    differing = DIFFERENCES.get(name, {})
    ours, theirs = getattr(picstore, name), getattr(v2, name)
    assert parameters(ours, list(differing)) == parameters(theirs, list(differing))
    both = {*inspect.signature(ours).parameters, *inspect.signature(theirs).parameters}
    assert set(differing) <= both, "a difference that is none any more"


@pytest.mark.parametrize("name", ["NEAREST", "NEAREST_EXACT", "BOX", "BILINEAR", "BICUBIC", "LANCZOS"])
def test_interpolations_of_torchvision_are_taken(name: str):
    mode = v2.InterpolationMode[name]
    for transform in (
        picstore.Resize(9, mode),
        picstore.RandomRotation(9, mode),
        picstore.ScaleJitter((9, 9), (1, 2), mode),
    ):
        assert transform._interpolation == picstore.Resize(9, mode.value)._interpolation
