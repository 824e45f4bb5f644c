"""Zstandard (RFC 8878): the standard library's module from Python 3.14 on, else its backport.

A release of libzstd writes the same bytes on every machine; the backport's wheels contain libzstd 1.5.7.
"""

import sys

if sys.version_info >= (3, 14):
    from compression.zstd import ZstdDecompressor, ZstdError, compress, get_frame_info
else:
    from backports.zstd import ZstdDecompressor, ZstdError, compress, get_frame_info

__all__ = ["ZstdDecompressor", "ZstdError", "compress", "get_frame_info"]
