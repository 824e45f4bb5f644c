"""Imported by the engine's fork server for its effect: the kernels are loaded once, and every task's process has them.

Otherwise each process would spend 0.3 s on that, or on a machine's first use seconds on compiling them, all at once.
"""

from __future__ import annotations

import io

from PIL import Image

from picstore.jpeg.transcode import add_restart_markers

_JPEG = io.BytesIO()
Image.new("RGB", (64, 16)).save(_JPEG, "JPEG")
add_restart_markers(_JPEG.getvalue())
