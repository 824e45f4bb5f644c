"""Sources: which inputs there are, in which order, with which labels."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from pictures import require
from samples import jpeg

from picstore.errors import Damage, ImageError, NotADataset, UsageError
from picstore.prepare.sources.open import Input, open_source, read_input
from picstore.prepare.sources.tars import members_of


def put(path: Path, data: bytes = b"image") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def names(listing: object) -> list[tuple[str, int]]:
    return [(source.name, source.label) for source in listing.inputs]


def test_sub_folders_are_classes_in_sorted_order_and_deeper_folders_belong_to_them(tmp_path: Path) -> None:
    for name in ("zebra/1.png", "ant/b/2.jpg", "ant/a.jpg", "ant/.hidden.jpg", "README.md"):
        put(tmp_path / name)
    (tmp_path / "empty").mkdir()
    listing = open_source(tmp_path)
    assert listing.kind == "folder"
    assert listing.classes == ["ant", "empty", "zebra"]
    assert names(listing) == [("ant/a.jpg", 0), ("ant/b/2.jpg", 0), ("zebra/1.png", 2)]
    assert listing.remarks == [f"1 file directly in {tmp_path}, in no class folder: left out"]


def test_a_folder_without_sub_folders_is_one_class_with_label_0(tmp_path: Path) -> None:
    put(tmp_path / "flat" / "b.jpg")
    put(tmp_path / "flat" / "a.whatever")
    listing = open_source(tmp_path / "flat")
    assert listing.classes == ["flat"]
    assert names(listing) == [("a.whatever", 0), ("b.jpg", 0)]


def test_a_name_that_is_not_utf_8_is_listed_and_can_be_read(tmp_path: Path) -> None:
    folder = tmp_path / "class"
    folder.mkdir()
    with open(os.fsencode(folder) + b"/caf\xe9.jpg", "wb") as file:  # noqa: PTH123 - a path of bytes
        file.write(b"bytes")
    (only,) = open_source(tmp_path).inputs
    assert only.name == "class/caf\\xe9.jpg"
    assert read_input(only) == b"bytes"


def test_links_are_followed_and_a_loop_of_links_ends(tmp_path: Path) -> None:
    put(tmp_path / "class" / "a.jpg")
    (tmp_path / "class" / "again").symlink_to(tmp_path / "class")
    (tmp_path / "class" / "b.jpg").symlink_to(tmp_path / "class" / "a.jpg")
    (tmp_path / "class" / "gone.jpg").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "class" / "pipe")
    listing = open_source(tmp_path)
    assert [name for name, _ in names(listing)] == ["class/a.jpg", "class/b.jpg", "class/gone.jpg", "class/pipe"]
    for source, reason in zip(listing.inputs[2:], ("a link to nothing", "not a regular file"), strict=True):
        with pytest.raises(ImageError, match=reason):
            read_input(source)


def test_a_file_without_read_permission_gives_the_systems_reason(tmp_path: Path) -> None:
    secret = put(tmp_path / "class" / "secret.jpg")
    secret.chmod(0)
    (source,) = open_source(tmp_path).inputs
    as_root = os.geteuid() == 0
    if as_root:
        for folder in (tmp_path, *tmp_path.parents):
            if folder.stat().st_mode & 0o011 != 0o011:
                folder.chmod(folder.stat().st_mode | 0o011)
            if folder == Path("/tmp"):  # noqa: S108
                break
        os.seteuid(65534)
    try:
        with pytest.raises(ImageError, match=r"cannot be read: Permission denied"):
            read_input(source)
    finally:
        if as_root:
            os.seteuid(0)


def test_a_list_gives_paths_and_labels_relative_to_root(tmp_path: Path) -> None:
    put(tmp_path / "photos" / "with space.jpg", b"1")
    put(tmp_path / "photos" / "b.jpg", b"2")
    text = "photos/with space.jpg 7\r\n\nphotos/b.jpg\t-1\nmissing.jpg 2\n"
    listing = open_source(put(tmp_path / "train.txt", text.encode()))
    assert listing.kind == "list"
    assert names(listing) == [("photos/with space.jpg", 7), ("photos/b.jpg", -1), ("missing.jpg", 2)]
    assert [read_input(source) for source in listing.inputs[:2]] == [b"1", b"2"]
    with pytest.raises(ImageError, match="No such file"):
        read_input(listing.inputs[2])
    elsewhere = open_source(put(tmp_path / "x" / "l.txt", b"with space.jpg 0"), root=tmp_path / "photos")
    assert read_input(elsewhere.inputs[0]) == b"1"


@pytest.mark.parametrize("line", ["nolabel.jpg", "a.jpg one", "a.jpg 1.5"])
def test_a_line_that_is_no_path_and_label_is_refused_with_its_number(tmp_path: Path, line: str) -> None:
    path = put(tmp_path / "list.txt", f"ok.jpg 1\n{line}\n".encode())
    with pytest.raises(UsageError, match="line 2"):
        open_source(path)


def make_tar(path: Path, members: dict[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


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


def test_an_option_of_another_source_is_refused(tmp_path: Path) -> None:
    put(tmp_path / "class" / "a.jpg")
    with pytest.raises(UsageError, match="--root"):
        open_source(tmp_path, root=tmp_path)
    with pytest.raises(UsageError, match="--synsets"):
        open_source(tmp_path, synsets=tmp_path)
    with pytest.raises(UsageError, match="not a folder"):
        open_source(put(tmp_path / "file.txt", b"a 1"), kind="folder")


def test_a_source_that_is_missing_or_empty_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotADataset, match="does not exist"):
        open_source(tmp_path / "nowhere")
    with pytest.raises(NotADataset, match="holds no images"):
        open_source(tmp_path)


def test_an_input_larger_than_the_limit_is_not_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("picstore.prepare.sources.inputs.MAX_INPUT", 10)
    with pytest.raises(ImageError, match="larger than"):
        read_input(Input("a", 0, str(put(tmp_path / "a", bytes(11)))))
    assert read_input(Input("b", 0, str(put(tmp_path / "b", bytes(10))))) == bytes(10)


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
