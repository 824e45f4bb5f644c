"""Credentials stand in no message, manifest, job or ledger."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from commands import picstore_command
from samples import jpeg
from source_files import make_tar

from picstore.errors import PicstoreError, UsageError
from picstore.storage.location import obstore_file
from picstore.storage.location.redact import has_credentials, redact
from picstore.storage.location.resolve import locate
from picstore.storage.location.resumed_download import Retries

SECRET = "S3CR3T-value"  # noqa: S105 - for tests


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("error for url http://user:S3CR3T@host:9/b/k: refused", "error for url http://…@host:9/b/k: refused"),
        ("GET (https://h/c/k?sv=2022&sig=S3CR3T%3D&se=1) 403", "GET (https://h/c/k?…) 403"),
        ("bad /c?comp=list&sig=S3CR3T, again", "bad /c?… again"),
        ("what is this? a=b", "what is this? a=b"),
        ("s3://bucket/name is missing", "s3://bucket/name is missing"),
    ],
)
def test_users_and_queries_are_taken_out_of_a_message(text: str, shown: str) -> None:
    assert redact(text) == shown


@pytest.mark.parametrize("piece", ["?", "?a", "://", "://a@", "?sig", "InvalidCertificate(", " ", "Requested "])
def test_an_answer_of_a_megabyte_takes_linear_time(piece: str) -> None:
    text = "InvalidCertificate( ?" + piece * ((1 << 20) // len(piece))  # quadratic time would be hours
    assert redact(text).count("@") == text.count("@")
    assert not has_credentials(text.replace("@", ""))
    obstore_file._TLS.search(text)


def test_secrets_that_are_set_are_taken_out_of_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN",
        "AZURE_CLIENT_SECRET", "GOOGLE_SERVICE_ACCOUNT_KEY",
    ):  # fmt: skip
        with monkeypatch.context() as patch:
            patch.setenv(name, SECRET)
            assert redact(f"<{SECRET}>") == "<…>", name
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")  # a name, not a secret
    assert redact("AKIAEXAMPLE") == "AKIAEXAMPLE"


@pytest.mark.parametrize(
    "url",
    [
        "s3://AKIA:S3CR3T@bucket/ds",
        "az://container/ds?sv=2022&sig=S3CR3T",
        "s3://bucket/ds?X-Amz-Credential=a&X-Amz-Signature=S3CR3T",
        "https://host/ds?X-Goog-Signature=S3CR3T",
        "https://user:S3CR3T@host/ds",
    ],
)
def test_a_url_with_credentials_is_refused_without_showing_them(url: str) -> None:
    assert has_credentials(url)
    with pytest.raises(UsageError) as caught:
        locate(url)
    assert "S3CR3T" not in str(caught.value)
    assert not has_credentials("s3://bucket/what?.jpg")


@pytest.fixture
def repeating_server() -> Iterator[str]:
    """URL of a server that refuses all requests, and repeats their addresses and headers in its answers."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = f"bad {self.path} {dict(self.headers)} {SECRET}".encode()
            self.send_response(400)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_PUT = do_POST = do_DELETE = do_HEAD = do_GET  # noqa: N815 - names of http.server

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_server_that_repeats_a_request_shows_no_secret(
    repeating_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("obstore")
    monkeypatch.setattr(obstore_file, "retries", lambda **_: Retries(0))
    monkeypatch.setattr(obstore_file, "_clients", {})
    monkeypatch.setenv("AWS_ENDPOINT_URL", repeating_server)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_SESSION_TOKEN", SECRET)
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", repeating_server)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", f"sv=2022&sig={SECRET}")
    for url in ("s3://bucket/ds", "az://container/ds"):
        for call in (lambda at: at.read(0, 9, file="f"), lambda at: at.entries(), lambda at: at.write(b"x")):
            with pytest.raises(PicstoreError) as caught:
                call(locate(url))
            assert SECRET not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    ("variable", "url"),
    [("AWS_ENDPOINT_URL", "s3://b/d"), ("STORAGE_EMULATOR_HOST", "gs://b/d"), ("AZURE_STORAGE_ENDPOINT", "az://b/d")],
)
def test_an_endpoint_with_a_password_is_refused(monkeypatch: pytest.MonkeyPatch, variable: str, url: str) -> None:
    pytest.importorskip("obstore")
    monkeypatch.setattr(obstore_file, "_clients", {})
    monkeypatch.setenv(variable, f"http://user:{SECRET}@127.0.0.1:9")
    with pytest.raises(UsageError, match=variable) as caught:
        locate(url).size()
    assert SECRET not in "".join(traceback.format_exception(caught.value))


@pytest.mark.slow
def test_nothing_that_a_conversion_writes_or_prints_holds_a_credential(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIA" + SECRET)
    monkeypatch.setattr(obstore_file, "_clients", {})
    tar = make_tar(tmp_path / "s.tar", {"a.jpg": jpeg(0), "b.jpg": b"broken", "c.jpg": jpeg(1)})
    locate(f"{bucket}/in/s.tar").write(tar.read_bytes())
    for destination in (str(tmp_path / "local"), f"{bucket}/out"):
        done = picstore_command(
            "convert", f"{bucket}/in/s.tar", destination, "--source", "webdataset", "--max-errors", 1, "--workers", 1
        )
        shown = (done.stdout + done.stderr).encode()
        out = locate(destination)
        written = [bytes(file.read(0, size, file=name)) for name, size in out.files() for file in [out / name]]
        assert len(written) >= 4
        assert not [text for text in (shown, *written) if SECRET.encode() in text]
