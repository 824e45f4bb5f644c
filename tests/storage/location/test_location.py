"""Locations: a folder of this machine and one of an object store have the same verbs and keep the same promises."""

from __future__ import annotations

import copy
import errno
import fcntl
import importlib.util
import io
import os
import resource
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pictures import require
from stores import BREAK, UNAVAILABLE, Proxy, request

from picstore.errors import Damage, MissingDependency, NotADataset, PicstoreError, TooLarge, Truncated, UsageError
from picstore.storage.location import obstore_file, obstore_fork, resumed_download
from picstore.storage.location.abstract_location import Entry
from picstore.storage.location.local import Folder
from picstore.storage.location.object_store import Bucket
from picstore.storage.location.resolve import Location, locate, map_concurrently
from picstore.storage.location.resumed_download import Retries
from picstore.storage.sizes import parse_size


@pytest.fixture(params=["folder", "objects"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    """An empty location of each kind."""
    return locate(tmp_path / "root" if request.param == "folder" else request.getfixturevalue("bucket") + "/root")


@pytest.fixture
def proxy(s3: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """What stands between clients that are made from now on and the server, and fails as told; three retries."""
    monkeypatch.setattr(obstore_file, "retries", lambda **_: Retries(3))
    monkeypatch.setattr(obstore_file, "_clients", {})
    with Proxy(s3) as between:
        monkeypatch.setenv("AWS_ENDPOINT_URL", between.url)
        yield between


# Names


@pytest.mark.parametrize("name", ["data/train", "/data/s3:/train", "./s3:/x", "C:/x", "a:b", "train"])
def test_what_is_no_url_is_a_path(name: str) -> None:
    assert locate(name) == Folder(Path(name))


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("s3://bucket/train", Bucket("s3", "bucket", "train")),
        ("s3://bucket/a//b/", Bucket("s3", "bucket", "a/b")),
        ("s3://bucket", Bucket("s3", "bucket")),
        ("gs://bucket/a b", Bucket("gs", "bucket", "a b")),
        ("az://container/train", Bucket("az", "container", "train")),
    ],
)
def test_a_url_that_pathlib_took_a_slash_from_is_still_an_object_store(url: str, expected: Bucket) -> None:
    require(importlib.util.find_spec("obstore"), "obstore")
    assert locate(url) == locate(Path(url)) == locate(locate(url)) == expected
    assert copy.copy(expected) == expected
    assert expected.absolute() == expected
    assert str(expected / "0000/000001.pic").startswith(f"{expected}/0000/0")


@pytest.mark.parametrize("url", ["sftp://host/train", "ftp://host/x", "s3://", "s3:///train", "s3://bucket/../other"])
def test_a_url_of_another_kind_or_without_a_bucket_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="://"):
        locate(url)


def test_without_obstore_the_message_holds_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(obstore_fork, "_loaded", {})
    monkeypatch.setattr(obstore_fork, "_files", [])
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(MissingDependency, match=r"pip install .*\[objects\]'"):
        locate("s3://bucket/train")


# What both kinds do


def test_bytes_are_read_as_they_were_written(root: Location) -> None:
    data = bytes(range(256)) * 100
    (root / "0000/file").write(data)
    file = root / "0000" / "file"
    assert file.size() == len(data)
    assert file.read_all(len(data)) == data
    assert bytes(file.read(1000, 700, file="f")) == data[1000:1700]
    assert bytes(file.read(len(data), 0, file="f")) == b""
    memory = memoryview(bytearray(b"-" * 12))
    view = file.read(5, 10, file="f", allocate=lambda size: memory[:size])
    assert bytes(memory) == data[5:15] + b"--"
    assert view.readonly


def test_a_sweep_takes_the_files_of_dead_writers_and_leaves_living_ones(tmp_path: Path) -> None:
    names = ("ds/picstore.json", "ds/edits/a.npy", "ds/0000/000000.pic")
    dead = [tmp_path / f"{name}.0123abcd.partial" for name in names]
    for path in dead:
        Folder(path).write(b"half")
    living = [Folder(tmp_path / name).create() for name in names]
    Folder(tmp_path / "ds").sweep()
    assert not [path for path in dead if path.exists()]
    for writer in living:
        writer.close()
    assert all((tmp_path / name).is_file() for name in names)


@pytest.mark.parametrize("supported", [True, False])
def test_on_macos_a_file_and_its_folder_reach_the_disk_past_its_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, supported: bool
) -> None:
    """Where the file system can; else as far as it can."""
    calls: list[str] = []

    def fcntl_of_macos(descriptor: int, command: int) -> None:
        assert command == 51
        calls.append("F_FULLFSYNC")
        if not supported:
            raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", fcntl_of_macos)
    monkeypatch.setattr(os, "fsync", lambda _: calls.append("fsync"))
    Folder(tmp_path / "file").write(b"data")
    assert calls == ["F_FULLFSYNC"] * 2 if supported else ["F_FULLFSYNC", "fsync"] * 2


def test_a_write_that_fails_leaves_no_half_written_file(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    writer = Folder(tmp_path / "file").create()
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))  # as a full disk does, it takes no byte more
    try:
        with pytest.raises(OSError, match="File too large"):
            for _ in range(1000):  # more than any buffer holds
                writer.write(bytes(1000))
        writer.abandon()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_is_written_again_holds_what_was_written_last(root: Location) -> None:
    (root / "f").write(b"first")
    (root / "f").write(b"2nd")
    assert (root / "f").read_all(100) == b"2nd"


def test_what_is_said_to_be_in_memory_is_there_and_nothing_missing_is(root: Location) -> None:
    file = root / "file"
    file.write(bytes(range(256)) * 100)
    expected = bytes(range(10, 20)) + bytes(range(100, 200))
    buffer = memoryview(bytearray(len(expected)))
    assert file.read(0, 1, file="file")
    assert not file.read_cached([(10, buffer[:10]), (612, buffer[10:])]) or buffer == expected
    assert not file.read_cached([(10, buffer[:10]), (256 * 100 - 50, buffer[10:])])
    assert not (root / "missing").read_cached([(0, buffer)])


@pytest.mark.parametrize(("offset", "size"), [(0, 101), (96, 5), (100, 1), (1 << 62, 1), (0, 1 << 50)])
def test_nothing_is_allocated_for_bytes_that_a_file_does_not_have(root: Location, offset: int, size: int) -> None:
    def never(size: int) -> memoryview:
        raise AssertionError(size)

    (root / "f").write(bytes(100))
    with pytest.raises(Truncated, match=f"ends after {max(0, 100 - offset)} of {size} bytes") as caught:
        (root / "f").read(offset, size, file="name", allocate=never)
    assert (caught.value.file, caught.value.offset) == ("name", offset)


def test_what_is_missing_is_named_as_missing(root: Location) -> None:
    (root / "there").write(b"")
    missing = root / "none"
    for verb in (
        lambda: missing.read(0, 1, file=str(missing)),
        lambda: missing.read_all(10),
        lambda: list(missing.lines()),
        missing.size,
    ):
        with pytest.raises(NotADataset, match=r"none is missing$"):
            verb()


def test_a_file_beyond_the_limit_is_not_read(root: Location) -> None:
    (root / "f").write(bytes(11))
    with pytest.raises(TooLarge, match="11 bytes, at most 10"):
        (root / "f").read_all(10)


def test_lines_come_one_by_one_wherever_the_bytes_were_cut(root: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resumed_download, "_PIECE", 7)
    lines = [b"a" * n + b"\n" for n in range(40)] + ["ä\u2028ö\n".encode() * 3, b"\r\x0b\x0c\x1c\n", b"end"]
    (root / "f").write(b"".join(lines))
    expected = b"".join(lines).split(b"\n")
    assert [line.rstrip(b"\n") for line in (root / "f").lines()] == expected


def test_a_listing_has_every_file_below_and_no_neighbor(root: Location) -> None:
    for name in ("ds/a", "ds/b/c", "ds/b/d", "ds2/x", "dsx"):
        (root / name).write(name.encode())
    assert sorted((root / "ds").files()) == [("a", 4), ("b/c", 6), ("b/d", 6)]
    assert [(root / name).is_folder() for name in ("ds", "ds/b")] == [True, True]
    assert [(root / name).is_folder() for name in ("ds/a", "d", "none")] == [False, False, False]
    assert [(root / name).is_file() for name in ("ds", "ds/a", "dsx", "none")] == [False, True, True, False]
    assert list((root / "none").files()) == []
    (root / "ds").remove()
    (root / "none").remove()
    assert sorted(name for name, _ in root.files()) == ["ds2/x", "dsx"]


def test_a_folders_entries_are_what_lies_directly_in_it_by_name(root: Location) -> None:
    for name in ("b/deep/x", "b.txt", "a/y", "c"):
        (root / name).write(b"data")
    expected = [Entry("a", True), Entry("b", True), Entry("b.txt", False), Entry("c", False)]
    assert root.entries() == expected
    assert (root / "b").entries() == [Entry("deep", True)]
    assert root.exists()
    assert (root / "c").exists()
    assert not (root / "d").exists()
    with pytest.raises(UsageError, match="is not a folder"):
        (root / "c").entries()
    with pytest.raises(NotADataset, match="does not exist"):
        (root / "d").entries()


def test_a_place_has_a_name_and_lies_in_another(root: Location) -> None:
    assert (root / "a/b.txt").name == "b.txt"
    assert (root / "a/b.txt").parent == root / "a"
    assert root.name == "root"


def test_a_file_is_read_as_a_library_reads_it(root: Location) -> None:
    data = bytes(range(256)) * 100
    (root / "file").write(data)
    with (root / "file").open() as file:
        assert file.read(10) == data[:10]
        assert file.seek(-5, io.SEEK_END) == len(data) - 5
        assert file.read(100) == data[-5:]
        assert file.read(1) == b""
        file.seek(300)
        assert (file.tell(), file.read()) == (300, data[300:])
        file.seek(len(data) + 7)
        assert file.read() == b""
    with pytest.raises(NotADataset, match="is missing"):
        (root / "none").open()


def test_a_file_appears_only_when_it_is_complete(root: Location) -> None:
    for size in (0, 100, 20 << 20):
        out = (root / "f").create()
        data = os.urandom(size)
        for start in range(0, size, 3 << 20):
            out.write(data[start : start + (3 << 20)])
        assert not (root / "f").is_file()
        out.close()
        out.abandon()  # too late
        assert (root / "f").read_all(1 << 30) == data
        root.remove()


def test_a_file_that_was_given_up_leaves_nothing(root: Location) -> None:
    for size in (0, 100, 20 << 20):
        out = (root / "f").create()
        out.write(bytes(size))
        out.abandon()
        out.abandon()
        assert list(root.files()) == []


def test_many_keeps_the_order_and_raises_what_is_raised() -> None:
    assert list(map_concurrently(lambda number: number * 2, range(1000))) == list(range(0, 2000, 2))
    assert list(map_concurrently(str, [])) == []
    with pytest.raises(ZeroDivisionError):
        list(map_concurrently(lambda number: 1 // (500 - number), range(1000)))


@pytest.mark.parametrize(
    ("text", "expected"), [("8MiB", 8 << 20), ("50 gib", 50 << 30), ("12", 12), (0, 0), ("1TiB", 1 << 40), ("7B", 7)]
)
def test_sizes_are_read_as_users_write_them(text: str | int, expected: int) -> None:
    assert parse_size(text) == expected


@pytest.mark.parametrize("text", ["", "-1", -1, "8MB", "1.5GiB", "GiB", "8 Mi B"])
def test_a_size_that_is_none_is_refused(text: str | int) -> None:
    with pytest.raises(UsageError, match="is not a size"):
        parse_size(text)


# Object stores


def test_an_upload_that_was_given_up_is_taken_back(bucket: str, s3: str) -> None:
    out = (locate(bucket) / "f").create()
    out.write(bytes(20 << 20))
    out.write(bytes(20 << 20))
    out.abandon()
    name = bucket.removeprefix("s3://")
    assert b"<UploadId>" not in request(f"{s3}/{name}?uploads")


@pytest.mark.parametrize("failure", [UNAVAILABLE, BREAK])
def test_requests_that_fail_are_sent_again(proxy: Proxy, bucket: str, failure: str) -> None:
    file = locate(bucket) / "f"
    data = os.urandom(100_000)
    file.write(data)
    for read in (lambda: bytes(file.read(10, 90_000, file="f")), lambda: file.read_all(1 << 20)[10:90_010]):
        before = len(proxy.requests)
        proxy.failures.extend([failure] * 2)
        assert read() == data[10:90_010]
        assert len(proxy.requests) - before == 3


def test_parts_of_an_upload_that_fail_are_sent_again(proxy: Proxy, bucket: str) -> None:
    data = os.urandom(20 << 20)
    proxy.failures.extend([UNAVAILABLE] * 3)
    out = (locate(bucket) / "f").create()
    for start in range(0, len(data), 5 << 20):
        out.write(data[start : start + (5 << 20)])
    out.close()
    assert not proxy.failures
    assert (locate(bucket) / "f").read_all(1 << 30) == data


@pytest.mark.slow
@pytest.mark.parametrize("failure", [UNAVAILABLE, BREAK])
def test_a_store_that_stays_away_is_an_error_with_advice_and_no_damage(proxy: Proxy, bucket: str, failure: str) -> None:
    file = locate(bucket) / "f"
    file.write(bytes(1000))
    proxy.forever = failure
    for verb in (lambda: file.read(0, 1000, file="f"), lambda: file.read_all(1000), lambda: list(file.lines())):
        with pytest.raises(PicstoreError, match=r"cannot be reached; check the network and AWS_ENDPOINT_URL") as caught:
            verb()
        assert not isinstance(caught.value, (Damage, NotADataset))
        assert "\n" not in str(caught.value)
        assert caught.value.__cause__ is not None


def test_an_upload_to_a_store_that_stays_away_fails_once_and_can_be_left(proxy: Proxy, bucket: str) -> None:
    out = (locate(bucket) / "f").create()
    proxy.forever = UNAVAILABLE
    with pytest.raises(PicstoreError, match="cannot be reached"):
        for _ in range(100):
            out.write(bytes(9 << 20))
    with pytest.raises(PicstoreError, match="cannot be reached"):
        out.close()
    out.abandon()


def test_a_store_that_refuses_is_an_error_that_names_credentials_to_set(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing:
        exceptions = obstore_fork.library().exceptions

        def head(self, *_: object) -> None:
            raise self.exceptions.PermissionDeniedError("403 Forbidden")

    file = locate(bucket) / "f"
    monkeypatch.setattr(obstore_file, "library", Refusing)
    monkeypatch.setattr(Bucket, "_client_of", lambda *_: None)
    with pytest.raises(
        PicstoreError, match="refuses access; check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    ) as caught:
        file.size()
    assert type(caught.value) is PicstoreError


def test_a_bucket_that_does_not_exist_is_named(bucket: str) -> None:
    elsewhere = locate("s3://no-such-bucket/train")
    for verb in (lambda: list(elsewhere.files()), lambda: elsewhere.write(b"x"), lambda: elsewhere.read_all(1)):
        with pytest.raises(NotADataset, match="there is no bucket no-such-bucket"):
            verb()


def test_a_fork_reads_as_its_parent_does_and_so_does_its_own(bucket: str) -> None:
    (locate(bucket) / "f").write(b"hello")
    script = f"""
        import os
        from picstore.storage.location.resolve import locate

        def read():
            return bytes((locate("{bucket}") / "f").read(0, 5, file="f"))

        def forked(task):
            child = os.fork()
            if not child:
                os._exit(0 if task() else 1)
            return os.waitpid(child, 0)[1] == 0

        assert read() == b"hello"
        assert forked(lambda: read() == b"hello" and forked(lambda: read() == b"hello") and read() == b"hello")
        assert read() == b"hello"
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, timeout=60)


def test_of_many_writers_of_a_new_file_one_succeeds_without_hard_links_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with ThreadPoolExecutor(8) as threads:
        for name in map(str, range(20)):
            path = Folder(tmp_path / name)
            written = [threads.submit(path.write_new, b"%d" % k) for k in range(8)]
            (winner,) = [k for k, future in enumerate(written) if future.result()]
            assert path.read_all(10) == b"%d" % winner
    assert len(list(tmp_path.iterdir())) == 20
