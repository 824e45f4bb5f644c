"""Reading from servers that break off, send other bytes than they were asked for, or have a wrong certificate."""

from __future__ import annotations

import datetime
import ipaddress
import logging
import math
import random
import ssl
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from commands import one_line, picstore_command
from web_server import WebServer

import picstore
from picstore.errors import Damage, PicstoreError
from picstore.storage.location import obstore_file, resumed_download
from picstore.storage.location.resolve import Location, locate
from picstore.storage.location.resumed_download import Retries

DATA = bytes(range(256)) * 40


class BadServer(WebServer):
    """A web server without ETags, whose answers of more than 100 bytes are changed.

    Attributes:
        cuts: how many of them break off, with the length of all bytes in their header.
        part: of their bytes that are sent before.
        short: whether they end after two thirds, with that length in their header.
        surplus: bytes that follow each.
        date: Last-Modified of each, by the number of requests before it.
        sent: bytes of the last one.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.cuts, self.part, self.short, self.surplus, self.sent = 0, 0.3, False, 0, 0
        self.date: Callable[[int], int] = lambda _: 0

    def send(
        self, handler: BaseHTTPRequestHandler, status: int, body: bytes, headers: dict[str, str] | None = None
    ) -> None:
        date = handler.date_time_string(self.date(len(self.requests)))
        headers = {**(headers or {}), "Last-Modified": date}
        if status not in (200, 206) or len(body) <= 100:
            super().send(handler, status, body, headers)
            return
        if self.short:
            body = body[: len(body) * 2 // 3]
        handler.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body) + self.surplus)}.items():
            handler.send_header(name, value)
        handler.end_headers()
        self.sent = 0
        if self.cuts > 0:
            self.cuts -= 1
            handler.wfile.write(body[: int(len(body) * self.part)])
            handler.close_connection = True
            return
        try:
            handler.wfile.write(body)
            while self.sent < self.surplus:
                self.sent += handler.wfile.write(bytes(min(1 << 16, self.surplus - self.sent)))
        except OSError:  # the client has left
            handler.close_connection = True


@pytest.fixture
def bad_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BadServer]:
    """Serves ``file``, which holds DATA. Reads from it are retried up to 20 times."""
    pytest.importorskip("obstore")
    monkeypatch.setattr(obstore_file, "retries", lambda **_: Retries(20, base=1, first=0.001))
    monkeypatch.setattr(obstore_file, "_clients", {})
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "file").write_bytes(DATA)
    with BadServer(tmp_path / "served") as server:
        yield server


def read_pieces(file: Location) -> bytes:
    parts = [(offset, memoryview(bytearray(3000))) for offset in (7000, 0, 3500)]
    file.read_pieces(parts, file="x", near=600)
    return b"".join(bytes(memory) for _, memory in parts)


READS: dict[str, tuple[Callable[[Location], bytes], bytes]] = {
    "read": (lambda file: bytes(file.read(100, 9000, file="x")), DATA[100:9100]),
    "read_pieces": (read_pieces, DATA[7000:10000] + DATA[:3000] + DATA[3500:6500]),
    "read_all": (lambda file: file.read_all(1 << 20), DATA),
    "lines": (lambda file: b"".join(file.lines()), DATA),
}
RANGES = {name: READS[name] for name in ("read", "read_pieces")}  # a whole file has the length that the server states
each_way_to_read = pytest.mark.parametrize(("read", "expected"), READS.values(), ids=list(READS))
each_range = pytest.mark.parametrize(("read", "expected"), RANGES.values(), ids=list(RANGES))


@each_way_to_read
def test_an_answer_that_breaks_off_goes_on_where_it_ended(
    bad_server: BadServer, read: Callable[[Location], bytes], expected: bytes
) -> None:
    bad_server.cuts = 5
    assert read(locate(f"{bad_server.url}/file")) == expected
    assert bad_server.cuts == 0


@each_range
def test_an_answer_that_is_too_short_goes_on_where_it_ended(
    bad_server: BadServer, read: Callable[[Location], bytes], expected: bytes
) -> None:
    bad_server.short = True
    assert read(locate(f"{bad_server.url}/file")) == expected


@each_range
def test_a_body_longer_than_asked_is_an_error_and_not_read_whole(
    bad_server: BadServer, read: Callable[[Location], bytes], expected: bytes
) -> None:
    bad_server.surplus = 1 << 30
    with pytest.raises(PicstoreError, match="more bytes than it was asked for") as caught:
        read(locate(f"{bad_server.url}/file"))
    assert not isinstance(caught.value, Damage)
    assert bad_server.sent < 1 << 26


def test_a_file_that_changes_while_it_is_read_is_an_error(bad_server: BadServer) -> None:
    file = locate(f"{bad_server.url}/file")
    bad_server.cuts, bad_server.date = 1, lambda requests: 1000 * requests
    with pytest.raises(PicstoreError, match="was changed while it was read"):
        file.read(0, 9000, file="x")


def test_an_answer_of_another_range_is_an_error_at_once(bad_server: BadServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(obstore_file, "retries", lambda **_: Retries(1000, first=1))
    answer = bad_server.send

    def shifted(handler: BaseHTTPRequestHandler, status: int, body: bytes, headers: dict[str, str]) -> None:
        answer(handler, status, body, {**headers, "Content-Range": f"bytes 1-{len(body)}/{len(DATA)}"})

    monkeypatch.setattr(bad_server, "send", shifted)
    with pytest.raises(PicstoreError, match="cannot be reached"):
        locate(f"{bad_server.url}/file").read(0, 9000, file="x")
    assert len(bad_server.requests) == 1


def test_a_server_that_breaks_off_every_time_is_an_error_and_no_damage(
    bad_server: BadServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(obstore_file, "retries", lambda **_: Retries(3, first=0.001))
    bad_server.cuts, bad_server.part = 1000, 0
    with pytest.raises(PicstoreError, match="cannot be reached") as caught:
        locate(f"{bad_server.url}/file").read(0, 9000, file="x")
    assert not isinstance(caught.value, Damage)
    assert bad_server.cuts == 1000 - 4


def test_retries_end_after_their_time_whatever_the_clock_on_the_wall_says(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "time", lambda: random.uniform(-1e9, 1e9))  # a clock that jumps
    spent = []
    rule = obstore_file.retries(patient=True)
    for seconds in rule.waits(rule.deadline()):
        assert 0.1 <= seconds <= 15
        now[0] += seconds
        spent.append(seconds)
    assert 180 <= sum(spent) <= 195


@pytest.mark.parametrize("headers", [{"Content-Encoding": "gzip"}, {"Content-Encoding": "br"}])
def test_answers_that_a_server_compresses_are_an_error_and_no_damage(
    bad_server: BadServer, monkeypatch: pytest.MonkeyPatch, headers: dict[str, str]
) -> None:
    answer = bad_server.send
    monkeypatch.setattr(
        bad_server,
        "send",
        lambda handler, status, body, more=None: answer(handler, status, body, {**(more or {}), **headers}),
    )
    with pytest.raises(PicstoreError, match="compresses its answers") as caught:
        locate(f"{bad_server.url}/file").read(0, 9000, file="x")
    assert not isinstance(caught.value, Damage)
    assert len(bad_server.requests) == 1


def test_a_server_that_states_no_length_is_named_as_such(
    bad_server: BadServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send(handler: BaseHTTPRequestHandler, status: int, body: bytes, headers: dict[str, str]) -> None:
        handler.send_response(status)
        for name, value in {**headers, "Transfer-Encoding": "chunked"}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))

    monkeypatch.setattr(bad_server, "send", send)
    with pytest.raises(PicstoreError, match="does not state the length of its answers"):
        locate(f"{bad_server.url}/file").read(0, 9000, file="x")


def test_a_store_that_stays_away_is_told_of_once(
    bad_server: BadServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(resumed_download, "TELL_AFTER", 0.0)
    monkeypatch.setattr(resumed_download, "_told", -math.inf)
    bad_server.cuts, bad_server.part = 4, 0
    with caplog.at_level(logging.WARNING, "picstore"):
        read_pieces(locate(f"{bad_server.url}/file"))
    assert len(caplog.messages) == 1
    assert "cannot be reached" in caplog.text


# TLS


def certificate(folder: Path, *, days: int, name: str = "127.0.0.1") -> Path:
    """Make a self-signed certificate of a server, which ends ``days`` from now; returns its file, with the key."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "tests")])
    end = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(days=days)
    made = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(end - datetime.timedelta(days=30))
        .not_valid_after(end)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(name))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    file = folder / "certificate.pem"
    pem, none = serialization.Encoding.PEM, serialization.NoEncryption()
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, none)
    file.write_bytes(made.public_bytes(pem) + secret)
    return file


@pytest.mark.parametrize(
    ("days", "name", "trusted", "reason"),
    [(9, "127.0.0.1", False, "UnknownIssuer"), (-9, "127.0.0.1", True, "Expired"), (9, "127.0.0.2", True, "NotValid")],
    ids=["unknown authority", "expired", "another name"],
)
def test_a_wrong_certificate_is_one_error_at_once(
    days: int, name: str, trusted: bool, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("obstore")
    monkeypatch.setattr(obstore_file, "_clients", {})
    file = certificate(tmp_path, days=days, name=name)
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(file))
    with WebServer(tmp_path) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        server._http.socket = context.wrap_socket(server._http.socket, server_side=True)
        server._http.handle_error = lambda *_: None
        url = server.url.replace("http://", "https://")
        began = time.monotonic()
        for read in (lambda: picstore.Dataset(f"{url}/set"), lambda: locate(f"{url}/x").read(0, 10, file="x")):
            with pytest.raises(PicstoreError, match=rf"certificate is refused \({reason}") as caught:
                read()
            assert "SSL_CERT_FILE" in str(caught.value)
        assert "certificate is refused" in one_line(picstore_command("info", f"{url}/set", code=1))
        assert time.monotonic() - began < 30  # the retries of what may pass take minutes
    assert server.requests == []
