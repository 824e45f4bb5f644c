"""A process that has imported what tests import, and forks a child for each run of pytest: 3 s less for each.

``python -m benchmarks.torture.mutant_server`` runs in a copy of the tree. It reads one request a line, a JSON object of
:func:`_serve`'s arguments, and answers each with one.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import itertools
import json
import os
import resource
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

MODULES = (
    *("numba", "PIL.Image", "hypothesis.strategies", "simplejpeg", "torch.utils.data"),
    *("torchvision.transforms.v2", "numba.core.typing.npydecl", "numba.np.arrayobj", "skimage.metrics"),
)
_MEMORY = 16 << 30  # bytes of address space, of which torch takes 5 GiB: a mutation may ask for any size
_FILE = 1 << 30
_PATIENCE = 40.0  # seconds of CPU: kernels are compiled; a mutation may loop forever
_ALL = 900.0  # for the tests of a file


class Plugin:
    """Plugin of pytest that orders and times tests, and shows Hypothesis's first failure as it is.

    Attributes:
        seconds: CPU time of each passing test.
        failed: names of tests that fail.
    """

    def __init__(self, known: dict[str, float] | None) -> None:
        self.seconds: dict[str, float] = {}
        self.failed: list[str] = []
        self._known = known

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self) -> None:
        """Search no smaller example, keep none for the next run, and take any time."""
        from hypothesis import HealthCheck, Phase, settings

        phases, checks = [Phase.explicit, Phase.generate], list(HealthCheck)
        plain = settings(phases=phases, database=None, suppress_health_check=checks)
        settings.register_profile("mutations", plain)
        settings.load_profile("mutations")

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Run the known tests, file by file, the quickest of each first."""
        if self._known is None:
            return
        files = list(dict.fromkeys(item.path for item in items))
        kept = [item for item in items if item.nodeid in self._known]
        items[:] = sorted(kept, key=lambda item: (files.index(item.path), self._known[item.nodeid]))  # type: ignore[index]

    def pytest_collectreport(self, report: Any) -> None:
        """Note a file that cannot be imported."""
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_runtest_protocol(self, item: Any) -> None:
        """Take the time at which a test begins."""
        self._began = _cpu_seconds()

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Note the outcome of a test's set-up, call and end."""
        if report.failed:
            self.failed.append(report.nodeid)
        elif report.when == "teardown" and report.nodeid not in self.failed:
            self.seconds[report.nodeid] = _cpu_seconds() - self._began


def _cpu_seconds() -> float:
    each = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in each)


def _serve(
    *,
    number: int,
    path: str = "",
    source: str = "",
    tests: list[str] | None = None,
    groups: list[dict[str, float]] | None = None,
) -> dict[str, Any]:
    """Run tests in forks: all of some files, or of a mutation group by group until the first test fails.

    Args:
        number: of the mutation; no two have the same. 0 for none.
        path: the module that is changed.
        source: of this module.
        tests: files.
        groups: tests with their CPU time. A run gets four times as much, and ``_PATIENCE``.

    Returns:
        ``code``: pytest's exit code, or the negative number of a signal; ``failed`` and ``seconds`` of :class:`Plugin`;
        ``cpu``: seconds of all runs.
    """
    used = _cpu_seconds()
    with _changed(path, source, number), _kernels(number) as kernels:
        answer = Path(f"answer-{number}.json")
        for known in groups or [None]:
            files = tests or list(dict.fromkeys(name.partition("::")[0] for name in known or ()))
            limit = _ALL if known is None else 4 * sum(known.values()) + _PATIENCE
            child = os.fork()
            if child == 0:
                _run(files, known, limit, answer, kernels)
            code = _wait(child, 10 * limit)
            found = json.loads(answer.read_text()) if answer.exists() else {"failed": [], "seconds": {}}
            answer.unlink(missing_ok=True)
            if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
                break
    return {"code": code, **found, "cpu": round(_cpu_seconds() - used, 1)}


@contextlib.contextmanager
def _changed(path: str, source: str, number: int) -> Iterator[None]:
    """Change a file; each state has a time of its own, by which Python finds compiled files that are stale."""
    if not path:
        yield
        return
    file = Path(path)
    original, times = file.read_text(), file.stat()
    file.write_text(source)
    os.utime(file, (number, number))
    try:
        yield
    finally:
        file.write_text(original)
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


@contextlib.contextmanager
def _kernels(number: int) -> Iterator[Path]:
    """Give a mutation a cache of kernels that ends with it; runs without one leave theirs to later runs."""
    usual, own = Path("kernels").absolute(), Path(f"kernels-{number}").absolute()
    if not number:
        yield usual
        return
    shutil.copytree(usual, own, copy_function=os.link)
    try:
        yield own
    finally:
        shutil.rmtree(own, ignore_errors=True)


def _run(tests: list[str], known: dict[str, float] | None, cpu_limit: float, answer: Path, kernels: Path) -> None:
    """Become a run of pytest."""
    os.setsid()
    os.environ["NUMBA_CACHE_DIR"] = str(kernels)
    resource.setrlimit(resource.RLIMIT_CPU, (int(cpu_limit), int(cpu_limit) + 5))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE, _FILE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with Path("output").open("w") as output:  # of the last run
        for descriptor in (1, 2):
            os.dup2(output.fileno(), descriptor)
    plugin = Plugin(known)
    first = ["-x"] if known is not None else []
    base = Path(f"pytest-{os.getpid()}")
    options = [
        "-q",
        "-W",
        "ignore::pytest.PytestAssertRewriteWarning",
        "-m",
        "not slow",
        "-p",
        "no:cacheprovider",
        "--hypothesis-seed=0",
    ]
    code = 70
    try:
        code = int(pytest.main([*options, *first, f"--basetemp={base}", *tests], plugins=[plugin]))
        answer.write_text(json.dumps({"failed": plugin.failed, "seconds": plugin.seconds}))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        shutil.rmtree(base, ignore_errors=True)
        os._exit(code)


def _wait(child: int, limit: float) -> int:
    """Wait for a child's end, or end it; whatever it has started in its session ends too."""
    end = time.monotonic() + limit
    for _ in itertools.count():
        ended, status = os.waitpid(child, os.WNOHANG)
        if not ended and time.monotonic() > end:
            os.killpg(child, signal.SIGKILL)
            status = os.waitpid(child, 0)[1]
            ended = child
        if ended:
            break
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(status)


def main() -> None:
    """Serve until the input ends."""
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    os.environ.setdefault("TRITON_INTERPRET", "1")  # as tests/conftest.py does, before torch is imported
    for name in MODULES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    assert threading.active_count() == 1, threading.enumerate()  # noqa: S101 - forks have no other thread
    Path("kernels").mkdir(exist_ok=True)
    sys.path.insert(0, str(Path.cwd()))
    gc.collect()
    gc.freeze()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        answers.write(json.dumps(_serve(**json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
