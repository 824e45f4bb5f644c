"""ImageNet as it is handed out: a folder of one tar a synset."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from picstore.errors import Damage, UsageError
from picstore.prepare.inputs import Input, Listing, entries_of, printable
from picstore.prepare.sources.kind import Glance, Source
from picstore.prepare.sources.tars import members_of


def imagenet_source(path: Path, *, synsets: Path | None = None) -> Listing:
    """A folder of one tar a synset; labels by sorted name, or by the order of the file ``synsets``."""
    tars = [entry.path for entry in entries_of(path) if entry.name.endswith(".tar") and entry.is_file()]
    return list_tars(tars, synsets=synsets)


def list_tars(tars: Sequence[str], *, synsets: Path | None = None) -> Listing:
    """The members of tars, each a class; they may lie in an object store."""
    names = [tar.rpartition("/")[2].removesuffix(".tar") for tar in tars]
    classes = sorted(names)
    if synsets is not None:
        classes = [line.split()[0] for line in synsets.read_text().splitlines() if line.split()]
        unknown = sorted(set(names) - set(classes))
        if unknown:
            raise UsageError(f"{len(unknown)} tars are not in {synsets}, the first is {unknown[0]}.tar")
    label_of = {name: label for label, name in enumerate(classes)}
    inputs: list[Input] = []
    for tar, name in zip(tars, names, strict=True):
        inputs.extend(_members(tar, name, label_of[name]))
    return Listing("imagenet", inputs, [printable(name) for name in classes])


def _members(tar: str, name: str, label: int) -> Iterator[Input]:
    """The regular files of a tar, as stretches of it; a tar that breaks off ends in an input that says so."""
    try:
        for member in members_of(tar):
            yield Input(printable(f"{name}.tar/{member.name}"), label, tar, member.offset_data, member.size)
    except Damage as error:
        yield Input(printable(f"{name}.tar"), label, tar, problem=f"the tar is damaged: {error.what}")


def looks_like(glance: Glance) -> bool:
    """A folder that holds tars and no sub-folders."""
    return glance.is_folder and not glance.folders and bool(glance.files_ending(".tar"))


SOURCE = Source(imagenet_source, options=("synsets",), guess=looks_like)
