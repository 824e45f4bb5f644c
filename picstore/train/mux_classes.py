"""Classes of a mux: what a label means where data sets have classes of their own."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from picstore.errors import UsageError
from picstore.storage.class_names import JoinedNames
from picstore.storage.record_shift import RecordShift
from picstore.train.order.requests import TrainingSource


def number_classes(sources: Sequence[TrainingSource], choice: str | None) -> tuple[TrainingSource, ...]:
    """Return the sources with the labels that a mux gives them.

    Args:
        sources: with base labels.
        choice: ``"join"`` gives classes of one name one label, ``"offset"`` numbers each data set's classes after
            the previous one's, ``"same"`` keeps labels, and None keeps them with a warning where a label has several
            names.

    Raises:
        UsageError: a data set has no names of classes, or a base label of its own, and labels are to be numbered.
    """
    if choice in (None, "same"):
        if choice is None:
            _warn_of_several_names(sources)
        return tuple(sources)
    for source in sources:
        if not source.dataset.classes or source.base:
            found = f"the base label {source.base}" if source.base else "no names of classes"
            text = f"classes is {choice!r}, and {source.dataset.path} has {found}"
            raise UsageError(f"{text}; give names and base labels 0, or base labels without classes")
    if choice == "join":
        joined = JoinedNames()
        shifts = [RecordShift(labels=joined.add(each.dataset.classes)) for each in sources]
        return tuple(replace(source, shift=shift) for source, shift in zip(sources, shifts, strict=True))
    counts = {str(source.dataset.path): len(source.dataset.classes) for source in sources}  # parts of one set share
    bases = dict(zip(counts, accumulate(counts.values(), initial=0), strict=False))
    return tuple(replace(source, base=bases[str(source.dataset.path)]) for source in sources)


def names_by_label(sources: Sequence[TrainingSource]) -> list[str]:
    """Names of the labels of a mux: several of one label joined by " / ", "" for a label without a name."""
    found: dict[int, dict[str, None]] = {}
    for source in sources:
        for label, name in source.class_names.items():
            found.setdefault(label, {})[name] = None
    return [" / ".join(found.get(label, ())) for label in range(max(found, default=-1) + 1)]


def _warn_of_several_names(sources: Sequence[TrainingSource]) -> None:
    shared = [(label, name) for label, name in enumerate(names_by_label(sources)) if " / " in name]
    if shared:
        label, names = shared[0]
        more = f", and {len(shared) - 1:,} more labels have several names" if len(shared) > 1 else ""
        warnings.warn(
            f"label {label} of the mux is {names}{more}: give classes='join' for one label a name, 'offset' to number "
            "each data set's classes after the previous one's, or 'same' if they mean the same",
            stacklevel=4,
        )
