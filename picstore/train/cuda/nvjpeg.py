"""Decoding of a batch's streams on a GPU by nvJPEG, or on the CPU if nvJPEG fails.

A list goes to the decoder in one call, which fails as a whole if one stream fails. Then halves of the list are tried,
down to the single streams that fail, which the CPU decodes. The caller counts and reports these streams; otherwise a
decoder that takes no stream would look like a slow decoder. No stream is blamed for lack of memory or a failing device.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch

from picstore.arrays import I64
from picstore.errors import ImageError, MissingDependency, PicstoreError, UsageError

# Function that decodes JPEG streams, uint8 (m,) in CPU memory, to RGB images, uint8 (3, h, w) on the device.
Decode: TypeAlias = Callable[[list[torch.Tensor]], list[torch.Tensor]]

DECODERS = ("auto", "picstore", "torchcodec", "torchvision", "cpu")

# A sound JPEG, 4:2:0, of 16 × 16 pixels of the color ``_SOUND_COLOR``.
SOUND = bytes.fromhex(
    "ffd8ffe000104a46494600010100000100010000ffdb004300080606070605080707070909080a0c140d0c0b0b0c1912130f141d1a1f1e1d"
    "1a1c1c20242e2720222c231c1c2837292c30313434341f27393d38323c2e333432ffdb0043010909090c0b0c180d0d1832211c2132323232"
    "32323232323232323232323232323232323232323232323232323232323232323232323232323232323232323232ffc00011080010001003"
    "012200021101031101ffc4001500010100000000000000000000000000000003ffc40014100100000000000000000000000000000000ffc4"
    "0014010100000000000000000000000000000006ffc40014110100000000000000000000000000000000ffda000c03010002110311003f00"
    "b802054fffd9"
)
_SOUND_COLOR = (201, 120, 41)

# torchvision and torchcodec put nvJPEG's status code at the end of their messages.
_STATUS = re.compile(r"(?:fail\w*|nvjpeg)[^\n]*?: (\d+)", re.IGNORECASE)
_ALLOCATOR_FAILURE, _NOT_INITIALIZED, _ARCH_MISMATCH = 5, 1, 7


def choose_decoder(name: str, device: torch.device) -> str:
    """Return ``name``, or the device's default decoder if ``name`` is ``"auto"``.

    The default is ``"picstore"`` on a GPU and ``"cpu"`` elsewhere; both decode to the same pixels.

    Raises:
        UsageError: ``name`` is unknown, or is not a decoder for the device.
    """
    if name not in DECODERS:
        raise UsageError(f"decoder {name!r} is unknown; use one of {', '.join(DECODERS)}")
    if name == "auto":
        return "picstore" if device.type == "cuda" else "cpu"
    if name != "cpu" and device.type != "cuda":
        raise UsageError(f"decoder {name!r} works on a GPU; give decoder='cpu' with device {str(device)!r}")
    return name


def load_decoder(name: str, device: torch.device) -> Decode:
    """Return nvJPEG's decoder of lists of JPEGs, as the package ``"torchcodec"`` or ``"torchvision"`` offers it.

    Raises:
        MissingDependency: the package is not installed, is too old, or does not load with this torch.
    """
    try:
        if name == "torchcodec":
            from torchcodec import decoders

            return partial(decoders.decode_jpeg, mode="RGB", device=device)
        from torchvision import io

        return partial(io.decode_jpeg, mode=io.ImageReadMode.RGB, device=device)
    except (ImportError, RuntimeError, OSError, AttributeError) as error:
        least = "torchcodec 0.16" if name == "torchcodec" else "torchvision for CUDA"
        raise MissingDependency(
            f"decoder={name!r} needs {least} or newer, made for this torch; install it, or leave decoder out ({error})"
        ) from error


def with_index(device: torch.device) -> torch.device:
    """Return a CUDA device with an index, by default the thread's current one; return other devices unchanged."""
    known = device.type != "cuda" or device.index is not None
    return device if known else torch.device("cuda", torch.cuda.current_device())


def check_decoder(decode: Decode, device: torch.device) -> None:
    """Raise PicstoreError if a decoder fails on a sound image, because it would then decode no other image either."""
    try:
        (image,) = decode([torch.frombuffer(bytearray(SOUND), dtype=torch.uint8)])
        levels = image.float().mean((1, 2)).cpu()
        wrong = tuple(image.shape) != (3, 16, 16) or (levels - torch.tensor(_SOUND_COLOR)).abs().max() > 2
        problem = f"gives {tuple(image.shape)} of {levels.tolist()}" if wrong else ""
    except (RuntimeError, OSError) as error:
        problem = f"fails: {error}"
    if problem:
        text = "give decoder='cpu', or repair the installation of the decoder or of the driver"
        raise PicstoreError(f"the decoder for {device} was tried with a sound image and {problem}; {text}")


def check_determinism() -> None:
    """Check that torch does not fill new memory with a constant, which could overwrite an image decoded by nvJPEG.

    Raises:
        UsageError: torch fills new memory; nvJPEG's hardware does not wait for the fill.
    """
    fills: Any = torch.utils.deterministic
    if torch.are_deterministic_algorithms_enabled() and fills.fill_uninitialized_memory:
        raise UsageError(
            "with torch.use_deterministic_algorithms(True) torch fills the memory of images, maybe after nvJPEG has "
            "decoded them; set torch.utils.deterministic.fill_uninitialized_memory = False, or give decoder='cpu'"
        )


@dataclass(frozen=True)
class DecodedStreams:
    """Images decoded from a batch's JPEG streams.

    Attributes:
        images: uint8 (3, h, w) on the device; None for a stream that neither the device nor the CPU decodes.
        problems: reason for each None in ``images``, by index.
        refused: reasons, one for each image that the device left to the CPU.
    """

    images: list[torch.Tensor | None]
    problems: dict[int, str] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)


def decode_all(streams: Sequence[torch.Tensor], sizes: I64, *, decode: Decode, device: torch.device) -> DecodedStreams:
    """Decode a batch's JPEG streams on a device; the CPU decodes the streams that fail there.

    Args:
        streams: uint8 (m,) in CPU memory, one for each image.
        sizes: int64 (n, 2), expected width and height of each image.
        decode: function returned by ``load_decoder`` for ``device``.

    Raises:
        torch.cuda.OutOfMemoryError: the device has too little memory for one image.
        RuntimeError: the device fails.
        UsageError: torch fills new memory, see ``check_determinism``.
    """
    if device.type == "cuda":
        check_determinism()
    found = _decode_some(list(streams), decode, device) if streams else []
    made = DecodedStreams([])
    for number, (image, (width, height)) in enumerate(zip(found, sizes.tolist(), strict=True)):
        if isinstance(image, torch.Tensor) and tuple(image.shape) == (3, height, width):
            # Decoders may return other memory layouts.
            made.images.append(image.contiguous())
            continue
        shape = f"gives shape {tuple(image.shape)}" if isinstance(image, torch.Tensor) else image
        made.refused.append(shape)
        try:
            made.images.append(_decode_on_cpu(streams[number], width, height).to(device))
        except ImageError as error:
            made.images.append(None)
            made.problems[number] = str(error)
    return made


def _decode_some(
    streams: list[torch.Tensor], decode: Decode, device: torch.device, *, again: bool = False
) -> list[torch.Tensor | str]:
    """Decode JPEG streams in one call; if it fails, in a call for each half, and so on down to single streams.

    Returns:
        For each stream its image or, if the stream fails even alone, the error's message.
    """
    if device.type == "cuda":
        # Wait for all work on the CUDA stream, because nvJPEG's hardware does not wait, and may write to memory that
        # this work still uses: otherwise 134 of 200 batches were damaged on an H100 (torchvision pull request 9606).
        torch.cuda.current_stream(device).synchronize()
    try:
        return list(decode(streams))
    except (RuntimeError, torch.cuda.OutOfMemoryError) as error:
        kind, text = _kind_of(error), str(error)
        if kind == "device":
            raise
    # Wait for what the failed call has queued, because it may still write to memory that the next call gets.
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    if kind == "memory":
        if device.type == "cuda":
            torch.cuda.empty_cache()
        if not again:
            return _decode_some(streams, decode, device, again=True)
        if len(streams) == 1:
            raise torch.cuda.OutOfMemoryError(text)
    if len(streams) == 1:
        return [text]
    middle = len(streams) // 2
    halves = (streams[:middle], streams[middle:])
    return [image for half in halves for image in _decode_some(half, decode, device, again=kind == "memory")]


def _kind_of(error: RuntimeError) -> str:
    """Return the kind of a decoder's error: ``"memory"``, ``"device"``, or ``"stream"`` for a fault of the JPEG."""
    text = str(error)
    found = _STATUS.search(text)
    status = int(found[1]) if found else 0
    if isinstance(error, torch.cuda.OutOfMemoryError) or "out of memory" in text or status == _ALLOCATOR_FAILURE:
        return "memory"
    lost = status in (_NOT_INITIALIZED, _ARCH_MISMATCH) or any(word in text for word in ("initialize", "create"))
    return "device" if lost or "CUDA error" in text or "synchronize" in text or "driver" in text else "stream"


def _decode_on_cpu(stream: torch.Tensor, width: int, height: int) -> torch.Tensor:
    """Decode a stream on the CPU; return uint8 (3, height, width)."""
    from picstore.train.cpu.decode_crop import decode_rgb  # imported here, because few images fail on a GPU

    pixels = decode_rgb(stream.numpy(), width=width, height=height)
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))
