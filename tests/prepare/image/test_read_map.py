"""Files as maps: every value exactly, OpenEXR's channels in the order of their names, or an error that says why not."""

from __future__ import annotations

import contextlib
import io
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pictures import depth_and_masks, exr
from PIL import Image

from picstore.errors import ImageError
from picstore.prepare.image.exif_orientation import CoordinateMap
from picstore.prepare.image.read_map import make_map, read_values
from picstore.storage.format.maps import MapSpec, decode_map

LOSSLESS = ("none", "rle", "zips", "zip", "piz")
LOSSY = ("pxr24", "b44", "b44a", "dwaa", "dwab")
ORDERS = ("R", "RG", "RGB", "RGBA", "XY", "XYZ", "XYZW", "Y", ("depth.V",), ("N.x", "N.y", "N.z"))


def test_a_png_is_stored_as_it_is_only_if_masks_are() -> None:
    """One of depth becomes blocks of rows, which a crop decodes three times as fast."""
    for values, is_kept in zip(depth_and_masks(), (False, True), strict=True):
        out, spec = io.BytesIO(), MapSpec(dtype="uint16", channels=1)
        Image.fromarray(values).save(out, "PNG", compress_level=9)
        stored = make_map("map:m", out.getvalue(), spec, CoordinateMap(1, (160, 120), (160, 120)))
        assert (stored == out.getvalue()) == is_kept
        assert (decode_map(stored)[:, :, 0] == values).all()


def smooth(dtype: str = "f4") -> np.ndarray:
    rows, columns = np.mgrid[:40, :50]
    return (1 + np.sin(rows / 9) + columns / 30)[:, :, None].astype(dtype)


def header(width: int, height: int, tiles: bytes = b"") -> bytes:
    """The header of an OpenEXR file of one float channel Z, by OpenEXR's page on the layout of files."""
    box = struct.pack("<4i", 0, 0, width - 1, height - 1)
    attributes = [
        ("channels", "chlist", b"Z\0" + struct.pack("<iIii", 2, 0, 1, 1) + b"\0"),
        ("compression", "compression", b"\0"),
        ("dataWindow", "box2i", box),
        ("displayWindow", "box2i", box),
        ("lineOrder", "lineOrder", b"\0"),
        ("pixelAspectRatio", "float", struct.pack("<f", 1)),
        ("screenWindowCenter", "v2f", bytes(8)),
        ("screenWindowWidth", "float", struct.pack("<f", 1)),
        *([("tiles", "tiledesc", tiles)] if tiles else []),
    ]
    packed = [b"%s\0%s\0%s%s" % (n.encode(), k.encode(), struct.pack("<i", len(v)), v) for n, k, v in attributes]
    return struct.pack("<II", 20000630, 0x202 if tiles else 2) + b"".join(packed) + b"\0"


@given(st.sampled_from(LOSSLESS), st.sampled_from(("f2", "f4", "u4")), st.sampled_from(ORDERS), st.data())
def test_values_of_an_exr_file_come_bit_for_bit(compression: str, dtype: str, names: Any, data: st.DataObject) -> None:
    """Random bits, so that floats have NaN, infinity and negative zero; the file has the channels in any order."""
    height, width, tile = data.draw(st.tuples(st.integers(1, 40), st.integers(1, 40), st.sampled_from((0, 16))))
    bits = np.random.default_rng(height).bytes(height * width * len(names) * int(dtype[1]))
    values = np.frombuffer(bits, dtype).reshape(height, width, len(names))
    order = data.draw(st.permutations(range(len(names))))
    given = {"tile_width": tile, "tile_height": tile} if tile else {}
    file = exr(values[:, :, order], tuple(names[k] for k in order), compression=compression, **given)
    found = read_values(file)
    assert (found.dtype, found.shape) == (values.dtype, values.shape)
    assert found.tobytes() == values.tobytes()


@pytest.mark.parametrize("compression", LOSSY)
def test_values_of_lossy_exr_files_are_near_those_written(compression: str) -> None:
    assert np.allclose(read_values(exr(smooth("f2"), compression=compression)), smooth(), atol=0.05)


def test_damage_to_an_exr_file_gives_no_part_of_it_and_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """A truncated file is an error; a flipped bit too, or it has changed values, as most compressions have no check."""
    file = exr(smooth(), compression="zip")
    for length in range(4, len(file), 64):
        with pytest.raises(ImageError):
            read_values(file[:length])
    random = np.random.default_rng(0)
    for at, bit in zip(random.integers(4, len(file), 600), random.integers(0, 8, 600), strict=True):
        flipped = bytearray(file)
        flipped[at] ^= 1 << bit
        with contextlib.suppress(ImageError):
            assert read_values(bytes(flipped)).shape == (40, 50, 1)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: exr(smooth().repeat(2, 2), "YZ"), "the channels 'Y', 'Z'; write one channel, or the first of R"),
        (lambda: exr(smooth().repeat(5, 2), "RGBAZ"), "the channels 'R', 'G', 'B', 'A', 'Z'; write"),
        (lambda: exr(smooth().repeat(2, 2), ("a.R", "b.G")), "the channels 'a.R', 'b.G'; write"),
        (lambda: exr(smooth().repeat(9, 2), "abcdefghi"), ", …; write one channel"),
        (lambda: exr(smooth(), parts=2), "several parts"),
        (lambda: exr(smooth(), deep=True), "deep"),
        (lambda: exr(smooth(), x=3), "data window is not its display window"),
        (lambda: exr(smooth(), full_width=60), "data window is not its display window"),
        (lambda: exr(smooth().repeat(2, 2), "XY", channelformats=("uint", "float")), "of integers and floats"),
        (lambda: exr(smooth())[:4], "cannot be read as a map: EXR Error: EXR_ERR_READ_IO"),
        (lambda: header(100_000, 100_000), "cannot be read as a map: "),
        (lambda: header(100_000, 100_000, struct.pack("<IIB", 1, 1, 0)), "cannot be read as a map: "),
        (lambda: header(16_400, 16_400), "cannot be read as a map: "),
        (lambda: header(8, 8), "corrupted"),
    ],
)
def test_an_exr_file_that_is_not_one_map_is_refused(make: Any, problem: str) -> None:
    exr(smooth())  # Skips, also for headers that are made by hand.
    with pytest.raises(ImageError) as refused:
        read_values(make())
    assert problem in str(refused.value)


def test_a_refused_size_of_an_exr_file_takes_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of a map is lowered, as OpenImageIO refuses large sizes in small files by itself."""
    monkeypatch.setattr("picstore.prepare.image.read_map._MAX_PIXELS", 1999)
    with pytest.raises(ImageError, match="50 × 40 = 2,000 pixels; more than"):
        read_values(exr(smooth()))
