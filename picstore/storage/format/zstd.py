"""Zstandard (RFC 8878): the standard library's from Python 3.14 on, before that its backport.

Frames of one release of libzstd are the same bytes everywhere; the backport's wheels hold 1.5.7.
"""

import sys

if sys.version_info >= (3, 14):
    from compression.zstd import ZstdDecompressor, ZstdError, compress, get_frame_info
else:
    from backports.zstd import ZstdDecompressor, ZstdError, compress, get_frame_info

__all__ = ["ZstdDecompressor", "ZstdError", "compress", "get_frame_info"]
