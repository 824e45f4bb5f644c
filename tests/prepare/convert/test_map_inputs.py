"""Maps of sources: found by a rule of names or as fields, stored exactly, and failed inputs where they do not fit."""

from __future__ import annotations

import functools
import io
import json
import struct
import tarfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pictures import exr
from PIL import Image

import picstore
from picstore.errors import UsageError
from picstore.storage.format.maps import decode_map

WIDTH, HEIGHT = 24, 18


def depth_of(number: int, dtype: str = "uint16") -> np.ndarray:
    return (np.random.default_rng(number).random((HEIGHT, WIDTH)) * 60000).astype(dtype)


def jpeg(number: int, orientation: int = 1) -> bytes:
    out = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = orientation
    levels = np.random.default_rng(number).integers(0, 255, (HEIGHT, WIDTH, 3), np.uint8)
    Image.fromarray(levels).save(out, "JPEG", exif=exif.tobytes() if orientation > 1 else b"")
    return out.getvalue()


def encoded(values: np.ndarray, format: str) -> bytes:
    out = io.BytesIO()
    if format == "npy":
        np.save(out, values)
    else:
        Image.fromarray(values).save(out, format)
    return out.getvalue()


def stored(dataset: Path, name: str = "map:depth") -> dict[str, np.ndarray]:
    """The maps of a dataset, by the stem of their images' names."""
    return {
        Path(record.extra["path"]).name.partition(".")[0]: decode_map(record.attachments[name])[:, :, 0]
        for record in picstore.Dataset(dataset)
        if name in record.attachments
    }


def failures(dataset: Path) -> list[str]:
    lines = [json.loads(line) for line in (dataset / "ledger.jsonl").read_text().splitlines()]
    return [line["reason"] for line in lines if line["status"] == "failed"]


@pytest.mark.parametrize(("format", "dtype"), [("PNG", "uint16"), ("TIFF", "float32"), ("npy", "float16")])
@pytest.mark.parametrize(("pattern", "place"), [("*_depth.x", "rgb/{}_depth.x"), ("../depth/*.x", "depth/{}.x")])
def test_files_beside_images_become_their_maps(
    tmp_path: Path, format: str, dtype: str, pattern: str, place: str
) -> None:
    suffix = {"PNG": "png", "TIFF": "tif", "npy": "npy"}[format]
    for number in range(4):
        for path, data in (
            ("rgb/{}.jpg", jpeg(number)),
            (place.replace(".x", "." + suffix), encoded(depth_of(number, dtype), format)),
        ):
            file = tmp_path / "source" / path.format(number)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
    rule = f"depth={pattern.replace('.x', '.' + suffix)},scale=0.001,unit=m"
    result = picstore.convert(tmp_path / "source", tmp_path / "out", maps=[rule], workers=1)
    assert (result.inputs, result.images, result.classes) == (4, 4, 1)
    dataset = picstore.Dataset(tmp_path / "out")
    assert list(dataset.classes) == ["rgb"]
    assert dataset.manifest.attachments == ("map:depth",)
    assert dataset.manifest.provenance["maps"]["depth"] == {
        "kind": "map",
        "dtype": dtype,
        "channels": 1,
        "scale": 0.001,
        "unit": "m",
        "interpolation": "nearest",
        "fill": 0.0,
        "invalid": None,
    }
    found = stored(tmp_path / "out")
    assert sorted(found) == ["0", "1", "2", "3"]
    for name, values in found.items():
        assert values.dtype == dtype
        assert values.tobytes() == depth_of(int(name), dtype).tobytes()


def test_webdataset_fields_become_maps(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for number in range(3):
            for field, data in (
                ("jpg", jpeg(number)),
                ("depth.npy", encoded(depth_of(number, "float32"), "npy")),
                ("heat.png", encoded(depth_of(number), "PNG")),
            ):
                member = tarfile.TarInfo(f"{number}.{field}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    picstore.convert(tmp_path / "a.tar", tmp_path / "out", maps=["depth", "heat,interpolation=linear"], workers=1)
    assert picstore.Dataset(tmp_path / "out").manifest.attachments == ("map:heat", "map:depth")
    for name, values in stored(tmp_path / "out").items():
        assert (values == depth_of(int(name), "float32")).all()
    for name, values in stored(tmp_path / "out", "map:heat").items():
        assert (values == depth_of(int(name))).all()


def test_parquet_columns_become_maps(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    table = {
        "image": [jpeg(k) for k in range(3)],
        "depth": [encoded(depth_of(k, "float32"), "npy") for k in range(3)],
        "number": [0, 1, 2],
    }
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    picstore.convert(tmp_path / "a.parquet", tmp_path / "out", maps=["depth"], workers=1)
    for record in picstore.Dataset(tmp_path / "out"):
        values = decode_map(record.attachments["map:depth"])[:, :, 0]
        assert (values == depth_of(record.extra["number"], "float32")).all()


@pytest.mark.parametrize(
    ("dtype", "channels"),
    [("uint16", 0), ("int64", 3), ("float16", 3), ("float32", 0), ("float64", 0), ("bool", 0)],
)
def test_parquet_lists_and_tensors_of_numbers_become_maps(tmp_path: Path, dtype: str, channels: int) -> None:
    """Row 1 has no map. Lists are as Hugging Face stores Array2D and Array3D, tensors as Arrow does."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    shape = (HEIGHT, WIDTH, channels) if channels else (HEIGHT, WIDTH)
    values = (np.random.default_rng(0).random((2, *shape)) * 255).astype(dtype)
    inner = pa.from_numpy_dtype(values.dtype)
    lists = inner
    for _ in shape:
        lists = pa.list_(lists)
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(values.view(np.uint8) if dtype == "bool" else values)
    columns = {
        "image": [jpeg(k) for k in range(3)],
        "lists": pa.array([values[0].tolist(), None, values[1].tolist()], lists),
        "tensor": pa.concat_arrays([tensors[:1], pa.nulls(1, tensors.type), tensors[1:]]),
        "row": [0, 1, 2],
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    stored_as = {"int64": "uint8", "float64": "float32", "bool": "uint8"}.get(dtype, dtype)
    requests = [f"{name},dtype={stored_as}" for name in ("lists", "tensor")]
    picstore.convert(tmp_path / "a.parquet", tmp_path / "out", maps=requests, workers=1)
    for record in picstore.Dataset(tmp_path / "out"):
        assert record.extra.keys() == {"path", "row"}
        for name in ("lists", "tensor"):
            assert (f"map:{name}" in record.attachments) == (record.extra["row"] != 1)
            for blob in (each for key, each in record.attachments.items() if key == f"map:{name}"):
                found = decode_map(blob)
                assert found.dtype == stored_as
                assert (found.reshape(shape) == values[record.extra["row"] // 2].astype(stored_as)).all()


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda rows: rows[3].pop(), "its lists have different lengths"),
        (lambda rows: rows.__setitem__(3, None), "its lists have different lengths"),
        (lambda rows: rows[3].__setitem__(2, None), "a value is null"),
        (lambda rows: rows.pop(), "has 24 × 17 pixels, its image 24 × 18"),
        (lambda rows: rows.clear(), "its lists have different lengths"),
    ],
)
def test_parquet_lists_that_are_no_rectangle_are_a_failed_input(tmp_path: Path, damage: Any, problem: str) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [depth_of(k).tolist() for k in range(3)]
    damage(rows[1])
    table = {"image": [jpeg(k) for k in range(3)], "depth": pa.array(rows, pa.list_(pa.list_(pa.uint16())))}
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    with pytest.raises(picstore.errors.TooManyFailures):
        picstore.convert(tmp_path / "a.parquet", tmp_path / "out", maps=["depth"], workers=1)
    (reason,) = failures(tmp_path / "out")
    assert problem in reason
    assert len(picstore.Dataset(tmp_path / "out")) == 2


@pytest.mark.parametrize("source", ["files", "a.tar", "a.parquet"])
def test_exr_files_become_maps(tmp_path: Path, source: str) -> None:
    values = np.random.default_rng(0).random((4, HEIGHT, WIDTH, 3)).astype(np.float16)
    fields = {
        f"{k}.{kind}": data
        for k in range(4)
        for kind, data in (("jpg", jpeg(k)), ("normal.exr", exr(values[k], "XYZ")))
    }
    if source == "files":
        (tmp_path / source).mkdir()
        for name, data in fields.items():
            (tmp_path / source / name).write_bytes(data)
    elif source == "a.tar":
        with tarfile.open(tmp_path / source, "w") as tar:
            for name, data in fields.items():
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    else:
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        pq.write_table(
            pa.table({"image": [*fields.values()][::2], "normal": [*fields.values()][1::2]}), tmp_path / source
        )
    request = "normal=*.normal.exr" if source == "files" else "normal"
    picstore.convert(tmp_path / source, tmp_path / "out", maps=[request], workers=2)
    found = {decode_map(record.attachments["map:normal"]).tobytes() for record in picstore.Dataset(tmp_path / "out")}
    assert found == {each.tobytes() for each in values}


def test_attachments_of_a_table_become_maps(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(jpeg(0))
    (tmp_path / "d.png").write_bytes(encoded(depth_of(0), "PNG"))
    (tmp_path / "t.jsonl").write_text(json.dumps({"path": "a.jpg", "attachments": {"depth": "d.png"}}) + "\n")
    picstore.convert(tmp_path / "t.jsonl", tmp_path / "out", maps=["depth"], workers=1)
    assert (stored(tmp_path / "out")["a"] == depth_of(0)).all()


def test_16_bits_of_three_channels_keep_every_bit(tmp_path: Path) -> None:
    """Pillow reads such a PNG with 8 bits."""
    values = np.random.default_rng(0).integers(0, 65536, (HEIGHT, WIDTH, 3), np.uint16)
    with picstore.Writer(tmp_path / "out", maps=["normal"]) as writer:
        writer.add(jpeg(0), attachments={"map:normal": png_16(values)})
    record = picstore.Dataset(tmp_path / "out")[0]
    assert (decode_map(record.attachments["map:normal"]) == values).all()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_map_turns_with_its_image(tmp_path: Path, orientation: int) -> None:
    """A map of the raw image's size lies where Pillow puts the pixels; one of the upright size is upright already."""
    from PIL import ImageOps

    values = depth_of(0)
    with picstore.Writer(tmp_path / "out", maps=["depth"]) as writer:
        writer.add(jpeg(0, orientation), attachments={"map:depth": values})
    grey = Image.fromarray((values >> 8).astype(np.uint8))
    grey.getexif()[0x0112] = orientation
    upright = np.asarray(ImageOps.exif_transpose(grey))
    found = decode_map(picstore.Dataset(tmp_path / "out")[0].attachments["map:depth"])[:, :, 0]
    assert (found >> 8 == (upright if orientation > 4 else values >> 8)).all()


def test_a_resized_image_takes_the_nearest_values_of_its_map(tmp_path: Path) -> None:
    with picstore.Writer(tmp_path / "out", maps=["depth"], resize="12x9") as writer:
        writer.add(jpeg(0), attachments={"map:depth": depth_of(0)})
    found = decode_map(picstore.Dataset(tmp_path / "out")[0].attachments["map:depth"])[:, :, 0]
    assert (found == depth_of(0)[1::2, 1::2]).all()


@pytest.mark.parametrize(
    ("data", "spec", "problem"),
    [
        (encoded(depth_of(0)[:-1], "PNG"), "", "map:depth: has 24 × 17 pixels, its image 24 × 18"),
        (encoded(depth_of(0)[:, :, None].repeat(2, 2), "npy"), "", "has 2 channels, the first map had 1"),
        (encoded(np.full((HEIGHT, WIDTH), np.nan), "npy"), "", "NaN, which uint16"),
        (encoded(depth_of(0), "PNG")[:200], "", "map:depth: cannot be read as a map"),
        (encoded(depth_of(0, "float32"), "npy")[:-1], "", "in 1,855 bytes"),
        (b"not a map", "", "is not a PNG, TIFF, OpenEXR or .npy file"),
        (encoded(np.array([["x"] * WIDTH] * HEIGHT), "npy"), "", "not of numbers"),
        (encoded(np.full((HEIGHT, WIDTH), 1e39), "npy"), ",dtype=float32", "holds 1e\\+39"),
    ],
)
def test_a_map_that_does_not_fit_is_a_failed_input(tmp_path: Path, data: bytes, spec: str, problem: str) -> None:
    import re

    (tmp_path / "source").mkdir()
    for number in range(3):
        (tmp_path / "source" / f"{number}.jpg").write_bytes(jpeg(number))
        (tmp_path / "source" / f"{number}.d").write_bytes(encoded(depth_of(number), "PNG"))
    (tmp_path / "source" / "1.d").write_bytes(data)
    with pytest.raises(picstore.errors.TooManyFailures) as raised:
        picstore.convert(tmp_path / "source", tmp_path / "out", maps=[f"depth=*.d{spec}"], workers=1)
    result: Any = raised.value.result
    assert (result.inputs, result.images, result.status["failed"]) == (3, 2, 1)
    (reason,) = failures(tmp_path / "out")
    assert re.search(problem, reason)
    assert sorted(stored(tmp_path / "out")) == ["0", "2"]
    assert picstore.verify(tmp_path / "out").ok


def test_an_image_without_its_map_is_kept_without(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    for number in range(2):
        (tmp_path / "source" / f"{number}.jpg").write_bytes(jpeg(number))
    (tmp_path / "source" / "1.npy").write_bytes(encoded(depth_of(1), "npy"))
    result = picstore.convert(tmp_path / "source", tmp_path / "out", maps=["depth=*.npy"], workers=1)
    assert result.images == 2
    assert list(stored(tmp_path / "out")) == ["1"]


@pytest.mark.parametrize(
    ("maps", "problem"),
    [
        (["depth"], "no image has such a field"),
        (["depth=*.exr"], "no file \\*.exr lies beside an image"),
        (["depth=*.npy"], "dtype 'int32'"),
        ("depth=*.npy", "a list"),
    ],
)
def test_maps_that_cannot_be_are_refused_before_anything_is_written(tmp_path: Path, maps: Any, problem: str) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "0.jpg").write_bytes(jpeg(0))
    (tmp_path / "source" / "0.npy").write_bytes(encoded(depth_of(0, "int32"), "npy"))
    with pytest.raises((UsageError, picstore.errors.TooManyFailures), match=problem):
        picstore.convert(tmp_path / "source", tmp_path / "out", maps=maps, workers=1)
    assert not (tmp_path / "out").exists()


def test_appended_maps_must_be_as_the_dataset_states_them(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.jpg").write_bytes(jpeg(0))
        (tmp_path / name / f"{name}.npy").write_bytes(encoded(depth_of(0), "npy"))
    picstore.convert(tmp_path / "one", tmp_path / "out", maps=["depth=*.npy,scale=0.5"], workers=1)
    with pytest.raises(UsageError, match="append maps as it has them"):
        picstore.convert(tmp_path / "two", tmp_path / "out", maps=["depth=*.npy,scale=2"], append=True, workers=1)
    with pytest.raises(UsageError, match="no such map"):
        picstore.convert(tmp_path / "two", tmp_path / "out", maps=["heat=*.npy"], append=True, workers=1)
    with pytest.raises(UsageError, match="map:alpha"):
        picstore.convert(tmp_path / "two", tmp_path / "out", keep_alpha="map:alpha", append=True, workers=1)
    picstore.convert(tmp_path / "two", tmp_path / "out", maps=["depth=*.npy"], append=True, workers=1)
    assert sorted(stored(tmp_path / "out")) == ["one", "two"]


def test_an_index_refers_to_maps_that_are_stored_as_png(tmp_path: Path) -> None:
    """A loader reads them, and a conversion of the index has the same; a map of another form is a failed input."""
    (tmp_path / "source").mkdir()
    for number in range(4):
        (tmp_path / "source" / f"{number}.jpg").write_bytes(jpeg(number, 3 if number == 1 else 1))
        (tmp_path / "source" / f"{number}.d").write_bytes(encoded(depth_of(number), "PNG"))
    requests = ["depth=*.d,scale=0.5"]
    picstore.index(tmp_path / "source", tmp_path / "index", maps=requests, workers=1)
    picstore.convert(tmp_path / "index", tmp_path / "copy", workers=1)
    for name in ("index", "copy"):
        assert picstore.Dataset(tmp_path / name).manifest.maps["map:depth"].scale == 0.5
        found = stored(tmp_path / name)
        assert sorted(found) == ["0", "1", "2", "3"]
        assert all((found[key] == depth_of(int(key))).all() for key in found)
        assert picstore.verify(tmp_path / name, decode=True).ok
    for data, problem in (
        (encoded(depth_of(2)[1:], "PNG"), "map:depth has 24 × 17 pixels, its image 24 × 18: `picstore convert`"),
        (encoded(depth_of(2), "npy"), "map:depth is neither a PNG"),
        (encoded(depth_of(2), "PNG")[:300], "map:depth is damaged"),
    ):
        (tmp_path / "source" / "2.d").write_bytes(data)
        with pytest.raises(picstore.errors.TooManyFailures) as raised:
            picstore.index(tmp_path / "source", tmp_path / problem[:20], maps=requests, workers=1)
        assert raised.value.result.images == 3
        assert problem in failures(tmp_path / problem[:20])[0]


def test_shuffled_and_joined_datasets_keep_their_maps(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b", tmp_path / "c"]
    for path, scale in zip(paths, (1, 1, 2), strict=True):
        with picstore.Writer(path, maps=[f"depth,scale={scale}"]) as writer:
            writer.add(jpeg(0), attachments={"map:depth": depth_of(0)})
    picstore.shuffle(paths[:2], tmp_path / "shuffled", workers=1)
    dataset = picstore.Dataset(tmp_path / "shuffled")
    assert dataset.manifest.maps == picstore.Dataset(paths[0]).manifest.maps
    assert all((decode_map(each.attachments["map:depth"])[:, :, 0] == depth_of(0)).all() for each in dataset)
    with pytest.raises(UsageError, match="other maps"):
        picstore.Dataset(paths[0]).concat(picstore.Dataset(paths[2]))


def test_a_map_of_a_writer_that_does_not_fit_adds_nothing(tmp_path: Path) -> None:
    with picstore.Writer(tmp_path / "out", maps=["depth"]) as writer:
        writer.add(jpeg(0), attachments={"map:depth": depth_of(0)})
        with pytest.raises(picstore.errors.ImageError, match="map:depth: has 24 × 17"):
            writer.add(jpeg(1), attachments={"map:depth": depth_of(0)[1:]})
        with pytest.raises(picstore.errors.ImageError, match="map:depth: holds fractions"):
            writer.add(jpeg(1), attachments={"map:depth": np.full((HEIGHT, WIDTH), 0.5)})
        with pytest.raises(UsageError, match="map:other"):
            writer.add(jpeg(1), attachments={"map:other": depth_of(0)})
    assert len(picstore.Dataset(tmp_path / "out")) == 1


def test_an_edited_entry_of_a_map_makes_the_manifest_corrupt(tmp_path: Path) -> None:
    from hostile import rewrite_manifest

    with picstore.Writer(tmp_path / "out", maps=["depth"]) as writer:
        writer.add(jpeg(0), attachments={"map:depth": depth_of(0)})
    provenance = picstore.Dataset(tmp_path / "out").manifest.provenance
    for change in ({"channels": 5}, {"dtype": "int64"}, {"scale": "1"}, {"more": 1}, {"channels": True}, {"fill": -1}):
        maps = {"depth": provenance["maps"]["depth"] | change}
        rewrite_manifest(tmp_path / "out", provenance={**provenance, "maps": maps})
        with pytest.raises(picstore.errors.Corrupt, match="provenance"):
            picstore.Dataset(tmp_path / "out")


def test_verify_finds_maps_that_do_not_fit_and_info_lists_maps(tmp_path: Path) -> None:
    """An older program may have written other bytes under the name of a map."""
    from commands import picstore_command
    from hostile import rewrite_manifest

    with picstore.Writer(tmp_path / "out", maps=["depth,scale=0.001,unit=m"]) as writer:
        writer.add(jpeg(0), attachments={"map:depth": depth_of(0)})
    assert picstore.verify(tmp_path / "out", decode=True).ok
    assert "map:depth    uint16 × 1, nearest, times 0.001 in m" in picstore_command("info", tmp_path / "out").stdout
    provenance = picstore.Dataset(tmp_path / "out").manifest.provenance
    maps = {"depth": provenance["maps"]["depth"] | {"dtype": "uint8"}}
    rewrite_manifest(tmp_path / "out", provenance={**provenance, "maps": maps})
    (damage,) = picstore.verify(tmp_path / "out", decode=True).damage
    assert "map:depth is uint16 of 1 channels; the dataset states uint8" in damage.problem


def alpha_of(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, (HEIGHT, WIDTH), np.uint8)


def transparent(number: int, format: str = "PNG", orientation: int = 1) -> bytes:
    """An image with alpha, whose colors are lost where it is transparent."""
    levels = np.random.default_rng(9).integers(0, 255, (HEIGHT, WIDTH, 4), np.uint8)
    levels[:, :, 3] = alpha_of(number)
    out, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(levels).save(out, format, **({"lossless": True} if format == "WEBP" else {}), exif=exif)
    return out.getvalue()


def png_16(values: np.ndarray) -> bytes:
    """A PNG of 16 bits in three or four channels, made by hand: Pillow writes none."""
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    header = struct.pack(">IIBBBBB", values.shape[1], values.shape[0], 16, {3: 2, 4: 6}[values.shape[2]], 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    packed = (
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


def test_alpha_is_kept_as_a_map_of_images_that_have_it(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    palette = Image.fromarray(alpha_of(3) % 4).convert("P")
    palette.save(tmp_path / "source" / "3.png", transparency=2)
    for name, data in (
        ("0.png", transparent(0)),
        ("1.webp", transparent(1, "WEBP")),
        ("2.jpg", jpeg(2)),
        ("4.png", transparent(4, orientation=3)),
        ("5.png", transparent(5, orientation=6)),
        ("6.png", encoded(depth_of(6), "PNG")),
    ):
        (tmp_path / "source" / name).write_bytes(data)
    picstore.convert(tmp_path / "source", tmp_path / "out", keep_alpha="map:alpha", workers=1)
    dataset = picstore.Dataset(tmp_path / "out")
    assert len(dataset) == 7
    assert dataset.manifest.maps["map:alpha"].scale == 1 / 255
    found = stored(tmp_path / "out", "map:alpha")
    assert sorted(found) == ["0", "1", "3", "4", "5"]
    assert (found["0"] == alpha_of(0)).all()
    assert (found["1"] == alpha_of(1)).all()
    assert (found["3"] == np.where(alpha_of(3) % 4 == 2, 0, 255)).all()
    assert (found["4"] == alpha_of(4)[::-1, ::-1]).all()
    assert (found["5"] == np.rot90(alpha_of(5), -1)).all()


def test_appended_alpha_must_have_the_bits_of_the_dataset(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a.png").write_bytes(transparent(0))
    convert = functools.partial(picstore.convert, tmp_path / "source", tmp_path / "out", workers=1)
    convert(keep_alpha="map:alpha")
    with pytest.raises(UsageError, match="map alpha is not as the dataset states it"):
        convert(keep_alpha="map:alpha,dtype=uint16", append=True)
    assert convert(keep_alpha="map:alpha", append=True).images == 2


def test_alpha_of_16_bits_is_kept_whole_or_refused(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 65536, (HEIGHT, WIDTH, 4), np.uint16)
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "wide.png").write_bytes(png_16(values))
    (tmp_path / "source" / "plain.png").write_bytes(transparent(0))
    keep = "map:alpha,dtype=uint16"
    picstore.convert(tmp_path / "source", tmp_path / "out", keep_alpha=keep, workers=1)
    found = stored(tmp_path / "out", "map:alpha")
    assert (found["wide"] == values[:, :, 3]).all()
    assert (found["plain"] == alpha_of(0).astype(np.uint16) * 257).all()
    with pytest.raises(picstore.errors.TooManyFailures):
        picstore.convert(tmp_path / "source", tmp_path / "out8", keep_alpha="map:alpha", workers=1)
    (reason,) = failures(tmp_path / "out8")
    assert "its alpha of 16 bits is not kept as uint8" in reason
    for wrong in ("alpha", "map:alpha,dtype=float32", "map:alpha=*.png", "map:"):
        with pytest.raises(UsageError):
            picstore.convert(tmp_path / "source", tmp_path / "wrong", keep_alpha=wrong, workers=1)


def test_alpha_of_parquet_columns_is_kept(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    table = {"image": [transparent(0), jpeg(1)], "depth": [encoded(depth_of(k), "PNG") for k in range(2)]}
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    picstore.convert(tmp_path / "a.parquet", tmp_path / "out", maps=["depth"], keep_alpha="map:alpha", workers=2)
    first, second = picstore.Dataset(tmp_path / "out")
    if "map:alpha" not in first.attachments:
        first, second = second, first
    assert (decode_map(first.attachments["map:alpha"])[:, :, 0] == alpha_of(0)).all()
    assert "map:alpha" not in second.attachments
    assert (decode_map(second.attachments["map:depth"])[:, :, 0] == depth_of(1)).all()


def test_the_ledger_says_where_bits_were_reduced_to_8(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    files = {
        "a.png": png_16(np.zeros((HEIGHT, WIDTH, 3), np.uint16)),
        "b.png": encoded(depth_of(0), "PNG"),
        "c.png": encoded(depth_of(0).astype(np.uint8), "PNG"),
        "d.tif": encoded(depth_of(0, "float32"), "TIFF"),
        "e.tif": encoded(depth_of(0).astype(np.uint8), "TIFF"),
    }
    for name, data in files.items():
        (tmp_path / "source" / name).write_bytes(data)
    picstore.convert(tmp_path / "source", tmp_path / "out", workers=1)
    lines = [json.loads(line) for line in (tmp_path / "out" / "ledger.jsonl").read_text().splitlines()]
    assert [line["reason"] for line in lines] == [
        "PNG; 16 bits reduced to 8",
        "PNG; 16 bits reduced to 8",
        "PNG",
        "TIFF; 32 bits reduced to 8",
        "TIFF",
    ]


@pytest.mark.parametrize(
    ("format", "names"), [("mds", ["depth", "normal"]), ("webdataset", ["map_depth", "map_normal"])]
)
def test_exported_maps_read_back(tmp_path: Path, format: str, names: list[str]) -> None:
    """Under the names that the format gives them; depth in blocks of rows is exported as PNG."""
    values = {
        "map:depth": np.arange(HEIGHT * WIDTH, dtype=np.uint16).reshape(HEIGHT, WIDTH, 1),
        "map:normal": np.random.default_rng(1).random((HEIGHT, WIDTH, 3)).astype(np.float32),
    }
    with picstore.Writer(tmp_path / "first", maps=["depth", "normal"]) as writer:
        writer.add(jpeg(0), attachments=values)
    assert picstore.Dataset(tmp_path / "first")[0].attachments["map:depth"][:4] == b"PICM"
    picstore.export(tmp_path / "first", tmp_path / "exported", format=format)
    assert any(b"\x89PNG" in path.read_bytes() for path in (tmp_path / "exported").iterdir())
    picstore.convert(tmp_path / "exported", tmp_path / "second", maps=names, workers=1)
    record = picstore.Dataset(tmp_path / "second")[0]
    for expected, name in zip(values.values(), names, strict=True):
        assert decode_map(record.attachments[f"map:{name}"]).tobytes() == expected.tobytes()
