"""What --resume costs where nearly everything is done: seconds for a source of 100,000 inputs.

    python scripts/bench_resume.py [--inputs 100000]

The inputs are small images, of which a list names each many times; reading and encoding them is not what is measured.
One row of the finished data set is taken away, then `convert --resume` makes it again; then all is there and
`convert --resume` only says so; then `convert --retry-failed` has nothing to do.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from picstore.prepare.convert import job, ledger
from picstore.storage.location.local import Folder
from picstore.storage.manifest import read_manifest
from picstore.storage.manifest_copy import remove_manifest

_FILES = 100


def convert(source: Path, out: Path, *options: str) -> dict[str, float]:
    """Seconds of `picstore convert`, in all and by stage."""
    command = [sys.executable, "-m", "picstore.cli", "convert", str(source), str(out), "--json"]
    command += ["--file-size", "32KiB", *options]
    result = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return {"all": result["seconds"], **result["stages"]}


def write_source(folder: Path, inputs: int) -> Path:
    """A list of inputs and the images that it names."""
    rng = np.random.default_rng(0)
    for number in range(_FILES):
        out = io.BytesIO()
        Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(out, "JPEG")
        (folder / f"{number}.jpg").write_bytes(out.getvalue())
    listing = folder / "all.txt"
    listing.write_text("".join(f"{k % _FILES}.jpg {k % 10}\n" for k in range(inputs)))
    return listing


def take_away_a_row(out: Path) -> int:
    """Make a finished data set one that lacks a row; returns how many rows it has."""
    root = Folder(out)
    manifest = read_manifest(root)
    rows = 1 + max(entry.file for entry in manifest.files)
    lines = list(ledger.read_lines(root / "ledger.jsonl"))
    for row in range(1, rows):
        ids = job.row_slice(len(lines), rows, row)
        ledger.write_fragment(root, row, lines[ids.start : ids.stop])
    made = {name: value for name, value in manifest.provenance.items() if name != "outcome"}
    job.save_job(root, {**made, "encode": manifest.encode, "rows": rows})
    remove_manifest(root)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--inputs", type=int, default=100_000)
    inputs = parser.parse_args().inputs
    with tempfile.TemporaryDirectory() as folder:
        source, out = write_source(Path(folder), inputs), Path(folder) / "out"
        print("from the beginning", convert(source, out))
        print(f"{take_away_a_row(out)} rows, one of them missing", convert(source, out, "--resume"))
        print("all there", convert(source, out, "--resume"))
        print("nothing failed", convert(source, out, "--retry-failed"))


if __name__ == "__main__":
    main()
