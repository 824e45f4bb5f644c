"""Tables of verbs whose disk fails: injected errors at every write event, full file systems, limited files."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.harness import Row, Table, say
from benchmarks.options import Options
from benchmarks.torture.strike import Calm, Strikes, calm, join_rows, judge, run_in_child, strike
from benchmarks.torture.syscalls import MEETS, Trigger
from benchmarks.torture.verbs import VERBS, Stage, Verb

QUICK = ("delete", "export mds")  # verbs of the short form
SHARES: tuple[float, ...] = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0)  # of the room for what a verb adds
FILE_LIMITS = (1, 1000, 4096, 8192, 10_000, 12_288)  # bytes
_PAGE, _ROOMY = 4096, 4096  # bytes; pages of a tmpfs with room


def faults(options: Options) -> Table:
    """Let every write event of every verb fail in every way."""
    about = (
        "one fault at every write event of each verb: ENOSPC (half of a write, and all later writes fail too), EIO, "
        "EMFILE at opening, a write of half its bytes, and renames and links that report EIO after they took effect. "
        "Then the verb is run again and must end in the bytes of an undisturbed run and without any other file."
    )
    stage, rows = Stage(options.work / "faults"), []
    for verb in _verbs(options):
        quiet = calm(verb, stage)
        into = Strikes(verb.name, len(quiet.events))
        for trigger in _triggers(quiet.events, 5 if options.quick else 1):
            strike(verb, stage, quiet, trigger, into)
        rows.append(_row(into, "faults"))
    return Table(about, join_rows(rows, "faults"))


def full(options: Options) -> Table:
    """Run every verb on a tmpfs that fills, and with a limit on the size of files."""
    stage, rows = Stage(options.work / "full"), []
    shares, limits = (SHARES[::3], FILE_LIMITS[::3]) if options.quick else (SHARES, FILE_LIMITS)
    about = f"RLIMIT_FSIZE of {limits[0]:,} to {limits[-1]:,} bytes"
    if problem := _why_no_disk(stage):
        about += f"; no full tmpfs, as mounting one is not possible here ({problem})"
    else:
        about += (
            f"; a tmpfs with {shares[0]:.0%} to {shares[-1]:.0%} of the room for what the verb adds, then with room"
        )
    for verb in _verbs(options):
        quiet = calm(verb, stage)
        into = Strikes(verb.name, len(quiet.events))
        fill_disks(verb, stage, quiet, shares, into)
        for limit in limits:
            stage.begin(verb)
            done = run_in_child(verb, stage, Trigger(), file_limit=limit)
            judge(verb, stage, quiet, done, into, f"files of {limit} bytes")
        rows.append(_row(into, "full disks"))
    return Table(about, join_rows(rows, "full disks"))


def _verbs(options: Options) -> list[Verb]:
    return [VERBS[name] for name in QUICK] if options.quick else list(VERBS.values())


def _row(into: Strikes, word: str) -> Row:
    say(f"{into.verb}: {dict(into.states)} {into.wrong[:3]}")
    return into.row(word)


def _triggers(events: list[str], step: int) -> Iterator[Trigger]:
    """All faults that the events can meet, or every ``step``-th."""
    every = [
        Trigger(at, action, 0.5, lasting=action == "ENOSPC")
        for at, kind in enumerate(events)
        for action, kinds in MEETS.items()
        if kind in kinds
    ]
    yield from every[::step]


def fill_disks(verb: Verb, stage: Stage, quiet: Calm, shares: Sequence[float], into: Strikes) -> None:
    """Run a verb on file systems with shares of the room for what it adds, if one can be mounted."""
    if _why_no_disk(stage):
        return
    stage.begin(verb)
    run_in_child(verb, stage, Trigger())
    added = _pages(stage.work)
    stage.begin(verb)
    added -= _pages(stage.work)
    for share in shares:
        _fill(verb, stage, quiet, int(share * added), into)


def _why_no_disk(stage: Stage) -> str:
    """Why no file system can be mounted here; empty if one can."""
    if problem := _mount(stage.work, 1):
        return problem
    _unmount(stage.work)
    return ""


def _fill(verb: Verb, stage: Stage, quiet: Calm, room: int, into: Strikes) -> None:
    """Run a verb on a file system with room for a number of pages."""
    shutil.rmtree(stage.work)
    stage.work.mkdir()
    _mount(stage.work, _ROOMY)
    try:
        stage.fill(verb)
        status = os.statvfs(stage.work)
        _mount(stage.work, status.f_blocks - status.f_bfree + room, "remount,")
        done = run_in_child(verb, stage, Trigger())
        _mount(stage.work, _ROOMY, "remount,")
        judge(verb, stage, quiet, done, into, f"a disk with room for {room} pages")
    finally:
        _unmount(stage.work)


def _mount(folder: Path, pages: int, again: str = "") -> str:
    """Mount a tmpfs of a number of pages, or change its size; returns why that is impossible."""
    folder.mkdir(parents=True, exist_ok=True)
    size = f"{again}size={max(1, pages) * _PAGE}"  # 0 is no limit
    try:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", size, "tmpfs", folder], capture_output=True, text=True, check=False
        )
    except FileNotFoundError as error:
        return str(error)
    return "" if done.returncode == 0 else " ".join(done.stderr.split())


def _unmount(folder: Path) -> None:
    subprocess.run(["umount", folder], check=True)


@contextlib.contextmanager
def limit_files(size: int) -> Iterator[None]:
    """Let no file of this process become larger: writing fails as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def _pages(folder: Path) -> int:
    return sum(-(-path.stat().st_size // _PAGE) for path in folder.rglob("*") if path.is_file())
