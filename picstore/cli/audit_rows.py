"""Rows that ``picstore audit`` prints: samples of steps, records looked for, counts by record, or records not drawn."""

from __future__ import annotations

import csv as csv_files
import os
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from picstore.errors import UsageError
from picstore.results import AuditedDataset, AuditResult
from picstore.storage.location.resolve import checked_path
from picstore.train.audited import UNKNOWN, Audit

_MOST_ROWS = 1_000_000  # Largest number of rows, of about 1 kB each, to return in memory; a CSV file may have more.
_CHUNK = 1 << 14  # Number of rows for which the paths of records are read at a time.

Rows = Iterator[dict[str, Any]]


def answer(
    audited: Audit,
    *,
    steps: str | None,
    ids: Sequence[int],
    paths: Sequence[str],
    counts: bool,
    unseen: bool,
    csv: str | os.PathLike[str] | None,
) -> AuditResult:
    """Return the rows that the options of ``picstore audit`` request, or write the rows to the file ``csv``.

    Raise UsageError if options contradict each other, or if there are too many rows to return.
    """
    if counts + unseen + bool(ids or paths) > 1:
        raise UsageError("give one of --counts, --unseen, and ids or paths to look for")
    first, stop = _parse_steps(steps, audited.steps)
    drawn = audited.all_counts(first, stop)
    rows: Rows = iter(())
    if ids or paths:
        rows = _found(audited, ids, paths, first, stop)
    elif counts or unseen:
        rows = _counted(audited, drawn, only_unseen=unseen)
    elif steps is not None:
        rows = _samples(audited, first, stop)
    kept, number = [], 0
    with checked_path(csv).open("w", newline="", encoding="utf-8") if csv is not None else nullcontext() as file:
        writer = None
        for number, row in enumerate(rows, start=1):
            if file is None:
                kept.append(row)
                if number > _MOST_ROWS:
                    raise UsageError(f"the list has more than {_MOST_ROWS:,} rows; give --csv FILE, or fewer --steps")
                continue
            if writer is None:
                writer = csv_files.DictWriter(file, list(row))
                writer.writeheader()
            writer.writerow({name: " ".join(map(str, v)) if isinstance(v, list) else v for name, v in row.items()})
    return AuditResult(
        steps=audited.steps,
        epoch=audited.epoch,
        batch=audited.batch,
        world_size=audited.world_size,
        first=first,
        stop=stop,
        datasets=[
            AuditedDataset(
                dataset=str(dataset.path),
                uuid=dataset.uuid,
                records=len(dataset),
                samples=int(each.sum()),
                unseen=int((each == 0).sum()),
                least=int(each.min(initial=each.max(initial=0))),
                most=int(each.max(initial=0)),
            )
            for dataset, each in zip(audited.datasets, drawn, strict=True)
        ],
        remarks=list(audited.remarks),
        rows=kept,
        csv=None if csv is None else str(csv),
        count=number,
    )


def _parse_steps(text: str | None, last: int) -> tuple[int, int]:
    """Parse ``A:B``, ``A:``, ``:B`` or ``A``; return the first step, and the last step + 1.

    None stands for all steps. ``last`` is the number of steps before the checkpoint. Raise UsageError if the text has
    another form, or names step ``last`` or a later step.
    """
    begin, colon, end = (text if text is not None else ":").partition(":")
    numbers = [each.strip() for each in (begin, end)]
    if not all((each.isascii() and each.isdecimal()) or not each for each in numbers) or not (colon or begin):
        raise UsageError(f"steps {text!r}; give A:B, such as 100:200")
    first = int(numbers[0] or 0)
    stop = int(numbers[1] or last) if colon else first + 1
    if not first <= stop <= last:
        raise UsageError(f"steps {first} to {stop - 1}; the state is after {last} steps, give 0:{last} or less")
    return first, stop


def _samples(audited: Audit, first: int, stop: int) -> Rows:
    names = [str(dataset.path) for dataset in audited.datasets]
    for part in audited.parts(first, stop):
        for begin in range(0, len(part), _CHUNK):
            some = part[begin : begin + _CHUNK]
            paths = np.full(len(some), None, object)
            for source in np.unique(some["source"]).tolist():
                mine = some["source"] == source
                paths[mine] = audited.paths(some["position"][mine], source=source)
            columns = (some[name].tolist() for name in ("step", "epoch", "rank", "slot", "source", "id"))
            for step, epoch, rank, slot, source, id_, path in zip(*columns, paths, strict=True):
                record = {"dataset": names[source], "id": id_, "path": path or ""}
                yield {"step": step, "epoch": epoch, "rank": rank, "slot": slot, **record}


def _counted(audited: Audit, drawn: Sequence[Any], *, only_unseen: bool) -> Rows:
    for source, counts in enumerate(drawn):
        positions = np.flatnonzero(counts == 0) if only_unseen else np.arange(len(counts))
        for begin in range(0, len(positions), _CHUNK):
            some = positions[begin : begin + _CHUNK]
            columns = audited.ids(source)[some].tolist(), audited.paths(some, source=source), counts[some].tolist()
            for id_, path, times in zip(*columns, strict=True):
                row = {"dataset": str(audited.datasets[source].path), "id": id_, "path": path or ""}
                yield row if only_unseen else {**row, "times": times}


def _found(audited: Audit, ids: Sequence[int], paths: Sequence[str], first: int, stop: int) -> Rows:
    """Yield a row for each requested id or path and each dataset that has the record; one row if no dataset has it."""
    known: set[int | str] = set()
    for source, dataset in enumerate(audited.datasets):
        of_paths = audited.ids_of_paths(paths, source=source) if paths else {}
        asked = np.array(list(dict.fromkeys([*ids, *of_paths.values()])), np.int64)
        positions = audited.positions(asked, source=source)
        shown: dict[int, str | None] = {id_: path for path, id_ in of_paths.items()}
        held = positions >= 0
        shown |= zip(asked[held].tolist(), audited.paths(positions[held], source=source), strict=True)
        steps: dict[int, list[int]] = {}
        for sample in audited.find(asked, source=source, first=first, stop=stop):
            steps.setdefault(int(sample["id"]), []).append(int(sample["step"]))
        for id_, status in zip(asked.tolist(), audited.status(asked, source=source), strict=True):
            if status != UNKNOWN:
                mine = steps.get(id_, [])
                record = {"dataset": str(dataset.path), "id": id_, "path": shown.get(id_) or ""}
                yield {**record, "status": status, "times": len(mine), "steps": mine}
                known |= {id_, shown.get(id_) or ""}
    for each in [*ids, *paths]:
        if each not in known:
            id_, path = (None, each) if isinstance(each, str) else (each, "")
            yield {"dataset": "", "id": id_, "path": path, "status": UNKNOWN, "times": 0, "steps": []}
