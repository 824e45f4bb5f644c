"""How long `import picstore` and `picstore --help` take, against a Python that does nothing; the limit is 0.3 s.

usage: bench_startup.py
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

RUNS = 15
LIMIT = 0.3  # seconds
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "import picstore": [sys.executable, "-c", "import picstore"],
    "picstore --help": [str(Path(sys.executable).parent / "picstore"), "--help"],
    "picstore convert --help": [str(Path(sys.executable).parent / "picstore"), "convert", "--help"],
}


def main() -> None:
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(RUNS):
        for name, command in COMMANDS.items():
            start = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            times[name].append(time.perf_counter() - start)
    print(f"{'':26s}{'median s':>9s}{'of the limit':>14s}")
    for name, measured in times.items():
        median = statistics.median(measured)
        print(f"{name:26s}{median:9.3f}{median / LIMIT:14.0%}")


if __name__ == "__main__":
    main()
