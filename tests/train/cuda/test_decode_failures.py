"""Failures of a GPU's decoder: of one stream, of memory, of the device, and of the decoder itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import simplejpeg
import torch

from picstore.errors import PicstoreError, UsageError
from picstore.train.cuda.nvjpeg import SOUND, check_decoder, check_determinism, decode_all

CPU, GPU = torch.device("cpu"), torch.device("cuda", 1)
WRAPPED = "Error while decoding JPEG images: "  # torchvision rethrows every error as a RuntimeError with these words


def stream(first: int = 0) -> torch.Tensor:
    """A stream of which the first byte tells decoders of these tests how to behave."""
    return torch.tensor([first, 1, 2], dtype=torch.uint8)


def image() -> torch.Tensor:
    return torch.zeros(3, 1, 1, dtype=torch.uint8)


class Decoder:
    """Fails as ``fails`` says of the first bytes of a call's streams; notes the calls."""

    def __init__(self, fails: Callable[[list[int]], Exception | None]) -> None:
        self.calls: list[Any] = []
        self._fails = fails

    def __call__(self, streams: list[torch.Tensor]) -> list[torch.Tensor]:
        self.calls.append(len(streams))
        error = self._fails([int(each[0]) for each in streams])
        if error is not None:
            raise error
        return [image() for _ in streams]


def run(decoder: Decoder, count: int, bad: int | None = None, *, device: torch.device = CPU) -> None:
    streams = [stream(number == bad) for number in range(count)]
    made = decode_all(streams, np.ones((count, 2), np.int64), decode=decoder, device=device)
    refused = 0 if bad is None else 1
    assert [number for number, each in enumerate(made.images) if each is None] == [bad] * refused
    assert [*made.problems] == [bad] * refused and len(made.refused) == refused


def test_one_bad_stream_of_256_costs_a_call_for_each_halving() -> None:
    decoder = Decoder(lambda firsts: RuntimeError(f"{WRAPPED}Failed to decode batch: 6") if any(firsts) else None)
    run(decoder, 256, bad=100)
    assert sorted(decoder.calls) == sorted([256, *(2 * [128, 64, 32, 16, 8, 4, 2, 1])])


@pytest.mark.parametrize(
    "error",
    [
        torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB"),
        RuntimeError(f"{WRAPPED}CUDA out of memory. Tried to allocate 20.00 MiB"),
        RuntimeError(f"{WRAPPED}Failed to initialize batch decoding: 5"),
    ],
    ids=["torch's", "rethrown", "nvJPEG's"],
)
def test_memory_that_runs_out_makes_smaller_calls_and_is_then_an_error(error: Exception) -> None:
    once = iter([error])
    decoder = Decoder(lambda firsts: next(once, None))
    run(decoder, 8)
    assert decoder.calls == [8, 8]  # again, with the memory that torch kept

    decoder = Decoder(lambda firsts: error if len(firsts) > 2 else None)
    run(decoder, 8)
    assert decoder.calls == [8, 8, 4, 2, 2, 4, 2, 2]

    decoder = Decoder(lambda firsts: error)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        run(decoder, 4)
    assert decoder.calls == [4, 4, 2, 1]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is asked of a GPU that is not there, in order; tests add a decoder's calls."""
    asked: list[Any] = []

    class Stream:
        def __init__(self, device: torch.device) -> None:
            self.device = device

        def synchronize(self) -> None:
            asked.append(f"wait for the stream of {self.device}")

    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: asked.append(f"wait for {device}"))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: asked.append("free memory"))
    return asked


WAIT, WAIT_FOR_ALL, FREE = "wait for the stream of cuda:1", "wait for cuda:1", "free memory"


def test_a_gpu_is_waited_for_before_each_call_and_after_each_that_fails(asked: list[Any]) -> None:
    """The engine of nvJPEG writes before earlier work of its stream is done, and after its call has failed."""
    decoder = Decoder(lambda firsts: RuntimeError(f"{WRAPPED}Failed to decode: 6") if any(firsts) else None)
    decoder.calls = asked
    run(decoder, 2, bad=0, device=GPU)
    assert asked == [WAIT, 2, WAIT_FOR_ALL, WAIT, 1, WAIT_FOR_ALL, WAIT, 1]


def test_torchs_free_memory_is_given_back_before_smaller_calls(asked: list[Any]) -> None:
    error = torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
    decoder = Decoder(lambda firsts: error if len(firsts) > 1 else None)
    decoder.calls = asked
    run(decoder, 2, device=GPU)
    assert asked == [*(2 * [WAIT, 2, WAIT_FOR_ALL, FREE]), *(2 * [WAIT, 1])]


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: an illegal memory access was encountered",
        "Failed to initialize nvjpeg with hardware backend: 1",
        "Failed to create nvjpeg state: 7",
        "CUDA driver version is insufficient for CUDA runtime version",
    ],
)
def test_a_device_that_fails_is_an_error_and_no_fault_of_its_streams(text: str) -> None:
    decoder = Decoder(lambda firsts: RuntimeError(WRAPPED + text))
    with pytest.raises(RuntimeError, match=text):
        run(decoder, 4)
    assert decoder.calls == [4]


def test_a_decoder_that_does_not_decode_a_sound_image_is_refused() -> None:
    def broken(streams: list[torch.Tensor]) -> list[torch.Tensor]:
        raise RuntimeError("decode_jpegs_cuda: torchvision not compiled with nvJPEG support")

    def black(streams: list[torch.Tensor]) -> list[torch.Tensor]:
        return [torch.zeros(3, 16, 16, dtype=torch.uint8)]

    for decode in (broken, black):
        with pytest.raises(PicstoreError, match="give decoder='cpu'"):
            check_decoder(decode, CPU)


def test_the_image_that_decoders_are_tried_with_is_sound() -> None:
    def decode(streams: list[torch.Tensor]) -> list[torch.Tensor]:
        decoded = [simplejpeg.decode_jpeg(each.numpy().tobytes(), "RGB") for each in streams]
        return [torch.from_numpy(each.transpose(2, 0, 1)) for each in decoded]

    check_decoder(decode, CPU)
    assert SOUND.startswith(b"\xff\xd8") and SOUND.endswith(b"\xff\xd9")


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = True


@pytest.mark.usefixtures("deterministic")
def test_memory_that_torch_fills_after_decoding_is_refused() -> None:
    decoder = Decoder(lambda firsts: None)
    for refused in (check_determinism, lambda: run(decoder, 1, device=GPU)):
        with pytest.raises(UsageError, match="fill_uninitialized_memory = False"):
            refused()
    assert decoder.calls == []
    torch.utils.deterministic.fill_uninitialized_memory = False
    check_determinism()
