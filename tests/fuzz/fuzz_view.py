"""Requests to the server of `picstore view`, by number, so that each can be made again.

    python tests/fuzz/fuzz_view.py REQUESTS [--seed N]

Each one is answered by less than 500, and if it is refused, by a sentence. Nine of ten go to the application, each
tenth as bytes to a running command, which must print nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import select
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote, urlencode

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "viewer"), str(HERE.parents[1])]

SLOW_SECONDS = 30.0
TOKEN = "given-to-the-fuzzer"  # noqa: S105
RECIPES = ("evaluation", "timm_default", "mae", "no-such", "", "../x", "\0")
# Values by parameter; whatever is not listed is a number.
TEXTS: dict[str, tuple[str, ...]] = {
    "recipe": RECIPES,
    "name": ("mask", "a/0.png", "a/broken.png", "../x", "/etc/passwd", "", "\0", "\ud800", "a" * 5000),
    "decode": ("true", "false", "x"),
    "shuffle": ("true", "false", ""),
    "drop_last": ("true", "false", "1"),
    "balance": ("", "label", "caption", "no-such", "score"),
    "state": (
        "",
        "{}",
        "[" * 5000,
        '{"seed": 0, "epoch": 0, "samples": 8, "dataset": "x", "lanes": 1, "shuffle": true}',
        '{"a": [{"seed": -1, "epoch": 1e99, "samples": "x", "dataset": [], "lanes": null, "shuffle": 3}]}',
    ),
}
NUMBERS = ("0", "1", "2", "3", "7", "16", "35", "36", "64", "100", "256", "1000", "-1", "4096", "65535", "65536")
ODD = (
    "", "x", "-0", "+1", " 1", "1_0", "1.5", "1e3", "1e999", "nan", "-inf", "0x10", "٣", "²", "\0", "\ud800", "é" * 50,
    "9" * 20, "9" * 400, "9" * 5000, str(2**31), str(2**63 - 1), str(2**63), str(2**64 - 1), str(-(2**63)),
)  # fmt: skip
WORDS = (
    "width", "id", "caption", "score", '"Score"', "no_such", "3", "0.5", "'a'", "'%a%'", "NULL", "TRUE", "(", ")", "[",
    "]", ",", "+", "-", "*", "/", "%", "^", "=", "<", ">", "<>", "||", "::int", "::varchar", "::timestamptz", "AND",
    "OR", "NOT", "IN", "IS NULL", "LIKE", "BETWEEN", "CASE", "WHEN", "THEN", "END", "SELECT", "FROM", "range(3)",
    "lower(caption)", "random()", "current_date", "getenv('HOME')", "abs(", "count(*)", "unnest([1])", ";", "--", "/*",
    "$1", "?", "#1", "\0", "\ud800", "\x1b", "{'a': 1}", "x -> 1", ".a", "COLLATE NOCASE",
    "regexp_matches(caption, '(')",
)  # fmt: skip
MEMBERS = ("labels", "samplings", "ids", "ranges", "text", "where", "no_such")
PARAMETERS: dict[str, tuple[str, ...]] = {
    "/api/records": ("start", "count", "filter"),
    "/api/histograms": ("filter",),
    "/api/find": ("id",),
    "/api/image": ("position",),
    "/api/cut": ("position", "left", "top", "width", "height"),
    "/api/draws": ("position", "recipe", "seed", "epoch", "count"),
    "/api/replay": ("recipe", "batch_size", "seed", "epoch", "step", "first", "rank", "world_size", "lanes", "repeat"),
    "/api/replay/position": ("recipe", "batch_size", "state", "shuffle", "aug_repeats"),
    "/api/replay/steps": ("recipe", "batch_size", "position", "epoch", "epochs", "drop_last", "world_size", "balance"),
    "/api/health/file": ("stream", "file"),
    "/api/health/verify": ("decode",),
    "/thumbnail": ("position", "size"),
    "/picture": ("position",),
    "/crop": ("position", "left", "top", "width", "height"),
    "/attachment": ("position", "name"),
    "/input": ("name",),
    "/drawn": ("position", "recipe", "seed", "epoch", "count", "image"),
    "/replayed": ("recipe", "batch_size", "epoch", "step", "image"),
}
PATHS = (
    "/", "", "/static/main.js", "/static/", "/static/../server.py", "/static/%2e%2e/server.py", "/static/%00",
    "/static/" + "a" * 5000, "//", "/api", "/api/", "/api/no-such", "/%", "/%ff", "/api/dataset/", "/favicon.ico",
    "/api/dataset", "/api/recipes", "/api/health", "/api/health/ledger", "/api/health/verification",
    "/api/health/cancel",
)  # fmt: skip
COSTLY = {"/api/draws", "/drawn", "/api/replay", "/replayed", "/api/replay/steps", "/api/health/verify"}
METHODS = ("GET", "GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "FOO", "get")
HEADERS: dict[str, tuple[str, ...]] = {
    "host": ("localhost", "127.0.0.1:1", "[::1]:8000", "evil.example", "", "localhost@evil", "[", "é", "a" * 5000),
    "origin": ("http://localhost", "null", "http://[", "", "é", "http://localhost:99999999"),
    "sec-fetch-site": ("same-origin", "same-site", "cross-site", "none", "x"),
    "sec-fetch-mode": ("navigate", "cors", "no-cors"),
    "sec-fetch-dest": ("document", "iframe", "image"),
    "if-none-match": ("*", '"x"', "é"),
    "range": ("bytes=0-1", "bytes=-1", "bytes=9-1", "x"),
    "cookie": ("a=b", "=", ";" * 100, "a" * 5000),
    "content-type": ("application/json", "multipart/form-data", "x"),
    "accept-encoding": ("gzip", "br", "é"),
}


@dataclass
class Result:
    """Outcome of a run: requests, answers by status, the slowest one, and messages, of which twenty are kept."""

    requests: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    slowest_ms: float = 0.0
    findings: list[str] = field(default_factory=list)

    def find(self, what: str) -> None:
        if len(self.findings) < 20:
            self.findings.append(what)


@dataclass(frozen=True)
class Request:
    """A request below the secret path, whose query is of bytes; ``inside`` is whether the path holds the token."""

    method: str
    path: str
    query: bytes
    headers: list[tuple[bytes, bytes]]
    inside: bool
    body: bytes


def make_request(rng: Random) -> Request:
    """Make a request, most often nearly right."""
    path = rng.choice(PATHS) if rng.random() < 0.2 else rng.choice(tuple(PARAMETERS))
    if path in COSTLY and rng.random() < 0.9:
        path = rng.choice([each for each in PARAMETERS if each not in COSTLY])
    parameters = {name: make_value(name, rng) for name in PARAMETERS.get(path, ()) if rng.random() < 0.9}
    if path in ("/api/draws", "/drawn"):
        parameters["count"] = rng.choice(("1", "2", *ODD))
    if rng.random() < 0.05:
        parameters[rng.choice(("token", "x", "", "\ud800"))] = rng.choice(ODD)
    query = urlencode(parameters, errors="surrogatepass").encode()
    if rng.random() < 0.05:
        query = mutated(query, rng)
    headers = [(b"host", b"localhost")]
    for name, values in HEADERS.items():
        if rng.random() < 0.02:
            headers = [each for each in headers if each[0] != name.encode()]
            headers.append((name.encode(), rng.choice(values).encode()))
    method = rng.choice(METHODS) if rng.random() < 0.1 else "POST" if path.endswith(("verify", "cancel")) else "GET"
    return Request(method, path, query, headers, rng.random() > 0.02, rng.randbytes(rng.choice((0, 0, 0, 5, 100_000))))


def make_value(name: str, rng: Random) -> str:
    if name == "filter":
        return make_filter(rng)
    if rng.random() < 0.1:
        return rng.choice(ODD)
    return rng.choice(TEXTS.get(name, NUMBERS[:10] if rng.random() < 0.8 else NUMBERS))


def make_filter(rng: Random) -> str:
    """Make a filter: an object with some members of the right types, of others, or a text that is no JSON."""
    if rng.random() < 0.05:
        return rng.choice(("[" * 5000, '{"a":' * 2000, "{", "nul", "1e999", "9" * 5000, '"\\ud800"', "\0", "[NaN]"))
    made: dict[str, Any] = {}
    for member in rng.sample(MEMBERS[:6], rng.choice((1, 1, 2, 3))):
        made[member] = make_member(member, rng) if rng.random() < 0.9 else make_odd(rng)
    if rng.random() < 0.03:
        made[rng.choice((*MEMBERS, "", "\ud800"))] = make_odd(rng)
    text = json.dumps(made, ensure_ascii=rng.random() < 0.9)
    return mutated(text.encode("utf-8", "surrogatepass"), rng).decode("latin-1") if rng.random() < 0.05 else text


def make_member(member: str, rng: Random) -> Any:
    if member == "labels":
        return [rng.choice((0, 1, 2, -1, 2**31, 2**63 - 1)) for _ in range(rng.randrange(4))]
    if member == "samplings":
        return [rng.choice(("420", "444", "", "x")) for _ in range(rng.randrange(3))]
    if member == "ids":
        return ", ".join(rng.choice((*NUMBERS, *ODD, "1-5", "5-3", "1 - 9", "--")) for _ in range(rng.randrange(4)))
    if member == "ranges":
        bounds = (None, 0, 1, 100, 0.5, -1e308, 1e308, 2**63, 2**64 - 1, -(2**63))
        columns = ("width", "score", "id", "label", "bytes", "caption", "sampling", "no")
        return {rng.choice(columns): [rng.choice(bounds), rng.choice(bounds)] for _ in range(rng.randrange(3))}
    if member == "where":
        return " ".join(rng.choice(WORDS) for _ in range(rng.choice((1, 3, 5, 9, 30))))
    return rng.choice(("cat", "THING", "é", "%", "\0", "a" * 10_001, "", "\ud800"))


def make_odd(rng: Random) -> Any:
    return rng.choice(
        (None, True, -1, 10**400, float("inf"), float("nan"), "x", [], {}, [None], {"": []}, [[[]]], [1e999])
    )


def mutated(data: bytes, rng: Random) -> bytes:
    from mutate import mutate_bytes

    return mutate_bytes(data, rng)


def make_session(work: Path) -> Any:
    """A session over an annotated data set, whose ledger names files that are not UTF-8."""
    from view_page import make_annotated

    import picstore
    from picstore.viewer.records import Records
    from picstore.viewer.session import Session

    path, inputs = make_annotated(work / "set"), work / "in"
    (inputs / "a").mkdir(parents=True)
    (inputs / "a" / "0.png").write_bytes(b"no picture")
    lines = [
        {"input": name, "id": k, "status": "failed", "reason": f"of {name}", "source_bytes": 0, "bytes": 0}
        for k, name in enumerate(("a/0.png", "a/broken.png", "\udcff.png"))
    ]
    (path / "ledger.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Session(Records(picstore.Dataset(path)), inputs=inputs)


class Application:
    """The application, called as uvicorn calls it."""

    def __init__(self, work: Path) -> None:
        from picstore.viewer.security import Connections
        from picstore.viewer.server import make_app

        session = make_session(work)
        import picstore.train.loader  # noqa: F401 - with torch, in 5 s

        self._app = Connections(make_app(session, token=TOKEN))

    async def __call__(self, request: Request) -> tuple[int, bytes]:
        """Answer a request: status and body."""
        path = f"/{TOKEN}{request.path}" if request.inside else request.path
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": "http",
            "path": path,
            "raw_path": quote(path).encode(),
            "query_string": request.query,
            "root_path": "",
            "headers": request.headers,
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
            "state": {},
        }
        messages = [{"type": "http.request", "body": request.body, "more_body": False}]
        ended, status, parts = asyncio.Event(), 0, []

        async def receive() -> Any:
            if messages:
                return messages.pop()
            await ended.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)
            parts.append(message.get("body", b""))

        try:
            await self._app(scope, receive, send)
        finally:
            ended.set()
        return status, b"".join(parts)


def check(status: int, body: bytes, *, method: str) -> str:
    """What is wrong with an answer; empty if nothing is."""
    if status in (200, 206, 304, 307, 416):
        return ""
    if not 400 <= status < 500:
        return f"status {status}"
    if method == "HEAD":
        return ""
    try:
        told = str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        told = body.decode("utf-8", "replace")  # of a range of bytes
    return "" if len(told) > 10 else f"status {status} without a sentence: {body[:100]!r}"


async def fuzz_application(numbers: range, *, seed: int, work: Path, result: Result) -> None:
    """Send requests to the application, one after the other."""
    application = Application(work)
    for number in numbers:
        request = make_request(Random(f"{seed} {number}"))
        begun = time.perf_counter()
        try:
            status, body = await application(request)
        except Exception as error:  # whatever it is, it is a finding
            result.find(
                f"{seed} {number}: {type(error).__name__} {str(error)[:200]} of {request.path} {request.query[:300]!r}"
            )
            continue
        took = time.perf_counter() - begun
        result.requests += 1
        result.statuses[status] += 1
        result.slowest_ms = max(result.slowest_ms, round(1000 * took, 1))
        if wrong := check(status, body, method=request.method):
            result.find(f"{seed} {number}: {wrong} of {request.method} {request.path} {request.query[:300]!r}")
        if took > SLOW_SECONDS:
            result.find(f"{seed} {number}: {took:.1f} s for {request.path} {request.query[:300]!r}")


def fuzz_command(numbers: range, *, seed: int, work: Path, result: Result) -> None:
    """Send bytes to the command, often with errors in the protocol; it prints nothing and goes on."""
    command = [sys.executable, "-m", "picstore", "view", str(work / "set")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        found = next(filter(None, (re.search(r"http://127.0.0.1:(\d+)/(\S+)/", line) for line in process.stdout or ())))
        port, token = int(found[1]), found[2]
        for number in numbers:
            rng = Random(f"{seed} {number} bytes")
            raw = make_bytes(make_request(Random(f"{seed} {number}")), token)
            changed = rng.random() < 0.3
            with contextlib.suppress(ConnectionError), socket.create_connection(("127.0.0.1", port), 10) as connection:
                connection.sendall(mutated(raw, rng) if changed else raw)
                answered, _, _ = select.select([connection], [], [], 0.02 if changed else 60)
                status = re.match(rb"HTTP/1\.[01] (\d+)", connection.recv(64)) if answered else None
                result.statuses[int(status[1]) if status else 0] += 1
                if (status is None and not changed) or (status and int(status[1]) >= 500):
                    result.find(f"{seed} {number}: {status} to {raw[:300]!r}")
            result.requests += 1
            if process.poll() is not None:
                result.find(f"{seed} {number}: the command ended after {raw[:300]!r}")
                break
    finally:
        process.terminate()
        _, printed = process.communicate(timeout=60)
        if printed:
            result.find(f"the command printed {printed[:1000]!r}")


def make_bytes(request: Request, token: str) -> bytes:
    """Write a request as HTTP/1.1, with the beginning of its body."""
    path = f"/{token}{quote(request.path, safe='/%')}" if request.inside else "/" + quote(request.path)
    target = path.encode() + (b"?" + request.query if request.query else b"")
    lines = [request.method.encode() + b" " + target + b" HTTP/1.1", *(b": ".join(each) for each in request.headers)]
    if request.body:
        lines.append(b"content-length: %d" % len(request.body))
    return b"\r\n".join([*lines, b"", b""]) + request.body[:1000]


def fuzz(requests: int, *, seed: int) -> Result:
    """Send requests, each tenth of them to a command."""
    warnings.simplefilter("error", RuntimeWarning)
    result = Result()
    with tempfile.TemporaryDirectory(prefix="picstore-fuzz-") as work:
        wire = requests // 10
        asyncio.run(fuzz_application(range(requests - wire), seed=seed, work=Path(work), result=result))
        if wire:
            fuzz_command(range(requests - wire, requests), seed=seed, work=Path(work), result=result)
    return result


def main() -> None:
    """Read the command line; the exit status is 1 if there are findings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("requests", type=int)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    result = fuzz(chosen.requests, seed=chosen.seed)
    told = vars(result) | {"statuses": dict(sorted(result.statuses.items()))}
    print(json.dumps(told, indent=2))
    sys.exit(bool(result.findings))


if __name__ == "__main__":
    main()
