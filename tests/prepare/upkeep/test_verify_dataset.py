"""picstore verify: every damaged place with file, offset and what it costs; and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from commands import one_line, picstore_command, picstore_json
from PIL import Image

import picstore
from picstore.prepare.upkeep.verify_dataset import FileCheck, check_file, verify
from picstore.storage.location.local import Folder
from picstore.storage.manifest import read_manifest


@pytest.fixture
def dataset(make_dataset: Callable[..., Path]) -> Path:
    """120 records in 3 streams and several files and containers."""
    return make_dataset(120, container_size=12 << 10, file_size=30 << 10)


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(data)


def test_a_sound_data_set_has_no_findings(dataset: Path) -> None:
    assert verify(dataset, decode=True, workers=2)[1] == []
    assert "no damage" in picstore_command("verify", dataset, "--decode").stdout
    result = picstore_json("verify", dataset)
    assert (result["ok"], result["damage"], result["images"]) == (True, [], 120)


def test_one_bad_byte_in_an_image_costs_that_record_only(dataset: Path) -> None:
    opened = picstore.Dataset(dataset)
    ref, entry = opened.containers.container_ref(1), opened.entries(1)[2]
    at = ref.offset + int(entry["offset"]) + int(entry["length"]) // 2
    flip(dataset / ref.name, at)
    result = picstore_json("verify", dataset, code=3)
    (finding,) = result["damage"]
    assert (finding["file"], finding["offset"], finding["records_lost"]) == (ref.name, ref.offset, 1)
    assert result["records_lost"] == 1
    with pytest.raises(picstore.Damage):
        list(picstore.Dataset(dataset))


def test_every_part_of_a_file_is_checked(dataset: Path) -> None:
    opened = picstore.Dataset(dataset)
    ref, row = opened.containers.container_ref(0), opened.rows[0]
    path = dataset / ref.name
    sound = path.read_bytes()
    end = ref.offset + int(row["size"])
    offsets = {
        "file header": 9,
        "container header": ref.offset + 8,
        "index": ref.offset + 64 + 3,
        "payload": ref.offset + int(opened.entries(0)[0]["offset"]) + 5,
        "trailer": len(sound) - 20,
        "footer": len(sound) - 64 - 20,
    }
    for part, offset in offsets.items():
        flip(path, offset)
        _, findings, _ = verify(dataset, workers=1)
        assert len(findings) >= 1, part
        assert {finding.file for finding in findings} == {ref.name}
        assert sum(finding.records_lost for finding in findings) <= 1, part
        path.write_bytes(sound)
    assert end <= len(sound)


def test_a_truncated_file_costs_the_containers_that_are_gone(dataset: Path) -> None:
    opened = picstore.Dataset(dataset)
    rows = [row for row in opened.rows if (row["stream"], row["file"]) == (0, 0)]
    assert len(rows) > 1
    path = dataset / opened.containers.container_ref(0).name
    path.write_bytes(path.read_bytes()[: int(rows[1]["offset"]) + 100])
    _, findings, _ = verify(dataset, workers=1)
    assert sum(finding.records_lost for finding in findings) == sum(int(row["records"]) for row in rows[1:])
    assert any("tail is lost" in finding.problem for finding in findings)


def test_a_missing_file_costs_its_records(dataset: Path) -> None:
    entry = picstore.Dataset(dataset).manifest.files[0]
    (dataset / "0000" / "000000.pic").unlink()
    result = picstore_json("verify", dataset, code=3)
    assert result["records_lost"] == entry.records
    assert "missing" in result["damage"][0]["problem"]


def test_a_damaged_or_missing_index_costs_nothing_and_files_are_checked(dataset: Path) -> None:
    flip(dataset / "picstore.idx", 100)
    _, findings, _ = verify(dataset, workers=1)
    assert [finding.file for finding in findings] == ["picstore.idx"]
    (dataset / "picstore.idx").unlink()
    path = dataset / "0001" / "000000.pic"
    path.write_bytes(path.read_bytes()[:-100])
    _, findings, _ = verify(dataset, workers=1)
    assert {finding.file for finding in findings} == {"picstore.idx", "0001/000000.pic"}
    assert sum(finding.records_lost for finding in findings) == 0, "the walk over the containers finds them all"


def test_a_file_of_another_place_is_noticed(dataset: Path) -> None:
    (dataset / "0000" / "000000.pic").write_bytes((dataset / "0001" / "000000.pic").read_bytes())
    _, findings, _ = verify(dataset, workers=1)
    assert "misplaced" in findings[0].problem
    assert sum(finding.records_lost for finding in findings) == picstore.Dataset(dataset).manifest.files[0].records


def test_decode_finds_what_checksums_cannot(tmp_path: Path) -> None:
    """A writer with a bug: sound checksums over a stream that is no JPEG."""
    from pictures import reencode
    from samples import jpeg

    from picstore.prepare.convert.row_division import DatasetShape
    from picstore.prepare.convert.row_writer import RowWriter, make_record
    from picstore.prepare.image.encode_settings import EncodeSettings
    from picstore.storage.format.record import Record
    from picstore.storage.manifest_writer import publish_dataset

    good, _ = reencode(jpeg(1), settings=EncodeSettings())
    record = make_record(good, id=0, label=0)
    broken = Record(1, 0, good[: len(good) // 2] + bytes(20), record.info)
    with RowWriter(tmp_path / "d", row=0, shape=DatasetShape(streams=1, container_size=1 << 20)) as writer:
        writer.add(record)
        writer.add(broken)
        publish_dataset(tmp_path / "d", writer.close(), streams=1, container_size=1 << 20)
    assert verify(tmp_path / "d", workers=1)[1] == []
    _, findings, _ = verify(tmp_path / "d", decode=True, workers=1)
    assert [finding.records_lost for finding in findings] == [1]
    assert "record 1" in findings[0].problem


def test_what_is_no_data_set_gets_one_line(tmp_path: Path, dataset: Path) -> None:
    assert "does not exist" in one_line(picstore_command("verify", tmp_path / "nowhere", code=1))
    (tmp_path / "empty").mkdir()
    assert "picstore convert" in one_line(picstore_command("verify", tmp_path / "empty", code=1))
    manifest = dataset / "picstore.json"
    manifest.write_bytes(manifest.read_bytes()[:200])
    assert "not whole JSON" in one_line(picstore_command("verify", dataset, code=3))


def test_an_image_that_convert_took_is_no_damage_whatever_pillow_allows(
    dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Folder(dataset)
    entry = read_manifest(root).files[0]
    for max_pixels, found in ((1 << 28, 0), (99, entry.records)):
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
        task = FileCheck(root, entry, None, (), (), max_pixels)
        findings = check_file(task, lambda _: None).findings
        assert len(findings) == found
        assert all("pixels" in finding.problem for finding in findings)
