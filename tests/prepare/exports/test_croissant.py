"""Croissant metadata, which the library of the specification's authors checks, and by which it reads exports."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import picstore_command, picstore_json
from pictures import require
from PIL import Image
from samples import picture

import picstore
from picstore.errors import UsageError

COUNT = 10


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """A dataset with classes, an attachment and columns of all kinds, one of whose images is deleted."""
    path = tmp_path / "animals"
    with picstore.Writer(path, classes=["cat", "dog"], attachments=["mask"]) as writer:
        for k in range(COUNT + 1):
            writer.add(Image.fromarray(picture(k)), label=k % 2, extra={"number": k}, attachments={"mask": b"\0\1"})
    columns: dict[str, Any] = {
        "score": np.arange(COUNT + 1) / 4,
        "caption": [f"picture {k}" for k in range(COUNT + 1)],
        "embedding": np.zeros((COUNT + 1, 4), np.float32),
    }
    picstore.Dataset(path).with_columns(columns).save()
    picstore.delete(path, [COUNT])
    return path


def checked(file: Path) -> Any:
    """What mlcroissant makes of a file, in which it finds no error and misses only what picstore cannot know."""
    require(importlib.util.find_spec("mlcroissant"), "mlcroissant")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its libraries'
        logging.getLogger("absl").setLevel(logging.ERROR)
        import mlcroissant

        found = mlcroissant.Dataset(jsonld=str(file))
    issues = found.metadata.ctx.issues
    assert not issues.errors
    assert {text.partition('"')[2].partition('"')[0].rpartition("/")[2] for text in issues.warnings} <= {
        "citeAs", "datePublished", "license", "version"
    }  # fmt: skip
    assert found.metadata.ctx.is_v1_1()
    return found


def records(file: Path) -> list[dict[str, Any]]:
    found = checked(file)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(found.records("records"))


def test_the_files_of_a_dataset_have_their_sizes_and_sha256(dataset: Path) -> None:
    result = picstore_json("info", dataset, "--croissant", dataset / "croissant.json")
    assert result["croissant"] == str(dataset / "croissant.json")
    document = json.loads((dataset / "croissant.json").read_text())
    assert document["conformsTo"] == "http://mlcommons.org/croissant/1.1" and document["name"] == "animals"
    listed = {each["@id"]: each for each in document["distribution"] if each["@type"] == "cr:FileObject"}
    for name, each in listed.items():
        raw = (dataset / name).read_bytes()
        assert each["sha256"] == hashlib.sha256(raw).hexdigest() and each["contentSize"] == f"{len(raw)} B"
        assert each["contentUrl"] == name
    files = {path.relative_to(dataset).as_posix() for path in dataset.rglob("*.pic")}
    assert files | {"picstore.json", "picstore.idx"} <= set(listed)
    assert len([name for name in listed if name.endswith(".npy")]) == 1 + 1 + 4  # deletions, ids, values and ends
    checked(dataset / "croissant.json")


def test_fields_have_the_types_of_the_columns_and_the_origin_is_named(dataset: Path) -> None:
    picstore.info(dataset, croissant=dataset / "croissant.json")
    metadata = checked(dataset / "croissant.json").metadata
    fields = {each.id.partition("/")[2]: each for each in metadata.record_sets[0].fields}
    types = {name: str(each.data_types[0]).rpartition("/")[2] for name, each in fields.items()}
    assert types == {
        "id": "Int64",
        "image": "ImageObject",
        "label": "Int64",
        "extra": "Text",
        "mask": "Text",
        "score": "Float64",
        "caption": "Text",
        "embedding": "Float32",
    }
    assert fields["embedding"].is_array and fields["embedding"].array_shape == "4"
    assert metadata.record_sets[1].data == [{"classes/label": 0, "classes/name": "cat"},
                                            {"classes/label": 1, "classes/name": "dog"}]  # fmt: skip
    document = json.loads((dataset / "croissant.json").read_text())
    assert document["description"] == "10 images of 2 classes."
    assert document["prov:wasDerivedFrom"]["prov:label"] == "Writer"
    assert document["identifier"] == f"urn:uuid:{picstore.Dataset(dataset).uuid}"


def test_a_file_written_again_keeps_what_its_author_added(dataset: Path, tmp_path: Path) -> None:
    file = tmp_path / "elsewhere.json"
    picstore.info(dataset, croissant=file)
    document = json.loads(file.read_text())
    assert document["distribution"][0]["contentUrl"] == f"{dataset}/picstore.json"
    added = {"license": "https://spdx.org/licenses/MIT", "name": "pets", "citeAs": "me"}
    file.write_text(json.dumps({**document, **added, "recordSet": []}))
    picstore.info(dataset, croissant=file)
    assert json.loads(file.read_text()) == {**document, **added}
    checked(file)


@pytest.mark.parametrize("text", ["{", "[]", '{"a": 1}'])
def test_a_file_of_something_else_is_not_replaced(dataset: Path, tmp_path: Path, text: str) -> None:
    file = tmp_path / "package.json"
    file.write_text(text)
    with pytest.raises(UsageError, match="choose another file"):
        picstore.info(dataset, croissant=file)
    assert file.read_text() == text


def test_a_selection_and_unsaved_edits_are_refused(dataset: Path, tmp_path: Path) -> None:
    opened = picstore.Dataset(dataset)
    for some in (opened.select([1, 2]), opened.without([3]), opened.concat(opened)):
        with pytest.raises(UsageError, match="whole saved dataset"):
            picstore.info(some, croissant=tmp_path / "croissant.json")
    done = picstore_command("info", dataset, "--where", "label = 1", "--croissant", tmp_path / "x.json", code=2)
    assert "whole saved dataset" in done.stderr and not (tmp_path / "x.json").exists()


@pytest.mark.parametrize("form", ["parquet", "webdataset", "folder"])
def test_mlcroissant_reads_the_images_of_an_export(dataset: Path, tmp_path: Path, form: str) -> None:
    picstore.export(dataset, tmp_path / "out", format=form, workers=1)  # type: ignore[arg-type]
    found = records(tmp_path / "out" / "croissant.json")
    expected = {record.image.tobytes(): record for record in picstore.Dataset(dataset)}
    seen = {np.asarray(each["records/image"]).tobytes(): each for each in found}
    assert set(seen) == set(expected) and len(found) == COUNT
    if form == "parquet":
        assert {seen[key]["records/label"] == record.label for key, record in expected.items()} == {True}
        assert json.loads(found[0]["records/extra"])["caption"].startswith("picture")


@pytest.mark.parametrize("form", ["parquet", "webdataset", "folder", "mds"])
def test_the_files_of_an_export_have_their_sha256(dataset: Path, tmp_path: Path, form: str) -> None:
    picstore.export(dataset, tmp_path / "out", format=form, workers=1)  # type: ignore[arg-type]
    document = json.loads((tmp_path / "out" / "croissant.json").read_text())
    listed = {each["@id"]: each.get("sha256") for each in document["distribution"] if each["@type"] == "cr:FileObject"}
    files = {path for path in (tmp_path / "out").rglob("*") if path.is_file() and path.name != "croissant.json"}
    if form == "folder":
        files = {path for path in files if path.parent == tmp_path / "out"}
    hashes = {path.relative_to(tmp_path / "out").as_posix(): path.read_bytes() for path in files}
    assert listed == {name: hashlib.sha256(raw).hexdigest() for name, raw in hashes.items()}
    checked(tmp_path / "out" / "croissant.json")
