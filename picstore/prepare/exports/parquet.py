"""Export to Parquet in the schema of images on the Hugging Face hub, with a data-set card."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from picstore.errors import UsageError
from picstore.prepare.exports.base import extra_object, present_attachments, to_json, write_classes
from picstore.prepare.sources.base import missing_library
from picstore.prepare.sources.parquet import EXTRA_KEY
from picstore.storage.format.record import Record

_COLUMNS = ("image", "label", "extra")
_ROWS_PER_GROUP = 100  # as datasets writes images; readers of single rows fetch a group


class ParquetWriter:
    """OUT/data/train-00000.parquet, …, OUT/README.md, the card, and OUT/classes.txt. Holds 100 records in memory.

    Columns: ``image`` (a struct of ``bytes`` and ``path``), ``label`` (int64, a ClassLabel where there are classes, −1
    for unknown), ``extra`` (a JSON object as text), and each attachment by its name (binary, null for none); UsageError
    if an attachment has the name of a column. MissingDependency without pyarrow.
    """

    def __init__(self, root: Path, classes: list[str], shard_size: int, attachments: tuple[str, ...]) -> None:
        if taken := set(_COLUMNS) & set(attachments):
            raise UsageError(f"attachment {min(taken)!r} has the name of a column of parquet; choose another format")
        try:
            import pyarrow as pa
            import pyarrow.parquet as pq
        except ImportError as error:
            raise missing_library("pyarrow", "parquet") from error
        self._root, self._shard_size, self._classes, self._attachments = root, shard_size, classes, attachments
        image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        columns = [("image", image), ("label", pa.int64()), ("extra", pa.string())]
        metadata = {"huggingface": json.dumps({"info": {"features": self._features()}}), EXTRA_KEY: "json"}
        fields = [*columns, *((name, pa.binary()) for name in attachments)]
        self._schema = pa.schema(fields, metadata=metadata)
        self._make_table, self._open = pa.Table.from_pylist, pq.ParquetWriter
        self._writer: Any = None
        self._rows: list[dict[str, Any]] = []
        self._shards: list[Path] = []
        self._images = self._bytes = self._in_shard = 0
        (root / "data").mkdir()
        write_classes(root, classes)

    def _features(self) -> dict[str, Any]:
        """Columns as datasets describes them in a file's metadata."""
        label: dict[str, Any] = {"dtype": "int64", "_type": "Value"}
        if self._classes:
            label = {"names": self._classes, "_type": "ClassLabel"}
        others = {name: {"dtype": "binary", "_type": "Value"} for name in self._attachments}
        return {"image": {"_type": "Image"}, "label": label, "extra": {"dtype": "string", "_type": "Value"}, **others}

    def add(self, record: Record) -> None:
        """Add one row."""
        extra = to_json(extra_object(record)).decode()
        blobs = {name: bytes(blob) for name, blob in present_attachments(record).items()}
        size = len(record.jpeg) + len(extra) + sum(map(len, blobs.values()))
        if self._in_shard and self._in_shard + size > self._shard_size:
            self._end_shard()
        image = {"bytes": bytes(record.jpeg), "path": f"{record.id:09d}.jpg"}
        self._rows.append({"image": image, "label": record.label, "extra": extra, **blobs})
        self._images += 1
        self._in_shard += size
        self._bytes += size
        if len(self._rows) == _ROWS_PER_GROUP:
            self._write_rows()

    def _write_rows(self) -> None:
        if self._writer is None:
            self._shards.append(self._root / "data" / f"train-{len(self._shards):05d}.parquet")
            # JPEGs do not compress, and the statistics of a column of images would be two images a group.
            self._writer = self._open(
                self._shards[-1], self._schema, compression="none", use_dictionary=False, write_statistics=False
            )
        self._writer.write_table(self._make_table(self._rows, schema=self._schema))
        self._rows = []

    def _end_shard(self) -> None:
        self._write_rows()
        self._writer.close()
        self._writer, self._in_shard = None, 0

    def close(self) -> list[str]:
        """Complete the last file, and write the card."""
        if self._in_shard or not self._shards:
            self._end_shard()
        size = sum(shard.stat().st_size for shard in self._shards)
        (self._root / "README.md").write_text(self._card(size), encoding="utf-8", errors="backslashreplace")
        return []

    def _card(self, size: int) -> str:
        """Data-set card: YAML, whose strings are written as JSON's, and a few words."""
        label = ["    dtype: int64"]
        if self._classes:
            names = [f"          '{label}': {json.dumps(name)}" for label, name in enumerate(self._classes)]
            label = ["    dtype:", "      class_label:", "        names:", *names]
        features = [("image", ["    dtype: image"]), ("label", label), ("extra", ["    dtype: string"])]
        features += [(name, ["    dtype: binary"]) for name in self._attachments]
        lines = ["---", "configs:", "- config_name: default", "  data_files:", "  - split: train"]
        lines += ["    path: data/train-*", "dataset_info:", "  features:"]
        for name, dtype in features:
            lines += [f"  - name: {json.dumps(name)}", *dtype]
        lines += ["  splits:", "  - name: train", f"    num_bytes: {self._bytes}", f"    num_examples: {self._images}"]
        lines += [f"  download_size: {size}", f"  dataset_size: {self._bytes}", "---", ""]
        lines += [
            f"{self._images:,} images",
            "",
            "Written by picstore: JPEGs with restart markers, which any reader opens.",
        ]
        return "\n".join(lines) + "\n"
