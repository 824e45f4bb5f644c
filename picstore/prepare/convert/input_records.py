"""Groups of a row's inputs: several are read, and made training JPEGs together where no loss is needed.

Together, two scans are read at a time, and Python's code stays in the CPU's caches from one image to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from picstore.errors import ImageError
from picstore.prepare.image.encode_settings import EncodeSettings
from picstore.prepare.image.training_jpeg import TrainingJpeg, make_lossless
from picstore.prepare.sources.inputs import Input

_MAX_INPUTS = 16
_MAX_BYTES = 4 << 20  # of a group, before its last input
_MAX_SIZE = 1 << 20  # of an input that is made together with others, which takes 3 ms and needs no time limit


@dataclass(frozen=True, slots=True)
class GroupedInput:
    """An input with its id, and what was made of it in its group.

    Attributes:
        data: its bytes, or the error of reading them; None if it is to be read yet.
        made: its training JPEG; or the reason why it cannot be made without loss; None if nobody tried.
    """

    id: int
    source: Input
    data: bytes | ImageError | None = None
    made: TrainingJpeg | str | None = None


def group_inputs(
    numbered: Iterable[tuple[int, Input]],
    read: Callable[[int, Input], bytes],
    settings: EncodeSettings,
    skipped: Callable[[int], bool],
) -> Iterator[GroupedInput]:
    """Read inputs in groups and try to make training JPEGs of them without loss; yield all in order.

    Args:
        numbered: ids and inputs.
        read: reads the bytes of an input, given also with its id.
        skipped: whether the input of an id is not to be read.
    """
    group: list[tuple[int, Input, bytes | ImageError | None]] = []
    size = 0
    for id_, source in numbered:
        data = None if skipped(id_) else _read(read, id_, source)
        group.append((id_, source, data))
        size += len(data) if isinstance(data, bytes) else 0
        if len(group) == _MAX_INPUTS or size > _MAX_BYTES:
            yield from _make_group(group, settings)
            group, size = [], 0
    yield from _make_group(group, settings)


def _read(read: Callable[[int, Input], bytes], id_: int, source: Input) -> bytes | ImageError:
    try:
        return read(id_, source)
    except ImageError as error:
        return error


def _make_group(
    group: Iterable[tuple[int, Input, bytes | ImageError | None]], settings: EncodeSettings
) -> Iterator[GroupedInput]:
    small = {id_: data for id_, _, data in group if isinstance(data, bytes) and len(data) <= _MAX_SIZE}
    made = dict(zip(small, make_lossless(list(small.values()), settings=settings), strict=True))
    for id_, source, data in group:
        yield GroupedInput(id_, source, data, made.pop(id_, None))
