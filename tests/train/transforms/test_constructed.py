"""Reprs of transforms, recipes and loaders: calls that make equal objects; and arguments of every wrong kind."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import picstore
from picstore import _public, recipes
from picstore.errors import UsageError
from picstore.storage.dataset import Dataset

NAMES = {name: getattr(picstore, name) for name in picstore.__all__}
CLASSES = {name: getattr(picstore, name) for name in _public.modules_by_name(_public.TRANSFORMS)}
COLOR = [picstore.ColorJitter(0.4), picstore.RandomGrayscale(0.3)]
# Arguments of the classes that have parameters without a default.
NEEDED: dict[str, tuple[Any, ...]] = {
    "Buckets": ([(64, 64), (64, 96)], recipes.evaluation), "Sequences": ([8, 16], recipes.mae),
    "CenterCrop": (24,), "GaussianBlur": (3,), "Normalize": ((0.5, 0.4, 0.3), 0.2), "Pad": (2,), "PerImage": (abs,),
    "Progressive": ({0: [picstore.CenterCrop(8)], 3: recipes.mae(16)},), "RandomAdjustSharpness": (2,),
    "RandomAffine": (10,), "RandomApply": (COLOR,), "RandomChoice": (COLOR,), "RandomCrop": (24,),
    "RandomOrder": (COLOR,), "RandomPosterize": (4,), "RandomResize": (10, 20), "RandomResizedCrop": (24,),
    "RandomRotation": (30,), "RandomShortestSize": ([10, 20],), "RandomSizeCrop": (8, 16), "RandomSolarize": (128,),
    "Resize": (24,), "ResizeToCover": (24,), "ResizeToSequence": (16,), "ScaleJitter": ((24, 24),),
    "TimmAutoAugment": ("rand-m9-mstd0.5-inc1",), "Views": (),
}  # fmt: skip
OPTIONS: dict[str, dict[str, Any]] = {
    "Buckets": {"tokens": 16 * 24}, "Sequences": {"tokens": 32},
    "Views": {"large": (1, recipes.mae(16)), "small": (2, [picstore.CenterCrop(8)])},
}  # fmt: skip
# Values that a user's program may hold for a number, a pair, a name or a list.
ODD = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 300), st.floats(-2, 2), st.just(float("nan")),
    st.sampled_from(["", "x", "bilinear", "random", b"x", (), {}, {"x": 1}, [[]], object]),
    st.lists(st.floats(-1, 3), max_size=4), st.tuples(st.integers(0, 9), st.integers(0, 9)),
    st.builds(np.ones, st.integers(0, 3)), st.builds(torch.ones, st.integers(0, 3)),
)  # fmt: skip

Make = Callable[..., Path]


def make(name: str, **options: Any) -> Any:
    return CLASSES[name](*NEEDED.get(name, ()), **{**OPTIONS.get(name, {}), **options})


def pasted(value: Any) -> Any:
    """What a repr makes in a program that has picstore's public names."""
    return eval(repr(value), {**NAMES})  # noqa: S307 - what is tested


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_the_repr_of_each_transform_makes_an_equal_one(name: str) -> None:
    transform = make(name)
    assert repr(transform).startswith(f"{name}(")
    saved = pickle.dumps(transform)
    for again in (pasted(transform), copy.deepcopy(transform), pickle.loads(saved)):  # noqa: S301
        assert again == transform and hash(again) == hash(transform) and repr(again) == repr(transform)
    assert transform != make("CenterCrop" if name != "CenterCrop" else "Pad")


@pytest.mark.filterwarnings("ignore:Normalize has mean")
@settings(max_examples=150)
@given(name=st.sampled_from(sorted(set(CLASSES) - {"Views", "PerImage"})), data=st.data())
def test_every_argument_is_taken_and_shown_or_refused(name: str, data: st.DataObject) -> None:
    """An argument of any kind is either refused by a UsageError, or the repr makes an equal transform."""
    parameters = list(inspect.signature(CLASSES[name]).parameters)
    if not parameters:
        return
    parameter = data.draw(st.sampled_from(parameters))
    value = data.draw(ODD)
    needed = dict(zip(parameters, NEEDED.get(name, ()), strict=False))
    try:
        transform = CLASSES[name](**{**needed, **OPTIONS.get(name, {}), parameter: value})
    except UsageError as error:
        assert name in str(error) or parameter in str(error)
        return
    again = pasted(transform)
    # A NaN differs from itself.
    assert (again == transform or "nan" in repr(transform)) and repr(again) == repr(transform)


@pytest.mark.parametrize("name", sorted(recipes.NAMED))
def test_the_repr_of_each_recipe_makes_an_equal_one(name: str) -> None:
    recipe = recipes.NAMED[name]()
    assert pasted(recipe) == recipe


def test_arrays_enumerations_and_paths_are_shown_as_they_can_be_written() -> None:
    v2 = pytest.importorskip("torchvision.transforms.v2")
    normalize = picstore.Normalize(torch.tensor([0.5, 0.25, 0.125]), np.full(3, 0.5))
    assert repr(normalize) == "Normalize([0.5, 0.25, 0.125], [0.5, 0.5, 0.5])"
    resize = picstore.Resize(np.int64(24), v2.InterpolationMode.BICUBIC)
    assert repr(resize) == "Resize(24, interpolation='bicubic')" and pasted(resize) == resize
    assert repr(picstore.AutoAugment(v2.AutoAugmentPolicy.SVHN)) == "AutoAugment(policy='svhn')"
    sides = [8, 16]
    transform = picstore.RandomShortestSize(sides)
    sides.append(24)
    assert repr(transform) == "RandomShortestSize([8, 16])"


def test_transforms_of_other_arguments_or_classes_differ() -> None:
    assert picstore.RandomCrop(8) == picstore.RandomCrop(8, padding=None)
    assert picstore.RandomCrop(8) != picstore.RandomCrop(9) != picstore.CenterCrop(9)
    assert picstore.PerImage(lambda image: image) != picstore.PerImage(lambda image: image + 1)


def test_the_repr_of_a_loader_makes_a_loader_of_the_same_batches(make_dataset: Make) -> None:
    path = make_dataset(24)
    v2 = pytest.importorskip("torchvision.transforms.v2")
    compose = v2.Compose([v2.ToImage(), v2.RandomResizedCrop(8), v2.ToDtype(torch.float32, scale=True)])
    crop, layout = [picstore.CenterCrop(8)], torch.channels_last
    options: list[dict[str, Any]] = [
        {"transform": compose},
        {"transform": crop, "dtype": torch.float16, "memory_format": layout, "seed": np.int64(3)},
        {"transform": crop, "weights": np.arange(24.0), "device": torch.device("cpu"), "drop_last": False},
        {"transform": picstore.Views(one=(2, crop)), "targets": ["extra"]},
    ]
    for each in options:
        loader = picstore.Loader(path, batch_size=8, threads=1, isolate=False, **each)
        again = pasted(loader)
        assert repr(again) == repr(loader) and repr(loader).startswith(f"Loader({str(path)!r}, batch_size=8, ")
        assert str(loader).startswith(f"Loader({path}, 24 images")
        one, other = next(iter(loader)), next(iter(again))
        assert one.ids.tolist() == other.ids.tolist() and one.labels.tolist() == other.labels.tolist()
        images = [next(iter(x.images.values())) if isinstance(x.images, dict) else x.images for x in (one, other)]
        assert images[0].dtype == images[1].dtype and torch.equal(*images)
        loader.close()
        again.close()


def test_a_copy_in_another_process_needs_no_arguments_and_keeps_its_repr(make_dataset: Make) -> None:
    buckets = picstore.Buckets([(8, 8), (8, 16)], lambda size: [picstore.RandomResizedCrop(size)])
    loader = picstore.Loader(make_dataset(24), batch_size=4, transform=buckets, isolate=False, threads=1)
    again = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(loader))))  # noqa: S301
    assert repr(again) == repr(loader) and "Buckets([(8, 8), (8, 16)], " in repr(again)
    assert next(iter(again)).ids.tolist() == next(iter(loader)).ids.tolist()


def test_the_repr_of_a_mux_makes_an_equal_mux(make_dataset: Make, tmp_path: Path) -> None:
    path = make_dataset(24)
    config = tmp_path / "mux.tsv"
    config.write_text(f"{path} 0 4\n")
    for given_as in (config, [(Dataset(path), 0, 4)]):
        mux = picstore.DataMux(given_as, transform=[picstore.CenterCrop(8)], seed=3, isolate=False, threads=1)
        again = pasted(mux)
        assert repr(again) == repr(mux) and "seed=3" in repr(mux)
        assert next(iter(mux)).ids.tolist() == next(iter(again)).ids.tolist()


def test_what_a_repr_cannot_hold_is_shown_in_angle_brackets(make_dataset: Make) -> None:
    path = make_dataset(24)
    weights = np.ones(24)
    selection = Dataset(path).select(np.arange(20))
    assert "Dataset(" in repr(picstore.Loader(selection, batch_size=4)) and "20 images" in repr(
        picstore.Loader(selection, batch_size=4)
    )
    loader = picstore.Loader(path, batch_size=4, weights=weights)
    loader._given[1]["weights"] = picstore.train.transforms.constructed._plain(np.ones(2000))
    assert "weights=<float64 (2000,)>" in repr(loader)
