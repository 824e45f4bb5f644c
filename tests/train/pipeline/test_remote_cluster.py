"""engine="ray" on simulated clusters: equal batches, and what is killed costs none."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from grids import slow_except
from pictures import require
from remote_recipes import COUNT, CROP, RECIPES, contents, flat, write_pictures

import picstore
from benchmarks.clusters import SimulatedCluster, simulated_cluster, wait_until
from picstore.errors import Corrupt

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default::ResourceWarning"),  # Ray's own files and sockets
    pytest.mark.filterwarnings("default::FutureWarning"),
    pytest.mark.filterwarnings("default::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[SimulatedCluster]:
    """A trainer's node without workers, and two nodes of two CPUs."""
    require(importlib.util.find_spec("ray"), "ray")
    with simulated_cluster(nodes=2, cpus=2) as made:
        yield made


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures with boxes, masks and captions."""
    return write_pictures(tmp_path_factory.mktemp("remote") / "dataset")


# Of all recipes without a cluster: test_remote_sequence.py.
@pytest.mark.parametrize("name", slow_except(["detr"], ["detr", "collate", "buckets"], mark=pytest.mark.nightly))
def test_batches_of_two_epochs_are_those_of_a_local_loader(path: Path, cluster: SimulatedCluster, name: str) -> None:
    options = {"batch_size": 8, "lanes": 4, "seed": 3, **RECIPES[name]}
    remote = contents(picstore.Loader(path, engine="ray", workers=2, **options))
    local = contents(picstore.Loader(path, isolate=False, threads=2, **options))
    assert len(remote) == len(local) > 0
    assert remote == local


@pytest.mark.nightly  # test_remote_sequence.py has it without a cluster, and the next two
def test_a_mixture_and_the_ranks_of_a_training_have_the_same_batches(cluster: SimulatedCluster, path: Path) -> None:
    dataset = picstore.Dataset(path)

    def mux(**options: Any) -> picstore.DataMux:
        config = [(dataset, 0, 5), (dataset.without(range(50)), 10, 3)]
        return picstore.DataMux(config, transform=CROP, seed=2, epoch_batches=17, **options)

    assert contents(mux(engine="ray", workers=2)) == contents(mux(isolate=False))
    options = {"batch_size": 4, "transform": CROP, "world_size": 2}
    remote = [picstore.Loader(path, engine="ray", workers=1, rank=rank, **options) for rank in range(2)]
    together = [[flat(batch.asdict()) for batch in batches] for batches in zip(*remote, strict=True)]
    local = [picstore.Loader(path, isolate=False, rank=rank, **options) for rank in range(2)]
    assert together == [[flat(batch.asdict()) for batch in batches] for batches in zip(*local, strict=True)]
    for loader in remote:
        loader.close()


@pytest.mark.nightly
def test_damage_of_a_remote_worker_is_raised_in_its_turn(cluster: SimulatedCluster, path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "damaged"
    subprocess.run(["cp", "-r", path, copy], check=True)
    file = sorted(copy.glob("*/*.pic"))[0]
    content = bytearray(file.read_bytes())
    content[9000:9400] = bytes(400)
    file.write_bytes(content)
    options = {"batch_size": 8, "transform": CROP}
    assert contents(picstore.Loader(copy, engine="ray", workers=2, **options)) == contents(
        picstore.Loader(copy, isolate=False, **options)
    )
    strict = picstore.Loader(copy, engine="ray", workers=1, on_damage="raise", **options)
    with pytest.raises(Corrupt, match=str(file)):
        contents(strict)
    strict.close()


def test_workers_and_a_node_that_are_killed_cost_no_batch(cluster: SimulatedCluster, path: Path) -> None:
    options = {"batch_size": 4, "transform": CROP, "lanes": 4}
    loader = picstore.Loader(path, engine="ray", workers=3, **options)
    remote = []
    for epoch in range(4):
        for number, batch in enumerate(loader):
            remote.append((flat(batch.asdict()), flat(batch.columns)))
            if number == 3 and epoch < 2:
                wait_until(lambda: len(cluster.workers()) > 1)  # on a busy machine a new worker takes seconds
                os.kill(cluster.workers()[epoch], signal.SIGKILL)
            if number == 7 and epoch == 2:
                cluster.kill_raylet(cluster.nodes[-1])
                loader.workers = 2  # as many as the other node has room for
    loader.close()
    assert remote == contents(picstore.Loader(path, isolate=False, threads=2, **options), 4)


TRAINER = """
import hashlib, json, pathlib, sys, time
import picstore

loader = picstore.Loader(sys.argv[1], engine="ray", workers=int(sys.argv[2]), batch_size=4, lanes=4,
    transform=[picstore.RandomResizedCrop(32), picstore.RandomHorizontalFlip()])
found, kept = [], []
for _ in range(int(sys.argv[3])):
    for batch in loader:
        found.append(hashlib.sha256(batch.images.numpy().tobytes()).hexdigest())
        if len(found) == 5:
            print("taken", flush=True)
            time.sleep(float(sys.argv[4]))
pathlib.Path(sys.argv[5]).write_text(json.dumps(found))
"""


def trainer(path: Path, found: Path, *, pause: float = 0) -> subprocess.Popen[str]:
    """Start a program that trains for 3 epochs, pauses after its fifth batch, and writes digests to a file.

    On stdout a thread of Ray tells of nodes that an earlier test has killed, 14 s later or more: after any line.
    """
    given = [sys.executable, "-c", TRAINER, str(path), "1", "3", str(pause), str(found)]
    return subprocess.Popen(given, stdout=subprocess.PIPE, text=True)


def test_two_trainers_share_a_cluster_and_a_killed_one_leaves_nothing(
    cluster: SimulatedCluster, path: Path, tmp_path: Path
) -> None:
    spilled = {*cluster.session.glob("**/ray_spilled_objects*/*")}
    before = {*cluster.workers()}  # Ray may take minutes to end the workers of an earlier test's loader
    one, two = trainer(path, tmp_path / "one"), trainer(path, tmp_path / "two", pause=600)
    assert two.stdout is not None
    assert "taken\n" in two.stdout
    assert wait_until(lambda: {*cluster.workers()} - before)
    two.kill()
    two.wait()
    two.stdout.close()
    one.communicate(timeout=120)
    found = json.loads((tmp_path / "one").read_text())
    assert len(found) == 3 * COUNT // 4 and len({*found}) == len(found)
    assert wait_until(lambda: {*cluster.workers()} <= before), "workers end with their trainer"
    assert {*cluster.session.glob("**/ray_spilled_objects*/*")} == spilled


@pytest.mark.nightly
def test_a_loader_grows_with_the_cluster(cluster: SimulatedCluster, path: Path) -> None:
    if len(cluster.nodes) < 2:  # one may be lost by then; two workers have room on the other
        cluster.nodes.append(cluster.add_node())
    options = {"batch_size": 4, "transform": CROP, "lanes": 4}
    before = {*cluster.workers()}
    loader = picstore.Loader(path, engine="ray", workers=1, **options)
    remote = []
    for epoch in range(3):
        remote += [(flat(batch.asdict()), flat(batch.columns)) for batch in loader]
        loader.workers = 3 - epoch
    assert wait_until(lambda: len({*cluster.workers()} - before) == 2)
    loader.close()
    assert remote == contents(picstore.Loader(path, isolate=False, threads=2, **options), 3)
