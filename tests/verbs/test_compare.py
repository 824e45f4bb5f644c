"""Two data sets beside each other: ``picstore.compare``."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from PIL import Image
from samples import picture

import picstore
from picstore.errors import UsageError


def jpeg(number: int, *, quality: int, width: int = 160) -> bytes:
    out = io.BytesIO()
    Image.fromarray(picture(number, width=width, height=128)).save(out, "JPEG", quality=quality)
    return out.getvalue()


def write(path: Path, images: list[tuple[bytes, int]], classes: list[str]) -> Path:
    with picstore.Writer(path, classes=classes) as writer:
        for image, label in images:
            writer.add(image, label=label)
    return path


@pytest.fixture
def both(tmp_path: Path) -> tuple[Path, Path]:
    """Eight images of cats and dogs at quality 90; three of them, of dogs and ants, again at 60 beside two others."""
    one = [(jpeg(k, quality=90), k % 2) for k in range(8)]
    other = [(jpeg(k, quality=60), k % 2) for k in range(3)] + [(jpeg(k, quality=60, width=200), 1) for k in (20, 21)]
    return write(tmp_path / "one", one, ["cat", "dog"]), write(tmp_path / "other", other, ["dog", "ant"])


def test_classes_are_matched_by_name_and_counted_in_both(both: tuple[Path, Path]) -> None:
    result = picstore.compare(*both, images=False)
    told = [(each.name, each.label, each.images, each.other_label, each.other_images) for each in result.classes]
    assert told == [("cat", 0, 4, None, 0), ("dog", 1, 4, 0, 2), ("ant", None, 0, 1, 3)]
    assert not result.same_labels and result.images_shared is None
    assert (result.images, result.other_images) == (8, 5)
    assert picstore.compare(both[0], both[0], images=False).same_labels


def test_sizes_and_qualities_are_counted_in_the_same_bins(both: tuple[Path, Path]) -> None:
    result = picstore.compare(*both, images=False)
    sizes = {each.name: each for each in (*result.sizes, result.quality)}
    assert set(sizes) == {"width", "height", "bytes", "bits per pixel", "chroma sampling", "quality"}
    for each in sizes.values():
        assert (sum(each.counts), sum(each.other_counts)) == (8, 5)
        assert not each.edges or len(each.edges) == len(each.counts) + 1
    assert (sizes["width"].counts[0], sizes["width"].other_counts[0], sizes["width"].other_counts[-1]) == (8, 3, 2)
    assert (sizes["quality"].median, sizes["quality"].other_median) == (90, 60)
    assert sizes["chroma sampling"].values == ["420"]
    stored = [len(record.jpeg) for record in picstore.Dataset(both[0])]
    assert (sizes["bytes"].edges[0], sizes["bytes"].edges[-1])[1] >= max(stored)


def test_images_of_both_are_found_by_their_hashes(both: tuple[Path, Path]) -> None:
    shared = picstore.compare(*both, workers=1).images_shared
    assert shared is not None
    assert (shared.shared, shared.repeated, shared.other_repeated) == (3, 0, 0)
    one, other = (picstore.Dataset(path) for path in both)
    pairs = {(group.id, each.id) for group in shared.groups for each in group.duplicates}
    assert pairs == {(k, k) for k in range(3)}
    assert set(one.ids.tolist()) >= {0, 1, 2} and len(other) == 5
    with pytest.raises(UsageError, match="distance=12"):
        picstore.compare(*both, distance=12, workers=1)


def test_a_selection_and_an_empty_one_are_compared(both: tuple[Path, Path]) -> None:
    one, other = (picstore.Dataset(path) for path in both)
    result = picstore.compare(one.select(ids=[1]), other.select(ids=[]), workers=1)
    assert (result.images, result.other_images) == (1, 0)
    width = result.sizes[0]
    assert (sum(width.counts), sum(width.other_counts), width.median, width.other_median) == (1, 0, 160, None)
    assert result.images_shared is not None and result.images_shared.shared == 0
