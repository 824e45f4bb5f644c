"""Warm-up of convert's processes: the fork server imports this module, which loads the modules and compiled kernels.

Without it each process spends 0.4 s on loading.
"""

from __future__ import annotations

import io

from PIL import Image

from picstore.kernels.ahead import compile_ahead
from picstore.prepare.convert import rows  # noqa: F401
from picstore.prepare.convert.needed_kernels import MARKERS_AND_ENCODER
from picstore.prepare.image.encode import encode
from picstore.prepare.image.encode_settings import EncodeSettings
from picstore.prepare.image.training_jpeg import make_training_jpeg

compile_ahead(MARKERS_AND_ENCODER)
jpeg = io.BytesIO()
Image.new("RGB", (64, 16)).save(jpeg, "JPEG")
make_training_jpeg(jpeg.getvalue(), settings=EncodeSettings())
encode(Image.new("RGB", (64, 16)), settings=EncodeSettings())  # any source may hold an image to be encoded
