"""The annotated dataset, the page's server as an application, and a browser."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from samples import picture
from starlette.testclient import TestClient
from view_page import BASE, TOKEN, make_annotated

import picstore
from picstore.viewer.records import Records
from picstore.viewer.server import make_app
from picstore.viewer.session import Session


@pytest.fixture(scope="session")
def _annotated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_annotated(tmp_path_factory.mktemp("view") / "annotated")


@pytest.fixture
def annotated(_annotated: Path, tmp_path: Path) -> Path:
    """A copy of the dataset of :func:`make_annotated`."""
    return Path(shutil.copytree(_annotated, tmp_path / "annotated"))


@pytest.fixture(scope="session")
def dataset(_annotated: Path) -> picstore.Dataset:
    """The dataset of :func:`make_annotated`, not to be changed."""
    return picstore.Dataset(_annotated)


@pytest.fixture
def other(tmp_path: Path) -> picstore.Dataset:
    """Three images of the annotated dataset, one of them in another class, beside a new one."""
    with picstore.Writer(tmp_path / "other", classes=["Sea lion", "cat", "bird"]) as writer:
        for number, label in ((0, 1), (3, 0), (6, 1), (99, 2)):
            image = picture(number, width=160 + 8 * number, height=120 + 4 * (number % 5))
            writer.add(image, label=label)
    return picstore.Dataset(tmp_path / "other")


@pytest.fixture(scope="session")
def records(dataset: picstore.Dataset) -> Records:
    return Records(dataset)


@pytest.fixture
def make_client() -> Callable[[picstore.Dataset], TestClient]:
    """Makes a client of the server of a dataset, below the secret path."""

    def make(dataset: picstore.Dataset) -> TestClient:
        app = make_app(Session(Records(dataset)), token=TOKEN)
        return TestClient(app, base_url=BASE)

    return make


@pytest.fixture
def client(dataset: picstore.Dataset, make_client: Callable[[picstore.Dataset], TestClient]) -> TestClient:
    """A client of the server of the annotated dataset."""
    return make_client(dataset)
