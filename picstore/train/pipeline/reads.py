"""What a batch reads: the containers of its request, and records that are read alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby

import numpy as np

from picstore.errors import Damage
from picstore.storage.dataset import Dataset
from picstore.train.batching.gather import ReadResult
from picstore.train.batching.read_alone import read_alone
from picstore.train.batching.spec import PipelineSpec
from picstore.train.buffers import BufferPools
from picstore.train.cpu.needed_rows import needed_rows
from picstore.train.order.dealing import MAX_LANES
from picstore.train.order.epoch import ALONE, IN_CONTAINER, Samples
from picstore.train.order.requests import BatchRequest, SourceRequest, TrainingSource
from picstore.train.pipeline.prefetch import ContainerKey, ContainerUse
from picstore.train.pipeline.stats import StatsCounter


def container_uses(request: BatchRequest, sources: Sequence[TrainingSource]) -> dict[ContainerKey, ContainerUse]:
    """List the containers of a batch, and the records that it reads alone."""
    uses: dict[ContainerKey, ContainerUse] = {}
    for wanted in request:
        dataset = sources[wanted.source].dataset
        for number, lane in _container_lanes(wanted.samples):
            key = ContainerKey(wanted.source, wanted.epoch, number)
            use = uses.setdefault(key, ContainerUse(dataset.containers.held_bytes(number)))
            use.lanes.add(lane)
        for run in wanted.leaving:
            key = ContainerKey(wanted.source, wanted.epoch, run.container)
            use = uses.setdefault(key, ContainerUse(dataset.containers.held_bytes(run.container), needed=False))
            use.needed |= len(run.records) > 0
            use.lanes.add(run.lane)
            use.done.add(run.lane)
        uses |= _uses_alone(wanted, dataset, uses)
    return uses


def _container_lanes(samples: Samples) -> list[tuple[int, int]]:
    """Containers that lanes read, with the lane, each pair once, in the order of the samples."""
    inside = slice(None) if samples.held is None else samples.held == IN_CONTAINER
    container, lane = samples.container[inside], samples.lane[inside]
    _, firsts = np.unique(container * MAX_LANES + lane, return_index=True)
    firsts.sort()
    return list(zip(container[firsts].tolist(), lane[firsts].tolist(), strict=True))


def _uses_alone(
    wanted: SourceRequest, dataset: Dataset, uses: Mapping[ContainerKey, ContainerUse]
) -> dict[ContainerKey, ContainerUse]:
    """The records of a request that are read alone, as uses of parts of containers.

    A container is read for records that were not set aside only if the batch has no use for it otherwise; then all that
    the batch needs of it are read.
    """
    samples, alone = wanted.samples, {}
    if samples.held is None:
        return {}
    for number in np.unique(samples.container[samples.held == ALONE]).tolist():
        whole = uses.get(ContainerKey(wanted.source, wanted.epoch, number))
        if whole is None or not whole.needed:
            records = np.unique(samples.record[samples.container == number])
            share = len(records) / int(dataset.rows["records"][number])
            key = ContainerKey(wanted.source, wanted.epoch, number, tuple(records.tolist()))
            alone[key] = ContainerUse(int(dataset.containers.held_bytes(number) * share))
    return alone


def read_containers(
    spec: PipelineSpec, buffers: BufferPools, counter: StatsCounter, keys: Sequence[ContainerKey]
) -> list[ReadResult]:
    """Read containers as far as their epochs need them."""
    results: list[ReadResult] = []
    for (source, epoch, alone), group in groupby(keys, key=lambda key: (key.source, key.epoch, bool(key.records))):
        dataset, plan = spec.sources[source].dataset, spec.sources[source].plan
        rows_of = partial(needed_rows, spec.sources[source], epoch, spec.resources.max_pixels)
        with counter.timed("reading"):
            if alone:
                found = [
                    read_alone(dataset, key.number, key.records, rows_of, attachments=bool(plan.targets))
                    for key in group
                ]
            else:
                found = dataset.containers.read_in_part(
                    [key.number for key in group],
                    rows_of,
                    mask=dataset.live.mask,
                    attachments=bool(plan.targets),
                    allocate=buffers.containers.borrow,
                )
        for result in found:
            if isinstance(result, Damage):
                results.append(type(result)(result.what, str(dataset.path / result.file), result.offset))
            else:
                results.append(result)
    counter.add(bytes=sum(result.read_size for result in results if not isinstance(result, Damage)))
    return results
