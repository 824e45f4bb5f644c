"""Exports: read by the formats' own libraries, and converted back to the same bytes, labels and extras."""

from __future__ import annotations

import gc
import json
import re
import struct
import subprocess
import tarfile
from collections import Counter, deque
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from commands import one_line, picstore_command, picstore_json, tree
from engine_tasks import InlineEngine
from pictures import quadrants, saved
from samples import jpeg

import picstore
from picstore.errors import UsageError
from picstore.prepare.exports import run_export
from picstore.prepare.exports.run_export import FORMATS, OutlineTask, _open_format, export, outline_containers
from picstore.prepare.exports.safe_names import safe_name
from picstore.prepare.sources.open import open_source
from picstore.storage.location.abstract_location import PARTIAL

ROOT = Path(__file__).parents[3]
PEERS = ROOT / ".venv-peers" / "bin" / "python"  # of benchmarks/setup-peers; mosaicml-streaming is too heavy for dev
CLASSES = ["zebra", "../ant", "Ant", "empty"]
MASK = saved(quadrants(24, 16).convert("L"), "PNG")
# label, extra, attachments
RECORDS: list[tuple[int, Any, dict[str, bytes]]] = [
    (0, {"path": "some/where/a photo.JPEG", "caption": "ä"}, {"mask": MASK}),
    (1, {"path": "other/a photo.jpg", "boxes": [[1, 2, 3, 4]], "box_labels": [0]}, {"mask": MASK, "depth": b"\1\2"}),
    (0, {"path": "elsewhere/a photo.png"}, {}),
    (-1, {"path": "../../../etc/.passwd"}, {}),
    (2, {"n": [1, {"m": None}]}, {}),
    (2, {"path": "con"}, {"depth": b"\3"}),
]


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    with picstore.Writer(tmp_path / "dataset", classes=CLASSES, attachments=["mask", "depth"]) as writer:
        for number, (label, extra, attachments) in enumerate(RECORDS):
            writer.add(jpeg(number), label=label, extra=extra, attachments=attachments)
    return tmp_path / "dataset"


def content(path: Path) -> list[tuple[bytes, int, Any, dict[str, bytes]]]:
    """Records by id: JPEG, label, extra, attachments that are there."""
    records = sorted(picstore.Dataset(path), key=lambda record: record.id)
    return [(r.jpeg, r.label, r.extra, {k: bytes(v) for k, v in r.attachments.items() if len(v)}) for r in records]


def stored_order(path: Path) -> list[tuple[bytes, int, Any, dict[str, bytes]]]:
    found = content(path)
    return [found[record.id] for record in picstore.Dataset(path)]


@pytest.mark.parametrize("format", FORMATS)
def test_an_export_converts_back_to_the_same_jpegs_labels_and_attachments(
    dataset: Path, tmp_path: Path, format: str
) -> None:
    summary = picstore_json("export", dataset, tmp_path / "out", "--format", format)
    assert (summary["images"], summary["records_lost"]) == (len(RECORDS), 0)
    source = tmp_path / "out" / "records.jsonl" if format == "folder" else tmp_path / "out"
    classes = ["--classes", tmp_path / "out" / "classes.txt"]
    result = picstore_json("convert", source, tmp_path / "back", *classes)
    assert result["status"] == {"lossless": len(RECORDS)}
    assert picstore.Dataset(tmp_path / "back").classes == CLASSES
    for (image, label, extra, attachments), (again, label_again, extra_again, attached) in zip(
        stored_order(dataset), content(tmp_path / "back"), strict=True
    ):
        assert (again, label_again, attached) == (image, label, attachments)
        if "path" not in extra:
            del extra_again["path"]  # which convert adds
        assert extra_again == extra


def test_folders_are_read_by_torchvision_with_classes_and_original_names(dataset: Path, tmp_path: Path) -> None:
    torchvision = pytest.importorskip("torchvision")
    done = picstore_command("export", dataset, tmp_path / "out", "--format", "folder")
    assert "labels as they were stand in records.jsonl" in done.stderr
    read = torchvision.datasets.ImageFolder(tmp_path / "out", allow_empty=True)
    assert read.classes == ["Ant", "_ant", "empty", "unlabelled", "zebra"]
    names = sorted(str(Path(path).relative_to(tmp_path / "out")) for path, _ in read.samples)
    by_path = {row["path"]: row for row in table(tmp_path / "out")}
    assert names == sorted(by_path)
    zebras = [name for name in names if name.startswith("zebra")]
    assert zebras[1] == "zebra/a photo.jpg"
    assert zebras[0] in ("zebra/a photo-0.jpg", "zebra/a photo-2.jpg")
    assert "unlabelled/passwd.jpg" in names
    assert "_ant/a photo.jpg" in names
    assert all(picture.size == (60, 40) for picture, _ in read)


def test_attachments_called_as_images_are_not_images_of_a_folder(tmp_path: Path) -> None:
    torchvision = pytest.importorskip("torchvision")
    names = ["seg.png", "mask", "left.JPG"]
    with picstore.Writer(tmp_path / "dataset", classes=["cat"], attachments=names) as writer:
        writer.add(jpeg(1), label=0, attachments=dict.fromkeys(names, MASK))
    export(tmp_path / "dataset", tmp_path / "out", format="folder", workers=InlineEngine(1))
    assert len(torchvision.datasets.ImageFolder(tmp_path / "out")) == 1


def table(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "records.jsonl").read_text().splitlines()]


def test_an_export_to_folders_writes_nothing_outside_and_nothing_twice(dataset: Path, tmp_path: Path) -> None:
    before = set(tmp_path.rglob("*"))
    export(dataset, tmp_path / "out", format="folder", workers=InlineEngine(1))
    made = set(tmp_path.rglob("*")) - before
    assert all(path.is_relative_to(tmp_path / "out") for path in made)
    images = [path for path in made if path.suffix == ".jpg"]
    assert len(images) == len(RECORDS)
    assert not [path for path in made if path.name.endswith(".partial")]


@pytest.mark.parametrize("format", FORMATS)
def test_nothing_of_an_export_that_ends_early_looks_complete(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(run_export, "_sync_tree", fail)
        with pytest.raises(OSError, match="disk full"):
            export(dataset, tmp_path / "out", format=format, shard_size=2000, workers=InlineEngine(1))
        assert list((tmp_path / "out").iterdir()) == []
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", fail)
        with pytest.raises(OSError, match="disk full"):
            export(dataset, tmp_path / "out", format=format, shard_size=2000, workers=InlineEngine(1))
    assert [path.name for path in (tmp_path / "out").iterdir()] == [".unfinished"]
    with pytest.raises(UsageError, match="was interrupted"):
        export(dataset, tmp_path / "out", format=format, workers=InlineEngine(1))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("cat", "cat"),
        ("../../etc", "_.._etc"),
        ("..", "_"),
        ("", "_"),
        (".hidden", "hidden"),
        ("a/b\\c:d\0e", "a_b_c_d_e"),
        ("CON", "_CON"),
        ("nul.txt", "_nul.txt"),
        ("größe Ω", "größe Ω"),
        ("\ud800x", "_x"),
        ("trailing. ", "trailing"),
    ],
)
def test_a_name_becomes_one_that_leads_nowhere_else(text: str, name: str) -> None:
    assert safe_name(text) == name


def test_a_long_name_stays_within_what_file_systems_take() -> None:
    assert len(safe_name("字" * 300).encode()) <= 200


# It leaves the tars that it reads open.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_webdatasets_own_reader_reads_the_shards(dataset: Path, tmp_path: Path) -> None:
    try:
        import webdataset
    except ImportError:
        from pictures import missing

        missing("webdataset")
    export(dataset, tmp_path / "out", format="webdataset", shard_size=2000, workers=InlineEngine(1))
    shards = sorted(map(str, (tmp_path / "out").glob("shard-*.tar")))
    assert len(shards) > 1
    read = list(webdataset.WebDataset(shards, shardshuffle=False).decode())
    raw = list(webdataset.WebDataset(shards, shardshuffle=False))
    for sample, plain, (image, label, extra, attachments) in zip(read, raw, stored_order(dataset), strict=True):
        assert plain["jpg"] == image
        assert sample["cls"] == label
        assert sample["json"] == extra
        assert plain.get("mask.png") == attachments.get("mask")
        assert plain.get("depth.bin") == attachments.get("depth")
    gc.collect()


def test_streamings_own_reader_reads_the_shards(dataset: Path, tmp_path: Path) -> None:
    if not PEERS.exists():
        pytest.skip("mosaicml-streaming is missing: benchmarks/setup-peers installs it")
    export(dataset, tmp_path / "out", format="mds", shard_size=1500, workers=InlineEngine(1))
    code = """
import hashlib, json, os, sys
from streaming import LocalDataset
dataset = LocalDataset(sys.argv[1])
for k in range(len(dataset)):
    sample = dataset[k]
    pixels = hashlib.sha256(sample["image"].tobytes()).hexdigest()
    row = [pixels, sample["label"], sample["extra"], sample["mask"].hex(), sample["depth"].hex()]
    print(json.dumps(row), flush=True)
os._exit(0)  # what the library starts does not always end
"""
    command = [str(PEERS), "-W", "ignore", "-c", code, str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    read = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(list((tmp_path / "out").glob("shard.*.mds"))) > 1
    for (_, label, extra, mask, depth), (_, *expected, attachments) in zip(read, stored_order(dataset), strict=True):
        assert [label, extra] == expected
        assert bytes.fromhex(mask) == attachments.get("mask", b"")
        assert bytes.fromhex(depth) == attachments.get("depth", b"")
    assert len({row[0] for row in read}) == len(RECORDS)


@pytest.mark.parametrize("format", FORMATS)
def test_an_export_never_touches_what_is_there(dataset: Path, tmp_path: Path, format: str) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("mine")
    assert "not an empty folder" in one_line(
        picstore_command("export", dataset, tmp_path / "out", "--format", format, code=2)
    )
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]


@pytest.mark.parametrize("format", FORMATS)
def test_damaged_records_are_left_out_counted_and_exit_with_3(dataset: Path, tmp_path: Path, format: str) -> None:
    first = next(iter(content(dataset)))[0]
    for file in dataset.glob("*/*.pic"):
        data = bytearray(file.read_bytes())
        at = data.find(first)
        if at >= 0:
            data[at + 100] ^= 255
            file.write_bytes(data)
    done = picstore_command("export", dataset, tmp_path / "out", "--format", format, code=3)
    assert f"{len(RECORDS) - 1} images" in done.stdout
    assert "1 damaged record left out" in done.stdout


@pytest.mark.parametrize("format", ["mds", "parquet"])
def test_an_attachment_that_is_called_as_a_column_is_refused(tmp_path: Path, format: str) -> None:
    with picstore.Writer(tmp_path / "dataset", attachments=["label"]) as writer:
        writer.add(jpeg(0))
    with pytest.raises(UsageError, match="'label'"):
        export(tmp_path / "dataset", tmp_path / "out", format=format, workers=InlineEngine(1))


def sizes_of_samples(shard: Path) -> list[int]:
    """Bytes of the samples of a tar or an MDS shard, in order."""
    if shard.suffix == ".mds":
        data = shard.read_bytes()
        (count,) = struct.unpack_from("<I", data)
        offsets = struct.unpack_from(f"<{count + 1}I", data, 4)
        return [end - start for start, end in pairwise(offsets)]
    sizes: Counter[str] = Counter()
    with tarfile.open(shard) as tar:
        for member in tar:
            end = member.offset_data + -(-member.size // 512) * 512
            sizes[member.name.partition(".")[0]] += end - member.offset  # headers of long names included
    return [*sizes.values()]


@pytest.mark.parametrize("format", ["webdataset", "mds"])
def test_planned_shards_are_as_full_as_their_size_allows(tmp_path: Path, format: str) -> None:
    names = ["größe" * 18, "mask", "x" * 99]
    with picstore.Writer(tmp_path / "dataset", attachments=names) as writer:
        for number in range(60):
            blobs = {name: bytes(97 * number % 1000) for name in names[: number % 4]}
            extra = {"text": "ü" * (number % 7 * 100)} if number % 3 else None
            writer.add(jpeg(number % 20), extra=extra, attachments=blobs)
    dataset = picstore.Dataset(tmp_path / "dataset").with_columns({"text": ["ä" * k for k in range(60)]})
    size = 12_000
    export(dataset, tmp_path / "out", format=format, shard_size=size, workers=InlineEngine(1))
    shards = [sizes_of_samples(shard) for shard in sorted((tmp_path / "out").glob("shard*"))]
    assert len(shards) > 5
    planned = OutlineTask(dataset, tuple(range(len(dataset.rows))), _open_format(format, tmp_path, dataset, size))
    assert outline_containers(planned, lambda _: None).described == [each for samples in shards for each in samples]
    for samples, following in pairwise(shards):
        if format == "mds":
            assert sum(samples) <= size < sum(samples) + following[0]
        else:
            assert sum(samples[:-1]) < size <= sum(samples)


@pytest.mark.parametrize("format", ["webdataset", "mds", "parquet"])
def test_shards_are_numbered_through_where_one_loses_all_of_its_records(
    dataset: Path, tmp_path: Path, format: str
) -> None:
    first = next(iter(content(dataset)))[0]
    for file in dataset.glob("*/*.pic"):
        data = bytearray(file.read_bytes())
        if (at := data.find(first)) >= 0:
            data[at + 100] ^= 255
            file.write_bytes(data)
    done = export(dataset, tmp_path / "out", format=format, shard_size=1, workers=InlineEngine(1))
    assert (done.images, done.lost) == (len(RECORDS) - 1, 1)
    numbers = [int(re.findall(r"\d+", path.name)[0]) for path in sorted((tmp_path / "out").rglob("*[0-9].*"))]
    assert numbers == list(range(len(RECORDS) - 1))
    assert len(open_source(tmp_path / "out").inputs) == len(RECORDS) - 1


class RunsTwice(InlineEngine):
    """Runs each task twice, as if the first run were taken for dead, and leaves a file that was begun."""

    def run(self, function: Any, tasks: Any, *, on_progress: Any = lambda _: None) -> Iterator[tuple[Any, Any]]:
        for task, _ in super().run(function, deque(tasks), on_progress=on_progress):
            (task.format.root / f"begun{PARTIAL}").touch()
            yield task, function(task, on_progress)
        tasks.clear()


@pytest.mark.parametrize("format", FORMATS)
def test_a_task_that_runs_twice_changes_nothing(dataset: Path, tmp_path: Path, format: str) -> None:
    once = export(dataset, tmp_path / "once", format=format, shard_size=2000, workers=InlineEngine(1))
    assert export(dataset, tmp_path / "twice", format=format, shard_size=2000, workers=RunsTwice(1)) == once
    assert tree(tmp_path / "twice") == tree(tmp_path / "once")
