"""Who may ask the page's server: whoever has its address, and no web site that the browser shows besides.

The server is reachable by every user and every web page of the machine. Its address begins with a secret path,
``/TOKEN/``, below which all pages and pictures lie. A browser sends a path to the server that it belongs to, whereas a
cookie goes to every port of the host, where another user may listen. Links, pictures, reloads and bookmarks need
nothing besides their address.
"""

from __future__ import annotations

import contextlib
import hmac
import re
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?", re.IGNORECASE)
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors "
)
_HEADERS = {
    "content-security-policy": f"{_POLICY}'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
# With ``embed``, pages of this machine may hold the page in a frame: a notebook's, on whatever port. Another program's
# page must know the address, which is the secret.
_EMBEDDED = _HEADERS | {"content-security-policy": f"{_POLICY}http://localhost:* http://127.0.0.1:*"}
del _EMBEDDED["x-frame-options"]  # which knows no list
_REDIRECT = """<!doctype html>
<html lang="en">
  <head><meta charset="utf-8" /><meta http-equiv="refresh" content="0; url={address}" /><title>picstore</title></head>
  <body><p><a href="{address}">picstore view</a></p></body>
</html>
"""


def new_token() -> str:
    """Make a token of 256 random bits."""
    return secrets.token_urlsafe(32)


@contextlib.contextmanager
def redirecting_file(address: str) -> Iterator[str]:
    """Write a page that leads to an address, and yield its URL; it is removed at the end.

    The browser is started with this URL, as every user sees the arguments of a process. Only the user himself can open
    the file.
    """
    with tempfile.TemporaryDirectory(prefix="picstore-view-") as folder:  # of mode 0700
        file = Path(folder) / "open.html"
        file.touch(mode=0o600)
        file.write_text(_REDIRECT.format(address=address), encoding="utf-8")
        yield file.as_uri()


class Guard:
    """Middleware that answers requests of other hosts, of other sites and outside the secret path by 403.

    Args:
        embed: let pages of this machine show the page in a frame.
    """

    def __init__(self, app: ASGIApp, *, token: str, embed: bool = False) -> None:
        self._app, self._token = app, token
        self._headers = _EMBEDDED if embed else _HEADERS
        self._shown_in = ("document", "iframe") if embed else ("document",)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # the lifespan; the server has no web sockets
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = MutableHeaders(scope=message)
                for name, value in self._headers.items():
                    added[name] = value
            await send(message)

        token, slash, path = scope["path"][1:].partition("/")
        problem = self._problem(token, is_page=not path, scope=scope)
        if problem:
            await JSONResponse({"error": problem}, 403)(scope, receive, send_guarded)
        elif not slash:  # the page's files lie below an address that ends in one
            await RedirectResponse(f"/{token}/")(scope, receive, send_guarded)
        else:
            await self._app({**scope, "root_path": f"/{token}"}, receive, send_guarded)

    def _problem(self, token: str, *, is_page: bool, scope: Scope) -> str:
        """Why a request is refused; empty where it is not."""
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        if not is_local(host):
            return "This server answers to localhost alone."
        if not hmac.compare_digest(token.encode("utf-8", "surrogateescape"), self._token.encode()):
            return "Open the address that `picstore view` has printed; it holds a token."
        if origin not in (None, f"http://{host}"):
            return "Requests of other sites are refused."
        # "none" is an address that was typed or a bookmark. A link to the page may stand anywhere: a terminal in a
        # browser, the file that --open makes.
        site = headers.get("sec-fetch-site", "same-origin")
        navigates = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") in self._shown_in
        link = is_page and navigates
        reads = scope["method"] in ("GET", "HEAD")
        if site != "same-origin" and not (reads and (site == "none" or link)):
            return "Requests of other sites are refused."
        return ""


def is_local(host: str) -> bool:
    """Whether a Host header names this machine's loopback, with any port: a tunnel's differs from the server's."""
    return _HOST.fullmatch(host) is not None
