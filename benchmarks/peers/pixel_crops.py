"""The job's crop by OpenCV and by Pillow, for peers that leave decoding to their users."""

from __future__ import annotations

import io
import math
import random
from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
from PIL import Image

_SCALE, _RATIO, _TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10

cv2.setNumThreads(0)  # the peers' own workers are as many as there are processors


def random_box(width: int, height: int, draw: random.Random) -> tuple[int, int, int, int]:
    """Draw left, top, width and height as torchvision's RandomResizedCrop does."""
    for _ in range(_TRIES):
        area = width * height * draw.uniform(*_SCALE)
        ratio = math.exp(draw.uniform(math.log(_RATIO[0]), math.log(_RATIO[1])))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return draw.randint(0, width - w), draw.randint(0, height - h), w, h
    w = min(width, round(height * _RATIO[1]))
    h = min(height, round(width / _RATIO[0]))
    return (width - w) // 2, (height - h) // 2, w, h


def crop_by_opencv(jpeg: bytes, size: int, draw: random.Random) -> Any:
    """Decode, crop, resize by areas and flip: uint8 (3, size, size)."""
    pixels = cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR_RGB)
    left, top, width, height = random_box(pixels.shape[1], pixels.shape[0], draw)
    # Areas are OpenCV's antialiased way; where the crop is smaller it is a bilinear one.
    crop = cv2.resize(pixels[top : top + height, left : left + width], (size, size), interpolation=cv2.INTER_AREA)
    return np.ascontiguousarray((crop[:, ::-1] if draw.random() < 0.5 else crop).transpose(2, 0, 1))


def crop_by_pillow(jpeg: bytes, size: int, draw: random.Random) -> Any:
    """Decode, crop, resize bilinearly and flip: uint8 (3, size, size)."""
    with Image.open(io.BytesIO(jpeg)) as image:
        left, top, width, height = random_box(*image.size, draw)
        box = (left, top, left + width, top + height)
        crop = image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR, box)
    if draw.random() < 0.5:
        crop = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.ascontiguousarray(np.asarray(crop).transpose(2, 0, 1))


CROPS: dict[str, Callable[[bytes, int, random.Random], Any]] = {"opencv": crop_by_opencv, "pillow": crop_by_pillow}
