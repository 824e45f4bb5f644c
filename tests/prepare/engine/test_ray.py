"""--engine ray: a cluster of several nodes writes the bytes of one machine, also when it loses a node."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import engine_tasks
import numpy as np
import pytest
from commands import ledger, picstore_command, said, tree
from engine_tasks import InlineEngine
from pictures import require
from samples import jpeg

import picstore
from benchmarks.clusters import SimulatedCluster, simulated_cluster
from picstore.errors import Corrupt, PicstoreError, Unfinished
from picstore.prepare.convert.conversion_job import ConvertOptions, convert
from picstore.prepare.convert.merge_shards import merge
from picstore.prepare.convert.row_division import DatasetShape, Shard
from picstore.prepare.engine import ray
from picstore.prepare.engine.ray import RayEngine
from picstore.prepare.engine.worker_processes import Engine
from picstore.prepare.exports import run_export, write_folder
from picstore.prepare.exports.run_export import FORMATS, export
from picstore.prepare.image.encode_settings import EncodeSettings
from picstore.prepare.sources import listing_builder
from picstore.prepare.sources.open import open_source
from picstore.prepare.upkeep.near_duplicates import hash_images
from picstore.prepare.upkeep.shuffled_copy import shuffle
from picstore.prepare.upkeep.verify_dataset import verify

COUNT = 120
SHAPE = DatasetShape(streams=2, file_size=16 << 10, container_size=8 << 10)
pytestmark = [
    pytest.mark.filterwarnings("default::ResourceWarning"),  # Ray's own files and sockets
    pytest.mark.filterwarnings("default::FutureWarning"),
    pytest.mark.filterwarnings("default::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def nodes() -> Iterator[tuple[SimulatedCluster, Engine]]:
    """A cluster of three nodes with a core each, to which this process is connected; one is to be lost."""
    require(importlib.util.find_spec("ray"), "ray")
    with simulated_cluster(nodes=2, cpus=1, head_cpus=1) as cluster, ray.connect() as crew:
        yield cluster, crew


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images of which one is damaged."""
    folder = tmp_path_factory.mktemp("source")
    for number in range(COUNT):
        (folder / f"{number:03d}.jpg").write_bytes(jpeg(number % 20) if number != 50 else b"damaged")
    return folder


def converted(source: Path, out: Path, workers: int | Engine, progress: Any = None) -> Path:
    options = ConvertOptions(encode=EncodeSettings(), shape=SHAPE, workers=workers, progress=progress)
    convert(open_source(source), out, options)
    return out


class InlineRay:
    """What the engine uses of Ray, in this process; the first ``losses(task)`` attempts at a task lose their worker."""

    class exceptions:  # noqa: N801 - a module of Ray
        class RayError(Exception):
            pass

        class WorkerCrashedError(RayError):
            pass

        class RayTaskError(RayError):
            def __init__(self, cause: Exception) -> None:
                self.cause = cause

    def __init__(self, losses: Callable[[Any], int]) -> None:
        self.losses = losses
        self.attempts: Counter[str] = Counter()

    def remote(self, **options: Any) -> Callable[..., Any]:
        assert options == {"num_cpus": 1, "max_retries": 0}
        return lambda function: SimpleNamespace(remote=lambda *arguments: partial(function, *arguments))

    def wait(self, references: list[Any], *, num_returns: int) -> tuple[list[Any], list[Any]]:
        return references[:num_returns], references[num_returns:]

    def get(self, reference: Any) -> Any:
        task = reference.args[1]
        self.attempts[repr(task)] += 1
        if self.attempts[repr(task)] <= self.losses(task):
            raise self.exceptions.WorkerCrashedError("a worker died")
        try:
            return reference()
        except Exception as error:
            raise self.exceptions.RayTaskError(error) from error

    def cancel(self, reference: Any, *, force: bool) -> None:
        assert force


def engines(monkeypatch: pytest.MonkeyPatch) -> tuple[Engine, Engine]:
    """One machine, and a cluster in this process on which every task loses its first worker."""
    inline = InlineRay(lambda task: 1)
    monkeypatch.setattr(ray, "import_ray", lambda: inline)
    return InlineEngine(1), RayEngine(3)


def test_a_task_that_loses_its_worker_is_sent_again_and_errors_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a cluster; on one, the slow tests below."""

    def run(function: Any, tasks: int, losses: dict[int, int] | None = None) -> dict[int, Any]:
        inline = InlineRay(lambda task: (losses or {}).get(task, 0))
        monkeypatch.setattr(ray, "import_ray", lambda: inline)
        return dict(RayEngine(2).run(function, deque(range(tasks)), on_progress=counts.append))

    counts: list[int] = []
    assert run(engine_tasks.double, 5, {2: 3, 4: 1}) == {k: 2 * k for k in range(5)}
    assert counts == [1] * 5
    with pytest.raises(PicstoreError, match="lost its worker 4 times, last by WorkerCrashedError: a worker died"):
        run(engine_tasks.double, 5, {2: 4})
    with pytest.raises(Corrupt, match="somewhere at byte 7: task 0"):
        run(engine_tasks.raise_damage, 3)
    with pytest.raises(PicstoreError, match=r"failed on the cluster: AttributeError\('a bug'\)"):
        run(engine_tasks.fail_by_a_bug, 3)


def test_a_conversion_that_loses_workers_writes_the_bytes_of_one_machine(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, cluster = engines(monkeypatch)
    alone = converted(source, tmp_path / "alone", machine)
    assert len(list(alone.glob("0000/*.pic"))) >= 4, "several rows are needed to show anything"
    assert tree(converted(source, tmp_path / "both", cluster)) == tree(alone)


def test_a_cluster_that_loses_workers_lists_what_one_machine_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(40):
        (tmp_path / f"class{number:02d}").mkdir()
        for k in range(number % 4):
            (tmp_path / f"class{number:02d}" / f"{k}.jpg").write_bytes(b"an image")
    alone, cluster = open_source(tmp_path), engines(monkeypatch)[1]
    monkeypatch.setattr(listing_builder, "_MIN_SECONDS", 0)
    found = open_source(tmp_path, engine=cluster)
    assert set(ray.import_ray().attempts.values()) == {2}
    assert list(found.inputs) == list(alone.inputs) and found.classes == alone.classes


@pytest.mark.slow
def test_a_column_is_on_a_cluster_what_it_is_in_this_process(
    nodes: Any, tmp_path: Path, make_dataset: Callable[..., Path]
) -> None:
    path, columns = make_dataset(COUNT), []
    for engine in ("threads", "ray"):
        picstore.map(path, lambda batch: batch.images.float().mean((1, 2, 3)), column="mean", size=24, engine=engine)
        columns.append(picstore.Dataset(path).table["mean"])
    assert np.array_equal(*columns)


def test_verify_and_dupes_find_on_a_cluster_what_they_find_on_one_machine(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = converted(source, tmp_path / "train", InlineEngine(1))
    damage(dataset / "0001" / "000002.pic")
    alone, cluster = engines(monkeypatch)
    expected = verify(dataset, decode=True, workers=alone)
    assert expected.findings
    assert verify(dataset, decode=True, workers=cluster) == expected
    hashes = [hash_images(picstore.Dataset(dataset), workers=engine) for engine in (alone, cluster)]
    assert len(hashes[0].ids) == COUNT - 1 - sum(each.records_lost for each in expected.findings)
    assert all(np.array_equal(*each) for each in zip(*hashes, strict=True))


@pytest.mark.parametrize("format", FORMATS)
def test_an_export_that_loses_workers_has_the_files_of_one_machine(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    dataset = converted(source, tmp_path / "train", InlineEngine(1))
    damage(dataset / "0001" / "000002.pic")
    results = []
    for engine, name, task_size in zip(engines(monkeypatch), ("alone", "both"), (1 << 30, 1 << 13), strict=True):
        monkeypatch.setattr(run_export, "_TASK_SIZE", task_size)
        monkeypatch.setattr(write_folder, "_PART_SIZE", task_size)
        results.append(export(dataset, tmp_path / name, format=format, shard_size=9000, workers=engine))
    assert results[0] == results[1]
    assert results[0].images == COUNT - 1 - results[0].lost < COUNT - 1
    assert tree(tmp_path / "both") == tree(tmp_path / "alone")


def test_a_merge_that_loses_workers_copies_what_one_machine_copies(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    options = ConvertOptions(encode=EncodeSettings(), shape=SHAPE, workers=InlineEngine(1))
    parts = [tmp_path / str(index) for index in range(2)]
    for index, part in enumerate(parts):
        convert(open_source(source), part, options, shard=Shard(index, 2))
    monkeypatch.setattr(os, "link", refuse)
    alone, cluster = engines(monkeypatch)
    merge(tmp_path / "alone", parts, workers=alone)
    with pytest.raises(Unfinished):
        merge(tmp_path / "both", parts[1:], workers=cluster)
    merge(tmp_path / "both", parts, workers=cluster)  # what was copied stays
    assert tree(tmp_path / "both") == tree(tmp_path / "alone")


def damage(file: Path) -> None:
    """Flip a bit in the middle of a file."""
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


class LosesANode:
    """Progress that takes a node away as soon as something is done."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self.total = self.done = 0

    def begin_stage(self, stage: str) -> None:
        pass

    def set_total(self, total: int, done: int) -> None:
        self.total = total

    def advance(self, count: int) -> None:
        if self._cluster is not None:
            self._cluster.lose(self._cluster.nodes[-1])
            self._cluster = None
        self.done += count


@pytest.mark.slow
def test_what_ran_on_a_node_that_is_lost_runs_again_elsewhere(nodes: Any, tmp_path: Path) -> None:
    cluster, crew = nodes
    assert crew == RayEngine(3)
    tasks = [tmp_path / name for name in "abc"]  # one for each node
    lost = cluster.nodes[-1]
    thread = threading.Thread(target=lose, args=(cluster, lost, tasks))
    thread.start()
    counts: list[int] = []
    results = dict(crew.run(engine_tasks.wait_on_a_node, deque(tasks), on_progress=counts.append))
    thread.join()
    starts = {task: starts_of(task) for task in tasks}
    assert sorted(map(len, starts.values())) == [1, 1, 2]
    assert results == {task: ran[-1] for task, ran in starts.items()}
    assert lost.node_id not in results.values()
    assert counts == [1, 1, 1]


def lose(cluster: Any, node: Any, tasks: list[Path]) -> None:
    """Take a node away when all tasks have begun; let the others go on, and the lost one when it began again."""
    wait_for(lambda: all(starts_of(task) for task in tasks))
    (lost,) = [task for task in tasks if starts_of(task) == [node.node_id]]
    cluster.lose(node)
    for task in tasks:
        if task != lost:
            task.with_suffix(".go").touch()
    wait_for(lambda: len(starts_of(lost)) == 2)
    lost.with_suffix(".go").touch()


def starts_of(task: Path) -> list[str]:
    """The nodes on which a task began."""
    text = task.read_text() if task.exists() else ""
    return text.splitlines()[: text.count("\n")]


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)


@pytest.mark.slow
def test_a_conversion_that_loses_a_node_writes_the_bytes_of_one_machine(
    nodes: Any, source: Path, tmp_path: Path
) -> None:
    cluster, crew = nodes
    alone = converted(source, tmp_path / "alone", 2)
    assert len(list(alone.glob("0000/*.pic"))) >= 4, "several rows are needed to show anything"
    progress = LosesANode(cluster)
    both = converted(source, tmp_path / "both", crew, progress)
    assert tree(both) == tree(alone)
    assert progress.done == progress.total == COUNT
    assert ledger(both)[50]["status"] == "failed"
    for method in ("transpose", "uniform"):
        for name, workers in (("alone", 2), ("both", crew)):
            shuffle(tmp_path / name, tmp_path / f"{name}-{method}", seed=1, method=method, workers=workers)
        assert tree(tmp_path / f"both-{method}") == tree(tmp_path / f"alone-{method}")
    assert verify(both, decode=True, workers=crew) == verify(alone, decode=True, workers=2)


@pytest.mark.slow
def test_errors_of_tasks_arrive_and_a_worker_that_is_lost_each_time_is_one(
    nodes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker takes a second to start, so a task gets two here; without a cluster, the test above counts all four."""
    monkeypatch.setattr(ray, "MAX_ATTEMPTS", 2)
    _, crew = nodes
    with pytest.raises(Corrupt, match="somewhere at byte 7: task 1"):
        list(crew.run(engine_tasks.raise_damage, deque([1])))
    with pytest.raises(PicstoreError, match=r"failed on the cluster: AttributeError\('a bug'\)"):
        list(crew.run(engine_tasks.fail_by_a_bug, deque([1])))
    with pytest.raises(PicstoreError, match="lost its worker 2 times, last by WorkerCrashedError"):
        list(crew.run(engine_tasks.lose_the_worker, deque([1])))


@pytest.mark.slow
def test_the_command_line_runs_on_the_cluster_and_says_nothing_of_it(
    nodes: Any, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first command connects by itself; others run in this process, as each connection has workers of its own."""
    arguments = ("--streams", 2, "--file-size", "16KiB", "--container-size", "8KiB", "--engine", "ray")
    done = picstore_command("convert", source.name, tmp_path / "train", *arguments, cwd=source.parent)
    assert said(done) == []
    assert "119 lossless, 0 reencoded, 1 failed" in done.stdout
    monkeypatch.chdir(tmp_path)
    verified = picstore_command("verify", "train", "--decode", "--engine", "ray")
    assert said(verified) == []
    assert verified.stdout.endswith(" files, no damage\n")
    assert "119 images" in picstore_command("dupes", "train", "--engine", "ray").stdout
    for engine in ("local", "ray"):
        exported = picstore_command("export", "train", engine, "--format", "mds", "--engine", engine)
        assert said(exported) == []
    assert tree(tmp_path / "ray") == tree(tmp_path / "local")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="needs a second file system")  # noqa: S108
def test_a_merge_to_another_file_system_is_copied_by_the_cluster(
    nodes: Any, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ConvertOptions(encode=EncodeSettings(), shape=SHAPE, workers=1)
    for index in range(2):
        convert(open_source(source), tmp_path / str(index), options, shard=Shard(index, 2))
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        done = picstore_command("merge", Path(memory) / "both", "0", "1", "--engine", "ray")
        assert said(done) == []
        merge(tmp_path / "alone", [tmp_path / "0", tmp_path / "1"], workers=1)
        assert tree(Path(memory) / "both") == tree(tmp_path / "alone")


LISTENING = """
import os
from pathlib import Path
from picstore.prepare.engine.ray import connect

def descendants(pid):
    children = [int(each) for path in Path(f"/proc/{pid}/task").glob("*/children") for each in path.read_text().split()]
    return {pid}.union(*map(descendants, children))

if __name__ == "__main__":
    owned, addresses = set(), []
    with connect(1):  # which discards what is printed
        for pid in descendants(os.getpid()):
            for link in Path(f"/proc/{pid}/fd").iterdir():
                try:
                    owned.add(os.readlink(link))
                except OSError:
                    pass
        for table in ("tcp", "tcp6"):
            for line in Path("/proc/net", table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and f"socket:[{fields[9]}]" in owned:
                    addresses.append(fields[1].split(":")[0])
    print("listens on", *addresses)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs Linux")
def test_a_cluster_that_is_started_here_listens_on_loopback_alone(tmp_path: Path) -> None:
    require(importlib.util.find_spec("ray"), "ray")
    program = tmp_path / "listening.py"
    program.write_text(LISTENING)
    environment = {**os.environ, "RAY_ADDRESS": "local"}
    done = subprocess.run(
        [sys.executable, program], env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    addresses = done.stdout.split("listens on", 1)[1].split()
    assert len(addresses) >= 4  # of the program, the head and the node
    # 127.0.0.1, also as an IPv6 address.
    assert set(addresses) <= {"0100007F", "0000000000000000FFFF00000100007F"}
