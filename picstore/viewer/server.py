"""Server of the page on the loopback interface, its routes, and the :class:`Page` object for Python and notebooks."""

from __future__ import annotations

import asyncio
import html
import json
import math
import signal
import socket
import threading
from collections.abc import Awaitable, Callable
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, TypeAlias

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from uvicorn.protocols.http.h11_impl import H11Protocol

from picstore.errors import ImageError, MissingDependency, PicstoreError, UsageError
from picstore.viewer import comparison, details, grid, health, ledger_summary, training_routes
from picstore.viewer.background import start_thread
from picstore.viewer.images import Picture, load_kernels
from picstore.viewer.queries import Query
from picstore.viewer.records import Records
from picstore.viewer.security import Connections, Guard, new_token
from picstore.viewer.session import Session

Answer: TypeAlias = Callable[[Session, Query], Any]
Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]

_STATIC = Path(__file__).parent / "static"
# HTTP status of the answer to a failed request, by class of the error; other errors, such as Damage, give 422.
_STATUS = {UsageError: 400, MissingDependency: 501, ImageError: 422}
_KEPT_SECONDS = 86_400  # Time for which a browser may cache pictures.
_MAX_HEADERS = 1 << 16  # Bytes of a request's headers and address, which may hold a filter of 10,000 ids.
_HEIGHT = 800  # Height in pixels of the frame in a notebook.
_BACKLOG = 64  # Connections that wait for the server to accept them; ``Connections`` counts only accepted ones.


def make_app(session: Session, *, token: str, embed: bool = False) -> Starlette:
    """Return the server's ASGI application; the page of a second dataset has addresses below ``/other/``."""
    app = Starlette(
        routes=_routes(session),
        middleware=[Middleware(Guard, token=token, embed=embed)],
        exception_handlers={PicstoreError: _refuse, HTTPException: _refuse_route},
    )
    # Do not redirect addresses with a wrong final slash, because Starlette's answer would repeat parts of the request.
    app.router.redirect_slashes = False
    return app


def _routes(session: Session) -> list[BaseRoute]:
    topics = grid, details, health, ledger_summary, comparison, training_routes
    json_routes = {path: answer for topic in topics for path, answer in topic.JSON_ANSWERS.items()}
    pictures = details, ledger_summary, training_routes
    picture_routes = {path: answer for topic in pictures for path, answer in topic.PICTURE_ANSWERS.items()}
    posts = {**health.POST_ANSWERS, **comparison.POST_ANSWERS}
    return [
        Route("/", lambda _: FileResponse(_STATIC / "index.html", headers={"cache-control": "no-store"})),
        *(Route(path, _json_endpoint(session, answer)) for path, answer in json_routes.items()),
        *(Route(path, _picture_endpoint(session, answer)) for path, answer in picture_routes.items()),
        *(Route(path, _json_endpoint(session, answer), methods=["POST"]) for path, answer in posts.items()),
        Mount("/static", StaticFiles(directory=_STATIC)),
        *([] if session.other is None else [Mount("/other", routes=_routes(session.other))]),
    ]


def bind(port: int) -> socket.socket:
    """Return a socket that listens on a loopback port, any free port for 0; raise UsageError if the port is taken."""
    # State the protocol, because only for a stated TCP does asyncio turn off Nagle's algorithm (delays of 40 ms).
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(("127.0.0.1", port))
        # From now on, connections wait in the backlog until the server accepts them.
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        raise UsageError(f"port {port} cannot be used, {error.strerror}; choose another, or 0 for any") from error
    return listening


class Page:
    """Web page of a dataset, served by a thread. As a context manager, it closes the page at the end.

    Args:
        port: port to listen on, 0 for any free port.
        embed: whether pages of this machine, such as notebooks, may show the page in a frame.

    Attributes:
        shown: path or URL of each dataset on the page, with its number of images.
        address: URL of the page; whoever knows it can see the dataset.
    """

    def __init__(self, session: Session, *, port: int, embed: bool) -> None:
        token = new_token()
        self._session, self._listening, self._embed = session, bind(port), embed
        datasets = [each.dataset for each in (session, session.other) if each is not None]
        self.shown = [(str(dataset.path), len(dataset)) for dataset in datasets]
        self._title = " and ".join(name for name, _ in self.shown)
        # Use the host of most notebooks' addresses, because browsers restrict a frame less if it is of the same site.
        host = "localhost" if embed else "127.0.0.1"
        self.address = f"http://{host}:{self._listening.getsockname()[1]}/{token}/"
        connections = Connections(make_app(session, token=token, embed=embed))
        config = uvicorn.Config(
            connections,
            http=connections.wrap(H11Protocol),  # type: ignore[arg-type]
            ws="none",
            # Do not log warnings, with which any user of the machine could fill the log.
            log_level="error",
            access_log=False,
            proxy_headers=False,
            backlog=_BACKLOG,
            h11_max_incomplete_event_size=_MAX_HEADERS,
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._ended: Callable[[], object] = lambda: None

    def start(self) -> None:
        """Begin to answer requests, in a thread."""
        start_thread(lambda: _read_ahead(self._session.records))
        start_thread(load_kernels)
        self._thread.start()

    def close(self) -> None:
        """Stop answering within two seconds; threads may still be decoding images then. A second call does nothing."""
        self._server.should_exit = True
        self._thread.join(2)
        self._listening.close()

    def serve(self) -> int:
        """Answer requests until SIGINT or SIGTERM is received; return the number of the signal.

        Threads may then still be busy; :func:`end_by` ends the process without waiting for them.
        """
        # On a signal, Python's handler in C writes the signal's number to this socket at once, whatever the main thread
        # does; a handler in Python would run only when the main thread executes Python code again.
        ends, signals = socket.socketpair()
        signals.setblocking(False)
        signal.set_wakeup_fd(signals.fileno())
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, lambda *_: None)
        self._ended = lambda: signals.send(b"\0")
        # Another thread answers requests; the main thread only waits for a signal's number, or 0 if the server ends.
        self.start()
        while (number := ends.recv(1)[0]) not in (0, signal.SIGINT, signal.SIGTERM):
            continue
        if number:
            return number
        raise PicstoreError("the server of the page has ended")

    def _run(self) -> None:
        try:
            self._server.run(sockets=[self._listening])
        finally:
            self._ended()

    def __enter__(self) -> Page:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Page({self._title} at {self.address})"

    def _repr_html_(self) -> str:
        title = html.escape(self._title)
        if not self._embed:
            return f'<a href="{self.address}" target="_blank" rel="noopener">{title}</a>'
        return (
            f'<iframe src="{self.address}" title="{title}" width="100%" height="{_HEIGHT}" '
            'style="border: 1px solid #8886; border-radius: 6px" allow=""></iframe>'
        )


def end_by(number: int) -> None:
    """End this process by the default action of a signal, without waiting for threads."""
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)


def _read_ahead(records: Records) -> None:
    """Read what the first filter needs while the user looks at the page; ignore errors, which the filter will raise."""
    try:
        records.read()
    except PicstoreError:
        return


def _json_endpoint(session: Session, answer: Answer) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        return await _answered(request, lambda query: _Json(answer(session, query)))

    return endpoint


def _picture_endpoint(session: Session, answer: Callable[[Session, Query], Picture]) -> Endpoint:
    """Return an endpoint for pictures. Browsers may cache them: a URL, with its token, always has one picture."""
    headers = {"etag": f'"{session.dataset.uuid}"', "cache-control": f"private, max-age={_KEPT_SECONDS}"}

    def respond(query: Query) -> Response:
        picture = answer(session, query)
        return Response(picture.data, media_type=picture.media_type, headers=headers)

    async def endpoint(request: Request) -> Response:
        if request.headers.get("if-none-match") == headers["etag"]:
            return Response(status_code=304, headers=headers)
        return await _answered(request, respond)

    return endpoint


async def _answered(request: Request, respond: Callable[[Query], Response]) -> Response:
    """Run ``respond`` in a thread, and set the query's ``gone`` if the client disconnects."""
    query = Query(request.query_params)

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            continue  # The message has bytes of the request's body, which no answer needs.
        query.gone.set()

    watching = asyncio.ensure_future(watch())
    try:
        return await run_in_threadpool(respond, query)
    finally:
        watching.cancel()


class _Json(JSONResponse):
    """JSON response in ASCII. Its escapes can hold lone surrogates of file names, which UTF-8 cannot encode."""

    def render(self, content: Any) -> bytes:
        return json.dumps(_to_json(content), allow_nan=False, separators=(",", ":")).encode()


def _to_json(value: Any) -> Any:
    """Convert a value for JSON: dataclasses to objects, and NaN and infinity, which JSON lacks, to null."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, (list, tuple)):
        return [_to_json(each) for each in value]
    if isinstance(value, dict):
        return {name: _to_json(each) for name, each in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _refuse(_: Request, error: Exception) -> Response:
    status = next((status for kind, status in _STATUS.items() if isinstance(error, kind)), 422)
    return _Json({"error": str(error)}, status)


def _refuse_route(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 404
    text = f"{request.method} is not a method of this address" if status == 405 else "there is no such page"
    return _Json({"error": text}, status, getattr(error, "headers", None))
