"""docs/order.py, the order without picstore, gives the batches that loaders make."""

from __future__ import annotations

import importlib.util
import itertools
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import picstore
from picstore.train.order.state_checks import VERSION

DOCS = Path(__file__).parents[1] / "docs"
DATA = Path(__file__).parent / "fixtures" / "versions" / "0.1.0" / "data"
SMALL = [picstore.CenterCrop(8)]


@pytest.fixture(scope="module")
def order() -> Any:
    """The module of docs/order.py, which finds reader.py beside it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(DOCS))
        spec = importlib.util.spec_from_file_location("order", DOCS / "order.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module
        sys.modules.pop("reader", None)


def epochs_of(dataset: Any, **options: Any) -> list[list[list[int]]]:
    """The ids of the batches of two epochs of a loader."""
    loader = picstore.Loader(dataset, transform=SMALL, isolate=False, threads=1, **options)
    found = [[batch.ids.tolist() for batch in loader] for _ in range(2)]
    loader.close()
    return found


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("shuffled", {"size": 6, "seed": 3}),
        ("shuffled", {"size": 5, "seed": 2**63, "lanes": 7, "drop_last": False}),
        ("edited", {"size": 7, "drop_last": False}),
        ("edited", {"size": 4, "shuffle": False, "lanes": 1}),
        ("index", {"size": 16, "drop_last": False}),
    ],
)
def test_the_independent_order_is_that_of_the_loader(order: ModuleType, name: str, given: dict[str, Any]) -> None:
    ids = order.read_ids(DATA / name)
    options = {"seed": 0, **given}
    size = options.pop("size")
    expected = [order.batches(ids, epoch=epoch, size=size, **options) for epoch in range(2)]
    assert epochs_of(DATA / name, batch_size=size, **options) == expected


def test_ranks_together_make_the_batches_of_the_independent_order(order: ModuleType) -> None:
    ids = order.read_ids(DATA / "shuffled")
    for world, size, given in ((3, 9, {"lanes": 33}), (4, 10, {"shuffle": False, "lanes": 4}), (5, 8, {})):
        options = {"seed": 1, "lanes": 35, "drop_last": False, **given}
        ranks = [
            epochs_of(DATA / "shuffled", global_batch_size=size, rank=rank, world_size=world, **options)
            for rank in range(world)
        ]
        for epoch in range(2):
            expected = order.batches(ids, epoch=epoch, size=size, ranks=world, **options)
            whole = [sorted(itertools.chain(*parts)) for parts in zip(*(rank[epoch] for rank in ranks), strict=True)]
            assert whole == [sorted(batch) for batch in expected]


def test_the_independent_order_follows_selections_and_repeated_views(order: ModuleType) -> None:
    part, _ = picstore.Dataset(DATA / "edited").split(0.5, seed=2)
    expected = order.batches(order.read_ids(DATA / "edited", set(part.ids.tolist())), seed=4, epoch=0, size=3)
    assert epochs_of(part, batch_size=3, seed=4)[0] == expected
    repeated = epochs_of(part, batch_size=6, aug_repeats=2, seed=4)[0]
    assert [batch[:3] for batch in repeated] == expected


def test_the_independent_order_needs_no_picstore_and_is_short(order: ModuleType) -> None:
    program = "import sys; sys.modules['picstore'] = None; sys.path.insert(0, sys.argv[1]); import order; order.main("
    command = [sys.executable, "-c", program + "sys.argv[2], 3, 1, 2, 6)", str(DOCS), str(DATA / "shuffled")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    expected = order.batches(order.read_ids(DATA / "shuffled"), seed=3, epoch=1, size=6)[2]
    assert done.stdout.split() == list(map(str, expected))
    assert len((DOCS / "order.py").read_text().splitlines()) <= 150
    assert order.VERSION == VERSION
