"""storage.manifest_writer: the copy is never older than the manifest, and brings every damaged manifest back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from commands import picstore_command, tree
from grids import slow_except
from samples import jpeg

import picstore
from picstore.errors import NotADataset, Unfinished
from picstore.prepare.upkeep.repair_dataset import repair
from picstore.prepare.upkeep.shuffled_copy import shuffle
from picstore.prepare.upkeep.verify_dataset import verify
from picstore.storage.location.local import Folder
from picstore.storage.location.resolve import COPY, MANIFEST, Location, locate
from picstore.storage.manifest import read_manifest
from picstore.storage.manifest_writer import DAMAGED, restore_manifest

Make = Callable[..., Path]


class Killed(BaseException):
    """Stands for the end of the process."""


@pytest.fixture
def killed_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Make the next write of a file of some name end the process instead; an empty name makes all writes work."""
    write, write_new = Folder.write, Folder.write_new
    stop = ""

    def refuse(self: Folder, data: bytes) -> None:
        if self.name == stop:
            raise Killed
        write(self, data)

    def refuse_new(self: Folder, data: bytes) -> bool:
        if self.name == stop:
            raise Killed
        return write_new(self, data)

    def arm(name: str) -> None:
        nonlocal stop
        stop = name

    monkeypatch.setattr(Folder, "write", refuse)
    monkeypatch.setattr(Folder, "write_new", refuse_new)
    return arm


def same(root: str | Path) -> bool:
    """Whether the copy has the bytes of the manifest."""
    location: Location = locate(root)
    return (location / COPY).read_all(1 << 30) == (location / MANIFEST).read_all(1 << 30)


@pytest.mark.parametrize("step", slow_except([13], [3, 13], mark=pytest.mark.nightly))
def test_every_flipped_bit_of_the_manifest_is_brought_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    with picstore.Writer(tmp_path / "d", classes=["a", "käse"]) as writer:
        writer.add(jpeg(0), label=1)
    path, root = tmp_path / "d" / MANIFEST, locate(tmp_path / "d")
    sound = path.read_bytes()
    monkeypatch.setattr(Folder, "write", lambda self, data: self.path.write_bytes(data))  # 5,000 times without syncing
    for bit in range(0, 8 * len(sound), step):
        damaged = bytearray(sound)
        damaged[bit >> 3] ^= 1 << (bit & 7)
        path.write_bytes(damaged)
        restored = restore_manifest(root)
        if restored == MANIFEST:
            assert path.read_bytes() == sound
            assert (path.parent / DAMAGED).read_bytes() == damaged
        else:  # a letter of a \u escape, now a capital
            assert read_manifest(root).classes == ("a", "käse")
            assert damaged.lower() == sound.lower()
            path.write_bytes(sound)
    assert verify(tmp_path / "d", workers=1)[1] == []


def test_a_missing_manifest_is_never_replaced_in_silence(make_dataset: Make) -> None:
    root = make_dataset(10)
    before = tree(root)
    (root / MANIFEST).unlink()
    with pytest.raises(NotADataset, match="`picstore repair` restores it from picstore"):
        picstore.Dataset(root)
    assert not (root / MANIFEST).exists()
    assert restore_manifest(locate(root)) == MANIFEST
    assert tree(root) == before
    assert restore_manifest(locate(root)) is None


def test_every_edit_keeps_the_copy_equal(make_dataset: Make, tmp_path: Path) -> None:
    root = make_dataset(20, classes=2)
    assert same(root)
    picstore.Dataset(root).without([3]).save()
    assert same(root)
    picstore.Dataset(root).with_columns({"caption": ["x"] * 19}).save()
    assert same(root)
    (tmp_path / "more" / "class0").mkdir(parents=True)
    (tmp_path / "more" / "class0" / "a.jpg").write_bytes(jpeg(1))
    picstore_command("convert", tmp_path / "more", root, "--append")
    assert same(root)
    assert len(picstore.Dataset(root)) == 20
    shuffle(root, tmp_path / "shuffled", seed=0, method="uniform", workers=1)
    assert same(tmp_path / "shuffled")
    (root / MANIFEST).unlink()
    repair(root)
    assert same(root)
    assert verify(root, workers=1) == (read_manifest(root), [], [])


def test_shards_that_are_merged_and_a_conversion_tried_again_have_a_copy(tmp_path: Path) -> None:
    for number in range(12):
        path = tmp_path / "in" / f"class{number % 2}" / f"{number:02d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(number))
    bad = tmp_path / "in" / "class0" / "bad.jpg"
    bad.write_bytes(b"bad")
    out = tmp_path / "out"
    options = ("--streams", 2, "--container-size", "8KiB", "--max-errors", 1)
    for shard in ("0/2", "1/2"):
        picstore_command("convert", tmp_path / "in", out, *options, "--shard", shard)
    assert not (out / COPY).exists()
    picstore_command("merge", out, code=3)  # one failed
    assert same(out)
    before = read_manifest(out)
    bad.write_bytes(jpeg(50))
    picstore_command("convert", tmp_path / "in", out, *options, "--retry-failed")
    assert same(out)
    assert read_manifest(out).images == before.images + 1


def test_a_copy_alone_never_finishes_what_was_interrupted(tmp_path: Path, killed_at: Callable[[str], None]) -> None:
    writer = picstore.Writer(tmp_path / "d")
    writer.add(jpeg(0))
    for name in (COPY, MANIFEST):
        killed_at(name)
        with pytest.raises(Killed):
            writer.close()
        assert (tmp_path / "d" / COPY).exists() == (name == MANIFEST)
        assert not (tmp_path / "d" / MANIFEST).exists()
        for use in (picstore.Dataset, repair):
            with pytest.raises(Unfinished, match="unfinished Writer"):
                use(tmp_path / "d")
    killed_at("")
    writer.close()
    assert same(tmp_path / "d")


def test_a_conversion_interrupted_between_copy_and_manifest_is_resumed(
    tmp_path: Path, killed_at: Callable[[str], None]
) -> None:
    from picstore.prepare.convert.conversion_job import ConvertOptions, convert
    from picstore.prepare.convert.row_division import DatasetShape
    from picstore.prepare.image.encode_settings import EncodeSettings
    from picstore.prepare.sources.folder import list_folder

    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jpg").write_bytes(jpeg(0))

    def run(name: str, *, resume: bool) -> None:
        listing = list_folder(locate(tmp_path / "in"))
        options = ConvertOptions(encode=EncodeSettings(), shape=DatasetShape(streams=1), workers=1)
        convert(listing, tmp_path / name, options, resume=resume)

    killed_at(MANIFEST)
    with pytest.raises(Killed):
        run("out", resume=False)
    assert (tmp_path / "out" / COPY).exists()
    with pytest.raises(Unfinished, match="--resume"):
        repair(tmp_path / "out")
    killed_at("")
    run("out", resume=True)
    run("other", resume=False)
    assert tree(tmp_path / "out") == tree(tmp_path / "other")


def test_the_copy_is_never_older_than_the_manifest(make_dataset: Make, killed_at: Callable[[str], None]) -> None:
    """An edit is interrupted at each of its writes; then the manifest is lost, and deleted records stay deleted."""
    root = make_dataset(20)
    first = picstore.Dataset(root).without([1]).save()
    for name in (f"{first.uuid}.json", COPY, MANIFEST):
        killed_at(name)
        with pytest.raises(Killed):
            first.without([2]).save()
        killed_at("")
        assert picstore.Dataset(root).uuid == first.uuid
    found = verify(root, workers=1)[1]
    assert [(finding.file, finding.records_lost) for finding in found] == [(COPY, 0)]
    newer = (root / COPY).read_bytes()
    assert repair(root).copy
    assert same(root)
    assert picstore.Dataset(root).uuid == first.uuid
    (root / COPY).write_bytes(newer)
    (root / MANIFEST).unlink()
    assert repair(root).manifest
    assert not {1, 2} & set(picstore.Dataset(root).ids.tolist())
    assert verify(root, workers=1)[1] == []


def test_an_append_that_was_given_up_does_not_hinder_manifest_restoring(make_dataset: Make) -> None:
    root = make_dataset(10)
    (root / "unfinished").mkdir()
    (root / "unfinished" / "job.json").write_text('{"verb": "append"}')
    (root / MANIFEST).unlink()
    with pytest.raises(NotADataset, match="`picstore repair`"):
        picstore.Dataset(root)
    assert repair(root).images == 10


def test_the_copy_works_in_a_store(tmp_path: Path, bucket: str) -> None:
    root = locate(f"{bucket}/copied")
    with picstore.Writer(root) as writer:
        for number in range(4):
            writer.add(jpeg(number), label=0)
    assert same(str(root))
    picstore_command("delete", root, "--id", 2)
    assert same(str(root))
    sound = (root / MANIFEST).read_all(1 << 30)
    (root / MANIFEST).write(sound[:-30])
    with pytest.raises(picstore.Damage, match="`picstore repair` restores it"):
        picstore.Dataset(str(root))
    picstore_command("repair", root)
    assert (root / MANIFEST).read_all(1 << 30) == sound
    assert (root / DAMAGED).read_all(1 << 30) == sound[:-30]
    (root / MANIFEST).remove()
    picstore_command("repair", root)
    assert (root / MANIFEST).read_all(1 << 30) == sound
