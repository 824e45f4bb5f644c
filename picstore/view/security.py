"""Who may ask the page's server: the browser that was given the token, and no web site that it shows besides.

The server is reachable by every user and every web page of the machine. A page of another site can send requests, but
has no token; one whose name is made to resolve to 127.0.0.1 (DNS rebinding) has another host name.
"""

from __future__ import annotations

import hmac
import secrets
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HOSTS = ("127.0.0.1", "localhost", "::1")  # any port: a tunnel's differs from the server's
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


def new_token() -> str:
    """Make a token of 256 random bits."""
    return secrets.token_urlsafe(32)


class Guard:
    """Middleware that answers requests of other hosts, other sites and without the token by 403.

    The token comes in the URL of the first request, ``/?token=…``, which sets a cookie, or in the header
    ``X-Picstore-Token``.
    """

    def __init__(self, app: ASGIApp, *, token: str) -> None:
        self._app, self._token = app, token
        # Cookies do not tell ports apart, and several servers may run.
        self._cookie = f"picstore-{hmac.digest(token.encode(), b'cookie', 'sha256').hex()[:16]}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # the lifespan; the server has no web sockets
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        in_url = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    added[name] = value
                if self._is_token(in_url):
                    added["set-cookie"] = f"{self._cookie}={self._token}; HttpOnly; SameSite=Strict; Path=/"
            await send(message)

        problem = self._problem(scope["method"], headers, in_url)
        app = PlainTextResponse(problem + "\n", 403) if problem else self._app
        await app(scope, receive, send_guarded)

    def _problem(self, method: str, headers: Headers, in_url: str) -> str:
        """Why a request is refused; empty where it is not."""
        if not is_local(headers.get("host", "")):
            return "This server answers to localhost alone."
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != headers.get("host"):
            return "Requests of other sites are refused."
        if method not in ("GET", "HEAD") and headers.get("sec-fetch-site", "same-origin") != "same-origin":
            return "Requests of other sites are refused."
        given = (in_url, headers.get("x-picstore-token", ""), self._token_in_cookie(headers.get("cookie", "")))
        if not any(map(self._is_token, given)):
            return "Open the address that `picstore view` has printed; it holds a token."
        return ""

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), self._token.encode())

    def _token_in_cookie(self, header: str) -> str:
        try:
            morsel = SimpleCookie(header).get(self._cookie)
        except CookieError:
            return ""
        return "" if morsel is None else morsel.value


def is_local(host: str) -> bool:
    """Whether a Host header names this machine's loopback, with any port."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port
    except ValueError:
        return False
    return parts.hostname in _HOSTS and not parts.username and not parts.path
