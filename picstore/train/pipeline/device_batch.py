"""Batches on a device, made of HostBatches in a thread whose current stream is its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch

from picstore.arrays import I64, Bools
from picstore.errors import Corrupt, Damage
from picstore.train.batch import Batch, image_tensors
from picstore.train.batching.damage import replace_damaged
from picstore.train.batching.host_batch import EncodedBatch, HostBatch
from picstore.train.batching.parameters import TransformParams
from picstore.train.batching.spec import GroupSpec, OutputSpec
from picstore.train.cuda.decode import Decode, decode_all
from picstore.train.transforms.geometry import Geometry


@dataclass(frozen=True, slots=True)
class MadeBatch:
    """A batch on its device, the records that were replaced, and why a GPU's decoder left images to the CPU."""

    batch: Batch
    damage: list[Damage]
    refused: list[str] = field(default_factory=list)


MakeBatch: TypeAlias = Callable[[HostBatch], MadeBatch]


@dataclass(frozen=True)
class CopyBatch:
    """Copies decoded batches to a GPU, by page-locked memory, so that the host does not wait; a ``MakeBatch``."""

    output: OutputSpec
    device: torch.device

    def __call__(self, host: HostBatch) -> MadeBatch:
        """Queue the copy of a batch."""
        tensors = image_tensors(host.images, getattr(torch, self.output.dtype))
        pinned = Batch.from_host(host, tensors, self.output.groups).pin_memory()
        host.release()
        return MadeBatch(pinned.to(self.device, non_blocking=True), host.damage)


@dataclass(frozen=True)
class DecodeBatch:
    """Decodes and augments batches of streams on a device; a ``MakeBatch``.

    An image that does not decode is replaced, or ends the batches if ``strict`` is set.
    """

    output: OutputSpec
    device: torch.device
    decode: Decode
    strict: bool

    def __call__(self, host: HostBatch) -> MadeBatch:
        """Decode and augment a batch; Damage where it cannot be replaced or ``strict`` is set."""
        encoded, device = host.encoded, self.device
        if encoded is None:
            raise TypeError("a batch for a decoder on a device has no streams")
        slots = np.unique(encoded.shown)
        data = torch.from_numpy(np.asarray(host.images))
        streams = [data[start:stop] for start, stop in encoded.bounds[slots].tolist()]
        decoded = decode_all(streams, encoded.boxes[slots, 2:], decode=self.decode, device=device)
        image_of = dict(zip(slots.tolist(), decoded.images, strict=True))
        broken = {int(slots[number]): text for number, text in decoded.problems.items()}
        damage = _replace_broken(host, encoded, broken) if broken else []
        if damage and self.strict:
            raise damage[0]
        shown = encoded.shown.tolist()
        origins, images = encoded.boxes[shown, :2], [image_of[slot] for slot in shown]
        groups = [
            augment_views(images, origins, params.select_slots(encoded.shown, count=group.count), self.output, group)
            for params, group in zip(encoded.params, self.output.groups, strict=True)
        ]
        batch = Batch.from_host(host, groups, self.output.groups)
        return MadeBatch(batch.to(device, non_blocking=True), [*host.damage, *damage], decoded.refused)


def _replace_broken(host: HostBatch, encoded: EncodedBatch, broken: dict[int, str]) -> list[Damage]:
    """Replace images that do not decode, given by the slot of their stream; returns their damage."""
    problems: dict[int, Damage] = {
        slot: Corrupt(f"record {host.ids[slot]} {broken[shown]}", *encoded.files[shown])
        for slot, shown in enumerate(encoded.shown.tolist())
        if shown in broken
    }
    replace_damaged(host, problems)
    return list(problems.values())


def augment_views(
    images: Sequence[torch.Tensor], origins: I64, params: TransformParams, output: OutputSpec, group: GroupSpec
) -> Any:
    """Resample and colour decoded images (3, h, w): a group's views (count, N, 3, H, W), or count lists of N images.

    ``origins``, int64 (n, 2), are left and top of each in its stored image.
    """
    count, n = group.count, len(images)
    made = augment_images(list(images) * count, np.tile(origins, (count, 1)), params, output, group)
    if isinstance(made, list):
        return [made[k : k + n] for k in range(0, len(made), n)]
    return made.view(count, n, *made.shape[1:])


def augment_images(
    images: Sequence[torch.Tensor], origins: I64, params: TransformParams, output: OutputSpec, group: GroupSpec
) -> torch.Tensor | list[torch.Tensor]:
    """Resample and colour decoded images, one for each row of ``params``: (n, 3, H, W), or a list of sizes."""
    from picstore.train.cuda.augment import augment  # with Triton

    made: Any = []
    rest = np.flatnonzero(~_is_unchanged(params, output, group))
    if len(rest):
        chosen = [images[slot] for slot in rest.tolist()]
        if len(rest) < len(images):
            params = params.select_slots(rest, count=1)
        ones = np.ones(len(rest), dtype=np.int64)
        options: dict[str, Any] = {"dtype": output.dtype, "channels_last": output.channels_last}
        made = augment(chosen, origins[rest], ones, params.geometry, params.program, **options)
    if group.stacked:
        return made  # type: ignore[no-any-return]
    by_slot = dict(zip(rest.tolist(), made, strict=True))
    listed = [by_slot.get(slot, image) for slot, image in enumerate(images)]
    firsts = {id(image): slot for slot, image in reversed(list(enumerate(listed)))}
    # The replacement of a damaged image is a copy, as are views that equal the decoded image: writing to one must not
    # change another.
    return [image if firsts[id(image)] == slot else image.clone() for slot, image in enumerate(listed)]


def _is_unchanged(params: TransformParams, output: OutputSpec, group: GroupSpec) -> Bools:
    """bool (n,): which outputs equal the decoded image; none of a batch that is one tensor."""
    geometry = params.geometry
    if group.stacked or output.dtype != "uint8" or output.channels_last or not params.program.empty:
        return np.zeros(len(geometry.size), dtype=np.bool_)
    same = (geometry.frame == Geometry.identity(*geometry.source_size.T).frame).all(axis=(1, 2))
    unchanged: Bools = same & (geometry.size == geometry.source_size).all(axis=1) & ~geometry.shows_edges
    return unchanged
