"""Decoding of a batch's streams on a GPU, and on the CPU of those that fail there.

A list goes to the decoder in one call, which fails as a whole if one of its streams does. Then each is tried alone, and
those that fail again are decoded on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from typing import TypeAlias

import numpy as np
import torch

from picstore.arrays import I64
from picstore.errors import ImageError, UsageError

# Decodes streams, uint8 (m,) in CPU memory, to RGB images, uint8 (3, h, w) on the device.
Decode: TypeAlias = Callable[[list[torch.Tensor]], list[torch.Tensor]]

DECODERS = ("auto", "torchcodec", "torchvision", "cpu")


def find_decoder(name: str, device: torch.device) -> Decode | None:
    """Find the decoder for a device; None decodes on the CPU.

    Args:
        name: of ``DECODERS``. On a GPU ``"auto"`` is torchcodec if it is installed, which decodes in several threads at
            once, or else torchvision; elsewhere it is the CPU.
        device: of the images.

    Raises:
        UsageError: there is no such decoder for this device.
    """
    if name not in DECODERS:
        raise UsageError(f"decoder {name!r} is unknown; use one of {', '.join(DECODERS)}")
    if name == "auto":
        name = "cpu" if device.type != "cuda" else "torchcodec" if _has_torchcodec() else "torchvision"
    if name == "cpu":
        return None
    if device.type != "cuda":
        raise UsageError(f"decoder {name!r} works on a GPU; with device {str(device)!r} use 'cpu'")
    if name == "torchcodec":
        from torchcodec import decoders

        return partial(decoders.decode_jpeg, mode="RGB", device=device)
    from torchvision import io

    return partial(io.decode_jpeg, mode=io.ImageReadMode.RGB, device=device)


def with_index(device: torch.device) -> torch.device:
    """The same device with its index; without one it is the current device, which each thread has of its own."""
    known = device.type != "cuda" or device.index is not None
    return device if known else torch.device("cuda", torch.cuda.current_device())


def _has_torchcodec() -> bool:
    """Whether a torchcodec that decodes JPEG is installed: 0.16 or newer."""
    if find_spec("torchcodec") is None:
        return False
    try:
        from torchcodec.decoders import decode_jpeg
    except (ImportError, RuntimeError, OSError):  # an older release, or one that does not load with this torch
        return False
    return callable(decode_jpeg)


def decode_all(
    streams: Sequence[torch.Tensor], sizes: I64, *, decode: Decode, device: torch.device
) -> tuple[list[torch.Tensor | None], dict[int, str]]:
    """Decode a batch.

    Args:
        streams: uint8 (m,) in CPU memory.
        sizes: int64 (n, 2), expected width and height of each image.
        decode: of ``find_decoder``.
        device: of the images.

    Returns:
        The images, uint8 (3, h, w) on the device, None where no decoder takes one; and by number why none does.

    Raises:
        torch.cuda.OutOfMemoryError: the device has too little memory.
    """
    images = _decode_on_device(list(streams), decode) if streams else []
    if any(image is None for image in images):
        images = [_decode_on_device([stream], decode)[0] for stream in streams]
    problems = {}
    for number, (image, (width, height)) in enumerate(zip(images, sizes.tolist(), strict=True)):
        if image is not None and tuple(image.shape) == (3, height, width):
            images[number] = image.contiguous()  # decoders may return other layouts
        else:
            try:
                images[number] = _decode_on_cpu(streams[number], width, height).to(device)
            except ImageError as error:
                images[number], problems[number] = None, str(error)
    return images, problems


def _decode_on_device(streams: list[torch.Tensor], decode: Decode) -> list[torch.Tensor | None]:
    """Decode streams in one call; a None for each if that fails."""
    try:
        return list(decode(streams))
    except torch.cuda.OutOfMemoryError:
        raise
    except RuntimeError:
        return [None] * len(streams)


def _decode_on_cpu(stream: torch.Tensor, width: int, height: int) -> torch.Tensor:
    """Decode one stream on the CPU: uint8 (3, height, width)."""
    from picstore.train.cpu.decode import decode_rgb  # loads kernels, which are seldom needed beside a GPU

    pixels = decode_rgb(stream.numpy(), width=width, height=height)
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))
