"""The server of the page: its routes, and running it on the loopback interface."""

from __future__ import annotations

import asyncio
import json
import math
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping
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
from picstore.storage.format.record import Record
from picstore.viewer import comparison_routes, health, images, training_routes
from picstore.viewer.connections import Connections
from picstore.viewer.details import find_place, read_details
from picstore.viewer.filters import Filter, parse_filter
from picstore.viewer.grid import MAX_PAGE, read_items
from picstore.viewer.images import Picture
from picstore.viewer.overview import describe
from picstore.viewer.queries import Query
from picstore.viewer.records import Records
from picstore.viewer.security import Guard
from picstore.viewer.session import Session

Answer: TypeAlias = Callable[[Session, Query], Any]
Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]

_STATIC = Path(__file__).parent / "static"
_STATUS = {UsageError: 400, MissingDependency: 501, ImageError: 422}  # 422 of damage too
_MAX_THUMBNAIL = 2048  # pixels
_KEPT_SECONDS = 86_400  # by the browser
_MAX_HEADERS = 1 << 16  # bytes; a filter of 10,000 ids is in the address
_BACKLOG = 64  # waiting connections, all accepted at once, before their number is known


def make_app(session: Session, *, token: str, embed: bool = False) -> Starlette:
    """Make the server's application; of two data sets the other one's page lies below ``/other/``."""
    app = Starlette(
        routes=_routes(session),
        middleware=[Middleware(Guard, token=token, embed=embed)],
        exception_handlers={PicstoreError: _refuse, HTTPException: _refuse_route},
    )
    app.router.redirect_slashes = False  # its redirections repeat what the request holds
    return app


def _routes(session: Session) -> list[BaseRoute]:
    """Make the routes of a data set's page, its files among them."""
    json_routes: Mapping[str, Answer] = {
        "/api/dataset": lambda session, _: describe(session),
        "/api/records": _answer_records,
        "/api/histograms": lambda session, query: session.records.histograms(_filter_of(query), query.gone),
        "/api/find": lambda session, query: {
            "position": session.records.position_of(query.integer("id", most=(1 << 64) - 1))
        },
        "/api/image": lambda session, query: read_details(session.dataset, _position_of(session, query)),
        "/api/cut": _answer_cut,
        **training_routes.JSON_ANSWERS,
        **health.JSON_ANSWERS,
        **comparison_routes.JSON_ANSWERS,
    }
    picture_routes: Mapping[str, Callable[[Session, Query], Picture]] = {
        "/thumbnail": _answer_thumbnail,
        "/picture": lambda session, query: images.whole(*_opened(session, query)),
        "/crop": lambda session, query: images.crop(*_opened(session, query), query.box()),
        "/attachment": _answer_attachment,
        **training_routes.PICTURE_ANSWERS,
        **health.PICTURE_ANSWERS,
    }
    posts = {**health.POST_ANSWERS, **comparison_routes.POST_ANSWERS}
    return [
        Route("/", lambda _: FileResponse(_STATIC / "index.html", headers={"cache-control": "no-store"})),
        *(Route(path, _json_endpoint(session, answer)) for path, answer in json_routes.items()),
        *(Route(path, _picture_endpoint(session, answer)) for path, answer in picture_routes.items()),
        *(Route(path, _json_endpoint(session, answer), methods=["POST"]) for path, answer in posts.items()),
        Mount("/static", StaticFiles(directory=_STATIC)),
        *([] if session.other is None else [Mount("/other", routes=_routes(session.other))]),
    ]


def bind(port: int) -> socket.socket:
    """Listen on the loopback interface; port 0 is any free one. UsageError if it is taken."""
    # Of sockets whose protocol is not given, asyncio does not turn off Nagle's algorithm: 40 ms an answer.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(("127.0.0.1", port))
        listening.listen(_BACKLOG)  # so that a request waits until the server runs
    except OSError as error:
        listening.close()
        raise UsageError(f"port {port} cannot be used, {error.strerror}; choose another, or 0 for any") from error
    return listening


class Server:
    """The page's server: it runs in a thread of its own.

    Args:
        listening: see :func:`bind`.
        token: of the secret path.
        embed: let pages of this machine show the page in a frame.
    """

    def __init__(self, session: Session, listening: socket.socket, *, token: str, embed: bool = False) -> None:
        self._session, self._listening = session, listening
        connections = Connections(make_app(session, token=token, embed=embed))
        config = uvicorn.Config(
            connections,
            http=connections.wrap(H11Protocol),  # type: ignore[arg-type]
            ws="none",
            log_level="error",  # every user of the machine can send what is worth a warning
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
        """Begin to answer."""
        threading.Thread(target=_read_ahead, args=(self._session.records,), daemon=True).start()
        self._thread.start()

    def close(self) -> None:
        """Stop answering, within two seconds; a thread may still decode then. A second call does nothing."""
        self._server.should_exit = True
        self._thread.join(2)
        self._listening.close()

    def serve(self) -> int:
        """Answer until SIGINT or SIGTERM; return the signal's number.

        Threads may still decode and evaluate then: let :func:`end_by` end the process, which waits for none.
        """
        # The thread that the system interrupts writes the bytes; a function of Python's would wait for this one.
        ends, signals = socket.socketpair()
        signals.setblocking(False)
        signal.set_wakeup_fd(signals.fileno())
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, lambda *_: None)
        self._ended = lambda: signals.send(b"\0")
        # The main thread waits for signals alone, so that nothing delays their end.
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


def end_by(number: int) -> None:
    """End this process by a signal, as if it had not been caught; threads are not waited for."""
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)


def _read_ahead(records: Records) -> None:
    """Read the indexes while the first page is looked at; the first filter reports what fails."""
    try:
        records.read()
    except PicstoreError:
        return


def _json_endpoint(session: Session, answer: Answer) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        return await _answered(request, lambda query: _Json(answer(session, query)))

    return endpoint


def _picture_endpoint(session: Session, answer: Callable[[Session, Query], Picture]) -> Endpoint:
    """Pictures are functions of their URL, whose token is the server's: browsers need not ask again."""
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
    """Run an answer in a thread; its query is told when the client goes."""
    query = Query(request.query_params)

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            continue  # no request has a body that is read
        query.gone.set()

    watching = asyncio.ensure_future(watch())
    try:
        return await run_in_threadpool(respond, query)
    finally:
        watching.cancel()


class _Json(JSONResponse):
    """JSON in ASCII: names of files may hold bytes that are no UTF-8, which Python keeps as halves of UTF-16 pairs."""

    def render(self, content: Any) -> bytes:
        return json.dumps(_to_json(content), allow_nan=False, separators=(",", ":")).encode()


def _to_json(value: Any) -> Any:
    """Make JSON's values: of dataclasses objects, and null of numbers that JSON lacks."""
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
    """Answer a request for a path or method that there is not."""
    status = error.status_code if isinstance(error, HTTPException) else 404
    text = f"{request.method} is no method of this address" if status == 405 else "there is no such page"
    return _Json({"error": text}, status, getattr(error, "headers", None))


def _filter_of(query: Query) -> Filter:
    return parse_filter(query.text("filter"))


def _position_of(session: Session, query: Query) -> int:
    return query.integer("position", most=len(session.dataset) - 1)


def _opened(session: Session, query: Query) -> tuple[Record, str]:
    """The record that a request names, and the name of its file, whose extension may be all that tells its format."""
    position = _position_of(session, query)
    record = session.dataset[position]
    return record, find_place(session.dataset, position).file if record.info.foreign else ""


def _answer_records(session: Session, query: Query) -> dict[str, Any]:
    chosen = _filter_of(query)
    count = query.integer("count", 100, least=1, most=MAX_PAGE)
    positions = session.records.positions(chosen, query.integer("start", 0), count, query.gone)
    total, items = session.records.count(chosen, query.gone), read_items(session.dataset, positions)
    return {"total": total, "items": items, "extras": session.records.extras.read if chosen.text else None}


def _answer_cut(session: Session, query: Query) -> images.Cut:
    return images.measure_cut(session.dataset[_position_of(session, query)], query.box())


def _answer_thumbnail(session: Session, query: Query) -> Picture:
    size = query.integer("size", 256, least=16, most=_MAX_THUMBNAIL)
    return images.thumbnail(*_opened(session, query), size)


def _answer_attachment(session: Session, query: Query) -> Picture:
    record = session.dataset[_position_of(session, query)]
    name = query.text("name")
    if name not in record.attachments:
        raise UsageError(f"the record has no attachment {name!r}; it has {list(record.attachments)}")
    return images.attachment(record, name)
