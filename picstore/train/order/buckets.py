"""The order of a Loader whose transform is Buckets: all images of a batch are of one bucket, on all ranks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from picstore import rng
from picstore.arrays import I64, U8, Table
from picstore.errors import UsageError
from picstore.storage.dataset import Dataset
from picstore.storage.edits.tombstones import LiveRecords
from picstore.train.order.bucket_plan import BucketPlan, PlannedBatches
from picstore.train.order.bucket_table import BucketTable
from picstore.train.order.dealing import Dealing
from picstore.train.order.division import Division, divide
from picstore.train.order.epoch import ALONE, IN_CONTAINER, SET_ASIDE, EpochOrder, Samples
from picstore.train.order.requests import BatchRequest, LeavingRun, OpenRuns, SourceRequest, TrainingSource
from picstore.train.order.sharding import check_global_batch, check_rank
from picstore.train.order.states import VERSION, check_state, position_in_epochs

_FIXED = ("dataset", "seed", "shuffle", "lanes", "buckets")  # fields of a state that a loader must share


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketOrder:
    """Batches of records that are in the same bucket, epoch after epoch of one data set."""

    table: BucketTable = field(repr=False)
    batch_sizes: tuple[tuple[int, ...], ...]  # of all ranks, by bucket and plan; plans are counted through the buckets
    lanes: int  # of an epoch
    seed: int
    rank: int = 0
    world_size: int = 1
    shuffle: bool = True
    drop_last: bool = True
    uuid: str = ""  # of the data set, with its selection
    counts: tuple[int, ...] = field(init=False)  # records by bucket
    batches: int = field(init=False)  # in an epoch
    digest: str = field(init=False)  # of the buckets and of the global batches in them: 16 hexadecimal digits
    dealing: Dealing = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_rank(self.rank, self.world_size)
        check_global_batch(min(map(min, self.batch_sizes)), self.world_size)
        object.__setattr__(self, "dealing", Dealing(self.lanes, self.world_size))
        counts = self.table.tally.sum(axis=0, dtype=np.int64).tolist()
        object.__setattr__(self, "counts", tuple(counts))
        fewest = min((count for count in counts if count), default=0)
        if not self.drop_last and fewest < self.world_size:
            text = f"a bucket has {fewest} records, too few for {self.world_size} ranks"
            raise UsageError(f"{text}; give fewer sizes, or drop_last=True, which leaves them out")
        divisions = self._divide(0)
        hashed = hashlib.sha256(self.table.buckets.data)
        for division in divisions:
            hashed.update(division.ends.astype("<i8").tobytes() + division.plans.astype("<i8").tobytes())
        object.__setattr__(self, "batches", sum(len(division.ends) for division in divisions))
        object.__setattr__(self, "digest", hashed.hexdigest()[:16])
        if not self.batches:
            text = f"{len(self.table.buckets)} records in {len(self.batch_sizes)} buckets make no batch"
            raise UsageError(f"{text} on {self.world_size} ranks; use smaller batches or drop_last=False")

    @property
    def lanes_read(self) -> int:
        """Lanes that this rank reads at a time."""
        return self.dealing.count_lanes(self.rank)

    @property
    def samples_of_rank(self) -> int:
        """A rank's part of an epoch's samples, incomplete batches included, rounded up."""
        return -(-len(self.table.buckets) // self.world_size)

    def with_lanes(self, lanes: int) -> BucketOrder:
        """The same order but for its lanes."""
        return replace(self, lanes=lanes)

    def stage(self, epoch: int) -> int:
        """The number of an epoch's stage: there is one."""
        return 0

    def length(self, epoch: int) -> int:
        """Batches in an epoch."""
        return self.batches

    def requests(
        self, sources: Sequence[TrainingSource], *, epoch: int, first: int = 0, step: int = 0
    ) -> Iterator[BatchRequest]:
        """Yield requests as ``Order.requests`` says; with a ``step``, of one epoch."""
        live = sources[0].dataset.live
        while True:
            plan = self._plan(live, epoch)
            start = plan.start(first)
            reading = _RankReading(self.rank, self.dealing, epoch=epoch, start=start, step=step)
            for planned in plan.chunks(start):
                for request in reading.requests(planned):
                    yield [request]
            if step:
                return
            epoch, first = epoch + 1, 0

    def find(self, dataset: Dataset, position: int, epoch: int) -> list[tuple[int, int, int]]:
        """Rank, batch and slot of the sample of an epoch that is ``dataset[position]``; none if it is left out."""
        ((container,), _), plan = dataset.live.find(np.array([position])), self._plan(dataset.live, epoch)
        sample = plan.order.find(int(container), position - int(self.table.starts[container]))
        batches = plan.complete(sample)
        for planned in plan.chunks(sample):
            samples, group = planned.samples, planned.group
            found = np.flatnonzero(samples["number"] == sample)
            if not len(found):
                break
            mine = group[found[0]]
            if planned.complete[mine]:
                owners = planned.owners(self.dealing)
                rank = int(owners[found[0]])
                slot = (group == mine) & (owners == rank) & (samples["number"] < sample)
                stops = samples["number"][planned.last]
                batch = planned.complete & (stops < stops[mine])
                return [(rank, batches + int(batch.sum()), int(slot.sum()))]
            batches += int(planned.complete.sum())
        return []

    def batch_seed(self, epoch: int, batch: int) -> int:
        """The seed of a batch's callables."""
        return rng.key(rng.AUGMENT, self.seed, epoch, batch, self.rank)

    def state(self, epoch: int, batch: int) -> dict[str, Any]:
        """The state before a batch."""
        return {
            "version": VERSION,
            "dataset": self.uuid,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "lanes": self.lanes,
            "world_size": self.world_size,
            "epoch": epoch,
            "batches": batch,
            "buckets": self.digest,
        }

    def position(self, state: Mapping[str, Any]) -> tuple[int, int]:
        """Epoch and batch at which a state goes on; UsageError for one of other buckets or other global batches."""
        check_state(state, self.state(0, 0), _FIXED, of="loader")
        epoch, batch = position_in_epochs(state, "batches")
        if batch > self.length(epoch) and "worker" not in state:
            raise UsageError(
                f"the state is after {batch} batches, this loader has {self.length(epoch)} an epoch; "
                "give a loader with the arguments of the saved one"
            )
        return epoch, batch

    def _plan(self, live: LiveRecords, epoch: int) -> BucketPlan:
        order = EpochOrder(self.table.counts, seed=self.seed, epoch=epoch, lanes=self.lanes, shuffle=self.shuffle)
        return BucketPlan(order, live, self.table, self._divide(epoch))

    def _divide(self, epoch: int) -> list[Division]:
        """The batches of each bucket."""
        found, plans = [], 0
        for bucket, (count, sizes) in enumerate(zip(self.counts, self.batch_sizes, strict=True)):
            keys = rng.key(rng.BUCKET, self.seed, bucket), rng.key(rng.BUCKET, self.seed, bucket, epoch)
            division = divide(count, sizes, keys, world_size=self.world_size, drop_last=self.drop_last)
            found.append(Division(division.ends, division.plans + plans))
            plans += len(sizes)
        return found


class _RankReading:
    """The requests of one rank for the planned batches of an epoch, from one on.

    A container is requested while its lane reads it. When the lane is done with it, after a batch, the records that
    later batches of this rank need are set aside. Records are read alone if they were to be set aside before the first
    batch, if only other ranks read their lane, or if a lane that ranks share was done with the container before their
    batch told their rank. A DataLoader's worker cannot know which batches will be its own, so it sets nothing aside.
    """

    def __init__(self, rank: int, dealing: Dealing, *, epoch: int, start: int, step: int) -> None:
        self._rank, self._dealing, self._epoch = rank, dealing, epoch
        self._step, self._passed = step, 0  # batches passed, of all that ranks or workers make
        self._start = start  # the sample at which the first batch is next to be complete
        self._previous = start - 1  # last sample of the batch before the next of this rank
        self._runs = OpenRuns()

    def requests(self, planned: PlannedBatches) -> Iterator[SourceRequest]:
        """Yield the requests for the batches that are complete in a chunk."""
        groups, stops = self._next_batches(planned)
        if not len(groups):
            return
        turns = np.where(planned.complete, -1, len(groups))  # of a batch, by its index; incomplete ones come later
        turns[groups] = np.arange(len(groups))
        turn = turns[planned.group]
        own = (planned.owners(self._dealing) == self._rank) & (turn >= 0)
        samples, turn = planned.samples[own], turn[own]
        leaves = np.searchsorted(np.append(self._previous, stops), samples["end"]) - 1  # the batch that lanes end with
        first, last = self._dealing.find_readers(samples["lane"])
        others = (self._rank < first) | (self._rank > last) | ((first < last) & (leaves < 0))
        aside = (leaves >= 0) & (leaves < turn) & ~others & (self._step <= 1)
        left = np.flatnonzero(aside)[np.argsort(leaves[aside], kind="stable")]
        left_bounds = np.searchsorted(leaves[left], np.arange(len(groups) + 1))
        held = np.where(leaves >= turn, IN_CONTAINER, SET_ASIDE)
        alone = others | ((held == SET_ASIDE) & ((samples["end"] < self._start) | (self._step > 1)))
        held = np.where(alone, ALONE, held).astype(np.uint8)
        made = np.argsort(turn, kind="stable")
        bounds = np.searchsorted(turn[made], np.arange(len(groups) + 1))
        for number, stop in enumerate(stops.tolist()):
            mine = made[bounds[number] : bounds[number + 1]]
            mine = mine[np.argsort(samples["number"][mine])]
            kept = samples[left[left_bounds[number] : left_bounds[number + 1]]]
            leaving = self._leave(samples[mine[held[mine] == IN_CONTAINER]], kept, stop)
            yield self._request(samples[mine], held[mine], leaving)
        self._previous = int(stops[-1])

    def _next_batches(self, planned: PlannedBatches) -> tuple[I64, I64]:
        """Find the complete batches that this rank is to make, in their order: their indices and last samples."""
        groups = np.flatnonzero(planned.complete)
        stops = planned.samples["number"][planned.last[groups]]
        order = np.argsort(stops)
        groups, stops = groups[order], stops[order]
        mine = (self._passed + np.arange(len(groups))) % max(1, self._step) == 0
        self._passed += len(groups)
        return groups[mine], stops[mine]

    def _leave(self, read: Table, kept: Table, stop: int) -> tuple[LeavingRun, ...]:
        """Find the containers that lanes are done with at sample ``stop``, and list records of these to set aside."""
        records: dict[tuple[int, int], list[int]] = {}
        for container, lane, record in kept[["container", "lane", "record"]].tolist():
            records.setdefault((container, lane), []).append(record)
        self._runs.read(read["container"], read["lane"], read["end"])
        for run in self._runs.leave(stop):
            records.setdefault(run, [])
        return tuple(LeavingRun(*run, np.array(sorted(each), np.int64)) for run, each in records.items())

    def _request(self, samples: Table, held: U8, leaving: tuple[LeavingRun, ...]) -> SourceRequest:
        names = ("container", "record", "lane", "end")
        chosen = Samples(**{name: np.ascontiguousarray(samples[name]) for name in names}, held=held)
        plan, size = int(samples["plan"][0]), int(samples["size"][0])
        weight = self._dealing.world_size * len(samples) / size
        return SourceRequest(0, self._epoch, chosen, np.arange(len(samples)), plan, leaving, weight)
