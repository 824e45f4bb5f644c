"""One batch, stage by stage and without threads: draft what goes where, fill slots with pixels, finish.

A slot is a position in the batch. Slots are filled in any order by any thread; each depends on nothing but its draft.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from picstore.errors import Damage, ImageError
from picstore.storage.container import Container
from picstore.storage.dataset import Dataset
from picstore.train.decode import decode_rgb
from picstore.train.geometry import Draws, Geometry, Transform, compose, output_size
from picstore.train.plan import Ints, Samples
from picstore.train.resample import resample

logger = logging.getLogger("picstore")


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
        jpegs: one stream a slot, views of the containers; empty where the record is lost.
        width, height: of the stored images.
        problems: by slot, why a record is lost.
        where: by slot, file and offset for messages.
    """

    jpegs: list[memoryview]
    width: Ints
    height: Ints
    labels: Ints
    ids: Ints
    problems: dict[int, Exception]
    where: list[str]


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
        width=np.ones(count, dtype=np.int64),
        height=np.ones(count, dtype=np.int64),
        labels=np.full(count, -1, dtype=np.int64),
        ids=np.full(count, -1, dtype=np.int64),
        problems={},
        where=[""] * count,
    )
    for part in parts:
        for number in np.unique(part.samples.container):
            chosen = part.samples.container == number
            _collect(draft, loaded[part.source, int(number)], part.slots[chosen], part.samples.record[chosen])
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
        identity = Geometry.of_images(draft.width[part.slots], draft.height[part.slots])
        found.append(compose(transforms, identity, draws))
    order = np.argsort(np.concatenate([part.slots for part in parts]))
    joined = {
        name: np.concatenate([getattr(geometry, name) for geometry in found])[order]
        for name in ("source", "box", "clip", "size", "flip")
    }
    return Geometry(**joined, antialias=found[0].antialias)


def _collect(draft: Draft, container: Container | Damage, slots: Ints, records: Ints) -> None:
    """Fill the slots of one container's records."""
    if isinstance(container, Damage):
        draft.problems.update((int(slot), container) for slot in slots)
        return
    entries = container.index[records]
    good = container.good[records]
    name = container.place.name
    for slot, entry, sound in zip(slots.tolist(), entries, good.tolist(), strict=True):
        offset = int(entry["offset"])
        draft.where[slot] = f"{name} at byte {container.place.offset + offset}"
        if sound:
            draft.jpegs[slot] = container.buffer[offset : offset + int(entry["length"])]
        else:
            draft.problems[slot] = container.damage[0]
    sound_slots = slots[good]
    draft.width[sound_slots] = entries["width"][good]
    draft.height[sound_slots] = entries["height"][good]
    draft.labels[sound_slots] = entries["label"][good]
    draft.ids[sound_slots] = entries["id"][good]


class Pixels:
    """The images of a batch while they are being filled.

    One uint8 tensor (N, 3, H, W) where the transforms fix a size, a list of tensors otherwise.
    """

    def __init__(self, geometry: Geometry, transforms: Sequence[Transform]) -> None:
        count = len(geometry.size)
        self._geometry = geometry
        fixed = output_size(transforms)
        self._arrays: list[npt.NDArray[np.uint8]]
        if fixed is not None:
            self.images: torch.Tensor | list[torch.Tensor] = torch.empty((count, 3, *fixed), dtype=torch.uint8)
            self._arrays = list(self.images.numpy())
        else:
            sizes = geometry.size.tolist()
            self.images = [torch.empty((3, height, width), dtype=torch.uint8) for width, height in sizes]
            self._arrays = [image.numpy() for image in self.images]

    def fill(self, draft: Draft, slots: range) -> dict[int, Exception]:
        """Decode and resample some slots; returns by slot what went wrong."""
        problems: dict[int, Exception] = {}
        geometry = self._geometry
        for slot in slots:
            if slot in draft.problems:
                continue
            try:
                pixels = decode_rgb(draft.jpegs[slot], width=int(draft.width[slot]), height=int(draft.height[slot]))
            except ImageError as error:
                problems[slot] = error
                continue
            resample(
                pixels,
                geometry.box[slot],
                geometry.clip[slot],
                flip=bool(geometry.flip[slot]),
                antialias=geometry.antialias,
                out=self._arrays[slot],
            )
        return problems

    def copy(self, source: int, target: int) -> None:
        """Show the image of slot ``source`` in slot ``target`` too."""
        if isinstance(self.images, list):
            self.images[target] = self.images[source].clone()
        else:
            self.images[target] = self.images[source]


def replace_lost(draft: Draft, pixels: Pixels, problems: dict[int, Exception]) -> None:
    """Give each lost slot the sample of the next slot that is not lost, so that the batch keeps its size.

    Raises:
        Damage, ImageError: no slot of the batch is left.
    """
    count = len(draft.jpegs)
    for slot, problem in sorted(problems.items()):
        logger.warning("record left out: %s: %s", draft.where[slot] or "a container", problem)
        for step in range(1, count):
            other = (slot + step) % count
            if other not in problems:
                break
        else:
            raise problem
        pixels.copy(other, slot)
        draft.labels[slot], draft.ids[slot] = draft.labels[other], draft.ids[other]
