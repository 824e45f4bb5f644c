"""Record counts: exact at any size, kept by whatever makes or edits a data set, and never believed unchecked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import picstore_command, picstore_json
from grids import examples
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import picstore
from picstore.errors import Damage, NotADataset, UnsupportedVersion, UsageError
from picstore.prepare.convert.row_division import DatasetShape
from picstore.storage import record_counts
from picstore.storage.dataset_reader import ContainerReader
from picstore.storage.format import layout
from picstore.storage.location.resolve import COUNTS, locate
from picstore.storage.record_counts import RecordCounts, counts_file, read_counts, write_counts
from picstore.verbs import dataset_facts

Make = Callable[..., Path]


def counted(path: Path | picstore.Dataset) -> dict[int, int]:
    """What is kept with a data set, which must be what its records say."""
    dataset = path if isinstance(path, picstore.Dataset) else picstore.Dataset(path)
    kept = dataset.kept_counts()
    assert kept is not None
    found = dict(zip(kept.labels.tolist(), kept.counts.tolist(), strict=True))
    assert found == Counter(record.label for record in dataset)
    assert kept.ids_end > max((record.id for record in dataset), default=-1)
    return found


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A folder of 7 cats, a broken one, and 3 dogs."""
    for name, count in {"cat": 7, "dog": 3}.items():
        (tmp_path / "images" / name).mkdir(parents=True)
        for k in range(count):
            pixels = np.random.default_rng([k, count]).integers(0, 255, (48, 48, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / name / f"{k}.png")
    (tmp_path / "images" / "cat" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n broken")
    return tmp_path / "images"


def test_a_conversion_keeps_the_counts_of_its_records(images: Path, tmp_path: Path) -> None:
    picstore_command("convert", images, tmp_path / "set", "--max-errors", 9)
    assert counted(tmp_path / "set") == {0: 7, 1: 3}
    picstore_command("index", images, tmp_path / "index", "--max-errors", 9)
    assert counted(tmp_path / "index") == {0: 7, 1: 3}
    Image.new("RGB", (16, 16)).save(images / "cat" / "broken.png")
    picstore_command("convert", images, tmp_path / "set", "--retry-failed")
    assert counted(tmp_path / "set") == {0: 8, 1: 3}
    picstore_command("convert", images, tmp_path / "set", "--append")
    assert counted(tmp_path / "set") == {0: 16, 1: 6}


@pytest.mark.parametrize("lost", [False, True])
def test_merged_shards_have_the_counts_of_all_rows(images: Path, tmp_path: Path, lost: bool) -> None:
    (images / "cat" / "broken.png").unlink()
    for shard in ("0/2", "1/2"):
        picstore_command("convert", images, tmp_path / "set", "--shard", shard, "--file-size", "4KiB", "--streams", 1)
    rows = sorted((tmp_path / "set" / "unfinished").glob("row-*.counts"))
    assert len(rows) > 2
    if lost:  # as of an earlier picstore, or damaged
        rows[1].unlink()
        rows[2].write_bytes(b"damaged")
    picstore_command("merge", tmp_path / "set")
    assert counted(tmp_path / "set") == {0: 7, 1: 3}


def test_every_edit_keeps_the_counts_of_its_version(make_dataset: Make, tmp_path: Path) -> None:
    path = make_dataset(20, classes=2)
    assert counted(path) == {0: 10, 1: 10}
    whole = picstore.Dataset(path)
    picstore_command("delete", path, "--id", 0, "--id", 3)
    assert counted(path) == {0: 9, 1: 9}
    picstore.Dataset(path).with_columns({"label": [-1, -1, -1]}, ids=[1, 2, 4]).save()
    assert counted(path) == {-1: 3, 0: 7, 1: 8}
    picstore_command("shuffle", path, tmp_path / "copy")
    assert counted(tmp_path / "copy") == {-1: 3, 0: 7, 1: 8}
    picstore_command("shuffle", path, tmp_path / "few", "--where", "id < 6")
    assert counted(tmp_path / "few") == {-1: 3, 1: 1}
    assert counted(picstore.Dataset(path, version=whole.uuid)) == {0: 10, 1: 10}
    assert counted(whole) == {0: 10, 1: 10}


def test_appended_records_that_a_column_relabels_count_with_their_labels(images: Path, tmp_path: Path) -> None:
    (images / "cat" / "broken.png").unlink()
    picstore_command("convert", images, tmp_path / "set")
    picstore.Dataset(tmp_path / "set").with_columns({"label": np.zeros(10, np.int64)}).save()
    assert counted(tmp_path / "set") == {0: 10}
    picstore_command("convert", images, tmp_path / "set", "--append")
    assert counted(tmp_path / "set") == {0: 17, 1: 3}


def test_repair_and_save_keep_counts_that_are_missing_or_wrong(make_dataset: Make) -> None:
    path = make_dataset(20, classes=2)
    true = picstore.Dataset(path).record_counts()
    (path / COUNTS).unlink()
    assert picstore.Dataset(path).kept_counts() is None
    assert picstore_json("verify", path)["remarks"] == [
        f"there are no counts of labels, {COUNTS}; `picstore repair` writes them"
    ]
    assert "counts of labels written" in picstore_command("repair", path).stdout
    assert counted(path) == {0: 10, 1: 10}
    wrong = RecordCounts(true.labels, true.counts + np.array([1, -1]), true.ids_end)
    write_counts(locate(path), picstore.Dataset(path).manifest, wrong)
    assert "differ from the records'" in picstore_command("verify", path, code=3).stdout
    assert picstore_json("repair", path)["counts"] is True
    assert counted(path) == {0: 10, 1: 10} and picstore_json("repair", path)["counts"] is False
    (path / COUNTS).write_bytes((path / COUNTS).read_bytes()[:-1])
    assert COUNTS in picstore_command("verify", path, code=3).stdout
    picstore.Dataset(path).save()
    assert counted(path) == {0: 10, 1: 10}
    picstore_command("verify", path)


def test_a_damaged_record_that_repair_deletes_is_not_counted(make_dataset: Make) -> None:
    path = make_dataset(20, classes=2, streams=1)
    dataset = picstore.Dataset(path)
    name, lost = dataset.containers.container_ref(0).name, dataset[0]
    data = bytearray((path / name).read_bytes())
    data[data.index(bytes(lost.jpeg)) + 50] ^= 1
    (path / name).write_bytes(data)
    picstore_command("repair", path)
    assert counted(path)[lost.label] == 9


def test_a_column_of_other_values_takes_the_counts_as_they_are(
    make_dataset: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_dataset(20, classes=2)
    dataset = picstore.Dataset(path)
    edited = dataset.with_columns({"score": np.arange(20)})
    assert edited.kept_counts() is None
    with monkeypatch.context() as patch:
        patch.delattr(ContainerReader, "index")
        edited.save()
        assert picstore.Dataset(path).record_counts().counts.tolist() == [10, 10]
    assert counted(path) == {0: 10, 1: 10}


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """A data set of more containers than are sampled: 60 images of 3 classes, 10, 20 and 30."""
    shape = DatasetShape(streams=1, container_size=4096)
    with picstore.Writer(tmp_path / "many", classes=["a", "b", "c"], shape=shape) as writer:
        for k in range(60):
            pixels = np.random.default_rng(k).integers(0, 255, (40, 40, 3), np.uint8)
            writer.add(pixels, label=(k > 9) + (k > 29))
    return tmp_path / "many"


@pytest.mark.parametrize("older", [False, True])
def test_info_counts_all_images_by_class_and_says_what_it_samples(
    many: Path, older: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset_facts, "_SAMPLED_CONTAINERS", 5)
    containers = len(picstore.Dataset(many).rows)
    assert containers > 20
    if older:
        (many / COUNTS).unlink()
    read: list[int] = []
    index = ContainerReader.index
    monkeypatch.setattr(ContainerReader, "index", lambda self, number: (read.append(number), index(self, number))[1])
    found = picstore_json("info", many)
    assert found["histograms"]["label"]["counts"] == [30, 20, 10]
    assert found["histograms"]["label"]["names"] == ["c", "b", "a"]
    assert [found["histograms"]["label"][name] for name in ("records", "containers")] == [60, containers]
    for name in ("width", "height", "bytes"):
        histogram = found["histograms"][name]
        assert histogram["containers"] == found["sampled_containers"] == 5
        assert histogram["records"] == sum(histogram["counts"]) < 60
    assert found["counts_kept"] is not older
    assert len(read) == (5 + containers if older else 5)
    done = picstore_command("info", many)
    assert ("no counts are kept here; `picstore repair` keeps them" in done.stderr) is older
    lines = done.stdout.splitlines()
    assert "  images by class" in lines
    assert f"  by width, in a sample of 5 of {containers} containers" in lines
    assert next(line for line in lines if line.startswith("  order")).endswith(
        f"sample of 5 of {containers} containers"
    )


def test_info_of_a_selection_counts_its_images(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset_facts, "_SAMPLED_CONTAINERS", 5)
    done = picstore_command("info", many, "--where", "id >= 8 AND id < 40")
    assert "no counts are kept for a selection" in done.stderr
    assert picstore_json("info", many, "--where", "id >= 8 AND id < 40")["histograms"]["label"]["counts"] == [20, 10, 2]


def test_a_summary_and_the_page_count_every_sound_record_once(many: Path) -> None:
    from picstore.viewer.queries import Filter
    from picstore.viewer.records import Records

    dataset = picstore.Dataset(many)
    ref = dataset.containers.container_ref(0)
    data = bytearray((many / ref.name).read_bytes())
    entry = dataset.entries(0)[0]
    at = data.index(entry.tobytes())
    data[at] ^= 1
    data[at + 20] ^= 1  # two bits, so that the entry cannot be corrected
    (many / ref.name).write_bytes(data)
    counts = [10, 20, 30]
    counts[entry["label"]] -= 1
    label, width, *_ = Records(picstore.Dataset(many)).histograms(Filter())
    assert dict(zip(label.values, label.counts, strict=True)) == dict(enumerate(counts))
    assert sum(width.counts) == 59 and width.edges[0] == 40
    figure = picstore.Dataset(many).summary()
    assert "60 images, 1 of them damaged: " in figure.get_suptitle()


# The file.


def stored(tmp_path: Path, make: Make) -> tuple[Path, picstore.Dataset, layout.CountsHeader, bytes]:
    path = make(20, classes=2)
    raw = (path / COUNTS).read_bytes()
    return path, picstore.Dataset(path), layout.CountsHeader.unpack(raw, file="", offset=0), raw[layout.SEALED :]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"version": 9}, UnsupportedVersion, "version 9"),
        ({"row_size": 24}, Damage, "rows of 24 bytes"),
        ({"rows": 1 << 60}, Damage, "rows for 20 records"),
        ({"rows": 3}, Damage, "cut off|end"),
        ({"records": 21}, Damage, "of 21 records; the dataset has 20"),
        ({"uuid": bytes(16)}, NotADataset, "another version"),
        ({"rows_crc": 1}, Damage, "fail their CRC"),
    ],
)
def test_no_field_of_counts_is_believed(
    tmp_path: Path, make_dataset: Make, change: dict[str, Any], error: type[Exception], message: str
) -> None:
    path, dataset, header, rows = stored(tmp_path, make_dataset)
    (path / COUNTS).write_bytes(replace(header, **change).pack() + rows)
    with pytest.raises(error, match=message):
        read_counts(locate(path), dataset.manifest)
    assert dataset.kept_counts() is None
    assert dataset.record_counts().counts.tolist() == [10, 10]


@pytest.mark.parametrize(
    "rows",
    [
        [(0, 10), (0, 10)],
        [(1, 10), (0, 10)],
        [(0, 20), (1, 0)],
        [(0, 10), (1, 9)],
        [(0, 30), (1, (1 << 64) - 10)],
        [(0, 1 << 63), (1, (1 << 63) + 20)],
    ],
)
def test_counts_that_do_not_add_up_are_damage(tmp_path: Path, make_dataset: Make, rows: list[tuple[int, int]]) -> None:
    path, dataset, header, _ = stored(tmp_path, make_dataset)
    raw = np.array(rows, layout.COUNT_ROW).tobytes()
    (path / COUNTS).write_bytes(replace(header, rows=len(rows), rows_crc=record_counts.crc32c(raw)).pack() + raw)
    with pytest.raises(Damage, match="do not add up"):
        read_counts(locate(path), dataset.manifest)


def test_every_byte_of_the_file_is_checked(tmp_path: Path, make_dataset: Make) -> None:
    path, dataset, _, _ = stored(tmp_path, make_dataset)
    raw = (path / COUNTS).read_bytes()
    for number in range(len(raw)):
        (path / COUNTS).write_bytes(raw[:number] + bytes([raw[number] ^ 16]) + raw[number + 1 :])
        assert dataset.kept_counts() is None
        (path / COUNTS).write_bytes(raw[:number])
        assert dataset.kept_counts() is None
    (path / COUNTS).write_bytes(raw)
    assert counted(dataset) == {0: 10, 1: 10}


def test_a_program_without_counts_reads_the_same_data_set(make_dataset: Make) -> None:
    path = make_dataset(20)
    dataset = picstore.Dataset(path)
    assert COUNTS not in (path / "picstore.json").read_text() and dataset.manifest.format_version == 1
    (path / COUNTS).unlink()
    assert picstore.Dataset(path).uuid == dataset.uuid
    assert picstore.Dataset(path).record_counts().same(dataset.record_counts())


@examples(60)
@given(
    parts=st.lists(st.dictionaries(st.integers(-5, 60), st.integers(1, 1000)), max_size=12), merged=st.integers(0, 9)
)
def test_the_counts_of_parts_add_up_however_many_wait(parts: list[dict[int, int]], merged: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_counts, "_MERGED", merged)
        joined = RecordCounts.join(RecordCounts.of(part, ids_end=k) for k, part in enumerate(parts))
    expected = sum((Counter(part) for part in parts), Counter())
    assert dict(zip(joined.labels.tolist(), joined.counts.tolist(), strict=True)) == expected
    assert joined.labels.tolist() == sorted(expected) and joined.ids_end == max(0, len(parts) - 1)
    assert joined.records == expected.total() and joined.same(RecordCounts.of(expected))


def test_a_million_classes_are_kept_beside_a_manifest_of_the_usual_size() -> None:
    counts = RecordCounts(np.arange(1_000_000), np.full(1_000_000, 100))
    assert len(counts_file(counts)) == 64 + 16 * 1_000_000


def test_a_selection_and_several_data_sets_are_counted(make_dataset: Make) -> None:
    dataset = picstore.Dataset(make_dataset(20, classes=2))
    assert dataset.select([0, 1, 2]).record_counts().records == 3
    joined = dataset.concat(dataset)
    assert joined.kept_counts() is None and joined.record_counts().counts.tolist() == [20, 20]
    with pytest.raises(UsageError):
        joined.save()


def test_no_counts_are_written_through_a_symbolic_link(make_dataset: Make, tmp_path: Path) -> None:
    path = make_dataset(20)
    saved = picstore.Dataset(path).without([3]).save()
    (path / "edits" / f"{saved.uuid}.counts").unlink()
    (path / "edits").rename(tmp_path / "elsewhere")
    (path / "edits").symlink_to(tmp_path / "elsewhere")
    before = sorted((tmp_path / "elsewhere").iterdir())
    with pytest.raises(UsageError, match="symbolic link"):
        picstore.Dataset(path).save()
    assert sorted((tmp_path / "elsewhere").iterdir()) == before
