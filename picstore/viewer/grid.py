"""Answers to requests of the page's grid of images: items for records, histograms, and the search for an id."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np

from picstore.arrays import I64, Array
from picstore.errors import Damage, NotADataset
from picstore.storage.dataset import Dataset
from picstore.storage.edits.columns import LABEL
from picstore.storage.format.container import Container
from picstore.storage.format.layout import FOREIGN, SAMPLINGS
from picstore.viewer.queries import Query, parse_filter
from picstore.viewer.session import Session

_MAX_PAGE = 1000
_MAX_TEXT = 300  # Largest number of characters to show of an extra or of a column's value.
_MAX_NUMBERS = 8  # Largest number of elements to show of an array in a column.

# Record as JSON for the page's grid; its member ``damage`` is the reason why the record has no picture, or empty.
Item: TypeAlias = dict[str, Any]
_UNKNOWN: Item = {"id": "", "label": -1, "width": 0, "height": 0, "bytes": 0, "sampling": "", "foreign": False}
_UNKNOWN |= {"extra": "", "columns": {}}


def read_items(dataset: Dataset, positions: I64) -> list[Item]:
    """Return the grid's items, which describe the records at ``positions``, without reading images."""
    containers, within = dataset.live.find(positions)
    items: dict[int, Item] = {}
    for number in np.unique(containers).tolist():
        mine = containers == number
        pairs = zip(positions[mine].tolist(), within[mine].tolist(), strict=True)
        items.update((item["position"], item) for item in _items_of(dataset, number, list(pairs)))
    return [items[position] for position in positions.tolist()]


def _items_of(dataset: Dataset, number: int, pairs: list[tuple[int, int]]) -> Iterator[Item]:
    """Yield the Item of each record in ``pairs``: (position in the dataset, index in container ``number``)."""
    try:
        container = dataset.containers.index(number)
    except (Damage, NotADataset) as error:
        yield from (_UNKNOWN | {"position": position, "damage": str(error)} for position, _ in pairs)
        return
    for position, k in pairs:
        yield _item_of(dataset, container, position, k)


def _item_of(dataset: Dataset, container: Container, position: int, k: int) -> Item:
    entry = container.index[k]
    if not container.good[k]:
        return _UNKNOWN | {"position": position, "damage": container.causes.get(k) or "its index entry is damaged"}
    id_ = int(entry["id"])
    try:
        extra = container.extra_json(k).decode("utf-8", "replace")
    except Damage as error:
        extra = f"damaged: {error.what}"
    return {
        "position": position,
        # The page gets the id as a string, because JavaScript's numbers hold only integers of up to 53 bits exactly.
        "id": str(id_),
        "label": int(dataset.labels(entry["id"].reshape(1), entry["label"].reshape(1))[0]),
        "width": int(entry["width"]),
        "height": int(entry["height"]),
        "bytes": int(entry["length"]),
        "sampling": SAMPLINGS[entry["sampling"]],
        "foreign": bool(entry["flags"] & FOREIGN),
        "extra": shortened(extra),
        "columns": column_values(dataset, id_),
        "damage": "",
    }


def column_values(dataset: Dataset, id_: int, limit: int = _MAX_TEXT) -> dict[str, Any]:
    """Return a record's values in all columns except the label, as JSON by column name; missing values are left out."""
    names = [name for name in dataset.columns if name != LABEL]
    values = {name: dataset.column(name).get(id_) for name in names}
    return {name: plain(value, limit) for name, value in values.items() if value is not None}


def plain(value: Any, limit: int = _MAX_TEXT) -> Any:
    """Convert a column's value for the page: shorten a long string or array; write NaN and infinity as strings."""
    if isinstance(value, str):
        return shortened(value, limit)
    array: Array = np.asarray(value)
    flat = [each if np.isfinite(each) else str(each) for each in array.reshape(-1)[:_MAX_NUMBERS].tolist()]
    if array.ndim == 0:
        return flat[0]
    shape = " × ".join(map(str, array.shape))
    return f"{json.dumps(flat)[:-1]}{', …' if array.size > _MAX_NUMBERS else ''}] ({shape})"


def shortened(text: str, limit: int = _MAX_TEXT) -> str:
    """Shorten a string to ``limit`` characters, the last of which is an ellipsis."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def answer_records(session: Session, query: Query) -> dict[str, Any]:
    """Return the number of records that match the requested filter, and descriptions of a range of these records."""
    chosen = parse_filter(query.text("filter"))
    count = query.integer("count", 100, least=1, most=_MAX_PAGE)
    positions = session.records.positions(chosen, query.integer("start", 0), count, query.gone)
    total, items = session.records.count(chosen, query.gone), read_items(session.dataset, positions)
    return {"total": total, "items": items, "extras": session.records.extras.read if chosen.text else None}


JSON_ANSWERS: Mapping[str, Callable[[Session, Query], Any]] = {
    "/api/records": answer_records,
    "/api/histograms": lambda session, query: session.records.histograms(
        parse_filter(query.text("filter")), query.gone
    ),
    "/api/find": lambda session, query: {
        "position": session.records.position_of(query.integer("id", most=(1 << 64) - 1))
    },
}
