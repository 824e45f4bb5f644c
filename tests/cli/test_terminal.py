"""Control characters of strangers do not reach the terminal, whichever file they come from."""

from __future__ import annotations

import ast
import json
import os
import unicodedata
from pathlib import Path

from commands import picstore_command
from hypothesis import given
from hypothesis import strategies as st
from samples import jpeg
from source_files import make_tar, put

import picstore
from picstore.cli import print_result
from picstore.display.terminal import ascii_json, visible

ESCAPE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\nPASSWORD:\r"
CLI = Path(print_result.__file__).parent


def controls(text: str) -> set[str]:
    return {each for each in text.replace("\n", "") if unicodedata.category(each) in ("Cc", "Cf", "Cs", "Zl", "Zp")}


@given(st.text())
def test_what_is_printed_is_one_line_of_what_can_be_printed(text: str) -> None:
    line = visible(text)
    assert line.isprintable()
    assert line == text or not text.isprintable()
    line.encode()


def test_letters_of_all_scripts_stay_as_they_are() -> None:
    for text in ("größe Ω 字 ไทย", "a b", ""):
        assert visible(text) == text
    assert visible("a\x1b[2J\u202eb\ud800") == r"a\x1b[2J\u202eb\ud800"


def test_json_is_ascii_and_means_the_same() -> None:
    out = ascii_json({"name": ESCAPE + "\x7fä"})
    assert out.isprintable()
    assert out.isascii()
    assert json.loads(out) == {"name": ESCAPE + "\x7fä"}


def test_every_verb_prints_through_echo() -> None:
    for path in sorted(CLI.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                name = f"{node.value.id}.{node.attr}"
                forbidden = ("click.echo", "click.secho", "sys.stdout", "sys.stderr")
                assert name not in forbidden or path.name == "print_result.py", f"{path.name} uses {name}"
            assert not (isinstance(node, ast.Name) and node.id == "print"), f"{path.name} prints"


def test_class_names_of_a_data_set_do_not_steer_the_terminal(tmp_path: Path) -> None:
    with picstore.Writer(tmp_path / "d", classes=["cat" + ESCAPE, "dog\n  images      9,999,999 FAKE LINE"]) as writer:
        writer.add(jpeg(0), label=0)
    out = picstore_command("info", tmp_path / "d").stdout
    assert not controls(out)
    assert r"cat\x1b]0;owned" in out
    assert not [line for line in out.splitlines() if line.endswith("FAKE LINE") and line.startswith("  images")]


def test_names_and_reasons_of_a_source_do_not_steer_the_terminal(tmp_path: Path) -> None:
    members = {"a.jpg": jpeg(0), f"a.x{ESCAPE}": b"x", "b.jpg": jpeg(1), f"{ESCAPE}.ppm": b"P6\n\x1b]0;p\x07 10 255\n"}
    tar = make_tar(tmp_path / "s.tar", members)
    done = picstore_command("convert", tar, tmp_path / "out", "--source", "webdataset", "--max-errors", 9)
    assert "left out" in done.stderr
    assert not controls(done.stdout + done.stderr)
    table = put(tmp_path / "t.csv", b"x\x1b]0;owned\x07,y\n1,2\n")
    done = picstore_command("convert", table, tmp_path / "other", code=2)
    assert r"\x1b" in done.stderr
    assert not controls(done.stderr)


def test_arguments_that_a_shell_expanded_do_not_steer_the_terminal(tmp_path: Path) -> None:
    name = os.fsdecode(os.fsencode(tmp_path / "\x1b[2J"))
    done = picstore_command("info", tmp_path, name, code=2)
    assert not controls(done.stderr)
