"""Search for duplicates among inputs: of inputs with equal bytes, a dataset holds only the first."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from pathlib import Path

from picstore.display.progress import ProgressCallback
from picstore.errors import ImageError, NotADataset
from picstore.prepare.engine import worker_processes
from picstore.prepare.sources.inputs import Input, Listing, is_fetchable, is_remote, read_input
from picstore.storage.location.resolve import locate, map_concurrently

_END_BYTES = 4096
_INPUTS_PER_TASK = 1000

NumberedInputs = Sequence[tuple[int, Input]]
# Number of bytes of an input, and the input's last bytes or the SHA-256 of all its bytes.
Fingerprint = tuple[int, bytes]


def mark_duplicates(listing: Listing, *, workers: int) -> Listing:
    """Return the listing with ``duplicates``, which maps a duplicate's index to the index of the first equal input.

    The first pass compares the size and the last 4 KiB of all inputs, because photographs of one camera begin alike,
    but entropy-coded data does not end alike. The second pass compares the SHA-256 of inputs that the first pass found
    equal. Unreadable inputs are not duplicates.
    """
    candidates = list(enumerate(listing.inputs))
    for function in (end_fingerprints, sha256_fingerprints):
        groups: dict[Hashable, list[int]] = {}
        for id_, fingerprint in sorted(_run(function, candidates, workers).items()):
            groups.setdefault(fingerprint, []).append(id_)
        equal = [group for group in groups.values() if len(group) > 1]
        candidates = [(id_, listing.inputs[id_]) for id_ in sorted(id_ for group in equal for id_ in group)]
    return replace(listing, duplicates={id_: first for first, *others in equal for id_ in others})


def _run(
    function: Callable[[NumberedInputs, ProgressCallback], dict[int, Fingerprint]],
    candidates: NumberedInputs,
    workers: int,
) -> dict[int, Fingerprint]:
    """Compute fingerprints by ``function`` in worker processes; return by input id all but those lost to crashes."""
    tasks = deque(candidates[k : k + _INPUTS_PER_TASK] for k in range(0, len(candidates), _INPUTS_PER_TASK))
    found: dict[int, Fingerprint] = {}
    for _, outcome in worker_processes.LocalEngine(workers).run(function, tasks):
        if not isinstance(outcome, worker_processes.Died):
            found.update(outcome)
    return found


def end_fingerprints(inputs: NumberedInputs, on_progress: ProgressCallback) -> dict[int, Fingerprint]:
    """Return each input's (size, last 4 KiB), or (size, SHA-256) for an input with a reader, by input id."""
    return _fingerprints(inputs, lambda one: _end(one) if one.reader is None else _sha256(one), on_progress)


def sha256_fingerprints(inputs: NumberedInputs, on_progress: ProgressCallback) -> dict[int, Fingerprint]:
    """Return each input's fingerprint (size, SHA-256) by input id."""
    return _fingerprints(inputs, _sha256, on_progress)


def _fingerprints(
    inputs: NumberedInputs, fingerprint: Callable[[Input], Fingerprint], on_progress: ProgressCallback
) -> dict[int, Fingerprint]:
    each = map_concurrently if all(is_fetchable(one) for _, one in inputs) else map
    found = each(lambda entry: _fingerprint_or_none(entry[1], fingerprint), inputs)
    by_id = {id_: value for (id_, _), value in zip(inputs, found, strict=True) if value is not None}
    on_progress(len(inputs))
    return by_id


def _fingerprint_or_none(one: Input, fingerprint: Callable[[Input], Fingerprint]) -> Fingerprint | None:
    try:
        return fingerprint(one)
    except (ImageError, NotADataset, OSError, ValueError):
        return None


def _end(one: Input) -> Fingerprint:
    size = one.size
    if size < 0:
        available = locate(one.path).size() if is_remote(one.path) else Path(one.path).stat().st_size
        size = max(0, available - one.offset)
    last = min(size, _END_BYTES)
    return size, read_input(replace(one, offset=one.offset + size - last, size=last))


def _sha256(one: Input) -> Fingerprint:
    data = read_input(one)
    return len(data), hashlib.sha256(data).digest()
