"""Sources: what there is to convert, as one flat list of inputs in a fixed order.

An input names bytes (a file, or a stretch of a tar) and a label, nothing is read yet. Its position in the list is its
id. Sources here: ``folder``, ``list`` (Caffe) and ``imagenet`` (a tar a synset); ``coco`` has a module of its own.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path

from picstore.errors import NotADataset, UsageError
from picstore.prepare.coco import coco_source
from picstore.prepare.inputs import Input, Listing, entries_of, printable, read_input

__all__ = ["Input", "Listing", "open_source", "read_input"]

_OPTIONS = {"root": "list", "synsets": "imagenet", "annotations": "coco"}  # and the source that each belongs to


def open_source(
    path: Path,
    *,
    kind: str = "auto",
    root: Path | None = None,
    synsets: Path | None = None,
    annotations: Path | None = None,
) -> Listing:
    """List a source.

    Args:
        path: the source.
        kind: ``"folder"``, ``"list"``, ``"imagenet"``, ``"coco"``, or ``"auto"``: with annotations it is coco; a file
            is a list; a folder that holds tars and no sub-folders is imagenet, any other folder is folder.
        root: where the paths of a list begin; by default where the list lies.
        synsets: for imagenet, a file whose lines begin with a synset's name, in the order of labels.
        annotations: for coco, the JSON file of images, annotations and categories.

    Raises:
        NotADataset: there is no such place, or it holds no images.
        UsageError: an option belongs to another source, or a list or annotations are not what they should be.
    """
    if not path.exists():
        raise NotADataset(f"{path} does not exist")
    if kind == "auto":
        kind = "coco" if annotations is not None else _guess(path)
    for name, given in (("root", root), ("synsets", synsets), ("annotations", annotations)):
        if given is not None and kind != _OPTIONS[name]:
            raise UsageError(f"--{name} belongs to the source {_OPTIONS[name]}; {path} is read as {kind}")
    if kind == "list":
        listing = list_source(path, root=root or path.parent)
    elif kind == "imagenet":
        listing = imagenet_source(path, synsets=synsets)
    elif kind == "coco":
        if annotations is None:
            raise UsageError("the source coco needs --annotations, the JSON file that names images and objects")
        listing = coco_source(path, annotations=annotations)
    else:
        listing = folder_source(path)
    if not listing.inputs:
        raise NotADataset(f"{path} holds no images (read as source {listing.kind})")
    return listing


def _guess(path: Path) -> str:
    if path.is_file():
        return "list"
    entries = entries_of(path)
    if any(entry.is_dir() for entry in entries):
        return "folder"
    return "imagenet" if any(entry.name.endswith(".tar") for entry in entries) else "folder"


def folder_source(path: Path) -> Listing:
    """One class a sub-folder, labels 0, 1, … by sorted name; a folder without sub-folders is one class, label 0.

    Every regular file counts, whatever its name, but for hidden ones; sub-folders of a class belong to it.
    """
    entries = entries_of(path)
    classes = [entry for entry in entries if entry.is_dir()]
    if not classes:
        return Listing("folder", list(_walk(path, "", 0, set())), [printable(path.resolve().name)])
    inputs: list[Input] = []
    for label, entry in enumerate(classes):
        inputs.extend(_walk(Path(entry.path), entry.name + "/", label, set()))
    listing = Listing("folder", inputs, [printable(entry.name) for entry in classes])
    ignored = len(entries) - len(classes)
    if ignored:
        files = "1 file" if ignored == 1 else f"{ignored:,} files"
        listing.remarks.append(f"{files} directly in {path}, in no class folder: left out")
    return listing


def _walk(path: Path, prefix: str, label: int, above: set[tuple[int, int]]) -> Iterator[Input]:
    """Files below ``path`` in order; links are followed, but never into a folder that is being walked (``above``)."""
    try:
        here = path.stat()
        entries = entries_of(path)
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
    tars = [entry for entry in entries_of(path) if entry.name.endswith(".tar") and entry.is_file()]
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
