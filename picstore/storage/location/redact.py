"""Removal of credentials from messages: passwords in URLs, queries that sign requests, values of secret variables."""

from __future__ import annotations

import os
import re

# Servers may send any text as an error message, so these regular expressions must take linear time for every text.
_USER = re.compile(r"(://)[^/\s@\"']*@")
_QUERY = re.compile(r"\?[^\s\"'<>)]*")
_SIGNED = re.compile(r"(sig|signature|token|credential)=", re.IGNORECASE)
# Names of environment variables in which the clouds' tools expect secrets, whose values are removed from messages.
_SECRET = re.compile(r"(AWS|AZURE|GOOGLE|GCP|HF)_.*(SECRET|TOKEN|KEY|PASSWORD|SAS)|GOOGLE_SERVICE_ACCOUNT_KEY")
# Names that match _SECRET, but whose values are not secret: a key's id, or the path of a file with a key.
_PUBLIC = re.compile(r".*(_ID|_FILE|_PATH)")
_MIN_SECRET = 8  # smallest number of characters of a secret; a shorter value might be an ordinary word of a message


def redact(text: str) -> str:
    """Return a text with ``…`` in place of credentials."""
    text = _QUERY.sub(_without_query, _USER.sub(r"\1…@", text))
    for name, value in os.environ.items():
        if len(value) >= _MIN_SECRET and _SECRET.fullmatch(name) and not _PUBLIC.fullmatch(name):
            text = text.replace(value, "…")
    return text


def has_credentials(url: str) -> bool:
    """Return whether a URL contains a user name, a password, or a query that signs requests."""
    return _USER.search(url) is not None or _SIGNED.search(url.partition("?")[2]) is not None


def _without_query(found: re.Match[str]) -> str:
    """Return ``?…`` in place of a URL's query, whose parameters may grant access; keep a ``?`` without parameters."""
    return "?…" if "=" in found[0] else found[0]
