"""Forks of a trainer: its batches, positions and writers are its own, and a fork's copies are the fork's."""

from __future__ import annotations

import os
import pickle
import sys
import warnings
from collections.abc import Callable
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from grids import examples
from hypothesis import given
from hypothesis import strategies as st

import picstore

CROP = [picstore.RandomResizedCrop(24)]
BASE: dict[str, Any] = {"batch_size": 8, "transform": CROP, "threads": 1, "rank": 0, "world_size": 1}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("forks") / "set"
    rng = np.random.default_rng(0)
    with picstore.Writer(path) as writer:
        for _ in range(160):
            writer.add(rng.integers(0, 256, (32, 32, 3), np.uint8))
    return path


class Fork:
    """A fork of this process, which computes something when it is told to, and then ends as programs do or at once."""

    def __init__(self, compute: Callable[[], Any], *, end: Callable[[int], Any] = os._exit) -> None:
        self._begin, self._result = os.pipe(), os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12, for the threads
            self._pid = os.fork()
        if self._pid == 0:
            try:
                os.read(self._begin[0], 1)
                os.write(self._result[1], pickle.dumps(compute()))
            except BaseException as error:
                os.write(self._result[1], pickle.dumps(repr(error)))
            end(0)
        os.close(self._result[1])

    def result(self) -> Any:
        os.write(self._begin[1], b"x")
        with os.fdopen(self._result[0], "rb") as file:
            answer = file.read()
        os.waitpid(self._pid, 0)
        for end in self._begin:
            os.close(end)
        return pickle.loads(answer)  # noqa: S301 - of a fork of this test


@pytest.mark.parametrize("options", [{}, {"processes": 2}, {"isolate": False}])
def test_a_forks_batches_stay_and_its_writes_are_its_own(root: Path, options: dict[str, Any]) -> None:
    with (
        closing(picstore.Loader(root, **BASE, **options)) as loader,
        closing(picstore.Loader(root, **BASE, **options)) as other,
    ):
        expected = [batch.images.clone() for batch in other]
        forks: list[Fork] = []
        kept = []
        for number, batch in enumerate(loader):
            assert torch.equal(batch.images, expected[number])

            def look(batch: Any = batch) -> Any:
                seen = batch.images.numpy().copy()
                batch.images.zero_()
                return seen

            forks.append(Fork(look))
            if number % 4 == 0:
                kept.append((number, batch))
            elif number % 4 == 1:
                batch.images.fill_(7)  # after the fork
        for number, fork in enumerate(forks):
            assert np.array_equal(fork.result(), expected[number].numpy())
        for number, batch in kept:
            assert torch.equal(batch.images, expected[number])
        del batch, kept, look
        assert sum(1 for _ in loader) == 20
        # Of several, one may make many batches ahead of its turn, or none, with which it would have been told.
        if "processes" not in options:
            for process in loader._runner._processes:
                assert len(process._blocks._mapped) <= 12
                assert not process._blocks._parted


ACTIONS: dict[str, Callable[[Any, dict[str, Any]], Any]] = {
    "take": lambda loader, _: [batch.ids.tolist() for batch in islice(loader, 2)],
    "load": lambda loader, state: loader.load_state_dict(state),
    "lanes": lambda loader, state: loader.load_state_dict({**state, "lanes": 8}),
    "epoch": lambda loader, _: getattr(loader, "set_epoch", lambda _: None)(3),
    "close": lambda loader, _: loader.close(),
}


@pytest.fixture(scope="module")
def makers(root: Path) -> dict[str, Callable[[], Any]]:
    options = {**BASE, "isolate": False}
    del options["batch_size"]
    return {
        "loader": lambda: picstore.Loader(root, batch_size=8, **options),
        "mux": lambda: picstore.DataMux([(picstore.Dataset(root), 0, 8)], **options),
    }


@pytest.mark.parametrize("kind", ["loader", "mux"])
@examples(20)
@given(
    before=st.integers(0, 3),
    mine=st.lists(st.sampled_from(sorted(ACTIONS)), max_size=3),
    theirs=st.lists(st.sampled_from(sorted(ACTIONS)), min_size=1, max_size=3),
)
def test_what_a_fork_does_with_its_loader_changes_no_other(
    makers: dict[str, Callable[[], Any]], kind: str, before: int, mine: list[str], theirs: list[str]
) -> None:
    with closing(makers[kind]()) as loader, closing(makers[kind]()) as twin, closing(makers[kind]()) as forked:
        start = loader.state_dict()
        for each in (loader, twin, forked):
            for _ in islice(each, before):
                pass

        def act(each: Any, actions: list[str]) -> Any:
            done = [ACTIONS[action](each, start) for action in actions]
            return done, each.state_dict(), [batch.ids.tolist() for batch in islice(each, 2)]

        fork = Fork(lambda: act(loader, theirs))
        done = act(loader, mine)
        assert fork.result() == act(forked, theirs)
        assert done == act(twin, mine)
        assert loader.state_dict() == twin.state_dict()


def test_the_epoch_of_a_map_dataset_is_a_forks_own(root: Path) -> None:
    items = picstore.MapDataset(root, transform=CROP)
    items.set_epoch(2)

    def change() -> int:
        found = items._find_epoch()
        items.set_epoch(9)
        return found

    fork = Fork(change)
    items.set_epoch(5)
    assert fork.result() == 2 and items._find_epoch() == 5


@pytest.mark.parametrize("end", [os._exit, sys.exit])
def test_a_fork_neither_ends_nor_harms_its_parents_writer(tmp_path: Path, end: Callable[[int], Any]) -> None:
    path, image = tmp_path / "set", np.zeros((16, 16, 3), np.uint8)

    def leave() -> list[str]:
        errors = []
        for action in (lambda: writer.add(image), writer.close, lambda: writer.__exit__(None, None, None)):
            with pytest.raises(picstore.UsageError) as caught:
                action()
            errors.append(str(caught.value))
        writer.__exit__(RuntimeError, RuntimeError(), None)
        return errors

    with picstore.Writer(path) as writer:
        writer.add(image)
        said = Fork(leave, end=end if end is os._exit else exit_as_programs_do).result()
        assert len(said) == 3 and all(f"belongs to process {os.getpid()}" in each for each in said)
        writer.add(image)
    assert len(picstore.Dataset(path)) == 2 and picstore.verify(path).ok


def exit_as_programs_do(code: int) -> None:
    """End this fork of pytest without its plugins: what is buffered is written, and objects are freed."""
    import gc

    from picstore.storage.location import atomic_file

    for file in list(atomic_file._open_files):
        file._out.flush()
    gc.collect()
    os._exit(code)
