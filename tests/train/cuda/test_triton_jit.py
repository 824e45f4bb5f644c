"""Launches of Triton's kernels: what is missing is said, and threads take turns."""

from __future__ import annotations

import subprocess
import threading
import time
from typing import Any

import numpy as np
import pytest
import torch

from picstore.errors import MissingDependency

pytest.importorskip("triton")

from picstore.jpeg import gpu_segment_layout as words
from picstore.train.cuda import augment, decode_tiles, triton_jit
from picstore.train.cuda.augment_table import ColorPhases, DescriptorTable
from picstore.train.cuda.triton_jit import launching, tl


def test_a_missing_compiler_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    from triton.runtime import build

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(MissingDependency, match="apt install gcc libc6-dev"), launching():
        if hasattr(build, "_find_compiler"):
            build._find_compiler.__wrapped__("c")  # around its cache
        else:  # Triton 3.6
            build._build("launcher", "launcher.c", str(tmp_path), [], [], [], [])


def test_missing_headers_are_named_and_other_errors_stay() -> None:
    failed = subprocess.CalledProcessError(1, ["gcc", "main.c", "-O3", "-shared", "-fPIC"])
    with pytest.raises(MissingDependency, match="headers of C and Python"), launching():
        raise failed
    for error in (RuntimeError("CUDA error"), subprocess.CalledProcessError(1, ["ptxas"])):
        with pytest.raises(type(error)), launching():
            raise error


_ONE = tl.constexpr(1)


def add_one(words):
    tl.store(words, tl.load(words) + _ONE)


def test_launches_do_not_compare_constants_of_compiled_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.runtime.jit import JITFunction

    made = JITFunction(add_one)
    key = made.cache_key  # as compilation reads it
    assert [name for name, _ in made.used_global_vals] == ["_ONE"], "what Triton compares at each launch"
    monkeypatch.setattr(triton_jit, "_KERNELS", [made])
    with launching():
        pass
    assert made.used_global_vals == {} and made.cache_key == key


def table(words: int) -> DescriptorTable:
    parts = [np.zeros(shape, np.int64) for shape in (10, (1, words - 10), 0, 1)]
    return DescriptorTable(*parts, 3, 1, ColorPhases.empty(1).starts, 7)


def test_threads_launch_in_turn_and_each_table_begins_at_16_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    inside, most, places = 0, 0, []

    def launch(_: Any, words: torch.Tensor, *rest: Any) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        places.append(words.data_ptr() % 16)
        time.sleep(0.01)
        inside -= 1

    monkeypatch.setattr(augment, "_launch", launch)
    out = torch.empty(3, dtype=torch.uint8)
    jobs = [(table(41), out, False), (table(43), out, False), (table(50), out, False)]
    threads = [threading.Thread(target=augment._launch_all, args=(jobs,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1 and places == [0] * 12


def test_the_decoders_kernels_are_launched_in_turn_with_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    alone: list[bool] = []

    def launch(*_: Any) -> None:
        alone.append(triton_jit._LAUNCHING.locked())
        raise RuntimeError("Failed to find C compiler. Please specify via CC environment variable.")

    monkeypatch.setattr(decode_tiles, "_launch", launch)
    rows, sums = np.zeros((1, words.IMAGE_WORDS), np.int64), np.zeros(5, np.int64)
    with pytest.raises(MissingDependency, match="apt install gcc libc6-dev"):
        decode_tiles._decode_part({"data": torch.empty(0, dtype=torch.uint8)}, rows, slice(0, 1), sums)
    assert alone == [True]
