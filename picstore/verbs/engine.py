"""The engine that the arguments ``engine`` and ``workers`` of a verb name."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from picstore.cores import count_cores
from picstore.errors import UsageError
from picstore.prepare.engine.worker_processes import Engine, LocalEngine

ENGINES = ("local", "ray")


def open_engine(engine: str, workers: int | None) -> AbstractContextManager[Engine]:
    """Make an engine of this machine's processes (``local``), or of the Ray cluster of RAY_ADDRESS (``ray``).

    Args:
        workers: processes or tasks at a time; None for the number of cores.

    Raises:
        UsageError: there is no such engine, or ``workers`` is no positive number.
        MissingDependency, PicstoreError: Ray is not installed, or the cluster cannot be reached.
    """
    if engine not in ENGINES:
        raise UsageError(f"engine {engine!r} is unknown; known are {', '.join(ENGINES)}")
    if engine == "ray":
        from picstore.prepare.engine.ray import connect

        return connect(workers if workers is None else count_workers(workers))
    return nullcontext(LocalEngine(count_workers(workers)))


def count_workers(workers: int | None) -> int:
    """Return a number of workers, by default the number of cores; UsageError unless it is positive."""
    if workers is None:
        return count_cores()
    if workers < 1:
        raise UsageError(f"workers={workers}; give at least 1, or None for the number of cores")
    return workers
