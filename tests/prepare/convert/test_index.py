"""picstore index: a data set of references, read, trained on and converted as if it held the images."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import ledger, one_line, picstore_command, picstore_json, tree
from PIL import Image
from samples import jpeg, picture
from source_files import DATA, make_tar, put

import picstore
from picstore.errors import Damage, ImageError, NotADataset, UnsupportedVersion, UsageError
from picstore.jpeg.transcode import add_restart_markers
from picstore.prepare.image.decoder_process import decode_file
from picstore.prepare.image.encode_settings import EncodeSettings
from picstore.prepare.sources.open import open_source, read_input
from picstore.storage import manifest as manifests
from picstore.storage.format.reference import Reference, unpack_reference

COUNT = 40
CROP = [picstore.RandomResizedCrop(16), picstore.RandomHorizontalFlip()]


def saved(image: Image.Image, format: str, **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, format, **options)
    return out.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """40 JPEGs of two classes and several sizes; some with restart markers, progressive, grey, or bytes behind EOI."""
    for k in range(COUNT):
        data = jpeg(k, width=48 + k, height=70 - k)
        if k % 5 == 1:
            data = add_restart_markers(data)
        elif k % 5 == 2:
            data = saved(Image.fromarray(picture(k)), "JPEG", progressive=True)
        elif k % 5 == 3:
            data = saved(Image.fromarray(picture(k)).convert("L"), "JPEG")
        elif k % 5 == 4:
            data += b"more of the camera's"
        put(tmp_path / "source" / ("ant", "bee")[k % 2] / f"{k:02d}.jpg", data)
    return tmp_path / "source"


@pytest.fixture
def index(folder: Path, tmp_path: Path) -> Path:
    """The folder's index, in containers of a few images."""
    picstore_command("index", folder, tmp_path / "index", "--container-size", "8KiB")
    return tmp_path / "index"


def test_an_index_holds_every_image_of_a_folder_where_it_lies(folder: Path, index: Path) -> None:
    dataset = picstore.Dataset(index)
    assert (len(dataset), dataset.classes, dataset.foreign) == (COUNT, ["ant", "bee"], 0)
    assert dataset.manifest.references is not None and dataset.manifest.references.root == str(folder)
    assert sorted(dataset.ids.tolist()) == list(range(COUNT))
    for record in (*dataset, dataset[7]):
        path = folder / record.extra["path"]
        assert path.read_bytes().startswith(bytes(record.jpeg)) and bytes(record.jpeg).endswith(b"\xff\xd9")
        assert record.label == (path.parent.name == "bee")
        with Image.open(path) as image:
            assert (record.width, record.height) == image.size
            assert np.array_equal(record.image, np.asarray(image.convert("RGB")))
    assert len({record.label for record in dataset[:8]}) == 2, "images with a file each are mixed"
    stored = sum(path.stat().st_size for path in index.rglob("*.pic"))
    assert dataset.rows["referenced"].sum() == sum(len(r.jpeg) for r in dataset) > stored / 4


def test_a_job_on_an_index_goes_on_with_the_data_set_converted_from_it(index: Path, tmp_path: Path) -> None:
    picstore_command("convert", index, tmp_path / "converted", "--streams", 3)
    before, after = picstore.Dataset(index), picstore.Dataset(tmp_path / "converted")
    assert after.ids.tolist() == before.ids.tolist()
    assert after.rows["records"].tolist() == before.rows["records"].tolist() and len(after.rows) > 4
    assert [record.extra for record in after] == [record.extra for record in before]
    lossless = {line["id"] for line in ledger(tmp_path / "converted") if line["status"] == "lossless"}
    assert len(lossless) == COUNT - COUNT // 5  # all but progressive ones

    one = picstore.Loader(index, batch_size=8, transform=CROP, seed=5, isolate=False)
    other = picstore.Loader(tmp_path / "converted", batch_size=8, transform=CROP, seed=5, isolate=False)
    batch = next(iterator := iter(one))
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    for expected, batch in zip(iterator, other, strict=True):
        assert batch.ids.tolist() == expected.ids.tolist() and batch.labels.tolist() == expected.labels.tolist()
        same = [id_ in lossless for id_ in batch.ids.tolist()]
        assert np.array_equal(batch.images[same], expected.images[same])
    one.close()
    other.close()


def test_an_edited_conversion_of_an_index_has_an_order_of_its_own(index: Path, tmp_path: Path) -> None:
    picstore_command("convert", index, tmp_path / "converted")
    dataset = picstore.Dataset(tmp_path / "converted")
    assert dataset.order_uuid == picstore.Dataset(index).uuid != dataset.uuid
    edited = dataset.without([3]).save()
    assert edited.order_uuid == edited.uuid


def test_an_index_without_deleted_records_is_converted_without_them(index: Path, tmp_path: Path) -> None:
    picstore.Dataset(index).without([3, 4]).with_columns({"label": [1] * (COUNT - 2)}).save()
    picstore_command("convert", index, tmp_path / "converted")
    before, after = picstore.Dataset(index), picstore.Dataset(tmp_path / "converted")
    assert after.ids.tolist() == before.ids.tolist() and not {3, 4} & set(after.ids.tolist())
    assert {record.label for record in after} == {1}
    assert after.rows["records"].tolist() == before.live.counts.tolist()


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "rotated", "CMYK"])
def test_files_that_are_no_upright_jpegs_train_as_convert_decodes_them(kind: str, tmp_path: Path) -> None:
    for k in range(8):
        image = Image.fromarray(picture(k, width=40, height=40 + 8 * (k % 2)))  # a square one has one size either way
        exif = Image.Exif()
        exif[0x0112] = 6
        data = {
            "PNG": lambda image=image: saved(Image.merge("RGBA", (*image.split(), image.split()[0])), "PNG"),
            "WEBP": lambda image=image: saved(image, "WEBP", lossless=True),
            "rotated": lambda image=image, exif=exif: saved(image, "JPEG", exif=exif),
            "CMYK": lambda image=image: saved(image.convert("CMYK"), "JPEG"),
        }[kind]()
        put(tmp_path / "source" / "a" / f"{k}.img", data)
    picstore_command("index", tmp_path / "source", tmp_path / "index")
    dataset = picstore.Dataset(tmp_path / "index")
    assert dataset.foreign == 8
    expected = {}
    for record in dataset:
        image = decode_file(bytes(record.jpeg), settings=EncodeSettings()).image
        expected[record.id] = np.asarray(image.convert("RGB") if isinstance(image, Image.Image) else image)
        assert expected[record.id].shape[:2] == (record.height, record.width)
        with pytest.raises(ImageError, match="Pillow"):
            _ = record.image
    loader = picstore.Loader(dataset, batch_size=8, isolate=False)
    (batch,) = loader
    for id_, image in zip(batch.ids.tolist(), batch.images, strict=True):
        assert np.array_equal(image.permute(1, 2, 0).numpy(), expected[id_])
    assert loader.damaged == 0
    loader.close()
    assert picstore_json("verify", tmp_path / "index", "--decode")["ok"]
    picstore_command("convert", tmp_path / "index", tmp_path / "converted")
    converted = picstore.Dataset(tmp_path / "converted")
    assert [(r.id, r.width, r.height) for r in converted] == [(r.id, r.width, r.height) for r in dataset]
    assert "convert it" in one_line(
        picstore_command("export", tmp_path / "index", tmp_path / "out", "--format", "mds", code=2)
    )


def test_targets_are_mapped_once_however_often_an_image_is_rotated_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    put(tmp_path / "images" / "a.jpg", saved(Image.fromarray(picture(0)), "JPEG", exif=exif))
    coco = {
        "images": [{"id": 1, "file_name": "a.jpg", "width": 60, "height": 40}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [0, 0, 30, 10], "area": 300, "iscrowd": 0}],
        "categories": [{"id": 1, "name": "x"}],
    }
    (tmp_path / "coco.json").write_text(json.dumps(coco))
    picstore_command("index", tmp_path / "images", tmp_path / "index", "--annotations", tmp_path / "coco.json")
    picstore_command("convert", tmp_path / "index", tmp_path / "converted")
    picstore_command("convert", tmp_path / "images", tmp_path / "direct", "--annotations", tmp_path / "coco.json")
    boxes = [picstore.Dataset(tmp_path / name)[0].extra["boxes"] for name in ("index", "converted", "direct")]
    assert boxes == [[[30.0, 0.0, 40.0, 30.0]]] * 3


def test_attachments_are_references_too(tmp_path: Path) -> None:
    members = {
        f"{k}{end}": data
        for k in range(4)
        for end, data in ((".jpg", jpeg(k)), (".seg.png", b"mask%d" % k), (".cls", b"1"))
    }
    make_tar(tmp_path / "shards" / "a.tar", members)
    picstore_command("index", tmp_path / "shards", tmp_path / "index")
    dataset = picstore.Dataset(tmp_path / "index")
    assert [bytes(record.attachments["seg"]) for record in dataset] == [b"mask%d" % k for k in range(4)]
    assert [record.id for record in dataset] == [0, 1, 2, 3], "neighbors in a shard are read together"
    picstore_command("convert", tmp_path / "index", tmp_path / "converted")
    assert [bytes(r.attachments["seg"]) for r in picstore.Dataset(tmp_path / "converted")] == [
        b"mask%d" % k for k in range(4)
    ]


@pytest.mark.parametrize("name", ["mds", "litdata", "ffcv", "tfrecord", "recordio/im2rec.rec", "images"])
def test_sources_that_hold_images_as_they_are_can_be_indexed(name: str, tmp_path: Path) -> None:
    source = DATA / name
    if name == "ffcv":
        source = put(tmp_path / "jpg.beton", gzip.decompress((source / "jpg.beton.gz").read_bytes()))
    picstore_command("index", source, tmp_path / "index")
    dataset = picstore.Dataset(tmp_path / "index")
    expected = [read_input(one) for one in open_source(source).inputs]
    assert sorted(bytes(record.jpeg) for record in dataset) == sorted(expected) and len(expected) >= 3


def test_sources_that_do_not_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    done = picstore_command("index", DATA / "mds-zstd", tmp_path / "index", code=2)
    assert "picstore convert" in done.stderr and not (tmp_path / "index").exists()


# Damage


@pytest.mark.parametrize("change", ["other bytes", "cut off", "removed", "a folder", "a pipe"])
def test_a_changed_source_file_is_damage_with_its_name(
    change: str, folder: Path, index: Path, caplog: pytest.LogCaptureFixture
) -> None:
    record = picstore.Dataset(index)[5]
    path = folder / record.extra["path"]
    data = path.read_bytes()
    path.unlink()
    if change == "other bytes":
        path.write_bytes(data[:200] + bytes([data[200] ^ 1]) + data[201:])
    elif change == "cut off":
        path.write_bytes(data[: len(data) // 2])
    elif change == "a folder":
        path.mkdir()
    elif change == "a pipe":
        os.mkfifo(path)
    with pytest.raises(Damage) as caught:
        picstore.Dataset(index)[5]
    assert caught.value.file == str(path)
    report = picstore_json("verify", index, code=3)
    assert (report["records_lost"], report["damage"][0]["file"]) == (1, str(path))
    loader = picstore.Loader(index, batch_size=8, transform=CROP, isolate=False)
    ids = [id_ for batch in loader for id_ in batch.ids.tolist()]
    assert record.id not in ids and len(ids) == COUNT and loader.damaged == 1
    assert f"left out: {path}" in caplog.text
    loader.close()


def test_an_index_whose_source_is_gone_is_refused(folder: Path, index: Path, tmp_path: Path) -> None:
    shutil.rmtree(folder)
    with pytest.raises(NotADataset, match=f"{folder}, which does not exist"):
        picstore.Dataset(index)
    for verb in (["info", index], ["verify", index], ["convert", index, tmp_path / "out"]):
        assert str(folder) in one_line(picstore_command(*verb, code=1))
    assert not (tmp_path / "out").exists()


def test_a_changed_file_fails_when_the_index_is_converted(folder: Path, index: Path, tmp_path: Path) -> None:
    record = picstore.Dataset(index)[5]
    (folder / record.extra["path"]).write_bytes(jpeg(1000))
    picstore_command("convert", index, tmp_path / "out", "--max-errors", 1)
    (line,) = (line for line in ledger(tmp_path / "out") if line["status"] == "failed")
    assert line["id"] == record.id and ("truncated" in line["reason"] or "changed" in line["reason"])
    dataset = picstore.Dataset(tmp_path / "out")
    assert dataset.order_uuid == dataset.uuid, "with a record less the order is another one"


def test_a_reader_that_knows_no_references_refuses_an_index(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {version: check for version, check in manifests._CHECKS.items() if version < 3}
    monkeypatch.setattr(manifests, "_CHECKS", known)
    with pytest.raises(UnsupportedVersion, match="upgrade"):
        picstore.Dataset(index)


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../up", "a/../b", "a//b", ".", "a\0b", "x" * 5000])
def test_a_reference_leads_to_no_file_outside_of_its_root(path: str) -> None:
    with pytest.raises(UsageError):
        Reference(path, 0, 1, 0)
    raw = Reference("a", 0, 1, 0).pack()[:-1] + path.encode()
    with pytest.raises(Damage):
        unpack_reference(raw)


def test_references_to_more_bytes_than_the_index_says_are_refused(index: Path) -> None:
    dataset = picstore.Dataset(index)
    dataset.containers.rows = dataset.rows.copy()
    dataset.containers.rows["referenced"] -= 1
    with pytest.raises(Damage, match="more than"):
        dataset.containers.read(0)


# Commands


def test_resuming_a_finished_index_changes_nothing_with_any_workers(folder: Path, index: Path, tmp_path: Path) -> None:
    before = tree(index)
    picstore_command("index", folder, index, "--container-size", "8KiB", "--resume")
    assert tree(index) == before
    again = tmp_path / "again"
    picstore_command("index", folder, again, "--container-size", "8KiB", "--workers", 1)
    assert tree(again) == tree(index)


def test_what_would_not_keep_an_index_is_refused(folder: Path, index: Path, tmp_path: Path) -> None:
    before = tree(index)
    refused = [
        ["convert", folder, index, "--append"],
        ["convert", index, tmp_path / "out", "--shard", "0/2"],
        ["convert", index, tmp_path / "out", "--dedupe"],
        ["shuffle", index, tmp_path / "out"],
    ]
    for arguments in refused:
        assert "index" in one_line(picstore_command(*arguments, code=2))
    assert tree(index) == before and not (tmp_path / "out").exists()
    with pytest.raises(UsageError, match="cache"):
        picstore.Dataset(index, cache=tmp_path / "cache")


def test_a_data_set_that_holds_its_images_is_no_source(index: Path, tmp_path: Path) -> None:
    picstore_command("convert", index, tmp_path / "converted")
    done = picstore_command("convert", tmp_path / "converted", tmp_path / "again", code=2)
    assert "dataset already" in one_line(done)


def test_a_selection_of_an_index_reads_its_records_alone(folder: Path, index: Path) -> None:
    dataset = picstore.Dataset(index)
    chosen = dataset.select(ids=[3, 11])
    for record in dataset:
        if record.id not in (3, 11):
            (folder / record.extra["path"]).unlink()
    loader = picstore.Loader(chosen, batch_size=2, transform=CROP, isolate=False)
    (batch,) = loader
    assert sorted(batch.ids.tolist()) == [3, 11] and loader.damaged == 0
    loader.close()


def test_an_index_that_has_lost_a_footer_is_verified_by_its_containers(folder: Path, index: Path) -> None:
    (folder / picstore.Dataset(index)[0].extra["path"]).unlink()
    (index / "picstore.idx").unlink()
    path = index / "0000" / "000000.pic"
    path.write_bytes(path.read_bytes()[:-100])
    report = picstore_json("verify", index, code=3)
    assert report["records_lost"] == 1
    assert {Path(finding["file"]).suffix for finding in report["damage"]} == {".idx", ".pic", ".jpg"}


@pytest.mark.parametrize("world_size", [1, 2])
def test_images_of_an_index_wait_for_batches_of_their_aspect_ratio(index: Path, world_size: int) -> None:
    def crops(size: tuple[int, int]) -> list[Any]:
        return [picstore.RandomResizedCrop(size)]

    sizes = [(24, 16), (16, 16), (16, 24)]
    plain = {}
    for size in sizes:
        loader = picstore.Loader(index, batch_size=1, transform=crops(size), threads=1, isolate=False)
        plain.update({(size, int(batch.ids[0])): batch.images[0] for batch in loader})
    seen = []
    for rank in range(world_size):
        buckets, place = picstore.Buckets(sizes, crops), {"rank": rank, "world_size": world_size, "drop_last": False}
        for batch in picstore.Loader(index, batch_size=4, transform=buckets, threads=1, isolate=False, **place):
            for id_, image in zip(batch.ids.tolist(), batch.images, strict=True):
                assert image.equal(plain[tuple(image.shape[1:]), id_])
                seen.append(id_)
    assert sorted(seen) == list(range(COUNT))


@pytest.mark.parametrize("how", ["header", "missing"])
def test_a_damaged_container_of_an_index_fails_its_records_alone(index: Path, tmp_path: Path, how: str) -> None:
    dataset = picstore.Dataset(index)
    ids, count = dataset.ids.tolist(), int(dataset.rows["records"][0])
    path = sorted(index.rglob("*.pic"))[0]
    if how == "header":
        data = bytearray(path.read_bytes())
        start = int(dataset.rows["offset"][0])
        data[start : start + 200] = bytes(200)
        path.write_bytes(bytes(data))
    else:
        count = int(dataset.rows["records"][dataset.rows["file"] == dataset.rows["file"][0]].sum())
        path.unlink()
    listing = open_source(index)
    failed = [one for one in listing.inputs if one.problem]
    assert (len(listing.inputs), len(failed)) == (COUNT, count)
    assert listing.partition is not None and len(set(listing.partition.ids)) == COUNT
    kept = [id_ for id_, one in zip(listing.partition.ids, listing.inputs, strict=True) if not one.problem]
    assert kept == ids[count:]
    if how == "missing":  # the only file
        return
    result = picstore_json("convert", index, tmp_path / "out", code=3)
    assert result["outcome"]["failed"] == count
    lines = ledger(tmp_path / "out")
    assert len({line["id"] for line in lines}) == len(lines) == COUNT
