"""The cache of kernels: processes that compile at once, are killed at any write, or have no room; and flipped bits."""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import os
import random
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Row, Table, say
from benchmarks.options import Options
from benchmarks.torture.faults import FILE_LIMITS, limit_files
from benchmarks.torture.syscalls import MEETS, Layer, Trigger

_LIMIT_SECONDS = 120
_FLIPS = 20_000


@dataclass
class Compilations:
    """Counts of a table's row: processes, by whether they compiled a kernel, loaded it or were killed."""

    name: str
    rounds: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def row(self) -> Row:
        """The counts as a row of a table."""
        say(f"{self.name}: {dict(self.ended)} {self.wrong[:3]}")
        row: Row = {"": self.name, "rounds": self.rounds}
        row |= {name: self.ended[name] for name in ("compiled", "loaded", "killed", "refused")} | {
            "wrong": len(self.wrong)
        }
        return row | ({"problem": f"failed: {self.wrong[0][:300]}"} if self.wrong else {})


def compiling(options: Options) -> Table:
    """Let processes compile at once, be killed, and meet failing disks; a kernel's results must always be right."""
    about = (
        "forks of a process that has imported numba and compiles or loads one kernel in an empty cache: two and three "
        "at once, without the lock that lets only one compile; killed by SIGKILL before or in the middle of each write "
        "event; with each error at each; and with limits on the size of files. Each must compute what the kernel "
        "computes, the next process too, and the one after that must load it. Flips are of single bits of a file: it "
        "is never used."
    )
    from picstore.train.cpu import augmix_sum  # noqa: F401 - imported before the forks

    folder = options.work / "compiling"
    count = options.rounds or (1 if options.quick else 30)
    rows = [_at_once(folder, number, count) for number in ((2,) if options.quick else (2, 3))]
    kills, errors = [("kill", share) for share in (0.0, 0.5, 1.0)], [(action, 0.5) for action in MEETS]
    few = 1 if options.quick else None
    rows.append(_struck("SIGKILL at a write event", folder, kills[:few], options))
    rows.append(_struck("an error at a write event", folder, errors[:few], options))
    rows.append(_limited(folder, FILE_LIMITS[:: 3 if options.quick else 1]))
    rows.append(_flipped(folder, _FLIPS // 100 if options.quick else _FLIPS))
    return Table(about, rows)


def _add() -> str:
    """Add by a kernel; returns whether it was compiled or loaded, or what is wrong."""
    from picstore.train.cpu.augmix_sum import MIX_FIRST, add_weighted

    total = np.zeros(4, np.float32)
    add_weighted(np.full(4, 100, np.uint8), np.full(4, 100, np.uint8), total, 0.5, int(MIX_FIRST))
    if total.tolist() != [50.0] * 4:
        return f"computed {total.tolist()}"
    return "loaded" if sum(add_weighted.stats.cache_hits.values()) else "compiled"


def _start(cache: Path, prepare: Callable[[], Any] = contextlib.nullcontext) -> Callable[[], tuple[str, list[str]]]:
    """Start a process that adds; returns what waits for its outcome, and the lines that it printed."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        code, printed = 1, io.StringIO()
        try:
            os.setpgid(0, 0)
            signal.alarm(_LIMIT_SECONDS)
            from picstore.kernels import kernel_cache as kernels

            os.environ["NUMBA_CACHE_DIR"] = str(cache)
            kernels.cache_folders.cache_clear()
            outcome = "failed"
            with contextlib.redirect_stderr(printed):
                try:
                    with prepare():
                        outcome = _add()
                except Exception as error:
                    outcome = f"{type(error).__name__}: {error}"
            os.write(write, json.dumps([outcome, printed.getvalue().splitlines()]).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(write)

    def wait() -> tuple[str, list[str]]:
        with os.fdopen(read) as file:
            text = file.read()
        os.waitpid(child, 0)
        return tuple(json.loads(text)) if text else ("killed", [])

    return wait


def _next(cache: Path, into: Compilations, what: str) -> None:
    """Let another process add, and one after it that must load; nothing half-written may pass for a kernel."""
    outcome, lines = _start(cache)()
    again, more = _start(cache)()
    into.ended[outcome] += 1
    if outcome not in ("compiled", "loaded") or again != "loaded" or lines or more:
        into.wrong.append(f"{what}: then {outcome} {lines}, then {again} {more}")


def _at_once(folder: Path, number: int, count: int) -> Row:
    into = Compilations(f"{number} processes at once", count)
    for k in range(count):
        shutil.rmtree(folder, ignore_errors=True)
        for outcome, lines in [wait() for wait in [_start(folder) for _ in range(number)]]:
            into.ended[outcome] += 1
            if outcome not in ("compiled", "loaded") or lines:
                into.wrong.append(f"round {k}: {outcome} {lines}")
        names = [path.name for path in folder.rglob("*") if path.is_file()]
        if len(names) != 1 or not names[0].endswith(".kernel"):
            into.wrong.append(f"round {k}: left {names}")
        _next(folder, into, f"round {k}")
    return into.row()


def _struck(name: str, folder: Path, actions: list[tuple[str, float]], options: Options) -> Row:
    """Strike at each event, counted in an undisturbed run."""
    shutil.rmtree(folder, ignore_errors=True)
    graveyard = options.work / "graveyard"
    graveyard.mkdir(parents=True, exist_ok=True)
    counter = multiprocessing.get_context("fork").Value("q")
    _start(folder, Layer(folder, Trigger(), graveyard, counter).active)()
    into = Compilations(name)
    for at in range(0, counter.value, 3 if options.quick else 1):
        for action, share in actions:
            shutil.rmtree(folder, ignore_errors=True)
            layer = Layer(folder, Trigger(at, action, share, lasting=action == "ENOSPC"), graveyard)
            outcome, lines = _start(folder, layer.active)()
            into.rounds += 1
            into.ended[outcome] += 1
            what = f"{action} at {at} ({share})"
            if outcome not in ("compiled", "killed") or len(lines) > 1 or (outcome == "killed") != (action == "kill"):
                into.wrong.append(f"{what}: {outcome} {lines}")
            _next(folder, into, what)
    return into.row()


def _limited(folder: Path, limits: tuple[int, ...]) -> Row:
    into = Compilations("files of limited size", len(limits))
    for limit in limits:
        shutil.rmtree(folder, ignore_errors=True)
        outcome, lines = _start(folder, lambda limit=limit: limit_files(limit))()
        into.ended[outcome] += 1
        if outcome != "compiled" or len(lines) != 1:
            into.wrong.append(f"{limit} bytes: {outcome} {lines}")
        _next(folder, into, f"{limit} bytes")
    return into.row()


def _flipped(folder: Path, count: int) -> Row:
    """Flip bits of a kernel's file, without a process each: what is refused is never unpickled."""
    from picstore.kernels import kernel_cache as cache
    from picstore.kernels.jit import arguments_of
    from picstore.train.cpu.augmix_sum import add_weighted

    into = Compilations("flipped bits", count)
    (path,) = folder.rglob("*.kernel")
    _, key = cache.KernelCache(add_weighted.py_func).name_and_key(arguments_of(add_weighted), add_weighted.targetctx)
    data, rng = bytearray(path.read_bytes()), random.Random(0)
    cache.check_payload(bytes(data), key)
    for _ in range(count):
        bit = rng.randrange(8 * len(data))
        data[bit // 8] ^= 1 << bit % 8
        try:
            cache.check_payload(bytes(data), key)
            into.wrong.append(f"bit {bit} passes")
        except cache.Unusable:
            into.ended["refused"] += 1
        data[bit // 8] ^= 1 << bit % 8
    return into.row()
