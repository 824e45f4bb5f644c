"""Decoding of a batch's streams on a GPU, and on the CPU of those that fail there.

A list goes to the decoder in one call, which fails as a whole if one of its streams does. Then each is tried alone, and
those that fail again are decoded on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    return _by_torchcodec(device) if name == "torchcodec" else _by_torchvision(device)


def with_index(device: torch.device) -> torch.device:
    """The same device with its index; without one it is the current device, which each thread has of its own."""
    return (
        torch.device("cuda", torch.cuda.current_device()) if device.type == "cuda" and device.index is None else device
    )


def _has_torchcodec() -> bool:
    """Whether a torchcodec that decodes JPEG is installed: 0.16 or newer."""
    if find_spec("torchcodec") is None:
        return False
    try:
        from torchcodec.decoders import decode_jpeg
    except (ImportError, RuntimeError, OSError):  # an older release, or one that does not load with this torch
        return False
    return callable(decode_jpeg)


def _by_torchcodec(device: torch.device) -> Decode:
    from torchcodec.decoders import decode_jpeg

    def decode(streams: list[torch.Tensor]) -> list[torch.Tensor]:
        images: list[torch.Tensor] = decode_jpeg(streams, mode="RGB", device=device)
        return images

    return decode


def _by_torchvision(device: torch.device) -> Decode:
    from torchvision.io import ImageReadMode, decode_jpeg

    def decode(streams: list[torch.Tensor]) -> list[torch.Tensor]:
        images: list[torch.Tensor] = decode_jpeg(streams, mode=ImageReadMode.RGB, device=device)
        return images

    return decode


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
        The images, uint8 (3, h, w) on the device, None for those that no decoder takes; and the reasons for these by
        number.

    Raises:
        torch.cuda.OutOfMemoryError: the device has too little memory.
    """
    expected = [(3, height, width) for width, height in sizes.tolist()]
    try:
        images: list[torch.Tensor | None] = list(decode(list(streams))) if streams else []
    except torch.cuda.OutOfMemoryError:
        raise
    except RuntimeError:
        images = [_decode_alone(stream, decode) for stream in streams]
    problems = {}
    for number, (image, shape) in enumerate(zip(images, expected, strict=True)):
        if image is not None and tuple(image.shape) == shape:
            images[number] = image.contiguous()  # decoders may return other layouts
        else:
            try:
                images[number] = _decode_on_cpu(streams[number], *shape[:0:-1]).to(device)
            except ImageError as error:
                images[number], problems[number] = None, str(error)
    return images, problems


def _decode_alone(stream: torch.Tensor, decode: Decode) -> torch.Tensor | None:
    """Decode one stream on the device; None if that fails."""
    try:
        return decode([stream])[0]
    except torch.cuda.OutOfMemoryError:
        raise
    except RuntimeError:
        return None


def _decode_on_cpu(stream: torch.Tensor, width: int, height: int) -> torch.Tensor:
    """Decode one stream on the CPU: uint8 (3, height, width)."""
    from picstore.train.cpu.decode import decode_rgb  # loads kernels, which are seldom needed beside a GPU

    pixels = decode_rgb(stream.numpy(), width=width, height=height)
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))
