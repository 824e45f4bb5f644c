"""What the page shows of a data set as a whole."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from picstore.viewer.session import Session

_HAS_SQL = find_spec("duckdb") is not None and find_spec("pyarrow") is not None


@dataclass(frozen=True, slots=True)
class Overview:
    """A data set as a whole.

    Attributes:
        stored: number of stored records: deleted ones and ones outside of the selection included.
        numbers: names of columns that hold numbers, the index's too.
        outcome: what ``convert`` did with the inputs, by status.
        beside: the name of the data set beside it, empty for none.
        sql: whether conditions in SQL are possible.
    """

    path: str
    uuid: str
    images: int
    stored: int
    deleted: int
    bytes: int
    streams: int
    files: int
    containers: int
    classes: list[str]
    columns: list[str]
    numbers: list[str]
    attachments: list[str]
    encode: dict[str, Any] | None
    outcome: dict[str, Any]
    shuffled: bool
    references: str
    beside: str
    sql: bool = _HAS_SQL


def describe(session: Session) -> Overview:
    """Describe a data set from its manifest."""
    dataset = session.dataset
    manifest = dataset.manifest
    edits = () if manifest.edits is None else manifest.edits.columns
    outcome = manifest.provenance.get("outcome")
    return Overview(
        path=str(dataset.path),
        uuid=dataset.uuid,
        images=len(dataset),
        stored=manifest.images,
        deleted=len(dataset.live.deleted),
        bytes=manifest.bytes,
        streams=manifest.streams,
        files=len(manifest.files),
        containers=manifest.containers,
        classes=dataset.classes,
        columns=list(dataset.columns),
        numbers=["width", "height", "bytes", *(entry.name for entry in edits if entry.kind == "numbers")],
        attachments=list(manifest.attachments),
        encode=manifest.encode,
        outcome=outcome if isinstance(outcome, dict) else {},
        shuffled=bool(manifest.shuffle),
        references="" if manifest.references is None else manifest.references.root,
        beside="" if session.other is None else str(session.other.dataset.path),
    )
