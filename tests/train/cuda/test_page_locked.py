"""Blocks of batches page-locked for a GPU, with a stand-in for CUDA's runtime."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from grids import slow_except

import picstore
from picstore.train import buffers
from picstore.train.batch import Batch
from picstore.train.batching.host_batch import HostBatch
from picstore.train.buffers import BufferPool, BufferPools, allocate_mapped, find_mapping, round_coarsely
from picstore.train.cuda import page_locked
from picstore.train.cuda.page_locked import lock_pages
from picstore.train.pipeline import device_decoding, runner
from picstore.train.pipeline.device_decoding import MadeBatch, OneByOne

GPU = torch.device("cuda", 1)


class Cudart:
    """CUDA's runtime, and the system's ``munmap``: they note calls, and what is wrong with them."""

    def __init__(self) -> None:
        self.locked: dict[int, int] = {}  # sizes by address
        self.registered, self.unregistered = 0, 0
        self.code = 0  # of the next registrations
        self.threads: set[str] = set()
        self.wrong: list[str] = []

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:  # noqa: N802 - CUDA's
        assert flags == 1
        self.threads.add(threading.current_thread().name)
        if self.code:
            return self.code
        if any(start < address + size and address < start + length for start, length in self.locked.items()):
            self.wrong.append("registered twice")
        if address % 4096 or size % 4096:
            self.wrong.append("no whole pages")
        self.locked[address] = size
        self.registered += 1
        return 0

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802 - CUDA's
        self.unregistered += 1
        if self.locked.pop(address, None) is None:
            self.wrong.append("unregistered without need")
        return 0

    def cudaGetErrorString(self, code: int) -> str:  # noqa: N802 - CUDA's
        return f"error {code}"

    def munmap(self, address: int, size: int) -> int:
        if address in self.locked:
            self.wrong.append("unmapped before it was unregistered")
        return self._munmap(address, size)

    def replace_munmap(self, libc: Any) -> Any:
        self._munmap = libc.munmap
        return SimpleNamespace(mmap=libc.mmap, munmap=self.munmap)


@pytest.fixture
def cudart(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cudart]:
    made = Cudart()
    libc = made.replace_munmap(buffers._libc())
    monkeypatch.setattr(buffers, "_libc", lambda: libc)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: made)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(page_locked, "_warned", threading.Event())
    yield made
    gc.collect()
    assert made.wrong == []


def test_a_block_is_registered_once_and_unregistered_before_it_is_unmapped(cudart: Cudart) -> None:
    pool = BufferPool(2, allocate=allocate_mapped)
    for _ in range(3):
        array = np.frombuffer(pool.borrow(100), np.uint8)[10:]
        assert lock_pages(array, GPU) and lock_pages(array[5:], GPU)
        mapping = find_mapping(array)
        assert mapping is not None
        assert cudart.locked == {mapping.address: mapping.size}
        del mapping, array
    assert (cudart.registered, cudart.unregistered) == (1, 0)
    del pool
    assert (cudart.locked, cudart.unregistered) == ({}, 1)
    assert not cudart.threads & {threading.current_thread().name}  # whose last error torch would raise


def test_memory_that_is_no_mapping_is_left_alone(cudart: Cudart) -> None:
    assert not lock_pages(np.zeros(100, np.uint8), GPU)
    assert lock_pages(allocate_mapped(100), torch.device("cpu"))
    assert cudart.registered == 0


def test_a_refused_block_is_asked_for_once_and_said_once(cudart: Cudart, caplog: pytest.LogCaptureFixture) -> None:
    cudart.code = 2
    blocks = [allocate_mapped(1 << 16) for _ in range(2)]
    assert not any(lock_pages(block, GPU) for block in blocks * 2)
    assert caplog.text.count("CUDA cannot page-lock the memory of batches") == 1 and "error 2" in caplog.text
    cudart.code = 0
    assert not lock_pages(blocks[0], GPU)
    del blocks
    assert cudart.unregistered == 0  # nothing was registered


def test_an_error_of_cuda_is_a_refusal(cudart: Cudart, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "cudart", lambda: (_ for _ in ()).throw(RuntimeError("no driver")))
        assert not lock_pages(allocate_mapped(1 << 16), GPU)
    assert "no driver" in caplog.text


def test_a_fork_does_not_unregister(cudart: Cudart, monkeypatch: pytest.MonkeyPatch) -> None:
    block = allocate_mapped(1 << 16)
    assert lock_pages(block, GPU)
    page_locked._unregister(0, GPU, -1)
    assert cudart.unregistered == 0
    del block
    assert cudart.unregistered == 1


class Locking(OneByOne):
    """Takes the place of ``DecodeTiles``: page-locks batches and makes no images."""

    def __init__(self, cudart: Cudart) -> None:
        self._cudart = cudart
        self.seen = 0

    def __call__(self, host: HostBatch) -> MadeBatch:
        assert host.encoded is not None and host.encoded.segments is not None
        tables = host.encoded.segments
        locked = lock_pages(tables.block, GPU)
        start, size = tables.block.ctypes.data, tables.layout.size
        if locked and not any(at <= start and start + size <= at + each for at, each in self._cudart.locked.items()):
            self._cudart.wrong.append("a batch lies outside of the block")
        self.seen += 1
        labels = torch.from_numpy(host.labels.copy())
        return MadeBatch(Batch(torch.zeros(len(labels), 3, 1, 1), labels, labels), host.damage, copied=not locked)


@pytest.mark.parametrize("isolate", slow_except([False], [False, True]))
@pytest.mark.parametrize("code", [0, 2], ids=["registered", "refused"])
def test_a_loader_registers_each_of_its_blocks_once_and_counts_copies(
    make_dataset: Callable[..., Path], cudart: Cudart, monkeypatch: pytest.MonkeyPatch, isolate: bool, code: int
) -> None:
    cudart.code = code
    make = Locking(cudart)
    monkeypatch.setattr(runner, "choose_decoder", lambda name, _: name)
    monkeypatch.setattr(device_decoding, "DecodeTiles", lambda *_: make)
    loader = picstore.Loader(
        make_dataset(24, width=24, height=20), batch_size=2, decoder="picstore", threads=1, isolate=isolate
    )
    for _ in range(3):
        assert sum(len(batch.labels) for batch in loader) == 24
    assert make.seen >= 36  # the next epoch's begin ahead
    assert loader.stats.copied == (36 if code else 0)
    assert cudart.registered == 0 if code else 0 < cudart.registered <= 12  # batches ahead and on their way
    loader.close()
    del loader
    gc.collect()
    assert cudart.locked == {} and cudart.unregistered == cudart.registered


def test_pools_of_decoded_batches_are_private() -> None:
    assert find_mapping(np.frombuffer(BufferPools().batches.borrow(1), np.uint8)) is None
    mapped = BufferPools.for_batches(mapped=True)
    assert find_mapping(np.frombuffer(mapped.batches.borrow(1), np.uint8)) is not None


def test_blocks_have_few_sizes_and_are_larger_by_a_quarter_at_most() -> None:
    sizes = range(26 << 20, 38 << 20, 99_991)
    rounded = [round_coarsely(size) for size in sizes]
    assert all(size <= large <= size * 5 // 4 for size, large in zip([*sizes, 1, 9], [*rounded, 1, 10], strict=True))
    assert len({*rounded}) == 3 and [round_coarsely(size) for size in (0, 1, 9)] == [0, 1, 10]
