"""Finding inputs of equal bytes, so that an image is in a data set only once."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from pathlib import Path

from picstore.errors import ImageError, NotADataset
from picstore.prepare.engine import processes
from picstore.prepare.progress import ProgressCallback
from picstore.prepare.sources.inputs import Input, Listing, is_fetched, is_remote, read_input
from picstore.storage.location.resolve import locate, many

_END = 4096  # bytes
_CHUNK = 1000  # inputs of a task

Chunk = Sequence[tuple[int, Input]]
Key = tuple[int, bytes]


def mark_duplicates(listing: Listing, *, workers: int) -> Listing:
    """The listing with the duplicates among its inputs: equal bytes, whatever their names, labels and extras are.

    The first of equal inputs is kept. One that cannot be read is no duplicate.

    Two passes: sizes and the last 4 KiB, which are read for all, tell nearly all images apart; SHA-256 is taken of
    those whose ends are equal. Photographs of one camera begin alike, entropy-coded data does not end alike.
    """
    candidates = list(enumerate(listing.inputs))
    for function in (ends_of, digests_of):
        groups: dict[Hashable, list[int]] = {}
        for id_, key in sorted(_run(function, candidates, workers).items()):
            groups.setdefault(key, []).append(id_)
        equal = [group for group in groups.values() if len(group) > 1]
        candidates = [(id_, listing.inputs[id_]) for id_ in sorted(id_ for group in equal for id_ in group)]
    return replace(listing, duplicates={id_: first for first, *others in equal for id_ in others})


def _run(
    function: Callable[[Chunk, ProgressCallback], dict[int, Key]], candidates: Chunk, workers: int
) -> dict[int, Key]:
    """Keys by id; the inputs of a task that died have none."""
    tasks = deque(candidates[k : k + _CHUNK] for k in range(0, len(candidates), _CHUNK))
    keys: dict[int, Key] = {}
    for _, outcome in processes.run(function, tasks, workers=workers):
        if not isinstance(outcome, processes.Died):
            keys.update(outcome)
    return keys


def ends_of(chunk: Chunk, on_progress: ProgressCallback) -> dict[int, Key]:
    """Size and last bytes of some inputs by id; of what is no stretch of a file, which must be read, the digest."""
    return _keys(chunk, lambda one: _end(one) if one.reader is None else _digest(one), on_progress)


def digests_of(chunk: Chunk, on_progress: ProgressCallback) -> dict[int, Key]:
    """Size and SHA-256 of some inputs by id."""
    return _keys(chunk, _digest, on_progress)


def _keys(chunk: Chunk, key_of: Callable[[Input], Key], on_progress: ProgressCallback) -> dict[int, Key]:
    each = many if all(is_fetched(one) for _, one in chunk) else map
    found = each(lambda entry: _key_or_none(entry[1], key_of), chunk)
    keys = {id_: key for (id_, _), key in zip(chunk, found, strict=True) if key is not None}
    on_progress(len(chunk))
    return keys


def _key_or_none(one: Input, key_of: Callable[[Input], Key]) -> Key | None:
    try:
        return key_of(one)
    except (ImageError, NotADataset, OSError, ValueError):
        return None


def _end(one: Input) -> Key:
    size = one.size
    if size < 0:
        there = locate(one.path).size() if is_remote(one.path) else Path(one.path).stat().st_size
        size = max(0, there - one.offset)
    last = min(size, _END)
    return size, read_input(replace(one, offset=one.offset + size - last, size=last))


def _digest(one: Input) -> Key:
    data = read_input(one)
    return len(data), hashlib.sha256(data).digest()
