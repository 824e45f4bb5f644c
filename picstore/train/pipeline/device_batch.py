"""Batches on a device, made of HostBatches in a thread whose current stream is its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from picstore.arrays import I64, U8, Bools
from picstore.errors import Corrupt, Damage, ImageError, PicstoreError
from picstore.jpeg.segment_words import HELD
from picstore.train.batch import Batch, image_tensors
from picstore.train.batching.damage import replace_damaged
from picstore.train.batching.host_batch import EncodedBatch, HostBatch, SegmentTables
from picstore.train.batching.parameters import TransformParams
from picstore.train.batching.spec import GroupSpec, OutputSpec
from picstore.train.batching.views_reach import box_of_decoded
from picstore.train.cuda.decode import Decode, decode_all
from picstore.train.cuda.page_locked import lock_pages
from picstore.train.transforms.geometry import Geometry

if TYPE_CHECKING:
    from picstore.train.cuda.decoded import DecodedImages


@dataclass(frozen=True, slots=True)
class MadeBatch:
    """A batch on its device, the records that were replaced, and why a GPU's decoder left images to the CPU.

    ``copied`` says that the batch was copied to page-locked memory, as its own could not be page-locked.
    """

    batch: Batch
    damage: list[Damage]
    refused: list[str] = field(default_factory=list)
    copied: bool = False


MakeBatch: TypeAlias = Callable[[HostBatch], MadeBatch]
Images: TypeAlias = "list[torch.Tensor] | DecodedImages"  # (3, h, w) each


@dataclass(frozen=True)
class CopyPixels:
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
class DecodeStreams:
    """Decodes streams by nvJPEG and augments the images on a device; a ``MakeBatch``.

    An image that does not decode is replaced, or ends the batches if ``strict`` is set.
    """

    output: OutputSpec
    device: torch.device
    decode: Decode
    strict: bool

    def __call__(self, host: HostBatch) -> MadeBatch:
        """Decode and augment a batch; Damage where it cannot be replaced or ``strict`` is set."""
        encoded = host.encoded
        if encoded is None:
            raise TypeError("a batch for a decoder on a device has no streams")
        slots = np.unique(encoded.shown)
        data = torch.from_numpy(np.asarray(host.images))
        streams = [data[start:stop] for start, stop in encoded.bounds[slots].tolist()]
        decoded = decode_all(streams, encoded.boxes[slots, 2:], decode=self.decode, device=self.device)
        images = dict(zip(slots.tolist(), decoded.images, strict=True))
        broken = {int(slots[number]): text for number, text in decoded.problems.items()}
        damage = _replace_broken(host, encoded, broken, strict=self.strict)
        shown: Any = [images[slot] for slot in encoded.shown.tolist()]
        batch = _augment(host, encoded, shown, self.output).to(self.device, non_blocking=True)
        return MadeBatch(batch, [*host.damage, *damage], decoded.refused)


@dataclass(frozen=True)
class DecodeTiles:
    """Decodes tiles by picstore's kernels and augments the images on a GPU; a ``MakeBatch``.

    Images whose segments are not sound are decoded on the CPU, whose decision about damage counts. An image that does
    not decode is replaced, or ends the batches if ``strict`` is set. The memory of a batch is page-locked at first
    sight, and free for the next one when the call returns or raises: the GPU has read it.
    """

    output: OutputSpec
    device: torch.device
    strict: bool

    def __call__(self, host: HostBatch) -> MadeBatch:
        """Decode and augment a batch.

        Raises:
            Damage: an image cannot be replaced, or ``strict`` is set.
            PicstoreError: the GPU makes other pixels than the CPU.
        """
        from picstore.train.cuda.decoded import DecodedImages  # with Triton
        from picstore.train.cuda.segments.decode import decode_tiles, explain

        encoded = host.encoded
        if encoded is None or encoded.segments is None:
            raise TypeError("a batch for picstore's decoder has no segments")
        tables, n, shows_all = encoded.segments, len(encoded.shown), encoded.shows_all
        shown = np.ones(n, np.bool_)
        if not shows_all:
            shown = np.isin(np.arange(n), encoded.shown)
            tables = replace(tables, count=np.where(shown, tables.count, 0))
        left = [] if tables.count.all() else np.flatnonzero(shown & (tables.count == 0)).tolist()
        tensors = {slot: torch.from_numpy(tables.pixels[slot]).to(self.device) for slot in left}  # decoded on the CPU
        broken, refused, parts, locked = {}, [tables.refused[slot] for slot in left], [], True
        if tables.count.any():
            locked = lock_pages(tables.block, self.device)
            decoded, status = decode_tiles(tables, device=self.device, locked=locked)
            parts.append(decoded)
            for slot in np.flatnonzero(status).tolist():
                refused.append(explain(int(status[slot])))
                try:
                    tensors[slot] = _decode_on_cpu(encoded, tables, slot).to(self.device)
                except ImageError as error:
                    broken[slot] = str(error)
        number_of = np.arange(n)  # by slot, among all images
        if tensors:
            number_of[list(tensors)] = sum(map(len, parts)) + np.arange(len(tensors))
            parts.append(DecodedImages.from_tensors(list(tensors.values())))
        images = DecodedImages.join(parts)
        if tables.probe is not None and tables.count[slot := tables.probe[0]] and slot not in broken:
            _check_pixels(images[int(number_of[slot])], encoded, tables.probe)
        damage = _replace_broken(host, encoded, broken, strict=self.strict)
        if tensors or damage or not shows_all:
            images = images.select(number_of[encoded.shown])
        batch = _augment(host, encoded, images, self.output).to(self.device, non_blocking=True)
        return MadeBatch(batch, [*host.damage, *damage], refused, copied=not locked)


def _decode_on_cpu(encoded: EncodedBatch, tables: SegmentTables, slot: int) -> torch.Tensor:
    """Decode what is held of a slot on the CPU, (3, h, w), and note where it lies; ImageError for damage."""
    from picstore.train.cpu.decode import decode_held  # loads kernels, which are seldom needed beside a GPU

    arrays, first = tables.arrays, int(tables.first[slot])
    start, stop = encoded.bounds[slot].tolist()
    held = arrays["lengths"][first : first + int(arrays["images"][slot, HELD])]
    stream, tiling, box = arrays["data"][start:stop], arrays["tilings"][slot], arrays["boxes"][slot]
    factor = int(encoded.factors[slot])
    pixels, (left, top) = decode_held(stream, tiling, box, held, factor=factor)
    encoded.boxes[slot] = left, encoded.boxes[slot, 1] + top, factor * pixels.shape[1], factor * pixels.shape[0]
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))


def _check_pixels(image: torch.Tensor, encoded: EncodedBatch, probe: tuple[int, U8, I64]) -> None:
    """Compare an image with the CPU's pixels of a box in it; PicstoreError if they differ."""
    slot, expected, box = probe
    left, top, right, bottom = box_of_decoded(box, encoded.boxes[slot, :2], int(encoded.factors[slot]))
    if not np.array_equal(image[:, top:bottom, left:right].cpu().numpy(), expected):
        raise PicstoreError(
            "the GPU decodes an image to other pixels than the CPU; give decoder='cpu' or 'torchvision', and report "
            "the GPU, its driver, and the versions of torch and triton"
        )


def _augment(host: HostBatch, encoded: EncodedBatch, images: Images, output: OutputSpec) -> Batch:
    """Augment the images that a batch shows on their device; labels and the rest stay in the host's memory."""
    shows_all = encoded.shows_all
    origins, factors = encoded.boxes[:, :2], encoded.factors
    if not shows_all:
        origins, factors = origins[encoded.shown], factors[encoded.shown]
    groups = []
    for params, group in zip(encoded.params, output.groups, strict=True):
        chosen = params if shows_all else params.select_slots(encoded.shown, count=group.count)
        groups.append(augment_views(images, (origins, factors), chosen, output, group))
    return Batch.from_host(host, groups, output.groups)


def _replace_broken(host: HostBatch, encoded: EncodedBatch, broken: dict[int, str], *, strict: bool) -> list[Damage]:
    """Replace images that do not decode, given by the slot of their stream; returns or raises their damage."""
    if not broken:
        return []
    problems: dict[int, Damage] = {
        slot: Corrupt(f"record {host.ids[slot]} {broken[shown]}", *encoded.files[shown])
        for slot, shown in enumerate(encoded.shown.tolist())
        if shown in broken
    }
    damage = list(problems.values())
    if damage and strict:
        raise damage[0]
    replace_damaged(host, problems)
    return damage


def augment_views(
    images: Images, places: tuple[I64, I64], params: TransformParams, output: OutputSpec, group: GroupSpec
) -> Any:
    """Resample and color decoded images (3, h, w): a group's views (count, N, 3, H, W), or count lists of N images.

    ``places`` are int64 (n, 2), left and top of each in its stored image, and (n,), by how much decoding divided its
    sides.
    """
    count, n = group.count, len(images)
    if count > 1:
        again = np.tile(np.arange(n), count)
        images, places = _select(images, again), (places[0][again], places[1][again])
    made = augment_images(images, places, params, output, group)
    if isinstance(made, list):
        return [made[k : k + n] for k in range(0, len(made), n)]
    return made.view(count, n, *made.shape[1:])


def _select(images: Images, numbers: I64) -> Images:
    """Some images, in this order."""
    return [images[number] for number in numbers.tolist()] if isinstance(images, list) else images.select(numbers)


def augment_images(
    images: Images, places: tuple[I64, I64], params: TransformParams, output: OutputSpec, group: GroupSpec
) -> torch.Tensor | list[torch.Tensor]:
    """Resample and color decoded images, one for each row of ``params``: (n, 3, H, W), or a list of sizes."""
    from picstore.train.cuda.augment import augment  # with Triton

    origins, factors = places
    options: dict[str, Any] = {"dtype": output.dtype, "channels_last": output.channels_last, "factors": factors}
    if group.stacked:
        return augment(images, origins, params.geometry, params.program, **options)
    made: Any = []
    rest = np.flatnonzero(~_is_unchanged(params, output))
    if len(rest):
        chosen = images
        if len(rest) < len(images):
            chosen = _select(images, rest)
            params = params.select_slots(rest, count=1)
        options["factors"] = factors[rest]
        made = augment(chosen, origins[rest], params.geometry, params.program, **options)
    by_slot = dict(zip(rest.tolist(), made, strict=True))
    listed = [by_slot[slot] if slot in by_slot else image.contiguous() for slot, image in enumerate(images)]
    firsts = {image.data_ptr(): slot for slot, image in reversed(list(enumerate(listed)))}
    # The replacement of a damaged image is a copy, as are views that equal the decoded image: writing to one must not
    # change another.
    return [image if firsts[image.data_ptr()] == slot else image.clone() for slot, image in enumerate(listed)]


def _is_unchanged(params: TransformParams, output: OutputSpec) -> Bools:
    """bool (n,): which outputs equal the decoded image."""
    geometry = params.geometry
    if output.dtype != "uint8" or output.channels_last or not params.program.empty:
        return np.zeros(len(geometry.size), dtype=np.bool_)
    same = (geometry.frame == Geometry.identity(*geometry.source_size.T).frame).all(axis=(1, 2))
    unchanged: Bools = same & (geometry.size == geometry.source_size).all(axis=1) & ~geometry.shows_edges
    return unchanged
