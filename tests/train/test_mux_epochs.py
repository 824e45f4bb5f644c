"""Batches of a mux that span two epochs of a source, and so need a container for the crops of both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing, nullcontext
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from grids import examples
from hypothesis import example, given
from hypothesis import strategies as st

import picstore
from picstore.prepare.convert.row_division import DatasetShape
from picstore.storage import dataset_reader, partial_reader
from picstore.storage.format import segment_table
from picstore.train.batch import Batch
from picstore.train.batching.parameters import make_params
from picstore.train.batching.spec import OutputSpec
from picstore.train.buffers import BufferPool
from picstore.train.cpu.fill_for_gpu import SegmentFiller, StreamFiller
from picstore.train.cpu.fill_images import ImageFiller
from picstore.train.order.epoch_order import Samples
from picstore.train.order.requests import SourceRequest, TrainingSource
from picstore.train.single_batch import read_records
from picstore.train.transforms.transform_plan import plan_transforms

SIZES = 7, 10  # records of the sources
CROP = [picstore.RandomResizedCrop(24, scale=(0.01, 0.2))]
BATCHES = 4


class Mux(NamedTuple):
    """What decides the batches of a mux."""

    counts: tuple[int, int] = (2, 5)
    lanes: int = 3
    ranks: int = 3
    global_counts: bool = True
    seed: int = 0


def muxes() -> st.SearchStrategy[Mux]:
    counts = st.tuples(st.integers(2, 8), st.integers(1, 25))
    return st.builds(
        Mux, counts, st.sampled_from([1, 2, 3, 5, 32]), st.sampled_from([1, 1, 2, 3]), st.booleans(), st.integers(0, 99)
    )


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """Data sets whose images can be read in part: one of a single container, one of a container for each record."""
    paths = tuple(tmp_path_factory.mktemp("mux") / str(size) for size in SIZES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment_table, "MIN_BYTES", 0)
        for path, size, container in zip(paths, SIZES, (1 << 20, 1 << 14), strict=True):
            with picstore.Writer(path, shape=DatasetShape(streams=1, container_size=container)) as writer:
                for k in range(size):
                    noise = np.random.default_rng(k + size).integers(0, 256, (30, 12, 3), np.uint8)
                    writer.add(noise.repeat(8, axis=0).repeat(8, axis=1))
        yield paths  # type: ignore[misc]


def pictures(batch: Batch) -> Counter[tuple[int, int, bytes]]:
    rows = zip(batch.ids.tolist(), batch.labels.tolist(), batch.images, strict=True)
    return Counter((id_, label, image.numpy().tobytes()) for id_, label, image in rows)


def open_mux(roots: tuple[Path, Path], mux: Mux, rank: int = 0, whole: bool = False) -> picstore.DataMux:
    """A rank's mux, or one of the whole global batches."""
    times = mux.ranks if whole and not mux.global_counts else 1
    sources = [(picstore.Dataset(root), 100 * k, times * mux.counts[k]) for k, root in enumerate(roots)]
    place: dict[str, Any] = {"rank": 0, "world_size": 1} if whole else {"rank": rank, "world_size": mux.ranks}
    return picstore.DataMux(
        sources,
        transform=CROP,
        seed=mux.seed,
        lanes=mux.lanes,
        global_counts=mux.global_counts,
        isolate=False,
        threads=1,
        on_damage="raise",
        **place,
    )


@pytest.mark.parametrize("large", [False, True])
@example(mux=Mux())
@example(mux=Mux(counts=(8, 25), ranks=1))
@examples(10)
@given(mux=muxes())
def test_ranks_of_a_mux_have_the_images_of_whole_containers(roots: tuple[Path, Path], large: bool, mux: Mux) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dataset_reader, "MIN_MEAN", 1 << 40)
        with closing(open_mux(roots, mux, whole=True)) as reference:
            expected = [pictures(batch) for batch in islice(reference, BATCHES)]
        if large:
            patch.setattr(dataset_reader, "MIN_MEAN", 0)
            patch.setattr(partial_reader, "_NEAR", 0)
            patch.setattr(partial_reader, "_MAX_SHARE", 2.0)
        looped, alone = ([Counter[tuple[int, int, bytes]]() for _ in range(BATCHES)] for _ in range(2))
        for rank in range(mux.ranks):
            with closing(open_mux(roots, mux, rank)) as part:
                for number, batch in enumerate(islice(part, BATCHES)):
                    looped[number] += pictures(batch)
                    alone[number] += pictures(part.make_batch(0, number)[0])
    assert looped == expected and alone == expected


def test_a_crop_of_rows_that_were_not_read_is_refused(roots: tuple[Path, Path]) -> None:
    dataset = picstore.Dataset(roots[0])
    plan, _ = plan_transforms(CROP)
    sources = (TrainingSource(dataset, 0, plan=plan),)
    numbers = np.arange(len(dataset))
    request = [SourceRequest(0, 0, Samples(np.zeros_like(numbers), numbers, numbers, numbers), numbers)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dataset_reader, "MIN_MEAN", 0)
        patch.setattr(partial_reader, "_NEAR", 0)
        patch.setattr(partial_reader, "_MAX_SHARE", 2.0)
        records = read_records(request, sources)
    for epoch, fits in ((0, True), (1, False)):
        later = [replace(each, epoch=epoch) for each in request]
        params = make_params(later, records.ids, records.image_sizes, sources=sources, extras=records.extras)
        output = OutputSpec.from_plans([plan])
        for filler in (ImageFiller, StreamFiller, SegmentFiller):
            refusal = nullcontext() if fits else pytest.raises(picstore.PicstoreError, match=r"needs rows \d+ to")
            with refusal:
                filler(records, params, output, BufferPool(0))
