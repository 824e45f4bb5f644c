"""CRC-32C: the library in use, the portable fallback, and zlib's CRC-32 beside them."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np

from benchmarks.harness import GIGABYTES_PER_SECOND, Case, Table, measure, tabulate
from benchmarks.kernels.markers import pin
from benchmarks.options import Options
from picstore.storage.format.checksum import crc32c, portable_crc32c

BLOCK = 1 << 20  # bytes, which stay in the second-level cache


def checksum(options: Options) -> Table:
    """GB/s of one core on a block that is in the cache."""
    pin()
    block = np.random.default_rng(0).integers(0, 256, BLOCK, np.uint8).tobytes()
    repeats = 4 if options.quick else 64
    extend = portable_crc32c()
    functions: dict[str, Callable[[bytes], int]] = {
        "crc32c": crc32c,
        "crcmod, the fallback": lambda data: extend(data, 0),
        "zlib's CRC-32": zlib.crc32,
    }

    def work(function: Callable[[bytes], int]) -> int:
        for _ in range(repeats):
            function(block)
        return repeats * BLOCK

    checks = {"crc32c": lambda f: [f(block)], "crcmod, the fallback": lambda f: [f(block)]}
    cases = [Case(name, work, lambda f=f: f, check=checks.get(name)) for name, f in functions.items()]
    results = measure(cases, rounds=options.round_count(9))
    return tabulate(results, "blocks of 1 MiB; one core", unit=GIGABYTES_PER_SECOND, first="picstore")
