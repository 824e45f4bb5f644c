"""Decoding the streams of a batch on a GPU, and what becomes of those that do not decode there.

A list goes to the decoder in one call, which fails as a whole if one of its streams does. Then each is tried alone, and
what fails again is decoded on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import TypeAlias

import numpy as np
import torch

from picstore.arrays import I64
from picstore.errors import ImageError, UsageError

# Streams, uint8 (m,) in CPU memory, to images of red, green and blue, uint8 (3, h, w) on the device.
Decode: TypeAlias = Callable[[list[torch.Tensor]], list[torch.Tensor]]

DECODERS = ("auto", "torchcodec", "torchvision", "cpu")


def find_decoder(name: str, device: torch.device) -> Decode | None:
    """A decoder for a device; None for decoding on the CPU.

    Args:
        name: of ``DECODERS``; ``"auto"`` is torchcodec where it is installed, which decodes in several threads at once,
            or else torchvision, on a GPU; the CPU elsewhere.

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


def numbered(device: torch.device) -> torch.device:
    """The same device by its number: the current one of this thread, which is not that of other threads."""
    return (
        torch.device("cuda", torch.cuda.current_device()) if device.type == "cuda" and device.index is None else device
    )


def _has_torchcodec() -> bool:
    """Whether a torchcodec that decodes JPEG is there: 0.16 was the first."""
    if find_spec("torchcodec") is None:
        return False
    try:
        from torchcodec.decoders import decode_jpeg
    except (ImportError, RuntimeError, OSError):  # an older one, or it does not load: other torch, no libraries
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
        sizes: int64 (n, 2), width and height that each should have.

    Returns:
        The images, uint8 (3, h, w) on the device, None for those that no decoder takes; and by number what is wrong
        with these.
    """
    expected = [(3, height, width) for width, height in sizes.tolist()]
    try:
        images: list[torch.Tensor | None] = list(decode(list(streams))) if streams else []
    except torch.cuda.OutOfMemoryError:
        raise
    except RuntimeError:
        images = [_alone(stream, decode) for stream in streams]
    problems = {}
    for number, (image, shape) in enumerate(zip(images, expected, strict=True)):
        if image is not None and tuple(image.shape) == shape:
            images[number] = image.contiguous()  # planes, whatever a decoder makes
        else:
            try:
                images[number] = _on_cpu(streams[number], *shape[:0:-1]).to(device)
            except ImageError as error:
                images[number], problems[number] = None, str(error)
    return images, problems


def _alone(stream: torch.Tensor, decode: Decode) -> torch.Tensor | None:
    """One image, None if it does not decode."""
    try:
        return decode([stream])[0]
    except torch.cuda.OutOfMemoryError:
        raise
    except RuntimeError:
        return None


def _on_cpu(stream: torch.Tensor, width: int, height: int) -> torch.Tensor:
    """One image, uint8 (3, height, width)."""
    from picstore.train.cpu.decode import decode_rgb  # with its kernels, which a GPU seldom needs

    pixels = decode_rgb(stream.numpy(), width=width, height=height)
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))
