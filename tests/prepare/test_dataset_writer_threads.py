"""Writer.add from threads, after interrupts, and in forks: records are whole or absent, and ids distinct."""

from __future__ import annotations

import os
import random
import signal
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from samples import jpeg

import picstore
from picstore.errors import PicstoreError
from picstore.storage.format.container_writer import FileWriter

IMAGES = [jpeg(k) for k in range(8)]


class Interrupt(BaseException):
    """What a signal handler raises, as KeyboardInterrupt."""


def found(path: Path) -> dict[int, Any]:
    """The extra of each record by id; ids are distinct, and nothing is damaged."""
    records = list(picstore.Dataset(path))
    assert len({record.id for record in records}) == len(records)
    assert picstore.verify(path).ok
    return {record.id: record.extra["n"] for record in records}


def test_threads_may_add_at_a_time_and_each_id_leads_to_its_image(tmp_path: Path) -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with picstore.Writer(tmp_path / "set") as writer, ThreadPoolExecutor(4) as threads:
            ids = list(threads.map(lambda n: writer.add(IMAGES[n % 8], extra={"n": n}), range(100)))
    finally:
        sys.setswitchinterval(interval)
    assert found(tmp_path / "set") == dict(zip(ids, range(100), strict=True))


def test_an_interrupted_record_is_whole_or_absent(tmp_path: Path) -> None:
    def stop(*_: object) -> None:
        raise Interrupt

    rng, given, interrupts = random.Random(0), {}, 0
    with picstore.Writer(tmp_path / "warm") as writer:
        writer.add(IMAGES[0])
    before = signal.signal(signal.SIGALRM, stop)
    try:
        with picstore.Writer(tmp_path / "set") as writer:
            for n in range(1000):
                try:
                    signal.setitimer(signal.ITIMER_REAL, 1e-6 + 1e-3 * rng.random())
                    given[writer.add(IMAGES[n % 8], extra={"n": n})] = n
                    signal.setitimer(signal.ITIMER_REAL, 0)
                except Interrupt:  # noqa: PERF203 - each record is tried by itself
                    interrupts += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupts > 100
    records = found(tmp_path / "set")
    assert records.items() >= given.items()
    assert sorted(records) == list(range(len(records)))


def test_after_an_error_in_writing_nothing_is_added_or_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that goes on after a full disk got a data set without the records of a container."""

    def fail(*_: object, **__: object) -> None:
        raise OSError("no space left on device")

    with pytest.raises(PicstoreError, match="no space"), picstore.Writer(tmp_path / "set") as writer:
        writer.add(IMAGES[0])
        monkeypatch.setattr(FileWriter, "add", fail)
        with pytest.raises(OSError, match="no space"):
            writer.add(IMAGES[1])
        monkeypatch.undo()
        with pytest.raises(PicstoreError, match="error in writing"):
            writer.add(IMAGES[2])
    with pytest.raises(PicstoreError):
        picstore.Dataset(tmp_path / "set")


def test_a_closed_writer_and_a_fork_s_copy_take_nothing(tmp_path: Path) -> None:
    with picstore.Writer(tmp_path / "set") as writer:
        writer.add(IMAGES[0], extra={"n": 0})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
            pid = os.fork()
        if pid == 0:
            try:
                writer.add(IMAGES[1])
            except PicstoreError:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    with pytest.raises(PicstoreError, match="closed"):
        writer.add(IMAGES[1])
    assert found(tmp_path / "set") == {0: 0}


def test_an_attachment_that_the_caller_changes_later_stays_what_was_added(tmp_path: Path) -> None:
    blob = bytearray(b"first")
    with picstore.Writer(tmp_path / "set", attachments=["note"]) as writer:
        for text in (b"first", b"other"):
            blob[:] = text
            writer.add(IMAGES[0], attachments={"note": blob})
    notes = [bytes(record.attachments["note"]) for record in picstore.Dataset(tmp_path / "set")]
    assert sorted(notes) == [b"first", b"other"]
