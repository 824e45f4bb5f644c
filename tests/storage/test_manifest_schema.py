"""docs/manifest.schema.json: what it allows is what picstore reads, and what picstore writes; and the golden edits."""

from __future__ import annotations

import functools
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hostile import canonical, content_uuid, rewrite_manifest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import picstore
from picstore.errors import Corrupt, UnsupportedVersion
from picstore.prepare.upkeep.shuffled_copy import shuffle
from picstore.prepare.upkeep.verify_dataset import verify
from picstore.storage.format.checksum import crc32c
from picstore.storage.location.resolve import MANIFEST, locate
from picstore.storage.manifest import parse_manifest

GOLDEN = Path(__file__).parents[1] / "fixtures" / "golden"
SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "manifest.schema.json").read_text())
EDITED = GOLDEN / "edited"
VALUES = st.sampled_from([None, -1, 10**30, "x", [], {}, [1], [None], {"a": 1}, True, [["x"]], [{}], 0, 2])


@functools.cache
def validator() -> Any:
    """jsonschema, which takes 2 s of each test process to import, as it compiles grammars."""
    from jsonschema import Draft202012Validator

    return Draft202012Validator(SCHEMA)


def manifests_of(root: Path) -> list[dict[str, Any]]:
    """The manifest of a data set, and those of its earlier versions."""
    return [json.loads(path.read_text()) for path in (root / MANIFEST, *root.glob("edits/*.json"))]


def test_the_schema_is_one() -> None:
    validator().check_schema(SCHEMA)


@pytest.mark.parametrize("name", ["dataset", "edited", "maps"])
def test_golden_manifests_hold_the_schema(name: str) -> None:
    for document in manifests_of(GOLDEN / name):
        validator().validate(document)


def test_what_writer_delete_columns_and_shuffle_write_holds_the_schema(
    make_dataset: Callable[..., Path], tmp_path: Path
) -> None:
    dataset = picstore.Dataset(make_dataset(12)).without([3]).save()
    dataset.with_columns({"score": range(11), "caption": ["x"] * 11}).save()
    shuffle(dataset.path, tmp_path / "shuffled", method="uniform", seed=1, workers=1)
    for root in (Path(str(dataset.path)), tmp_path / "shuffled"):
        for document in manifests_of(root):
            validator().validate(document)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [path, *(inner for key in keys for inner in places(value[key], (*path, key)))]


@given(data=st.data())
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.parametrize("name", ["dataset", "edited"])
def test_picstore_reads_a_manifest_exactly_if_the_schema_allows_it(name: str, data: st.DataObject) -> None:
    document = json.loads((GOLDEN / name / MANIFEST).read_text())
    *path, last = data.draw(
        st.sampled_from([each for each in places(document) if each and each[0] not in ("format", "crc32c")])
    )
    parent = document
    for key in path:
        parent = parent[key]
    parent[last] = data.draw(VALUES)
    del document["crc32c"]
    document["crc32c"] = crc32c(canonical(document))
    try:
        parse_manifest(json.dumps(document).encode(), locate("here"))
    except (Corrupt, UnsupportedVersion):
        assert not validator().is_valid(document)
    else:
        validator().validate(document)


# The golden data set of version 2


def test_the_golden_edits_are_read_as_they_were_written() -> None:
    dataset = picstore.Dataset(EDITED)
    assert dataset.manifest.edits is not None and dataset.manifest.edits.index != "picstore.idx"
    assert (len(dataset), dataset.manifest.images, len(dataset.live.deleted)) == (6, 8, 2)
    assert dataset.ids.tolist() == [0, 2, 3, 5, 6, 7]
    assert dataset.columns == ("caption", "label", "score", "vector")
    for record in dataset:
        assert record.label == 1 - record.id % 2
        assert record.columns["caption"] == f"№ {record.id}"
        assert record.columns["score"] == record.id / 4
        assert record.columns["vector"].tolist() == [record.id, -record.id]
        assert record.extra == (
            {"n": record.id} if record.id < 6 else {"path": f"{('colour', 'grey')[record.id - 6]}/new.png"}
        )


def test_every_golden_version_is_read() -> None:
    sizes = {path.stem: len(picstore.Dataset(EDITED, version=path.stem)) for path in EDITED.glob("edits/*.json")}
    assert sorted(sizes.values()) == [6, 8]
    assert verify(EDITED, decode=True, workers=1).findings == []


def test_the_golden_edits_are_the_ones_that_were_committed() -> None:
    digest = hashlib.sha256()
    for path in sorted(EDITED.rglob("*")):
        if path.is_file():
            digest.update(path.relative_to(EDITED).as_posix().encode() + path.read_bytes())
    assert digest.hexdigest() == "d14e7456869b72016665d0b71dccade4aae0731458a5b1ea901084c3e0ff10e7"


def test_the_uuids_of_the_golden_edits_are_those_of_the_format_page() -> None:
    for document in manifests_of(EDITED):
        index = document.get("edits", {}).get("index", "picstore.idx")
        assert content_uuid(document, (EDITED / index).read_bytes()[64:]) == document["uuid"]


def test_a_later_version_is_refused_with_what_to_do(tmp_path: Path) -> None:
    shutil.copytree(EDITED, tmp_path / "later")
    rewrite_manifest(tmp_path / "later", format_version=9, new_field={})
    with pytest.raises(UnsupportedVersion, match="format version 9; this picstore reads version 1, 2, 3: upgrade"):
        picstore.Dataset(tmp_path / "later")
    rewrite_manifest(tmp_path / "later", read_by="0.4.0")
    with pytest.raises(UnsupportedVersion, match=r"1, 2, 3: upgrade to picstore 0\.4\.0 or later"):
        picstore.Dataset(tmp_path / "later")
