"""Order of an epoch: the container and record of each sample, as arithmetic on (seed, epoch, manifest).

Nothing is stored or communicated.

The containers are permuted, the records in each are permuted, and all are joined into one sequence of N records. The
sequence is cut into L lanes, contiguous runs; lane l has ceil((N - l) / L) of them. Sample g of the epoch is record
g // L of lane g mod L. So a batch mixes as many runs of the data set as there are lanes, while each lane reads its
containers one after the other. The ranks have no part in it; ``dealing.py`` tells which of them makes which samples.
docs/order.md has the formulas.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from picstore import rng
from picstore.arrays import I64, U8
from picstore.train.order.container_order import ContainerOrder

# How a sample's bytes are there when its batch is made: in a container that its lane still reads; copied out of it when
# the lane was done with it; or not at all, so that its record is read alone.
IN_CONTAINER, SET_ASIDE, ALONE = 0, 1, 2
_SMALL = 256  # records of a container whose permutation is drawn with others


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples of an epoch: arrays (n,)."""

    container: I64  # number of the container in stored order
    record: I64  # number in the container, among the live records
    lane: I64  # the lane that it comes from
    end: I64  # the last sample of the epoch that its lane takes from the container
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
        self.lanes = lanes
        self._counts, self._shuffle = counts, shuffle
        self._key = rng.key(rng.PLAN, seed, epoch)
        self.containers = ContainerOrder(counts, self._key if shuffle else None)
        self.records = self.containers.records
        base, longer = divmod(self.records, lanes)
        lane = np.arange(lanes + 1)
        self._lane_starts = lane * base + np.minimum(lane, longer)
        self._permutations: OrderedDict[int, I64] = OrderedDict()

    def locate(self, samples: I64) -> Samples:
        """Find containers and records of samples, given their numbers g in the epoch, int64 (n,) in [0, records)."""
        lane, index = self._deal(samples)
        container, start = self.containers.locate(index)
        record = index - start
        stop = np.minimum(start + self._counts[container], self._lane_starts[lane + 1])
        end = (stop - 1 - self._lane_starts[lane]) * self.lanes + lane
        if self._shuffle:
            self._draw_permutations(container)
            grouped = np.argsort(container, kind="stable")
            bounds = np.flatnonzero(np.diff(container[grouped], prepend=-1, append=-1))
            for first, after in pairwise(bounds.tolist()):
                mine = grouped[first:after]
                record[mine] = self.records_of(int(container[mine[0]]))[record[mine]]
        return Samples(container, record, lane, end)

    def find(self, container: int, record: int) -> int:
        """The number in the epoch of the sample that is a container's record; the inverse of :meth:`locate`."""
        if self._shuffle:
            record = int(np.flatnonzero(self.records_of(container) == record)[0])
        index = self.containers.start(container) + record
        lane = int(np.searchsorted(self._lane_starts, index, side="right")) - 1
        return (index - int(self._lane_starts[lane])) * self.lanes + lane

    def _deal(self, samples: I64) -> tuple[I64, I64]:
        """Find lanes of samples, and indices in the joined sequence of records."""
        lane = samples % self.lanes
        return lane, self._lane_starts[lane] + samples // self.lanes

    def records_of(self, container: int) -> I64:
        """The records of a container, in the order in which samples are."""
        found = self._permutations.get(container)
        if found is None:
            key, count = rng.key(self._key, container), int(self._counts[container])
            found = rng.permutation(key, count) if self._shuffle else np.arange(count)
            self._keep({container: found})
        self._permutations.move_to_end(container)
        return found

    def lane_positions(self, sample: int) -> I64:
        """The index in the joined sequence that each lane is at before a sample of the epoch, int64 (lanes,)."""
        return self._lane_starts[:-1] + (sample + self.lanes - 1 - np.arange(self.lanes)) // self.lanes

    def numbers(self, lane: int, index: I64) -> I64:
        """The samples of a lane that are records of the joined sequence."""
        numbers: I64 = (index - self._lane_starts[lane]) * self.lanes + lane
        return numbers

    def _draw_permutations(self, containers: I64) -> None:
        """Draw the missing permutations of small containers together, in a sixth of the time."""
        each = np.unique(containers)
        missing = np.array([number for number in each.tolist() if number not in self._permutations], np.int64)
        missing = missing[self._counts[missing] <= _SMALL]
        if 1 < len(missing) <= 4 * self.lanes:  # as many as are kept
            keys = rng.keys(rng.key(self._key), missing.astype(np.uint64))
            drawn = rng.permutations(keys, self._counts[missing])
            self._keep(dict(zip(missing.tolist(), drawn, strict=True)))

    def _keep(self, permutations: Mapping[int, I64]) -> None:
        self._permutations.update(permutations)
        while len(self._permutations) > 4 * self.lanes:
            self._permutations.popitem(last=False)
