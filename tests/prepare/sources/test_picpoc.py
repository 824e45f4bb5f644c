"""PicPoc's data sets as a source."""

from __future__ import annotations

from pathlib import Path

import pytest
from source_files import JPEGS, extras, images, labels, picpoc_record, problems, put, write_picpoc

from picstore.prepare.sources.open import open_source, read_input


@pytest.mark.parametrize("closed", [True, False])
def test_picpoc_is_read_in_numeric_order_also_a_file_that_was_never_closed(tmp_path: Path, closed: bool) -> None:
    listing = open_source(write_picpoc(tmp_path, closed=closed))
    assert listing.kind == "picpoc"
    assert images(listing) == JPEGS
    assert labels(listing) == [-1, 0, 1, 2, 3, 4]
    assert extras(listing)[3] == {"fname": "3.jpg", "serial": 103}


def test_a_damaged_record_of_picpoc_costs_the_rest_of_its_container(tmp_path: Path) -> None:
    write_picpoc(tmp_path)
    data = bytearray((tmp_path / "0" / "0").read_bytes())
    data[4096 + 16 + len(picpoc_record(JPEGS[0], 0, 0, b'{"fname": "0.jpg"}'))] ^= 1
    put(tmp_path / "0" / "0", bytes(data))
    listing = open_source(tmp_path)
    assert len(problems(listing)) == 1
    assert [read_input(source) for source in listing.inputs if not source.problem] == [JPEGS[0], *JPEGS[2:]]
