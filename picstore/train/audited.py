"""Audit of a training: which records its steps drew, from a loader's state and the arithmetic of the order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from picstore.arrays import I64, Bools, Table
from picstore.errors import UsageError
from picstore.storage.dataset import Dataset
from picstore.storage.edits.live_records import LiveRecords, integers
from picstore.storage.location.resolve import map_concurrently
from picstore.storage.record_table import path_of, read_paths
from picstore.train.order.dataset_order import DatasetOrder
from picstore.train.order.drawn_samples import DRAWN, Drawn, drawn_samples
from picstore.train.order.epoch_order import groups_of
from picstore.train.order.mux_order import MuxOrder
from picstore.train.orders_of_states import AnyOrder

# Results of ``Audit.status``: what became of a record, which may be deleted or added before or since the training.
PRESENT, DELETED_SINCE, DELETED_BEFORE = "present", "deleted since", "deleted before"
NOT_SELECTED, ADDED_SINCE, UNKNOWN = "not selected", "added since", "not in this dataset"
_SAMPLE = np.dtype([*DRAWN.descr, ("id", "<i8")])
_MAX_EPOCHS = 1 << 20  # maximum number of epochs to audit, because each takes some milliseconds
_SPARSE = 4  # If at most a fourth of the containers have records to look up, only these containers' ids are read.


@dataclass(frozen=True, eq=False)
class Audit:
    """Audit of the samples that all ranks drew before a training's state was saved; its methods compute the samples.

    A step is a global batch, which consists of one batch of each rank. Steps are numbered from 0 through all epochs.

    Attributes:
        datasets: the training's datasets, in the versions that the state names and with the training's selections.
        steps: number of steps before the state.
        epoch: index of the state's epoch; 0 for a mux (mixture of datasets).
        batch: index of the next step in this epoch; for a mux, ``steps``.
        world_size: number of ranks in the state.
        remarks: sentences that say what the state does not tell, and what is assumed instead.
    """

    datasets: tuple[Dataset, ...]
    steps: int
    epoch: int
    batch: int
    world_size: int
    remarks: tuple[str, ...]
    _drawn: Drawn = field(repr=False)
    _latest: tuple[Dataset, ...] = field(repr=False)
    _ids: dict[int, I64] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(
        cls, order: AnyOrder, datasets: Sequence[Dataset], state: Mapping[str, Any], latest: Sequence[Dataset]
    ) -> Audit:
        """Audit the steps of ``order`` before a saved state.

        ``latest`` holds the latest version of each dataset in ``datasets``.

        Raises:
            UsageError: the state is of other datasets or another order.
        """
        epoch, batch = order.position(state)
        remarks, ranks = [], order.rank_shares.world_size
        if isinstance(order, MuxOrder):
            steps, rest = order.batches_and_rest(state)
            epoch, batch, own = 0, steps, list(order.schedule.counts_at(steps))
            of_size = f" of {own} samples of the datasets" if len(order.schedule.steps) == 1 else ""
            if state["version"] != 1 and state.get("counts") != own:
                text = f"the state has the counts {state.get('counts')} in a global batch, this mux {own}"
                raise UsageError(f"{text}; give the training's mux")
            if rest:
                remarks.append(f"a rank had read {rest} samples of step {steps}, which are not counted")
        else:
            if epoch > _MAX_EPOCHS:
                raise UsageError(f"the state is in epoch {epoch:,}; an audit takes at most {_MAX_EPOCHS:,}")
            steps = epoch * order.length(epoch) + min(batch, order.length(epoch))
            of_size = f" of {order.shard.batch:,} samples" if isinstance(order, DatasetOrder) else ""
        changed = "which rank drew a sample"
        if isinstance(order, DatasetOrder) and not order.shard.drop_last:
            changed += " and, if batches have less than two samples a rank, the last two batches of an epoch"
        remarks.append(
            f"assumed that all steps from the first on were taken, as global batches{of_size} on {ranks} "
            f"rank{'s' * (ranks > 1)}: a state does not tell of epochs that were ended early, or of earlier steps with "
            f"other batches or ranks; another number of ranks alone changes only {changed}"
        )
        drawn = drawn_samples(order, [each.live for each in datasets])
        return cls(tuple(datasets), steps, epoch, batch, ranks, tuple(remarks), drawn, tuple(latest))

    def parts(self, first: int = 0, stop: int | None = None) -> Iterator[Table]:
        """Yield the result of :meth:`samples` in parts of about 65,536 samples, to limit the memory in use."""
        for part in self._drawn.samples(*self._bounds(first, stop)):
            yield self._with_ids(part)

    def samples(self, first: int = 0, stop: int | None = None) -> Table:
        """Return the samples of the steps from ``first`` to ``stop`` - 1, by default of all steps before the state.

        Returns:
            A structured array (n,), one element per sample, sorted by step, rank and slot. Its int64 fields are
            ``step``; ``rank``; ``slot``, the index in the rank's batch; ``source``, the index in :attr:`datasets`;
            ``epoch``, the source's epoch; ``position``, the record's index in ``datasets[source]``; and ``id``, the
            record's id, or −1 if damaged.
        """
        return np.concatenate([np.zeros(0, _SAMPLE), *self.parts(first, stop)])

    def find(self, ids: npt.ArrayLike, *, source: int = 0, first: int = 0, stop: int | None = None) -> Table:
        """Return the samples of the records ``ids``, in the form of :meth:`samples`; unknown ids are ignored."""
        positions = self.positions(integers(ids, "ids"), source=source)
        some = np.unique(positions[positions >= 0])
        return self._with_ids(self._drawn.find(source, some, *self._bounds(first, stop)))

    def counts(self, *, source: int = 0, first: int = 0, stop: int | None = None) -> I64:
        """Return how often each record of ``datasets[source]`` was drawn, in the dataset's order: int64 (records,)."""
        return self.all_counts(first, stop)[source]

    def all_counts(self, first: int = 0, stop: int | None = None) -> list[I64]:
        return self._drawn.counts(*self._bounds(first, stop))

    def unseen(self, *, source: int = 0) -> I64:
        """Return the ids of those records of a dataset that the training had not drawn when its state was saved."""
        unseen: I64 = self.ids(source)[self.counts(source=source) == 0]
        return unseen

    def status(self, ids: npt.ArrayLike, *, source: int = 0) -> list[str]:
        """Return, for each id, what became of the record in ``datasets[source]``.

        Returns:
            For each id: "present"; "deleted since" the training; "deleted before" the training; "not selected" for the
            training; "added since" the training; or "not in this dataset".
        """
        trained, latest, each = self.datasets[source], self._latest[source], integers(ids, "ids")
        stored, found = _find(trained.containers.ids(), each)
        now, there = _find(latest.containers.ids(), each)
        deleted, gone = np.zeros(len(each), np.bool_), np.zeros(len(each), np.bool_)
        deleted[found] = np.isin(stored[found], trained.live.deleted)
        gone[there] = np.isin(now[there], latest.live.deleted)
        selected = self.positions(each, source=source) >= 0
        chosen = np.select(
            [selected & there & ~gone, selected, deleted, found, there & ~gone],
            [PRESENT, DELETED_SINCE, DELETED_BEFORE, NOT_SELECTED, ADDED_SINCE],
            UNKNOWN,
        )
        return list(map(str, chosen))

    def ids(self, source: int = 0) -> I64:
        """Return the ids of a dataset's records in the dataset's order, read-only; only the first call reads them."""
        if source not in self._ids:
            self._ids[source] = self.datasets[source].ids
            self._ids[source].setflags(write=False)
        return self._ids[source]

    def paths(self, positions: I64, *, source: int = 0) -> list[str | None]:
        """Return the source path stored with each record, or None; read the indexes of the records' containers."""
        dataset = self.datasets[source]
        containers, records = dataset.live.find(positions)
        paths: list[str | None] = [None] * len(positions)
        for same in groups_of(containers):
            tables = dataset.containers.index(int(containers[same[0]]))
            for k, record in zip(same.tolist(), records[same].tolist(), strict=True):
                paths[k] = path_of(tables, record) if tables.good[record] else None
        return paths

    def ids_of_paths(self, paths: Iterable[str], *, source: int = 0) -> dict[str, int]:
        """Map each of ``paths`` that a record has, deleted or not, to the record's id; this reads all indexes."""
        wanted, containers = set(paths), self.datasets[source].containers
        every = LiveRecords.from_deleted(self.datasets[source].rows["records"], np.zeros(0, np.int64), file="")
        pairs = zip(read_paths(containers.index, every), containers.ids().tolist(), strict=True)
        return {path: id_ for path, id_ in pairs if path in wanted}

    def _bounds(self, first: int, stop: int | None) -> tuple[int, int]:
        last = self.steps if stop is None else stop
        if not 0 <= first <= last <= self.steps:
            raise UsageError(f"steps {first} to {last}; the state is after {self.steps} steps, give 0 to {self.steps}")
        return first, last

    def positions(self, ids: I64, *, source: int = 0) -> I64:
        """Return the position of each id in the version of a dataset that the training read; −1 if it is not there."""
        dataset = self.datasets[source]
        stored, found = _find(dataset.containers.ids(), ids)
        places = np.where(dataset.live.marks(), np.cumsum(dataset.live.marks()) - 1, -1)
        return np.where(found, places[stored] if len(places) else -1, -1)

    def _with_ids(self, part: Table) -> Table:
        found: Table = np.zeros(len(part), _SAMPLE)
        for name in part.dtype.names or ():
            found[name] = part[name]
        for number, dataset in enumerate(self.datasets):
            mine = part["source"] == number
            containers, records = dataset.live.find(part["position"][mine])
            each = np.unique(containers)
            if number in self._ids or _SPARSE * len(each) > len(dataset.rows):
                found["id"][mine] = self.ids(number)[part["position"][mine]]
                continue
            ids = dict(zip(each.tolist(), map_concurrently(dataset.containers.index, each.tolist()), strict=True))
            found["id"][mine] = [
                int(ids[number].index["id"][k]) if ids[number].good[k] else -1
                for number, k in zip(containers.tolist(), records.tolist(), strict=True)
            ]
        return found


def _find(stored: I64, ids: I64) -> tuple[I64, Bools]:
    """Find each id in ``stored``: return its index, 0 if it is missing; and whether it was found."""
    order = np.argsort(stored, kind="stable")
    at = np.minimum(np.searchsorted(stored, ids, sorter=order), len(stored) - 1)
    if not len(stored):
        return np.zeros(len(ids), np.int64), np.zeros(len(ids), np.bool_)
    found = (stored[order[at]] == ids) & (ids >= 0)
    return np.where(found, order[at], 0), found
