"""ImageNet as it is distributed: a folder with a tar per synset."""

from __future__ import annotations

from collections.abc import Iterator

from picstore.errors import UsageError
from picstore.prepare.engine.worker_processes import Engine
from picstore.prepare.sources.inputs import Input, Listing
from picstore.prepare.sources.listing_builder import FoundPart, list_parts
from picstore.prepare.sources.lost_samples import end_at_damage
from picstore.prepare.sources.samples import SourceSample
from picstore.prepare.sources.source_file import printable, visible_entries
from picstore.prepare.sources.source_kinds import SourceFormat, SourceProbe
from picstore.prepare.sources.splits import refuse_splits
from picstore.prepare.sources.tar_members import members_of
from picstore.storage.location.resolve import Location, Where, locate
from picstore.storage.location.text_files import text_lines


def list_imagenet(location: Location, *, synsets: Where | None = None, engine: Engine | None = None) -> Listing:
    """List a folder with a tar per synset; labels follow the sorted names, or the order in the file ``synsets``."""
    found = [name for name, is_folder in visible_entries(location) if name.endswith(".tar") and not is_folder]
    names = [name.removesuffix(".tar") for name in found]
    classes = sorted(names)
    if synsets is not None:
        lines = [line.split() for line in text_lines(locate(synsets))]
        classes = [words[0] for words in lines if words]
        unknown = sorted(set(names) - set(classes))
        if unknown:
            raise UsageError(f"{len(unknown)} tars are not in {synsets}, the first is {unknown[0]}.tar")
    if synsets is None:
        refuse_splits(names, location, "--synsets")
    label_of = {name: label for label, name in enumerate(classes)}
    # ``list_parts`` reads 16 tars at a time: a header then takes 20 µs to read from disk; tar by tar, it takes 120 µs.
    tars = [(str(location / f"{name}.tar"), name, label_of[name]) for name in names]
    return list_parts(_list_tar, tars, engine).build("imagenet", classes=classes)


def _list_tar(tar: tuple[str, str, int]) -> FoundPart:
    return FoundPart(list(_members(*tar)))


def _members(tar: str, name: str, label: int) -> Iterator[Input]:
    """Yield a tar's regular files as inputs; if the tar is damaged, the last input fails and states the damage."""
    members = (
        Input(printable(f"{name}.tar/{member.name}"), label, tar, member.offset_data, member.size)
        for member in members_of(tar)
    )
    for one in end_at_damage(members, tar, printable(f"{name}.tar")):
        if isinstance(one, SourceSample):
            yield Input(one.name, label, tar, problem=one.problem, lost=one.lost)
        else:
            yield one


def recognizes(probe: SourceProbe) -> bool:
    """Return whether a location is a folder that holds tars and no sub-folders."""
    return probe.is_folder and not probe.folders and bool(probe.files_ending(".tar"))


FORMAT = SourceFormat(list_imagenet, options=("synsets",), recognizes=recognizes, object_stores=True, takes_engine=True)
