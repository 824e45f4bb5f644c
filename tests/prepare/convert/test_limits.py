"""No image may hang a conversion, take all memory, or end more than its own worker."""

from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
import zlib
from collections import deque
from pathlib import Path

import engine_tasks
import pytest
from commands import ledger, picstore_command
from pictures import by_imagemagick, missing_packages, open_image, quadrants, require, saved
from PIL import Image
from samples import jpeg

from picstore.errors import ImageError
from picstore.prepare.engine import worker_processes
from picstore.prepare.image import imagemagick, size_limits
from picstore.prepare.image.encode_settings import EncodeSettings

SMALL = EncodeSettings(max_pixels=1 << 20)

# --- time ---------------------------------------------------------------------------------------------------------


def test_a_task_that_hangs_in_c_is_ended_and_the_others_go_on() -> None:
    results = dict(worker_processes.LocalEngine(2).run(engine_tasks.hang_on_three, deque(range(6))))
    died = results.pop(3)
    assert isinstance(died, worker_processes.Died)
    assert died.timed_out
    assert results == {k: 2 * k for k in (0, 1, 2, 4, 5)}


def test_a_time_limit_ends_with_its_block() -> None:
    results = dict(worker_processes.LocalEngine(1).run(engine_tasks.outlive_the_limit, deque([1, 2])))
    assert results == {1: 2, 2: 4}


# Python runs this at its start: a decoder that keeps the GIL and never comes back, for files that begin with HANG.
PLUGIN = """
import ctypes
from PIL import Image

def decode(file, name=None):
    ctypes.PyDLL(None).sleep(600)

Image.register_open("HANG", decode, lambda prefix: prefix[:4] == b"HANG")
"""


@pytest.mark.slow
def test_an_image_whose_decoder_hangs_fails_alone_and_with_that_reason(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(PLUGIN)
    (tmp_path / "images").mkdir()
    for number in range(40):
        data = b"HANG" if number in (34, 36) else jpeg(number)
        (tmp_path / "images" / f"{number:02}.jpg").write_bytes(data)
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    arguments = ["--image-timeout", "1.5", "--max-errors", "2", "--workers", "2", "--streams", "2"]
    picstore_command(
        "convert", tmp_path / "images", tmp_path / "out", *arguments, env={**os.environ, "PYTHONPATH": path}
    )
    lines = ledger(tmp_path / "out")
    failed = {line["input"]: line["reason"] for line in lines if line["status"] == "failed"}
    assert failed == dict.fromkeys(("34.jpg", "36.jpg"), "took longer than --image-timeout allows (1.5 s)")
    assert sum(line["status"] == "lossless" for line in lines) == 38


# --- pixels -------------------------------------------------------------------------------------------------------


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(side: int) -> bytes:
    header = struct.pack(">IIBBBBB", side, side, 8, 6, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1 << 20))) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def gif(screen: int, frame: int) -> bytes:
    header = b"GIF89a" + struct.pack("<HHBBB", screen, screen, 0x80, 0, 0) + bytes(6)
    return header + b"," + struct.pack("<HHHHB", 0, 0, frame, frame, 0) + b"\x02\x02\x4c\x01\x00;"


def tiff(width: int, height: int, **tags: int) -> bytes:
    entries = {256: width, 257: height, 258: 8, 259: 1, 262: 1, 277: 1, **{int(key[1:]): tags[key] for key in tags}}
    body = b"".join(struct.pack("<HHII", key, 4, 1, value) for key, value in sorted(entries.items()))
    return (b"II*\0\x08\0\0\0" + struct.pack("<H", len(entries)) + body + bytes(4)).ljust(200, b"\0") + bytes(64)


def webp(side: int) -> bytes:
    chunk = b"VP8L" + struct.pack("<IBI", 10, 0x2F, (side - 1) | (side - 1) << 14) + bytes(5)
    return b"RIFF" + struct.pack("<I", 4 + len(chunk)) + b"WEBP" + chunk


def jpeg2000(side: int) -> bytes:
    data = bytearray(saved(Image.new("L", (64, 64)), "JPEG2000"))
    struct.pack_into(">II", data, data.index(b"\xff\x51") + 6, side, side)
    struct.pack_into(">II", data, data.index(b"ihdr") + 4, side, side)
    return bytes(data)


def drawing(body: str, side: int = 100) -> bytes:
    return f'<svg xmlns="http://www.w3.org/2000/svg" width="{side}" height="{side}">{body}</svg>'.encode()


MIFF = b"id=ImageMagick  version=1.0\ncolumns=60000  rows=60000  depth=8\ncolorspace=sRGB\n\x0c\n:\x1a" + bytes(64)
PSB = b"8BPS" + struct.pack(">H6xHIIHH", 2, 3, 60_000, 60_000, 8, 3) + bytes(80)
BOMBS = {
    "PNG": png(60_000),
    "GIF": gif(65_535, 65_535),
    "GIF of which the frame is larger": gif(8, 65_535),
    "TIFF": tiff(60_000, 60_000, t273=200, t278=60_000, t279=64),
    "TIFF of tiles that are larger": tiff(8, 8, t322=60_000, t323=60_000, t324=200, t325=64),
    "TIFF of packed tiles that are larger": tiff(8, 8, t259=5, t322=60_000, t323=60_000, t324=200, t325=64),
    "WebP": webp(16_383),
    "JPEG 2000": jpeg2000(60_000),
    "SVG": drawing("<rect width='9' height='9'/>", 60_000),
    "MIFF": MIFF,
    "PSB": PSB,
}

CHECK = """
import resource, sys
from pathlib import Path
from picstore.errors import ImageError
from picstore.prepare.image.decoder_process import decode_file
from picstore.prepare.image.encode_settings import EncodeSettings

def memory():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10

for first, path in enumerate(sys.argv[1:]):
    if first == 1:
        before = memory()
    try:
        decode_file(Path(path).read_bytes(), settings=EncodeSettings(max_pixels=1 << 20), name=path)
        print("opened")
    except ImageError as error:
        print(error)
print(memory() - before)
"""


def test_pixel_bombs_of_every_kind_are_refused_without_taking_memory(tmp_path: Path) -> None:
    """In a process of its own: the largest memory a process ever had does not fall."""
    warm = tmp_path / "warm.svg"
    warm.write_bytes(drawing("<rect width='9' height='9'/>"))
    paths = [warm]
    for name, data in BOMBS.items():
        paths.append(tmp_path / name)
        paths[-1].write_bytes(data)
    command = [sys.executable, "-c", CHECK, *map(str, paths)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": ":".join(sys.path)}
    )
    reasons, megabytes = done.stdout.splitlines()[1:-1], int(done.stdout.splitlines()[-1])
    assert "opened" not in reasons
    assert len(reasons) == len(BOMBS)
    assert megabytes < 100, reasons  # each has gigapixels


@pytest.mark.parametrize("name", ["PNG", "GIF", "GIF of which the frame is larger", "TIFF", "WebP", "SVG"])
def test_the_reason_of_a_pixel_bomb_names_the_option(name: str) -> None:
    if name == "SVG":
        require(not missing_packages("formats"), "the extra formats")
    with pytest.raises(ImageError, match=r"more pixels than|more than --max-pixels allows"):
        open_image(BOMBS[name], settings=SMALL)


def test_imagemagick_gets_limits_of_ours_whatever_its_policy_says() -> None:
    require(by_imagemagick(quadrants(), "miff"), "ImageMagick")
    from wand.resource import limits as resources

    imagemagick.read_image(by_imagemagick(quadrants(), "miff"), name="", max_pixels=1 << 16)
    assert max(resources[each] for each in ("memory", "map", "disk")) == 64 << 16
    assert max(resources[each] for each in ("area", "width", "height")) <= 1 << 16
    imagemagick.read_image(by_imagemagick(quadrants(), "miff"), name="", max_pixels=1 << 20)
    assert resources["memory"] == 64 << 20  # it may grow again


# --- JBIG ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("offset", "value"), [(4, 0x10000040), (8, 0x10000030), (12, 0), (4, 0)])
def test_a_jbig_header_is_checked_before_imagemagick_sees_it(offset: int, value: int) -> None:
    data = bytearray(by_imagemagick(quadrants(), "jbig"))
    size_limits.check_jbig(bytes(data), max_pixels=64 * 48)
    struct.pack_into(">I", data, offset, value)
    with pytest.raises(ImageError, match=r"max-pixels|makes no sense|an image of 0"):
        open_image(bytes(data), settings=SMALL, name="x.jbg")


def test_a_jbig_file_that_is_cut_off_is_an_image_error() -> None:
    data = by_imagemagick(quadrants(), "jbig")
    for length in (1, 19, 20, len(data) // 2):
        with pytest.raises(ImageError):
            open_image(data[:length], settings=SMALL, name="x.jbg")


def test_an_image_of_as_many_pixels_as_allowed_is_read() -> None:
    out = io.BytesIO()
    Image.new("1", (1024, 1024)).save(out, "PNG")
    assert open_image(out.getvalue(), settings=SMALL).size == (1024, 1024)
    with pytest.raises(ImageError, match="max-pixels"):
        open_image(out.getvalue(), settings=EncodeSettings(max_pixels=(1 << 20) - 1))
