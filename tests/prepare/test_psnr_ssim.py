"""``convert --measure``: what it samples, its figures, and what it prints and draws."""

from __future__ import annotations

import io
import json
import sys
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from commands import picstore_command, picstore_json
from pictures import reencode, require, saved, smooth
from PIL import Image
from samples import jpeg, picture

from picstore.display.figures import require_matplotlib
from picstore.errors import MissingDependency
from picstore.prepare import psnr_ssim
from picstore.prepare.image.encode_settings import EncodeSettings
from picstore.prepare.psnr_ssim import ImageQuality, QualityReport, measure_quality, psnr, sample_numbers, ssim
from picstore.prepare.sources.inputs import Input, Listing


def noisy(plane: np.ndarray, amount: float) -> np.ndarray:
    rng = np.random.default_rng(1)
    return np.clip(plane + rng.normal(0, amount, plane.shape), 0, 255).astype(np.uint8)


@pytest.mark.parametrize("shape", [(11, 11), (12, 200), (75, 64), (74, 31), (300, 400)])
@pytest.mark.parametrize("amount", [1, 20, 120])
def test_ssim_and_psnr_are_those_of_scikit_image(shape: tuple[int, int], amount: float) -> None:
    metrics = pytest.importorskip("skimage.metrics")
    one = np.asarray(Image.fromarray(picture(3, width=shape[1], height=shape[0])).convert("L"))
    other = noisy(one, amount)
    options = {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False, "data_range": 255}
    expected = metrics.structural_similarity(one.astype(np.float64), other.astype(np.float64), **options)
    assert ssim(one.astype(np.float32), other.astype(np.float32)) == pytest.approx(expected, abs=2e-5)
    assert psnr(one, other) == pytest.approx(metrics.peak_signal_noise_ratio(one, other), abs=1e-4)


def test_equal_images_have_an_ssim_of_one_and_the_largest_psnr() -> None:
    for shape in ((1, 1), (5, 40), (40, 40)):
        plane = np.full(shape, 77, np.uint8)
        assert ssim(plane.astype(np.float32), plane.astype(np.float32)) == pytest.approx(1, abs=1e-6)
        assert psnr(plane, plane) == 100


def test_the_sample_takes_an_input_of_each_stretch_and_depends_on_the_seed() -> None:
    chosen = sample_numbers(1000, 100, seed=0)
    assert [number * 100 // 1000 for number in chosen] == sorted({number * 100 // 1000 for number in chosen})
    assert len(chosen) == 100
    assert chosen == sample_numbers(1000, 100, seed=0) != sample_numbers(1000, 100, seed=1)
    assert sample_numbers(7, 100, seed=5) == list(range(7))
    assert sample_numbers(0, 100, seed=0) == []


def listing(folder: Path, files: dict[str, bytes]) -> Listing:
    inputs = []
    for name, data in files.items():
        (folder / name).write_bytes(data)
        inputs.append(Input(name, 0, str(folder / name)))
    return Listing("folder", inputs, [])


FILES = {
    "a.png": saved(smooth(90, 60), "PNG"),
    "b.jpg": jpeg(1),
    "c.png": b"\x89PNG\r\n\x1a\n",
    "d.jpg": saved(smooth(80, 80), "JPEG", progressive=True),
    "e.png": saved(smooth(50, 40, "L"), "PNG"),
}


def test_lossless_and_broken_images_are_counted_and_the_others_measured(tmp_path: Path) -> None:
    source = listing(tmp_path, FILES)
    settings = EncodeSettings(quality=83, subsampling="422")
    measured = measure_quality(source, encode=settings, images=9, seed=0, workers=2)
    assert (measured.lossless, measured.failed, len(measured.images)) == (1, 1, 3)
    assert measured.source_bytes == sum(len(FILES[name]) for name in ("a.png", "d.jpg", "e.png"))
    qualities = sorted({*psnr_ssim.QUALITIES, 83})
    rows = measured.rows()
    assert [(row["subsampling"], row["quality"]) for row in rows] == list(product(["420", "422", "444"], qualities))
    for subsampling in ("420", "422", "444"):
        mine = [row for row in rows if row["subsampling"] == subsampling]
        assert [row["bytes"] for row in mine] == sorted(row["bytes"] for row in mine)
        assert mine[0]["psnr"] < mine[-1]["psnr"] <= 100
        assert mine[0]["ssim"] < mine[-1]["ssim"] <= 1
    again = measure_quality(source, encode=settings, images=9, seed=0, workers=1)
    assert again == measured


def test_subsampling_shows_in_psnr_and_ssim_of_color_and_not_of_grey(tmp_path: Path) -> None:
    stripes = np.tile(np.array([[200, 80, 80], [80, 120, 200]], np.uint8), (60, 40, 1))  # of nearly one luma
    settings = EncodeSettings(reencode=True)
    for image, differs in ((Image.fromarray(stripes), True), (Image.fromarray(stripes).convert("L"), False)):
        source = listing(tmp_path, {"a.png": saved(image, "PNG")})
        rows = measure_quality(source, encode=settings, images=1, seed=0, workers=1).rows()
        coarse, full = (next(r for r in rows if (r["subsampling"], r["quality"]) == (s, 90)) for s in ("420", "444"))
        assert (coarse["bytes"] < full["bytes"]) == differs
        assert (coarse["psnr"] < full["psnr"] - 10) == differs
        assert (coarse["ssim"] < full["ssim"] - 0.1) == differs


def test_the_ssim_of_a_color_image_is_scikit_images_mean_over_its_channels(tmp_path: Path) -> None:
    metrics = pytest.importorskip("skimage.metrics")
    image, settings = picture(5, width=90, height=70), EncodeSettings(quality=80)
    source = listing(tmp_path, {"a.png": saved(Image.fromarray(image), "PNG")})
    rows = measure_quality(source, encode=settings, images=1, seed=0, workers=1).rows()
    made = np.asarray(Image.open(io.BytesIO(reencode(image, settings=settings)[0])))
    options = {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False, "data_range": 255}
    expected = metrics.structural_similarity(image.astype(float), made.astype(float), channel_axis=2, **options)
    (row,) = [row for row in rows if (row["subsampling"], row["quality"]) == ("420", 80)]
    assert row["ssim"] == pytest.approx(expected, abs=2e-5)


def test_with_reencode_what_could_stay_is_measured_too(tmp_path: Path) -> None:
    measured = measure_quality(
        listing(tmp_path, FILES), encode=EncodeSettings(reencode=True), images=9, seed=0, workers=1
    )
    assert (measured.lossless, measured.failed, len(measured.images)) == (0, 1, 4)


def test_the_rows_are_means_of_images_and_what_is_saved_is_of_all_bytes() -> None:
    images = [(ImageQuality(100, 30.0, 0.9),), (ImageQuality(301, 40.0, 0.8),)]
    (row,) = QualityReport((EncodeSettings(quality=50, subsampling="444"),), images, 1000, 0, 0).rows()
    assert row.pop("subsampling") == "444"
    assert row == pytest.approx(
        {"quality": 50, "bytes": 200, "saved": 0.599, "psnr": 35, "ssim": 0.85, "ssim_low": 0.805}
    )


def test_the_command_prints_a_table_and_writes_no_data_set(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    listing(tmp_path / "in", FILES)
    done = picstore_command("convert", tmp_path / "in", "--measure")
    assert "1 of 5 images stay without loss, whatever the quality" in done.stdout
    table = done.stdout.partition("5 % below")[2].splitlines()[1:-1]
    expected = product(psnr_ssim.SUBSAMPLINGS, map(str, psnr_ssim.QUALITIES))
    assert [tuple(line.replace("*", "").split()[:2]) for line in table] == list(expected)
    assert [line.split()[:2] for line in table if "*" in line] == [["420", "90*"]]
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
    printed = picstore_json("convert", tmp_path / "in", "--measure", "3", "--quality", "77", "--subsampling", "444")
    assert printed["images"] + printed["lossless"] + printed["failed"] == 3
    assert printed["subsampling"] == "444"
    assert ("444", 77) in [(row["subsampling"], row["quality"]) for row in printed["qualities"]]
    json.dumps(printed, allow_nan=False)


def test_the_plot_has_a_line_per_subsampling_and_nothing_else_is_written(tmp_path: Path) -> None:
    require(find_spec("matplotlib"), "matplotlib")
    (tmp_path / "in").mkdir()
    listing(tmp_path / "in", FILES)
    plot = tmp_path / "plot.svg"
    picstore_command("convert", tmp_path / "in", "--measure", "--plot", plot)
    drawing = ElementTree.parse(plot).getroot()  # noqa: S314  we have just written it
    assert drawing.tag == "{http://www.w3.org/2000/svg}svg"
    texts = [element.text for element in drawing.iter("{http://www.w3.org/2000/svg}text")]
    assert "— 4:2:0" in texts
    assert "— 4:4:4" in texts
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "plot.svg"]


def test_a_plot_without_matplotlib_is_refused_with_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingDependency, match=r"pip install .*\[plot\]"):
        require_matplotlib()


def test_where_all_images_stay_it_is_what_reencode_would_make_of_them(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    listing(tmp_path / "in", {"a.jpg": jpeg(1)})
    done = picstore_command("convert", tmp_path / "in", "--measure")
    assert "1 of 1 image stays without loss, whatever the quality; with --reencode they would have:" in done.stdout
    assert done.stdout.count(" 90*") == 1
    printed = picstore_json("convert", tmp_path / "in", "--measure")
    assert (printed["images"], printed["lossless"], printed["reencode"]) == (1, 1, True)


def test_convert_needs_a_destination_or_measure(tmp_path: Path) -> None:
    picstore_command("convert", tmp_path, code=2)
    picstore_command("convert", tmp_path, tmp_path / "out", "--measure", code=2)
    picstore_command("convert", tmp_path, tmp_path / "out", "--plot", tmp_path / "x.svg", code=2)
