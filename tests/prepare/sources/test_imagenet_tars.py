"""Members of tars, compared with tarfile."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from pictures import require
from source_files import make_tar, put

from picstore.errors import Damage
from picstore.prepare.sources.imagenet_tars import members_of


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_tars_of_every_form_are_listed_as_tarfile_lists_them(tmp_path: Path, form: int) -> None:
    names = ["a.jpg", "folder/b.jpg", "p" * 90 + "/" + "n" * 60 + ".jpg", "ä.jpg", "empty.jpg"]
    if form != tarfile.USTAR_FORMAT:
        names += ["deep/" * 60 + "c.jpg", "caf\udce9.jpg"]
    with tarfile.open(tmp_path / "a.tar", "w", format=form, errors="surrogateescape") as archive:
        for number, name in enumerate(names):
            info = tarfile.TarInfo(name)
            info.size = 0 if name == "empty.jpg" else 700 * number + 1
            archive.addfile(info, io.BytesIO(bytes(info.size)))
            for kind in (tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE):
                other = tarfile.TarInfo(f"{number}-{kind!r}")
                other.type, other.linkname = kind, "a.jpg"
                archive.addfile(other)
    with tarfile.open(tmp_path / "a.tar", errors="surrogateescape") as archive:
        expected = [(m.name, m.offset_data, m.size) for m in archive if m.isfile()]
    assert len(expected) == len(names)
    assert [(m.name, m.offset_data, m.size) for m in members_of(str(tmp_path / "a.tar"))] == expected


def test_a_tar_of_gnu_tar_is_listed_as_tarfile_lists_it(tmp_path: Path) -> None:
    require(shutil.which("tar"), "tar")
    for name in ("one.jpg", "deep/" * 30 + "two.jpg", "d/" + "x" * 150 + ".jpg"):
        put(tmp_path / "tree" / name, name.encode())
    for form in ("gnu", "ustar", "posix", "v7"):
        command = ["tar", "-C", str(tmp_path / "tree"), f"--format={form}", "-cf", str(tmp_path / f"{form}.tar"), "."]
        subprocess.run(command, check=form in ("gnu", "posix"), capture_output=True)
        with tarfile.open(tmp_path / f"{form}.tar") as archive:
            expected = [(m.name, m.offset_data, m.size) for m in archive if m.isfile()]
        assert [(m.name, m.offset_data, m.size) for m in members_of(str(tmp_path / f"{form}.tar"))] == expected


def test_a_tar_with_a_damaged_header_is_damaged_from_there(tmp_path: Path) -> None:
    make_tar(tmp_path / "a.tar", {"a.jpg": b"1", "b.jpg": b"2", "c.jpg": b"3"})
    data = bytearray((tmp_path / "a.tar").read_bytes())
    for at in (1024 + 3, 1024 + 130, 1024 + 150, 1024 + 156):
        damaged = bytearray(data)
        damaged[at] ^= 1
        found = members_of(str(put(tmp_path / "b.tar", bytes(damaged))))
        assert next(found).name == "a.jpg"
        with pytest.raises(Damage, match="no member and no end at byte 1024"):
            next(found)
