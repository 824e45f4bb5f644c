"""Table of flipped bits: every bit of small data sets of every kind, and whether any reader is deceived."""

from __future__ import annotations

import contextlib
import os
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import picstore
from benchmarks.harness import Row, Table, say
from benchmarks.options import Options
from benchmarks.torture.places import Place, attached, edited, places, plain
from benchmarks.torture.verbs import INLINE, content, record_content
from picstore.errors import PicstoreError
from picstore.prepare.convert import conversion_job as convert_module
from picstore.prepare.convert import ledger
from picstore.prepare.upkeep.verify_dataset import FileCheck, _files, check_file, verify
from picstore.storage.dataset_reader import ContainerReader
from picstore.storage.location.resolve import file_name, locate

_LOADER_STEP, _QUICK_STEP = 251, 1009  # bits; primes, so that all bits of a byte take part
_SAME, _ERROR, _SILENT = "same", "error", "silent"


def flips(options: Options) -> Table:
    """Flip every bit of every kind of data set, one at a time, and read all of it in every way."""
    convert_module.start_fork_server = lambda *_: None  # tasks run in this process
    folder = options.work / "flips"
    roots = [plain(folder), attached(folder), edited(folder)]
    mux = folder / "mux.txt"
    mux.write_text("".join(f"{root} 0 2\n" for root in roots[:2]))
    targets = {"attached": ["extra", "mask"], "edited": ["extra", "vector", "caption"]}
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    silent: list[str] = []
    number = 0
    for root in roots:
        readers = {"DataMux": _mux(mux)} if root == roots[0] else {"Loader": _loader(root, targets[root.name])}
        check = _Check(root, readers)
        for place in places(root):
            for bit in range(8 * place.begin, 8 * place.end):
                number += 1
                if options.quick and number % _QUICK_STEP:
                    continue
                outcomes = check.flip(place, bit, sampled=not options.quick and number % _LOADER_STEP == 0)
                counts[place.name] += _count(outcomes)
                if _SILENT in outcomes.values():
                    silent.append(f"bit {bit} of {place.file.relative_to(folder)}: {outcomes}")
            say(f"{root.name} {place.file.name} {place.name}: {dict(counts[place.name])} {silent[:3]}")
    return Table(_ABOUT, _rows(counts, silent))


_ABOUT = (
    "every bit of a plain data set, one with attachments and extras, and one with deletions, columns and an append; "
    "after each flip all of it is read by iteration, by [i] and by verify, after a sample also by Loader and DataMux; "
    "silent is whatever is read otherwise than before, without an error"
)


def _rows(counts: dict[str, Counter[str]], silent: list[str]) -> list[Row]:
    columns = ("bits", "reading fails", "verify alone reports", "harmless", "read by Loader or DataMux too", "silent")
    rows = [{"place": name, **{column: count[column] for column in columns}} for name, count in counts.items()]
    rows.append({"place": "all", **{column: sum(int(row[column]) for row in rows) for column in columns}})
    if silent:
        rows[-1]["problem"] = f"failed: {silent[0][:300]}"
    return rows


def _count(outcomes: dict[str, str]) -> Counter[str]:
    """One flip, by the worst that it did."""
    others = [outcome for name, outcome in outcomes.items() if name != "verify"]
    if _SILENT in outcomes.values():
        kind = "silent"
    elif _ERROR in others:
        kind = "reading fails"
    else:
        kind = "harmless" if outcomes.get("verify", _SAME) == _SAME else "verify alone reports"
    sampled = bool(outcomes.keys() & {"Loader", "DataMux"})
    return Counter({"bits": 1, kind: 1, "read by Loader or DataMux too": int(sampled)})


class _Check:
    """Readers of a data set, with what they read before anything was flipped.

    Bits of a file of images are read through an open data set, which takes a third of the time and reads no less.
    """

    def __init__(self, root: Path, sampled: dict[str, Callable[[], Any]]) -> None:
        self._sampled = sampled
        self._of_edits: dict[str, Callable[[], Any]] = {
            "iteration": lambda: content(root),
            "[i]": lambda: _by_index(picstore.Dataset(root)),
            "verify": lambda: _verified(root),
        }
        for path in (root / "edits").glob("*.json"):
            self._of_edits[f"version {path.stem}"] = lambda version=path.stem: content(root, version=version)
        self._of_ledger = {"ledger": lambda: list(ledger.read_lines(locate(root / "ledger.jsonl")))}
        opened, first = picstore.Dataset(root), _first_version(root)  # which has all records of the first file
        tasks = [
            (entry, FileCheck(locate(root), entry, rows, deleted, opened.manifest.attachments, None))
            for entry, rows, deleted in _files(opened.manifest, opened.rows, opened.live)
        ]
        self._of_images: dict[Path, dict[str, Callable[[], Any]]] = {
            root / file_name(entry.stream, entry.file): {
                "iteration": lambda: list(map(record_content, opened)),
                "first version": lambda: list(map(record_content, first)),
                "[i]": lambda: _by_index(_reopened(opened)),
                "verify": lambda task=task: check_file(task, lambda _: None).findings,
            }
            for entry, task in tasks
        }
        self._whole: dict[tuple[Path, str], Any] = {}

    def flip(self, place: Place, bit: int, *, sampled: bool) -> dict[str, str]:
        """Flip a bit, read in every way, and flip it back; returns each reader's outcome."""
        readers = self._of_ledger if place.name == "ledger" else self._of_images.get(place.file, self._of_edits)
        if sampled and place.name != "ledger":
            readers = readers | self._sampled
        for name in readers:
            if (place.file, name) not in self._whole:
                self._whole[place.file, name] = readers[name]()
        descriptor = os.open(place.file, os.O_RDWR)
        try:
            byte = os.pread(descriptor, 1, bit >> 3)
            os.pwrite(descriptor, bytes([byte[0] ^ 1 << (bit & 7)]), bit >> 3)
            try:
                return {name: _outcome(name, read, self._whole[place.file, name]) for name, read in readers.items()}
            finally:
                os.pwrite(descriptor, byte, bit >> 3)
        finally:
            os.close(descriptor)


def _verified(root: Path) -> Any:
    done = verify(root, workers=INLINE)  # type: ignore[arg-type]
    return done.findings, done.remarks


def _outcome(name: str, read: Callable[[], Any], whole: Any) -> str:
    try:
        seen = read()
    except PicstoreError:
        return _ERROR
    if seen == whole:
        return _SAME
    if name == "verify":
        return _ERROR
    if name == "[i]" and len(seen) == len(whole) and all(a in (None, b) for a, b in zip(seen, whole, strict=True)):
        return _ERROR
    return _SILENT


def _first_version(root: Path) -> picstore.Dataset:
    """The version with the fewest files and no deletions."""
    versions = [picstore.Dataset(root, version=path.stem) for path in (root / "edits").glob("*.json")]
    return min([picstore.Dataset(root), *versions], key=lambda version: (len(version.live.deleted), len(version.rows)))


def _reopened(dataset: picstore.Dataset) -> picstore.Dataset:
    """The data set without what it keeps of containers that it has read."""
    reader = ContainerReader(dataset.path, dataset.rows, dataset.manifest.attachments)
    dataset._containers = reader
    return dataset


def _by_index(dataset: picstore.Dataset) -> list[Any]:
    """Records by position; None for one that cannot be read."""
    found: list[Any] = [dataset.uuid, dataset.classes]
    for k in range(len(dataset)):
        found.append(None)
        with contextlib.suppress(PicstoreError):
            found[-1] = record_content(dataset[k])
    return found


def _loader(root: Path, targets: list[str]) -> Callable[[], Any]:
    def read() -> Any:
        options: dict[str, Any] = {"isolate": False, "threads": 1, "on_damage": "raise", "targets": targets}
        with contextlib.closing(
            picstore.Loader(root, batch_size=2, shuffle=False, drop_last=False, **options)
        ) as loader:
            return [_batch(batch) for batch in loader]

    return read


def _mux(config: Path) -> Callable[[], Any]:
    def read() -> Any:
        options: dict[str, Any] = {"isolate": False, "threads": 1, "on_damage": "raise", "targets": ["extra"]}
        with contextlib.closing(picstore.DataMux(config, epoch_batches=2, lanes=2, **options)) as mux:
            return [_batch(batch) for batch in mux]

    return read


def _batch(batch: Any) -> list[Any]:
    images = [np.asarray(image).tobytes() for image in batch.images]
    columns = {name: np.asarray(values).tolist() for name, values in batch.columns.items()}
    targets = [{name: np.asarray(value).tolist() for name, value in target.items()} for target in batch.targets or ()]
    return [batch.ids.tolist(), batch.labels.tolist(), images, repr(columns), repr(targets)]  # NaN is not NaN
