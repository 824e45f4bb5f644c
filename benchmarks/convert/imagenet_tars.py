"""Tars as ImageNet's: one for each synset, of small JPEGs no two of which have the same bytes."""

from __future__ import annotations

import tarfile
from pathlib import Path

from benchmarks.photographs import encode, find, pillow, shrink

_SHORTER = 168  # pixels of the shorter side: files of about 14 KB at quality 90, and 1,281,000 of them in 19 GB
_BLOCK = 512  # bytes of a tar
_APP0 = b"\xff\xe0"
_COM = b"\xff\xfe\x00\x0a"  # marker, and length of a segment of eight bytes


def write_pool(photographs: Path, pool: Path) -> int:
    """Write each photograph small; returns the mean bytes of the files."""
    pool.mkdir()
    sizes = []
    for number, path in enumerate(find(photographs)):
        sizes.append((pool / f"{number:06}.jpg").write_bytes(encode(shrink(pillow(path.read_bytes()), _SHORTER))))
    return sum(sizes) // len(sizes)


def read_pool(pool: str | Path) -> list[bytes]:
    """Read the files, of which image ``number`` of the tars is file ``number`` modulo their count."""
    return [path.read_bytes() for path in sorted(Path(pool).iterdir())]


def synset(label: int) -> str:
    """Name of a class."""
    return f"n{label:08}"


def class_starts(count: int, classes: int) -> list[int]:
    """Number of the first image of each class, and of all images."""
    return [label * count // classes for label in range(classes + 1)]


def write_tars(pool: str, folder: str, count: int, classes: int) -> int:
    """Write ``count`` images into a tar for each class; returns their bytes."""
    jpegs, starts, written = read_pool(pool), class_starts(count, classes), 0
    Path(folder).mkdir()
    for label in range(classes):
        parts = []
        for number in range(*starts[label : label + 2]):
            jpeg = make_unique(jpegs[number % len(jpegs)], number)
            member = tarfile.TarInfo(f"{synset(label)}_{number}.JPEG")
            member.size, member.mode, member.mtime = len(jpeg), 0o644, 1_300_000_000 + number
            parts += [member.tobuf(tarfile.USTAR_FORMAT), jpeg, bytes(-len(jpeg) % _BLOCK)]
            written += len(jpeg)
        with (Path(folder) / f"{synset(label)}.tar").open("wb") as tar:
            tar.writelines([*parts, bytes(2 * _BLOCK)])
    return written


def make_unique(jpeg: bytes, number: int) -> bytes:
    """Insert a comment with a number, after the segment that must be a JPEG's first."""
    place = 4 + int.from_bytes(jpeg[4:6], "big") if jpeg[2:4] == _APP0 else 2
    return b"".join((jpeg[:place], _COM, number.to_bytes(8, "big"), jpeg[place:]))
