"""Memory that converting a large image takes, as docs/archive states it, and images of JPEG's longest side."""

from __future__ import annotations

import importlib.util
import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import ledger, picstore_command
from grids import slow_except
from pictures import require
from PIL import Image

import picstore
from picstore.errors import ImageError
from picstore.jpeg.encoder.encode_baseline import encode
from picstore.prepare.image.encode_settings import EncodeSettings, Size
from picstore.prepare.image.training_jpeg import make_training_jpeg

# Prints the bytes that each conversion takes at its peak, the file included.
PROGRAM = """
import sys
from picstore.prepare.convert.kernel_warmup import load_encoder, load_pixels
from picstore.prepare.image import libvips
from picstore.prepare.image.encode_settings import EncodeSettings, Size
from picstore.prepare.image.training_jpeg import make_training_jpeg

load_encoder()
load_pixels()

def memory(key):
    for line in open("/proc/self/status"):
        if line.startswith(key):
            return int(line.split()[1]) * 1024

if sys.argv[2] == "pillow":
    libvips.find_vips = lambda: None
settings = EncodeSettings(resize=Size.parse(sys.argv[1]) if sys.argv[1] else None, max_pixels=1 << 30)
for path in sys.argv[3:]:
    open("/proc/self/clear_refs", "w").write("5")  # resets VmHWM
    before = memory("VmRSS")
    with open(path, "rb") as file:
        made = make_training_jpeg(file.read(), settings=settings, name=path)
    print(memory("VmHWM") - before)
    del made
"""


def picture(side: int, mode: str) -> Image.Image:
    """Noise on 8 × 8 pixels: after subsampling it takes as many bytes as photographs do."""
    small = np.random.default_rng(0).integers(0, 256, (side // 8, side // 8, 3), np.uint8)
    image = Image.fromarray(small.repeat(8, axis=0).repeat(8, axis=1))
    return Image.fromarray(np.asarray(image.convert("L"), np.float32)) if mode == "F" else image.convert(mode)


# Name, mode, options of Pillow's encoder, and bytes a pixel besides the file, of "Memory" in
# docs/archive/formats-2026-11.md, without and with --resize.
KINDS = [
    ("plain.tif", "RGB", {}, 6, 7),
    ("deflate.tif", "RGB", {"compression": "tiff_adobe_deflate"}, 6, 7),
    ("rgb.png", "RGB", {"compress_level": 1}, 6, 7),
    ("grey.png", "L", {"compress_level": 1}, 3, 3),
    ("alpha.tif", "RGBA", {}, 8, 11),
    ("float.tif", "F", {}, 6, 6),
    ("progressive.jpg", "RGB", {"progressive": True}, 7, 7),
]

EVERY = [kind[0] for kind in KINDS]
SOME = ["plain.tif", "rgb.png", "alpha.tif", "progressive.jpg"]
STRIPS = [("plain.tif", "RGB", {}, 2, 3), ("rgb.png", "RGB", {"compress_level": 1}, 2, 3)]
RESIZES = ["", pytest.param("longer:1000", marks=pytest.mark.nightly)]
STARTING = 128 << 20  # of libvips, and of a strip's arrays


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pictures of a side and kind are written once for all tests."""
    return tmp_path_factory.mktemp("large")


def measure(
    folder: Path, side: int, resize: str, names: list[str], kinds: list[tuple] = KINDS, reader: str = "pillow"
) -> None:
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("the peak of a process's memory is read from Linux's /proc")
    kinds = [kind for kind in kinds if kind[0] in names]
    paths = [folder / f"{side}-{kind[0]}" for kind in kinds]
    for path, (_, mode, options, *_) in zip(paths, kinds, strict=True):
        if not path.exists():
            picture(side, mode).save(path, **options)
    command = [sys.executable, "-c", PROGRAM, resize, reader, *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    for (name, *_, plain, resized), path, line in zip(kinds, paths, done.stdout.split(), strict=True):
        taken = (int(line) - path.stat().st_size) / side**2
        besides = STARTING if reader == "libvips" else 32 << 20  # a strip's arrays
        limit = (resized if resize else plain) * 1.15 + besides / side**2
        assert taken < limit, f"{name}: {taken:.1f} bytes a pixel"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "resize"),
    slow_except([(SOME, "")], [(SOME, ""), (EVERY, ""), (EVERY, "longer:1000")], mark=pytest.mark.nightly),
)
def test_images_of_every_kind_take_no_more_memory_a_pixel_than_stated(
    folder: Path, names: list[str], resize: str
) -> None:
    measure(folder, 4096, resize, names)


@pytest.mark.nightly
def test_a_hundred_megapixels_take_no_more_memory_a_pixel_than_stated(folder: Path) -> None:
    measure(folder, 10_000, "", ["plain.tif", "rgb.png", "progressive.jpg"])


@pytest.mark.slow
@pytest.mark.parametrize("resize", RESIZES, ids=["", "resize"])
def test_images_by_strips_take_no_more_memory_a_pixel_than_stated(folder: Path, resize: str) -> None:
    require(importlib.util.find_spec("pyvips"), "pyvips")
    measure(folder, 8_000, resize, ["plain.tif", "rgb.png"], STRIPS, "libvips")


@pytest.mark.slow
def test_a_jpeg_that_is_kept_takes_four_times_its_size_and_no_pixels(tmp_path: Path) -> None:
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("the peak of a process's memory is read from Linux's /proc")
    path = tmp_path / "a.jpg"
    picture(8192, "RGB").save(path, quality=95)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "", "pillow", path], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 4 * path.stat().st_size + (16 << 20)


@pytest.mark.slow
def test_images_of_jpegs_longest_side_are_converted_verified_and_trained(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    strip = np.random.default_rng(0).integers(0, 256, (32, 6550, 3), np.uint8).repeat(10, axis=0).repeat(10, axis=1)
    Image.fromarray(strip).save(source / "wide.jpg", quality=50)
    Image.fromarray(strip.transpose(1, 0, 2)).save(source / "high.png", compress_level=1)
    picstore_command("convert", source, tmp_path / "set", "--quality", "50", "--workers", "1")
    assert {line["status"] for line in ledger(tmp_path / "set")} == {"lossless", "reencoded"}
    picstore_command("verify", tmp_path / "set", "--decode")
    crop = [picstore.RandomCrop(256)]
    loader = picstore.Loader(tmp_path / "set", batch_size=2, transform=crop, isolate=False)
    for _ in range(3):
        for batch in loader:
            assert batch.images.shape == (2, 3, 256, 256)
            assert batch.images.float().std() > 20
    loader.close()


def test_a_jpeg_of_a_longer_side_is_refused_with_the_limit() -> None:
    jpeg = encode(np.zeros((300, 65_501, 3), np.uint8), quality=90, subsampling="420").jpeg
    with pytest.raises(ImageError, match=r"JPEG of 65501 × 300 pixels; libjpeg decodes up to 65,500 a side"):
        make_training_jpeg(jpeg, settings=EncodeSettings())
    out = io.BytesIO()
    Image.new("RGB", (65_501, 3)).save(out, "PNG")
    with pytest.raises(ImageError, match=r"65501 × 3 pixels; a JPEG has 1 to 65,500 a side: use --resize"):
        make_training_jpeg(out.getvalue(), settings=EncodeSettings())
    assert (
        make_training_jpeg(out.getvalue(), settings=EncodeSettings(resize=Size.parse("longer:100"))).info.width == 100
    )
