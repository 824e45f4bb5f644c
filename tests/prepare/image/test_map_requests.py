"""Requests to store maps, and the conversion of a map's values to the requested dtype without loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from picstore.errors import ImageError, UsageError
from picstore.prepare.image.map_requests import MapRequest, parse_requests
from picstore.prepare.image.read_map import cast_map
from picstore.storage.format.maps import MapSpec


@pytest.mark.parametrize(
    ("values", "dtype", "problem"),
    [
        ([[np.nan, 1.0]], "uint16", "NaN"),
        ([[0.5, 1.0]], "uint8", "fractions"),
        ([[256, 1]], "uint8", "holds 256"),
        ([[-1, 1]], "uint16", "holds -1"),
        ([[1e6, 1.0]], "float16", "holds 1e\\+06"),
        ([[2049, 1]], "float16", "round"),
    ],
)
def test_values_that_a_dtype_lacks_are_refused(values: Any, dtype: str, problem: str) -> None:
    with pytest.raises(ImageError, match=problem):
        cast_map(np.array(values)[:, :, None], MapSpec(dtype=dtype, channels=1))


def test_values_that_a_dtype_has_are_cast() -> None:
    whole = cast_map(np.array([[3.0, 65535.0]])[:, :, None], MapSpec(dtype="uint16", channels=1))
    assert (whole.dtype, whole.ravel().tolist()) == (np.uint16, [3, 65535])
    rounded = cast_map(np.array([[0.1, np.nan]])[:, :, None], MapSpec(dtype="float32", channels=1))
    assert rounded.ravel()[0] == np.float32(0.1)
    assert np.isnan(rounded.ravel()[1])


def test_a_text_states_a_map_and_its_manifest_entry_reads_back() -> None:
    request = MapRequest.parse("depth=../depth/*.png,scale=0.001,unit=m,interpolation=linear,invalid=0")
    assert (request.name, request.files) == ("depth", "../depth/*.png")
    spec = request.specify(np.zeros((1, 1, 1), np.uint16))
    assert spec == MapSpec(dtype="uint16", channels=1, scale=0.001, unit="m", interpolation="linear", fill=0, invalid=0)
    assert MapSpec.from_json(spec.to_json()) == spec
    fills_nan = MapRequest.parse("n,fill=nan").specify(np.zeros((1, 1, 3), np.float32)).to_json()
    assert fills_nan["fill"] == "nan"
    assert np.isnan(MapSpec.from_json(fills_nan).fill)


@pytest.mark.parametrize(
    "text",
    [
        *("", "a:b", "depth=one.png", "depth=*/*.png", "depth,scale", "depth,scale=x", "depth,unknown=1"),
        *("depth,dtype=int32", "depth,channels=5", "depth,channels=0", "depth,interpolation=cubic"),
        *("depth,scale=inf", "depth,fill=inf", "depth,dtype=uint8,fill=256", "depth,dtype=uint8,fill=nan"),
        *("depth,dtype=uint16,invalid=-1", "depth,dtype=uint16,invalid=0.5", "depth,dtype=float16,fill=1e6"),
    ],
)
def test_a_text_that_states_no_map_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_requests([text])


def test_a_map_stated_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="twice"):
        parse_requests(["depth", "depth,scale=2"])
