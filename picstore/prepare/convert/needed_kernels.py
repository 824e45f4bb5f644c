"""The kernels that conversions need, so that they can be compiled before the first image."""

from __future__ import annotations

from picstore.jpeg.bit_reader import unstuff
from picstore.jpeg.bit_writer import write_scan
from picstore.jpeg.block_starts import describe_scan, find_block_starts
from picstore.jpeg.decoder.decode_baseline import decode_rows, open_stream
from picstore.jpeg.encoder.symbols import choose_codes, find_symbols, write_symbols
from picstore.jpeg.restart_edits import find_edits
from picstore.jpeg.transcode_lookup import fill_tables
from picstore.kernels.resample import resample_box

# Of all conversions: any source may hold an image that is to be encoded.
MARKERS = unstuff, fill_tables, describe_scan, find_block_starts, find_edits, write_scan
MARKERS_AND_ENCODER = *MARKERS, find_symbols, choose_codes, write_symbols
PIXELS = open_stream, decode_rows, resample_box  # of --resize and --reencode
