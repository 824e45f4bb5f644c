"""The server of the page: its routes, and running it on the loopback interface."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, TypeAlias

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from picstore.errors import ImageError, MissingDependency, PicstoreError, UsageError
from picstore.view import health, images, training_routes
from picstore.view.details import read_details
from picstore.view.filters import Filter, parse_filter
from picstore.view.images import Picture
from picstore.view.overview import describe
from picstore.view.pages import MAX_PAGE, read_items
from picstore.view.queries import Query
from picstore.view.records import Records
from picstore.view.security import Guard
from picstore.view.session import Session

Answer: TypeAlias = Callable[[Session, Query], Any]

_STATIC = Path(__file__).parent / "static"
_STATUS = {UsageError: 400, MissingDependency: 501, ImageError: 422}  # 422 of damage too
_MAX_THUMBNAIL = 2048  # pixels
_KEPT_SECONDS = 86_400  # by the browser


def make_app(session: Session, *, token: str) -> Starlette:
    """Make the server's application."""
    json_routes: Mapping[str, Answer] = {
        "/api/dataset": lambda session, _: describe(session.dataset, version=session.nonce),
        "/api/records": _answer_records,
        "/api/histograms": lambda session, query: session.records.histograms(_filter_of(query)),
        "/api/find": lambda session, query: {
            "position": session.records.position_of(query.integer("id", most=(1 << 64) - 1))
        },
        "/api/image": lambda session, query: read_details(session.dataset, _position_of(session, query)),
        "/api/cut": _answer_cut,
        **training_routes.JSON_ANSWERS,
        **health.JSON_ANSWERS,
    }
    picture_routes: Mapping[str, Callable[[Session, Query], Picture]] = {
        "/thumbnail": _answer_thumbnail,
        "/picture": lambda session, query: images.whole(session.dataset[_position_of(session, query)]),
        "/crop": lambda session, query: images.crop(session.dataset[_position_of(session, query)], query.box()),
        "/attachment": _answer_attachment,
        **training_routes.PICTURE_ANSWERS,
        **health.PICTURE_ANSWERS,
    }
    return Starlette(
        routes=[
            Route("/", lambda _: FileResponse(_STATIC / "index.html", headers={"cache-control": "no-store"})),
            *(Route(path, _json_endpoint(session, answer)) for path, answer in json_routes.items()),
            *(Route(path, _picture_endpoint(session, answer)) for path, answer in picture_routes.items()),
            *(
                Route(path, _json_endpoint(session, answer), methods=["POST"])
                for path, answer in health.POST_ANSWERS.items()
            ),
            Mount("/static", StaticFiles(directory=_STATIC)),
        ],
        middleware=[Middleware(Guard, token=token)],
        exception_handlers={PicstoreError: _refuse},
    )


def bind(port: int) -> socket.socket:
    """Listen on the loopback interface; port 0 is any free one. UsageError if it is taken."""
    # Of sockets whose protocol is not given, asyncio does not turn off Nagle's algorithm: 40 ms an answer.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(("127.0.0.1", port))
        listening.listen()  # so that a request waits until the server runs
    except OSError as error:
        listening.close()
        raise UsageError(f"port {port} cannot be used: {error.strerror}") from error
    return listening


def serve(session: Session, listening: socket.socket, *, token: str) -> None:
    """Serve the page until the process is interrupted."""
    threading.Thread(target=_read_ahead, args=(session.records,), daemon=True).start()
    config = uvicorn.Config(make_app(session, token=token), log_level="warning", access_log=False, ws="none")
    uvicorn.Server(config).run(sockets=[listening])


def _read_ahead(records: Records) -> None:
    """Read the indexes while the first page is looked at; the first filter reports what fails."""
    try:
        records.read()
    except PicstoreError:
        return


def _json_endpoint(session: Session, answer: Answer) -> Callable[[Request], Response]:
    def endpoint(request: Request) -> Response:
        return JSONResponse(_to_json(answer(session, Query(request.query_params))))

    return endpoint


def _picture_endpoint(session: Session, answer: Callable[[Session, Query], Picture]) -> Callable[[Request], Response]:
    """Pictures are functions of their URL, which names the data set's version: browsers need not ask again."""

    def endpoint(request: Request) -> Response:
        etag = f'"{session.dataset.uuid}"'
        headers = {"etag": etag, "cache-control": f"private, max-age={_KEPT_SECONDS}"}
        if request.headers.get("if-none-match") == etag:
            return Response(status_code=304, headers=headers)
        picture = answer(session, Query(request.query_params))
        return Response(picture.data, media_type=picture.media_type, headers=headers)

    return endpoint


def _to_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_to_json(each) for each in value]
    if isinstance(value, dict):
        return {name: _to_json(each) for name, each in value.items()}
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def _refuse(_: Request, error: Exception) -> Response:
    status = next((status for kind, status in _STATUS.items() if isinstance(error, kind)), 422)
    return JSONResponse({"error": str(error)}, status)


def _filter_of(query: Query) -> Filter:
    return parse_filter(query.text("filter"))


def _position_of(session: Session, query: Query) -> int:
    return query.integer("position", most=len(session.dataset) - 1)


def _answer_records(session: Session, query: Query) -> dict[str, Any]:
    chosen = _filter_of(query)
    count = query.integer("count", 100, least=1, most=MAX_PAGE)
    positions = session.records.positions(chosen, query.integer("start", 0), count)
    return {"total": session.records.count(chosen), "items": read_items(session.dataset, positions)}


def _answer_cut(session: Session, query: Query) -> images.Cut:
    return images.measure_cut(session.dataset[_position_of(session, query)], query.box())


def _answer_thumbnail(session: Session, query: Query) -> Picture:
    size = query.integer("size", 256, least=16, most=_MAX_THUMBNAIL)
    return images.thumbnail(session.dataset[_position_of(session, query)], size)


def _answer_attachment(session: Session, query: Query) -> Picture:
    record = session.dataset[_position_of(session, query)]
    name = query.text("name")
    if name not in record.attachments:
        raise UsageError(f"the record has no attachment {name!r}")
    return images.attachment(record, name)
