"""Warm-up of convert's processes for ``--resize`` and ``--reencode``: loads the decoder and the resizing kernel.

A module of its own, since the fork server can only import modules. Compiling takes 10 s once per machine; lossless
conversions skip it.
"""

from __future__ import annotations

from picstore.kernels.ahead import compile_ahead
from picstore.prepare.convert.needed_kernels import PIXELS
from picstore.prepare.convert.warmup import jpeg
from picstore.prepare.image.encode_settings import EncodeSettings, Size
from picstore.prepare.image.training_jpeg import make_training_jpeg

compile_ahead(PIXELS)
make_training_jpeg(jpeg.getvalue(), settings=EncodeSettings(resize=Size.parse("32x8")))
