"""Pictures of the page: files that only their name tells, and limits of pixels."""

from __future__ import annotations

import io
import struct
import threading
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from commands import picstore_command
from pictures import dng, smooth
from PIL import Image
from samples import jpeg
from starlette.testclient import TestClient

import picstore
from picstore.errors import ImageError
from picstore.storage.format.record import ImageInfo, Record
from picstore.viewer import images
from picstore.viewer.images import _Budget, attachment, crop, mask_colors, measure_cut, thumbnail, whole


def png_of_zeros(width: int, height: int) -> bytes:
    """A grey PNG that is a thousandth of its pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    compressor = zlib.compressobj(1)
    rows = [compressor.compress(bytes(width + 1)) for _ in range(height)]
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    pixels = chunk(b"IDAT", b"".join([*rows, compressor.flush()]))
    return b"\x89PNG\r\n\x1a\n" + header + pixels + chunk(b"IEND", b"")


def test_a_raw_file_of_a_camera_in_an_index_is_shown(
    tmp_path: Path, make_client: Callable[[picstore.Dataset], TestClient]
) -> None:
    (tmp_path / "in" / "a").mkdir(parents=True)
    (tmp_path / "in" / "a" / "x.nef").write_bytes(dng(smooth(64, 48)))
    picstore_command("index", tmp_path / "in", tmp_path / "index")
    dataset = picstore.Dataset(tmp_path / "index")
    (record,) = dataset
    client = make_client(dataset)
    for path in ("/thumbnail?position=0", "/picture?position=0", "/crop?position=0&left=0&top=0&width=9&height=8"):
        assert client.get(path).status_code == 200
    shown = Image.open(io.BytesIO(client.get("/picture?position=0").content))
    assert shown.size == (record.width, record.height)


@pytest.mark.parametrize("size", [(8193, 8192), (20_000, 20_000)])
def test_an_image_of_more_pixels_than_are_decoded_is_refused_before(size: tuple[int, int]) -> None:
    record = Record(1, 0, b"not looked at", ImageInfo(*size, foreign=True))
    for make in (partial(thumbnail, record, "x.png", 256), partial(whole, record, "x.png")):
        with pytest.raises(ImageError, match="67,108,864"):
            make()
    masked = Record(1, 0, jpeg(1), ImageInfo(80, 60), attachments={"mask": png_of_zeros(9000, 9000)})
    with pytest.raises(ImageError, match="pixels"):
        attachment(masked, "mask")


def test_a_large_jpeg_is_shown_small_but_not_cropped_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = jpeg(1, width=640, height=480)
    record = Record(1, 0, stored, ImageInfo(640, 480))
    monkeypatch.setattr(images, "_MAX_PIXELS", 640 * 480 // 4)
    monkeypatch.setattr(images, "_decoding", _Budget(640 * 480 // 4))
    assert max(Image.open(io.BytesIO(thumbnail(record, "", 100).data)).size) < 200
    with pytest.raises(ImageError, match="pixels"):
        crop(record, "", (0, 0, 640, 480))
    assert crop(record, "", (0, 0, 64, 48)).media_type == "image/png"


@pytest.mark.parametrize("box", [(1 << 62, 0, 1, 1), (0, 0, 1 << 62, 1), ((1 << 63) - 1, 0, (1 << 63) - 1, 1)])
def test_a_box_beyond_the_image_is_refused_whatever_its_numbers(box: tuple[int, int, int, int]) -> None:
    record = Record(1, 0, jpeg(1), ImageInfo(80, 60))
    for make in (lambda: crop(record, "", box), lambda: measure_cut(record, box)):
        with pytest.raises(picstore.UsageError, match="not within the image of 80 × 60 pixels"):
            make()


def test_no_more_pixels_are_decoded_at_a_time_than_the_budget_has() -> None:
    budget, running, most = _Budget(100), 0, 0
    lock = threading.Lock()

    def decode() -> None:
        nonlocal running, most
        for _ in range(50):
            with budget.take(40):
                with lock:
                    running += 1
                    most = max(most, running)
                with lock:
                    running -= 1

    threads = [threading.Thread(target=decode) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most <= 2
    with budget.take(100):
        pass


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32])
def test_a_value_of_a_mask_has_its_color_in_every_type(dtype: type) -> None:
    values: np.ndarray = np.array([[0, 1, 2], [7, 255, 0]], dtype=dtype)
    assert (mask_colors(values) == mask_colors(values.astype(np.uint8))).all()
