"""What a data set and a batch hold, as JSON and digests, for the frozen files of earlier versions."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Iterator
from typing import Any

import click

import picstore
import picstore.cli


def describe_dataset(dataset: picstore.Dataset) -> dict[str, Any]:
    """Describe everything that a data set says of itself and of its records."""
    return {
        "uuid": dataset.uuid,
        "identity": dataset.identity,
        "classes": dataset.classes,
        "columns": list(dataset.columns),
        "records": [
            {
                "id": record.id,
                "label": record.label,
                "jpeg": _digest(record.jpeg),
                "size": [record.width, record.height],
                "extra": record.extra,
                "attachments": {name: _digest(blob) for name, blob in record.attachments.items()},
                "columns": {name: _plain(value) for name, value in record.columns.items()},
            }
            for record in dataset
        ],
    }


def describe_batch(batch: picstore.Batch) -> dict[str, Any]:
    """Ids of a batch, and digests of all that it holds."""
    groups = batch.images.values() if isinstance(batch.images, dict) else [batch.images]
    images = [image for group in groups for image in (group if isinstance(group, list) else [group])]
    described: dict[str, Any] = {
        "ids": batch.ids.tolist(),
        "labels": batch.labels.tolist(),
        "images": _digest(*(image.contiguous().numpy().tobytes() for image in images)),
    }
    if batch.columns:
        described["columns"] = {name: _plain(values) for name, values in batch.columns.items()}
    if batch.targets is not None:
        described["targets"] = _digest(json.dumps(_plain(batch.targets), sort_keys=True).encode())
    return described


def _digest(*parts: bytes | memoryview) -> str:
    """SHA-256 of byte strings one after the other, its first half."""
    total = hashlib.sha256()
    for part in parts:
        total.update(part)
    return total.hexdigest()[:32]


def _plain(value: Any) -> Any:
    """Turn arrays and tensors in a value into lists."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value.tolist() if hasattr(value, "tolist") else value


def find_name(dotted: str) -> Any:
    """Look up a public name such as ``picstore.Dataset.select``; AttributeError if there is none."""
    found: Any = picstore
    for word in dotted.split(".")[1:]:
        found = getattr(found, word)
    return found


def parameters(value: Any) -> dict[str, list[str]]:
    """Names of the parameters of a function or class: those that may be given by position, in order, and the others."""
    if not callable(value) or (isinstance(value, type) and issubclass(value, Exception)):
        return {}
    given = [each for each in inspect.signature(value).parameters.values() if each.kind is not each.VAR_KEYWORD]
    by_keyword = [each.name for each in given if each.kind is each.KEYWORD_ONLY]
    by_position = [each.name for each in given if each.name not in ("self", *by_keyword)]
    return {"positional": by_position, "keyword": by_keyword}


def verbs() -> Iterator[tuple[str, list[str]]]:
    """Verbs of the command line with their options."""
    with click.Context(picstore.cli.program) as context:
        for verb in picstore.cli.program.list_commands(context):
            command = picstore.cli.program.get_command(context, verb)
            assert command is not None
            yield verb, [option for parameter in command.params for option in parameter.opts]
