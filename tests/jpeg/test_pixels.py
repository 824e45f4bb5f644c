"""picstore.decode and Record.image: the pixels of any JPEG, of a box of it, at a size."""

from __future__ import annotations

import io
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
from grids import slow_except
from PIL import Image
from samples import picture

import picstore
from picstore.errors import ImageError, UsageError
from picstore.jpeg import decode_any, pixels
from picstore.kernels.resample import resample

WIDTH, HEIGHT = 333, 211


def encoded(mode: str = "RGB", *, width: int = WIDTH, height: int = HEIGHT, **options: object) -> bytes:
    noise = np.random.default_rng(0).integers(-20, 20, (height, width, 3))
    image = (picture(1, width=width, height=height).astype(int) + noise).clip(0, 255).astype(np.uint8)
    out = io.BytesIO()
    Image.fromarray(image).convert(mode).save(out, "JPEG", quality=90, **options)
    return out.getvalue()


KINDS = {
    "baseline": encoded(),
    "restart markers": picstore.add_restart_markers(encoded()),
    "progressive": encoded(progressive=True),
    "progressive with restart markers": encoded(progressive=True, restart_marker_blocks=4),
    "4:4:4": encoded(subsampling=0),
    "grey": encoded("L"),
    "CMYK": encoded("CMYK"),
}


def by_libjpeg(jpeg: bytes) -> np.ndarray:
    """Pixels of libjpeg-turbo by simplejpeg; of CMYK, which it converts to another level, by Pillow."""
    if jpeg == KINDS["CMYK"]:
        return np.asarray(Image.open(io.BytesIO(jpeg)).convert("RGB"))
    return simplejpeg.decode_jpeg(jpeg, "RGB")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("box", [None, (0, 0, 100, 80), (90, 60, 101, 77), (332, 210, 1, 1)])
def test_a_box_of_any_jpeg_has_the_pixels_of_libjpeg_turbo(kind: str, box: tuple[int, int, int, int] | None) -> None:
    whole = by_libjpeg(KINDS[kind])
    left, top, width, height = box or (0, 0, WIDTH, HEIGHT)
    decoded = picstore.decode(KINDS[kind], box)
    assert decoded.dtype == np.uint8 and decoded.flags.c_contiguous and decoded.flags.owndata
    assert np.array_equal(decoded, whole[top : top + height, left : left + width])


def test_only_the_tiles_of_the_box_are_decoded_of_a_jpeg_with_markers(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = []

    def spy(jpeg: bytes, **options: Any) -> np.ndarray:
        decoded.append(options["width"] * options["height"])
        return decode_any.decode_rgb(jpeg, **options)

    monkeypatch.setattr(pixels, "decode_rgb", spy)
    for kind in ("restart markers", "baseline"):
        picstore.decode(KINDS[kind], (100, 70, 50, 40))
    assert decoded[0] < decoded[1] / 4 and decoded[1] == WIDTH * HEIGHT


@pytest.mark.parametrize("size", [(64, 48), (20, 24), (300, 400), 50, 211, (1, 1)])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "lanczos"])
def test_a_resized_box_is_close_to_that_of_pillow(size: int | tuple[int, int], interpolation: str) -> None:
    box = 90, 60, 201, 147
    decoded = picstore.decode(KINDS["4:4:4"], box, size, interpolation)
    whole = Image.fromarray(picstore.decode(KINDS["4:4:4"], box))
    shape = size if isinstance(size, tuple) else (size, size * 201 // 147)
    expected = np.asarray(whole.resize(shape[::-1], Image.Resampling[interpolation.upper()]))
    assert decoded.shape == expected.shape
    difference = np.abs(decoded.astype(int) - expected)
    # Pillow clips bicubic's and Lanczos' overshoots between the passes.
    assert difference.max() <= (1 if interpolation == "bilinear" else 8) and difference.mean() < 0.3


@pytest.fixture(scope="module")
def three_sizes(tmp_path_factory: pytest.TempPathFactory) -> picstore.Dataset:
    path = tmp_path_factory.mktemp("pixels") / "dataset"
    with picstore.Writer(path) as writer:
        for width, height in ((333, 211), (180, 400), (700, 500)):
            writer.add(encoded(width=width, height=height))
    return picstore.Dataset(path)


RESIZES: list[tuple[Any, ...]] = [
    *product([None, 1.5], ["nearest", "box", "bilinear", "bicubic", "lanczos"], [None, 150], [(40, 56), 37, (500, 400)])
]


@pytest.mark.parametrize(("gap", "interpolation", "crop", "size"), slow_except(RESIZES[::4], RESIZES))
def test_the_pixels_are_those_of_a_loader_that_crops_and_resizes_so(
    three_sizes: picstore.Dataset,
    size: int | tuple[int, int],
    crop: int | None,
    interpolation: str,
    gap: float | None,
) -> None:
    crops = [] if crop is None else [picstore.CenterCrop(crop)]
    steps = [*crops, picstore.Resize(size, interpolation)]
    options: dict[str, Any] = {"batch_size": 1, "shuffle": False, "isolate": False, "reducing_gap": gap}
    loader = picstore.Loader(three_sizes, transform=steps, **options)
    for record, batch in zip(three_sizes, loader, strict=True):
        corner = [round((side - (crop or 0)) / 2) for side in (record.width, record.height)]
        box = None if crop is None else (*corner, crop, crop)
        decoded = picstore.decode(record.jpeg, box, size, interpolation, reducing_gap=gap)
        assert np.array_equal(decoded.transpose(2, 0, 1), batch.images[0].numpy())
    loader.close()


def test_the_image_of_a_record_is_its_decoded_jpeg(tmp_path: Path) -> None:
    with picstore.Writer(tmp_path / "dataset") as writer:
        for kind in KINDS.values():
            writer.add(kind)
    for record in picstore.Dataset(tmp_path / "dataset"):
        assert record.image.shape == (record.height, record.width, 3)
        assert np.array_equal(record.image, simplejpeg.decode_jpeg(record.jpeg, "RGB"))


@pytest.mark.parametrize("damage", ["empty", "no JPEG", "cut off", "headers", "scan", "size"])
@pytest.mark.parametrize("kind", ["restart markers", "progressive"])
def test_damage_is_an_image_error(kind: str, damage: str) -> None:
    jpeg = bytearray(KINDS[kind])
    if damage == "size":
        frame = jpeg.index(b"\xff\xc0" if kind == "restart markers" else b"\xff\xc2")
        jpeg[frame + 5 : frame + 9] = b"\xff\xff\xff\xff"
    damaged = {
        "empty": b"",
        "no JPEG": b"\x89PNG\r\n\x1a\n" + bytes(100),
        "cut off": jpeg[: len(jpeg) // 2],
        "headers": jpeg[:2] + jpeg[40:],
        "scan": jpeg[: len(jpeg) // 2] + bytes(200) + jpeg[len(jpeg) // 2 + 200 :],
        "size": jpeg,
    }[damage]
    if (kind, damage) == ("progressive", "scan"):  # libjpeg-turbo warns, and Pillow does not tell
        assert picstore.decode(bytes(damaged)).shape == (HEIGHT, WIDTH, 3)
        return
    for box in (None, (10, 10, 40, 40)) if damage != "scan" else (None,):
        with pytest.raises(ImageError):
            picstore.decode(bytes(damaged), box)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"box": (0, 0, 0, 5)}, "empty or not within"),
        ({"box": (-1, 0, 5, 5)}, "empty or not within"),
        ({"box": (300, 0, 50, 5)}, "333 × 211"),
        ({"box": (0, 0, 5)}, "left, top, width, height"),
        ({"box": (0.5, 0, 5, 5)}, "left, top, width, height"),
        ({"size": 0}, "size is 0"),
        ({"size": (0, 5)}, "size is"),
        ({"size": (5, 0)}, "size is"),
        ({"size": (40, 1 << 16)}, "size is"),
        ({"size": "224"}, "size is '224'"),
        ({"size": (1, 2, 3)}, "size is"),
        ({"box": (0, 0, 333, 1), "size": 32768}, "size is"),
        ({"interpolation": "cubist"}, "bilinear, bicubic, lanczos"),
        ({"reducing_gap": 0.99}, "at least 1.0"),
        ({"reducing_gap": True}, "reducing_gap is True"),
        ({"reducing_gap": "2.0"}, "reducing_gap is '2.0'"),
        ({"reducing_gap": float("nan")}, "reducing_gap is nan"),
        ({"reducing_gap": float("inf")}, "reducing_gap is inf"),
    ],
)
def test_bad_arguments_are_usage_errors(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        picstore.decode(KINDS["restart markers"], **arguments)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [(100, 160), (48, 70), (26, 41)])
def test_with_a_gap_an_image_is_decoded_at_the_scale_of_libjpeg_turbo(kind: str, size: tuple[int, int]) -> None:
    """The halved, quartered and eighth image is resampled."""
    factor = {100: 2, 48: 4, 26: 8}[size[0]]
    small = Image.open(io.BytesIO(KINDS[kind]))
    small.draft(None, (WIDTH // factor, HEIGHT // factor))
    source, out = np.asarray(small.convert("RGB")), np.empty((*size, 3), np.uint8)
    assert source.shape == (-(-HEIGHT // factor), -(-WIDTH // factor), 3)
    box = (0, 0, WIDTH / factor, HEIGHT / factor)
    resample(source, box, (0, 0, *source.shape[1::-1]), out.transpose(2, 0, 1))
    assert np.array_equal(picstore.decode(KINDS[kind], None, size, reducing_gap=1.0), out)
    exact = picstore.decode(KINDS[kind], None, size)
    assert not np.array_equal(exact, out)
    assert np.array_equal(picstore.decode(KINDS[kind], None, size, reducing_gap=9), exact)
    assert np.array_equal(picstore.decode(KINDS[kind], None, size, "nearest", reducing_gap=1.0), nearest(kind, size))


def nearest(kind: str, size: tuple[int, int]) -> np.ndarray:
    whole, (height, width) = picstore.decode(KINDS[kind]), size
    rows, columns = (np.arange(height) + 0.5) * HEIGHT / height, (np.arange(width) + 0.5) * WIDTH / width
    return whole[rows.astype(int)[:, None], columns.astype(int)]


@pytest.mark.parametrize("sampling", ["422", "440", "420"])
def test_a_box_that_is_decoded_smaller_has_the_pixels_of_the_whole_image(sampling: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (200, 240, 3), np.uint8)
    plain = simplejpeg.encode_jpeg(noise, colorsubsampling=sampling)
    marked = picstore.add_restart_markers(plain, 1)
    for left in range(8, 40, 3):
        box = left, left + 5, 97, 83
        for size in (20, 40):
            small, whole = (picstore.decode(jpeg, box, size, reducing_gap=1.0) for jpeg in (marked, plain))
            assert np.array_equal(small, whole)


@pytest.mark.parametrize("wrong", ["a.jpg", Path("a.jpg"), None, 7])
def test_what_is_not_the_bytes_of_a_jpeg_is_refused_by_its_value(wrong: Any) -> None:
    for function in (picstore.decode, picstore.add_restart_markers, lambda given: picstore.cut(given, (0, 0, 1, 1))):
        with pytest.raises(UsageError, match=r"is not the bytes of a JPEG; give a file's as pathlib\.Path"):
            function(wrong)
