"""SourceSample, a sample as formats store it; and the choice of the field that is the image."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from picstore.errors import UsageError
from picstore.prepare.sources.inputs import Input
from picstore.prepare.sources.labels import Label, quoted, usual_field
from picstore.prepare.sources.metadata import OddValues, extra_as_json

# Usual names of the image field in lower case, the preferred name first.
IMAGE_FIELDS = ("image", "img", "jpg", "jpeg", "png", "webp", "picture", "images", "x", "data", "bytes", "image_bytes")


@dataclass(slots=True)
class SourceSample:
    """Sample as read from a source, before labels have numbers; attributes not listed are as in :class:`Input`.

    Attributes:
        label: label as :func:`picstore.prepare.sources.labels.to_label` returns it.
        extra: fields that are not image, label or attachment, with values of any type; see
            :mod:`picstore.prepare.sources.metadata`.
    """

    name: str
    path: str
    offset: int = 0
    size: int = -1
    label: Label = None
    extra: dict[str, Any] = field(default_factory=dict)
    problem: str = ""
    reader: Callable[[Input], bytes] | None = None
    key: bytes = b""
    attachments: tuple[tuple[str, Input], ...] = ()
    frame: tuple[int, int] | None = None
    lost: int = 0
    targets: str = ""
    version: str = ""

    def to_input(self, label: int, odd: OddValues) -> Input:
        """Return the sample as an Input with class number ``label``; ``odd`` counts values that JSON cannot hold."""
        extra = extra_as_json(self.extra, odd, name=self.name) if self.extra else b""
        return Input(
            self.name,
            label,
            self.path,
            self.offset,
            self.size,
            self.problem,
            extra,
            attachments=self.attachments,
            reader=self.reader,
            key=self.key,
            frame=self.frame,
            lost=self.lost,
            targets=self.targets,
            version=self.version,
        )


def choose_image(given: str | None, fields: Collection[str], path: object, usual: Sequence[str] = IMAGE_FIELDS) -> str:
    """Return the image field: ``given``, else the first with a usual name, else the only field.

    Raise UsageError, which names ``path``, if ``given`` is not a field or no field can be chosen.
    """
    if given is not None:
        if given not in fields:
            raise UsageError(f"{path} has no field {given!r} that can be the image; it has {quoted(fields)}")
        return given
    found = usual_field(fields, usual)
    if found is None and len(fields) == 1:
        return next(iter(fields))
    if found is None:
        raise UsageError(f"which field of {path} is the image? Name it by --image-field; it has {quoted(fields)}")
    return found
