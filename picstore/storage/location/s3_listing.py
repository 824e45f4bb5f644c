"""Listing of S3 buckets by botocore, for pages that obstore rejects because of a key."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from picstore.errors import PicstoreError, missing_extra
from picstore.storage.location.redact import redact
from picstore.storage.location.resumed_download import Unreachable

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def is_odd(key: str) -> bool:
    """Return whether obstore rejects a key, because it has an empty component, ".", ".." or a control character."""
    return bool(key) and (not {"", ".", ".."}.isdisjoint(key.split("/")) or _CONTROL.search(key) is not None)


@dataclass(frozen=True, slots=True)
class Page:
    """Page of a listing: (key, size in bytes) of each object, and key of each folder, both without a final slash."""

    objects: list[tuple[str, int]]
    folders: list[str]


def list_s3(request: dict[str, str], *, where: str) -> Iterator[Page]:
    """Yield the pages of a listing. ``request`` holds the parameters of S3's ListObjectsV2; messages name ``where``.

    Raises:
        MissingDependency: botocore is not installed.
        Unreachable: the store fails, or an answer is cut short.
        PicstoreError: the store refuses the request.
    """
    client = _client(where)
    import urllib3.exceptions
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        for found in client.get_paginator("list_objects_v2").paginate(**request):
            objects = [(one["Key"], int(one["Size"])) for one in found.get("Contents", ())]
            # Leave out an empty object whose key ends with two slashes: it marks a folder whose name is empty.
            objects = [(key.removesuffix("/"), size) for key, size in objects if size or not key.endswith("//")]
            yield Page(objects, [one["Prefix"].removesuffix("/") for one in found.get("CommonPrefixes", ())])
    except ClientError as error:
        status = error.response["ResponseMetadata"]["HTTPStatusCode"]
        kind = Unreachable if status >= 500 or status in (408, 429) else PicstoreError
        raise kind(f"{where} cannot be listed: {redact(str(error))}") from error
    except (BotoCoreError, urllib3.exceptions.HTTPError, OSError) as error:
        raise Unreachable(f"{where} cannot be listed: {redact(str(error))}") from error


def _client(where: str) -> Any:
    """Return a botocore client with obstore's settings, which come from environment variables, not from ``~/.aws``."""
    try:
        from botocore import UNSIGNED
        from botocore.config import Config
        from botocore.session import Session
    except ImportError as error:
        name = "an object whose name has an empty part, '.', '..' or a control character"
        raise missing_extra(f"{where} holds {name}; listing it needs botocore", "objects") from error
    session = Session()
    for file in ("config_file", "credentials_file"):
        session.set_config_variable(file, os.devnull)
    unsigned, virtual = (
        os.environ.get(name, "").lower() in ("true", "1", "yes", "on", "y")
        for name in ("AWS_SKIP_SIGNATURE", "AWS_VIRTUAL_HOSTED_STYLE_REQUEST")
    )
    options = Config(
        connect_timeout=120,
        read_timeout=120,
        retries={"total_max_attempts": 1},
        s3={"addressing_style": "virtual" if virtual else "path"},
        **({"signature_version": UNSIGNED} if unsigned else {}),
    )
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    endpoint = os.environ.get("AWS_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT") or None
    return session.create_client("s3", region_name=region, endpoint_url=endpoint, config=options)
