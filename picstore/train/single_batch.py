"""One batch by itself: records read alone, images made in this thread, and the parameters that made the images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from picstore.errors import Damage
from picstore.storage.location.resolve import map_concurrently
from picstore.train.batching.columns_and_collate import look_up_columns
from picstore.train.batching.gather import BatchRecords, EpochContainer, ReadResult, gather_records
from picstore.train.batching.host_batch import HostBatch
from picstore.train.batching.parameters import TransformParams, make_params
from picstore.train.batching.spec import MAX_PIXELS, OutputSpec
from picstore.train.batching.views_reach import needed_rows, read_alone
from picstore.train.buffers import BufferPool
from picstore.train.cpu.fill_images import ImageFiller
from picstore.train.order.requests import BatchRequest, SourceRequest, TrainingSource


@dataclass(frozen=True, slots=True, eq=False)
class SingleBatch:
    """A batch, the random parameters of each group of views, and the reasons why images are missing, by index."""

    host: HostBatch
    params: tuple[TransformParams, ...]
    problems: dict[int, Damage]


def read_records(
    request: BatchRequest, sources: Sequence[TrainingSource], *, max_pixels: int = MAX_PIXELS, replace: bool = False
) -> BatchRecords:
    """Read a batch's records, but not the rest of their containers; of a large image, only the rows of tiles needed.

    Args:
        request: requests for records; no two may need the same container in the same epoch.
        replace: whether to read the whole container of a damaged record, to replace the record as a loader does.

    Raises:
        Damage, NotADataset: without ``replace``, a record's container cannot be read.
        Damage: a source has no sound record in the batch.
    """
    held: dict[EpochContainer, ReadResult] = {}
    for wanted in request:
        read = partial(_read_container, wanted, sources[wanted.source], max_pixels, replace)
        numbers = np.unique(wanted.samples.container).tolist()
        found = zip(numbers, map_concurrently(read, numbers), strict=True)
        held.update(((wanted.source, wanted.epoch, number), container) for number, container in found)
    return gather_records(request, held, sources=sources, max_pixels=max_pixels)


def _read_container(
    wanted: SourceRequest, source: TrainingSource, max_pixels: int, replace: bool, number: int
) -> ReadResult:
    dataset, samples = source.dataset, wanted.samples
    records, attachments = np.unique(samples.record[samples.container == number]), bool(source.plan.targets)
    rows_of = partial(needed_rows, source, wanted.epoch, max_pixels)
    if replace:
        return read_alone(dataset, number, records.tolist(), rows_of, attachments=attachments)
    marks = np.zeros(int(dataset.rows["records"][number]), dtype=np.bool_)
    marks[records] = True
    return dataset.containers.read_records(number, rows_of, wanted=marks, attachments=attachments)


def make_images(
    records: BatchRecords,
    request: BatchRequest,
    sources: Sequence[TrainingSource],
    *,
    output: OutputSpec,
    blocks: BufferPool,
) -> SingleBatch:
    """Make the images and targets of a batch from its records; return both, and why images are missing."""
    params = make_params(request, records.ids, records.image_sizes, sources=sources, extras=records.extras)
    filler = ImageFiller(records, params, output, blocks)
    problems = {**records.problems, **filler.fill(range(len(records)))}
    columns = look_up_columns(sources, records.source, records.ids)
    labels, ids, source = records.labels, records.ids, records.source
    host = HostBatch(filler.images, labels, ids, source, filler.targets, records.damage, None, columns, records.weight)
    return SingleBatch(host, params, dict(sorted(problems.items())))
