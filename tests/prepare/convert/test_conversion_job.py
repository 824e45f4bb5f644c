"""picstore convert: every good image arrives, every bad one stands in the ledger, and no interruption shows."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import io
import json
import os
import re
import signal
import struct
import subprocess
import tarfile
import time
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from commands import PICSTORE, ledger, one_line, picstore_command, picstore_json, tree
from grids import slow_except
from pictures import by_imagemagick, missing_packages, quadrants, require, saved
from PIL import Image
from samples import jpeg, picture

import picstore
from picstore.cli.print_result import format_lines
from picstore.errors import NotADataset
from picstore.jpeg import markers
from picstore.prepare.convert.ledger import LedgerLine, Tally
from picstore.prepare.convert.row_division import MIB, DatasetShape, count_rows, row_slice

SMALL = ("--streams", "3", "--file-size", "8KiB", "--container-size", "8KiB")


@pytest.fixture(scope="module")
def pictures_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """90 pictures in 3 classes."""
    folder = tmp_path_factory.mktemp("pictures")
    for number in range(90):
        path = folder / f"class{number % 3}" / f"{number:03d}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(picture(number, width=120 + number, height=90)).save(path)
    return folder


@pytest.fixture(scope="module")
def converted(pictures_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pictures as a data set of several rows, converted by one worker without interruption."""
    out = tmp_path_factory.mktemp("out") / "train"
    picstore_command("convert", pictures_folder, out, *SMALL, "--workers", 1)
    return out


@pytest.mark.slow
def test_photographs_become_training_jpegs_with_ids_labels_and_markers(
    photographs_folder: Path, photographs: list[Path], tmp_path: Path
) -> None:
    result = picstore_json("convert", photographs_folder, tmp_path / "train")
    assert (result["inputs"], result["images"]) == (400, 400)
    assert result["status"] == {"lossless": 399, "reencoded": 1}
    assert result["reasons"] == [{"status": "reencoded", "reason": "rotated by EXIF", "count": 1}]
    assert result["outcome"]["jpeg_bytes"] < 1.015 * result["outcome"]["source_bytes"]
    dataset = picstore.Dataset(tmp_path / "train")
    assert dataset.classes == sorted({path.parent.name for path in photographs})
    by_name = {str(path.relative_to(photographs_folder)): path for path in photographs}
    ids = set()
    for record in dataset:
        path = by_name.pop(record.extra["path"])
        ids.add(record.id)
        assert dataset.classes[record.label] == path.parent.name
        with Image.open(io.BytesIO(record.jpeg)) as image, Image.open(path) as source:
            image.load()
            turned = source.getexif().get(0x0112, 1) >= 5
            assert image.size == (source.size[::-1] if turned else source.size)
            assert image.size == (record.width, record.height)
            assert turned or np.array_equal(np.asarray(image), np.asarray(source))
        header = markers.parse_header(record.jpeg)
        assert header.process == "baseline"
        assert header.restart_interval > 0
        assert header.mcus[0] % header.restart_interval == 0
        assert len(record.info.segments) == header.mcus[0] * header.mcus[1] // header.restart_interval
    assert ids == set(range(400))
    assert not by_name
    assert [line["id"] for line in ledger(tmp_path / "train")] == list(range(400))


@pytest.mark.parametrize("workers", slow_except([2], [2, 5]))
def test_any_number_of_workers_writes_the_same_bytes(
    pictures_folder: Path, converted: Path, tmp_path: Path, workers: int
) -> None:
    assert len(list(converted.glob("0000/*.pic"))) > 3, "several rows are needed to show anything"
    picstore_command("convert", pictures_folder, tmp_path / "train", *SMALL, "--workers", workers)
    assert tree(tmp_path / "train") == tree(converted)


def test_each_group_of_records_is_dealt_one_to_each_stream(converted: Path) -> None:
    dataset = picstore.Dataset(converted)
    counts = Counter((int(row["stream"]), int(row["file"])) for row in dataset.rows for _ in range(row["records"]))
    for row in {file for _, file in counts}:
        held = [counts[stream, row] for stream in range(3)]
        assert max(held) - min(held) <= 1


@pytest.mark.slow
def test_a_killed_conversion_is_no_data_set_and_resumes_to_the_same_bytes(
    pictures_folder: Path, converted: Path, tmp_path: Path
) -> None:
    out, finished = tmp_path / "train", (0, 1, 3, 6)
    command = [*PICSTORE, "convert", str(pictures_folder), str(out), *SMALL, "--workers", "2"]
    kills = 0
    for finished_rows in finished:
        process = subprocess.Popen(
            [*command, *(["--resume"] if kills else [])],
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while process.poll() is None:
            if (out / "unfinished").exists() and len(list(out.glob("unfinished/*.jsonl"))) >= finished_rows:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                kills += 1
            time.sleep(0.002)
        assert not (out / "picstore.json").exists()
        with pytest.raises(picstore.NotADataset, match="unfinished"):
            picstore.Dataset(out)
    assert kills == len(finished)
    picstore_command(*command[len(PICSTORE) :], "--resume")
    assert tree(out) == tree(converted)


@pytest.mark.parametrize("finished_rows", slow_except([1], [0, 1, 3]))
def test_a_conversion_that_lost_rows_resumes_to_the_same_bytes(
    pictures_folder: Path, converted: Path, tmp_path: Path, finished_rows: int
) -> None:
    """Every state a kill can leave: rows with fragments, a row with some files, half-written files, no manifest."""
    out = tmp_path / "train"
    picstore_command("convert", pictures_folder, out, *SMALL, "--workers", 1)
    job = {"verb": "convert"}
    manifest = picstore.Dataset(out).manifest
    rows = max(entry.file for entry in manifest.files) + 1
    job = {**manifest.provenance, "encode": manifest.encode, "rows": rows}
    (out / "unfinished").mkdir()

    (out / "unfinished" / "job.json").write_text(json.dumps(job))
    lines = (out / "ledger.jsonl").read_text().splitlines(keepends=True)
    for name in ("picstore.json", "picstore.idx", "ledger.jsonl"):
        (out / name).unlink()
    for row in range(rows):
        if row < finished_rows:
            part = row_slice(90, rows, row)
            (out / "unfinished" / f"row-{row:06d}.jsonl").write_text("".join(lines[part.start : part.stop]))
        elif row > finished_rows:
            for path in out.glob(f"*/{row:06d}.pic"):
                path.unlink()
    (out / "0001" / f"{rows - 1:06d}.pic.partial").write_bytes(b"half of a file")
    (out / "unfinished" / "row-000002.jsonl.partial").write_bytes(b'{"inp')
    with pytest.raises(picstore.NotADataset, match="unfinished convert; run the same command with --resume"):
        picstore.Dataset(out)
    picstore_command("convert", pictures_folder, out, *SMALL, "--resume")
    assert tree(out) == tree(converted)


def test_resuming_a_finished_conversion_says_so_and_changes_nothing(
    pictures_folder: Path, tmp_path: Path, converted: Path
) -> None:
    out = tmp_path / "train"
    picstore_command("convert", pictures_folder, out, *SMALL)
    again = picstore_json("convert", pictures_folder, out, *SMALL, "--resume")
    assert again["images"] == 90
    assert tree(out) == tree(converted)
    error = one_line(picstore_command("convert", pictures_folder, out, *SMALL, "--resume", "--quality", 50, code=2))
    assert "already a dataset" in error


def test_a_destination_that_is_in_use_is_never_overwritten(pictures_folder: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("precious")
    assert "not a picstore dataset" in one_line(picstore_command("convert", pictures_folder, foreign, code=1))
    assert tree(foreign).keys() == {"thesis.tex"}
    out = tmp_path / "train"
    (out / "unfinished").mkdir(parents=True)
    (out / "unfinished" / "job.json").write_text('{"verb": "convert", "inputs": 3}')
    assert "--resume" in one_line(picstore_command("convert", pictures_folder, out, code=1))
    error = one_line(picstore_command("convert", pictures_folder, out, "--resume", code=2))
    assert "was begun with" in error
    for text in ("{", "[]"):
        (out / "unfinished" / "job.json").write_text(text)
        error = one_line(picstore_command("convert", pictures_folder, out, "--resume", code=3))
        assert f"remove {out} and run the command again" in error


def test_a_second_run_on_one_destination_is_refused_while_the_first_works(
    pictures_folder: Path, tmp_path: Path
) -> None:

    out = tmp_path / "train"
    (out / "unfinished").mkdir(parents=True)
    picstore_command("convert", pictures_folder, tmp_path / "other", *SMALL)
    manifest = picstore.Dataset(tmp_path / "other").manifest

    job = {**manifest.provenance, "encode": manifest.encode, "rows": 4}
    (out / "unfinished" / "job.json").write_text(json.dumps(job))
    with (out / "unfinished" / "job.json").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        error = one_line(picstore_command("convert", pictures_folder, out, *SMALL, "--resume", code=2))
    assert "written by another process" in error


def huge_png(side: int) -> bytes:
    """A grey PNG of side × side black pixels, written without holding them."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    compress = zlib.compressobj(1)
    rows = b"".join(compress.compress(bytes(side + 1)) for _ in range(side)) + compress.flush()
    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def without_override() -> None:
    """Let root, too, be refused by file modes: drop CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH at the next exec."""
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None)
        for capability in (1, 2):
            libc.prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP


def test_bad_files_stand_in_the_ledger_with_reasons_and_good_ones_arrive(tmp_path: Path) -> None:
    folder = tmp_path / "source" / "class"
    folder.mkdir(parents=True)
    for number in range(6):
        (folder / f"good{number}.jpg").write_bytes(jpeg(number))
    (folder / "truncated.jpg").write_bytes(jpeg(7, width=200, height=200)[:-900])
    (folder / "empty.jpg").touch()
    (folder / "text.jpg").write_text("this is a text file\n" * 50)
    (folder / "huge.png").write_bytes(huge_png(20_000))
    (folder / "secret.jpg").write_bytes(jpeg(8))
    (folder / "secret.jpg").chmod(0)
    with open(os.fsencode(folder) + b"/caf\xe9.jpg", "wb") as file:  # noqa: PTH123 - a path of bytes
        file.write(jpeg(9))
    out = tmp_path / "train"
    arguments = ("convert", folder.parent, out, "--workers", 2)
    done = picstore_command(*arguments, code=3, preexec_fn=without_override)
    assert "5 of 12 inputs failed, more than --max-errors allows" in done.stderr
    lines = {line["input"]: line for line in ledger(out)}
    failed = {name.removeprefix("class/"): line["reason"] for name, line in lines.items() if line["status"] == "failed"}
    assert failed.keys() == {"truncated.jpg", "empty.jpg", "text.jpg", "huge.png", "secret.jpg"}
    assert "truncated" in failed["truncated.jpg"]
    assert "empty" in failed["empty.jpg"]
    assert "not an image" in failed["text.jpg"]
    assert "--max-pixels" in failed["huge.png"]
    assert "Permission denied" in failed["secret.jpg"]
    assert lines["class/caf\\xe9.jpg"]["status"] == "lossless"
    sizes = {name: (line["source_bytes"], line["bytes"]) for name, line in lines.items()}
    assert {sizes[f"class/{name}"] for name in failed} == {(0, 0)}
    assert sizes["class/good3.jpg"][0] == len(jpeg(3))
    assert len(picstore.Dataset(out)) == 7
    picstore_command("verify", "--decode", out)


def test_max_errors_is_a_number_or_a_share_of_the_inputs(tmp_path: Path) -> None:
    folder = tmp_path / "source"
    folder.mkdir()
    for number in range(9):
        (folder / f"{number}.jpg").write_bytes(jpeg(number))
    (folder / "bad.jpg").write_bytes(b"")
    for limit, code in (("1", 0), ("0", 3), ("10%", 0), ("9.9%", 3), ("1%", 3)):
        name = limit.replace("%", "p")
        picstore_command("convert", folder, tmp_path / name, "--max-errors", limit, code=code)
        assert len(picstore.Dataset(tmp_path / name)) == 9
    picstore_command("convert", folder, tmp_path / "x", "--max-errors", "some", code=2)


def test_a_source_without_a_readable_image_makes_no_data_set(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a.jpg").write_bytes(b"no image")
    done = picstore_command("convert", tmp_path / "source", tmp_path / "train", code=3)
    assert "none of 1 input became an image (1: not an image" in done.stderr
    with pytest.raises(NotADataset):
        picstore.Dataset(tmp_path / "train")
    assert ledger(tmp_path / "train")[0]["status"] == "failed"


SVG = """<svg xmlns="http://www.w3.org/2000/svg" width="96" height="64">
<rect width="96" height="64" fill="rgb(240,240,240)"/><rect width="48" height="32" fill="rgb(220,30,30)"/>
<rect x="48" width="48" height="32" fill="rgb(30,200,30)"/><rect y="32" width="48" height="32" fill="rgb(30,30,220)"/>
</svg>"""


def test_what_pillow_and_imagemagick_write_arrives_in_the_right_colors(tmp_path: Path) -> None:
    folder = tmp_path / "source"
    folder.mkdir()
    image = quadrants(96, 64)
    by_pillow = ["JPEG", "PNG", "WEBP", "TIFF", "BMP", "GIF", "PPM", "TGA", "JPEG2000", "ICO", "PCX", "SGI", "AVIF"]
    for kind in by_pillow:
        (folder / f"pillow.{kind.lower()}").write_bytes(saved(image, kind))
    by_magick = ["psd", "exr", "heic", "miff", "dpx", "xwd"]
    for kind in by_magick:
        # An EXR holds linear light; ImageMagick 6 writes what it is given.
        options = {"transform_colorspace": "rgb"} if kind == "exr" else {}
        (folder / f"magick.{kind}").write_bytes(by_imagemagick(image, kind, **options))
    result = picstore_json("convert", folder, tmp_path / "train", "--quality", 95)
    others = len(by_pillow) - 1 + len(by_magick)
    assert result["status"] == {"lossless": 1, "reencoded": others}, ledger(tmp_path / "train")
    assert_quadrants(tmp_path / "train", image)


def test_a_drawing_arrives_in_the_right_colors(tmp_path: Path) -> None:
    require(not missing_packages("formats"), "the extra formats")
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "drawn.svg").write_text(SVG)
    result = picstore_json("convert", tmp_path / "source", tmp_path / "train", "--quality", 95)
    assert result["status"] == {"reencoded": 1}
    assert_quadrants(tmp_path / "train", quadrants(96, 64))


def assert_quadrants(path: Path, image: Image.Image) -> None:
    """All images of a data set have the colors of this one, in the middle of its quarters."""
    for record in picstore.Dataset(path):
        with Image.open(io.BytesIO(record.jpeg)) as decoded:
            pixels = np.asarray(decoded.convert("RGB").resize((96, 64)), dtype=int)
        expected = np.asarray(image, dtype=int)
        for y, x in ((16, 24), (16, 72), (48, 24), (48, 72)):
            assert np.abs(pixels[y, x] - expected[y, x]).max() < 40, (record.extra, pixels[y, x], expected[y, x])


@pytest.mark.slow
def test_sizes_and_encoding_are_those_asked_for(tmp_path: Path) -> None:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "a.jpg").write_bytes(jpeg(1, width=640, height=480))
    (folder / "b.jpg").write_bytes(jpeg(2, width=300, height=900))
    cases = {
        "shorter:128": {(171, 128), (128, 384)},
        "longer:120": {(120, 90), (40, 120)},
        "100x50": {(100, 50)},
    }
    for number, (size, expected) in enumerate(cases.items()):
        out = tmp_path / f"train{number}"
        picstore_command("convert", folder, out, "--resize", size, "--subsampling", "444", "--quality", "75")
        records = list(picstore.Dataset(out))
        assert {(record.width, record.height) for record in records} == expected
        assert {record.info.sampling for record in records} == {"444"}
    assert "not understood" in one_line(picstore_command("convert", folder, tmp_path / "x", "--resize", "big", code=2))


def test_a_list_and_tars_convert_through_the_command_line(tmp_path: Path) -> None:

    for number in range(3):
        (tmp_path / f"{number}.jpg").write_bytes(jpeg(number))
    (tmp_path / "train.txt").write_text("0.jpg 5\n1.jpg 0\nsub/missing.jpg 1\n2.jpg 5\n")
    picstore_command("convert", tmp_path / "train.txt", tmp_path / "a", "--max-errors", 1)
    assert {record.id: record.label for record in picstore.Dataset(tmp_path / "a")} == {0: 5, 1: 0, 3: 5}
    tars = tmp_path / "tars"
    tars.mkdir()
    for name, numbers in (("n02", (0, 1)), ("n01", (2,))):
        with tarfile.open(tars / f"{name}.tar", "w") as archive:
            for number in numbers:
                archive.add(tmp_path / f"{number}.jpg", f"{name}_{number}.JPEG")
    picstore_command("convert", tars, tmp_path / "b")
    dataset = picstore.Dataset(tmp_path / "b")
    assert dataset.classes == ["n01", "n02"]
    assert {record.extra["path"]: record.label for record in dataset} == {
        "n01.tar/n01_2.JPEG": 0,
        "n02.tar/n02_0.JPEG": 1,
        "n02.tar/n02_1.JPEG": 1,
    }


def test_the_outcome_sums_up_the_ledger_and_shuffle_passes_it_on(tmp_path: Path) -> None:
    folder = tmp_path / "source"
    folder.mkdir()
    for number in range(5):
        (folder / f"{number}.jpg").write_bytes(jpeg(number))
    (folder / "5.png").write_bytes(saved(quadrants(), "PNG"))
    (folder / "6.jpg").write_bytes(b"bad")
    out = tmp_path / "train"
    result = picstore_json("convert", folder, out, "--max-errors", 1)
    records = list(picstore.Dataset(out))
    expected = {
        "lossless": 5,
        "reencoded": 1,
        "failed": 1,
        "source_bytes": sum(path.stat().st_size for path in folder.iterdir()) - 3,
        "jpeg_bytes": sum(len(record.jpeg) for record in records),
    }
    lines = ledger(out)
    assert {record.id: len(record.jpeg) for record in records} == {line["id"]: line["bytes"] for line in lines[:6]}
    assert expected["source_bytes"] == sum(line["source_bytes"] for line in lines)
    assert result["outcome"] == picstore_json("info", out)["outcome"] == expected
    assert picstore_json("convert", folder, out, "--max-errors", 1, "--resume")["outcome"] == expected
    picstore_command("shuffle", out, tmp_path / "shuffled")
    assert picstore_json("info", tmp_path / "shuffled")["outcome"] == expected
    assert "5 lossless, 1 reencoded, 1 failed" in picstore_command("info", out).stdout


def test_convert_says_what_formats_the_inputs_had(tmp_path: Path) -> None:
    folder, out = tmp_path / "source", tmp_path / "train"
    folder.mkdir()
    turned = Image.Exif()
    turned[0x0112] = 6
    files = {
        "JPEG": [jpeg(0), jpeg(1), jpeg(2), saved(quadrants(), "JPEG", exif=turned)],
        "progressive JPEG": [saved(quadrants(), "JPEG", progressive=True)],
        "CMYK JPEG": [saved(quadrants().convert("CMYK"), "JPEG")],
        "damaged JPEG": [jpeg(3)[: len(jpeg(3)) * 3 // 4] + b"\xff\xd9"],
        "PNG": [saved(quadrants(), "PNG"), saved(quadrants().convert("L"), "PNG")],
        "WEBP": [saved(quadrants(), "WEBP")],
    }
    for name, contents in files.items():
        for number, content in enumerate(contents):
            (folder / f"{name}{number}").write_bytes(content)
    (folder / "none").write_bytes(b"bad")
    result = picstore_json("convert", folder, out, "--max-errors", 1)
    lines = {line["input"]: line for line in ledger(out)}
    assert result["formats"] == [
        {
            "format": name,
            "inputs": len(files[name]),
            "lossless": 3 if name == "JPEG" else 0,
            "source_bytes": sum(map(len, files[name])),
            "jpeg_bytes": sum(lines[f"{name}{number}"]["bytes"] for number in range(len(files[name]))),
        }
        for name in ("JPEG", "PNG", "CMYK JPEG", "WEBP", "damaged JPEG", "progressive JPEG")
    ]
    said = picstore_command("convert", folder, out, "--max-errors", 1, "--resume").stdout
    assert re.search(r"\n +4 JPEG +3 lossless, 0.0 MB to 0.0 MB, [+-][\d.]+%\n +2 PNG +0 lossless", said)
    assert "reencoded: PNG" not in said
    assert "1 reencoded: rotated by EXIF" in said


def test_of_many_formats_the_rarest_are_counted_together() -> None:
    tally = Tally()
    for number in range(14):
        for _ in range(20 - number):
            tally.add_line(LedgerLine("a", 0, "reencoded", f"F{number:02d}", 1_000_000, 500_000))
    lines = format_lines(tally.formats())
    assert len(lines) == 11
    assert " ".join(lines[0].split()) == "20 F00 0 lossless, 20.0 MB to 10.0 MB, -50.0%"
    assert " ".join(lines[-1].split()) == "34 4 others 0 lossless, 34.0 MB to 17.0 MB, -50.0%"


def test_reencode_and_encoder_are_settings_that_resuming_must_share(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a.jpg").write_bytes(jpeg(1))
    result = picstore_json("convert", tmp_path / "source", tmp_path / "train", "--reencode")
    assert result["reasons"] == [{"status": "reencoded", "reason": "--reencode", "count": 1}]
    manifest = picstore.Dataset(tmp_path / "train").manifest
    assert (manifest.encode["reencode"], manifest.encode["encoder"]) == (True, "turbo")
    error = one_line(picstore_command("convert", tmp_path / "source", tmp_path / "train", "--resume", code=2))
    assert "already a dataset, made of other inputs or with other settings" in error


@pytest.mark.parametrize(
    ("number", "code", "words"),
    slow_except(
        [],
        [(signal.SIGTERM, 143, "ended by SIGTERM"), (signal.SIGINT, 130, "interrupted")],
    ),
)
def test_a_conversion_that_is_told_to_end_says_how_to_go_on(
    pictures_folder: Path, converted: Path, tmp_path: Path, number: int, code: int, words: str
) -> None:
    out = tmp_path / "train"
    command = [*PICSTORE, "convert", str(pictures_folder), str(out), *SMALL, "--workers", "1"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while not list(out.glob("unfinished/row-*.jsonl")):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code
    assert errors.splitlines()[-1] == f"picstore: {words}; continue with the same command and --resume"
    assert not (out / "picstore.json").exists()
    picstore_command(*command[len(PICSTORE) :], "--resume")
    assert tree(out) == tree(converted)


# A file system of its own, too small at first, in a namespace where an ordinary user may mount it.
FULL_DISK = """
set -u
mount -t tmpfs -o size="$1" picstore "$2" || exit 77
shift; disk=$1; shift
"$@"; echo "first $?"
ls "$disk/train" | tr '\\n' ' '
mount -o remount,size=64m "$disk"
"$@" --resume; echo "second $?"
cp -r "$disk/train" "$disk/../copy"
"""


@pytest.mark.slow
def test_a_conversion_that_a_full_disk_ends_goes_on_when_there_is_room(
    pictures_folder: Path, converted: Path, tmp_path: Path
) -> None:
    size = sum(path.stat().st_size for path in converted.rglob("*.pic")) * 2 // 3
    disk = tmp_path / "disk"
    disk.mkdir()
    command = [*PICSTORE, "convert", str(pictures_folder), str(disk / "train"), *SMALL, "--workers", "2"]
    done = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", FULL_DISK, "sh", str(size), str(disk), *command],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    if done.returncode in (1, 77):
        pytest.skip(f"no file system can be mounted here: {done.stderr}")
    assert "No space left on device; make room, then continue with the same command and --resume" in done.stderr
    assert "first 1\n" in done.stdout
    assert "picstore.json" not in done.stdout
    assert "second 0\n" in done.stdout
    assert tree(tmp_path / "copy") == tree(converted)


def processes_that_hold(path: Path) -> list[int]:
    """Processes that have a file open."""
    found = []
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if descriptor.readlink() == path:
                found.append(int(descriptor.parts[2]))
    return found


@pytest.mark.slow  # of which tests/prepare/convert/test_limits.py has the hanging image
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="finds processes by /proc")
def test_an_image_that_ends_its_process_twice_is_left_out_alone(tmp_path: Path) -> None:
    folder = tmp_path / "source"
    folder.mkdir()
    for number in range(5):
        (folder / f"{number}.jpg").write_bytes(jpeg(number))
    (folder / "3x.png").write_bytes(huge_png(16_000))  # decodes for a second: time to be killed in
    out = tmp_path / "train"
    process = subprocess.Popen([*PICSTORE, "convert", str(folder), str(out), "--max-errors", "1"], text=True)
    killed = 0
    marker = out / "unfinished" / "row-000000.at"
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            victims = processes_that_hold(marker)
            # Read after that: until a new process holds the marker, it tells where the last one was.
            if killed < 2 and victims and int.from_bytes(marker.read_bytes(), "little") == 4:
                for pid in victims:
                    os.kill(pid, signal.SIGKILL)
                    killed += 1
                while processes_that_hold(marker) == victims:
                    time.sleep(0.01)
        time.sleep(0.01)
    assert process.wait(60) == 0
    assert killed == 2
    assert [line["status"] for line in ledger(out)] == ["lossless"] * 4 + ["failed", "lossless"]
    assert "SIGKILL" in ledger(out)[4]["reason"]


def test_rows_keep_files_below_their_size_and_give_every_core_work() -> None:
    shape = DatasetShape(streams=16, file_size=256 * MIB)
    assert count_rows(10, 1000, shape) == 1
    assert count_rows(1_281_167, 110_000, shape) == 256
    assert count_rows(100_000_000, 110_000, shape) == -(-100_000_000 * 110_000 // (16 * 256 * MIB))
    assert count_rows(4000, 60_000, shape) == 4000 * 60_000 // (32 * MIB)
    for inputs, rows in ((10, 3), (7, 7), (1000, 256)):
        ids = [k for row in range(rows) for k in row_slice(inputs, rows, row)]
        assert ids == list(range(inputs))
