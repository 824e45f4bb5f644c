"""Training on data sets from strangers: a record of a few KB costs neither gigabytes nor seconds, nor an epoch."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_tasks import InlineEngine
from hostile import claiming, good_record, tiny_jpeg, write_dataset
from samples import jpeg

import picstore
from picstore.errors import Corrupt, Damage, ImageError
from picstore.prepare.upkeep.verify_dataset import verify
from picstore.storage.annotations import MAX_OBJECTS, read_objects
from picstore.storage.format.record import Record
from picstore.train.cpu import decode_crop
from picstore.train.cpu.decode_crop import decode_rgb

GOOD = [good_record(number) for number in range(8)]
CROP = [picstore.RandomResizedCrop(32)]


@contextmanager
def peak_below(limit: int) -> Iterator[None]:
    """Assert that Python and NumPy allocate less than ``limit`` bytes more."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        yield
        assert tracemalloc.get_traced_memory()[1] - before < limit
    finally:
        tracemalloc.stop()


def epoch(root: Path, **options: Any) -> tuple[list[int], picstore.Loader]:
    """The ids of an epoch, and the closed loader."""
    options = {"transform": CROP, "batch_size": 16, "shuffle": False, "drop_last": False, **options}
    loader = picstore.Loader(root, isolate=False, threads=1, **options)
    ids = [id_ for batch in loader for id_ in batch.ids.tolist()]
    loader.close()
    return ids, loader


# Pixels


@pytest.mark.parametrize("decoded", [[picstore.RandomResizedCrop(32, antialias=False)], CROP, []])
@pytest.mark.parametrize("side", [30_000, 8_000])
def test_a_record_that_claims_more_pixels_than_its_bytes_hold_is_damage(
    tmp_path: Path, decoded: list[Any], side: int
) -> None:
    root = write_dataset(tmp_path / "dataset", [*GOOD, claiming(100, side, side)])
    epoch(root, transform=CROP)  # so that no kernel is compiled below
    with peak_below(64 << 20):
        ids, loader = epoch(root, transform=decoded)
    assert len(ids) == 9 and 100 not in ids[:8]
    assert loader.damaged == 1
    with pytest.raises(Corrupt, match=f"record 100 claims {side} × {side} pixels, more than"):
        epoch(root, transform=decoded, on_damage="raise")


def test_max_pixels_bounds_the_images_of_a_loader_and_of_a_mux(tmp_path: Path) -> None:
    large = replace(good_record(9), jpeg=(data := jpeg(9, width=200, height=100)), info=info_of(data))
    root = write_dataset(tmp_path / "dataset", [*GOOD, large])
    assert epoch(root, max_pixels=20_000)[1].damaged == 0
    ids, loader = epoch(root, max_pixels=19_999)
    assert loader.damaged == 1 and 9 not in ids[:8]
    (tmp_path / "mux.toml").write_text(f'max_pixels = 19999\n[[source]]\npath = "{root}"\ncount = 9\n')
    mux = picstore.DataMux(tmp_path / "mux.toml", transform=CROP, isolate=False, threads=1, epoch_batches=1)
    assert len(list(mux)) == 1 and mux.damaged == 1
    mux.close()
    with pytest.raises(picstore.errors.UsageError, match="max_pixels is 0; give an integer of at least 1"):
        epoch(root, max_pixels=0)


def info_of(data: bytes) -> Any:
    from picstore.prepare.image.training_jpeg import parse_image_info

    return parse_image_info(data)


def test_a_header_of_another_size_than_the_index_says_is_not_decoded(tmp_path: Path) -> None:
    """The index claims a small image; libjpeg would take 13 GB for the coefficients of the large one."""
    hostile = [tiny_jpeg(65_500, 65_500, marker=marker, data=bytes(20_000)) for marker in (0xC0, 0xC2)]
    records = [replace(claiming(100 + k, 64, 64), jpeg=data, crc=None) for k, data in enumerate(hostile)]
    root = write_dataset(tmp_path / "dataset", [*GOOD, *records])
    with peak_below(64 << 20):
        for steps in (CROP, [picstore.Resize((8, 8))]):  # decoded whole, and at a reduced scale
            assert epoch(root, transform=steps)[1].damaged == 2
    with pytest.raises(ImageError, match="65500 × 65500"):
        decode_rgb(hostile[1], width=64, height=64, factor=8)


def test_a_jpeg_of_many_scans_is_not_decoded() -> None:
    """Each scan of a progressive JPEG may cost as much as the image, and takes 20 bytes."""
    data = tiny_jpeg(64, 64, marker=0xC2, data=bytes(1000))
    scan = data[data.index(b"\xff\xda") : -2]
    with pytest.raises(ImageError, match="more than 100 scans"):
        decode_rgb(data[:-2] + scan * 100 + b"\xff\xd9", width=64, height=64)


@pytest.mark.parametrize("fused", [True, False])
def test_an_image_that_takes_more_memory_than_there_is_is_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fused: bool
) -> None:
    root = write_dataset(tmp_path / "dataset", GOOD)

    def out_of_memory(*args: Any, width: int, **rest: Any) -> Any:
        if width == GOOD[3].width and bytes(args[0]) == bytes(GOOD[3].jpeg):
            raise MemoryError
        return cpu_decode_rgb(*args, width=width, **rest)

    cpu_decode_rgb = decode_crop.decode_rgb
    monkeypatch.setattr(decode_crop, "decode_rgb", out_of_memory)
    monkeypatch.setattr("picstore.train.cpu.fused.can_fuse", lambda geometry: np.zeros(len(geometry.size), bool))
    if fused:
        monkeypatch.undo()
        pool = type("Full", (), {"grow": lambda _: (_ for _ in ()).throw(MemoryError), "arrays": small_workspace()})
        monkeypatch.setattr("picstore.train.cpu.fused.WORKSPACE", pool())
        assert epoch(root, transform=[picstore.Resize((40, 40))])[0] == list(range(8))  # by the stages that follow
        return
    ids, loader = epoch(root, transform=[picstore.Resize((40, 40))])
    assert loader.damaged == 1 and ids[3] != 3 and len(ids) == 8


def small_workspace() -> tuple[Any, ...]:
    """A decoder's arrays, too small for any image."""
    from picstore.jpeg.decoder.decode_baseline import WORKSPACE

    frame, tables, plan, block, _, _ = WORKSPACE.arrays
    return frame, tables, plan, block, np.empty(16, np.uint8), np.empty(2, np.int64)


# Extras


def bomb(number: int, size: int = (1 << 24) - 10) -> Record:
    """A record of an extra of 16 MiB, which compresses to 1 KB."""
    return good_record(number, extra_json=b'{"a":"' + b" " * (size - 8) + b'"}')


def refused(*_: object) -> bytes:
    """Stands for a function that must not be called."""
    raise ZeroDivisionError


@pytest.mark.slow
def test_extras_take_no_memory_unless_they_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_dataset(tmp_path / "dataset", [bomb(number) for number in range(6)], container_size=4096)
    assert sum(path.stat().st_size for path in root.rglob("*.pic")) < 64 << 10
    dataset = picstore.Dataset(root)
    with monkeypatch.context() as patch:  # a peak of memory would count what other threads of the session take
        patch.setattr("picstore.storage.format.container._decompress", refused)
        assert len(epoch(root)[0]) == 6
        assert len([dataset.entries(number) for number in range(6)]) == 6
        with pytest.raises(ZeroDivisionError):
            epoch(root, targets=["extra"])
    with peak_below(80 << 20):  # two at a time, and none is kept
        assert [len(dataset[k].extra_json) for k in range(6)] == [(1 << 24) - 10] * 6
    assert len(epoch(root, batch_size=1, targets=["extra"])[0]) == 6


@pytest.mark.slow
def test_extras_that_share_bytes_or_exceed_16_mib_are_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from picstore.storage.format import container_writer

    starts = container_writer._starts
    monkeypatch.setattr(
        container_writer, "_starts", lambda lengths: 0 * starts(lengths) if lengths[0] == 12 else starts(lengths)
    )
    shared = [good_record(number, extra_json=b'{"k": 12345}') for number in range(4)]
    for name, records in (("shared", shared), ("long", [good_record(0, extra_json=b" " * (1 << 24) + b"1")])):
        root = write_dataset(tmp_path / name, records)
        assert ["extras" in finding.problem for finding in verify(root, workers=1).findings] == [True]
        with pytest.raises(Corrupt, match="extras"):
            picstore.Dataset(root)[0]


def test_an_extra_that_is_no_json_is_found_by_verify_and_never_exported(tmp_path: Path) -> None:
    from picstore.prepare.exports.run_export import FORMATS, export

    bad = [good_record(8, extra_json=b"{no"), good_record(9, extra_json=b"[" * 100_000)]
    root = write_dataset(tmp_path / "dataset", [*GOOD, *bad], classes=("a", "b"))
    dataset = picstore.Dataset(root)
    for k in (8, 9):
        with pytest.raises(Corrupt, match=f"record {k} .* not JSON"):
            _ = dataset[k].extra
    assert verify(root, workers=1).findings == []
    problems = [finding.problem for finding in verify(root, decode=True, workers=1).findings]
    assert [problem.split(":")[0] for problem in problems] == ["record 8", "record 9"]
    for name in FORMATS:
        done = export(root, tmp_path / name, format=name, workers=InlineEngine(1))
        assert (done.images, done.lost) == (8, 2)
        assert any("not JSON" in remark for remark in done.remarks)


# Targets


@pytest.mark.parametrize(
    "extra",
    [
        {"keypoints": [[] for _ in range(6000)] + [[[0, 0, 0]] * 3000]},
        {"boxes": [[0, 0, 1, 1]] * (MAX_OBJECTS + 1)},
        {"polygons": [[[0, 0, 1, 0, 1, 1]] * (MAX_OBJECTS + 1)]},
    ],
)
def test_targets_of_more_objects_or_points_than_an_image_has_are_damage(tmp_path: Path, extra: dict[str, Any]) -> None:
    with pytest.raises(ImageError, match="at most"):
        read_objects(extra)
    raw = json.dumps(extra, separators=(",", ":")).encode()
    root = write_dataset(tmp_path / "dataset", [*GOOD, good_record(100, extra_json=raw)])
    assert epoch(root, targets=list({"boxes", *extra}))[1].damaged == 1


def test_a_field_of_lists_nested_deeply_is_malformed() -> None:
    for depth in (100, 900):
        with pytest.raises(ImageError, match="boxes is"):
            read_objects({"boxes": [json.loads("[" * depth + "]" * depth)]})


def test_an_epoch_whose_records_are_all_hostile_ends_in_damage(tmp_path: Path) -> None:
    root = write_dataset(tmp_path / "dataset", [claiming(number, 30_000, 30_000) for number in range(4)])
    with pytest.raises(Damage, match="no sound record"):
        epoch(root)
