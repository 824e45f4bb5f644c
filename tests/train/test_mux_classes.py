"""What labels mean in a mux of data sets with different classes."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
from samples import picture

import picstore
from picstore.errors import UsageError


def dataset_of(path: Path, classes: list[str]) -> picstore.Dataset:
    """A record of each class, and one without a label."""
    with picstore.Writer(path, classes=classes) as writer:
        for label in (*range(len(classes)), -1):
            writer.add(picture(label + 2), label=label)
    return picstore.Dataset(path)


@pytest.fixture
def pets(tmp_path: Path) -> picstore.Dataset:
    return dataset_of(tmp_path / "pets", ["cat", "dog"])


@pytest.fixture
def farm(tmp_path: Path) -> picstore.Dataset:
    return dataset_of(tmp_path / "farm", ["cow", "dog", "hen"])


def labels_of(*sources: Any, **options: Any) -> list[list[int]]:
    """Labels of each source's records in a batch of all records, sorted."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        entries = [(dataset, base, len(dataset)) for dataset, base in sources]
        mux = picstore.DataMux(entries, transform=[picstore.CenterCrop(8)], isolate=False, threads=1, **options)
    request = next(mux.order.requests(mux.sources, epoch=0))
    labels = next(iter(mux)).labels
    mux.close()
    return [sorted(labels[part.slots].tolist()) for part in request]


def test_join_gives_classes_of_one_name_one_label(pets: picstore.Dataset, farm: picstore.Dataset) -> None:
    assert labels_of((pets, 0), (farm, 0), classes="join") == [[-1, 0, 1], [-1, 1, 2, 3]]
    mux = picstore.DataMux([(pets, 0, 1), (farm, 0, 1)], classes="join")
    assert mux.classes == ["cat", "dog", "cow", "hen"]


def test_offset_numbers_classes_one_after_the_other_once_a_path(pets: picstore.Dataset, farm: picstore.Dataset) -> None:
    assert labels_of((pets, 0), (farm, 0), (pets, 0), classes="offset") == [[-1, 0, 1], [-1, 2, 3, 4], [-1, 0, 1]]
    mux = picstore.DataMux([(pets, 0, 1), (farm, 0, 1)], classes="offset")
    assert mux.classes == ["cat", "dog", "cow", "dog", "hen"]


def test_same_and_base_labels_keep_what_was_given(pets: picstore.Dataset, farm: picstore.Dataset) -> None:
    assert labels_of((pets, 0), (farm, 0), classes="same") == [[-1, 0, 1], [-1, 0, 1, 2]]
    assert picstore.DataMux([(pets, 0, 1), (farm, 0, 1)], classes="same").classes == ["cat / cow", "dog", "hen"]
    assert picstore.DataMux([(pets, 3, 1), (farm, 5, 1)]).classes == ["", "", "", "cat", "dog", "cow", "dog", "hen"]


def test_labels_of_several_names_are_warned_of_unless_a_choice_is_made(
    pets: picstore.Dataset, farm: picstore.Dataset, tmp_path: Path
) -> None:
    with pytest.warns(UserWarning, match=r"label 0 of the mux is cat / cow: give classes='join' .*'offset' .*'same'"):
        picstore.DataMux([(pets, 0, 1), (farm, 0, 1)])
    with pytest.warns(UserWarning, match="label 1 of the mux is dog / cow: give"):
        picstore.DataMux([(pets, 0, 1), (farm, 1, 1)])
    picstore.DataMux([(pets, 0, 1), (pets, 0, 1)])  # warnings are errors
    picstore.DataMux([(pets, 0, 1), (farm, 2, 1)])


def test_soft_labels_have_all_joined_classes(pets: picstore.Dataset, farm: picstore.Dataset) -> None:
    steps = [picstore.CenterCrop(8), picstore.CutMix()]
    mux = picstore.DataMux([(pets, 0, 3), (farm, 0, 4)], classes="join", transform=steps, isolate=False)
    assert next(iter(mux)).labels.shape == (7, 4)
    mux.close()


def test_classes_are_an_option_of_a_file_too(pets: picstore.Dataset, farm: picstore.Dataset, tmp_path: Path) -> None:
    config = tmp_path / "mux.toml"
    config.write_text('classes = "join"\n[[source]]\npath = "pets"\ncount = 1\n[[source]]\npath = "farm"\ncount = 1\n')
    assert picstore.DataMux(config).classes == ["cat", "dog", "cow", "hen"]


def test_what_cannot_be_numbered_is_refused(pets: picstore.Dataset, tmp_path: Path) -> None:
    nameless = dataset_of(tmp_path / "nameless", [])
    for sources, choice, message in (
        ([(pets, 2, 1)], "join", "pets has the base label 2; give names and base labels 0"),
        ([(pets, 0, 1), (nameless, 0, 1)], "offset", "nameless has no names of classes"),
        ([(pets, 0, 1)], "merge", "classes is 'merge'; give 'join', 'offset' or 'same'"),
    ):
        with pytest.raises(UsageError, match=message):
            picstore.DataMux(sources, classes=choice)
    with pytest.raises(TypeError, match="classes"):
        picstore.Loader(pets, batch_size=2, classes="join")  # type: ignore[arg-type]
