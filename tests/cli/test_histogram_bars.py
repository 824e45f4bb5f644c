"""Histograms of picstore info: bars in the terminal, numbers as JSON."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import picstore_command, picstore_json
from samples import jpeg

import picstore
from picstore.display.histograms import histogram_lines


def test_info_draws_bars_of_counts_and_gives_their_numbers_as_json(tmp_path: Path) -> None:
    with picstore.Writer(tmp_path / "set", classes=["cat", "dog"]) as writer:
        for k in range(9):
            writer.add(jpeg(k, width=60 + 10 * k), label=int(k > 5))
    text = picstore_command("info", tmp_path / "set").stdout
    found = picstore_json("info", tmp_path / "set")["histograms"]
    assert (found["label"]["names"], found["label"]["counts"]) == (["cat", "dog"], [6, 3])
    for name in ("width", "height", "bytes"):
        assert sum(found[name]["counts"]) == 9
        assert len(found[name]["edges"]) in (2, len(found[name]["counts"]) + 1)
    assert found["width"]["edges"][0] == 60 and found["width"]["edges"][-1] == 140
    lines = text.splitlines()
    cat, dog = (next(line for line in lines if line.startswith(f"    {name} ")) for name in ("cat", "dog"))
    assert cat.split()[:2] == ["cat", "6"] and cat.count("█") == 2 * dog.count("█") > 0
    picstore_command("delete", tmp_path / "set", "--id", 0)
    assert sum(picstore_json("info", tmp_path / "set")["histograms"]["label"]["counts"]) == 8


def test_bars_fit_the_terminal_and_say_how_many_classes_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    names = [f"a very long name of class number {k}" for k in range(30)]
    counts = [1000] + [1] * 29
    label = {"edges": [], "names": names, "values": list(range(30)), "counts": counts, "others": 5, "containers": 9}
    same = {"edges": [7, 7], "names": [], "values": [], "counts": [1029], "others": 0, "containers": 9}
    empty = {"edges": [], "names": [], "values": [], "counts": [], "others": 0, "containers": 9}
    lines = list(histogram_lines({"label": label, "width": same, "bytes": empty}, containers=9))
    assert max(map(len, lines)) <= 50
    assert lines[0] == "  images by class" and lines[13] == "    23 more"
    assert all(line.endswith("▏") for line in lines[2:13])  # few are not none
    assert [line.split()[:2] for line in lines[15:]] == [["7", "1,029"]]
    sampled = list(histogram_lines({"label": label, "width": {**same, "containers": 4}}, containers=9))
    assert sampled[0] == "  images by class"
    assert sampled[14] == "  by width, in a sample of 4 of 9 containers"
