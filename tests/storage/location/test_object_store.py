"""Requests to object stores whose answers are cut short, and keys that obstore refuses."""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from stores import BREAK, UNAVAILABLE, Proxy, request

from picstore.errors import PicstoreError
from picstore.storage.location import obstore_file
from picstore.storage.location.object_store import PART_SIZE
from picstore.storage.location.resolve import locate_writable as locate
from picstore.storage.location.resumed_download import Retries


@pytest.fixture
def faulty(s3: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """Stands between the server and clients that are made from now on; three retries at once."""
    monkeypatch.setattr(obstore_file, "retries", lambda **_: Retries(3, first=0.001, longest=0.01))
    monkeypatch.setattr(obstore_file, "_clients", {})
    with Proxy(s3) as between:
        monkeypatch.setenv("AWS_ENDPOINT_URL", between.url)
        yield between


def put_raw(s3: str, bucket: str, key: str) -> None:
    request(f"{s3}/{bucket.removeprefix('s3://')}/{urllib.parse.quote(key)}", "PUT", b"x")


@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize("failure", [BREAK, UNAVAILABLE])
def test_a_listing_is_asked_for_again(failure: str, odd: bool, bucket: str, s3: str, faulty: Proxy) -> None:
    for key in ("a/1", "a/2", "b/3", *["a//4"] * odd):
        put_raw(s3, bucket, key)
    for cuts in (0, 1, 2):
        faulty.failures.extend([""] * cuts + [failure])
        assert sorted(name for name, _ in locate(bucket).files()) == ["a//4"] * odd + ["a/1", "a/2", "b/3"]
        faulty.failures.clear()
        faulty.failures.extend([""] * cuts + [failure])
        assert [entry.name for entry in locate(f"{bucket}/a").entries()] == [""] * odd + ["1", "2"]
        faulty.failures.clear()
    faulty.forever = failure
    for list_all in (lambda: list(locate(bucket).files()), locate(bucket).entries):
        with pytest.raises(PicstoreError, match=r"cannot be (reached|listed)"):
            list_all()


@pytest.mark.slow
def test_a_cut_listing_goes_on_behind_its_last_key(bucket: str, s3: str, faulty: Proxy) -> None:
    keys, expected = [f"k/{k:04d}" for k in range(1030)], {"k/0997-b", "k/0997"}
    for key in (*keys, "k/0997/", "k/0997-b"):  # a folder's mark, which sorts behind names that begin alike
        put_raw(s3, bucket, key)
    for odd in ([], ["k/1020//x"]):
        for key in odd:
            put_raw(s3, bucket, key)
        faulty.failures.extend(["", BREAK, "", BREAK])
        faulty.requests.clear()
        names = [f"k/{name}" for name, _ in locate(f"{bucket}/k").files()]
        assert sorted(names) == sorted({*keys, *expected, *odd})
        assert any("start-after" in path for path in faulty.requests if "list-type" in path)
        faulty.failures.clear()


def test_requests_whose_answers_are_cut_short_are_sent_again(bucket: str, faulty: Proxy) -> None:
    root, data = locate(bucket), b"1" * 100

    def write_new() -> None:
        assert (root / "new").write_new(data)

    def replace() -> None:
        assert (root / "k").replace(data[:50], expected=data)

    steps: list[tuple[str, Callable[[], Any]]] = [
        ("k", lambda: (root / "k").write(data)),
        ("k2", lambda: (root / "k").copy_to(root / "k2")),
        ("new", write_new),
        ("k", replace),
    ]
    for name, step in steps:
        faulty.failures.append(BREAK)
        step()
        assert (root / name).is_file()
    faulty.failures.extend(["", "", BREAK])  # the size and the listing come before
    root.remove()
    assert list(root.files()) == []


@pytest.mark.parametrize("cut", range(6))
def test_an_upload_of_parts_survives_each_answer_cut_short(cut: int, bucket: str, faulty: Proxy) -> None:
    data = [bytes([k]) * PART_SIZE for k in range(3)] + [b"end"]
    faulty.failures.extend([""] * cut + [BREAK])
    writer = (locate(bucket) / "k").create()
    for part in data:
        writer.write(part)
    writer.close()
    faulty.failures.clear()
    assert (locate(bucket) / "k").read_all(1 << 30) == b"".join(data)


def test_an_upload_that_ends_early_is_not_taken_for_what_was_there(bucket: str, faulty: Proxy) -> None:
    target = locate(bucket) / "k"
    for fill, cut in ((b"a", ""), (b"b", UNAVAILABLE)):
        # All answers from the fourth request on, which ends the upload; a thread sends the first while this one writes.
        faulty.after = (len(faulty.requests) + 3, cut)
        writer = target.create()
        writer.write(fill * (PART_SIZE + 1))
        if not cut:
            writer.close()
            continue
        with pytest.raises(PicstoreError):
            writer.close()
    faulty.after, faulty.forever = (1 << 62, ""), ""
    assert target.read_all(1 << 30)[:1] == b"a"
