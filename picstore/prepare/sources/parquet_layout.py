"""Layout of Parquet sources: files, splits and configurations by folder, and the columns of image and label.

data/train-00000-of-00002.parquet, train/0.parquet     the split is in the name of the file or of its folder
mnist/train-00000-of-00001.parquet                     a configuration, and a split of it
default/train/0000.parquet                             a configuration and a split, as in refs/convert/parquet
label=cat/part-0.parquet                               a column ``label`` with the value ``cat``, as Spark writes it
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from picstore.errors import Damage, PicstoreError, UsageError, counted
from picstore.prepare.sources.folder import NO_IMAGES
from picstore.prepare.sources.labels import Label, LabelFields, take_label
from picstore.prepare.sources.lenient_json import json_object
from picstore.prepare.sources.metadata import SkippedFields
from picstore.prepare.sources.parquet_tensors import is_tensor
from picstore.prepare.sources.refused_files import describe_foreign
from picstore.prepare.sources.samples import choose_image
from picstore.prepare.sources.source_file import printable, visible_entries
from picstore.prepare.sources.source_kinds import HEAD_BYTES, SourceProbe, import_library
from picstore.prepare.sources.splits import ALL, choose_split, split_of_name, split_of_word
from picstore.storage.class_names import JoinedNames
from picstore.storage.location.local import Folder
from picstore.storage.location.resolve import Location

# Keys in the metadata of files that ``picstore export`` writes. With the first, the column ``extra`` is a JSON object.
# The value of the second is a JSON list of class names; it is written if a name occurs twice, which a ClassLabel cannot
# hold.
EXTRA_KEY, CLASSES_KEY = "picstore.extra", "picstore.classes"
IMAGES_PER_READ = 16  # number of images to read at a time; reading them one by one takes 1.5 times as long

_SUFFIX = ".parquet"
_MAX_DEPTH = 64  # largest depth of nested folders; partitions are seldom more than three deep
_PROBED_DEPTH = 4  # largest depth of folders to search: a configuration, a split and two partitions
_PROBED_FOLDERS = 8  # number of files in a folder to search for images; also the number of sub-folders
_NULL = "__HIVE_DEFAULT_PARTITION__"
_SHOWN = 8  # largest number of configurations that a message lists


@dataclass(frozen=True, slots=True)
class ParquetPart:
    """Parquet file of a source.

    Attributes:
        name: path of the file, relative to the source.
        columns: values, by name, of columns that folder names state, such as ``label=cat``; None for null.
    """

    name: str
    file: Location
    columns: dict[str, Any]


def parquet_parts(location: Location, split: str | None) -> list[ParquetPart]:
    """List the Parquet files below a folder by sorted path, or a single file.

    Raise UsageError if the folder has no Parquet files, is a Delta table, or has several splits or configurations of
    which ``split`` chooses none.
    """
    if not location.is_folder():
        return choose_split([ParquetPart(location.name, location, {})], lambda part: part.name, split, location)
    paths = sorted(_paths_below(location, (), ()))
    if not paths:
        raise UsageError(f"{location} holds no files *{_SUFFIX}; give a folder with some, or a file")
    if split != ALL:
        _refuse_configurations(paths, location)
    parts = [ParquetPart("/".join(path), location / "/".join(path), dict(_columns(path))) for path in paths]
    where = f"{location} (read as parquet)"
    return choose_split(parts, lambda part: _after_configuration(tuple(part.name.split("/"))), split, where)


def _paths_below(folder: Location, above: tuple[str, ...], parents: Sequence[str]) -> Iterator[tuple[str, ...]]:
    own = str(folder.path.resolve()) if isinstance(folder, Folder) else str(folder)
    # Skip a folder that is one of the folders above it, to which a link leads back.
    if own in parents:
        return
    if len(above) > _MAX_DEPTH:
        raise UsageError(f"{folder} is more than {_MAX_DEPTH} folders deep; give a folder nearer to its files")
    for entry in visible_entries(folder):
        if entry.name == "_delta_log":
            raise UsageError(f"{folder} is a Delta table, whose files hold deleted rows too; write it as plain Parquet")
        if entry.is_folder:
            yield from _paths_below(folder / entry.name, (*above, entry.name), (*parents, own))
        elif entry.name.lower().endswith(_SUFFIX):
            yield (*above, entry.name)


def _columns(path: tuple[str, ...]) -> Iterator[tuple[str, str | None]]:
    for part in path[:-1]:
        name, equals, value = part.partition("=")
        if name and equals:
            yield unquote(name), None if value == _NULL else unquote(value)


def _split_part(path: tuple[str, ...]) -> int | None:
    """Return the index of the path component that names a split, or None; skip ``name=value`` except ``split=…``."""
    folders = [
        (k, part)
        for k, part in reversed(list(enumerate(path[:-1])))
        if "=" not in part or part.partition("=")[0] == "split"
    ]
    whole = next((k for k, part in folders if split_of_word(part)), None)
    if whole is not None:
        return whole
    named = [(len(path) - 1, path[-1]), *folders]
    return next((k for k, part in named if split_of_name(part)), None)


def _after_configuration(path: tuple[str, ...]) -> str:
    """Drop all folders from a path except the folder that names the file's split: return ``SPLIT/file`` or ``file``."""
    found = _split_part(path)
    return path[-1] if found in (None, len(path) - 1) else f"{path[found or 0]}/{path[-1]}"


def _refuse_configurations(paths: Sequence[tuple[str, ...]], location: Location) -> None:
    """Raise UsageError if several folders hold splits, and so are configurations; ignore folders ``column=value``."""
    configurations = {
        "/".join(part for part in path[:found] if "=" not in part)
        for path in paths
        if (found := _split_part(path)) is not None
    }
    if len(configurations) > 1:
        names = sorted(configurations)
        more = ", …" if len(names) > _SHOWN else ""
        example = location / next(filter(None, names))
        listed = ", ".join(name or "." for name in names[:_SHOWN])
        raise UsageError(
            f"{location} holds splits in several folders, {listed}{more}; give one of them, such as {example}, "
            f"or --split {ALL} for all of them"
        )


def holds_images(probe: SourceProbe, depth: int = _PROBED_DEPTH) -> bool | None:
    """Return whether the first Parquet files found in a folder and its sub-folders hold images.

    Return False at the first file that may itself be an image, which keeps the search short in class folders. Return
    None if neither Parquet files nor images are found.
    """
    if names := probe.files_ending(_SUFFIX):
        others = bool(probe.files_ending(".tar"))
        if any(_may_hold_images(probe.location / name, others) for name in names[:_PROBED_FOLDERS]):
            return True
    if any(not name.lower().endswith(NO_IMAGES) and "." in name for name in probe.files):
        return False
    for name in sorted(probe.folders, key=lambda name: name != "data")[:_PROBED_FOLDERS] if depth else ():
        try:
            inner = SourceProbe.inspect(probe.location / name)
        except PicstoreError:
            continue
        found = holds_images(inner, depth - 1)
        if found is not None:
            return found
    return None


def _may_hold_images(file: Location, others: bool) -> bool:
    """Return whether a Parquet file may hold images.

    An unreadable file may hold images, unless tars lie beside it (``others``), as beside img2dataset's tables.
    """
    try:
        with open_parquet(file) as opened:
            return any(_is_image(field.type) or is_binary(field.type) for field in opened.schema_arrow)
    # pyarrow is missing or fails with some error; listing the source will report the error.
    except Exception:
        return not others


def import_parquet() -> Any:
    """Import ``pyarrow.parquet``; raise MissingDependency if pyarrow is not installed."""
    return import_library("pyarrow.parquet", "pyarrow", "parquet")


def open_parquet(location: Location) -> Any:
    """Open a Parquet file such that pyarrow checks the checksum of each page, if the writer stored checksums."""
    if isinstance(location, Folder):
        # Reject pipes, because pyarrow would wait for a program to write into the pipe.
        if not location.is_file():
            raise Damage("not a regular file", printable(str(location)))
        source: Any = location.path
    else:
        # Given a file object, pyarrow requests only the byte ranges that it reads.
        source = location.open()
    return import_parquet().ParquetFile(source, page_checksum_verification=True)


@dataclass(frozen=True, slots=True)
class ParquetColumns:
    """Columns of a Parquet file, divided by their use in a sample.

    Attributes:
        others: names of the columns that become the extra.
        attached: names of the columns that become attachments.
        numbers: class number in the source for each class number in the file; None if the file names no classes.
        json_extra: whether ``extra`` is a column of JSON objects, whose members become the extra.
    """

    image: str
    label: str | None
    others: tuple[str, ...]
    attached: tuple[str, ...]
    numbers: tuple[int, ...] | None
    json_extra: bool = False

    def take_label(self, extra: dict[str, Any], file: Location) -> Label:
        """Remove a row's label and return it as a class number of the source; raise UsageError for an unknown class."""
        label = take_label(extra, self.label)
        if self.numbers is None or not isinstance(label, int) or label == -1:
            return label
        if not 0 <= label < len(self.numbers):
            count = len(self.numbers)
            text = f"{file}: the label {label} is outside of its {counted(count, 'class')}"
            raise UsageError(f"{text}; give 0 to {count - 1}")
        return self.numbers[label]


class ColumnChoice:
    """Choice of columns in the Parquet files of a source.

    Attributes:
        labels: choice of the label column.
        classes: class names of all files together.
        skipped: number of rows with each left-out column, by the column's name.
    """

    def __init__(
        self, location: Location, image_field: str | None, label_field: str | None, maps: Sequence[str] = ()
    ) -> None:
        self.labels = LabelFields(label_field, location)
        self.classes = JoinedNames()
        self.skipped = SkippedFields()
        self._location, self._image_field, self._maps = location, image_field, maps
        # All different lists of class names that files of the source state.
        self._lists: set[tuple[str, ...]] = set()
        # One of the files with integer labels and without class names, for the error message; None if there is none.
        self._unnamed: Location | None = None

    def choose(self, opened: Any, part: ParquetPart) -> ParquetColumns:
        """Divide the columns of an open file by use; names of the file's folders may state further columns."""
        import pyarrow as pa

        schema, file = opened.schema_arrow, part.file
        if len(set(schema.names)) < len(schema.names):
            raise UsageError(f"{file}: two columns of one name in {', '.join(schema.names)}; rename one")
        binary = [field.name for field in schema if is_binary(field.type)]
        structs = [field.name for field in schema if _is_image(field.type)]
        of_bytes = [
            *structs,
            *binary,
            *(each.name for each in schema if each.name in self._maps and is_tensor(each.type)),
        ]
        several = [field.name for field in schema if field.name not in structs and _holds_several(field.type)]
        if self._image_field is None:
            structs, binary = ([name for name in names if name not in self._maps] for names in (structs, binary))
        candidates = structs or binary if self._image_field is None else [*structs, *binary]
        image = choose_image(self._image_field, candidates, file)
        others = [name for name in schema.names if name not in of_bytes and name not in several]
        others += [name for name in part.columns if name not in schema.names]
        metadata = schema.metadata or {}
        features, json_extra = _features(metadata), EXTRA_KEY.encode() in metadata
        further = [name for name in of_bytes if name != image]
        attached = [
            name
            for name in further
            if json_extra or name in self._maps or _is_of_images(opened, name, features.get(name))
        ]
        for name in schema.names:
            if name in several:
                self.skipped[f"column {printable(name)} (several images or bytes in a row)"] += opened.metadata.num_rows
            elif name in further and name not in attached:
                self.skipped[f"binary column {printable(name)}"] += opened.metadata.num_rows
        label = self.labels.choose(others, only=[name for name in others if _classes(features.get(name))])
        names = _classes(features.get(label)) if label else ()
        if label is not None and CLASSES_KEY.encode() in metadata:
            names = tuple(map(str, (json_object(metadata[CLASSES_KEY.encode()]) or {}).get("names", ())))
        if names:
            self._lists.add(names)
        elif label in schema.names and pa.types.is_integer(schema.field(label).type):
            self._unnamed = file
        try:
            numbers = self.classes.add(names) if names else None
        except UsageError as error:
            raise UsageError(f"{file}: {error}") from error
        return ParquetColumns(image, label, tuple(others), tuple(attached), numbers, json_extra)

    def remarks(self) -> Iterator[str]:
        """Yield messages for the user; raise UsageError if a file lacks class names and other files' names differ."""
        yield from self.skipped.remarks()
        if self._unnamed is None or not self._lists:
            return
        if len(self._lists) > 1:
            raise UsageError(
                f"{self._unnamed} has labels without class names, and other files of {self._location} number different "
                "ones; write the names into the file, or convert it by itself"
            )
        yield f"labels: {self._unnamed} states no class names; its numbers mean the other files' classes"


def is_binary(type_: Any) -> bool:
    """Return whether an Arrow type is bytes."""
    import pyarrow as pa

    return bool(pa.types.is_binary(type_) or pa.types.is_large_binary(type_) or pa.types.is_fixed_size_binary(type_))


def _is_image(type_: Any) -> bool:
    import pyarrow as pa

    if not pa.types.is_struct(type_):
        return False
    # If a file states all images by ``path``, its field ``bytes`` has Arrow's null type.
    return any(f.name == "bytes" and (is_binary(f.type) or pa.types.is_null(f.type)) for f in type_)


def _holds_several(type_: Any) -> bool:
    """Return whether an Arrow type may hold several images: a nested type with image structs or lists of bytes."""
    import pyarrow as pa

    if not pa.types.is_nested(type_):
        return False
    inner = [type_.field(k).type for k in range(type_.num_fields)]
    is_struct = pa.types.is_struct(type_)
    return any(_is_image(one) or _holds_several(one) or (not is_struct and is_binary(one)) for one in inner)


def _is_of_images(opened: Any, column: str, feature: Any) -> bool:
    """Return whether a binary column holds images, by Hugging Face's metadata, else by the first bytes of some rows."""
    import pyarrow as pa

    kind = feature.get("_type") if isinstance(feature, dict) else None
    if kind in ("Image", "Audio", "Video"):
        return bool(kind == "Image")
    for group in range(opened.num_row_groups):
        try:
            batch = next(opened.iter_batches(IMAGES_PER_READ, row_groups=[group], columns=[column]), None)
        # Skip a damaged row group; reading its images will report the damage.
        except (pa.ArrowException, OSError):
            continue
        values = [] if batch is None else [value for value in batch.column(0).to_pylist() if value is not None]
        found = [value.get("bytes") if isinstance(value, dict) else value for value in values]
        if heads := [value[:HEAD_BYTES] for value in found if value]:
            kinds = [describe_foreign(head, "") for head in heads]
            return all(kind is not None and kind.what.startswith("an image") for kind in kinds)
        if any(isinstance(value, dict) and value.get("path") for value in values):
            return True
    return False


def _features(metadata: dict[bytes, bytes]) -> dict[str, Any]:
    """Return, by column name, the descriptions of columns that Hugging Face's datasets stores in a file's metadata."""
    info = (json_object(metadata.get(b"huggingface", b"{}")) or {}).get("info")
    features = info.get("features") if isinstance(info, dict) else None
    return features if isinstance(features, dict) else {}


def _classes(feature: Any) -> tuple[str, ...]:
    names = feature.get("names") if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" else None
    return tuple(map(str, names)) if isinstance(names, list) else ()
