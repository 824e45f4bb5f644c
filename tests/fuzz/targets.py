"""Targets of the fuzzers: for each one its seeds, its mutator, and a check that every input must pass.

A check returns whether the input was accepted. It raises for anything but an error of picstore's: another exception, or
a result that differs from libjpeg's, from a second reader's, or from itself after writing and reading.
"""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch
from zlib import crc32

import coefficients
import files
import numpy as np
import simplejpeg
from fuzz_jpeg import Exercise, encode, exact_workspace
from guard_pages import GuardedNumpy
from jpeg_streams import jpeg, mutate_jpeg
from mutate import mutate_bytes, mutate_document, mutate_json
from PIL import Image

from picstore.errors import Damage, ImageError, PicstoreError
from picstore.jpeg import cut as cutting
from picstore.jpeg import headers, markers, perceptual_hash, transcode
from picstore.jpeg.decoder import box as boxes
from picstore.jpeg.decoder import decode_baseline as decoding
from picstore.prepare.convert import ledger
from picstore.prepare.image.encode_settings import EncodeSettings
from picstore.prepare.image.training_jpeg import make_training_jpeg
from picstore.storage import dataset_reader, partial_reader
from picstore.storage.annotations import read_objects
from picstore.storage.edits.edit_entries import parse_npy_file
from picstore.storage.edits.live_records import LiveRecords
from picstore.storage.format.checksum import crc32c
from picstore.storage.format.segment_table import entry_points, row_ends
from picstore.storage.location.local import Folder
from picstore.storage.manifest import manifest_file, parse_manifest

CORPUS = Path(__file__).parent / "corpus"


class Difference(AssertionError):
    """A result differs from what another reader makes of the same input."""


@dataclass(frozen=True)
class Target:
    """A function under test.

    Attributes:
        share: part of the inputs of a long run, by what one costs.
        check: takes an input; returns whether it was accepted.
        mutate: makes an input of another.
        make: makes an input of nothing; None to mutate the corpus only.
    """

    share: int
    check: Callable[[bytes], bool]
    mutate: Callable[[bytes, Random], bytes]
    make: Callable[[Random], bytes] | None = None

    def generate(self, seeds: list[bytes], sound: list[bytes], rng: Random) -> bytes:
        """Make an input: a new one, or a seed changed in one to four ways, in most cases one that is accepted."""
        if self.make is not None and rng.random() < 0.7:
            return self.make(rng)
        data = rng.choice(sound if sound and rng.random() < 0.8 else seeds)
        for _ in range(rng.choice((1, 1, 2, 4))):
            data = self.mutate(data, rng)
        return data


def accepted(call: Callable[..., Any], *arguments: Any) -> bool:
    """Call a function; False for an error of picstore's."""
    try:
        call(*arguments)
    except PicstoreError:
        return False
    return True


@cache
def scratch() -> Path:
    """A folder for files of inputs, in memory where the machine has some."""
    memory = Path("/dev/shm")  # noqa: S108 - in a folder of its own
    made = tempfile.TemporaryDirectory(prefix="fuzz-", dir=memory if memory.is_dir() else None)
    _FOLDERS.append(made)
    return Path(made.name)


_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []  # removed when the process ends

# --- The format ---


def check_manifest(raw: bytes) -> bool:
    """Parse a manifest; one that holds is the same after writing and reading."""
    try:
        manifest = parse_manifest(raw, Folder(Path("x/picstore.json")))
    except PicstoreError:
        return False
    if parse_manifest(manifest_file(manifest), Folder(Path("x/picstore.json"))) != manifest:
        raise Difference("a manifest changes when it is written and read")
    return True


def mutate_manifest(raw: bytes, rng: Random) -> bytes:
    changed = mutate_document(raw, rng)
    try:
        return files.sealed_json(json.loads(changed)) if rng.random() < 0.9 else changed
    except (ValueError, AttributeError, RecursionError):
        return changed


def check_array(raw: bytes) -> bool:
    """Parse an array of an edit, and take it for tombstones."""
    try:
        array = parse_npy_file(raw, file="x")
    except PicstoreError:
        return False
    return accepted(lambda: LiveRecords.from_deleted([3, 1, 1 << 20], array, file="x")) or array.size == 0


def check_dataset(data: bytes) -> bool:
    """Read a data set in every way."""
    import picstore
    from picstore.storage.format.container_index import read_summary
    from picstore.storage.format.read_container import recover_containers

    root = scratch() / "set"
    found = files.write(root, data)
    for name in found:
        if name.endswith(".pic"):
            stream, file = int(name[:4]), int(name[5:11])
            accepted(lambda a, b: read_summary(root, stream=a, file=b), stream, file)
            for fields in ((), ("mask",)):
                accepted(
                    lambda a, b, c: list(recover_containers(root, stream=a, file=b, fields=c)), stream, file, fields
                )
    try:
        dataset = picstore.Dataset(root)
    except PicstoreError:
        return False
    accepted(lambda: [(record.info, record.extra) for record in dataset])
    accepted(lambda: dataset.ids)
    for k in range(min(len(dataset), 20)):
        accepted(lambda at: dataset[at].columns, k)
    for number in range(len(dataset.rows)):
        accepted(dataset.entries, number)
        accepted(_check_rows, dataset, number)
        accepted(_check_segments, dataset, number)
    for name in dataset.columns:
        accepted(lambda column: dataset.column(column).take(np.arange(20)), name)
    return True


def _middle_rows(entries: Any) -> Any:
    return np.tile([[1, 3]], (len(entries), 1))


def _check_rows(dataset: Any, number: int) -> None:
    """Read a container in part; what is good both ways must be the same bytes."""
    with patch.object(dataset_reader, "MIN_MEAN", 0), patch.object(partial_reader, "_NEAR", 0):
        (part,) = dataset.containers.read_in_part(
            [number],
            lambda entries: np.tile([[1, 3]], (len(entries), 1)),
            mask=dataset.live.mask,
            attachments=True,
        )
    if isinstance(part, Damage):
        raise part
    whole = dataset.containers.read(number)
    live = dataset.live.mask(number)
    for k in np.flatnonzero(part.good & whole.good & live).tolist():
        if part.attachments(k) != whole.attachments(k):
            raise Difference("attachments read in part differ from those of the whole container")
        stored, ends = whole.jpeg(k), row_ends(whole.info(k), len(whole.jpeg(k)))
        in_rows = ends is not None and len(ends) > 3 and part.held["height"][k] < whole.index["height"][k]
        if part.jpeg(k) != (bytes(stored[: ends[0]]) + bytes(stored[ends[1] : ends[3]]) if in_rows else stored):
            raise Difference("rows of tiles read in part differ from those of the whole container")


def _check_segments(dataset: Any, number: int) -> None:
    """Copy records out of a container, and make the entry points that a copy of the data set would store."""
    whole = dataset.containers.read(number)
    good = np.flatnonzero(whole.good & dataset.live.mask(number))
    if not len(good):
        return
    copied = whole.extract(good, attachments=False)
    for k, record in enumerate(good.tolist()):
        one, other = whole.info(record), copied.info(k)
        if not all(np.array_equal(getattr(one, name), getattr(other, name)) for name in ("segments", "entry_points")):
            raise Difference("segments of a record copied out of its container differ")
        entry_points(whole.jpeg(record), one)


def check_mux(data: bytes) -> bool:
    """Train on a data set by one of two ranks of a mux, whose batches span epochs, and by single batches.

    Crops of containers read in part are those of whole ones, but where damage is found.
    """
    import picstore

    root = scratch() / "mux"
    files.write(root, data)
    try:
        dataset = picstore.Dataset(root)
    except PicstoreError:
        return False
    batches = [_mux_batches(dataset, crc32(data) % 2, least) for least in (0, 1 << 40)]
    if None not in batches and batches[0] != batches[1]:
        raise Difference("batches of containers read in part differ from those of whole containers")
    return True


def _mux_batches(dataset: Any, rank: int, least: int) -> list[Any] | None:
    """Batches of a rank, looped and single, read in part from ``least`` bytes a record on; None if one is damaged."""
    import picstore

    batches: list[Any] = []

    def make() -> None:
        mux = picstore.DataMux(
            [(dataset, 0, 3), (dataset, 100, 4)],
            transform=[picstore.RandomResizedCrop(8, scale=(0.01, 0.3))],
            targets=["extra"],
            global_counts=True,
            max_pixels=1 << 20,
            isolate=False,
            threads=1,
            rank=rank,
            world_size=2,
        )
        with closing(mux):
            for number, batch in enumerate(islice(mux, 3)):
                single, made = mux.make_batch(0, number)
                if mux.damaged or made.host.damage or made.problems:
                    raise Damage("as it may be", "x")
                for each in (batch, single):
                    batches.append([each.ids.tolist(), each.labels.tolist(), each.images.tolist()])  # noqa: PERF401

    with (
        patch.object(dataset_reader, "MIN_MEAN", least),
        patch.object(partial_reader, "_NEAR", 0),
        patch.object(partial_reader, "_MAX_SHARE", 2.0),
    ):
        return batches if accepted(make) else None


def check_ledger(raw: bytes) -> bool:
    """Read a ledger in every way; the tally of a sound one has a status for each line."""
    path = scratch() / "ledger.jsonl"
    path.write_bytes(raw)
    where = Folder(path)
    lines: list[Any] = []
    sound = accepted(lambda: lines.extend(ledger.read_lines(where)))
    tally = ledger.tally_lines(ledger.read_lines(where, skip_damaged=True))
    tally.outcome(), tally.formats(), ledger.read_earlier_lines(where, 2)
    accepted(ledger.tally_fragment, raw)
    if sound and tally.inputs != len(lines):
        raise Difference("the tally of a ledger has another number of lines")
    return sound


def mutate_ledger(raw: bytes, rng: Random) -> bytes:
    """Change a line, in most cases as JSON and with a right checksum."""
    lines = raw.splitlines(keepends=True) or [b""]
    at, way = rng.randrange(len(lines)), rng.random()
    if way < 0.75:
        try:
            values = json.loads(lines[at])
            values.pop("crc32c", None)
            text = json.dumps(mutate_json(values, rng)).encode()[:-1]
            lines[at] = text + b', "crc32c": %d}\n' % crc32c(text)
        except (ValueError, AttributeError, RecursionError):
            lines[at] = mutate_bytes(lines[at], rng)
        return b"".join(lines)
    return mutate_bytes(raw, rng)


def check_targets(raw: bytes) -> bool:
    """Parse the targets in an extra."""
    try:
        extra = json.loads(raw)
    except (ValueError, RecursionError):
        return False
    return accepted(read_objects, extra)


# --- JPEGs ---


# Errors of simplejpeg where libjpeg goes on: it takes warnings about headers for errors, and wants a usual sampling.
_QUIRKS = ("Warning", "Unknown Adobe color transform", "Could not determine subsampling")


def pixels_by_libjpeg(stream: bytes, factor: int = 1, shape: tuple[int, ...] = ()) -> np.ndarray | None:
    """Decode by libjpeg-turbo, at 1/factor to this height and width, and it may warn; None if it refuses."""
    least = {} if factor == 1 else {"min_height": shape[0], "min_width": shape[1]}
    try:
        return simplejpeg.decode_jpeg(stream, strict=False, **least)
    except ValueError as error:
        if not any(text in str(error) for text in _QUIRKS):
            return None
    try:
        with Image.open(io.BytesIO(stream)) as image:
            if factor > 1:
                image.draft(None, (image.width // factor, image.height // factor))
            return np.asarray(image.convert("RGB"))
    except (OSError, SyntaxError):
        return None


GUARD = GuardedNumpy()


def _has_smaller_scale(stream: bytes, factor: int, shape: tuple[int, ...]) -> bool:
    """Whether libjpeg is asked for another scale n/8, as one gives as many pixels or the image is too small."""
    sides = decoding.frame_size(stream)
    if sides is None or min(sides) < factor:
        return True
    eighths = 8 // factor - 1
    return all(-(-side * eighths // 8) >= few for side, few in zip(sides[::-1], shape, strict=False))


@cache
def _compile_decoder() -> None:
    """Compile the decoder's kernels, which numba cannot while their module's NumPy is another."""
    for factor in (1, 2, 4, 8):
        decoding.decode(encode(np.zeros((40, 40, 3), np.uint8), "420"), factor=factor)


def check_decoder(stream: bytes) -> bool:
    """Where picstore decodes, libjpeg-turbo decodes the same pixels at the same scale; an eighth between guard pages.

    DC coefficients are read of all streams, and of those that are decoded without an error.
    """
    _compile_decoder()
    guarded, factor = crc32(stream) % 8 == 0, (1, 1, 2, 4, 8)[crc32(stream) % 5]
    plain, jpeg_ = decoding.WORKSPACE, stream
    if guarded:
        GUARD.flush_left = crc32(stream) % 16 == 0
        decoding.np, jpeg_ = GUARD, GUARD.stream(stream)
        decoding.WORKSPACE = exact_workspace(decoding)
    try:
        pixels = np.array(decoding.decode(jpeg_, factor=factor))
    except ImageError:
        accepted(lambda: perceptual_hash.read_luma_dc(jpeg_))
        return False
    finally:
        decoding.np, decoding.WORKSPACE = np, plain
    if factor > 1 and _has_smaller_scale(stream, factor, pixels.shape):
        return True  # of small images libjpeg chooses another scale, such as 3/8
    expected = pixels_by_libjpeg(stream, factor, pixels.shape)
    if expected is None or not np.array_equal(pixels, expected):
        raise Difference("libjpeg refuses the stream" if expected is None else "the pixels are not libjpeg's")
    perceptual_hash.read_luma_dc(stream)
    return True


def check_headers(stream: bytes) -> bool:
    """Parse headers, tables and orientation; the size is that which libjpeg-turbo reads."""
    try:
        header = markers.parse_header(stream)
    except ImageError:
        return False
    coding = headers.read_coding_parameters
    found: list[Any] = []
    accepted(lambda: found.append(coding(markers.iterate_marker_segments(stream))))
    if found and found[0].orientation not in range(1, 9):
        raise Difference("an orientation that EXIF does not have")
    try:
        size = simplejpeg.decode_jpeg_header(stream, strict=False)[1::-1]
    except (ValueError, KeyError):  # it has no name for some samplings
        return True
    if size != (header.width, header.height):
        raise Difference(f"libjpeg reads the size {size}")
    return True


@cache
def exercise() -> Exercise:
    """Guarded calls of all functions on JPEGs; the kernels are compiled before arrays are guarded."""
    made = Exercise()
    rng = Random(0)
    for sampling in ("grey", "444", "422", "440", "420"):
        made(encode(np.zeros((40, 40, 3), np.uint8), sampling), rng)
    made.start(guarded=True)
    return made


def check_transcoder(stream: bytes) -> bool:
    """Add restart markers between guard pages: libjpeg's pixels stay, and the coefficients of small images."""
    rng = Random(crc32(stream))
    exercise()(stream, rng)
    try:
        marked = transcode.add_restart_markers(stream, rng.choice((None, 1, 2, 5)))
    except PicstoreError:
        return False
    header = markers.parse_header(marked)
    if header.width * header.height <= 1024:
        before, after = _coefficients(stream), _coefficients(marked)
        if None not in (before, after) and before != after:
            raise Difference("the coefficients have changed")
    return True


def _coefficients(stream: bytes) -> list[list[int]] | None:
    """Coefficients by the tests' own reader; None where it cannot read the stream, as where a symbol has two codes."""
    try:
        return coefficients.read(stream).blocks
    except (AssertionError, IndexError, KeyError, ValueError):
        return None


def _decode_box(stream: bytes, box: tuple[int, int, int, int]) -> tuple[np.ndarray, np.ndarray] | None:
    """Decode a box of a stream by the lengths of its segments, between guard pages."""
    _compile_decoder()
    header = markers.parse_header(stream)
    starts, ends = markers.find_restart_segments(stream, header)
    tiling = np.array([[header.width, header.height, *header.mcu_size, header.restart_interval, header.length]])
    if box[2] > header.width or box[3] > header.height or (ends - starts).max() >= 1 << 16:
        return None
    GUARD.flush_left = crc32(stream) % 2 == 0
    lengths = [(ends - starts).astype(np.uint16)]
    tiled = cutting.TiledJpegs.from_streams([GUARD.stream(stream[: int(ends[-1]) + 2])], tiling, lengths)
    with patch.object(decoding, "np", GUARD), patch.object(boxes, "WORKSPACE", exact_workspace(decoding)):
        return boxes.decode_box(tiled, np.array(box), allocate=lambda size: GUARD.empty(size, np.uint8))


def check_cut(stream: bytes) -> bool:
    """Cut a box out of a stream with restart markers, and decode it in place: its pixels are the whole image's.

    Boxes are decoded of damaged streams too, by the lengths of their segments.
    """
    accepted(_decode_box, stream, (0, 0, 9, 9))
    rng = Random(crc32(stream))
    try:
        marked = transcode.add_restart_markers(stream, rng.choice((None, None, 1, 2, 3)))
    except PicstoreError:
        return False
    whole = pixels_by_libjpeg(marked)
    if whole is None:
        raise Difference("libjpeg refuses what add_restart_markers made")
    height, width = whole.shape[:2]
    left, top = rng.randrange(width), rng.randrange(height)
    box = left, top, rng.randrange(1, width - left + 1), rng.randrange(1, height - top + 1)
    part, (dx, dy) = cutting.cut(marked, box)
    pixels = pixels_by_libjpeg(part)
    inside = (slice(top, top + box[3]), slice(left, left + box[2]))
    if pixels is None or not np.array_equal(pixels[dy : dy + box[3], dx : dx + box[2]], whole[inside]):
        raise Difference(f"the cut {box} has other pixels")
    found = _decode_box(marked, (left, top, left + box[2], top + box[3]))
    if found is not None:
        dx, dy = left - int(found[1][0]), top - int(found[1][1])
        if not np.array_equal(found[0][dy : dy + box[3], dx : dx + box[2]], whole[inside]):
            raise Difference(f"the box {box} has other pixels")
    accepted(markers.find_restart_segments, stream, markers.parse_header(stream))
    return True


def check_image(data: bytes) -> bool:
    """Make a training JPEG of any image file."""
    return accepted(lambda: make_training_jpeg(data, settings=EncodeSettings(max_pixels=1 << 20)))


# --- What users write, and what they download ---


def check_config(text: bytes) -> bool:
    """Read a mux configuration; the first byte says whether it is TOML."""
    from picstore.train.mux_config import read_config

    path = scratch() / ("mux.toml" if text[:1] == b"#" else "mux.txt")
    path.write_bytes(text)
    return accepted(read_config, path)


def mutate_config(text: bytes, rng: Random) -> bytes:
    """Change bytes, or put another word or value in the place of one."""
    if rng.random() < 0.4:
        return mutate_bytes(text, rng)
    words = text.split(b" ")
    words[rng.randrange(len(words))] = rng.choice((*words, *_WORDS))
    return b" ".join(words)


_WORDS = tuple(
    b'-1|0|1e9|9999999999999999999|nan|true|""|"x"|[]|[[]]|{}|{a=1}|1979-05-27|\n|=|#|[[source]]\n|path|"\\u0000"|'
    b'{ name = "Normalize", mean = [0], std = [0] }|{ name = "CenterCrop", size = [1, 2, 3] }|{ name = 3 }|'
    b'{ name = "Compose" }|{ name = "ColorJitter", brightness = inf }|"../../etc"|dtype = "float99"\n|'.split(b"|")
)


def check_source(data: bytes) -> bool:
    """List a source, and read its first inputs."""
    from picstore.prepare.sources.open import open_source, read_input

    root = scratch() / "source"
    opened = json.loads(files.write(root, data).get(files.OPENED, b'{"where": ""}'))
    options = {name: str(root / value) if name in ("annotations", "root") else value for name, value in opened.items()}
    try:
        listing = open_source(root / options.pop("where"), **options)
    except PicstoreError:
        return False
    listing.digest()
    for source in listing.inputs[:4]:
        for each in (source, *(attached for _, attached in source.attachments)):
            accepted(read_input, each)
    return True


TARGETS = {
    "manifest": Target(14, check_manifest, mutate_manifest),
    "array": Target(12, check_array, lambda raw, rng: files._mutate_file("x.npy", raw, rng)),
    "dataset": Target(3, check_dataset, files.mutate_files),
    "mux": Target(1, check_mux, files.mutate_files),
    "ledger": Target(8, check_ledger, mutate_ledger),
    "targets": Target(14, check_targets, mutate_document),
    "headers": Target(14, check_headers, mutate_jpeg, jpeg),
    "decoder": Target(12, check_decoder, mutate_jpeg, jpeg),
    "transcoder": Target(5, check_transcoder, mutate_jpeg, jpeg),
    "cut": Target(5, check_cut, mutate_jpeg, jpeg),
    "image": Target(1, check_image, mutate_bytes),
    "config": Target(10, check_config, mutate_config),
    "source": Target(2, check_source, files.mutate_files),
}


def seeds(name: str) -> list[bytes]:
    """The corpus of a target, in a fixed order."""
    return [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]
