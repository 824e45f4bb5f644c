"""Order of a Loader whose transform is Buckets or Sequences: all images of a batch belong to one bucket."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from picstore import rng
from picstore.arrays import I64, U8, Table
from picstore.errors import UsageError, counted
from picstore.storage.edits.live_records import LiveRecords
from picstore.train.order.bucket_plan import BucketPlan, BucketTable, PlannedBatches
from picstore.train.order.epoch_order import ALONE, IN_CONTAINER, SET_ASIDE, EpochOrder, Samples
from picstore.train.order.global_batches import Division, check_global_batch, divide
from picstore.train.order.rank_shares import RankShares, check_rank
from picstore.train.order.requests import BatchRequest, LeavingRun, OpenRuns, SourceRequest, TrainingSource
from picstore.train.order.state_checks import VERSION, check_state, position_in_epochs

# Fields that must be equal in a state and in the loader that loads the state.
_FIXED = ("dataset", "seed", "shuffle", "lanes", "buckets")


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketOrder:
    """Order of batches, each with records of one bucket (range of image shapes), epoch after epoch; see `Order`."""

    table: BucketTable = field(repr=False)
    # For each bucket, the size of a global batch for each of its plans (lists of transforms). Plans are numbered
    # from the first bucket's first plan to the last bucket's last plan.
    batch_sizes: tuple[tuple[int, ...], ...]
    lanes: int
    seed: int
    rank: int = 0
    world_size: int = 1
    shuffle: bool = True
    drop_last: bool = True
    uuid: str = ""  # identifier of the dataset and its selection
    counts: tuple[int, ...] = field(init=False)  # number of records in each bucket
    batches: int = field(init=False)  # number of batches in an epoch
    digest: str = field(init=False)  # hash of the records' buckets and of the batches' sizes, for comparing states
    rank_shares: RankShares = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_rank(self.rank, self.world_size)
        check_global_batch(min(map(min, self.batch_sizes)), self.world_size)
        object.__setattr__(self, "rank_shares", RankShares(self.lanes, self.world_size))
        counts = self.table.tally.sum(axis=0, dtype=np.int64).tolist()
        object.__setattr__(self, "counts", tuple(counts))
        fewest = min((count for count in counts if count), default=0)
        if not self.drop_last and fewest < self.world_size:
            text = f"a bucket has {counted(fewest, 'record')}, too few for {counted(self.world_size, 'rank')}"
            raise UsageError(f"{text}; give fewer sizes, or drop_last=True, which leaves them out")
        divisions = self._divide(0)
        hashed = hashlib.sha256(self.table.buckets.data)
        for division in divisions:
            hashed.update(division.ends.astype("<i8").tobytes() + division.plans.astype("<i8").tobytes())
        object.__setattr__(self, "batches", sum(len(division.ends) for division in divisions))
        object.__setattr__(self, "digest", hashed.hexdigest()[:16])
        if not self.batches:
            records = counted(len(self.table.buckets), "record", "make")
            buckets = counted(len(self.batch_sizes), "bucket")
            text = f"{records} no batch in {buckets} on {counted(self.world_size, 'rank')}"
            raise UsageError(f"{text}; use smaller batches or drop_last=False")

    @property
    def lanes_read(self) -> int:
        return self.rank_shares.count_lanes(self.rank)

    @property
    def samples_of_rank(self) -> int:
        """A rank's number of samples in an epoch, incomplete batches included: all samples / world size, rounded up."""
        return -(-len(self.table.buckets) // self.world_size)

    def with_lanes(self, lanes: int) -> BucketOrder:
        return replace(self, lanes=lanes)

    def stage(self, epoch: int) -> int:
        return 0

    def length(self, epoch: int) -> int:
        return self.batches

    def requests(
        self, sources: Sequence[TrainingSource], *, epoch: int, first: int = 0, step: int = 0
    ) -> Iterator[BatchRequest]:
        live = sources[0].dataset.live
        while True:
            plan = self._plan(live, epoch)
            start = plan.start(first)
            reading = _RankReading(self.rank, self.rank_shares, epoch=epoch, start=start, step=step)
            for planned in plan.chunks(start):
                for request in reading.requests(planned):
                    yield [request]
            if step:
                return
            epoch, first = epoch + 1, 0

    def drawn(self, live: LiveRecords, epoch: int, first: int, stop: int) -> Iterator[tuple[I64, I64, I64]]:
        """Yield the samples of an epoch's batches ``first`` to ``stop`` - 1 on all ranks, in parts.

        Yields:
            Three int64 arrays (n,): each sample's batch, its rank, and the position of its record among the live
            records. Samples are sorted by batch, then by rank, then by the order of the epoch.
        """
        plan, passed = self._plan(live, epoch), first
        for planned in plan.chunks(plan.start(first)):
            groups, samples = np.flatnonzero(planned.complete), planned.samples
            groups = groups[np.argsort(samples["number"][planned.last[groups]])]
            batches = np.full(len(planned.last), stop)
            batches[groups] = np.arange(passed, passed + len(groups))
            batch, ranks = batches[planned.group], planned.owners(self.rank_shares)
            mine = np.flatnonzero(batch < stop)
            mine = mine[np.lexsort((samples["number"][mine], ranks[mine], batch[mine]))]
            located = plan.order.locate(samples["number"][mine])
            yield batch[mine], ranks[mine], self.table.starts[located.container] + located.record
            passed += len(groups)
            if passed >= stop:
                return

    def find(self, live: LiveRecords, position: int, epoch: int) -> list[tuple[int, int, int]]:
        """List (rank, batch, slot in the batch) of a live record in an epoch; empty if no batch has the record."""
        (container, _), plan = live.find(np.array([position])), self._plan(live, epoch)
        sample = int(plan.order.find(container, position - self.table.starts[container])[0])
        batches = plan.complete(sample)
        for planned in plan.chunks(sample):
            samples, group = planned.samples, planned.group
            found = np.flatnonzero(samples["number"] == sample)
            if not len(found):
                break
            mine = group[found[0]]
            if planned.complete[mine]:
                owners = planned.owners(self.rank_shares)
                rank = int(owners[found[0]])
                slot = (group == mine) & (owners == rank) & (samples["number"] < sample)
                stops = samples["number"][planned.last]
                batch = planned.complete & (stops < stops[mine])
                return [(rank, batches + int(batch.sum()), int(slot.sum()))]
            batches += int(planned.complete.sum())
        return []

    def batch_seed(self, epoch: int, batch: int) -> int:
        return rng.key(rng.AUGMENT, self.seed, epoch, batch, self.rank)

    def state(self, epoch: int, batch: int) -> dict[str, Any]:
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
        check_state(state, self.state(0, 0), _FIXED, of="loader")
        epoch, batch = position_in_epochs(state, "batches")
        if batch > self.length(epoch) and "worker" not in state:
            raise UsageError(
                f"the state is after {counted(batch, 'batch')}, this loader has {self.length(epoch)} an epoch; "
                "give a loader with the arguments of the saved one"
            )
        return epoch, batch

    def _plan(self, live: LiveRecords, epoch: int) -> BucketPlan:
        order = EpochOrder(self.table.counts, seed=self.seed, epoch=epoch, lanes=self.lanes, shuffle=self.shuffle)
        return BucketPlan(order, live, self.table, self._divide(epoch))

    def _divide(self, epoch: int) -> list[Division]:
        found, plans = [], 0
        for bucket, (count, sizes) in enumerate(zip(self.counts, self.batch_sizes, strict=True)):
            keys = rng.key(rng.BUCKET, self.seed, bucket), rng.key(rng.BUCKET, self.seed, bucket, epoch)
            division = divide(count, sizes, keys, world_size=self.world_size, drop_last=self.drop_last)
            found.append(Division(division.ends, division.plans + plans))
            plans += len(sizes)
        return found


class _RankReading:
    """Maker of a rank's requests for the planned batches of an epoch, from sample ``start`` on.

    Batches mix lanes, which are parts of the epoch. A container is requested while a lane reads it. When the lane
    leaves the container, the records that this rank's later batches need are set aside. All other records are read
    alone. A DataLoader's worker sets nothing aside, because it does not know which batches will be its own.
    """

    def __init__(self, rank: int, rank_shares: RankShares, *, epoch: int, start: int, step: int) -> None:
        self._rank, self._shares, self._epoch = rank, rank_shares, epoch
        # ``_passed`` counts the complete batches so far, including those that other workers of a DataLoader make.
        self._step, self._passed = step, 0
        self._start = start
        # Index in the epoch of the previous batch's last sample; at first, of the sample before ``start``.
        self._previous = start - 1
        self._runs = OpenRuns()

    def requests(self, planned: PlannedBatches) -> Iterator[SourceRequest]:
        """Yield the requests for those complete batches of a chunk of the epoch that this process makes."""
        groups, stops = self._next_batches(planned)
        if not len(groups):
            return
        # For each batch in ``planned``, its index among the chunk's batches that this process makes; -1 for batches of
        # other processes, ``len(groups)`` for incomplete batches.
        turns = np.where(planned.complete, -1, len(groups))
        turns[groups] = np.arange(len(groups))
        turn = turns[planned.group]
        own = (planned.owners(self._shares) == self._rank) & (turn >= 0)
        samples, turn = planned.samples[own], turn[own]
        # For each sample, the index in ``groups`` of the batch after which the sample's lane (part of the epoch) leaves
        # the sample's container; -1 if the lane left the container before the first of these batches.
        leaves = np.searchsorted(np.append(self._previous, stops), samples["end"]) - 1
        first, last = self._shares.find_readers(samples["lane"])
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
        """Return indices of this process's complete batches in ``planned``, and of their last samples in the epoch."""
        groups = np.flatnonzero(planned.complete)
        stops = planned.samples["number"][planned.last[groups]]
        order = np.argsort(stops)
        groups, stops = groups[order], stops[order]
        mine = (self._passed + np.arange(len(groups))) % max(1, self._step) == 0
        self._passed += len(groups)
        return groups[mine], stops[mine]

    def _leave(self, read: Table, kept: Table, stop: int) -> tuple[LeavingRun, ...]:
        """Return the containers that lanes finish up to sample ``stop``, each with records kept for later batches."""
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
        weight = self._shares.world_size * len(samples) / size
        return SourceRequest(0, self._epoch, chosen, np.arange(len(samples)), plan, leaving, weight)
