"""Export to MosaicML's MDS, whose layout sources/mds.py describes; MosaicML's own writer would re-encode the JPEGs."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from picstore.prepare.exports.export_format import (
    ExportFormat,
    Outline,
    Part,
    close_gaps,
    durable_file,
    extra_object,
    to_json,
)
from picstore.storage.format.record import Record

_COLUMNS = {"image": "jpeg", "label": "int", "extra": "json"}
_LABEL = struct.Struct("<q")


@dataclass(frozen=True, slots=True)
class MdsFormat(ExportFormat):
    """Export format of OUT/shard.00000.mds, …, OUT/index.json, OUT/classes.txt; each process holds one shard in memory.

    Columns: ``image`` (jpeg), ``label`` (int, −1 for unknown), ``extra`` (json), and each attachment by its name
    (bytes, empty if missing).
    """

    COLUMNS = _COLUMNS

    def _columns(self) -> dict[str, str]:
        """Return the encoding of each column by name, in the order in which a sample stores the columns."""
        return dict(sorted((_COLUMNS | dict.fromkeys(self.attachments, "bytes")).items()))

    def _config(self) -> dict[str, Any]:
        columns = self._columns()
        return {
            "column_encodings": [*columns.values()],
            "column_names": [*columns],
            "column_sizes": [_LABEL.size if encoding == "int" else None for encoding in columns.values()],
            "compression": None,
            "format": "mds",
            "hashes": [],
            "size_limit": self.shard_size,
            "version": 2,
        }

    def describe(self, outline: Outline) -> int:
        """Return the number of bytes that the record takes as a sample in a shard."""
        # A sample begins with the length of each value except the label, whose length is fixed.
        lengths = 4 * (2 + len(self.attachments))
        values = outline.jpeg + _LABEL.size + len(to_json(outline.extra))
        return lengths + values + sum(outline.attachments.values())

    def write(self, part: Part, records: Iterable[Record | None]) -> tuple[int, int] | None:
        """Write a shard of at most ``shard_size`` bytes of samples; return its number of samples and size in bytes."""
        columns = self._columns()
        samples = [_encode(record, columns) for record in records if record is not None]
        if not samples:
            return None
        config, count = to_json(self._config()), len(samples)
        offsets = [4 + 4 * (count + 1) + len(config)]
        for sample in samples:
            offsets.append(offsets[-1] + len(sample))
        with durable_file(self._path(part.number), self.root) as file:
            file.write(struct.pack(f"<{count + 2}I", count, *offsets) + config)
            file.writelines(samples)
        return count, offsets[-1]

    def _path(self, number: int) -> Path:
        return self.root / f"shard.{number:05d}.mds"

    def close(self, written: Sequence[tuple[int, int] | None]) -> list[str]:
        """Rename the shards to consecutive numbers, and write index.json, which lists them."""
        close_gaps(self._path, written)
        shards = [
            {
                **self._config(),
                "raw_data": {"basename": self._path(number).name, "bytes": size, "hashes": {}},
                "samples": samples,
                "zip_data": None,
            }
            for number, (samples, size) in enumerate(filter(None, written))
        ]
        (self.root / "index.json").write_bytes(to_json({"shards": shards, "version": 2}))
        return []


def _encode(record: Record, columns: dict[str, str]) -> bytes:
    """Encode a record as a sample: the length of each value except the label, which is fixed, then all values."""
    values = {name: bytes(blob) for name, blob in record.attachments.items()}
    values |= {"image": bytes(record.jpeg), "label": _LABEL.pack(record.label)}
    values["extra"] = to_json(extra_object(record))
    row = {name: values.get(name, b"") for name in columns}
    lengths = [len(value) for name, value in row.items() if columns[name] != "int"]
    return struct.pack(f"<{len(lengths)}I", *lengths) + b"".join(row.values())
