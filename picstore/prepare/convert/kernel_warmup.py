"""Loading of a conversion's modules and compiled kernels before the first image. Loading takes 0.4 s per process.

This module imports little, so that the fork server starts before other modules are imported.
"""

from __future__ import annotations

import functools
from typing import Any

from picstore.prepare.engine import worker_processes
from picstore.prepare.image.encode_settings import EncodeSettings, Size


def start_fork_server(encode: EncodeSettings, *first: str) -> None:
    """Start the server that forks worker processes; it loads the kernels that ``encode`` needs, compiled if necessary.

    Before that, the server calls the functions ``first``, written ``module:function``.
    """
    loaders = [f"{__name__}:{load.__name__}" for load in _loaders(encode)]
    worker_processes.start_fork_server("picstore.prepare.convert.rows", *first, *loaders)


def load_kernels(encode: EncodeSettings) -> None:
    """Load the kernels that ``encode`` needs into this process; compile kernels not yet compiled on this machine."""
    for load in _loaders(encode):
        load()


def _loaders(encode: EncodeSettings) -> list[Any]:
    return [load_encoder, load_pixels] if encode.resize is not None or encode.reencode else [load_encoder]


@functools.cache
def load_encoder() -> None:
    """Load the kernels that every conversion needs: to add restart markers to JPEGs, and to encode other images."""
    from PIL import Image

    from picstore.kernels.ahead import compile_ahead
    from picstore.prepare.image.training_jpeg import encode, make_training_jpeg

    compile_ahead(encoder_kernels())
    make_training_jpeg(_jpeg(), settings=EncodeSettings())
    encode(Image.new("RGB", (64, 16)), settings=EncodeSettings())


@functools.cache
def load_pixels() -> None:
    """Load the kernels of ``--resize`` and ``--reencode``; their first use on a machine compiles them in 10 s."""
    from picstore.kernels.ahead import compile_ahead
    from picstore.prepare.image.training_jpeg import make_training_jpeg

    compile_ahead(pixel_kernels())
    make_training_jpeg(_jpeg(), settings=EncodeSettings(resize=Size.parse("32x8")))


def encoder_kernels() -> list[Any]:
    """Return the kernels that every conversion needs: to add restart markers to JPEGs, and to encode JPEGs."""
    from picstore.jpeg.bit_reader import unstuff
    from picstore.jpeg.bit_writer import write_scan
    from picstore.jpeg.block_starts import describe_scan, find_block_starts
    from picstore.jpeg.encoder.symbols import choose_codes, find_symbols, write_symbols
    from picstore.jpeg.restart_edits import find_edits
    from picstore.jpeg.transcode_lookup import fill_tables

    markers = [unstuff, fill_tables, describe_scan, find_block_starts, find_edits, write_scan]
    return [*markers, find_symbols, choose_codes, write_symbols]


def pixel_kernels() -> list[Any]:
    """Return the additional kernels that ``--resize`` and ``--reencode`` need."""
    from picstore.jpeg.decoder.decode_baseline import decode_rows, open_stream
    from picstore.kernels.resample import resample_box

    return [open_stream, decode_rows, resample_box]


def _jpeg() -> bytes:
    import io

    from PIL import Image

    jpeg = io.BytesIO()
    Image.new("RGB", (64, 16)).save(jpeg, "JPEG")
    return jpeg.getvalue()
