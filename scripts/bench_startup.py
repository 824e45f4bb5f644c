"""What starting costs: the command line against a Python that does nothing, and the kernels on a machine's first use.

    python scripts/bench_startup.py

The limits: 0.3 s for ``import picstore`` and ``picstore --help``; 10 s to compile all kernels once; 0.3 s to load them
in a later process, beyond numba's own import.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUNS = 15
KERNEL_RUNS = 5
LIMIT = 0.3  # seconds
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "import picstore": [sys.executable, "-c", "import picstore"],
    "picstore --help": [str(Path(sys.executable).parent / "picstore"), "--help"],
    "picstore convert --help": [str(Path(sys.executable).parent / "picstore"), "convert", "--help"],
}
# Uses every kernel once and prints the seconds that this took.
KERNELS = """
import io
import numba, numpy as np
from PIL import Image
start = time.perf_counter()
import picstore
from picstore.train.resample import resample
out = io.BytesIO()
pixels = np.random.default_rng(0).integers(0, 256, (120, 160, 3), dtype=np.uint8)
Image.fromarray(pixels).save(out, "JPEG")
picstore.cut(picstore.add_restart_markers(out.getvalue()), (10, 10, 20, 20))
resample(pixels, (3.0, 3.0, 50.0, 50.0), (0, 0, 160, 120), False, True, np.empty((3, 32, 32), np.uint8))
print(time.perf_counter() - start)
"""


def command_times() -> dict[str, list[float]]:
    """Wall seconds of each command, run in turn."""
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(RUNS):
        for name, command in COMMANDS.items():
            start = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            times[name].append(time.perf_counter() - start)
    return times


def kernel_seconds(cache: str) -> float:
    """Seconds to have all kernels ready, with numba's cache in a folder; torch, which the loader imports, left out."""
    code = "import time, torch\n" + KERNELS
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "NUMBA_CACHE_DIR": cache},
        check=True,
        capture_output=True,
        text=True,
    )
    return float(done.stdout)


def main() -> None:
    print(f"{'':34s}{'median s':>9s}{'of the limit':>14s}")
    for name, measured in command_times().items():
        median = statistics.median(measured)
        print(f"{name:34s}{median:9.3f}{median / LIMIT:14.0%}")
    with tempfile.TemporaryDirectory() as cache:
        first = kernel_seconds(cache)
        later = statistics.median(kernel_seconds(cache) for _ in range(KERNEL_RUNS))
    print(f"{'all kernels, compiled':34s}{first:9.3f}{first / 10:14.0%}")
    print(f"{'all kernels, from the cache':34s}{later:9.3f}{later / LIMIT:14.0%}")


if __name__ == "__main__":
    main()
