"""References: the bytes that docs/format.md gives them, and the ranges and paths that are refused."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from picstore.errors import Corrupt, UsageError
from picstore.storage.format.layout import MAX_CONTAINER, MAX_FILE
from picstore.storage.format.reference import MAX_PATH, Reference, unpack_reference

PATHS = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=20)


@given(
    names=st.lists(PATHS.filter(lambda name: name not in (".", "..")), min_size=1, max_size=3),
    offset=st.integers(0, MAX_FILE),
    length=st.integers(1, MAX_CONTAINER),
    crc=st.integers(0, (1 << 32) - 1),
)
def test_a_reference_is_offset_length_checksum_and_path(names: list[str], offset: int, length: int, crc: int) -> None:
    path = "/".join(names)
    packed = Reference(path, offset, length, crc).pack()
    assert packed == struct.pack("<QII", offset, length, crc) + path.encode()
    assert unpack_reference(packed) == unpack_reference(memoryview(packed)) == Reference(path, offset, length, crc)


@pytest.mark.parametrize("path", ["", ".", "..", "a/../b", "a//b", "/a", "a/", "a\0", "a" * (MAX_PATH + 1)])
def test_paths_that_lead_elsewhere_or_nowhere_are_refused(path: str) -> None:
    with pytest.raises(UsageError, match="the path is"):
        Reference(path, 0, 1, 0)


@pytest.mark.parametrize(("offset", "length"), [(0, 0), (-1, 1), (MAX_FILE + 1, 1), (0, MAX_CONTAINER + 1), (0, -1)])
def test_ranges_that_no_file_has_are_refused(offset: int, length: int) -> None:
    Reference("a" * MAX_PATH, MAX_FILE, MAX_CONTAINER, 0)
    with pytest.raises(UsageError, match=f"{length:,} bytes at"):
        Reference("a", offset, length, 0)


def test_bytes_of_another_length_are_no_reference() -> None:
    fixed = struct.pack("<QII", 0, 1, 0)
    assert unpack_reference(fixed + b"a" * MAX_PATH).path == "a" * MAX_PATH
    for blob in (b"", fixed, fixed[:-1] + b"a", fixed + b"a" * (MAX_PATH + 1), fixed + b".."):
        with pytest.raises(Corrupt):
            unpack_reference(blob)


def test_names_that_are_not_utf_8_keep_their_bytes() -> None:
    packed = struct.pack("<QII", 1, 2, 3) + b"a\xff"
    assert unpack_reference(packed).pack() == packed
