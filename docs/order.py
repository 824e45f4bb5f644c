"""The ids of any global batch, by docs/order.md, without picstore.

    python docs/order.py DATASET SEED EPOCH BATCH SIZE [LANES]
    batches(read_ids("train"), seed=0, epoch=3, size=256)[17]    ids of global batch 17, in the order of the epoch

SIZE is ``global_batch_size``, or ranks times ``batch_size``. LANES is a loader's ``lanes``: by default the smallest
multiple of the ranks from 32 on, and with ``shuffle=False`` the ranks; a loader's state holds it. A state of another
version of the order than 2 needs another program.

It needs NumPy and reader.py. It covers loaders of one dataset, in plain and in stored order, with deletions,
selections by id, repeated augmentation (SIZE then counts records), and Views and Progressive, which have no
influence on the order. It does not cover weights, ``balance`` and ``repeat``, Buckets, Sequences and mixtures; the
part of each rank and the slots in it; and damaged records, in whose place a batch has others.
"""

import sys
from pathlib import Path

import numpy as np
import reader

VERSION = 2  # of the order
MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(z):
    """The finalizer of SplitMix64, of a number below 2**64."""
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return z ^ z >> 31


def key(*words):
    """Fold integers into a key."""
    k = 0
    for word in words:
        k = mix((k + GOLDEN & MASK) ^ (word & MASK))
    return k


def permutation(k, n):
    """The numbers 0 to n - 1, sorted by the n first outputs of SplitMix64(k)."""
    return sorted(range(n), key=lambda counter: mix(k + (counter + 1) * GOLDEN & MASK))


def epoch_order(counts, *, seed, epoch, lanes, shuffle=True):
    """Container, and record in it, of each sample of an epoch, given the number of records in each container."""
    k = key(3, seed, epoch)
    containers = permutation(k, len(counts)) if shuffle else range(len(counts))
    numbers = {c: permutation(key(k, c), counts[c]) if shuffle else range(counts[c]) for c in containers}
    joined = [(c, record) for c in containers for record in numbers[c]]
    shorter, longer = divmod(len(joined), lanes)
    starts = [lane * shorter + min(lane, longer) for lane in range(lanes)]
    return [joined[starts[g % lanes] + g // lanes] for g in range(len(joined))]


def global_batches(samples, size, *, drop_last=True, ranks=1):
    """Divide the samples of an epoch into global batches."""
    starts = list(range(0, len(samples) - size + 1, size))
    rest = len(samples) - size * len(starts)
    if drop_last:
        return [samples[start : start + size] for start in starts]
    if rest and (not starts or max(rest, size // 2) >= ranks):
        starts.append(max(0, min(size * len(starts), len(samples) - size // 2)))
    return [samples[start:end] for start, end in zip(starts, [*starts[1:], len(samples)], strict=True)]


def read_ids(folder, chosen=None):
    """The ids of each container's records in stored order, without deleted ones; with ``chosen`` only its ids."""
    folder, first, found = Path(folder), 0, []
    manifest = reader.read_manifest(folder)
    tombstones = reader.read_edits(manifest)["tombstones"]
    deleted = set(reader.read_array(folder, tombstones).tolist()) if tombstones else set()
    for row in reader.read_index(folder, manifest, reader.tell):
        data, _ = reader.read_container(folder, row, reader.tell)
        ids = [reader.read_entry(data, k)["id"] for k in range(row[4]) if first + k not in deleted]
        found.append(np.array([id_ for id_ in ids if chosen is None or id_ in chosen], np.int64))
        first += row[4]
    return found


def batches(ids, *, seed, epoch, size, lanes=32, shuffle=True, drop_last=True, ranks=1):
    """Ids of each global batch of an epoch, given the ids of each container."""
    samples = epoch_order([len(each) for each in ids], seed=seed, epoch=epoch, lanes=lanes, shuffle=shuffle)
    found = [int(ids[container][record]) for container, record in samples]
    return global_batches(found, size, drop_last=drop_last, ranks=ranks)


def main(folder, *numbers):
    """Print the ids of one batch."""
    seed, epoch, batch, size, *lanes = map(int, numbers)
    lane_count, ids = (*lanes, 32)[0], read_ids(folder)
    print(*batches(ids, seed=seed, epoch=epoch, size=size, lanes=lane_count, drop_last=False)[batch])


if __name__ == "__main__":
    main(*sys.argv[1:])
