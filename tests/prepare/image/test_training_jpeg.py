"""Training JPEGs: without loss where a JPEG qualifies, encoded anew elsewhere; and encoding by mozjpeg."""

from __future__ import annotations

import importlib.util
import io
import random
import warnings
from pathlib import Path

import numpy as np
import pytest
from commands import one_line, picstore_command, tree
from pictures import close, header, quadrants, require, saved, smooth
from PIL import Image
from samples import jpeg, picture

from picstore.errors import ImageError, MissingDependency, UsageError, install_command
from picstore.jpeg.tiles import restart_interval
from picstore.prepare.image import libvips
from picstore.prepare.image.encode_settings import EncodeSettings, Size
from picstore.prepare.image.training_jpeg import make_training_jpeg

PLAIN = EncodeSettings()
MOZJPEG = EncodeSettings(encoder="mozjpeg")


def pixels(stream: bytes) -> np.ndarray:
    """What Pillow decodes; raises what Pillow raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Image.open(io.BytesIO(stream)) as image:
            return np.asarray(image)


def outcome(stream: bytes, settings: EncodeSettings = PLAIN) -> tuple[str, str]:
    made = make_training_jpeg(stream, settings=settings)
    return made.status, made.reason


# --- without loss -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"subsampling": 0}, {"subsampling": 1}, {"restart_marker_blocks": 3},
                                     {"quality": 30, "optimize": True}, {"comment": b"mine"}])  # fmt: skip
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_a_baseline_jpeg_gets_restart_markers_and_keeps_its_pixels(mode: str, options: dict) -> None:
    source = saved(smooth(200, 90, mode), "JPEG", **options)
    made = make_training_jpeg(source, settings=PLAIN)
    assert (made.status, made.reason) == ("lossless", "")
    assert np.array_equal(pixels(made.jpeg), pixels(source))
    head = header(made.jpeg)
    assert head.interval == restart_interval(head.columns, 8 * head.sampling[0][0])
    assert b"mine" not in made.jpeg


def test_of_a_multi_picture_jpeg_the_first_picture_is_kept() -> None:
    first, second = quadrants(), smooth(64, 48)
    source = saved(first, "MPO", save_all=True, append_images=[second])
    with Image.open(io.BytesIO(source)) as image:
        assert image.format == "MPO"
    made = make_training_jpeg(source, settings=PLAIN)
    assert made.status == "lossless"
    assert np.array_equal(pixels(made.jpeg), pixels(source))
    assert len(made.jpeg) < len(source)


def test_a_jpeg_that_cannot_be_kept_is_encoded_anew_with_its_reason() -> None:
    picture, exif = quadrants(), Image.Exif()
    exif[0x0112] = 6
    plain = saved(smooth(100, 80), "JPEG")
    sources = {
        "progressive JPEG": saved(picture, "JPEG", progressive=True),
        "CMYK JPEG": saved(picture.convert("CMYK"), "JPEG"),
        "RGB JPEG": saved(picture, "JPEG", keep_rgb=True),
        "rotated by EXIF": saved(picture, "JPEG", exif=exif),
        "PNG": saved(picture, "PNG"),
    }
    for reason, source in sources.items():
        assert outcome(source) == ("reencoded", reason)
    status, reason = outcome(plain[: len(plain) * 3 // 4] + b"\xff\xd9")  # Pillow opens it, the rest of it grey
    assert status == "reencoded"
    assert reason.startswith("damaged JPEG: ")
    assert make_training_jpeg(picture, settings=PLAIN).reason == "PIL image"


@pytest.mark.parametrize("size", ["shorter:90", "shorter:500", "longer:200", "200x90"])
def test_a_resize_that_leaves_the_size_as_it_is_keeps_the_jpeg(size: str) -> None:
    source = saved(smooth(200, 90), "JPEG")
    assert outcome(source, EncodeSettings(resize=Size.parse(size))) == ("lossless", "")


@pytest.mark.parametrize("size", ["shorter:89", "longer:199", "90x200", "200x91"])
def test_a_resize_that_changes_the_size_encodes_anew(size: str) -> None:
    source = saved(smooth(200, 90), "JPEG")
    assert outcome(source, EncodeSettings(resize=Size.parse(size))) == ("reencoded", "resize")


def test_reencode_switches_the_lossless_way_off() -> None:
    settings = EncodeSettings(reencode=True)
    assert outcome(jpeg(1), settings) == ("reencoded", "--reencode")
    assert outcome(saved(quadrants(), "JPEG", progressive=True), settings) == ("reencoded", "progressive JPEG")
    assert outcome(saved(quadrants(), "PNG"), settings) == ("reencoded", "PNG")


def test_too_many_pixels_are_refused_though_nothing_would_be_decoded() -> None:
    source = saved(quadrants(64, 48), "JPEG")
    assert outcome(source, EncodeSettings(max_pixels=64 * 48)) == ("lossless", "")
    with pytest.raises(ImageError, match=r"more than --max-pixels allows \(3,071\)"):
        make_training_jpeg(source, settings=EncodeSettings(max_pixels=64 * 48 - 1))


def test_a_side_beyond_what_libjpeg_decodes_is_refused() -> None:
    source = saved(Image.new("L", (65_500, 8)), "JPEG")
    assert outcome(source) == ("lossless", "")
    wider = source.replace(bytes.fromhex("0008ffdc"), bytes.fromhex("0008ffe0"), 1)  # 65,504: as many MCUs
    assert wider != source
    with pytest.raises(ImageError):
        make_training_jpeg(wider, settings=PLAIN)


def test_a_jpeg_of_which_bytes_are_missing_is_truncated_however_few() -> None:
    for source in (jpeg(1), jpeg(2, width=33, height=50), saved(smooth(90, 40, "L"), "JPEG")):
        for missing in range(1, len(source) - 4):
            with pytest.raises(ImageError, match=r"truncated|cannot load this image"):
                make_training_jpeg(source[:-missing], settings=PLAIN)


def test_a_thumbnail_s_end_is_not_taken_for_that_of_the_picture() -> None:
    source = saved(quadrants(), "JPEG", exif=b"Exif\0\0" + jpeg(3, width=16, height=16))
    assert outcome(source)[0] == "lossless"
    with pytest.raises(ImageError, match="truncated"):
        make_training_jpeg(source[:-2], settings=PLAIN)


def test_a_damaged_jpeg_that_is_kept_has_the_pixels_that_pillow_decodes() -> None:
    rng = random.Random(0)
    sources = [jpeg(1), saved(smooth(40, 30, "L"), "JPEG"), saved(smooth(90, 30), "JPEG", restart_marker_blocks=2)]
    kept = 0
    for _ in range(1_500):
        damaged = bytearray(rng.choice(sources))
        for _ in range(rng.choice([1, 1, 2, 5])):
            damaged[rng.randrange(20, len(damaged))] ^= 1 << rng.randrange(8)
        try:
            made = make_training_jpeg(bytes(damaged), settings=PLAIN)
        except ImageError:
            continue
        if made.status == "lossless":
            kept += 1
            assert np.array_equal(pixels(made.jpeg), pixels(bytes(damaged)))
    assert kept > 100


# --- mozjpeg ------------------------------------------------------------------------------------------------------


@pytest.fixture
def with_mozjpeg() -> None:
    require(importlib.util.find_spec("pyvips"), "pyvips")
    libvips.require_mozjpeg()


@pytest.mark.usefixtures("with_mozjpeg")
@pytest.mark.parametrize("subsampling", ["420", "444"])
@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize("size", [(1, 1), (17, 33), (300, 90)])
def test_mozjpeg_writes_baseline_jpegs_with_restart_markers(size: tuple[int, int], mode: str, subsampling: str) -> None:
    source = smooth(*size, mode)
    settings = EncodeSettings(encoder="mozjpeg", quality=95, subsampling=subsampling)
    made = make_training_jpeg(source, settings=settings)
    assert (made.status, made.reason) == ("reencoded", "PIL image")
    head = header(made.jpeg)
    assert (head.sof, head.width, head.height) == (0xC0, *size)
    first = (2, 2) if (mode, subsampling) == ("RGB", "420") else (1, 1)
    assert head.sampling == ((first,) if mode == "L" else (first, (1, 1), (1, 1)))
    assert head.interval == restart_interval(head.columns, 8 * head.sampling[0][0])
    assert set(head.markers) == {0xDB, 0xC0, 0xC4, 0xDD, 0xDA}
    assert close(pixels(made.jpeg), np.asarray(source), 16)


@pytest.mark.usefixtures("with_mozjpeg")
def test_mozjpeg_takes_fewer_bytes_of_photographs_at_the_same_quality(photographs: list[Path]) -> None:
    sizes = {"mozjpeg": 0, "turbo": 0}
    for path in photographs[::50]:
        for encoder in sizes:
            settings = EncodeSettings(encoder=encoder, quality=85, resize=Size.parse("shorter:200"))
            sizes[encoder] += len(make_training_jpeg(path.read_bytes(), settings=settings).jpeg)
    assert sizes["mozjpeg"] < sizes["turbo"]


@pytest.mark.usefixtures("with_mozjpeg")
def test_mozjpeg_writes_the_same_bytes_with_any_number_of_workers(tmp_path: Path) -> None:
    folder = tmp_path / "source"
    folder.mkdir()
    for number in range(12):
        Image.fromarray(picture(number, width=150, height=100)).save(folder / f"{number:02d}.png")
    options = ("--encoder", "mozjpeg", "--streams", 2, "--file-size", "4KiB", "--container-size", "4KiB")
    for workers in (1, 3):
        picstore_command("convert", folder, tmp_path / f"out{workers}", *options, "--workers", workers)
    assert len(list(tmp_path.glob("out1/*/*.pic"))) > 4
    assert tree(tmp_path / "out1") == tree(tmp_path / "out3")


@pytest.mark.usefixtures("with_mozjpeg")
def test_a_libvips_that_is_built_with_another_library_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libvips, "_encode", lambda *arguments, **options: b"the same, with trellis or without")
    libvips.require_mozjpeg.cache_clear()
    with pytest.raises(MissingDependency, match=r"built with mozjpeg: pip install .*\[mozjpeg\]'"):
        libvips.require_mozjpeg()


@pytest.mark.slow
def test_without_pyvips_mozjpeg_is_exit_code_4_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "1.jpg").write_bytes(jpeg(1))
    (tmp_path / "pyvips.py").write_text("raise ImportError('no pyvips here')")
    arguments = ("convert", tmp_path / "source", tmp_path / "out", "--encoder", "mozjpeg")
    done = picstore_command(*arguments, code=4, env={"PYTHONPATH": str(tmp_path)})
    assert one_line(done) == f"picstore: --encoder mozjpeg needs libvips: {install_command('mozjpeg')}"
    assert not (tmp_path / "out").exists()


def test_mozjpeg_has_no_subsampling_422() -> None:
    with pytest.raises(UsageError, match="422"):
        EncodeSettings(encoder="mozjpeg", subsampling="422")
