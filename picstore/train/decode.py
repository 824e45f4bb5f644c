"""Decoding one training JPEG on the CPU, with libjpeg-turbo by simplejpeg, which releases the GIL."""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt
import simplejpeg

from picstore.errors import ImageError

_scratch = threading.local()


def decode_rgb(jpeg: bytes | memoryview, *, width: int, height: int) -> npt.NDArray[np.uint8]:
    """Decode to RGB; grey images get three equal channels.

    Args:
        jpeg: one whole stream.
        width, height: its size in pixels, as the index says.

    Returns:
        uint8 (height, width, 3), valid until this thread decodes again: the buffer is the thread's and is reused,
        since fresh pages for every image cost a fifth of the decoding.

    Raises:
        ImageError: the stream is damaged or of another size.
    """
    size = width * height * 3
    buffer: npt.NDArray[np.uint8] | None = getattr(_scratch, "buffer", None)
    if buffer is None or len(buffer) < size:
        buffer = _scratch.buffer = np.empty(max(size, 1 << 20), dtype=np.uint8)
    try:
        pixels: npt.NDArray[np.uint8] = simplejpeg.decode_jpeg(jpeg, "RGB", buffer=buffer)
    except ValueError as error:
        raise ImageError(f"does not decode: {error}") from error
    if pixels.shape != (height, width, 3):
        raise ImageError(f"decodes to {pixels.shape[1]} × {pixels.shape[0]} pixels, the index says {width} × {height}")
    return pixels
