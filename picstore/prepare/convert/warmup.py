"""Warm-up of convert's processes: the fork server imports this module, which loads the modules and compiled kernels.

Without it each process spends 0.4 s on loading.
"""

from __future__ import annotations

import gc
import io
import sys

# numba imports SciPy and cffi where they are installed, for functions that no kernel uses: half of its import time.
# Workers can import them later.
_HIDDEN = [name for name in ("scipy", "cffi") if name not in sys.modules]
sys.modules.update(dict.fromkeys(_HIDDEN))  # type: ignore[arg-type]

from PIL import Image  # noqa: E402

from picstore.kernels.ahead import compile_ahead  # noqa: E402
from picstore.prepare.convert import rows  # noqa: E402, F401
from picstore.prepare.convert.needed_kernels import MARKERS_AND_ENCODER  # noqa: E402
from picstore.prepare.image.encode import encode  # noqa: E402
from picstore.prepare.image.settings import EncodeSettings  # noqa: E402
from picstore.prepare.image.training_jpeg import make_training_jpeg  # noqa: E402

compile_ahead(MARKERS_AND_ENCODER)
jpeg = io.BytesIO()
Image.new("RGB", (64, 16)).save(jpeg, "JPEG")
make_training_jpeg(jpeg.getvalue(), settings=EncodeSettings())
encode(Image.new("RGB", (64, 16)), settings=EncodeSettings())  # any source may hold an image to be encoded
for _name in _HIDDEN:
    del sys.modules[_name]
gc.freeze()  # else the first collection in a worker writes to every object, which copies the shared memory
