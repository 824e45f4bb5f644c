"""HDF5 as a source."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from source_files import (
    JPEGS,
    NAMES,
    decoded,
    extras,
    images,
    labels,
    library,
    pixels,
)

from picstore.errors import UsageError
from picstore.prepare.sources.open import open_source


def test_hdf5_of_variable_length_bytes_and_of_pixels_is_read(tmp_path: Path) -> None:
    h5py = library("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        group = file.create_group("train")
        rows = group.create_dataset("images", (6,), dtype=h5py.vlen_dtype(np.uint8))
        for k, data in enumerate(JPEGS):
            rows[k] = np.frombuffer(data, np.uint8)
        group["labels"] = np.arange(6) % 3
        group["name"] = NAMES * 2
        group["score"] = np.array([0.5, np.nan, 1, 2, 3, 4])
        group["features"] = np.zeros((6, 9))
    listing = open_source(tmp_path / "a.h5")
    assert listing.kind == "hdf5"
    assert images(listing) == JPEGS
    assert labels(listing) == [0, 1, 2, 0, 1, 2]
    assert extras(listing)[:2] == [{"name": "cat", "score": 0.5}, {"name": "dog", "score": None}]
    assert listing.remarks == ["data set train/features: left out"]


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_hdf5_arrays_become_images_pixel_by_pixel(tmp_path: Path, layout: str) -> None:
    h5py = library("h5py")
    stack = np.stack([pixels(k) for k in range(6)])
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        stored = stack if layout == "NHWC" else stack.transpose(0, 3, 1, 2)
        file.create_dataset("x", data=stored, compression="gzip", chunks=(2, *stored.shape[1:]))
        file["y"] = np.arange(6)
    listing = open_source(tmp_path / "a.hdf5")
    assert labels(listing) == list(range(6))
    assert all(np.array_equal(decoded(data), pixels(k)) for k, data in enumerate(images(listing)))


def test_hdf5_of_references_is_refused(tmp_path: Path) -> None:
    h5py = library("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["one"] = 1.0
        file.create_dataset("images", data=[file["one"].ref], dtype=h5py.ref_dtype)
    with pytest.raises(UsageError, match="objects or references"):
        open_source(tmp_path / "a.h5")
