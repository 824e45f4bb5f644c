"""Members of tars, compared with tarfile."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pictures import require
from samples import jpeg
from source_files import make_tar, names, put

from picstore.errors import Damage, ImageError, UsageError
from picstore.prepare.sources import imagenet_tars
from picstore.prepare.sources.open import open_source, read_input
from picstore.prepare.sources.tar_members import Member, members_of


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


def test_imagenet_tars_are_read_in_place_with_labels_by_synset(tmp_path: Path) -> None:
    make_tar(tmp_path / "n02.tar", {"n02_1.JPEG": b"two-one", "n02_2.JPEG": b"two-two"})
    make_tar(tmp_path / "n01.tar", {"n01_9.JPEG": b"one-nine"})
    listing = open_source(tmp_path)
    assert listing.kind == "imagenet"
    assert listing.classes == ["n01", "n02"]
    assert names(listing) == [("n01.tar/n01_9.JPEG", 0), ("n02.tar/n02_1.JPEG", 1), ("n02.tar/n02_2.JPEG", 1)]
    assert [read_input(source) for source in listing.inputs] == [b"one-nine", b"two-one", b"two-two"]
    order = put(tmp_path / "synsets.txt", b"n02 goldfish\nn00 none\nn01 tench\n")
    ordered = open_source(tmp_path, synsets=order)
    assert ordered.classes == ["n02", "n00", "n01"]
    assert [label for _, label in names(ordered)] == [2, 0, 0]


def test_tars_that_are_read_side_by_side_stay_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for tar in range(9):
        make_tar(tmp_path / f"n{tar}.tar", {f"{k}.JPEG": b"x" for k in range(10 - tar)})
    read_members = imagenet_tars.members_of

    def wait_less_each_time(tar: str) -> Iterator[Member]:
        time.sleep(0.01 * (9 - int(Path(tar).stem[1:])))
        return read_members(tar)

    monkeypatch.setattr(imagenet_tars, "members_of", wait_less_each_time)
    expected = [(f"n{tar}.tar/{k}.JPEG", tar) for tar in range(9) for k in range(10 - tar)]
    assert names(open_source(tmp_path, kind="imagenet")) == expected


def test_a_tar_that_breaks_off_keeps_its_whole_members_and_says_so(tmp_path: Path) -> None:
    make_tar(tmp_path / "n01.tar", {"a.JPEG": jpeg(1), "b.JPEG": jpeg(2)})
    data = (tmp_path / "n01.tar").read_bytes()
    (tmp_path / "n01.tar").write_bytes(data[: 512 + len(jpeg(1)) + 300])
    listing = open_source(tmp_path)
    assert read_input(listing.inputs[0]) == jpeg(1)
    with pytest.raises(ImageError, match=r"damaged|truncated"):
        read_input(listing.inputs[-1])


def test_synsets_that_do_not_name_every_tar_are_refused(tmp_path: Path) -> None:
    make_tar(tmp_path / "n01.tar", {"a.JPEG": b"x"})
    with pytest.raises(UsageError, match=r"n01\.tar"):
        open_source(tmp_path, synsets=put(tmp_path / "synsets.txt", b"n02\n"))
