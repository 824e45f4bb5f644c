"""Records of an index: references to images that stay where they are, and which sources have such images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from picstore import rng
from picstore.errors import ImageError, UsageError
from picstore.prepare.image.training_jpeg import TrainingJpeg
from picstore.prepare.sources.inputs import Input, Listing
from picstore.storage.format.checksum import crc32c
from picstore.storage.format.record import Record, extra_to_json
from picstore.storage.format.reference import Reference
from picstore.storage.location.resolve import Location


def make_reference_record(
    source: Input, made: TrainingJpeg, attachments: Mapping[str, bytes], *, id: int, extra: Any, root: Location
) -> tuple[Record, int]:
    """Make the record that refers to an input's image and attachments, and count the bytes that it refers to.

    ``attachments`` are the bytes of the input's. ImageError if one of them is no byte range of a file below ``root``.
    """
    names = dict(source.attachments)
    blobs: dict[str, bytes | memoryview] = {
        name: _refer(names[name], data, root) for name, data in attachments.items() if data
    }
    record = Record(
        id=id,
        label=source.label,
        jpeg=_refer(source, made.jpeg, root),
        info=made.info,
        extra_json=extra_to_json(extra),
        attachments=blobs,
    )
    return record, len(made.jpeg) + sum(map(len, attachments.values()))


def _refer(source: Input, data: bytes, root: Location) -> bytes:
    """Serialize a reference to an input's bytes, or the first of them."""
    if source.reader is not None:
        raise ImageError("its file does not hold it as it is: `picstore convert` reads it")
    folder = str(root).rstrip("/") + "/"
    if not source.path.startswith(folder):
        raise ImageError(f"{source.path} is no file below {folder}")
    try:
        return Reference(source.path[len(folder) :], source.offset, len(data), crc32c(data)).pack()
    except UsageError as error:
        raise ImageError(f"cannot be indexed: {error}") from error


def require_references(listing: Listing) -> None:
    """Refuse a source without images that lie in files as they are; UsageError."""
    if all(one.reader is not None for one in listing.inputs):
        text = "no image of this source lies in a file as it is; they are compressed, or in pages of a library"
        raise UsageError(f"{text} (read as source {listing.kind}): use `picstore convert`")


def references_root(source: Location, root: Location | None) -> Location:
    """Choose the folder that references are relative to: ``root`` where it is given, else the source's."""
    if root is not None:
        return root.absolute()
    return source if source.is_folder() else source.parent


def shuffled(listing: Listing, seed: int) -> Listing:
    """Mix a listing, so that each container refers to images from everywhere."""
    order = rng.permutation(rng.key(rng.DEAL, seed), len(listing.inputs))
    inputs = list(listing.inputs)
    return replace(listing, inputs=[inputs[k] for k in order.tolist()])


def is_of_files(listing: Listing) -> bool:
    """Whether each image has a file of its own, so that no order reads faster than another."""
    return all(one.size < 0 or not one.offset for one in listing.inputs)
