"""Number of times that an epoch has each record, by weights: exact arithmetic instead of random draws.

Record i has a share of the samples of an epoch, in ticks of 2**-30 samples. C_i is the sum of the shares before record
i, and t an offset of the epoch. The epoch has record i floor(C_{i+1} + t) - floor(C_i + t) times. So every epoch has
the same number of samples, and each record comes as often as its share says, rounded down or up. The offsets of epochs
are multiples of the golden ratio, which fill [0, 1) evenly, so that roundings cancel over epochs. Nothing is stored or
communicated. docs/order.md has the formulas.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from picstore import rng
from picstore.arrays import F64, I64, Array
from picstore.errors import UsageError, counted
from picstore.storage.dataset import Dataset
from picstore.train.order.epoch_order import Samples

_TICKS = 30  # A record's share of an epoch's samples is counted in ticks: 2**30 ticks are one sample.
# An epoch's offset is added to sums of shares before they are rounded. It grows by this number of ticks with each
# epoch: about 2**30 times the golden ratio's fractional part, and odd, so that 2**30 epochs have different offsets.
_GOLDEN = 663_608_941
# Maximum number of samples, and of records, which keeps sums of shares in ticks within 63 bits.
_MAX_SAMPLES = 1 << 31
# Largest binary exponent of a weight, which keeps the sum of 2**31 weights, and 2**61 ticks divided by it, finite.
_MAX_EXPONENT = 512
# Number of weights to add up at a time: so few that they fit the cache, and that malloc reuses freed memory for them.
_CHUNK = 1 << 13


@dataclass(frozen=True, slots=True)
class RecordShares:
    """Shares of a dataset's live (not deleted) records in an epoch of ``samples`` samples.

    A record's share is its mean number of samples in an epoch; each epoch rounds the share up or down.

    Attributes:
        starts: int64 (containers + 1,), number of live records before each container.
        bounds: int64 (containers + 1,), sum of shares before each container, in ticks of 2**-30 samples.
        copies: maximum number of samples of one record in an epoch.
        digest: hash of the shares, 16 hexadecimal digits.
        weights: weights of the records; None if all records have the same share.
    """

    samples: int
    seed: int
    starts: I64 = field(repr=False)
    bounds: I64 = field(repr=False)
    copies: int
    digest: str
    weights: RecordWeights | None = field(default=None, repr=False)

    @classmethod
    def equal(cls, counts: I64, samples: int, *, seed: int) -> RecordShares:
        """Return equal shares for all records, given the number of records in each container."""
        starts: I64 = np.concatenate(([0], np.cumsum(counts)))
        records = int(starts[-1])
        bounds, digest = _equal_ticks(starts, samples, records), hashlib.sha256(str(samples).encode())
        return cls(samples, seed, starts, bounds, -(-samples // records), digest.hexdigest()[:16])

    @classmethod
    def weighted(
        cls, counts: I64, weights: Array, samples: int, *, seed: int, values: Array | None = None
    ) -> RecordShares:
        """Return shares in proportion to the records' weights.

        Args:
            weights: (records,), at least 0, not all 0; if ``values`` is given, each weight's index in ``values``.
        """
        starts: I64 = np.concatenate(([0], np.cumsum(counts)))
        sums, total = np.zeros(len(starts)), 0.0
        for start in range(0, len(weights), _CHUNK):
            chunk = _look_up(weights[start : start + _CHUNK], values)
            # Add one weight after another, so that the sums are the same on every machine.
            running = np.cumsum(np.append(total, chunk))
            first, last = np.searchsorted(starts, (start + 1, start + len(chunk) + 1))
            sums[first:last] = running[starts[first:last] - start]
            total = float(running[-1])
        found = RecordWeights(weights, values, sums, total, samples << _TICKS)
        largest, digest = found.summarize(samples)
        return cls(samples, seed, starts, found.to_ticks(sums), -(-largest >> _TICKS), digest, found)

    def counts(self, epoch: int) -> I64:
        """Return the number of samples of each container in an epoch, int64 (containers,)."""
        bounds = self.bounds + self._offset(epoch)
        # Shift bits in place, because allocating a new array would take longer than the shift.
        bounds >>= _TICKS
        return np.diff(bounds)

    def times(self, epoch: int) -> I64:
        """Return the number of samples of each record in an epoch, int64 (records,)."""
        found, offset = np.empty(int(self.starts[-1]), dtype=np.int64), self._offset(epoch)
        for start in range(0, len(self.starts) - 1, _CHUNK):
            containers = np.arange(start, min(start + _CHUNK, len(self.starts) - 1))
            _, begins, ends = self._ticks(containers)
            mine = slice(self.starts[containers[0]], self.starts[containers[-1] + 1])
            found[mine] = ((ends + offset) >> _TICKS) - ((begins + offset) >> _TICKS)
        return found

    def to_records(self, samples: Samples, epoch: int) -> Samples:
        """Replace ``record``, an index among a container's samples, by the index of its live record; set ``copy``."""
        each, which = np.unique(samples.container, return_inverse=True)
        first, begins, ends = self._ticks(each)
        offset = self._offset(epoch)
        number = ((self.bounds[each] + offset) >> _TICKS)[which] + samples.record
        found = np.searchsorted((ends + offset) >> _TICKS, number, side="right")
        copy = number - ((begins[found] + offset) >> _TICKS)
        return replace(samples, record=found - first[which], copy=copy)

    def samples_of(self, containers: I64, records: I64, epoch: int) -> tuple[I64, I64]:
        """Find the samples of live ``records`` among their containers' samples; the inverse of :meth:`to_records`.

        Returns:
            Two arrays int64 (n,): the index of each record's first sample among its container's samples, and the number
            of the record's samples.
        """
        each, which = np.unique(containers, return_inverse=True)
        first, begins, ends = self._ticks(each)
        offset, number = self._offset(epoch), first[which] + records
        begin, end = ((ticks[number] + offset) >> _TICKS for ticks in (begins, ends))
        return begin - ((self.bounds[containers] + offset) >> _TICKS), end - begin

    def _ticks(self, containers: I64) -> tuple[I64, I64, I64]:
        """Sum up the shares of the records of some containers, in ticks of 2**-30 samples.

        Returns:
            Three int64 arrays. For each container, the index of its first record in the other two arrays. For each
            record, the sum of all shares before it; and that sum with its own share.
        """
        lengths = self.starts[containers + 1] - self.starts[containers]
        first = np.cumsum(lengths) - lengths
        records = np.arange(lengths.sum()) + np.repeat(self.starts[containers] - first, lengths)
        if self.weights is not None:
            return first, *self.weights.ticks(containers, records, lengths)
        total = int(self.starts[-1])
        return first, _equal_ticks(records, self.samples, total), _equal_ticks(records + 1, self.samples, total)

    def _offset(self, epoch: int) -> int:
        start = int(rng.bits(rng.key(rng.WEIGHT, self.seed), 0)) >> (64 - _TICKS)
        return (start + epoch * _GOLDEN) % (1 << _TICKS)


@dataclass(frozen=True, slots=True)
class RecordWeights:
    """Weights of a dataset's live records, and sums of the weights.

    Attributes:
        weights: (records,), numbers of any type; if ``values`` is given, each weight's index in ``values``.
        values: float64, the distinct weights; None if ``weights`` are the weights themselves.
        sums: float64 (containers + 1,), sum of the weights before each container.
        whole: sum of all records' shares, in ticks of 2**-30 samples.
    """

    weights: Array
    values: Array | None
    sums: F64
    total: float
    whole: int

    def ticks(self, containers: I64, records: I64, lengths: I64) -> tuple[I64, I64]:
        """Return the sum of all shares before each record, and that sum with the record's own share, int64 (n,) each.

        Shares are in ticks of 2**-30 samples.

        Args:
            records: all records of ``containers``, one container after the other.
            lengths: number of records of each container.
        """
        inside = np.arange(lengths.max(initial=0)) < lengths[:, None]
        sums = np.zeros((len(inside), inside.shape[1] + 1))
        sums[:, 0] = self.sums[containers]
        sums[:, 1:][inside] = _look_up(self.weights[records], self.values)
        ticks = self.to_ticks(np.cumsum(sums, axis=1))
        return ticks[:, :-1][inside], ticks[:, 1:][inside]

    def to_ticks(self, sums: F64) -> I64:
        """Convert sums of weights to sums of shares, rounded to ticks of 2**-30 samples."""
        ticks = np.minimum(np.rint(sums * (self.whole / self.total)), self.whole).astype(np.int64)
        ticks[sums == self.total] = self.whole
        return ticks

    def summarize(self, samples: int) -> tuple[int, str]:
        """Return the largest share, in ticks of 2**-30 samples, and a hash of all shares, for ``samples`` per epoch."""
        hashed, weight, largest = hashlib.sha256(str(samples).encode()), 0.0, 0
        for start in range(0, len(self.weights), _CHUNK):
            sums = np.cumsum(np.append(weight, _look_up(self.weights[start : start + _CHUNK], self.values)))
            shares = np.diff(self.to_ticks(sums))
            largest, weight = max(largest, int(shares.max())), float(sums[-1])
            hashed.update(shares.data)
        return largest, hashed.hexdigest()[:16]


def record_shares(
    dataset: Dataset, *, weights: str | npt.ArrayLike | None, balance: str | None, repeat: float, seed: int
) -> RecordShares | None:
    """Compute the records' shares from a Loader's options.

    Returns:
        The shares; None if every record has one sample in each epoch.

    Raises:
        UsageError: the options do not fit together, or weights are missing, negative, not finite or all zero.
    """
    if weights is not None and balance is not None:
        raise UsageError("weights and balance exclude each other; multiply the weights by class weights")
    if weights is None and balance is None and repeat == 1:
        return None
    samples = round(repeat * len(dataset))
    if not 1 <= samples <= _MAX_SAMPLES or len(dataset) > _MAX_SAMPLES:
        text = f"{repeat} times {counted(len(dataset), 'record')}"
        raise UsageError(f"{text}; 1 to {_MAX_SAMPLES:,} samples are possible")
    counts = dataset.live.counts
    if weights is not None:
        return RecordShares.weighted(counts, _check_weights(dataset, weights), samples, seed=seed)
    if balance is not None:
        numbers, values = _balance_weights(dataset, balance)
        return RecordShares.weighted(counts, numbers, samples, seed=seed, values=values)
    return RecordShares.equal(counts, samples, seed=seed)


def _check_weights(dataset: Dataset, weights: str | npt.ArrayLike) -> Array:
    name = f"the column {weights!r}" if isinstance(weights, str) else "weights"
    try:
        # Make a copy, so that later changes by the caller have no effect.
        array = np.array(dataset.table[weights] if isinstance(weights, str) else weights)
    except ValueError as error:  # the error for a list of lists of different lengths
        raise UsageError(
            f"{name}: {error}; a number for each of {counted(len(dataset), 'record')} is needed"
        ) from error
    if array.shape != (len(dataset),) or array.dtype.kind not in "iufb":
        text = f"{name}: an array of shape {array.shape} and {array.dtype}"
        raise UsageError(f"{text}; a number for each of {counted(len(dataset), 'record')} is needed")
    if not (np.isfinite(array.max()) and array.min() >= 0):
        what, wrong = ("negative", array < 0) if np.isfinite(array).all() else ("not finite", ~np.isfinite(array))
        first = int(wrong.argmax())
        text = f"{name}: {int(wrong.sum()):,} of {len(array):,} are {what}, the first is {array[first]}"
        raise UsageError(f"{text}, of position {first}; give numbers of at least 0")
    if not array.any():
        raise UsageError(f"{name}: all are zero; give one above 0")
    return _scale(array)


def _scale(weights: Array) -> Array:
    """Multiply weights by a power of two if their sum or its inverse would overflow; no share changes."""
    exponent = int(np.frexp(weights.max())[1]) if weights.dtype.kind == "f" else 0
    if -_MAX_EXPONENT < exponent <= _MAX_EXPONENT:
        return weights
    return np.ldexp(weights, -exponent).astype(np.float64)


def _balance_weights(dataset: Dataset, name: str) -> tuple[Array, Array]:
    """Give each record the weight 1 / (number of records with its value in column ``name``).

    Returns:
        Index of each record's value among the distinct values, and the weight for each distinct value.
    """
    values = np.array(dataset.table[name])
    if values.ndim != 1 or values.dtype.kind not in "iuU":
        raise UsageError(f"balance={name!r}: a column of integers or texts with a value for each record is needed")
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    return which.astype(np.min_scalar_type(len(counts))), 1 / counts


def _look_up(weights: Array, values: Array | None) -> F64:
    return weights.astype(np.float64) if values is None else values[weights]


def _equal_ticks(records: I64, samples: int, count: int) -> I64:
    """Return the sum of equal shares before each of ``records``, rounded down to ticks of 2**-30 samples."""
    each, rest = divmod(samples << _TICKS, count)
    return records * each + records * rest // count
