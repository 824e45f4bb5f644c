"""Data sets in object stores: the same bytes, batches and promises as in a folder, and a cache that nothing trusts."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import PICSTORE, one_line, picstore_command, picstore_json, tree
from engine_tasks import InlineEngine
from grids import slow_except
from PIL import Image
from programs import Program
from samples import picture
from stores import UNAVAILABLE, Proxy, request

import picstore
from picstore.errors import Damage, NotADataset, PicstoreError, Unfinished, UsageError
from picstore.prepare.convert.conversion_job import ConvertOptions, convert
from picstore.prepare.convert.row_division import DatasetShape
from picstore.prepare.image.encode_settings import EncodeSettings
from picstore.prepare.sources.open import open_source
from picstore.storage import cache as cache_module
from picstore.storage.cache import Cache
from picstore.storage.dataset import Dataset
from picstore.storage.format.container import ContainerRef
from picstore.storage.location import obstore_file
from picstore.storage.location.resolve import MANIFEST, UNFINISHED, locate
from picstore.storage.location.resumed_download import Retries

Make = Callable[..., Path]
RETRIES = obstore_file.retries
SHAPE = ("--streams", 3, "--container-size", "8KiB", "--file-size", "16KiB")


def stored(where: str) -> dict[str, str]:
    """As ``commands.tree``, of a data set in a store."""
    root = locate(where)
    return {name: hashlib.sha256((root / name).read_all(1 << 30)).hexdigest() for name, _ in sorted(root.files())}


def copied(dataset: Path, bucket: str) -> str:
    """A data set of this machine, copied into a bucket."""
    root = locate(f"{bucket}/copy")
    for path in sorted(path for path in dataset.rglob("*") if path.is_file()):
        (root / path.relative_to(dataset).as_posix()).write(path.read_bytes())
    return str(root)


def damaged(where: str, name: str, offset: int) -> None:
    """Flip a byte of an object."""
    data = bytearray((locate(where) / name).read_all(1 << 30))
    data[offset] ^= 1
    (locate(where) / name).write(bytes(data))


def held(folder: Path) -> list[Path]:
    """The entries of a cache."""
    return sorted(path for path in folder.glob("*/*") if path.is_file())


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of two classes."""
    folder = tmp_path_factory.mktemp("pictures")
    for number in range(120):
        path = folder / f"class{number % 2}" / f"{number:03d}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(picture(number, width=90, height=70)).save(path)
    return folder


@pytest.fixture(scope="module")
def converted(pictures: Path) -> Path:
    """The pictures as a data set on this machine."""
    destination = pictures.parent / f"{pictures.name}-converted"  # there is another where the module's tests are split
    picstore_command("convert", pictures, destination, *SHAPE)
    return destination


@pytest.fixture(scope="module")
def there(converted: Path, s3: str) -> str:
    """The data set in a bucket, for tests that do not change it."""
    request(f"{s3}/unchanged", "PUT")
    return copied(converted, "s3://unchanged")


# Converting, shuffling, verifying


@pytest.mark.slow
def test_convert_writes_the_same_bytes_as_into_a_folder(pictures: Path, converted: Path, bucket: str) -> None:
    done = picstore_json("convert", pictures, f"{bucket}/train", *SHAPE, "--workers", 2)
    assert (done["dataset"], done["images"]) == (f"{bucket}/train", 120)
    assert stored(f"{bucket}/train") == tree(converted)
    assert len(stored(f"{bucket}/train")) > 7  # several rows
    assert picstore_json("info", f"{bucket}/train") == picstore_json("info", converted) | {"dataset": f"{bucket}/train"}


@pytest.mark.slow
def test_a_retry_reads_only_what_failed_and_writes_the_same_bytes(
    pictures: Path, converted: Path, bucket: str, tmp_path: Path
) -> None:
    source = tmp_path / "pictures"
    shutil.copytree(pictures, source)
    good = (source / "class0/040.png").read_bytes()
    (source / "class0/040.png").write_bytes(b"damaged")
    picstore_command("convert", source, f"{bucket}/train", *SHAPE, "--workers", 2)
    for path in source.rglob("*.png"):
        path.write_bytes(b"")
    (source / "class0/040.png").write_bytes(good)
    picstore_command("convert", source, f"{bucket}/train", *SHAPE, "--workers", 2, "--retry-failed")
    assert stored(f"{bucket}/train") == tree(converted)


@pytest.mark.parametrize("method", slow_except(["transpose"], ["transpose", "uniform"]))
def test_shuffle_writes_the_same_bytes_as_into_a_folder(
    converted: Path, there: str, bucket: str, tmp_path: Path, method: str
) -> None:
    picstore_command("shuffle", converted, tmp_path / "shuffled", "--method", method)
    picstore_command("shuffle", there, f"{bucket}/shuffled", "--method", method)
    assert stored(f"{bucket}/shuffled") == tree(tmp_path / "shuffled")


def test_a_writer_writes_into_a_store(bucket: str) -> None:
    with picstore.Writer(f"{bucket}/made", classes=["a"]) as writer:
        for number in range(5):
            writer.add(picture(number), label=0, extra={"number": number})
    dataset = Dataset(f"{bucket}/made")
    assert [record.extra["number"] for record in dataset] == [dataset[k].extra["number"] for k in range(5)]
    assert {record.id for record in dataset} == set(range(5))
    with pytest.raises(UsageError, match="already a dataset"):
        picstore.Writer(f"{bucket}/made")


def test_verify_finds_the_damage_of_an_object_and_what_is_missing(converted: Path, bucket: str) -> None:
    where = copied(converted, bucket)
    assert picstore_json("verify", where)["ok"]
    damaged(where, "0001/000000.pic", 9000)
    (locate(where) / "0002/000000.pic").write(b"")
    done = picstore_json("verify", where, code=3)
    files = {finding["file"] for finding in done["damage"]}
    assert files == {"0001/000000.pic", "0002/000000.pic"}


def test_a_place_that_holds_something_else_is_not_written_to(pictures: Path, bucket: str) -> None:
    (locate(bucket) / "train/notes.txt").write(b"mine")
    done = picstore_command("convert", pictures, f"{bucket}/train", *SHAPE, code=1)
    assert "exists and is not a picstore dataset" in one_line(done)
    picstore_command("convert", pictures, f"{bucket}/train/inside", *SHAPE)


@pytest.mark.slow
def test_an_interrupted_conversion_is_unfinished_and_resumes_equal_bytes(
    pictures: Path, converted: Path, bucket: str
) -> None:
    where = f"{bucket}/train"
    unfinished = locate(where) / UNFINISHED
    command = [*PICSTORE, "convert", str(pictures), where, *map(str, SHAPE), "--workers", "1", "--quiet"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while not any(name.endswith(".jsonl") for name, _ in unfinished.files()):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors.strip()) == (
        130,
        "picstore: interrupted; continue with the same command and --resume",
    )

    ready = [name for name, _ in unfinished.files() if name.endswith(".jsonl")]
    rows = len({name[-10:] for name in tree(converted) if name.endswith(".pic")})
    assert 0 < len(ready) < rows
    assert not (locate(where) / MANIFEST).is_file()
    with pytest.raises(Unfinished, match="run the same command with --resume"):
        Dataset(where)
    assert "--resume" in one_line(picstore_command("convert", pictures, where, *SHAPE, code=1))
    picstore_command("convert", pictures, where, *SHAPE, "--resume")
    assert stored(where) == tree(converted)
    picstore_command("convert", pictures, where, *SHAPE, "--resume")  # finished: says so again


@pytest.mark.slow
def test_a_conversion_to_a_store_that_goes_away_leaves_what_resume_needs(
    pictures: Path, converted: Path, bucket: str, proxy: Proxy
) -> None:
    where = f"{bucket}/train"
    proxy.after = (12, UNAVAILABLE)
    shape = DatasetShape(streams=3, container_size=8 << 10, file_size=16 << 10)
    engine = InlineEngine(1)  # uses this process's client of the store
    options = ConvertOptions(encode=EncodeSettings(), shape=shape, workers=engine)
    with pytest.raises(PicstoreError, match="cannot be reached"):
        convert(open_source(pictures), where, options)
    proxy.after, proxy.forever = (1 << 62, ""), ""
    assert not (locate(where) / MANIFEST).is_file()
    picstore_command("convert", pictures, where, *SHAPE, "--resume")
    assert stored(where) == tree(converted)


# Reading


def test_a_place_without_a_data_set_says_so(bucket: str) -> None:
    with pytest.raises(NotADataset, match="does not exist"):
        Dataset(f"{bucket}/none")
    (locate(bucket) / "some/file").write(b"")
    with pytest.raises(NotADataset, match="is not a picstore dataset"):
        Dataset(f"{bucket}/some")
    assert "does not exist" in one_line(picstore_command("info", f"{bucket}/none", code=1))


def test_records_are_those_of_the_copy_on_this_machine(converted: Path, there: str) -> None:
    here, stored = Dataset(converted), Dataset(there)
    assert str(stored.path) == there
    for k in (0, 50, -1):
        assert (stored[k].jpeg, stored[k].extra, stored[k].label) == (here[k].jpeg, here[k].extra, here[k].label)
    assert [record.jpeg for record in stored] == [record.jpeg for record in here]
    assert [record.id for record in copy.copy(stored)] == [record.id for record in here]


def batches(loader: Any) -> list[tuple[bytes, list[int]]]:
    return [(batch.images.numpy().tobytes(), batch.ids.tolist()) for batch in loader]


def options() -> dict[str, Any]:
    return {"batch_size": 16, "transform": [picstore.RandomResizedCrop(32)], "threads": 2, "seed": 5}


@pytest.fixture(scope="module")
def expected_batches(converted: Path) -> list[tuple[bytes, list[int]]]:
    """Those of the copy on this machine."""
    loader = picstore.Loader(converted, **options(), isolate=False)
    found = batches(loader)
    loader.close()
    return found


@pytest.mark.parametrize(
    "how",
    [
        *slow_except(["isolate", "fork"], ["threads", "isolate", "fork"]),
        pytest.param("spawn", marks=pytest.mark.nightly),
    ],
)
def test_a_loader_yields_the_batches_of_the_copy_on_this_machine(
    expected_batches: list[tuple[bytes, list[int]]], there: str, how: str
) -> None:
    from torch.utils.data import DataLoader

    loader = picstore.Loader(there, **options(), isolate=how == "isolate")
    if how in ("fork", "spawn"):
        batches(loader)  # this process has used the store before it forks
        loader.close()
        loader.set_epoch(0)
        count = 1 if how == "spawn" else 2  # each imports torch
        workers = DataLoader(loader, batch_size=None, num_workers=count, multiprocessing_context=how)
        assert batches(workers) == expected_batches
    else:
        assert batches(loader) == expected_batches
    loader.close()


TRAINER = """
import hashlib, json, pathlib, sys, time, picstore
where, rank, written = sys.argv[1:]
options = {"transform": [picstore.RandomResizedCrop(32)], "threads": 1, "isolate": False, "seed": 5, "world_size": 2}
loader = picstore.Loader(where, batch_size=8, rank=int(rank), **options)
epochs = 0
while epochs < 2 or not pathlib.Path(written).exists():
    for batch in loader:
        print(json.dumps([epochs, hashlib.sha256(batch.images.numpy()).hexdigest(), batch.ids.tolist()]), flush=True)
        time.sleep(0.05)  # what they make until the shuffle has ended is made again, to compare
    epochs += 1
loader.close()
"""


@pytest.mark.slow
def test_two_trainers_get_their_batches_while_a_shuffle_writes_beside_them(
    converted: Path, there: str, bucket: str, tmp_path: Path
) -> None:
    """The trainers go on until the shuffle has ended, which begins once both have batches."""
    trainers = [Program("-c", TRAINER, there, rank, tmp_path / "written") for rank in (0, 1)]
    first = [trainer.stdout.readline() for trainer in trainers]
    picstore_command("shuffle", there, f"{bucket}/shuffled", "--workers", 2)
    assert [trainer.returncode for trainer in trainers] == [None, None]
    (tmp_path / "written").touch()
    for rank, trainer in enumerate(trainers):
        rest, errors = trainer.communicate(timeout=120)
        assert trainer.returncode == 0 and errors == ""
        found = [json.loads(line) for line in [first[rank], *rest.splitlines()]]
        loader = picstore.Loader(converted, **{**options(), "batch_size": 8}, rank=rank, world_size=2, isolate=False)
        epochs = range(found[-1][0] + 1)
        expected = [(epoch, each) for epoch in epochs for each in batches(loader)]
        assert found == [[epoch, hashlib.sha256(pixels).hexdigest(), ids] for epoch, (pixels, ids) in expected]
        loader.close()
    picstore_command("shuffle", converted, tmp_path / "shuffled")
    assert stored(f"{bucket}/shuffled") == tree(tmp_path / "shuffled")


def test_reading_waits_for_a_store_that_restarts_and_opening_does_not(
    there: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def soon(*, patient: bool) -> Retries:
        return dataclasses.replace(RETRIES(patient=patient), first=0.001, base=1.5)

    monkeypatch.setattr(obstore_file, "retries", soon)
    dataset = Dataset(there)
    proxy.failures.extend([UNAVAILABLE] * 30)
    assert dataset.containers.read(0).size > 0
    proxy.failures.extend([UNAVAILABLE] * 30)
    with pytest.raises(PicstoreError, match="cannot be reached"):
        Dataset(there)


def test_a_break_does_not_wait_for_a_store_that_is_away(
    there: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("picstore.train.pipeline.loader_process.EXIT_TIMEOUT", 0.2)
    loader = picstore.Loader(there, batch_size=2, lanes=1, budget=1, transform=[picstore.Resize((8, 8))], threads=1)
    for _ in loader:
        proxy.forever = UNAVAILABLE  # the loader's process tries for minutes
        while not proxy.refused:
            time.sleep(0.01)
        break
    assert [process.alive for process in loader._runner._processes] == [False]
    loader.close()


@pytest.mark.slow
def test_a_loader_does_not_leave_records_out_because_a_store_is_away(there: str, proxy: Proxy) -> None:
    loader = picstore.Loader(there, **options(), on_damage="skip")
    proxy.forever = UNAVAILABLE
    with pytest.raises(PicstoreError, match="cannot be reached") as caught:
        batches(loader)
    assert not isinstance(caught.value, Damage)
    assert loader.damaged == 0
    loader.close()


# The cache


def test_what_was_read_once_is_read_from_the_cache(converted: Path, there: str, proxy: Proxy, tmp_path: Path) -> None:
    expected = [record.jpeg for record in Dataset(converted)]
    dataset = Dataset(there, cache=tmp_path / "cache")
    assert [record.jpeg for record in dataset] == expected
    assert len(held(tmp_path / "cache")) == len(dataset.rows)
    proxy.requests.clear()
    assert [record.jpeg for record in dataset] == expected
    assert [record.jpeg for record in copy.copy(dataset)] == expected
    assert [request for request in proxy.requests if ".pic" in request] == []


def test_a_damaged_entry_is_thrown_away_and_read_anew(there: str, proxy: Proxy, tmp_path: Path) -> None:
    dataset = Dataset(there, cache=tmp_path / "cache")
    expected = [record.jpeg for record in dataset]
    entries = held(tmp_path / "cache")
    good = [entry.read_bytes() for entry in entries]
    for entry, offset in zip(entries, (0, 40, 100, 2000), strict=False):
        data = bytearray(entry.read_bytes())
        data[offset] ^= 255
        entry.write_bytes(data)
    entries[-1].write_bytes(b"short")
    entries[-2].unlink()
    proxy.requests.clear()
    assert [record.jpeg for record in dataset] == expected
    assert len([request for request in proxy.requests if ".pic" in request]) == 6
    assert [entry.read_bytes() for entry in entries] == good


def test_a_container_that_is_damaged_in_the_store_is_not_kept(converted: Path, bucket: str, tmp_path: Path) -> None:
    where = copied(converted, bucket)
    damaged(where, "0000/000000.pic", 9000)
    dataset = Dataset(where, cache=tmp_path / "cache")
    lost = sum(int((~dataset.containers.read(number).good).sum()) for number in range(len(dataset.rows)))
    assert lost == 1
    assert len(held(tmp_path / "cache")) == len(dataset.rows) - 1


def test_a_full_cache_holds_no_more_than_its_limit_and_keeps_what_it_has(make_dataset: Make, tmp_path: Path) -> None:
    dataset = Dataset(make_dataset(200), cache=tmp_path / "cache", cache_limit="64KiB")
    sizes = dataset.rows["size"]
    assert sizes.sum() > 3 * (64 << 10)
    first: list[Path] = []
    for _ in range(3):
        for number in np.random.default_rng(0).permutation(len(sizes)):
            dataset.containers.read(int(number))
            assert sum(path.stat().st_size for path in held(tmp_path / "cache")) <= 64 << 10
        first = first or held(tmp_path / "cache")
        assert held(tmp_path / "cache") == first
    assert sum(path.stat().st_size for path in first) >= 48 << 10


def test_what_is_read_no_more_makes_room_the_least_recently_used_first(make_dataset: Make, tmp_path: Path) -> None:
    one, other = make_dataset(60, name="one"), make_dataset(61, name="other")
    cache = tmp_path / "cache"
    for record in Dataset(one, cache=cache, cache_limit="1MiB"):
        assert record
    old = held(cache)
    total = sum(path.stat().st_size for path in old)
    hour_ago = time.time() - 3600
    for age, path in enumerate(old):
        os.utime(path, (hour_ago - age, hour_ago - age))
    dataset = Dataset(other, cache=cache, cache_limit=total + (40 << 10))
    for number in range(6):
        dataset.containers.read(number)
    left = [path for path in held(cache) if path in old]
    assert 0 < len(left) < len(old)
    assert left == old[: len(left)]  # the last were the least recently used
    for record in dataset:
        assert record
    assert sum(path.stat().st_size for path in held(cache)) <= total + (40 << 10)


def test_threads_that_fill_a_cache_at_once_stay_within_its_limit(tmp_path: Path) -> None:
    def fill(stream: int) -> None:
        for offset in range(4):
            cache.store(ContainerRef("", offset, stream), memoryview(bytes(8200)))

    for number in range(8):
        folder = tmp_path / str(number)
        cache = Cache(folder, "64KiB", "uuid", locate(tmp_path))
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(fill, range(8)))
        assert 0 < sum(path.stat().st_size for path in folder.glob("*/*")) <= 64 << 10


def test_a_smaller_limit_shrinks_a_cache(make_dataset: Make, tmp_path: Path) -> None:
    path = make_dataset(100)
    for limit in ("1MiB", "64KiB"):
        for record in Dataset(path, cache=tmp_path / "cache", cache_limit=limit):
            assert record
        held(tmp_path / "cache")[0].unlink()
    Dataset(path, cache=tmp_path / "cache", cache_limit="64KiB").containers.read(0)
    assert sum(path.stat().st_size for path in held(tmp_path / "cache")) <= 64 << 10


def test_old_files_that_a_killed_process_left_half_written_are_removed(make_dataset: Make, tmp_path: Path) -> None:
    dataset = Dataset(make_dataset(), cache=tmp_path / "cache")
    (folder,) = (tmp_path / "cache").glob(f"{dataset.uuid}-*")
    (folder / "old.partial").write_bytes(b"x")
    (folder / "new.partial").write_bytes(b"x")
    os.utime(folder / "old.partial", (1, 1))
    dataset.containers.read(0)
    assert [path.name for path in held(tmp_path / "cache") if path.suffix == ".partial"] == ["new.partial"]


def test_a_cache_that_cannot_be_written_or_was_cleared_costs_only_speed(
    make_dataset: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    dataset = Dataset(make_dataset(), cache=tmp_path / "cache")
    expected = [record.id for record in Dataset(dataset.path)]
    with monkeypatch.context() as patched:
        patched.setattr(cache_module.tempfile, "mkstemp", full)
        assert [record.id for record in dataset] == expected
    assert len([record for record in caplog.records if "No space left" in record.message]) == 1
    next((tmp_path / "cache").glob(f"{dataset.uuid}-*")).rmdir()
    assert [record.id for record in dataset] == expected
    assert len(held(tmp_path / "cache")) == len(dataset.rows)
    with pytest.raises(UsageError, match="cannot be used"):
        Dataset(dataset.path, cache=held(tmp_path / "cache")[0])
    with pytest.raises(UsageError, match="is not a size"):
        Dataset(dataset.path, cache=tmp_path / "cache", cache_limit="much")


@pytest.mark.parametrize("isolate", slow_except([False], [False, True]))
def test_a_loader_fills_a_cache_and_reads_from_it(
    expected_batches: list[tuple[bytes, list[int]]], there: str, proxy: Proxy, tmp_path: Path, isolate: bool
) -> None:
    cache = tmp_path / "cache"
    for _ in range(2):
        proxy.requests.clear()
        loader = picstore.Loader(there, **options(), isolate=isolate, cache=cache, cache_limit="1MiB")
        assert batches(loader) == expected_batches
        loader.close()
    assert len(held(cache)) == len(loader.dataset.rows)
    assert [request for request in proxy.requests if ".pic" in request] == []


def test_a_mux_reads_from_stores_through_a_cache(converted: Path, there: str, tmp_path: Path) -> None:
    config = tmp_path / "mux.toml"
    sources = "".join(f'[[source]]\npath = "{path}"\ncount = {count}\n' for path, count in ((there, 5), (converted, 3)))
    config.write_text(f'cache = "{tmp_path / "cache"}"\ncache_limit = "2MiB"\nepoch_batches = 4\n{sources}')
    mux = picstore.DataMux(config, transform=[picstore.CenterCrop(32)])
    assert [len(batch.labels) for batch in mux] == [8] * 4
    mux.close()
    folders = sorted({path.parent.name for path in held(tmp_path / "cache")})
    assert [name.rpartition("-")[0] for name in folders] == [Dataset(converted).uuid] * 2  # one for each location


@pytest.mark.slow
def test_bench_takes_a_url_and_a_cache(there: str, tmp_path: Path) -> None:
    cache = ("--cache", tmp_path / "cache", "--cache-limit", "1MiB")
    report = picstore_json("bench", there, "--images", 64, "--batch-size", 16, *cache)
    assert report["images"] == 64
    assert held(tmp_path / "cache")


@pytest.mark.slow
def test_processes_share_a_cache(converted: Path, there: str, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    script = f"""
        import hashlib, sys
        from picstore import Dataset
        digest = hashlib.sha256()
        for _ in range(4):
            for record in Dataset({there!r}, cache={str(cache)!r}, cache_limit=sys.argv[1]):
                digest.update(record.jpeg)
        print(digest.hexdigest())
    """
    expected = hashlib.sha256()
    for _ in range(4):
        for record in Dataset(converted):
            expected.update(record.jpeg)
    for limit in ("100KiB", "10MiB"):
        command = [sys.executable, "-c", textwrap.dedent(script), limit]
        processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        outputs = [process.communicate(timeout=120)[0].strip() for process in processes]
        assert outputs == [expected.hexdigest()] * 2
        total = sum(path.stat().st_size for path in held(cache))
        assert total <= 120 << 10 if limit == "100KiB" else len(held(cache)) == len(Dataset(there).rows)


def test_entries_of_the_future_are_not_kept_for_ever(make_dataset: Make, tmp_path: Path) -> None:
    one, other = make_dataset(60, name="one"), make_dataset(61, name="other")
    cache = tmp_path / "cache"
    assert len(list(Dataset(one, cache=cache, cache_limit="1MiB"))) == 60
    old, next_year = held(cache), time.time() + 3e7  # the clock was wrong, and is set back now
    for path in old:
        os.utime(path, (next_year, next_year))
    (old[0].parent / "left.partial").write_bytes(b"x")
    os.utime(old[0].parent / "left.partial", (next_year, next_year))
    total = sum(path.stat().st_size for path in old)
    assert len(list(Dataset(other, cache=cache, cache_limit=total))) == 61
    left = set(held(cache))
    assert len(left & set(old)) < len(old) and left - set(old)
    assert not (old[0].parent / "left.partial").exists()
