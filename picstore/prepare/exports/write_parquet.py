"""Export to Parquet in the schema of images on the Hugging Face hub, with a dataset card."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from picstore.errors import counted
from picstore.prepare.exports.export_format import (
    CLASSES,
    ExportFormat,
    Outline,
    Part,
    close_gaps,
    durable_file,
    extra_object,
    present_attachments,
    to_json,
)
from picstore.prepare.sources.parquet_layout import CLASSES_KEY, EXTRA_KEY, import_parquet
from picstore.storage.format.record import Record

# Number of rows per row group, as Hugging Face's datasets has; few, as reading a row fetches its whole group.
_ROWS_PER_GROUP = 100


@dataclass(frozen=True, slots=True)
class ParquetFormat(ExportFormat):
    """Export format of OUT/data/train-00000.parquet, …, OUT/README.md (the dataset card) and OUT/classes.txt.

    Columns: ``image`` (a struct of ``bytes`` and ``path``), ``label`` (int64, −1 for unknown; a ClassLabel if all class
    names differ), ``extra`` (a JSON object as string), and each attachment by its name (binary, null if missing). Each
    process holds 100 rows in memory.
    """

    COLUMNS = ("image", "label", "extra")

    def begin(self) -> None:
        """Write classes.txt, and create the folder ``data``; raise MissingDependency if pyarrow is not installed."""
        ExportFormat.begin(self)
        self._schema()
        (self.root / "data").mkdir()

    def _schema(self) -> Any:
        import_parquet()
        import pyarrow as pa

        image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        columns = [("image", image), ("label", pa.int64()), ("extra", pa.string())]
        metadata = {"huggingface": json.dumps({"info": {"features": self._features()}}), EXTRA_KEY: "json"}
        if self.classes and not self._has_label_names:
            metadata[CLASSES_KEY] = json.dumps({"names": self.classes})
        fields = [*columns, *((name, pa.binary()) for name in self.attachments)]
        return pa.schema(fields, metadata=metadata)

    @property
    def _has_label_names(self) -> bool:
        """Whether the label is a ClassLabel, which requires that all class names differ."""
        return bool(self.classes) and len(set(self.classes)) == len(self.classes)

    def _features(self) -> dict[str, Any]:
        """Return the columns' description for a file's metadata, where Hugging Face's library ``datasets`` reads it."""
        label: dict[str, Any] = {"dtype": "int64", "_type": "Value"}
        if self._has_label_names:
            label = {"names": self.classes, "_type": "ClassLabel"}
        others = {name: {"dtype": "binary", "_type": "Value"} for name in self.attachments}
        return {"image": {"_type": "Image"}, "label": label, "extra": {"dtype": "string", "_type": "Value"}, **others}

    def describe(self, outline: Outline) -> int:
        """Return the size in bytes of a row's image, extra and attachments."""
        return outline.jpeg + len(_extra_text(outline.extra)) + sum(outline.attachments.values())

    def write(self, part: Part, records: Iterable[Record | None]) -> tuple[int, int] | None:
        readable = (record for record in records if record is not None)
        first = next(readable, None)
        return None if first is None else self._write_file(part.number, chain([first], readable))

    def _write_file(self, number: int, records: Iterable[Record]) -> tuple[int, int]:
        """Write a file; return its number of rows, and the total size of their values in bytes."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema, remaining = self._schema(), iter(records)
        count = size = 0
        # Statistics would store the least and greatest image of each group; JPEGs do not get smaller by compression.
        options = {"compression": "none", "use_dictionary": False, "write_statistics": False}
        with durable_file(self._path(number), self.root) as file, pq.ParquetWriter(file, schema, **options) as writer:
            while True:
                rows = [_row(record) for record in islice(remaining, _ROWS_PER_GROUP)]
                # A group of fewer rows is the last one. It is empty if the number of records is a multiple of
                # _ROWS_PER_GROUP.
                writer.write_table(pa.Table.from_pylist(rows, schema=schema))
                count += len(rows)
                size += sum(map(_row_size, rows))
                if len(rows) < _ROWS_PER_GROUP:
                    return count, size

    def _path(self, number: int) -> Path:
        return self.root / "data" / f"train-{number:05d}.parquet"

    def close(self, written: Sequence[tuple[int, int] | None]) -> list[str]:
        """Rename the files to consecutive numbers, and write the card; if there is no file, write one without rows."""
        close_gaps(self._path, written)
        shards = [shard for shard in written if shard is not None] or [self._write_file(0, [])]
        download = sum(self._path(number).stat().st_size for number in range(len(shards)))
        images, size = (sum(each) for each in zip(*shards, strict=True))
        card = self._card(images, size, download)
        (self.root / "README.md").write_text(card, encoding="utf-8", errors="backslashreplace")
        if not self.classes or self._has_label_names:
            return []
        name = next(name for name in self.classes if self.classes.count(name) > 1)
        return [
            f"two classes are called {name!r}, which a ClassLabel cannot hold: the column label has numbers, and their "
            f"names stand in {CLASSES}"
        ]

    def _card(self, images: int, size: int, download: int) -> str:
        label = ["    dtype: int64"]
        if self._has_label_names:
            names = [f"          '{label}': {json.dumps(name)}" for label, name in enumerate(self.classes)]
            label = ["    dtype:", "      class_label:", "        names:", *names]
        features = [("image", ["    dtype: image"]), ("label", label), ("extra", ["    dtype: string"])]
        features += [(name, ["    dtype: binary"]) for name in self.attachments]
        lines = ["---", "configs:", "- config_name: default", "  data_files:", "  - split: train"]
        lines += ["    path: data/train-*", "dataset_info:", "  features:"]
        for name, dtype in features:
            lines += [f"  - name: {json.dumps(name)}", *dtype]
        lines += ["  splits:", "  - name: train", f"    num_bytes: {size}", f"    num_examples: {images}"]
        lines += [f"  download_size: {download}", f"  dataset_size: {size}", "---", ""]
        lines += [counted(images, "image"), ""]
        lines += ["Written by picstore: JPEGs with restart markers, which any reader opens."]
        return "\n".join(lines) + "\n"


def _extra_text(extra: dict[str, Any]) -> str:
    return to_json(extra).decode()


def _row(record: Record) -> dict[str, Any]:
    blobs = {name: bytes(blob) for name, blob in present_attachments(record).items()}
    image = {"bytes": bytes(record.jpeg), "path": f"{record.id:09d}.jpg"}
    return {"image": image, "label": record.label, "extra": _extra_text(extra_object(record)), **blobs}


def _row_size(row: dict[str, Any]) -> int:
    values = {**row, "image": row["image"]["bytes"]}
    del values["label"]
    return sum(map(len, values.values()))
