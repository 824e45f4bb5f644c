"""Apportionment: how often each record comes in an epoch, by weights, as exact arithmetic.

Record i has a share of samples an epoch, in ticks of 2**-30 samples. With C_i, the sum of the shares before it, and an
offset t of the epoch, it comes floor(C_{i+1} + t) - floor(C_i + t) times. So every epoch has the same number of
samples, and each record comes as often as its share says, rounded down or up. The offsets of epochs are multiples of
the golden ratio, which fill [0, 1) evenly, so that the roundings cancel over epochs. Nothing is drawn, stored or
communicated. docs/training.md has the formulas.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from picstore import rng
from picstore.arrays import I64, Array
from picstore.errors import UsageError
from picstore.storage.dataset import Dataset
from picstore.train.order.epoch import Samples

_TICKS = 30  # a sample is 2**30 ticks
_GOLDEN = 663_608_941  # of 2**30; odd, so that 2**30 epochs have all offsets
_MAX_SAMPLES = 1 << 31  # and records, so that sums have 63 bits
_CHUNK = 1 << 15  # weights at a time, in the cache


@dataclass(frozen=True, slots=True)
class Apportionment:
    """Shares of the records of a data set in an epoch of ``samples`` samples.

    Attributes:
        starts: int64 (containers + 1,), number of live records before each container.
        bounds: int64 (containers + 1,), ticks of all records before each container.
        ticks: (records,), share of each live record; None if all are equal.
        digest: hash of the shares, 16 hexadecimal digits.
    """

    samples: int
    seed: int
    starts: I64 = field(repr=False)
    bounds: I64 = field(repr=False)
    ticks: Array | None = field(default=None, repr=False)
    digest: str = ""

    @classmethod
    def equal(cls, counts: I64, samples: int, *, seed: int) -> Apportionment:
        """Give the same share to all records of containers of ``counts`` records."""
        starts: I64 = np.concatenate(([0], np.cumsum(counts)))
        bounds = _equal_ticks(starts, samples, int(starts[-1]))
        return cls(samples, seed, starts, bounds, digest=_digest(samples, None))

    @classmethod
    def weighted(cls, counts: I64, weights: Array, samples: int, *, seed: int) -> Apportionment:
        """Give each record a share in proportion to its weight, (records,); none is negative, one is positive."""
        starts: I64 = np.concatenate(([0], np.cumsum(counts)))
        whole, total = samples << _TICKS, 0.0
        chunks = [slice(start, start + _CHUNK) for start in range(0, len(weights), _CHUNK)]
        for chunk in chunks:
            total = _running_sums(weights[chunk], total)[-1]
        scale = whole / total
        few = float(weights.max()) * scale < (1 << 32) - 2
        ticks = np.empty(len(weights), dtype=np.uint32 if few else np.int64)
        bounds = np.zeros(len(starts), dtype=np.int64)
        end, weight = 0, 0.0
        for chunk in chunks:
            # One after the other, so that the sums are the same on every machine.
            sums = _running_sums(weights[chunk], weight)
            ends = np.minimum(np.rint(sums * scale), whole).astype(np.int64)
            ends[sums == total] = whole
            ticks[chunk] = np.diff(ends, prepend=end)
            first, last = np.searchsorted(starts, (chunk.start + 1, chunk.start + len(ends) + 1))
            bounds[first:last] = ends[starts[first:last] - chunk.start - 1]
            end, weight = int(ends[-1]), float(sums[-1])
        return cls(samples, seed, starts, bounds, ticks, _digest(samples, ticks))

    @property
    def copies(self) -> int:
        """Largest number of times that a record comes in an epoch."""
        if self.ticks is None:
            return -(-self.samples // int(self.starts[-1]))
        return -(-int(self.ticks.max()) >> _TICKS)

    def counts(self, epoch: int) -> I64:
        """Samples of each container in an epoch, int64 (containers,)."""
        return np.diff((self.bounds + self._offset(epoch)) >> _TICKS)

    def to_records(self, samples: Samples, epoch: int) -> Samples:
        """Map samples of an order over :meth:`counts` to live records of their containers, and number the copies."""
        each, which = np.unique(samples.container, return_inverse=True)
        first, lengths = self.starts[each], self.starts[each + 1] - self.starts[each]
        before = np.cumsum(lengths) - lengths
        records = np.arange(lengths.sum()) + np.repeat(first - before, lengths)
        if self.ticks is None:
            begins, ends = (_equal_ticks(records + k, self.samples, int(self.starts[-1])) for k in (0, 1))
        else:
            ticks = self.ticks[records].astype(np.int64)
            begins = np.cumsum(ticks) - ticks
            begins += np.repeat(self.bounds[each] - begins[before], lengths)
            ends = begins + ticks
        offset = self._offset(epoch)
        number = ((self.bounds[each] + offset) >> _TICKS)[which] + samples.record
        found = np.searchsorted((ends + offset) >> _TICKS, number, side="right")
        copy = number - ((begins[found] + offset) >> _TICKS)
        return replace(samples, record=records[found] - first[which], copy=copy)

    def samples_of(self, container: int, record: int, epoch: int) -> range:
        """The samples of a container that are one of its records, a live-record number; see :meth:`to_records`."""
        first = int(self.starts[container])
        if self.ticks is None:
            total = int(self.starts[-1])
            begin, end = (int(_equal_ticks(np.array(first + record + k), self.samples, total)) for k in (0, 1))
        else:
            begin = int(self.bounds[container]) + int(self.ticks[first : first + record].sum(dtype=np.int64))
            end = begin + int(self.ticks[first + record])
        offset = self._offset(epoch)
        before = (int(self.bounds[container]) + offset) >> _TICKS
        return range(((begin + offset) >> _TICKS) - before, ((end + offset) >> _TICKS) - before)

    def _offset(self, epoch: int) -> int:
        start = int(rng.bits(rng.key(rng.WEIGHT, self.seed), 0)) >> (64 - _TICKS)
        return (start + epoch * _GOLDEN) % (1 << _TICKS)


def apportion(
    dataset: Dataset, *, weights: str | npt.ArrayLike | None, balance: str | None, repeat: float, seed: int
) -> Apportionment | None:
    """Make the shares that a Loader's options ask for; None if every record comes once an epoch.

    Raises:
        UsageError: the options do not fit together, or weights are missing, negative, not finite or all zero.
    """
    if not (isinstance(repeat, (int, float)) and math.isfinite(repeat) and repeat > 0):
        raise UsageError(f"repeat is {repeat!r}; give a positive number")
    if weights is not None and balance is not None:
        raise UsageError("weights and balance exclude each other; multiply the weights by those of the classes")
    if weights is None and balance is None and repeat == 1:
        return None
    samples = round(repeat * len(dataset))
    if not 1 <= samples <= _MAX_SAMPLES or len(dataset) > _MAX_SAMPLES:
        raise UsageError(f"{repeat} times {len(dataset):,} records; 1 to {_MAX_SAMPLES:,} samples are possible")
    counts = dataset.live.counts
    if weights is not None:
        return Apportionment.weighted(counts, _check_weights(dataset, weights), samples, seed=seed)
    if balance is not None:
        return Apportionment.weighted(counts, _balance_weights(dataset, balance), samples, seed=seed)
    return Apportionment.equal(counts, samples, seed=seed)


def _check_weights(dataset: Dataset, weights: str | npt.ArrayLike) -> Array:
    name = f"the column {weights!r}" if isinstance(weights, str) else "weights"
    array = np.asarray(dataset.table[weights] if isinstance(weights, str) else weights)
    if array.shape != (len(dataset),) or array.dtype.kind not in "iufb":
        text = f"{name}: an array of shape {array.shape} and {array.dtype}"
        raise UsageError(f"{text}; a number for each of {len(dataset):,} records is needed")
    for what, wrong in (("not finite", ~np.isfinite(array)), ("negative", array < 0)):
        if wrong.any():
            first = int(wrong.argmax())
            text = f"{name}: {int(wrong.sum()):,} of {len(array):,} are {what}, the first is {array[first]}"
            raise UsageError(f"{text}, of position {first}")
    if not array.any():
        raise UsageError(f"{name}: all are zero, so that no record would come")
    return array


def _balance_weights(dataset: Dataset, name: str) -> Array:
    """Weigh each record by the inverse of the number of records with its value."""
    values = np.array(dataset.table[name])
    if values.ndim != 1 or values.dtype.kind not in "iuU":
        raise UsageError(f"balance={name!r}: a column of integers or texts with a value for each record is needed")
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    weights: Array = (1 / counts)[which]
    return weights


def _running_sums(weights: Array, start: float) -> Array:
    """Add up weights from ``start`` on, float64 (n,)."""
    sums: Array = np.cumsum(np.concatenate(([start], weights.astype(np.float64))))[1:]
    return sums


def _equal_ticks(records: I64, samples: int, count: int) -> I64:
    """Ticks before each of ``count`` records of equal shares, rounded down."""
    each, rest = divmod(samples << _TICKS, count)
    return records * each + records * rest // count


def _digest(samples: int, ticks: Array | None) -> str:
    hashed = hashlib.sha256(str(samples).encode())
    if ticks is not None:
        hashed.update(ticks.data)
    return hashed.hexdigest()[:16]
