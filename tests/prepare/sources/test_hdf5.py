"""HDF5 as a source."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from source_files import JPEGS, NAMES, decoded, extras, images, labels, library, pixels, put

from picstore.errors import ImageError, TooLarge, UsageError
from picstore.prepare.sources.open import open_source, read_input


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
    assert listing.remarks[0] == "dataset train/features: left out of 6 rows"
    assert listing.remarks[1].endswith("null now: 1 (in score)")


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


def test_values_in_other_files_are_refused(tmp_path: Path) -> None:
    h5py = library("h5py")
    secret = tmp_path / "id_rsa"
    secret.write_bytes(b"S3CRET" * 64)
    images = np.zeros((1, 8, 8, 3), np.uint8)
    with h5py.File(tmp_path / "external.h5", "w") as file:
        file["images"] = images
        file.create_dataset("caption", shape=(1,), dtype="S384", external=[(str(secret), 0, 384)])
    with h5py.File(tmp_path / "pixels.h5", "w") as file:
        file.create_dataset("images", shape=(1, 8, 48), dtype="u1", external=[(str(secret), 0, 384)])
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["private"] = images + 7
    with h5py.File(tmp_path / "virtual.h5", "w") as file:
        layout = h5py.VirtualLayout(shape=(1, 8, 8, 3), dtype="u1")
        layout[0] = h5py.VirtualSource(str(tmp_path / "other.h5"), "private", shape=(1, 8, 8, 3))[0]
        file.create_virtual_dataset("images", layout)
    for name in ("external.h5", "pixels.h5", "virtual.h5"):
        with pytest.raises(UsageError, match="has its values in other files"):
            open_source(tmp_path / name)


def test_links_to_other_files_and_soft_links_are_not_followed(tmp_path: Path) -> None:
    h5py = library("h5py")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["captions"] = np.array([b"private"])
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["images"] = np.zeros((1, 8, 8, 3), np.uint8)
        file["caption"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "captions")
        file["title"] = h5py.SoftLink("/images")
    listing = open_source(tmp_path / "a.h5")
    assert extras(listing) == [None]
    for name in ("caption", "title"):
        with pytest.raises(UsageError, match="no field"):
            open_source(tmp_path / "a.h5", image_field=name)


def test_a_small_file_cannot_claim_a_million_million_rows(tmp_path: Path) -> None:
    h5py = library("h5py")
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file.create_dataset("images", (1 << 40, 8, 8, 3), "u1", chunks=(1, 8, 8, 3))
    with h5py.File(tmp_path / "empty.h5", "w") as file:
        file.create_dataset("images", (1 << 40, 0, 8, 3), "u1")
    for name in ("rows.h5", "empty.h5"):
        assert (tmp_path / name).stat().st_size < 1 << 14
        with pytest.raises(TooLarge, match="claims"):
            open_source(tmp_path / name)


def test_rows_cannot_share_a_text_to_fill_the_memory(tmp_path: Path) -> None:
    h5py = library("h5py")
    count = 400
    path = tmp_path / "shared.h5"
    with h5py.File(path, "w") as file:
        file["images"] = np.zeros((count, 2, 2, 3), np.uint8)
        file.create_dataset("caption", data=["x" * 1000] + [""] * (count - 1), dtype=h5py.string_dtype())
    whole = path.read_bytes()
    with h5py.File(path, "r") as file:
        start = file["caption"].id.get_offset()
    reference = whole[start : start + 16]
    path.write_bytes(whole[:start] + reference * count + whole[start + 16 * count :])
    listing = open_source(path)
    assert "share their texts" in listing.inputs[-1].problem
    assert sum(1 for one in listing.inputs if one.extra) < count


@pytest.mark.parametrize("shape", [(6, 1), (6, 1, 1, 1), (1, 6)])
def test_labels_of_one_value_a_row_are_read_in_any_shape(tmp_path: Path, shape: tuple[int, ...]) -> None:
    h5py = library("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["train_set_x"] = np.stack([pixels(k) for k in range(6)])
        file["train_set_y"] = np.arange(6).reshape(shape)
        file["test_set_y"] = np.zeros(6)
    listing = open_source(tmp_path / "a.h5")
    assert labels(listing) == list(range(6))
    assert listing.remarks == ["dataset test_set_y: left out of 6 rows"]


def test_labels_of_zeros_and_a_one_stay_metadata_with_a_remark(tmp_path: Path) -> None:
    h5py = library("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["images"] = np.stack([pixels(k) for k in range(6)])
        file["labels"] = np.eye(6, 3, dtype=np.float32)
    listing = open_source(tmp_path / "a.h5")
    assert labels(listing) == [-1] * 6
    assert extras(listing)[:2] == [{"labels": [1, 0, 0]}, {"labels": [0, 1, 0]}]
    assert any("has several values" in remark for remark in listing.remarks)


@pytest.mark.parametrize("user_block", [512, 1 << 14])
def test_matlabs_arrays_are_put_right_behind_a_user_block(tmp_path: Path, user_block: int) -> None:
    h5py = library("h5py")
    stack = np.stack([pixels(k) for k in range(6)])
    with h5py.File(tmp_path / "a.mat", "w", userblock_size=user_block) as file:
        for name, value in (("images", stack.transpose(0, 3, 2, 1)), ("labels", np.arange(6.0)[None])):
            file.create_dataset(name, data=value).attrs["MATLAB_class"] = np.bytes_(value.dtype.name)
    head = b"MATLAB 7.3 MAT-file, Platform: GLNXA64 HDF5 schema 1.00 .".ljust(124) + b"\0\2IM"
    put(tmp_path / "a.mat", head + (tmp_path / "a.mat").read_bytes()[len(head) :])
    listing = open_source(tmp_path / "a.mat")
    assert (listing.kind, labels(listing)) == ("hdf5", list(range(6)))
    assert all(np.array_equal(decoded(data), pixels(k)) for k, data in enumerate(images(listing)))
    with h5py.File(tmp_path / "b.mat", "w") as file:
        file.create_dataset("images", data=stack.transpose(3, 2, 1, 0)).attrs["MATLAB_class"] = np.bytes_("uint8")
    with pytest.raises(UsageError, match="write it as height"):
        open_source(tmp_path / "b.mat")


def test_a_damaged_chunk_costs_its_rows_alone(tmp_path: Path) -> None:
    h5py = library("h5py")
    path = tmp_path / "a.h5"
    stack = np.stack([pixels(k) for k in range(6)])
    with h5py.File(path, "w") as file:
        file.create_dataset("image", data=stack, chunks=(2, *stack.shape[1:]), fletcher32=True)
        file.create_dataset("label", data=np.arange(6) + 77, chunks=(2,), fletcher32=True)
    data = path.read_bytes()
    for what, failing in ((stack[2].tobytes(), {2, 3}), (struct.pack("<2q", 81, 82), {4, 5})):
        at = data.index(what)
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        (copy := tmp_path / f"{at}.h5").write_bytes(path.read_bytes())
        inputs = open_source(copy).inputs
        assert len(inputs) == 6
        for k, one in enumerate(inputs):
            if k in failing:
                with pytest.raises(ImageError):
                    read_input(one)
            else:
                assert (one.label, np.array_equal(decoded(read_input(one)), pixels(k))) == (k + 77, True)
