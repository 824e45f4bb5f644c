"""Imported by the engine's fork server for its effect: all that convert's processes need is loaded once, for all.

Otherwise each would spend 0.4 s on that, or on a machine's first use seconds on compiling the kernels, all at once.
"""

from __future__ import annotations

import gc
import io
import sys

# Where they are installed numba imports SciPy and cffi, for what no kernel asks for: half of the time that it takes to
# start. Whoever needs them in a worker can import them, later.
_HIDDEN = [name for name in ("scipy", "cffi") if name not in sys.modules]
sys.modules.update(dict.fromkeys(_HIDDEN))  # type: ignore[arg-type]

from PIL import Image  # noqa: E402

from picstore.prepare.convert.convert import convert  # noqa: E402
from picstore.prepare.image.settings import EncodeSettings  # noqa: E402
from picstore.prepare.image.training_jpeg import make_training_jpeg  # noqa: E402

__all__ = ["convert"]

_JPEG = io.BytesIO()
Image.new("RGB", (64, 16)).save(_JPEG, "JPEG")
make_training_jpeg(_JPEG.getvalue(), settings=EncodeSettings())
for _name in _HIDDEN:
    del sys.modules[_name]
gc.freeze()  # else the first collection in a process writes to every object, which copies the memory that they share
