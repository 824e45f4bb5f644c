"""Folders of Parquet files: splits, configurations as on Hugging Face's hub, and columns in the names of folders.

data/train-00000-of-00002.parquet, train/0.parquet     the split is in the name of the file or of its folder
mnist/train-00000-of-00001.parquet                     a configuration, and a split of it
default/train/0000.parquet                             the same, as the hub's refs/convert/parquet has it
label=cat/part-0.parquet                               a column ``label`` of the value ``cat``, by pyarrow and Spark
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from picstore.errors import PicstoreError, UsageError
from picstore.prepare.sources.folder import NO_IMAGES
from picstore.prepare.sources.source_file import visible_entries
from picstore.prepare.sources.source_kinds import SourceProbe
from picstore.prepare.sources.splits import ALL, choose_split, split_of_name, split_of_word
from picstore.storage.location.local import Folder
from picstore.storage.location.resolve import Location

_SUFFIX = ".parquet"
_MAX_DEPTH = 64  # folders below the source; partitions are seldom more than three deep
_PROBED_DEPTH = 4  # a configuration, a split and two partitions
_PROBED_FOLDERS = 8  # of one folder, such as configurations
_NULL = "__HIVE_DEFAULT_PARTITION__"
_SHOWN = 8  # configurations in a message


@dataclass(frozen=True, slots=True)
class ParquetPart:
    """A Parquet file of a source.

    Attributes:
        name: path relative to the source.
        file: the file.
        columns: columns in the names of its folders, as ``label=cat``, with their texts; None for null.
    """

    name: str
    file: Location
    columns: dict[str, Any]


def parquet_parts(location: Location, split: str | None) -> list[ParquetPart]:
    """List the Parquet files of a location, which may be one, by sorted path.

    UsageError if there are none, if the folder is a Delta table, or if it holds several splits or configurations and
    none is chosen.
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
    """Yield the paths of all Parquet files below a folder, relative to the source, as parts."""
    own = str(folder.path.resolve()) if isinstance(folder, Folder) else str(folder)
    if own in parents:  # links that lead in a circle
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
    """Return which part of a path is the split; None for no split. A column of another name than split is none."""
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
    """Return the part of a path that names a split, with the file's name; the file's name alone if none does."""
    found = _split_part(path)
    return path[-1] if found in (None, len(path) - 1) else f"{path[found or 0]}/{path[-1]}"


def _refuse_configurations(paths: Sequence[tuple[str, ...]], location: Location) -> None:
    """Raise UsageError if splits lie in several folders that are neither splits nor columns."""
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


def find_parquet(probe: SourceProbe, holds_images: Callable[[Location, bool], bool]) -> bool:
    """Whether a folder, or the first of its folders with Parquet files, has Parquet files of images.

    Image files end the search, so that in a folder of classes only the first class is listed.

    Args:
        holds_images: whether a file holds images; its second argument is whether there are tars beside the file.
    """
    return _find_below(probe, holds_images, _PROBED_DEPTH) is True


def _find_below(probe: SourceProbe, holds_images: Callable[[Location, bool], bool], depth: int) -> bool | None:
    """Whether there are Parquet files of images; None if there is nothing that tells."""
    if names := probe.files_ending(_SUFFIX):
        others = bool(probe.files_ending(".tar"))
        if any(holds_images(probe.location / name, others) for name in names[:_PROBED_FOLDERS]):
            return True
    if any(not name.lower().endswith(NO_IMAGES) and "." in name for name in probe.files):
        return False
    for name in sorted(probe.folders, key=lambda name: name != "data")[:_PROBED_FOLDERS] if depth else ():
        try:
            inner = SourceProbe.inspect(probe.location / name)
        except PicstoreError:
            continue
        found = _find_below(inner, holds_images, depth - 1)
        if found is not None:
            return found
    return None
