"""What libraries print on stderr about damaged files: not on the terminal, and in the ledger where it is the reason."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import deque
from pathlib import Path

import engine_tasks
import numpy as np
import pytest
from commands import ledger, picstore_command, said
from pictures import by_imagemagick, saved, smooth
from PIL import Image, features
from samples import jpeg, picture

from picstore.prepare.engine import library_errors, worker_processes


def damaged(data: bytes, *, start: int, stop: int | None = None) -> bytes:
    """A copy in which every fourth byte of a stretch is another."""
    changed = np.frombuffer(data, np.uint8).copy()
    stretch = changed[start:stop:4]
    stretch ^= np.random.default_rng(0).integers(1, 256, len(stretch), dtype=np.uint8)
    return changed.tobytes()


def files() -> dict[str, bytes]:
    """Damaged files, of which those named loud make a library print something."""
    image = smooth(120, 90)
    tiff = saved(image, "TIFF", compression="tiff_adobe_deflate")
    bilevel = saved(image.convert("1"), "TIFF", compression="group4")
    samples = saved(image, "TIFF").replace(b"\x15\x01\x03\0\x01\0\0\0\x03\0", b"\x15\x01\x03\0\x01\0\0\0\xc8\0")
    found = {
        "loud-deflate.tif": damaged(tiff, start=20, stop=60),
        "loud-fax.tif": damaged(bilevel, start=20, stop=60),
        "samples.tif": samples,
        "cut.png": saved(image, "PNG")[:200],
        "bits.png": damaged(saved(image, "PNG"), start=60),
        "cut.jpg": jpeg(1)[:400],
        "bits.jpg": damaged(jpeg(2), start=500),
        "progressive.jpg": damaged(saved(image, "JPEG", progressive=True), start=400),
        "bits.gif": damaged(saved(Image.fromarray(picture(3)).quantize(64), "GIF"), start=300),
        "bits.webp": damaged(saved(image, "WEBP"), start=40),
        "bits.jp2": damaged(saved(image, "JPEG2000"), start=120),
        "bits.bmp": saved(image, "BMP")[:500],
    }
    for coder in ("psd", "exr", "heic", "miff", "xwd", "dpx", "hdr"):
        found[f"bits.{coder}"] = damaged(by_imagemagick(image, coder), start=200)
    return found


def test_conversion_prints_no_librarys_messages_and_the_ledger_has_them(tmp_path: Path) -> None:
    assert features.check("libtiff")
    folder = tmp_path / "in"
    folder.mkdir()
    for name, data in files().items():
        (folder / name).write_bytes(data)
    options = ["--max-errors", "100%", "--reencode", "--quality", 100, "--subsampling", 444]
    done = picstore_command("convert", folder, tmp_path / "out", *options, "--workers", 2)
    assert said(done) == []
    lines = {line["input"]: line for line in ledger(tmp_path / "out")}
    assert lines.keys() == files().keys()
    assert "decoder error -2 (ZIPDecode: Decoding error at scanline 0" in lines["loud-deflate.tif"]["reason"]
    assert [name for name, line in lines.items() if "ZIPDecode" in line["reason"]] == ["loud-deflate.tif"]
    picstore_command("convert", folder, tmp_path / "again", *options, "--workers", 1)
    assert (tmp_path / "again" / "ledger.jsonl").read_bytes() == (tmp_path / "out" / "ledger.jsonl").read_bytes()


@pytest.mark.slow
def test_the_loud_files_are_loud_in_a_process_of_their_own(tmp_path: Path) -> None:
    code = (
        "import contextlib, os, sys\n"
        "from pathlib import Path\n"
        "from picstore.errors import ImageError\n"
        "from picstore.prepare.image.training_jpeg import make_training_jpeg\n"
        "from picstore.prepare.image.encode_settings import EncodeSettings\n"
        "settings = EncodeSettings(quality=100, subsampling='444', reencode=True)\n"
        "for name in sys.argv[1:]:\n"
        "    os.write(2, f'|{name}:'.encode())\n"
        "    with contextlib.suppress(ImageError):\n"
        "        make_training_jpeg(Path(name).read_bytes(), settings=settings)\n"
    )
    loud = {name: data for name, data in files().items() if name.startswith("loud")}
    for name, data in loud.items():
        (tmp_path / name).write_bytes(data)
    command = [sys.executable, "-c", code, *loud]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
    told = dict(part.split(":", 1) for part in done.stderr.split("|")[1:])
    assert told.keys() == loud.keys()
    assert all(told.values()), told


def test_the_first_line_is_heard_printable_and_what_is_too_much_is_dropped() -> None:
    heard = dict(worker_processes.LocalEngine(1).run(engine_tasks.chatter, deque([3, 100_000, 0, 1])))
    assert heard == {**dict.fromkeys((1, 3, 100_000), "line 0 ?[1m of a library"), 0: ""}


def test_a_process_of_the_users_keeps_its_stderr(capfd) -> None:
    os.write(2, b"mine\n")
    assert library_errors.take_first_line() == ""
    assert capfd.readouterr().err == "mine\n"


def test_a_crash_is_still_told_by_faulthandler_and_python_still_prints(tmp_path: Path) -> None:
    code = (
        "import sys; sys.path[:0] = sys.argv[1:2]\n"
        "import engine_tasks\n"
        "from collections import deque\n"
        "from picstore.prepare.engine import worker_processes\n"
        "if __name__ == '__main__':\n"
        "    print(*(outcome for _, outcome in worker_processes.LocalEngine(1).run(engine_tasks.crash, deque([1]))))\n"
    )
    script = tmp_path / "script.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, script, Path(__file__).parents[2]],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={**os.environ, "PYTHONFAULTHANDLER": "1"},
    )
    assert "SIGSEGV" in done.stdout
    assert "a line of Python's" in done.stderr
    assert "Fatal Python error: Segmentation fault" in done.stderr
    assert "in crash" in done.stderr
