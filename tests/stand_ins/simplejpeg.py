"""simplejpeg's functions by Pillow's libjpeg-turbo, for Pythons that have no wheel of it: free-threaded ones.

conftest.py puts this folder last on the path, so that it never hides the package. What Pillow cannot do is skipped.
"""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np
from pictures import missing
from PIL import Image, JpegImagePlugin

_SAMPLINGS = {"444": 0, "422": 1, "420": 2}  # Pillow's numbers
_COLORSPACES = {"L": "Gray", "RGB": "YCbCr", "CMYK": "CMYK"}


def encode_jpeg(
    image: np.ndarray[Any, Any], quality: int = 85, colorspace: str = "RGB", colorsubsampling: str = "444"
) -> bytes:
    if colorsubsampling not in _SAMPLINGS:
        missing(f"simplejpeg, which samples by {colorsubsampling},")
    stored = BytesIO()
    picture = Image.fromarray(image[..., 0] if colorspace == "GRAY" else image)
    picture.save(stored, "JPEG", quality=quality, subsampling=_SAMPLINGS[colorsubsampling])
    return stored.getvalue()


def decode_jpeg(
    data: bytes,
    colorspace: str = "RGB",
    *,
    fastdct: bool = False,
    fastupsample: bool = False,
    strict: bool = True,
    **least: int,
) -> np.ndarray[Any, Any]:
    if fastdct or fastupsample or least:
        missing("simplejpeg, which decodes smaller or less exactly,")
    try:
        with Image.open(BytesIO(data), formats=["JPEG"]) as image:
            if colorspace == "GRAY":
                image.draft("L", image.size)
                return np.array(image.convert("L"))[..., None]
            return np.array(image.convert("RGB"))
    except OSError as error:
        raise ValueError(str(error)) from None  # as simplejpeg does


def decode_jpeg_header(data: bytes) -> tuple[int, int, str, str]:
    with Image.open(BytesIO(data), formats=["JPEG"]) as image:
        samplings = {number: name for name, number in _SAMPLINGS.items()}
        return image.height, image.width, _COLORSPACES[image.mode], samplings[JpegImagePlugin.get_sampling(image)]
