"""Figures and HTML of data sets, loaders and batches."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from samples import jpeg

import picstore
from picstore.display.figures import Tile, draw_tiles, shorten
from picstore.display.histograms import summarize
from picstore.display.markup import format_facts
from picstore.errors import install_command
from picstore.train.batch import Batch
from picstore.train.batch_pictures import levels_of

patches = pytest.importorskip("matplotlib.patches")
Make = Callable[..., Path]
HOSTILE = '<script>alert("x")</script> $\\frac{1}{2}$ & \x1b]0;owned\x07'
CROP = [picstore.RandomResizedCrop(24), picstore.RandomHorizontalFlip()]


def rendered(figure: Any) -> np.ndarray[Any, Any]:
    """The pixels of a figure, as a notebook shows them."""
    return np.asarray(Image.open(io.BytesIO(figure._repr_png_())).convert("RGB"))


def titles(figure: Any) -> list[str]:
    return [axes.get_title() for axes in figure.axes]


def test_show_draws_images_evenly_spaced_with_class_and_id(make_dataset: Make) -> None:
    dataset = picstore.Dataset(make_dataset(40))
    figure = dataset.show(4)
    expected = [dataset[k] for k in (0, 10, 20, 30)]
    assert titles(figure) == [f"{dataset.classes[each.label]} · {each.id}" for each in expected]
    for axes, record in zip(figure.axes, expected, strict=True):
        drawn = np.asarray(axes.images[0].get_array())
        np.testing.assert_array_equal(drawn, picstore.decode(record.jpeg))
    assert rendered(figure).std() > 10
    assert titles(dataset.show(positions=[3, -1]))[0] == titles(dataset.show(positions=[3]))[0]
    assert len(dataset.show(100).axes) == 40
    assert len(dataset.select([]).show().axes) == 0


def test_show_draws_boxes_polygons_and_keypoints_where_they_are(tmp_path: Path) -> None:
    extra = {
        "boxes": [[4.0, 6.0, 30.0, 40.0]],
        "box_labels": [0],
        "polygons": [[[1, 1, 20, 1, 20, 20]]],
        "keypoints": [[[9, 8, 2], [1, 1, 0]]],
    }
    with picstore.Writer(tmp_path / "set", classes=["cat"]) as writer:
        writer.add(jpeg(0), label=0, extra=extra)
    (axes,) = picstore.Dataset(tmp_path / "set").show().axes
    outline, box = axes.patches
    assert isinstance(outline, patches.Polygon) and isinstance(box, patches.Rectangle)
    assert box.get_bbox().extents.tolist() == [4, 6, 30, 40]
    assert len(outline.get_xy()) == 4  # closed
    assert np.asarray(axes.collections[0].get_offsets()).tolist() == [[9.5, 8.5]]
    assert [text.get_text() for text in axes.texts] == ["cat"]


def test_a_large_image_is_shown_at_its_coordinates_and_a_damaged_one_grey(tmp_path: Path) -> None:
    with picstore.Writer(tmp_path / "set") as writer:
        writer.add(jpeg(0, width=1000, height=600), label=0)
        writer.add(jpeg(1), label=3)
    dataset = picstore.Dataset(tmp_path / "set")
    data = {path: path.read_bytes() for path in (tmp_path / "set").rglob("*.pic")}
    large = next(record for record in dataset if record.width == 1000)
    (axes,) = dataset.show(positions=[[record.id for record in dataset].index(large.id)]).axes
    assert axes.get_xlim() == (0, 1000) and axes.get_ylim() == (600, 0)
    assert 240 <= np.asarray(axes.images[0].get_array()).shape[1] < 1000
    for path, content in data.items():
        at = content.find(bytes(large.jpeg)[-200:-100])
        if at >= 0:
            path.write_bytes(content[:at] + bytes(100) + content[at + 100 :])
    shown = picstore.Dataset(tmp_path / "set").show()
    grey = [axes for axes in shown.axes if np.asarray(axes.images[0].get_array()).std() == 0]
    assert len(grey) == 1 and "0" in grey[0].get_title()


def test_an_index_of_other_formats_is_shown_too(tmp_path: Path) -> None:
    (tmp_path / "photos" / "a").mkdir(parents=True)
    Image.new("RGB", (50, 40), (200, 30, 30)).save(tmp_path / "photos" / "a" / "x.png")
    (tmp_path / "photos" / "a" / "y.png").write_bytes(b"\x89PNG\r\n\x1a\n broken")
    from commands import picstore_command

    picstore_command("index", tmp_path / "photos", tmp_path / "index", "--max-errors", 1)
    (axes,) = picstore.Dataset(tmp_path / "index").show().axes
    assert np.asarray(axes.images[0].get_array())[20, 20].tolist() == [200, 30, 30]


def test_summary_counts_by_class_and_size(make_dataset: Make) -> None:
    dataset = picstore.Dataset(make_dataset(40))
    figure = dataset.summary()
    by_title = {axes.get_title(loc="left"): axes for axes in figure.axes}
    assert set(by_title) == {"class", "width, pixels", "height, pixels", "bytes of the JPEG"}
    for axes in figure.axes:
        bars = [bar for bar in axes.patches if isinstance(bar, patches.Rectangle)]
        sizes = [bar.get_width() if axes is by_title["class"] else bar.get_height() for bar in bars]
        assert sum(sizes) == 40
    assert rendered(figure).shape[1] > 500
    assert dataset.select([]).summary().axes == []


def test_histograms_count_classes_without_names_and_values_all_equal() -> None:
    sizes = np.arange(3)
    columns = {"label": np.array([5, 5, 0]), "width": np.array([7, 7, 7]), "height": sizes, "bytes": sizes}
    found = summarize(columns, ["cat"], bins=4)
    assert (found["label"].values, found["label"].names, found["label"].counts) == ((5, 0), ("", "cat"), (2, 1))
    assert (found["width"].edges, found["width"].counts) == ((7.0, 7.0), (3,))


def test_batches_are_shown_with_labels_ids_and_targets(make_dataset: Make) -> None:
    dataset = picstore.Dataset(make_dataset(40))
    loader = picstore.Loader(dataset, batch_size=8, transform=CROP, isolate=False)
    batch = next(iter(loader))
    figure = batch.show(6, classes=dataset.classes, columns=3)
    named = zip(batch.labels.tolist(), batch.ids.tolist(), strict=True)
    assert titles(figure) == [f"{dataset.classes[label]} · {id_}" for label, id_ in named][:6]
    drawn = np.asarray(figure.axes[2].images[0].get_array())
    np.testing.assert_array_equal(drawn, batch.images[2].permute(1, 2, 0).numpy())
    mask = torch.zeros((24, 24), dtype=torch.uint8)
    mask[5:9, 5:9] = 2
    from torchvision import tv_tensors

    target = {
        "boxes": torch.tensor([[1.0, 2.0, 8.0, 9.0]]),
        "labels": torch.tensor([1]),
        "polygons": [[torch.tensor([[0.0, 0.0], [9.0, 0.0], [9.0, 9.0]])]],
        "keypoints": torch.tensor([[[3.0, 4.0], [0.0, 0.0]]]),
        "visibility": torch.tensor([[2, 0]]),
        "mask": tv_tensors.Mask(mask),
    }
    axes = Batch(batch.images[:1], batch.labels[:1], batch.ids[:1], [target]).show(classes=["a", "b"]).axes[0]
    assert [text.get_text() for text in axes.texts] == ["b"]
    assert np.asarray(axes.collections[0].get_offsets()).tolist() == [[3.5, 4.5]]
    assert len(axes.patches) == 2
    assert (np.asarray(axes.images[1].get_array())[..., 3] > 0).sum() == 16


def test_normalized_images_are_shown_as_they_were() -> None:
    levels = torch.arange(0, 192, dtype=torch.uint8).reshape(1, 3, 8, 8)
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.3, 0.1)
    scale, offset = (torch.tensor(each)[:, None, None] for each in (std, mean))
    normalized = (levels / 255 - offset) / scale
    expected = levels[0].permute(1, 2, 0).numpy()
    for dtype in (torch.float32, torch.float64):
        np.testing.assert_array_equal(levels_of(normalized, mean, std)(normalized[0].to(dtype)), expected)
    np.testing.assert_array_equal(levels_of(levels / 255)(levels[0] / 255), expected)
    stretched = levels_of(normalized)(normalized[0])
    assert stretched.min() == 0 and stretched.max() == 255
    with pytest.raises(picstore.UsageError, match="both"):
        levels_of(normalized, mean)


def test_views_have_a_row_each_and_mixed_labels_their_weights(make_dataset: Make) -> None:
    views = picstore.Views(global_=(2, CROP), local=(1, [picstore.RandomResizedCrop(16)]))
    loader = picstore.Loader(make_dataset(40), batch_size=8, transform=views, isolate=False)
    batch = next(iter(loader))
    figure = batch.show(columns=4)
    assert len(figure.axes) == 12
    assert [text.get_text() for text in figure.texts] == ["global 0", "global 1", "local 0"]
    assert "global: uint8 (2, 8, 3, 24, 24) on cpu" in batch._repr_html_()
    mixed = Batch(torch.zeros((1, 3, 8, 8)), torch.tensor([[0.25, 0.75, 0.0]]), torch.tensor([4]))
    assert titles(mixed.show(classes=["cat", "dog", "owl"])) == ["dog 0.75, cat 0.25 · 4"]


def test_images_of_several_sizes_and_results_of_callables_are_shown(make_dataset: Make) -> None:
    batch = next(iter(picstore.Loader(make_dataset(20), batch_size=4, isolate=False)))
    assert isinstance(batch.images, list)
    assert len(batch.show().axes) == 4
    assert batch._repr_html_().count("<img") == 4
    flat = Batch(torch.zeros((2, 12)), batch.labels[:2], batch.ids[:2])
    assert "<img" not in flat._repr_html_() and "float32 (2, 12) on cpu" in flat._repr_html_()
    patches = Batch(picstore.patchify([torch.zeros((3, 32, 16))] * 2), batch.labels[:2], batch.ids[:2])
    assert "<img" not in patches._repr_html_()
    for made in (flat, patches):
        with pytest.raises(picstore.UsageError, match="no images to show"):
            made.show()


def test_html_of_a_data_set_and_a_loader_states_facts_and_escapes_text(tmp_path: Path) -> None:
    with picstore.Writer(tmp_path / "set", classes=[HOSTILE, "dog"]) as writer:
        for k in range(4):
            writer.add(jpeg(k), label=k % 2)
    dataset = picstore.Dataset(tmp_path / "set")
    page = dataset._repr_html_()
    assert "<script>" not in page and "&lt;script&gt;" in page
    assert dataset.uuid in page
    loader = picstore.Loader(dataset, batch_size=2, transform=CROP, isolate=False, seed=7)
    page = loader._repr_html_()
    for fact in (
        "2 of 2",
        "seed 7",
        "0 of 1",
        "epoch 0, batch 0",
        "RandomResizedCrop, RandomHorizontalFlip",
        "uint8, cpu",
    ):
        assert fact in page
    next(iter(loader))
    assert "epoch 0, batch 1" in loader._repr_html_()
    assert set(re.findall(r"<(\w+)", page)) <= {"div", "b", "table", "tr", "th", "td"}


def test_names_of_strangers_are_drawn_as_they_are(tmp_path: Path) -> None:
    tile = Tile(np.zeros((8, 8, 3), np.uint8), HOSTILE, boxes=np.array([[0.0, 0.0, 4.0, 4.0]]), names=["$x_1"])
    figure = draw_tiles([tile], rows=["$"])
    assert rendered(figure).size
    assert "\x1b" not in titles(figure)[0] and len(titles(figure)[0]) <= 28
    assert shorten("a\nb") == "a·b"
    assert "&lt;b&gt;" in format_facts("<b>", {"<b>": "<b>"}, [(np.zeros((4, 4, 3), np.uint8), '"><b>')])


def test_without_matplotlib_an_error_says_what_to_install(make_dataset: Make) -> None:
    code = f"""
import sys
sys.modules["matplotlib"] = sys.modules["matplotlib.figure"] = None
import picstore
dataset = picstore.Dataset({str(make_dataset(20))!r})
dataset._repr_html_()
for draw in (dataset.show, dataset.summary):
    try:
        draw()
    except picstore.MissingDependency as error:
        print(error, error.exit_code)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"show and summary need matplotlib: {install_command('plot')} 4\n" * 2


def test_a_loader_of_buckets_and_a_rank_among_others_have_html_too(make_dataset: Make) -> None:
    dataset = picstore.Dataset(make_dataset(40))
    buckets = picstore.Buckets([(24, 24), (24, 36)], lambda size: [picstore.RandomResizedCrop(size)])
    loader = picstore.Loader(dataset, batch_size=4, transform=buckets, rank=1, world_size=2, isolate=False)
    assert "1 of 2" in loader._repr_html_()
