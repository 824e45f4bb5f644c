"""As ``warm``, for conversions that encode everything anew: the decoder, and the kernel that resizes.

Compiling them takes 10 s on a machine's first use, for which who adds markers only should not wait.
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
gc.freeze()  # as in ``warm``
