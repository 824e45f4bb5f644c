"""Imported by the engine's fork server for its effect: all that convert's processes need is loaded once, for all.

Otherwise each would spend 0.4 s on that, or on a machine's first use seconds on compiling the kernels, all at once.
"""

from __future__ import annotations

import gc
import io

from PIL import Image

from picstore.prepare import convert
from picstore.prepare.settings import EncodeSettings
from picstore.prepare.training_jpeg import make_training_jpeg

__all__ = ["convert"]

_JPEG = io.BytesIO()
Image.new("RGB", (64, 16)).save(_JPEG, "JPEG")
make_training_jpeg(_JPEG.getvalue(), settings=EncodeSettings())
gc.freeze()  # else the first collection in a process writes to every object, which copies the memory that they share
