"""One batch, stage by stage and without threads: draw what happens to its images, fill slots with pixels.

Slots are filled in any order by any thread; each depends on nothing but its draft and its look.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from picstore.errors import Corrupt, Damage, ImageError, UsageError
from picstore.train.colour import Finish, Program, compose_colour
from picstore.train.cut import cut_streams
from picstore.train.decode import SCALES, decode_rgb
from picstore.train.draft import Draft, Part, Source
from picstore.train.geometry import Draws, Geometry, compose
from picstore.train.memory import Blocks
from picstore.train.place import Place, place_of, places_of
from picstore.train.plan import Ints
from picstore.train.recipe import Recipe
from picstore.train.render import render
from picstore.train.scratch import PLAIN
from picstore.train.targets import make_target
from picstore.train.upright import Upright

# numpy's dtype of the same size for each that images may have; it has no bfloat16.
ITEM: dict[torch.dtype, Any] = {
    torch.uint8: np.uint8,
    torch.float16: np.uint16,
    torch.bfloat16: np.uint16,
    torch.float32: np.float32,
}


Images: TypeAlias = "npt.NDArray[Any] | list[npt.NDArray[Any]]"  # (n, 3, H, W), or n of (3, H, W)


@dataclass(frozen=True, eq=False)
class Batch:
    """What a loader yields; ``images, labels = batch`` works too.

    Attributes:
        images: uint8 (N, 3, H, W), or floats where ``dtype`` or ``Normalize`` asks for them, or a list of N such
            (3, H, W) when no transform fixes the size; what the callables make of it if there are any.
        labels: int64 (N,).
        ids: int64 (N,), of the records.
        targets: where ``targets`` asks for them, a dict for each image, see docs/training.md.
    """

    images: torch.Tensor | list[torch.Tensor]
    labels: torch.Tensor
    ids: torch.Tensor
    targets: list[dict[str, Any]] | None = None

    def __iter__(self) -> Iterator[torch.Tensor | list[torch.Tensor]]:
        return iter((self.images, self.labels))

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: str | torch.device, *, non_blocking: bool = False) -> Batch:
        """The same batch on a device; targets stay where they are."""
        images = self.images
        if isinstance(images, list):
            moved: Any = [image.to(device, non_blocking=non_blocking) for image in images]
        else:
            moved = images.to(device, non_blocking=non_blocking)
        labels, ids = (x.to(device, non_blocking=non_blocking) for x in (self.labels, self.ids))
        return Batch(moved, labels, ids, self.targets)

    def pin_memory(self) -> Batch:
        """The same batch in page-locked memory; a DataLoader with ``pin_memory=True`` asks for it."""
        images = self.images
        pinned: Any = [image.pin_memory() for image in images] if isinstance(images, list) else images.pin_memory()
        return Batch(pinned, self.labels.pin_memory(), self.ids.pin_memory(), self.targets)


@dataclass(frozen=True, slots=True)
class Form:
    """What the images of all batches are.

    Attributes:
        size: (height, width) of all, None where they differ.
        dtype: uint8, float16, bfloat16 or float32.
        memory_format: contiguous or channels_last.
        targets: names of what goes with them.
    """

    size: tuple[int, int] | None = None
    dtype: torch.dtype = torch.uint8
    memory_format: torch.memory_format = torch.contiguous_format
    targets: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        recipes: Sequence[Recipe],
        *,
        dtype: torch.dtype | None = None,
        memory_format: torch.memory_format = torch.contiguous_format,
    ) -> Form:
        """What the images of some sources become together.

        Raises:
            UsageError: they would be of several sizes, or cannot be of this dtype or memory format.
        """
        sizes = sorted({recipe.size or (0, 0) for recipe in recipes})
        if len(sizes) > 1:
            raise UsageError(f"the sources give images of sizes {sizes} (0 for any); end all lists with the same size")
        normalised = any(recipe.normalises for recipe in recipes)
        if dtype is None:
            dtype = torch.float32 if normalised else torch.uint8
        if dtype not in ITEM or (normalised and dtype is torch.uint8):
            possible = "float16, bfloat16 or float32" + ("" if normalised else " or uint8")
            raise UsageError(f"dtype {dtype} is not possible{' after Normalize' if normalised else ''}; use {possible}")
        if memory_format not in (torch.contiguous_format, torch.channels_last):
            raise UsageError(f"memory_format {memory_format} is neither contiguous_format nor channels_last")
        targets = recipes[0].targets if recipes else ()
        return cls(recipes[0].size, dtype, memory_format, targets)


@dataclass(frozen=True, slots=True)
class Look:
    """What becomes of the images of a batch: parameters by slot."""

    geometry: Geometry
    program: Program


def make_look(draft: Draft, parts: Sequence[Part], *, sources: Sequence[Source]) -> Look:
    """Draw the parameters of all transforms."""
    geometries, programs = [], []
    for part in parts:
        source = sources[part.source]
        draws = Draws(source.seed, part.epoch, draft.ids[part.slots])
        identity = Geometry.of_images(draft.layouts[part.slots, 0], draft.layouts[part.slots, 1])
        geometry = compose(source.recipe.geometry, identity, draws)
        geometries.append(geometry)
        programs.append(compose_colour(source.recipe.colour, geometry.size, draws))
    slots = np.concatenate([part.slots for part in parts])
    if len(parts) == 1 and np.array_equal(slots, np.arange(len(slots))):
        return Look(geometries[0], programs[0])
    order = np.argsort(slots)
    return Look(Geometry.join(geometries, order), Program.join(programs, order))


def decode_factors(geometry: Geometry) -> Ints:
    """By how much each image may be decoded smaller, 1, 2, 4 or 8: as long as its part stays at least as large as its
    output. Without antialiasing always 1: a smaller decode averages, which plain bilinear does not.
    """
    shrink = np.where(geometry.antialias & SCALES, geometry.shrink, 1.0)
    factors: Ints = np.left_shift(1, np.clip(np.log2(np.maximum(shrink, 1)), 0, 3).astype(np.int64))
    return factors


class Pixels:
    """The images of a batch, and their targets, while they are being filled.

    Attributes:
        images: one tensor (N, 3, H, W) where the form has a size, a list of (3, H, W) otherwise; all of it is one
            block of memory.
        targets: None where none are asked for.
    """

    def __init__(self, look: Look, form: Form, blocks: Blocks) -> None:
        self._geometry, self._program = look.geometry, look.program
        self._factors = decode_factors(look.geometry)
        self._upright = Upright(look.geometry, self._factors)
        self._form = form
        self._finish = Finish.of(form.dtype)
        contiguous = form.memory_format is torch.contiguous_format
        self._in_place = form.dtype is torch.uint8 and (look.program.empty or contiguous)
        self.images, self._arrays = _allocate(look.geometry.size, form, blocks)
        self._places = _places_of(self._arrays) if self._in_place else np.empty((0, 7), dtype=np.int64)
        self.targets: list[dict[str, Any]] | None = [{} for _ in self._arrays] if form.targets else None

    def fill(self, draft: Draft, slots: range) -> dict[int, Damage]:
        """Decode, resample and colour some slots; returns by slot what went wrong."""
        plain = self._plain(slots)
        places = self._places[slots.start : slots.stop] if self._in_place else _places_of(plain)
        self._upright.make(draft, slots, places)
        wrong = self._make_others(draft, slots, plain)
        if self.targets is not None or not (self._in_place and self._program.empty):
            for slot, image in zip(slots, plain, strict=True):
                if slot not in wrong and slot not in draft.problems:
                    self._program.apply(slot, image, image if self._in_place else self._arrays[slot], self._finish)
                    if self.targets is not None:
                        wrong.update(self._make_target(draft, slot, self.targets))
        return {slot: Corrupt(f"record {draft.ids[slot]} {text}", *draft.place(slot)) for slot, text in wrong.items()}

    def _plain(self, slots: range) -> Images:
        """Where images of bytes are made, before their colour; in their place if possible."""
        arrays = self._arrays[slots.start : slots.stop]
        if self._in_place:
            return arrays
        if isinstance(arrays, list):
            return [np.empty(array.shape, dtype=np.uint8) for array in arrays]
        return PLAIN.take(arrays.size)[: arrays.size].reshape(arrays.shape)

    def _make_others(self, draft: Draft, slots: range, plain: Images) -> dict[int, str]:
        """Make what is still missing, stage by stage; returns by slot what is wrong with a stream."""
        missing = np.flatnonzero(~self._upright.made[slots.start : slots.stop]) + slots.start
        chosen = [slot for slot in missing.tolist() if slot not in draft.problems]
        if not chosen:
            return {}
        jpegs, segments = map(draft.jpeg, chosen), map(draft.lengths, chosen)
        streams = cut_streams(list(jpegs), draft.layouts[chosen], list(segments), self._geometry.reach()[chosen])
        wrong = {}
        for slot, stream in zip(chosen, streams, strict=True):
            factor = int(self._factors[slot])
            try:
                pixels = decode_rgb(stream.jpeg, width=stream.width, height=stream.height, factor=factor)
            except ImageError as error:
                wrong[slot] = str(error)  # the error itself would keep the container in memory by its traceback
                continue
            origin = stream.left, stream.top
            render(pixels, self._geometry, slot, origin=origin, factor=factor, out=plain[slot - slots.start])
        return wrong

    def _make_target(self, draft: Draft, slot: int, targets: list[dict[str, Any]]) -> dict[int, str]:
        """Make what goes with an image; by its slot, what is wrong with that."""
        try:
            extra, blobs = _parse(draft.extras[slot]), draft.attachments[slot]
            targets[slot] = make_target(self._form.targets, extra, blobs, self._geometry, slot)
        except ImageError as error:
            return {slot: str(error)}
        return {}

    def copy(self, source: int, target: int) -> None:
        """Show the image of slot ``source`` in slot ``target`` too."""
        if isinstance(self.images, list):
            self.images[target] = self.images[source].clone()
        else:
            self.images[target] = self.images[source]
        if self.targets is not None:
            self.targets[target] = self.targets[source]


def _places_of(images: Images) -> Place:
    """int64 (n, 7): where each image lies."""
    if isinstance(images, list):
        return np.stack([place_of(image) for image in images])
    return places_of(images)


def _parse(extra: bytes) -> Any:
    """An extra as Python values, None for none."""
    try:
        return json.loads(extra) if extra else None
    except (ValueError, RecursionError) as error:
        raise ImageError(f"has an extra that is not JSON: {error}") from error


def _allocate(sizes: Ints, form: Form, blocks: Blocks) -> tuple[torch.Tensor | list[torch.Tensor], Images]:
    """Tensors in one block of memory, and the same as arrays (N, 3, H, W) or (3, H, W) of ``ITEM``.

    Fresh pages for every batch would cost a tenth of the time that it takes to fill.
    """
    last = form.memory_format is torch.channels_last
    pixels = sizes.prod(axis=1)
    memory = blocks.take(max(1, 3 * int(pixels.sum())) * form.dtype.itemsize)
    flat, raw = torch.frombuffer(memory, dtype=form.dtype), np.frombuffer(memory, dtype=ITEM[form.dtype])
    if form.size is not None:
        height, width = form.size
        shape = (len(sizes), height, width, 3) if last else (len(sizes), 3, height, width)
        count = math.prod(shape)
        images, arrays = flat[:count].view(shape), raw[:count].reshape(shape)
        return (images.permute(0, 3, 1, 2), arrays.transpose(0, 3, 1, 2)) if last else (images, arrays)
    listed, views = [], []
    end = 0
    for width, height in sizes.tolist():
        start, end = end, end + 3 * width * height
        one = (height, width, 3) if last else (3, height, width)
        image, view = flat[start:end].view(one), raw[start:end].reshape(one)
        listed.append(image.permute(2, 0, 1) if last else image)
        views.append(view.transpose(2, 0, 1) if last else view)
    return listed, views
