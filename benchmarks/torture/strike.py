"""One strike: a verb in a child process that is killed, or whose disk fails, and what it leaves."""

from __future__ import annotations

import contextlib
import fcntl
import json
import multiprocessing
import os
import resource
import select
import signal
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.harness import Row
from benchmarks.torture.objects import ObjectStage
from benchmarks.torture.syscalls import Layer, Trigger
from benchmarks.torture.verbs import INLINE, Stage, Verb, look, state
from picstore.errors import PicstoreError
from picstore.prepare.engine import worker_processes

STATES = ("absent", "as before", "resumable", "complete")
_LIMIT_SECONDS = 120


@dataclass(frozen=True)
class Calm:
    """A verb that nothing disturbs: what a reader sees before and after it, its files, its events."""

    before: Any
    after: Any
    files: dict[str, str]
    events: list[str]


@dataclass
class Strikes:
    """Counts of strikes at one verb: by what they left, half-written files left by errors, and what went wrong."""

    verb: str
    events: int = 0
    states: Counter[str] = field(default_factory=Counter)
    partial: int = 0
    wrong: list[str] = field(default_factory=list)

    def row(self, word: str) -> Row:
        """The counts as a row of a table; ``word`` is what the strikes are called."""
        row: Row = {"verb": self.verb, "write events": self.events, word: sum(self.states.values()) + len(self.wrong)}
        row |= {name: self.states[name] for name in STATES}
        if word != "kills" and word != "power cuts":
            row["left a half-written file"] = self.partial
        row["wrong"] = len(self.wrong)
        return row | ({"problem": f"failed: {self.wrong[0][:300]}"} if self.wrong else {})


def calm(verb: Verb, stage: Stage) -> Calm:
    """Run a verb undisturbed."""
    stage.begin(verb)
    before = None
    if verb.edits and verb.name != "repair":
        before = look(verb, stage)
    done = run_in_child(verb, stage, Trigger())
    if "error" in done:
        raise RuntimeError(f"{verb.name} fails undisturbed: {done['error']}")
    return Calm(before, look(verb, stage), stage.files(), done["events"])


def strike(verb: Verb, stage: Stage, quiet: Calm, trigger: Trigger, into: Strikes, **options: Any) -> None:
    """Strike once, and count what is left, also after the verb is run again."""
    stage.begin(verb)
    done = run_in_child(verb, stage, trigger, **options)
    judge(verb, stage, quiet, done, into, f"{trigger.action} at {trigger.at} ({trigger.share:.2f})")


def judge(verb: Verb, stage: Stage, quiet: Calm, done: dict[str, Any], into: Strikes, what: str) -> None:
    """Count what a strike left, and what the verb makes of it when it is run again."""
    left = state(verb, stage, quiet.before, quiet.after)
    into.partial += "error" in done and any(name.endswith(".partial") for name in stage.files())
    problem = done.get("crash", "")
    if left.startswith("wrong"):
        problem = left
    elif done.get("success") and left != "complete" and verb.name != "cache":  # which is never synced
        problem = f"reported success, and is {left}"
    if not problem:
        try:
            verb.again(stage, quiet.files)
            # Entries of a cache come as they are read, and files of killed readers stay for an hour.
            if (files := stage.files()) != quiet.files and verb.name != "cache":
                differ = sorted(name for name in files.keys() | quiet.files if files.get(name) != quiet.files.get(name))
                problem = f"{left}, and run again it differs in {', '.join(differ[:4])}"
        except Exception as error:
            problem = f"{left}, and run again: {type(error).__name__}: {error}"
    if problem:
        into.wrong.append(f"{what}: {problem}")
    else:
        into.states[left] += 1


def run_in_child(
    verb: Verb, stage: Stage, trigger: Trigger, *, workers: int = 0, file_limit: int = 0
) -> dict[str, Any]:
    """Run a verb in a child that leads a process group; returns what it reported, nothing if it was killed.

    Args:
        workers: processes of the engine, forks of the child; 0 runs tasks in the child.
        file_limit: greatest size of a file in bytes; 0 is no limit.
    """
    report, graveyard = stage.folder / "report.json", stage.folder / "graveyard"
    report.unlink(missing_ok=True)
    graveyard.mkdir(exist_ok=True)
    counter = multiprocessing.get_context("fork").Value("q") if workers else None
    ended, alive = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            fcntl.fcntl(alive, fcntl.F_DUPFD, 1000)  # closed after all locked files when a process ends
            os.close(alive)
            os.setpgid(0, 0)
            if file_limit:
                resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))
            tempfile.tempdir = str(stage.folder)  # which is removed at the end
            layer = Layer(stage.work, trigger, graveyard, counter, requests=isinstance(stage, ObjectStage))
            done = _run(verb, stage, layer, workers)
            if trigger.action == "power":  # after the end
                layer.cut_power(trigger.share)
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            report.write_text(json.dumps({**done, "events": layer.events}))
        finally:
            os._exit(0)
    os.close(alive)
    _wait(child, ended)
    for path in graveyard.iterdir():
        path.unlink()
    return dict(json.loads(report.read_text())) if report.exists() else {}


class _Forks:
    """In place of the fork server: forks of this process, whose system calls are struck too."""

    def __init__(self, *modules: str) -> None:
        pass

    def fork(self, function: Any) -> _Fork:
        return _Fork(function)


class _Fork:
    """A process in place of ``engine.fork_server.Forked``."""

    def __init__(self, function: Any) -> None:
        context = multiprocessing.get_context("fork")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=function, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    def wait(self) -> int:
        self._process.join()
        return self._process.exitcode or 0

    def close(self) -> None:
        self._process.kill()
        self._process.join()
        self.connection.close()


def _run(verb: Verb, stage: Stage, layer: Layer, workers: int) -> dict[str, Any]:
    """Run a verb under a layer, and say how it ended."""
    engine: worker_processes.Engine = INLINE
    if workers:
        worker_processes.start_fork_server = _Forks  # type: ignore[assignment]
        engine = worker_processes.LocalEngine(workers)
    try:
        with layer.active():
            verb.run(stage, engine, False)
    except (PicstoreError, OSError) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    except BaseException:
        return {"crash": traceback.format_exc()[-600:]}
    return {"success": True}


def _wait(child: int, ended: int) -> None:
    """Wait until a child and all processes that it has forked are gone."""
    late = not select.select([ended], [], [], _LIMIT_SECONDS)[0]
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.read(ended, 1)
    os.close(ended)
    os.waitpid(child, 0)
    if late:
        raise RuntimeError("a struck verb did not end")


def join_rows(rows: Iterable[Row], word: str) -> list[Row]:
    """Rows with a last one of sums."""
    listed = list(rows)
    sums: Row = {"verb": "all"}
    for name in (word, *STATES, "left a half-written file", "wrong"):
        if any(name in row for row in listed):
            sums[name] = sum(row.get(name, 0) for row in listed)
    return [*listed, sums]
