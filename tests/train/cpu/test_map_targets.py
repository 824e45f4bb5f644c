"""Maps as targets: equal to interpolation by NumPy, written plainly here, for every transform that moves masks."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from grids import examples
from hypothesis import given
from hypothesis import strategies as st
from samples import picture

import picstore
from picstore.errors import ImageError
from picstore.storage.format.maps import DTYPES, MapSpec, StoredMap, encode_map
from picstore.train.cpu.targets import make_target
from picstore.train.transforms.affine import RandomAffine, RandomRotation
from picstore.train.transforms.batch_random import BatchRandom
from picstore.train.transforms.crops import CenterCrop, Pad, RandomHorizontalFlip, RandomResizedCrop, RandomVerticalFlip
from picstore.train.transforms.geometry import Geometry
from picstore.train.transforms.resizing import Resize
from picstore.train.transforms.transform_lists import compose

FORMS = ["map:m", "map:m:scaled", "map:m:valid"]
TIE, STEPS = 2.0**-20, 2**20


def geometry_of(steps: list[Any], width: int, height: int, seed: int = 0) -> Geometry:
    return compose(steps, Geometry.identity([width], [height]), BatchRandom(seed, 0, [0]))


def reference(values: np.ndarray, spec: MapSpec, geometry: Geometry) -> dict[str, np.ndarray]:
    """Nearest or bilinear interpolation of the whole map at given coordinates."""
    height, width, _ = values.shape
    (out_width, out_height), matrix = geometry.size[0], geometry.grid_matrix[0]
    x, y = np.arange(out_width) + 0.5, (np.arange(out_height) + 0.5)[:, None]
    at_x, at_y = (row[0] * x + row[1] * y + row[2] for row in matrix)
    left, top, right, bottom = geometry.clip[0]
    low, high = np.maximum((left, top), 0), np.minimum((right, bottom), (width, height))
    near_x, near_y = np.floor(at_x + TIE).astype(int), np.floor(at_y + TIE).astype(int)
    shown = (near_x >= low[0]) & (near_x < high[0]) & (near_y >= low[1]) & (near_y < high[1])
    for a, b, c in geometry.output_edges[0]:
        shown &= a * x + b * y + c >= -TIE

    def pick(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        rows, columns = np.clip(rows, low[1], high[1] - 1), np.clip(columns, low[0], high[0] - 1)
        return values[rows, columns].astype(np.float64)

    def has_value(picked: np.ndarray) -> np.ndarray:
        return (np.isfinite(picked) & (picked != (math.nan if spec.invalid is None else spec.invalid))).all(axis=2)

    found = pick(near_y, near_x)
    valid = shown & has_value(found)
    if spec.interpolation == "linear":
        from_x, from_y = (np.floor((at - 0.5) * STEPS + 0.5) / STEPS for at in (at_x, at_y))
        x0, y0 = np.floor(from_x).astype(int), np.floor(from_y).astype(int)
        fx, fy = (from_x - x0)[..., None], (from_y - y0)[..., None]
        x1, y1 = x0 + (fx[..., 0] > 0), y0 + (fy[..., 0] > 0)
        corners = [pick(rows, columns) for rows in (y0, y1) for columns in (x0, x1)]
        with np.errstate(invalid="ignore"):
            upper, lower = (corners[k] * (1 - fx) + corners[k + 1] * fx for k in (0, 2))
            mixed = upper * (1 - fy) + lower * fy
        whole = valid & np.logical_and.reduce([has_value(each) for each in corners])
        found = np.where(whole[..., None], mixed, found)
    planes = np.where(shown[..., None], found, spec.fill).transpose(2, 0, 1)
    stored = np.rint(planes) if spec.dtype.startswith("u") else planes
    return {
        "map:m": stored.astype(spec.dtype),
        "map:m:scaled": np.where(valid, planes * spec.scale, np.nan).astype(np.float32),
        "map:m:valid": valid[None],
    }


def drawn(dtype: str, height: int, width: int, channels: int, seed: int, invalid: float | None) -> np.ndarray:
    """Values of which some have none: NaN, infinity or ``invalid``."""
    random = np.random.default_rng(seed)
    values = (random.random((height, width, channels)) * 250).astype(dtype)
    holes = random.random(values.shape) < 0.1
    if invalid is not None:
        values[holes] = invalid
    if dtype.startswith("f"):
        values[random.random(values.shape) < 0.05] = np.nan
        values[random.random(values.shape) < 0.02] = -np.inf
    return values


STEPS_OF = {
    "none": lambda size: [],
    "resized crop": lambda size: [RandomResizedCrop(size), RandomHorizontalFlip(0.5), RandomVerticalFlip(0.5)],
    "resize": lambda size: [Resize((size, size + 3))],
    "pad": lambda size: [CenterCrop(size), Pad(3), RandomHorizontalFlip(1.0)],
    "rotation": lambda size: [RandomRotation(180, expand=True), Resize((size, size))],
    "affine": lambda size: [RandomAffine(40, translate=(0.2, 0.2), scale=(0.5, 2), shear=20), CenterCrop(size)],
    "after a crop": lambda size: [RandomResizedCrop(size), RandomRotation(30), Pad(2)],
}


@examples(200)
@given(
    st.sampled_from(sorted(STEPS_OF)),
    st.sampled_from(DTYPES),
    st.sampled_from(["nearest", "linear"]),
    st.tuples(st.integers(1, 60), st.integers(1, 60), st.integers(1, 4)),
    st.sampled_from([None, 0.0, 7.0]),
    st.tuples(st.integers(1, 40), st.integers(0, 1000)),
)
def test_a_map_is_what_numpy_interpolates(
    name: str, dtype: str, interpolation: str, shape: tuple[int, int, int], invalid: float | None, how: tuple[int, int]
) -> None:
    (width, height, channels), (size, seed) = shape, how
    values = drawn(dtype, height, width, channels, seed, invalid)
    spec = MapSpec(dtype=dtype, channels=channels, scale=0.25, interpolation=interpolation, fill=9.0, invalid=invalid)
    geometry = geometry_of(STEPS_OF[name](size), width, height, seed)
    stored = {"map:m": StoredMap(spec, encode_map(values))}
    made = make_target(FORMS, None, stored, geometry, 0)
    expected = reference(values, spec, geometry)
    for form in FORMS:
        assert made[form].dtype == expected[form].dtype
        assert made[form].tobytes() == expected[form].tobytes(), form


def test_a_nearest_map_is_where_its_mask_is() -> None:
    values = np.random.default_rng(1).integers(1, 255, (48, 64, 1), np.uint8)
    blob = encode_map(values)
    for seed in range(8):
        geometry = geometry_of([RandomAffine(90, scale=(0.5, 2)), RandomHorizontalFlip(0.5)], 64, 48, seed)
        stored = {"map:m": StoredMap(MapSpec(dtype="uint8", channels=1), blob), "mask": blob}
        made = make_target(["map:m", "mask"], None, stored, geometry, 0)
        assert (made["map:m"][0] == made["mask"]).all()


def test_linear_interpolation_invents_no_value_beside_a_hole() -> None:
    """A pixel beside a hole is the nearest pixel's value, and holes grow by no pixel."""
    values = np.full((20, 20, 1), 100, np.uint16)
    values[:, 8:] = 0
    spec = MapSpec(dtype="uint16", channels=1, interpolation="linear", invalid=0)
    geometry = geometry_of([Resize((60, 60))], 20, 20)
    made = make_target(FORMS, None, {"map:m": StoredMap(spec, encode_map(values))}, geometry, 0)
    assert np.unique(made["map:m"]).tolist() == [0, 100]
    assert made["map:m:valid"][0, 0].sum() == 24


def test_a_repeated_border_repeats_the_map_too() -> None:
    values = np.arange(30, dtype=np.uint16).reshape(5, 6, 1)
    for mode in ("edge", "reflect", "symmetric"):
        for interpolation in ("nearest", "linear"):
            spec = MapSpec(dtype="uint16", channels=1, interpolation=interpolation)
            geometry = geometry_of([Pad(3, padding_mode=mode)], 6, 5)
            made = make_target(["map:m"], None, {"map:m": StoredMap(spec, encode_map(values))}, geometry, 0)
            assert (made["map:m"][0] == np.pad(values[:, :, 0], 3, mode=mode)).all()


def test_perspective_moves_a_map_or_is_refused_by_name_as_for_masks(maps: Path) -> None:
    with pytest.raises(picstore.errors.UsageError, match="RandomPerspective"):
        steps = [picstore.CenterCrop(30), picstore.RandomPerspective(p=1.0)]
        picstore.Loader(maps, batch_size=4, transform=steps, targets=["map:depth"])


@pytest.mark.parametrize(
    ("blob", "problem"),
    [
        (encode_map(np.zeros((5, 6, 1), np.uint8)), "uint8 of 1 channels; the dataset states float32"),
        (encode_map(np.zeros((5, 7, 1), np.float32)), "7 × 5 pixels, its image 6 × 5"),
        (b"\xff\xd8\xff", "neither"),
    ],
)
def test_a_map_of_another_form_is_damage_that_says_so(blob: bytes, problem: str) -> None:
    stored = {"map:m": StoredMap(MapSpec(dtype="float32", channels=1), blob)}
    with pytest.raises(ImageError, match=f"map:m .*{problem}"):
        make_target(["map:m"], None, stored, geometry_of([], 6, 5), 0)


@pytest.fixture
def maps(tmp_path: Path) -> Path:
    """A dataset of 24 images, of which every sixth has no depth."""
    random = np.random.default_rng(0)
    request = "depth,scale=0.001,unit=m,interpolation=linear,invalid=0"
    with picstore.Writer(tmp_path / "maps", maps=[request, "normal"]) as writer:
        for number in range(24):
            width, height = 60 + number % 7, 40 + number % 5
            depth = random.integers(0, 5000, (height, width), np.uint16)
            normal = random.random((height, width, 3)).astype(np.float32)
            given = {"map:normal": normal} | ({} if number % 6 == 5 else {"map:depth": depth})
            writer.add(picture(number, width=width, height=height), attachments=given)
    return tmp_path / "maps"


def targets_by_id(loader: picstore.Loader) -> dict[int, dict[str, Any]]:
    return {id_: target for batch in loader for id_, target in zip(batch.ids.tolist(), batch.targets, strict=True)}


def assert_equal(some: dict[int, dict[str, Any]], others: dict[int, dict[str, Any]]) -> None:
    assert some.keys() == others.keys()
    for id_, target in some.items():
        for name, value in target.items():
            other = others[id_][name]
            assert (value is None) == (other is None)
            if value is not None:
                assert value.dtype == other.dtype
                assert value.numpy().tobytes() == other.numpy().tobytes()


def test_maps_are_equal_for_any_thread_process_rank_and_resume(maps: Path) -> None:
    names = ["map:depth", "map:depth:scaled", "map:depth:valid", "map:normal"]
    common: dict[str, Any] = {
        "transform": [picstore.RandomResizedCrop(24), picstore.RandomHorizontalFlip()],
        "targets": names,
        "seed": 3,
        "drop_last": False,
    }
    loader = picstore.Loader(maps, batch_size=4, threads=1, isolate=False, **common)
    expected = targets_by_id(loader)
    assert len(expected) == 24
    assert sum(target["map:depth"] is None for target in expected.values()) == 4
    first = expected[0]
    assert first["map:depth"].dtype == torch.uint16
    assert tuple(first["map:normal"].shape) == (3, 24, 24)
    loader = picstore.Loader(maps, batch_size=4, threads=2, isolate=True, **common)
    assert_equal(expected, targets_by_id(loader))
    of_ranks: dict[int, dict[str, Any]] = {}
    for rank in range(2):
        loader = picstore.Loader(maps, batch_size=2, rank=rank, world_size=2, isolate=False, **common)
        of_ranks |= targets_by_id(loader)
    assert_equal(expected, of_ranks)
    loader = picstore.Loader(maps, batch_size=4, isolate=False, **common)
    batches = iter(loader)
    for _ in range(2):
        next(batches)
    state = loader.state_dict()
    loader = picstore.Loader(maps, batch_size=4, isolate=False, **common)
    loader.load_state_dict(state)
    rest = targets_by_id(loader)
    assert len(rest) == 16
    assert_equal(rest, {id_: expected[id_] for id_ in rest})


def test_a_target_of_an_unknown_form_of_a_map_is_refused(maps: Path) -> None:
    with pytest.raises(picstore.errors.UsageError, match="map:depth:metric"):
        picstore.Loader(maps, batch_size=4, targets=["map:depth:metric"])
    with pytest.raises(picstore.errors.UsageError, match="map:other"):
        picstore.Loader(maps, batch_size=4, targets=["map:other:valid"])
