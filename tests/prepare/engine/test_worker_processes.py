"""The engine: a process a task, and what happens when one dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

import engine_tasks
import pytest
from grids import slow_except

from benchmarks.clusters import wait_until
from picstore.errors import Corrupt, PicstoreError
from picstore.prepare.engine import worker_processes
from picstore.prepare.engine.fork_server import ForkServer


@pytest.mark.parametrize("workers", [1, 3, 20])
def test_every_task_runs_once_whatever_the_number_of_workers(workers: int) -> None:
    counts = []
    results = dict(
        worker_processes.LocalEngine(workers).run(engine_tasks.double, deque(range(10)), on_progress=counts.append)
    )
    assert results == {k: 2 * k for k in range(10)}
    assert sum(counts) == 10


def test_a_task_that_dies_takes_no_other_with_it_and_says_how() -> None:
    results = dict(worker_processes.LocalEngine(2).run(engine_tasks.die_on_three, deque(range(6))))
    died = results.pop(3)
    assert isinstance(died, worker_processes.Died)
    assert "SIGKILL" in str(died)
    assert results == {k: 2 * k for k in (0, 1, 2, 4, 5)}


def test_a_process_that_ended_a_task_gets_the_next_one() -> None:
    ids = dict(worker_processes.LocalEngine(2).run(engine_tasks.process_id, deque(range(10))))
    assert len(ids) == 10
    assert len(set(ids.values())) <= 2


def test_a_process_that_has_lived_long_gets_no_further_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_processes, "_MAX_LIFE_SECONDS", 0.0)
    ids = dict(worker_processes.LocalEngine(1).run(engine_tasks.process_id, deque(range(3))))
    assert len(set(ids.values())) == 3
    assert engine_tasks.forks_of_the_server() == []


@pytest.mark.slow
def test_a_process_that_dies_between_tasks_costs_the_next_one_and_no_other() -> None:
    results = []
    for task, outcome in worker_processes.LocalEngine(1).run(engine_tasks.die_afterwards, deque(range(4))):
        results.append((task, isinstance(outcome, worker_processes.Died)))
        assert wait_until(lambda: not engine_tasks.forks_of_the_server())
    assert results == [(0, False), (1, True), (2, False), (3, True)]


def test_run_each_tries_a_task_that_died_once_more(tmp_path: Path) -> None:
    assert list(worker_processes.run_each(engine_tasks.die_once, [tmp_path / "flag"], workers=1)) == [
        (tmp_path / "flag", "done")
    ]
    with pytest.raises(PicstoreError, match="died twice"):
        list(worker_processes.run_each(engine_tasks.die_on_three, [3], workers=1))


def test_an_error_in_a_task_is_raised_whole_and_no_process_is_left() -> None:
    with pytest.raises(Corrupt, match="somewhere at byte 7: task 1") as caught:
        list(worker_processes.LocalEngine(1).run(engine_tasks.raise_damage, deque([1])))
    assert (caught.value.file, caught.value.offset) == ("somewhere", 7)
    assert engine_tasks.forks_of_the_server() == []


def test_a_task_that_its_process_cannot_read_is_an_error() -> None:
    with pytest.raises(PicstoreError, match="cannot read its task: ModuleNotFoundError"):
        list(worker_processes.run_each(engine_tasks.process_id, [engine_tasks.Unreadable()], workers=1))


def test_leaving_the_iteration_ends_the_processes(tmp_path: Path) -> None:
    tasks = deque([tmp_path / "a", tmp_path / "b"])
    running = worker_processes.LocalEngine(2).run(engine_tasks.wait_and_touch, deque([*tasks]))
    running.close()  # before it began: nothing to end
    assert engine_tasks.forks_of_the_server() == []


@pytest.mark.slow
def test_tasks_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys; sys.path[:0] = sys.argv[1:2]\n"
        "from collections import deque\nfrom pathlib import Path\n"
        "import engine_tasks\nfrom picstore.prepare.engine import worker_processes\n"
        "if __name__ == '__main__':\n"
        "    list(worker_processes.LocalEngine(1).run(engine_tasks.wait_and_touch, deque([Path(sys.argv[2])])))\n"
    )
    script = tmp_path / "script.py"
    script.write_text(code)
    target = tmp_path / "target"
    parent = subprocess.Popen([sys.executable, script, Path(__file__).parents[2], target], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not target.with_suffix(".started").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert target.with_suffix(".started").exists()
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    time.sleep(3.5)
    assert not target.exists()


def test_the_fork_server_loads_no_scipy_and_does_not_keep_others_from_it() -> None:
    pytest.importorskip("scipy")
    assert dict(worker_processes.LocalEngine(1).run(engine_tasks.scipy_is_there, deque([0]))) == {0: (False, True)}


def test_tasks_run_in_the_directory_that_is_current_when_they_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (tmp_path, tmp_path.parent):
        monkeypatch.chdir(folder)
        assert dict(worker_processes.LocalEngine(1).run(engine_tasks.working_directory, deque([0]))) == {0: folder}


def test_a_fork_server_that_was_killed_is_an_error_and_then_another() -> None:
    server = worker_processes.start_fork_server()
    server._process.kill()
    with pytest.raises(PicstoreError, match="the process that forks workers has ended"):
        server.fork(id)
    server._process.wait()
    assert dict(worker_processes.LocalEngine(1).run(engine_tasks.double, deque([1]))) == {1: 2}


def test_a_script_without_a_main_guard_may_run_tasks(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys; sys.path.append(sys.argv[1])\n"
        "from collections import deque\n"
        "import engine_tasks\nfrom picstore.prepare.engine import worker_processes\n"
        "print(dict(worker_processes.LocalEngine(1).run(engine_tasks.double, deque([1, 2]))))\n"
    )
    done = subprocess.run(
        [sys.executable, script, Path(__file__).parents[2]], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "{1: 2, 2: 4}\n", "")


@pytest.mark.slow
@pytest.mark.parametrize("rounds", slow_except([375], [375, 750], mark=pytest.mark.nightly))
def test_every_end_of_many_short_processes_is_told(rounds: int) -> None:
    """A signal may come while the server is about to wait, or while it tells of another end: once in 2,000 ends.

    A server without kernels forks in a third of the time.
    """
    server = ForkServer()
    for _ in range(rounds):
        for process in [server.fork(id) for _ in range(4)]:
            process.close()
    assert server.alive
    server.close()
