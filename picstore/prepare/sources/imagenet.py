"""ImageNet as it is handed out: a folder of one tar a synset."""

from __future__ import annotations

from collections.abc import Iterator

from picstore.errors import Damage, UsageError
from picstore.prepare.sources.base import Source, SourceProbe
from picstore.prepare.sources.inputs import Input, Listing, entries_of, printable
from picstore.prepare.sources.tars import members_of
from picstore.storage.location.resolve import Location, Where, locate


def imagenet_source(place: Location, *, synsets: Where | None = None) -> Listing:
    """A folder of one tar a synset; labels by sorted name, or by the order of the file ``synsets``."""
    found = [name for name, is_folder in entries_of(place) if name.endswith(".tar") and not is_folder]
    names = [name.removesuffix(".tar") for name in found]
    classes = sorted(names)
    if synsets is not None:
        lines = [line.decode("utf-8", "surrogateescape").split() for line in locate(synsets).lines()]
        classes = [words[0] for words in lines if words]
        unknown = sorted(set(names) - set(classes))
        if unknown:
            raise UsageError(f"{len(unknown)} tars are not in {synsets}, the first is {unknown[0]}.tar")
    label_of = {name: label for label, name in enumerate(classes)}
    inputs: list[Input] = []
    for name in names:
        inputs.extend(_members(str(place / f"{name}.tar"), name, label_of[name]))
    return Listing("imagenet", inputs, [printable(name) for name in classes])


def _members(tar: str, name: str, label: int) -> Iterator[Input]:
    """The regular files of a tar, as stretches of it; a tar that breaks off ends in an input that says so."""
    try:
        for member in members_of(tar):
            yield Input(printable(f"{name}.tar/{member.name}"), label, tar, member.offset_data, member.size)
    except Damage as error:
        yield Input(printable(f"{name}.tar"), label, tar, problem=f"the tar is damaged: {error.what}")


def looks_like(glance: SourceProbe) -> bool:
    """A folder that holds tars and no sub-folders."""
    return glance.is_folder and not glance.folders and bool(glance.files_ending(".tar"))


SOURCE = Source(imagenet_source, options=("synsets",), guess=looks_like, stores=True)
