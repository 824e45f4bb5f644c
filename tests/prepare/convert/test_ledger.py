"""The ledger: lines that are no picstore's, whatever their checksum says."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from picstore.errors import Corrupt
from picstore.prepare.convert import ledger
from picstore.prepare.convert.ledger import (
    LedgerLine,
    Tally,
    read_lines,
    tally_fragment,
    tally_lines,
    write_fragment,
    write_ledger,
    write_lines,
)
from picstore.storage.format.checksum import crc32c
from picstore.storage.location.local import Folder

LINE = LedgerLine("a.jpg", 0, "lossless", "", 9, 9)


@pytest.mark.parametrize(
    "wrong",
    [{"status": []}, {"reason": {}}, {"bytes": "9"}, {"source_bytes": None}, {"id": True}, {"input": 1}, {"of": "0"}],
)
def test_a_line_with_a_value_of_another_type_is_damaged(tmp_path: Path, wrong: dict[str, object]) -> None:
    path = Folder(tmp_path / "ledger.jsonl")
    write_lines(path, [LINE])
    values = {name: getattr(LINE, name) for name in LedgerLine.__slots__} | wrong
    text = json.dumps(values).encode()[:-1]
    raw = path.read_all(1 << 20) + text + b', "crc32c": %d}\n' % crc32c(text)
    path.write(raw)
    with pytest.raises(Corrupt, match="line 2"):
        list(read_lines(path))
    assert tally_lines(read_lines(path, skip_damaged=True)).inputs == 1
    with pytest.raises(Corrupt):
        tally_fragment(raw)


def test_what_a_row_wrote_is_parsed_again_only_if_it_was_changed(tmp_path: Path) -> None:
    root = Folder(tmp_path)
    lines = [LedgerLine("a.jpg", 0, "lossless", "", 10, 9), LedgerLine("b.jpg", 1, "failed", "it is empty")]
    written = {0: write_fragment(root, 0, lines)}
    assert written[0].tally == tally_lines(lines)
    marked = {0: replace(written[0], tally=Tally())}
    assert write_ledger(root, 1, marked) == [Tally()]
    assert (tmp_path / "ledger.jsonl").read_bytes() == (tmp_path / "unfinished" / "row-000000.jsonl").read_bytes()
    write_fragment(root, 0, lines[:1])
    assert write_ledger(root, 1, written) == [tally_lines(lines[:1])]
    assert write_ledger(root, 1, {}) == [tally_lines(lines[:1])]
    path = tmp_path / "unfinished" / "row-000000.jsonl"
    path.write_bytes(path.read_bytes().replace(b"a.jpg", b"c.jpg"))
    with pytest.raises(Corrupt, match="damaged meanwhile"):
        write_ledger(root, 1, written)


@pytest.mark.parametrize(("size", "most"), [(3 << 20, 2), (1000, 64)])
def test_large_fragments_are_held_one_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, most: int
) -> None:
    held = peak = 0

    class Fragment(bytes):
        def __del__(self) -> None:
            nonlocal held
            held -= 1

    def read(root: Folder, row: int) -> bytes:
        nonlocal held, peak
        time.sleep(0.002)  # as a disk or a store takes
        held += 1
        peak = max(peak, held)
        return Fragment(b"%d" % row + bytes(size))

    monkeypatch.setattr(ledger, "_read_fragment", read)
    rows = [int(fragment.partition(b"\0")[0]) for fragment in ledger.read_fragments(Folder(tmp_path), range(40))]
    assert rows == list(range(40))
    assert peak <= most
