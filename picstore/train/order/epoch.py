"""Order of an epoch: the container and record of each sample, as arithmetic on (seed, epoch, manifest).

Nothing is stored or communicated.

The containers are permuted, the records in each are permuted, and all are joined into one sequence of N records. The
sequence is cut into L lanes, contiguous runs; lane l has ceil((N - l) / L) of them. Sample g of the epoch is record
g // L of lane g mod L, and belongs to rank (g mod L) mod W. So a batch mixes as many runs of the data set as there
are lanes, while each lane reads its containers one after the other. Since W divides L, the samples of the g-th global
batch do not depend on W. docs/training.md has the formulas.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from picstore import rng
from picstore.arrays import I64, U8, Bools

# How a sample's bytes are there when its batch is made: in a container that its lane still reads; copied out of it when
# the lane was done with it; or not at all, so that its record is read alone.
IN_CONTAINER, SET_ASIDE, ALONE = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples of an epoch: arrays (n,)."""

    container: I64  # number of the container in stored order
    record: I64  # number in the container, among the live records
    lane: I64  # the lane that it was dealt from
    last: Bools  # whether its lane is done with the container after this sample
    copy: I64 | None = None  # how often the record came before in the epoch; None where each comes once
    held: U8 | None = None  # IN_CONTAINER, SET_ASIDE or ALONE; None where all are in containers that a lane reads

    def __len__(self) -> int:
        return len(self.container)


class EpochOrder:
    """The order of one epoch over containers that hold ``counts`` records each, a function of its arguments.

    ``shuffle=False`` keeps the stored order, in each lane.
    """

    def __init__(self, counts: npt.ArrayLike, *, seed: int, epoch: int, lanes: int, shuffle: bool = True) -> None:
        counts = np.asarray(counts, dtype=np.int64)
        self.records = int(counts.sum())
        self.lanes = lanes
        self._counts, self._shuffle = counts, shuffle
        self._key = rng.key(rng.PLAN, seed, epoch)
        self._order = rng.permutation(self._key, len(counts)) if shuffle else np.arange(len(counts))
        self._ends = np.cumsum(counts[self._order])
        base, longer = divmod(self.records, lanes)
        lane = np.arange(lanes + 1)
        self._lane_starts = lane * base + np.minimum(lane, longer)
        self._permutations: OrderedDict[int, I64] = OrderedDict()

    def locate(self, samples: I64) -> Samples:
        """Find containers and records of samples, given their numbers g in the epoch, int64 (n,) in [0, records)."""
        lane, index, turn = self._find(samples)
        container = self._order[turn]
        record = index - (self._ends[turn] - self._counts[container])
        last = (index + 1 == self._ends[turn]) | (index + 1 == self._lane_starts[lane + 1])
        if self._shuffle:
            grouped = np.argsort(container, kind="stable")
            starts = np.flatnonzero(np.diff(container[grouped], prepend=-1)).tolist()
            for start, stop in zip(starts, [*starts[1:], len(grouped)], strict=True):
                mine = grouped[start:stop]
                record[mine] = self._permutation(int(container[mine[0]]))[record[mine]]
        return Samples(container, record, lane, last)

    def find(self, container: int, record: int) -> int:
        """The number in the epoch of the sample that is a container's record; the inverse of :meth:`locate`."""
        turn = int(np.flatnonzero(self._order == container)[0])
        if self._shuffle:
            record = int(np.flatnonzero(self._permutation(container) == record)[0])
        index = int(self._ends[turn] - self._counts[container]) + record
        lane = int(np.searchsorted(self._lane_starts, index, side="right")) - 1
        return (index - int(self._lane_starts[lane])) * self.lanes + lane

    def run_ends(self, samples: I64) -> I64:
        """Find the last sample that the lane of each sample takes from the same container, as numbers in the epoch."""
        lane, _, turn = self._find(samples)
        ends = np.minimum(self._ends[turn], self._lane_starts[lane + 1])
        last: I64 = (ends - 1 - self._lane_starts[lane]) * self.lanes + lane
        return last

    def _find(self, samples: I64) -> tuple[I64, I64, I64]:
        """Find lanes of samples, and indices in the joined sequence of records and in that of containers."""
        lane = samples % self.lanes
        index = self._lane_starts[lane] + samples // self.lanes
        return lane, index, np.searchsorted(self._ends, index, side="right")

    def _permutation(self, container: int) -> I64:
        found = self._permutations.get(container)
        if found is None:
            key = rng.key(self._key, container)
            found = self._permutations[container] = rng.permutation(key, int(self._counts[container]))
            while len(self._permutations) > 4 * self.lanes:
                self._permutations.popitem(last=False)
        self._permutations.move_to_end(container)
        return found
