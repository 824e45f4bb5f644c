"""Export to MosaicML's MDS, whose layout is described in sources/mds.py; its own writer would encode JPEGs again."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from picstore.errors import UsageError
from picstore.prepare.exports.base import extra_object, to_json, write_classes
from picstore.storage.format.record import Record

_COLUMNS = {"image": "jpeg", "label": "int", "extra": "json"}


class MdsWriter:
    """OUT/shard.00000.mds, …, OUT/index.json and OUT/classes.txt. Holds one shard in memory.

    Columns: ``image`` (jpeg), ``label`` (int, −1 for unknown), ``extra`` (json), and each attachment by its name
    (bytes, empty for none); UsageError if an attachment has the name of a column.
    """

    def __init__(self, root: Path, classes: list[str], shard_size: int, attachments: tuple[str, ...]) -> None:
        if taken := _COLUMNS.keys() & set(attachments):
            raise UsageError(f"attachment {min(taken)!r} has the name of a column of mds; choose another format")
        columns = _COLUMNS | dict.fromkeys(attachments, "bytes")
        self._names = sorted(columns)
        encodings = [columns[name] for name in self._names]
        self._sizes = [8 if encoding == "int" else None for encoding in encodings]
        self._config = {
            "column_encodings": encodings,
            "column_names": self._names,
            "column_sizes": self._sizes,
            "compression": None,
            "format": "mds",
            "hashes": [],
            "size_limit": shard_size,
            "version": 2,
        }
        self._root, self._shard_size = root, shard_size
        self._entries: list[dict[str, Any]] = []
        self._samples: list[bytes] = []
        self._bytes = 0
        write_classes(root, classes)

    def add(self, record: Record) -> None:
        """Encode one sample."""
        values = {name: bytes(blob) for name, blob in record.attachments.items()}
        values |= {"image": bytes(record.jpeg), "label": struct.pack("<q", record.label)}
        values["extra"] = to_json(extra_object(record))
        row = [values.get(name, b"") for name in self._names]
        variable = [len(value) for value, size in zip(row, self._sizes, strict=True) if size is None]
        sample = struct.pack(f"<{len(variable)}I", *variable) + b"".join(row)
        if self._samples and self._bytes + len(sample) > self._shard_size:
            self._end_shard()
        self._samples.append(sample)
        self._bytes += len(sample)

    def _end_shard(self) -> None:
        config, count = to_json(self._config), len(self._samples)
        offsets = [4 + 4 * (count + 1) + len(config)]
        for sample in self._samples:
            offsets.append(offsets[-1] + len(sample))
        name = f"shard.{len(self._entries):05d}.mds"
        with (self._root / name).open("wb") as file:
            file.write(struct.pack(f"<{count + 2}I", count, *offsets) + config)
            file.writelines(self._samples)
        raw = {"basename": name, "bytes": offsets[-1], "hashes": {}}
        self._entries.append({**self._config, "raw_data": raw, "samples": count, "zip_data": None})
        self._samples, self._bytes = [], 0

    def close(self) -> list[str]:
        """Write the last shard and the index."""
        if self._samples:
            self._end_shard()
        (self._root / "index.json").write_bytes(to_json({"shards": self._entries, "version": 2}))
        return []
