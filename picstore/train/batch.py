"""One batch, stage by stage and without threads: draft what goes where, fill slots with pixels, finish.

A slot is a position in the batch. Slots are filled in any order by any thread; each depends on nothing but its draft.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from picstore.errors import Corrupt, Damage, ImageError
from picstore.storage.checksum import crc32c, masked
from picstore.storage.container import Container
from picstore.storage.dataset import Dataset
from picstore.storage.record import NO_SEGMENTS
from picstore.train.cut import Lengths, Stream, cut_streams, layouts_of
from picstore.train.decode import SCALES, decode_rgb
from picstore.train.geometry import Draws, Geometry, Transform, compose, output_size
from picstore.train.memory import Blocks
from picstore.train.plan import Ints, Samples
from picstore.train.resample import resample


@dataclass(frozen=True, eq=False)
class Batch:
    """What a loader yields; ``images, labels = batch`` works too.

    Attributes:
        images: uint8 (N, 3, H, W), or a list of N uint8 (3, H, W) when no transform fixes the size.
        labels: int64 (N,).
        ids: int64 (N,), of the records.
    """

    images: torch.Tensor | list[torch.Tensor]
    labels: torch.Tensor
    ids: torch.Tensor

    def __iter__(self) -> Iterator[torch.Tensor | list[torch.Tensor]]:
        return iter((self.images, self.labels))

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, slots=True)
class Source:
    """A data set as a loader or mux reads it; ``base`` is added to labels other than −1."""

    dataset: Dataset
    seed: int
    base: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """The samples of a batch that come from one epoch of one source, and their slots, int64 (n,)."""

    source: int
    epoch: int
    samples: Samples
    slots: Ints


@dataclass(frozen=True, slots=True)
class Draft:
    """All that is known of a batch before pixels: arrays by slot.

    Attributes:
        jpegs: one stream a slot, views of the containers; dropped once the batch is filled.
        segments: the lengths of their restart segments, views too.
        layouts: int64 (n, 6), of the stored images, see ``cut.layouts_of``; the first two columns are their sizes.
        labels, ids: −1 where nothing of the record's container can be read.
        source: number of the data set.
        places: file and offset of the record.
        lost: records of the plan for which another of their container was taken.
        problems: by slot, why it has no image.
    """

    jpegs: list[memoryview]
    segments: list[Lengths]
    layouts: Ints
    labels: Ints
    ids: Ints
    source: Ints
    places: list[tuple[str, int]]
    lost: list[Damage]
    problems: dict[int, Damage]

    def __len__(self) -> int:
        return len(self.ids)


def make_draft(
    parts: Sequence[Part],
    loaded: dict[tuple[int, int], Container | Damage],
    *,
    sources: Sequence[Source],
) -> Draft:
    """Collect streams, sizes, labels and ids of a batch from its containers.

    Args:
        parts: together they have each slot once.
        loaded: containers by source and number, or why one cannot be read at all.
    """
    count = sum(len(part.slots) for part in parts)
    draft = Draft(
        jpegs=[memoryview(b"")] * count,
        segments=[NO_SEGMENTS] * count,
        layouts=np.ones((count, 6), dtype=np.int64),
        labels=np.full(count, -1, dtype=np.int64),
        ids=np.full(count, -1, dtype=np.int64),
        source=np.zeros(count, dtype=np.int64),
        places=[("", 0)] * count,
        lost=[],
        problems={},
    )
    for part in parts:
        root = sources[part.source].dataset.path
        draft.source[part.slots] = part.source
        for number in np.unique(part.samples.container):
            chosen = part.samples.container == number
            container = loaded[part.source, int(number)]
            _collect(draft, container, part.slots[chosen], part.samples.record[chosen], root=root)
        known = part.slots[draft.labels[part.slots] >= 0]
        draft.labels[known] += sources[part.source].base
    return draft


def make_geometry(
    draft: Draft, parts: Sequence[Part], *, sources: Sequence[Source], transforms: Sequence[Transform]
) -> Geometry:
    """Draw the parameters of the transforms: the geometry of each slot."""
    found = []
    for part in parts:
        draws = Draws(sources[part.source].seed, part.epoch, draft.ids[part.slots])
        identity = Geometry.of_images(draft.layouts[part.slots, 0], draft.layouts[part.slots, 1])
        found.append(compose(transforms, identity, draws))
    order = np.argsort(np.concatenate([part.slots for part in parts]))
    joined = {
        name: np.concatenate([getattr(geometry, name) for geometry in found])[order]
        for name in ("source", "box", "clip", "size", "flip")
    }
    return Geometry(**joined, antialias=found[0].antialias)


def _collect(draft: Draft, container: Container | Damage, slots: Ints, records: Ints, *, root: Path) -> None:
    """Fill the slots of one container's records."""
    if isinstance(container, Damage):
        draft.problems.update((slot, container) for slot in slots.tolist())
        return
    place = str(root / container.place.name)
    good = container.good[records]
    if not good.all():
        losses = [_loss(container, record, place) for record in records[~good].tolist()]
        if not container.good.any():
            draft.problems.update(zip(slots.tolist(), losses, strict=True))
            return
        draft.lost.extend(losses)
        records = _replacements(container, records)
    entries = container.index[records]
    for slot, offset, length in zip(slots, entries["offset"].tolist(), entries["length"].tolist(), strict=True):
        draft.places[slot] = (place, container.place.offset + offset)
        draft.jpegs[slot] = container.buffer[offset : offset + length]
    if container.segment_table is not None:
        pairs = zip(entries["segment_first"].tolist(), entries["segment_count"].tolist(), strict=True)
        for slot, (first, segments) in zip(slots, pairs, strict=True):
            draft.segments[slot] = container.segment_table[first : first + segments]
    draft.layouts[slots] = layouts_of(entries)
    draft.labels[slots] = entries["label"]
    draft.ids[slots] = entries["id"]


def _replacements(container: Container, records: Ints) -> Ints:
    """The records, with the next good one of the container for each that is lost."""
    good = np.flatnonzero(container.good)
    return good[np.searchsorted(good, records) % len(good)]


def _loss(container: Container, record: int, place: str) -> Damage:
    """What to say of a lost record; its id and offset are known if its index entry is sound."""
    entry = container.index[record]
    start = container.place.offset
    if masked(crc32c(entry.tobytes()[:-4])) == entry["entry_crc"]:
        return Corrupt(f"record {entry['id']} fails its CRC", place, start + int(entry["offset"]))
    text = f"the index entry of record number {record} in container {container.place.ordinal} is damaged"
    return Corrupt(text, place, start)


def decode_factors(geometry: Geometry) -> Ints:
    """By how much each image may be decoded smaller, 1, 2, 4 or 8: as long as its box stays at least as large as its
    output. Without antialiasing always 1: a smaller decode averages, which plain bilinear does not.
    """
    shrink = (geometry.box[:, 2:] / geometry.size).min(axis=1)
    if not (geometry.antialias and SCALES):
        return np.ones(len(shrink), dtype=np.int64)
    factors: Ints = np.left_shift(1, np.clip(np.log2(np.maximum(shrink, 1)), 0, 3).astype(np.int64))
    return factors


class Pixels:
    """The images of a batch while they are being filled.

    One uint8 tensor (N, 3, H, W) where the transforms fix a size, a list of tensors otherwise.
    """

    def __init__(self, geometry: Geometry, transforms: Sequence[Transform], blocks: Blocks) -> None:
        count = len(geometry.size)
        self._geometry = geometry
        self._reach = geometry.reach()
        self._factors = decode_factors(geometry)
        fixed = output_size(transforms)
        self._arrays: list[npt.NDArray[np.uint8]]
        if fixed is not None:
            # Fresh pages for every batch would cost a tenth of the time that it takes to fill.
            shape = (count, 3, *fixed)
            memory = blocks.take(math.prod(shape))
            self.images: torch.Tensor | list[torch.Tensor] = torch.frombuffer(memory, dtype=torch.uint8).reshape(shape)
            self._arrays = list(self.images.numpy())
        else:
            sizes = geometry.size.tolist()
            self.images = [torch.empty((3, height, width), dtype=torch.uint8) for width, height in sizes]
            self._arrays = [image.numpy() for image in self.images]

    def fill(self, draft: Draft, slots: range) -> dict[int, Damage]:
        """Decode and resample some slots; returns by slot what went wrong."""
        problems: dict[int, Damage] = {}
        chosen = [slot for slot in slots if slot not in draft.problems]
        jpegs, segments = [draft.jpegs[slot] for slot in chosen], [draft.segments[slot] for slot in chosen]
        streams = cut_streams(jpegs, draft.layouts[chosen], segments, self._reach[chosen])
        for slot, stream in zip(chosen, streams, strict=True):
            problem = self._fill_slot(slot, stream)
            if problem:
                problems[slot] = Corrupt(f"record {draft.ids[slot]} {problem}", *draft.places[slot])
        return problems

    def _fill_slot(self, slot: int, stream: Stream) -> str:
        """Decode and resample one image; what is wrong with it, if anything."""
        geometry, factor = self._geometry, int(self._factors[slot])
        try:
            pixels = decode_rgb(stream.jpeg, width=stream.width, height=stream.height, factor=factor)
        except ImageError as error:
            return str(error)  # the error itself would keep the container in memory by its traceback
        box, clip = geometry.box[slot].copy(), geometry.clip[slot].copy()
        box[:2] -= stream.left, stream.top
        clip -= stream.left, stream.top, stream.left, stream.top
        if factor > 1:
            box /= factor
            clip[:2] //= factor
            clip[2:] = -(-clip[2:] // factor)
        resample(
            pixels, box, clip, flip=bool(geometry.flip[slot]), antialias=geometry.antialias, out=self._arrays[slot]
        )
        return ""

    def copy(self, source: int, target: int) -> None:
        """Show the image of slot ``source`` in slot ``target`` too."""
        if isinstance(self.images, list):
            self.images[target] = self.images[source].clone()
        else:
            self.images[target] = self.images[source]
