"""The policy under which ImageMagick reads images: no program, no other file, no script."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from pictures import by_imagemagick, quadrants, require, saved
from PIL import Image

from picstore.errors import ImageError
from picstore.prepare.image import imagemagick

READ = """
import sys
from pathlib import Path
from picstore.errors import ImageError
from picstore.prepare.image.imagemagick import read_image
try:
    read_image(Path(sys.argv[1]).read_bytes(), name=sys.argv[1], max_pixels=1 << 20)
    print("read")
except ImageError as error:
    print(error)
"""


def read_in_a_process(file: Path, **environment: str) -> str:
    command = [sys.executable, "-c", READ, str(file)]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """An image, all red, that nobody may read."""
    require(by_imagemagick(quadrants(), "miff"), "ImageMagick")
    path = tmp_path / "private.png"
    path.write_bytes(saved(Image.new("RGB", (64, 48), (255, 0, 0)), "PNG"))
    return path


def test_a_raw_file_starts_no_converter(tmp_path: Path) -> None:
    require(by_imagemagick(quadrants(), "miff"), "ImageMagick")
    started = tmp_path / "started"
    for name in ("ufraw-batch", "dcraw", "gs", "curl", "darktable-cli", "rsvg-convert", "inkscape"):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\necho {name} >> {started}\n")
        program.chmod(0o755)
    raw = tmp_path / "photo.dng"
    raw.write_bytes(b"II*\0\x10\0\0\0CR\2\0".ljust(4096, b"a"))
    assert "DNG" in read_in_a_process(raw, PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert not started.exists()


@pytest.mark.slow
def test_a_machine_that_allows_programs_is_refused(tmp_path: Path) -> None:
    image = tmp_path / "x.miff"
    image.write_bytes(by_imagemagick(quadrants(), "miff"))
    folder = tmp_path / "config" / "ImageMagick"
    folder.mkdir(parents=True)
    policy = '<policymap><policy domain="delegate" rights="read|execute" pattern="*"/></policymap>'
    (folder / "policy.xml").write_text(policy)
    assert read_in_a_process(image) == "read\n"
    assert "policy.xml" in read_in_a_process(image, XDG_CONFIG_HOME=str(tmp_path / "config"))


def test_the_callers_own_configuration_stays(tmp_path: Path) -> None:
    image = tmp_path / "x.miff"
    image.write_bytes(by_imagemagick(quadrants(), "miff"))
    stricter = '<policymap><policy domain="coder" rights="none" pattern="MIFF"/></policymap>'
    (tmp_path / "policy.xml").write_text(stricter)
    assert "security policy" in read_in_a_process(image, MAGICK_CONFIGURE_PATH=str(tmp_path))


@pytest.mark.parametrize(
    "coder", ["png", "mvg", "msl", "text", "txt", "label", "caption", "ephemeral", "file", "https", "ps", "pdf", "tiff"]
)
def test_no_coder_opens_a_file_by_its_name(private: Path, coder: str) -> None:
    from wand.api import library
    from wand.image import Image as WandImage

    for name in (str(private), f"@{private}"):
        with WandImage() as image:
            assert not library.MagickReadImage(image.wand, f"{coder}:{name}".encode())
    assert private.exists()


def test_a_drawing_script_brings_in_no_other_file(private: Path) -> None:
    from wand.api import library
    from wand.image import Image as WandImage

    for inner in ("{}", "png:{}", "ephemeral:{}", "mvg:{}", "msl:{}"):
        script = f"viewbox 0 0 64 48\nfill white\nrectangle 0,0 64,48\nimage Over 0,0 64,48 '{inner.format(private)}'\n"
        with WandImage() as image:
            library.MagickSetFilename(image.wand, b"mvg:")
            if library.MagickReadImageBlob(image.wand, script.encode(), len(script)):
                assert (image[5, 5].red_int8, image[5, 5].green_int8) != (255, 0)
    assert private.exists()


def test_the_policy_lists_every_coder_that_is_chosen() -> None:
    rules = ElementTree.parse(imagemagick.POLICY / "policy.xml").getroot()  # noqa: S314 - our own file
    patterns = [rule.get("pattern", "").strip("{}") for rule in rules if rule.get("domain") == "coder"]
    listed = {name.lower() for pattern in patterns for name in pattern.split(",")}
    chosen = {coder for coder, _, _ in imagemagick._MAGIC} | set(imagemagick._EXTENSIONS.values())
    assert chosen - {"svg"} <= listed
    assert not listed & {"svg", "rsvg", "msvg", "mvg", "msl", "ephemeral", "url", "http", "https", "ps", "eps", "pdf"}
    assert not listed & {"xps", "text", "label"}


def test_a_library_that_was_started_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    require(by_imagemagick(quadrants(), "miff"), "ImageMagick")
    monkeypatch.setattr(imagemagick, "_FORBIDDEN", ((imagemagick._CODER, imagemagick._READ, "PNG"),))
    imagemagick.start_library.cache_clear()
    with pytest.raises(ImageError, match="another user"):
        imagemagick.start_library()
