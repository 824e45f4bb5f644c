"""Limits of the format's fixed structures, each at its last value that is read and at the first that is refused."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from picstore.errors import Corrupt, TooLarge
from picstore.storage.format import layout
from picstore.storage.format.container import ContainerRef
from picstore.storage.format.layout import ContainerHeader, check_rows, correct_bit_flip

# docs/format.md, "Limits".
CONTAINER, RECORDS, EXTRAS, ATTACHMENTS, FILE = 1 << 30, 1 << 20, 1 << 28, 64, 1 << 60
HEADER = ContainerHeader(
    attachments=2, reserved=0, records=3, size=4096, segments=5, extras_size=7, extras_raw=11, payload_size=900,
    index_crc=1, segments_crc=2, extras_crc=3, payload_crc=4, stream=5, file=6, ordinal=7,
)  # fmt: skip


def row(**cells: int) -> np.ndarray:
    """A row of an index, of a container of two pages with one record by default."""
    made = np.zeros(1, layout.INDEX_ROW)
    for name, value in {"offset": 4096, "size": 8192, "records": 1, **cells}.items():
        made[name] = value
    return made


def test_sections_follow_each_other_without_a_gap() -> None:
    sizes = [64, 3 * (64 + 2 * 16), 5 * 2, 7, 900]
    places = [HEADER.segments_at, HEADER.extras_at, HEADER.payload_at, HEADER.payload[1]]
    assert places == np.cumsum(sizes).tolist()[1:]
    assert HEADER.payload == (HEADER.payload_at, HEADER.payload_at + 900)
    HEADER.check(file="", offset=0)


@pytest.mark.parametrize(("size", "expected"), [(0, 0), (1, 4096), (4096, 4096), (4097, 8192)])
def test_sizes_are_rounded_up_to_pages(size: int, expected: int) -> None:
    assert layout.aligned(size) == expected


@pytest.mark.parametrize(
    ("name", "most"),
    [("size", CONTAINER), ("records", RECORDS), ("attachments", ATTACHMENTS), ("extras_raw", EXTRAS)],
)
def test_a_header_beyond_a_limit_is_too_large_and_one_at_it_is_not(name: str, most: int) -> None:
    with pytest.raises(TooLarge):
        dataclasses.replace(HEADER, **{name: most + 1}).check(file="", offset=0)
    at_limit = dataclasses.replace(HEADER, **{name: most})
    if name == "extras_raw":
        at_limit.check(file="", offset=0)
    else:
        with pytest.raises(Corrupt, match="do not add up"):
            at_limit.check(file="", offset=0)


@pytest.mark.parametrize("changes", [{"size": 8192}, {"records": 0, "payload_size": 3000}, {"payload_size": 4000}])
def test_sections_that_do_not_add_up_to_the_size_are_corrupt(changes: dict[str, int]) -> None:
    with pytest.raises(Corrupt, match="do not add up"):
        dataclasses.replace(HEADER, **changes).check(file="", offset=0)


@pytest.mark.parametrize(
    "cells",
    [
        {}, {"size": 4096, "records": 63}, {"size": CONTAINER}, {"offset": FILE}, {"referenced": CONTAINER},
        {"size": CONTAINER, "records": RECORDS},
    ],
)  # fmt: skip
def test_rows_at_the_limits_are_read(cells: dict[str, int]) -> None:
    check_rows(row(**cells), file="")


@pytest.mark.parametrize(
    "cells",
    [
        {"size": 0}, {"size": 4096 + 64}, {"size": CONTAINER + 4096}, {"offset": 0}, {"offset": 5000},
        {"offset": FILE + 4096}, {"records": 0}, {"size": 4096, "records": 64}, {"referenced": CONTAINER + 1},
        {"size": CONTAINER, "records": RECORDS + 1},
    ],
)  # fmt: skip
def test_rows_beyond_the_limits_are_corrupt(cells: dict[str, int]) -> None:
    with pytest.raises(Corrupt, match="row 1 describes an impossible container"):
        check_rows(np.concatenate([row(), row(**cells)]), file="")


@pytest.mark.parametrize("bit", [0, 7, 8, 100, 479, 480, 511])
def test_one_flipped_bit_of_a_structure_is_corrected(bit: int) -> None:
    sound = HEADER.pack()
    flipped = bytearray(sound)
    flipped[bit // 8] ^= 1 << bit % 8
    assert correct_bit_flip(bytes(flipped) + b"what follows") == sound
    flipped[20] ^= 6
    assert correct_bit_flip(bytes(flipped)) is None


def test_a_place_in_a_file_is_in_its_first_container_unless_it_is_said() -> None:
    assert ContainerRef("a.pic", 4096) == ContainerRef("a.pic", 4096, stream=0, file=0, ordinal=0)
    damage = ContainerRef("a.pic", 4096).corrupt("torn")
    assert (damage.file, damage.offset) == ("a.pic", 4096)
    assert ContainerRef("a.pic", 4096).corrupt("torn", 20).offset == 4116


def test_the_codes_of_an_index_entry_are_those_of_the_format() -> None:
    names = ("", "grey", "444", "422", "440", "420")
    assert names == layout.SAMPLINGS
    sizes = [(8 * (2 if name in ("422", "420") else 1), 8 * (2 if name in ("440", "420") else 1)) for name in names[1:]]
    assert [*layout.MCU_SIZES] == [(0, 0), *sizes]
    assert (layout.ROW_CRCS, layout.FOREIGN, layout.ENCODE_PATH_SHIFT) == (1, 2, 2)
    assert (layout.ENTRY.itemsize, layout.FOOTER_ROW.itemsize, layout.INDEX_ROW.itemsize) == (64, 24, 32)
    limits = (layout.MAX_CONTAINER, layout.MAX_RECORDS, layout.MAX_EXTRAS, layout.MAX_ATTACHMENTS, layout.MAX_FILE)
    assert limits == (CONTAINER, RECORDS, EXTRAS, ATTACHMENTS, FILE)
    assert layout.MAX_MANIFEST == 1 << 30
