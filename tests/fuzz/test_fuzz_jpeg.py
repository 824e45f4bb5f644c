"""Damaged JPEGs, and arrays between guard pages: no access outside a buffer, no error but picstore's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent


def fuzz(*options: str, **environment: str) -> dict[str, object]:
    command = [sys.executable, str(FOLDER / "fuzz_jpeg.py"), *options]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, check=False)
    assert done.returncode == 0, f"{done.returncode}: {done.stderr[-2000:]}"
    report = json.loads(done.stdout)
    assert report["outcomes"]["add_restart_markers: clean"] > report["cases"] / 20
    assert report["outcomes"]["cut: clean"] > report["cases"] / 20
    return report


@pytest.mark.slow
def test_damage_gives_a_result_or_an_error_and_no_access_outside_a_buffer() -> None:
    fuzz("--cases", "600", "--guarded", "--seed", "7")


@pytest.mark.nightly  # compiles all kernels of JPEGs, with checks
def test_damage_gives_no_index_outside_an_array(tmp_path: Path) -> None:
    # numba keeps machine code with and without these checks under the same name, so the cache must be another.
    fuzz("--cases", "400", "--seed", "8", NUMBA_BOUNDSCHECK="1", NUMBA_CACHE_DIR=str(tmp_path))


def guarded(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in another process, where ``add`` is add_restart_markers with its arrays between guard pages."""
    before = """
import sys
sys.path[:0] = sys.argv[1:]
from dataclasses import replace
import numpy as np
from coefficients import *
from guard_pages import GuardedNumpy
from picstore.kernels import jit
from picstore.jpeg import transcode_lookup, transcode
guard = GuardedNumpy()
plain = write(Coefficients(8, 8, [(1, 1)], [[0] * 64]))
transcode.add_restart_markers(memoryview(plain))  # compiles
transcode_lookup.make_lookups.cache_clear()
def add(stream, interval):
    for guard.flush_left in (False, True):
        transcode.np = transcode_lookup.np = guard
        after = transcode.add_restart_markers(guard.stream(stream), interval)
        transcode.np = transcode_lookup.np = np
    return after
"""
    command = [sys.executable, "-c", before + code, str(FOLDER), str(FOLDER.parent)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_guard_pages_catch_an_access_of_one_byte_outside() -> None:
    reading = """
@jit.kernel("(uint8[::1], int64)")
def load(array, at):
    return jit.load_u64(np.uint64(array.ctypes.data) + np.uint64(at))
guard.flush_left = LEFT
array = guard.zeros(100, np.uint8)
load(np.zeros(100, np.uint8), 0)
load(array, 0), load(array, 92)
print("inside", flush=True)
load(array, AT)
print("outside")
"""
    for left, at in (("False", "93"), ("True", "-1")):
        done = guarded(reading.replace("LEFT", left).replace("AT", at))
        assert (done.returncode, done.stdout) == (-11, "inside\n"), done.stderr


def test_the_most_stuffing_there_can_be_stays_in_its_buffer() -> None:
    # Codes of 16 bits with one zero, and coefficients of ones only: nearly all bytes are 0xFF. Then blocks of 2 bits
    # each, whose DC difference needs 27 bits where every MCU becomes a segment; and the same with a full DC table.
    done = guarded("""
ones = bytes([1] * 16), bytes([*range(11), 12, 13, 14, 15, 11])
ac = bytes([1] * 16), bytes([0, 0xF0, *range(0x21, 0x2E), 0x0F])
for width, value, coefficient in ((8, 0, 32767), (800, 2047, 32767), (800, 2047, 0), (65528, 2047, 0), (808, -1, 0)):
    empty = Coefficients(width, 8, [(1, 1)], [], tables=[ones, ac] * 2)
    source = replace(empty, blocks=[[value] + [coefficient] * 63] * empty.mcus)
    stream = write(source)
    for interval in (1, 7, 65535):
        after = add(stream, interval)
        assert read(after).blocks == source.blocks
        if coefficient and width > 8 and interval > 1:
            assert after.count(b"\\xff\\0") > 0.4 * len(after), after.count(b"\\xff\\0") / len(after)
full = bytes([1] * 16), bytes([0] * 7 + list(range(9)))
slow = Coefficients(4000, 8, [(1, 1)], [[min(3 * k, 2000)] + [0] * 63 for k in range(500)], tables=[full, ac] * 2)
assert read(add(write(slow), 1)).blocks == slow.blocks
print("done")
""")
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_the_encoder_stays_in_its_buffers() -> None:
    # Pixels end at a page, and noise of quality 100 takes the most symbols and bits there can be.
    done = guarded("""
from picstore.jpeg.encoder import encode_baseline as encode
rng = np.random.default_rng(0)
for height, width in ((1, 1), (7, 15), (8, 16), (9, 17), (16, 31), (33, 32), (40, 65)):
    noise = rng.integers(0, 2, (height, width, 3), np.uint8) * np.uint8(255)
    for kind in ("444", "422", "420", "grey"):
        for guard.flush_left in (False, True):
            pixels = guard.array(noise[..., 0] if kind == "grey" else noise)
            planes = guard.array(noise.transpose(2, 0, 1)).transpose(1, 2, 0)
            options = {"quality": 100, "subsampling": "420" if kind == "grey" else kind, "interval": 1}
            expected = encode.encode(pixels, **options).jpeg
            encode.np = guard
            assert encode.encode(pixels, **options).jpeg == expected
            if kind != "grey":
                assert encode.encode(planes, **options).jpeg == expected
            strips = [pixels[top : top + 16] for top in range(0, height, 16)]
            assert encode.encode_strips(strips, size=(width, height), **options).jpeg == expected
            encode.np = np
print("done")
""")
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
