"""Simulated Ray clusters, whose nodes are processes of this machine, and what kills parts of them."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_ATTEMPTS = 4  # Ray gives parts of a node 15 s to start, which is too little where a machine has other work
# Without processes of a head that nothing here needs: each takes 1.5 s of a core to start.
_HEAD = {"include_dashboard": False, "include_log_monitor": False, "no_monitor": True}
_ROOT = Path(__file__).resolve().parents[1]
_LEFT_OUT = Path(__file__).resolve().parent / "left_out"  # modules that cannot be imported from there


class SimulatedCluster:
    """A head for the trainer, and nodes for workers."""

    def __init__(self, *, nodes: int, cpus: int, head_cpus: int = 0, store: int = 200 << 20) -> None:
        from ray.cluster_utils import Cluster

        self._cluster = Cluster()
        self._given = {"num_cpus": cpus, "object_store_memory": store}
        self._start(num_cpus=head_cpus, object_store_memory=store, **_HEAD)
        self.nodes = [self.add_node() for _ in range(nodes)]

    @property
    def address(self) -> str:
        """What RAY_ADDRESS is."""
        address: str = self._cluster.address
        return address

    @property
    def session(self) -> Path:
        """The folder of the cluster's logs, sockets and objects that are spilled."""
        return Path(self._cluster.head_node.get_session_dir_path())

    def add_node(self) -> Any:
        """Start one more node."""
        return self._start(**self._given)

    def workers(self) -> list[int]:
        """Processes that are remote workers of a loader."""
        raylets = {process.process.pid for node in self._cluster.list_all_nodes() for process in _raylets(node)}
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError, IndexError):
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                if parent in raylets and b"RemoteWorker" in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
        return sorted(found)

    def kill_raylet(self, node: Any) -> None:
        """Kill the process that manages a node, which ends its workers and its objects."""
        for process in _raylets(node):
            os.kill(process.process.pid, signal.SIGKILL)
        self.lose(node)

    def lose(self, node: Any) -> None:
        """End all processes of a node at once."""
        self.nodes = [each for each in self.nodes if each is not node]
        self._cluster.remove_node(node, allow_graceful=False)

    def close(self) -> None:
        """End all processes."""
        self._cluster.shutdown()

    def _start(self, **options: Any) -> Any:
        for _ in range(_ATTEMPTS - 1):
            with contextlib.suppress(Exception):  # Ray raises nothing more specific
                return self._cluster.add_node(**options)
        return self._cluster.add_node(**options)


@contextlib.contextmanager
def _left_out() -> Iterator[None]:
    """Import in the block as the nodes' processes do."""
    sys.path.insert(0, str(_LEFT_OUT))
    try:
        yield
    finally:
        sys.path.remove(str(_LEFT_OUT))


def _raylets(node: Any) -> list[Any]:
    return [process for name, processes in node.all_processes.items() if name == "raylet" for process in processes]


@contextlib.contextmanager
def simulated_cluster(**options: Any) -> Iterator[SimulatedCluster]:
    """A cluster, to which this process and its children connect by RAY_ADDRESS."""
    environment = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "PYTHONPATH": os.pathsep.join([str(_LEFT_OUT), str(_ROOT), *filter(None, sys.path)]),  # of the nodes' processes
    }
    before = {name: os.environ.get(name) for name in (*environment, "RAY_ADDRESS")}
    os.environ.update(environment)
    cluster = None
    try:
        with _left_out():
            cluster = SimulatedCluster(**options)
        os.environ["RAY_ADDRESS"] = cluster.address
        yield cluster
    finally:
        if "ray" in sys.modules:
            sys.modules["ray"].shutdown()
        if cluster is not None:
            cluster.close()
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def wait_until(condition: Any, seconds: float = 60) -> bool:
    """Wait for a condition; returns whether it came to hold."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
