"""Sources: what there is to convert, as one flat list of inputs in a fixed order.

An input names bytes (a file, or a stretch of a tar) and a label, nothing is read yet. Its position in the list is its
id. Sources here: ``folder``, ``list`` (Caffe) and ``imagenet`` (a tar a synset).
"""

from __future__ import annotations

import hashlib
import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from picstore.errors import ImageError, NotADataset, UsageError

MAX_INPUT = 1 << 30  # bytes of one source image


@dataclass(frozen=True, slots=True)
class Input:
    """One source image.

    Attributes:
        name: as the ledger and the record's extra call it; bytes of a file name that are not UTF-8 appear as ``\\xff``.
        label: its class, −1 for unknown.
        path: the file that holds it.
        offset, size: where in that file; size −1 is all of it.
        problem: why it cannot be read, known since listing; empty otherwise.
    """

    name: str
    label: int
    path: str
    offset: int = 0
    size: int = -1
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Listing:
    """A source: its inputs in order, the names of its classes by label, and how many files were passed over."""

    kind: str
    inputs: list[Input]
    classes: list[str]
    ignored: int = 0

    def digest(self) -> str:
        """SHA-256 of all names and labels: tells a resumed conversion that its source is still the same."""
        digest = hashlib.sha256()
        for source in self.inputs:
            digest.update(f"{source.label} {source.name}\n".encode())
        return digest.hexdigest()


def read_input(source: Input) -> bytes:
    """The bytes of an input; ImageError with the operating system's reason when they cannot be had."""
    if source.problem:
        raise ImageError(source.problem)
    try:
        with Path(source.path).open("rb") as file:
            # Asking for more than there is would allocate that much: 80 of 105 µs an image.
            size = os.fstat(file.fileno()).st_size if source.size < 0 else source.size
            file.seek(source.offset)
            data = file.read(min(size, MAX_INPUT + 1))
    except OSError as error:
        raise ImageError(f"cannot be read: {error.strerror or error}") from error
    if len(data) > MAX_INPUT:
        raise ImageError(f"larger than {MAX_INPUT >> 20} MiB")
    if len(data) < source.size:
        raise ImageError(f"truncated: {len(data)} of {source.size} bytes are there")
    return data


def open_source(path: Path, *, kind: str = "auto", root: Path | None = None, synsets: Path | None = None) -> Listing:
    """List a source.

    Args:
        path: the source.
        kind: ``"folder"``, ``"list"``, ``"imagenet"``, or ``"auto"``: a file is a list, a folder that holds tars and
            no sub-folders is imagenet, any other folder is folder.
        root: where the paths of a list begin; by default where the list lies.
        synsets: for imagenet, a file whose lines begin with a synset's name, in the order of labels.
    """
    if not path.exists():
        raise NotADataset(f"{path} does not exist")
    if kind == "auto":
        kind = _guess(path)
    if root is not None and kind != "list":
        raise UsageError(f"--root belongs to the source list; {path} is read as {kind}")
    if synsets is not None and kind != "imagenet":
        raise UsageError(f"--synsets belongs to the source imagenet; {path} is read as {kind}")
    if kind == "list":
        listing = list_source(path, root=root or path.parent)
    elif kind == "imagenet":
        listing = imagenet_source(path, synsets=synsets)
    else:
        listing = folder_source(path)
    if not listing.inputs:
        raise NotADataset(f"{path} holds no images (read as source {listing.kind})")
    return listing


def _guess(path: Path) -> str:
    if path.is_file():
        return "list"
    entries = _entries(path)
    if any(entry.is_dir() for entry in entries):
        return "folder"
    return "imagenet" if any(entry.name.endswith(".tar") for entry in entries) else "folder"


def printable(name: str) -> str:
    """A file name as UTF-8 text; its other bytes are written ``\\xff``."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _entries(path: Path | str) -> list[os.DirEntry[str]]:
    """What a folder holds, by name, without hidden names."""
    try:
        with os.scandir(path) as entries:
            return sorted((e for e in entries if not e.name.startswith(".")), key=lambda entry: entry.name)
    except NotADirectoryError as error:
        raise UsageError(f"{path} is not a folder") from error


def folder_source(path: Path) -> Listing:
    """One class a sub-folder, labels 0, 1, … by sorted name; a folder without sub-folders is one class, label 0.

    Every regular file counts, whatever its name, but for hidden ones; sub-folders of a class belong to it.
    """
    entries = _entries(path)
    classes = [entry for entry in entries if entry.is_dir()]
    if not classes:
        return Listing("folder", list(_walk(path, "", 0, set())), [printable(path.resolve().name)])
    inputs: list[Input] = []
    for label, entry in enumerate(classes):
        inputs.extend(_walk(Path(entry.path), entry.name + "/", label, set()))
    ignored = len(entries) - len(classes)
    return Listing("folder", inputs, [printable(entry.name) for entry in classes], ignored)


def _walk(path: Path, prefix: str, label: int, above: set[tuple[int, int]]) -> Iterator[Input]:
    """Files below ``path`` in order; links are followed, but never into a folder that is being walked (``above``)."""
    try:
        here = path.stat()
        entries = _entries(path)
    except OSError as error:
        yield Input(printable(prefix), label, str(path), problem=f"folder cannot be listed: {error.strerror}")
        return
    for entry in entries:
        name = prefix + entry.name
        if entry.is_dir():
            inner = {*above, (here.st_dev, here.st_ino)}
            status = entry.stat()
            if (status.st_dev, status.st_ino) not in inner:
                yield from _walk(Path(entry.path), name + "/", label, inner)
        elif entry.is_file():
            yield Input(printable(name), label, entry.path)
        elif entry.is_symlink():
            yield Input(printable(name), label, entry.path, problem="a link to nothing")
        else:
            yield Input(printable(name), label, entry.path, problem="not a regular file")


def list_source(path: Path, *, root: Path) -> Listing:
    """Caffe's list: ``path label`` a line; the path may hold spaces, the label is an integer."""
    inputs = []
    text = path.read_bytes().decode("utf-8", "surrogateescape")
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            name, label = line.strip().rsplit(None, 1)
            inputs.append(Input(printable(name), int(label), str(root / name)))
        except ValueError as error:
            raise UsageError(f"{printable(str(path))} line {number}: not `path label`: {printable(line)!r}") from error
    return Listing("list", inputs, [])


def imagenet_source(path: Path, *, synsets: Path | None = None) -> Listing:
    """A folder of one tar a synset; labels by sorted name, or by the order of the file ``synsets``."""
    tars = [entry for entry in _entries(path) if entry.name.endswith(".tar") and entry.is_file()]
    names = [entry.name[: -len(".tar")] for entry in tars]
    classes = sorted(names)
    if synsets is not None:
        classes = [line.split()[0] for line in synsets.read_text().splitlines() if line.split()]
        unknown = sorted(set(names) - set(classes))
        if unknown:
            raise UsageError(f"{len(unknown)} tars are not in {synsets}, the first is {unknown[0]}.tar")
    label_of = {name: label for label, name in enumerate(classes)}
    inputs: list[Input] = []
    for entry, name in zip(tars, names, strict=True):
        inputs.extend(_members(entry.path, name, label_of[name]))
    return Listing("imagenet", inputs, [printable(name) for name in classes])


def _check_end(tar: str, offset: int) -> None:
    """tarfile takes a broken header for the end of the tar; the end is a block of zeros."""
    with Path(tar).open("rb") as file:
        file.seek(offset)
        if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise tarfile.ReadError(f"no member and no end at byte {offset}")


def _members(tar: str, name: str, label: int) -> Iterator[Input]:
    """The regular files of a tar, as stretches of it; a tar that breaks off ends in an input that says so."""
    try:
        with tarfile.open(tar, "r:", errors="surrogateescape") as archive:
            for member in archive:
                if member.isfile():
                    inner = f"{name}.tar/{member.name}"
                    yield Input(printable(inner), label, tar, member.offset_data, member.size)
            _check_end(tar, archive.offset)
    except (tarfile.TarError, OSError, EOFError) as error:
        yield Input(printable(f"{name}.tar"), label, tar, problem=f"the tar is damaged: {error}")
