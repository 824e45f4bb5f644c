"""Replay of a training run: the batch of any step, rebuilt from the seed, the epoch and the step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from picstore.storage.dataset import Dataset
from picstore.train.order.drawn_samples import drawn_samples
from picstore.viewer.drawn import Drawn, Recipe, draw_views
from picstore.viewer.queries import Query

if TYPE_CHECKING:
    from picstore.train.batch import Batch
    from picstore.train.loader import Loader

MAX_SHOWN = 64
_MAX_BATCH = 4096
_MAX_EPOCHS = 1000


@dataclass(frozen=True, slots=True)
class Run:
    """Options of a training run's Loader that determine its batches.

    The attributes are the Loader's arguments of the same names. A ``global_batch_size`` other than 0 replaces
    ``batch_size``; ``lanes`` of 0 stands for the Loader's default.
    """

    recipe: str
    batch_size: int = 256
    global_batch_size: int = 0
    seed: int = 0
    shuffle: bool = True
    drop_last: bool = True
    rank: int = 0
    world_size: int = 1
    lanes: int = 0
    aug_repeats: int = 1
    repeat: float = 1
    balance: str = ""
    reducing_gap: float | None = None

    @classmethod
    def from_query(cls, query: Query) -> Run:
        """Read the options of a Loader from a request; raise UsageError if a value is out of range."""
        return cls(
            recipe=query.text("recipe"),
            batch_size=query.integer("batch_size", 256, least=1, most=_MAX_BATCH),
            global_batch_size=query.integer("global_batch_size", 0, most=_MAX_BATCH),
            seed=query.integer("seed", 0, most=(1 << 64) - 1),
            shuffle=query.text("shuffle", "true") == "true",
            drop_last=query.text("drop_last", "true") == "true",
            rank=query.integer("rank", 0),
            world_size=query.integer("world_size", 1, least=1, most=1 << 20),
            lanes=query.integer("lanes", 0, most=1 << 20),
            aug_repeats=query.integer("aug_repeats", 1, least=1, most=64),
            repeat=query.number("repeat", 1.0),
            balance=query.text("balance"),
            reducing_gap=query.number("reducing_gap", 0.0) or None,
        )


class Replay:
    """Loaders that rebuild batches of training runs on a dataset; threads may share this object."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._loader = lru_cache(maxsize=4)(self._make_loader)

    def loader(self, run: Run) -> Loader:
        """Return a loader with the run's options, to build single batches; raise UsageError if an option is invalid."""
        return self._loader(run)

    def _make_loader(self, run: Run) -> Loader:
        # Imported here, because Loader imports torch, which takes 1 s and 200 MB, and which most requests do not need.
        from picstore.train.loader import Loader

        recipe = Recipe.find(run.recipe)
        return Loader(
            self._dataset,
            batch_size=None if run.global_batch_size else run.batch_size,
            global_batch_size=run.global_batch_size or None,
            transform=recipe.transform,
            targets=recipe.options.get("targets", ()),
            dtype=recipe.options.get("dtype"),
            aug_repeats=run.aug_repeats,
            shuffle=run.shuffle,
            seed=run.seed,
            drop_last=run.drop_last,
            rank=run.rank,
            world_size=run.world_size,
            lanes=run.lanes or None,
            balance=run.balance or None,
            repeat=run.repeat,
            reducing_gap=run.reducing_gap,
            isolate=False,
        )

    def draw(self, run: Run, epoch: int, step: int, *, first: int = 0) -> Drawn:
        """Build the batch of a step, and return the images of up to 64 of its records, from index ``first`` on.

        Raises:
            UsageError: the epoch has no such step, or the options contradict each other.
            Damage: all records of the batch are damaged.
        """
        loader = self.loader(run)
        batch, made = loader.make_batch(epoch, step)
        groups, host = loader.output.groups, made.host
        slots = range(first, min(first + MAX_SHOWN, len(host.ids)))
        images = _views_of(batch, [(group.name, group.count) for group in groups], len(host.ids))
        drawn = draw_views(images, host, made.params, loader.output, slots=slots)
        drawn.facts.update(
            steps=loader.order.length(epoch),
            records=len(host.ids),
            damage=[str(each) for each in (*host.damage, *made.problems.values())],
            mixed=_mixed_labels(batch, slots),
            state=loader.state_at(epoch, step + 1),
        )
        return drawn

    def steps_of(self, run: Run, position: int, *, first: int, epochs: int) -> list[dict[str, Any]]:
        """Return, for each epoch, the places where the run draws a record: rank, step, and slot (index in the batch).

        An epoch has no place if it skips the record, and several places if it repeats the record.
        """
        order, last = self.loader(run).order, first + min(epochs, _MAX_EPOCHS)
        length, drawn = order.length(first), drawn_samples(order, [self._dataset.live])
        found: dict[int, list[dict[str, int]]] = {epoch: [] for epoch in range(first, last)}
        for sample in drawn.find(0, np.array([position]), first * length, last * length):
            place = {"rank": sample["rank"], "step": sample["step"] % length, "slot": sample["slot"]}
            found[int(sample["epoch"])].append({name: int(value) for name, value in place.items()})
        return [{"epoch": epoch, "places": places} for epoch, places in found.items()]

    def position(self, run: Run, state: Mapping[str, Any]) -> tuple[int, int]:
        """Return epoch and step of the last batch that was delivered before ``state`` was saved; (0, 0) if none was.

        Raise UsageError if the state does not fit the dataset or ``run``.
        """
        epoch, batch = self.loader(run).position_of(state)
        if batch:
            return epoch, batch - 1
        return (epoch - 1, self.loader(run).order.length(epoch - 1) - 1) if epoch else (0, 0)


def _views_of(batch: Batch, groups: list[tuple[str, int]], records: int) -> list[list[list[Any]]]:
    """Return a batch's images as ``lists[group of views][view][record]``; a plain list of transforms is one group."""
    found = []
    for name, count in groups:
        images = batch.views[name] if name else batch.images
        if name:
            found.append([[view[slot].numpy() for slot in range(records)] for view in images])
        else:
            flat = [image.numpy() for image in images]
            found.append([flat[view * records : (view + 1) * records] for view in range(count)])
    return found


def _mixed_labels(batch: Batch, slots: range) -> list[list[tuple[int, float]]]:
    """Return (class, fraction) of the two largest classes in each label mixed by MixUp or CutMix; [] without mixing."""
    if batch.labels.ndim == 1:
        return []
    values, labels = batch.labels[slots.start : slots.stop].topk(min(2, batch.labels.shape[1]))
    return [
        [(label, round(value, 3)) for label, value in zip(*pair, strict=True) if value]
        for pair in zip(labels.tolist(), values.tolist(), strict=True)
    ]
