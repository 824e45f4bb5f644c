"""Maps (values on an image's pixels, such as depth) of a source: files beside images, and fields that hold maps."""

from __future__ import annotations

import io
import os
import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np

from picstore.errors import ImageError, UsageError
from picstore.prepare.image.map_requests import MapRequest, parse_requests
from picstore.prepare.image.read_map import read_alpha, read_values
from picstore.prepare.sources.input_table import InputTable
from picstore.prepare.sources.inputs import Input, Listing, is_remote, read_input, relabel_input
from picstore.storage.format.maps import PREFIX

# Largest number of maps of a name to try to read; the first readable map gives the dtype and number of channels.
_PROBED = 16


def with_maps(listing: Listing, requests: Sequence[MapRequest]) -> Listing:
    """Return the listing with attachments ``map:NAME``, from the files or source attachments that ``requests`` name.

    A file that is an input's map is not an input itself. Classes left without inputs are dropped.

    Raises:
        UsageError: no input has a requested map, none of a request's first _PROBED maps can be read, or the first
            readable map contradicts the request's dtype, channels or another field.
    """
    if not requests:
        return listing
    rules = [each for each in requests if each.files]
    if rules and listing.partition is not None:
        raise UsageError(f"map {rules[0].name}: the inputs of an index are fixed; convert the images themselves")
    paths = {one.path for one in listing.inputs if _is_file(one)} if rules else set()
    found = {one.path: _files_beside(one, rules, paths) for one in listing.inputs if _is_file(one)} if rules else {}
    taken = {path for files in found.values() for path in files.values()}
    fields = {each.name for each in requests if not each.files}
    inputs = InputTable(
        _attach(one, found.get(one.path, {}), fields)
        for one in listing.inputs
        if not (one.path in taken and _is_file(one))
    )
    maps = {each.name: each.specify(_first_map(each, inputs)).to_json() for each in requests}
    names = tuple(PREFIX + name if name in fields else name for name in listing.attachments)
    names = tuple(dict.fromkeys((*names, *(PREFIX + each.name for each in rules))))
    labels = {one.label for one in inputs}
    kept = [label for label in range(len(listing.classes)) if label in labels or not taken]
    numbers = {label: number for number, label in enumerate(kept)}
    if len(kept) < len(listing.classes):
        order = [numbers.get(label, -1) for label in range(len(listing.classes))]
        inputs = InputTable(relabel_input(one, order) for one in inputs)
    classes = [listing.classes[label] for label in kept]
    return replace(listing, inputs=inputs, classes=classes, attachments=names, maps={**listing.maps, **maps})


def _is_file(one: Input) -> bool:
    """Return whether an input is a whole file, not part of a file."""
    return one.reader is None and not one.offset and not one.frame


def _files_beside(one: Input, rules: Sequence[MapRequest], paths: set[str]) -> dict[str, str]:
    """Return, by map name, the paths of the map files that belong to an input's image.

    ``paths`` are those of all inputs that are whole files. A map file is one of these, or another local file.
    """
    folder, last = posixpath.split(one.path)
    stem = posixpath.splitext(last)[0]
    found = {}
    for rule in rules:
        scheme, separator, rest = folder.rpartition("://")
        path = scheme + separator + posixpath.normpath(posixpath.join(rest, rule.files.replace("*", stem)))
        if path != one.path and (path in paths or (not is_remote(path) and os.path.isfile(path))):  # noqa: PTH113
            found[rule.name] = path
    return found


def _attach(one: Input, files: Mapping[str, str], fields: set[str]) -> Input:
    """Rename attachments whose names are in ``fields`` to ``map:NAME``; attach the maps in ``files`` (name, path)."""
    named = [(PREFIX + name if name in fields else name, each) for name, each in one.attachments]
    beside = [(PREFIX + name, Input(posixpath.basename(path), -1, path)) for name, path in files.items()]
    return replace(one, attachments=(*named, *beside)) if named or beside else one


def _first_map(request: MapRequest, inputs: Sequence[Input]) -> Any:
    problem = ""
    for _, one in zip(range(_PROBED), _maps(request.name, inputs), strict=False):
        values = _try_read(one)
        if not isinstance(values, str):
            return values
        problem = problem or values
    if problem:
        raise UsageError(f"map {request.name}: none of the first files can be read: {problem}")
    rule = f"no file {request.files} lies beside an image" if request.files else "no image has such a field"
    raise UsageError(f"map {request.name}: {rule}; give the name of a field, or {request.name}=PATTERN")


def _try_read(one: Input) -> Any:
    try:
        return read_values(read_input(one))
    except ImageError as error:
        return f"{one.name} {error}"


def _maps(name: str, inputs: Sequence[Input]) -> Iterator[Input]:
    for one in inputs:
        yield from (each for key, each in one.attachments if key == PREFIX + name)


def with_alpha(listing: Listing, keep: str | None) -> Listing:
    """Return the listing with an attachment for the alpha channel of each image; unchanged if ``keep`` is None.

    ``keep`` is the attachment's name, optionally with fields of a map, such as ``map:alpha`` or
    ``map:alpha,dtype=uint16``. Raise UsageError if ``keep`` is malformed.
    """
    if keep is None:
        return listing
    (request,) = parse_requests([keep.removeprefix(PREFIX)])
    dtype = request.given.get("dtype", "uint8")
    if not keep.startswith(PREFIX) or request.files or dtype not in ("uint8", "uint16") or request.name in listing.maps:
        raise UsageError(f"keep_alpha is {keep!r}; give map:alpha, or map:alpha,dtype=uint16, and a name of its own")
    scale = 1 / int(np.iinfo(dtype).max)
    spec = replace(request, given={"scale": scale, **request.given}).specify(np.empty((1, 1, 1), dtype))
    change = partial(_attach_alpha, name=PREFIX + request.name, dtype=dtype)
    names, maps = (*listing.attachments, PREFIX + request.name), {**listing.maps, request.name: spec.to_json()}
    return replace(listing, inputs=InputTable(map(change, listing.inputs)), attachments=names, maps=maps)


def _attach_alpha(one: Input, name: str, dtype: str) -> Input:
    alpha = replace(one, attachments=(), extra=b"", problem="", reader=_alpha_reader(one.reader, dtype))
    return replace(one, attachments=(*one.attachments, (name, alpha)))


@cache
def _alpha_reader(reader: Callable[[Input], bytes] | None, dtype: str) -> Callable[[Input], bytes]:
    """Return a function to read the alpha of images read by ``reader``; cached, so that inputs share one function."""
    return partial(_read_alpha, reader=reader, dtype=dtype)


def _read_alpha(one: Input, *, reader: Callable[[Input], bytes] | None, dtype: str) -> bytes:
    """Read an image, and return its alpha as the bytes of a .npy file; return empty bytes if it has no alpha."""
    values = read_alpha(read_input(replace(one, reader=reader)), dtype)
    out = io.BytesIO()
    if values is not None:
        np.save(out, values)
    return out.getvalue()


def require_stored_maps(requests: Sequence[MapRequest], stored: Mapping[str, Any]) -> list[MapRequest]:
    """Complete an append's map requests from ``stored``, the dataset's specifications of maps by name.

    Raise UsageError if a request differs from the stored specification, or no map of its name is stored.
    """
    fixed = []
    for each in requests:
        entry = dict(stored.get(each.name) or {})
        if not entry or any(entry[key] != value for key, value in each.given.items()):
            raise UsageError(
                f"map {each.name}: the dataset states {entry or 'no such map'}; append maps as it has them"
            )
        del entry["kind"]
        entry["fill"] = float(entry["fill"])
        fixed.append(replace(each, given=entry))
    return fixed
