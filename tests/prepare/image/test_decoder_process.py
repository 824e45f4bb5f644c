"""Decoder processes: they end after a time, with their program, and leave the program as it was."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pictures import by_imagemagick, missing_packages, quadrants, require, saved
from PIL import Image

import picstore
from picstore.errors import ImageError
from picstore.prepare.image import decoder_process
from picstore.prepare.image.decoder_process import decode_apart, decode_bounded, decode_file
from picstore.prepare.image.encode_settings import EncodeSettings

PLAIN = EncodeSettings()
# Whoever draws it keeps Python's lock, for hours.
ENDLESS = b"""<svg xmlns="http://www.w3.org/2000/svg" width="64" height="48"><filter id="f">
<feTurbulence numOctaves="1000000000" baseFrequency="0.1"/></filter>
<rect width="64" height="48" filter="url(#f)"/></svg>"""


@pytest.fixture(autouse=True)
def _new_processes() -> None:
    require(not missing_packages("formats"), "the extra formats")
    decoder_process._close_all()


def test_an_image_that_takes_too_long_ends_with_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert decode_apart(saved(quadrants(), "PNG"), settings=PLAIN).origin == "PNG"
    decoder_process._close_all()
    with monkeypatch.context() as patch:
        patch.setattr(decoder_process, "SECONDS", 1)
        with pytest.raises(ImageError, match="takes more than 1 s"):
            decode_bounded(ENDLESS, settings=PLAIN)
    assert decode_apart(saved(quadrants(), "PNG"), settings=PLAIN).origin == "PNG"


def test_a_crash_of_a_decoder_is_an_image_error_and_the_next_image_is_read() -> None:
    decode_apart(saved(quadrants(), "PNG"), settings=PLAIN)
    (process,) = decoder_process._idle
    process._process.send_signal(signal.SIGSEGV)
    process._process.wait()
    with pytest.raises(ImageError, match=r"crashed its decoder.*SIGSEGV"):
        decode_apart(saved(quadrants(), "PNG"), settings=PLAIN)
    assert decode_apart(saved(quadrants(), "PNG"), settings=PLAIN).origin == "PNG"


PROGRAM = """
import sys, threading
from picstore.prepare.image.decoder_process import decode_bounded
from picstore.prepare.image.encode_settings import EncodeSettings
threading.Thread(target=decode_bounded, args=(sys.stdin.buffer.read(),), kwargs={"settings": EncodeSettings()}).start()
"""


def test_the_process_of_a_killed_program_ends_within_its_decoder() -> None:
    program = subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE)
    assert program.stdin is not None
    program.stdin.write(ENDLESS)
    program.stdin.close()
    listed = Path(f"/proc/{program.pid}/task")
    child = 0
    while not child or cpu_seconds(child) < 2.0:  # it imports for a second
        found = [each for task in listed.iterdir() for each in (task / "children").read_text().split()]
        child = int(found[0]) if found else 0
        time.sleep(0.05)
    program.kill()
    program.wait()
    for _ in range(6000):
        if not Path(f"/proc/{child}").exists() or " Z " in Path(f"/proc/{child}/stat").read_text():
            return
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    pytest.fail("the decoder process goes on without its program")


def cpu_seconds(pid: int) -> float:
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def test_after_an_interrupt_the_next_image_gets_its_own_pixels() -> None:
    """What a process would have answered later is not taken for the answer to another image."""
    decode_apart(saved(quadrants(), "PNG"), settings=PLAIN)
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        decode_apart(ENDLESS, settings=PLAIN)
    assert decode_apart(saved(quadrants(), "PNG"), settings=PLAIN).image.size == (64, 48)
    assert len(decoder_process._idle) == 1


def test_threads_and_forks_each_get_their_own_answers() -> None:
    files = [saved(Image.new("RGB", (9, 9), (k, 2 * k, 255 - k)), "QOI") for k in range(60)]

    def color(k: int) -> object:
        image = decode_bounded(files[k], settings=PLAIN).image
        return image.getpixel((4, 4)) == (k, 2 * k, 255 - k)

    with ThreadPoolExecutor(3) as threads:
        assert all(threads.map(color, range(60)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        pid = os.fork()
    if pid == 0:
        os._exit(0 if all(map(color, range(3))) else 1)
    assert all(map(color, range(60)))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_what_is_decoded_apart_has_the_same_pixels_and_coordinates() -> None:
    turned = Image.Exif()
    turned[0x0112] = 6
    files = {
        "PNG": saved(quadrants(), "PNG"),
        "rotated": saved(quadrants(), "JPEG", exif=turned),
        "grey": saved(quadrants().convert("L"), "PNG"),
        "miff": by_imagemagick(quadrants(), "miff"),
        "jp2": saved(quadrants(), "JPEG2000"),
    }
    for kind, data in files.items():
        apart, here = (read(data, settings=PLAIN) for read in (decode_apart, decode_file))
        assert (apart.rgb() == here.rgb()).all(), kind
        assert (apart.origin, apart.coordinates) == (here.origin, here.coordinates)
        with pytest.raises(ImageError, match="max-pixels"):
            decode_apart(data, settings=EncodeSettings(max_pixels=99))


def test_decoding_leaves_pillow_s_settings_and_filters_of_warnings_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    filters = list(warnings.filters)
    with picstore.Writer(tmp_path / "set", max_pixels=1 << 20) as writer:
        for kind in ("PNG", "GIF", "JPEG2000"):
            writer.add(saved(quadrants(), kind))
    assert len(picstore.Dataset(tmp_path / "set")) == 3
    assert Image.MAX_IMAGE_PIXELS == 1000
    assert warnings.filters == filters
