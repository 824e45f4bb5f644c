"""Records: what fits, and what makes two of them equal."""

from __future__ import annotations

from dataclasses import replace

import pytest

from picstore.errors import UsageError
from picstore.storage.format.record import ImageInfo, Record

INFO = ImageInfo(8, 9)


def test_a_known_checksum_and_how_it_was_made_tell_no_records_apart() -> None:
    record = Record(1, 2, b"x", INFO)
    assert record == replace(record, crc=7) == replace(record, info=replace(INFO, encode_path="lossless"))
    assert "crc" not in repr(record)
    for change in ({"id": 2}, {"label": 3}, {"jpeg": b"y"}, {"extra_json": b"{}"}, {"info": ImageInfo(9, 9)}):
        assert record != replace(record, **change)


def test_ids_labels_and_sides_at_their_limits_are_taken_and_beyond_refused() -> None:
    assert Record((1 << 64) - 1, (1 << 63) - 1, b"", INFO).id == (1 << 64) - 1
    assert Record(0, -1 << 63, b"", ImageInfo(1, 65535)).height == 65535
    for id_, label in ((-1, 0), (1 << 64, 0), (0, 1 << 63), (0, (-1 << 63) - 1)):
        with pytest.raises(UsageError, match="64 bits"):
            Record(id_, label, b"", INFO)
    for width, height in ((0, 1), (1, 0), (65536, 1), (1, 65536)):
        with pytest.raises(UsageError, match="65,535"):
            ImageInfo(width, height)
