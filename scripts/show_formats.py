"""Which image formats convert reads here: one file of each that can be written, and whatever samples there are.

    python scripts/show_formats.py WORK [SAMPLES …] [--workers 2] [--timeout 60]

WORK is a new folder. ImageMagick writes a picture in each of its formats, Pillow in each of its own; then ``picstore
convert`` runs over these and over all files in the folders SAMPLES whose extension is an image's. Good samples are the
unpacked sources of image libraries: Debian's exiv2, imagemagick, jbigkit, leptonlib, libavif, libgd2, libheif,
libpng1.6, netpbm-free and tiff (``apt-get source --download-only``), PyPI's imageio, pillow, pydicom and wand (``pip
download --no-deps --no-binary :all:``).

Prints a table of formats (what reads each, or why nothing does), counts by outcome and reason, and the largest memory
that a process had.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import time
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from picstore.prepare.image import imagemagick
from picstore.prepare.image.read import EXCLUDED_FROM_PILLOW

_FORMAT = re.compile(r"\s*(\S+?)\*?\s+(\S+)\s+([r-])([w-])[+-]\s+(.*)")
_SIDES = 96, 64
# Displays, or formats that are folders of files.
_NOT_WRITTEN = frozenset({"X", "SHOW", "WIN", "HTML", "HTM", "SHTML", "CLIP", "MASK", "THUMBNAIL", "PREVIEW"})
_NO_IMAGES = frozenset({"c", "h", "txt", "text", "html", "htm", "json", "info", "data", "map", "null", "x", "label"})


@dataclass(frozen=True)
class Format:
    """A format of ImageMagick."""

    name: str
    module: str
    reads: bool
    writes: bool
    about: str


def formats() -> list[Format]:
    """What ImageMagick on this machine lists."""
    text = subprocess.run(["identify", "-list", "format"], capture_output=True, text=True, check=True).stdout
    found = [match.groups() for line in text.splitlines() if (match := _FORMAT.fullmatch(line))]
    return [Format(name, module, r == "r", w == "w", about) for name, module, r, w, about in found]


def picture() -> Image.Image:
    """Smooth colours, and a grey wedge below."""
    small = np.random.default_rng(0).integers(0, 256, (3, 4, 3), dtype=np.uint8)
    image = Image.fromarray(small).resize(_SIDES, Image.Resampling.BICUBIC)
    image.paste(Image.linear_gradient("L").rotate(90).resize((96, 16)), (0, 48))
    return image


def write_all(folder: Path) -> dict[str, str]:
    """A file of every format of either library that it writes; returns by file what ImageMagick or Pillow calls it."""
    written = {}
    source = folder.parent / "picture.png"
    picture().save(source)
    for each in formats():
        path = folder / f"magick-{each.name}.{each.name.lower()}"
        if each.writes and each.name not in _NOT_WRITTEN:
            command = ["convert", source, f"{each.name}:{path}"]
            subprocess.run(command, capture_output=True, timeout=60, check=False)
        if path.is_file() and path.stat().st_size:
            written[path.name] = each.name
    Image.init()
    for name in sorted(Image.SAVE):
        extension = next((key for key, value in Image.EXTENSION.items() if value == name), "." + name.lower())
        for mode in ("RGB", "P", "L", "1", "F"):
            out = io.BytesIO()
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    picture().convert(mode).save(out, name)
            except Exception:  # noqa: S112  any type of error says that this mode is none of that format
                continue
            path = folder / f"pillow-{name}{extension}"
            path.write_bytes(out.getvalue())
            written[path.name] = f"Pillow's {name}"
            break
    return written


def reader(path: Path) -> str:
    """Which library opens a file that convert has read."""
    data = path.read_bytes()
    if data.startswith(b"\xff\xd8"):
        return "Pillow"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image = Image.open(
                io.BytesIO(data), formats=[each for each in Image.ID if each not in EXCLUDED_FROM_PILLOW]
            )
    except Exception:
        return "ImageMagick"
    return (
        "ImageMagick" if image.format == "TIFF" and imagemagick.find_coder(data, name=path.name) == "dng" else "Pillow"
    )


def convert(inputs: list[Path], work: Path, options: argparse.Namespace) -> list[dict[str, str]]:
    """Run the command as a user does; the ledger."""
    (work / "inputs").write_bytes(b"".join(bytes(path) + b" 0\n" for path in inputs))
    command = [
        sys.executable,
        "-m",
        "picstore.cli",
        "convert",
        work / "inputs",
        work / "dataset",
        "--max-errors",
        "100%",
    ]
    command += ["--image-timeout", str(options.timeout), "--workers", str(options.workers), "--file-size", "4MiB"]
    started = time.monotonic()
    process = subprocess.Popen(list(map(str, command)), start_new_session=True)
    peak = 0
    while process.poll() is None:
        peak = max(peak, largest_memory(process.pid))
        time.sleep(0.05)
    if process.returncode:
        sys.exit(process.returncode)
    print(f"\n{time.monotonic() - started:.0f} s; a process had {peak >> 10} MiB at most\n")
    return [json.loads(line) for line in (work / "dataset" / "ledger.jsonl").read_text().splitlines()]


def largest_memory(session: int) -> int:
    """KiB that a process of a session has had at most; of those that live."""
    peaks = [0]
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            if os.getsid(int(status.parent.name)) == session:
                peaks += map(int, re.findall(r"VmHWM:\s*(\d+) kB", status.read_text()))
    return max(peaks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("samples", type=Path, nargs="*")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=60)
    options = parser.parse_args()
    folder = options.work.resolve() / "written"
    folder.mkdir(parents=True)
    written = write_all(folder)
    inputs = [folder / name for name in sorted(written)]
    known = {key[1:] for key in Image.EXTENSION} | {each.name.lower() for each in formats()}
    for samples in options.samples:
        files = sorted(path for path in samples.resolve().rglob("*") if path.is_file() and not path.is_symlink())
        inputs += [path for path in files if path.suffix[1:].lower() in known - _NO_IMAGES]
    ledger = convert(inputs, options.work.resolve(), options)
    print_formats({Path(line["input"]).name: line for line in ledger[: len(written)]}, written, folder)
    print_counts("written here", ledger[: len(written)])
    print_counts("samples", ledger[len(written) :])


def print_formats(lines: dict[str, dict[str, str]], written: dict[str, str], folder: Path) -> None:
    """A row for each format of ImageMagick, and for each that Pillow writes."""
    names = {name: file for file, name in written.items()}
    print("| format | | read by |\n|---|---|---|")
    rows = [(each.name, each.about) for each in formats()]
    rows += [(name, "") for name in sorted(names) if name.startswith("Pillow's")]
    for name, about in rows:
        line = lines.get(names.get(name, ""))
        if line is None:
            outcome = "not written here"
        elif line["status"] == "failed":
            outcome = f"not read: {line['reason']}"
        else:
            outcome = reader(folder / names[name])
        print(f"| {name} | {about} | {outcome} |")


def print_counts(title: str, ledger: list[dict[str, str]]) -> None:
    """Outcomes, and the reasons of those that failed, with an example each."""
    print(f"\n{title}: {len(ledger)} files,", dict(Counter(line["status"] for line in ledger)))
    failed = [
        (re.sub(r"\d[\d,]*", "#", line["reason"]), line["input"]) for line in ledger if line["status"] == "failed"
    ]
    examples = dict(reversed(failed))
    for reason, count in Counter(reason for reason, _ in failed).most_common():
        print(f"{count:>6} {reason}  ({examples[reason]})")


if __name__ == "__main__":
    main()
