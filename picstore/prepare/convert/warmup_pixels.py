"""Warm-up of convert's processes for ``--resize`` and ``--reencode``: loads the decoder and the resizing kernel.

A module of its own, since the fork server can only import modules. Compiling takes 10 s once per machine; lossless
conversions skip it.
"""

from __future__ import annotations

import gc
import io

from PIL import Image

from picstore.prepare.image.settings import EncodeSettings, Size
from picstore.prepare.image.training_jpeg import make_training_jpeg

_JPEG = io.BytesIO()
Image.new("RGB", (64, 16)).save(_JPEG, "JPEG")
make_training_jpeg(_JPEG.getvalue(), settings=EncodeSettings(resize=Size.parse("32x8")))
gc.freeze()  # as in ``warmup``
