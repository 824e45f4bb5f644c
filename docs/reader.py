"""A stand-alone reader of picstore datasets: this file, NumPy and Pillow, without picstore.

    python docs/reader.py DATASET            count the records and decode every image
    python docs/reader.py DATASET OUT        write images, attachments, and a line of JSON for each record
    for record in records("DATASET", ids=[7, 9]): record.image, record.label, record.attachments["mask"]

It follows docs/format.md: versions 1 to 3 of the manifest, edits, columns, attachments, references. Every record is
checked by its own checksums. What is damaged is left out and told on stderr, or to ``skip``. Extras are a frame of
zstd, which Python has from 3.14 on; with an older one they are None. It reads local folders, and is slow.
"""

import io
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from PIL import Image, ImageOps

try:
    from compression import zstd
except ImportError:
    zstd = None

_FIELDS = (  # of an index entry, docs/format.md "Container"
    "id:u8 label:i8 offset:u4 length:u4 crc:u4 width:u2 height:u2 sampling:u1 flags:u1 restart_interval:u2 "
    "header_length:u4 segment_first:u4 segment_count:u4 extra_offset:u4 extra_length:u4 zeros:u4 entry_crc:u4"
)
ENTRY = np.dtype([(name, "<" + kind) for name, kind in (field.split(":") for field in _FIELDS.split())])
ROW = np.dtype("<u4, <u4, <u8, <u4, <u4, <u4, <u4")  # of the index: stream, file, offset, size, records, header_crc, …
BLOCK = 4096
Image.MAX_IMAGE_PIXELS = 1 << 32  # an image has up to 65,535 pixels a side

_TABLE = np.arange(256, dtype=np.uint32)
for _ in range(8):
    _TABLE = np.where(_TABLE & 1, (_TABLE >> 1) ^ np.uint32(0x82F63B78), _TABLE >> 1)
_TABLE = _TABLE.tolist()


def crc32c(data):
    """CRC-32C, a byte at a time."""
    crc = 0xFFFFFFFF
    for byte in bytes(data):
        crc = _TABLE[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def masked(crc):
    """A CRC as it stands in index and attachment entries."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def check(data, crc, what):
    """Raise ValueError unless bytes have a checksum."""
    if crc32c(data) != crc:
        raise ValueError(f"{what} fails its checksum")


def header(data, magic, what):
    """A structure of 64 bytes as sixteen integers, its magic and checksum checked."""
    words = np.frombuffer(data[:64], "<u4").tolist()
    if len(words) != 16 or not data.startswith(magic):
        raise ValueError(f"{what} is not there")
    check(data[:60], words[15], what)
    return words


def part(data, offset, length, crc, what):
    """Some of the bytes of a container or file, checked."""
    if offset + length > len(data):
        raise ValueError(f"{what} is cut off")
    check(data[offset : offset + length], crc, what)
    return data[offset : offset + length]


def read_manifest(folder):
    """The manifest, checked."""
    manifest = json.loads((folder / "picstore.json").read_bytes())
    if manifest["format"] != "picstore" or manifest["format_version"] not in (1, 2, 3):
        raise ValueError("no picstore dataset of version 1, 2 or 3")
    rest = {name: value for name, value in manifest.items() if name != "crc32c"}
    check(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode(), manifest["crc32c"], "the manifest")
    return manifest


def read_edits(manifest):
    """The manifest's edits, or the edits of a dataset without any."""
    return manifest.get("edits") or {"index": "picstore.idx", "tombstones": None, "columns": []}


def read_index(folder, manifest, skip):
    """A row for each container, in stored order; where the index is damaged, of the containers that are found."""
    try:
        data = (folder / read_edits(manifest)["index"]).read_bytes()
        words = header(data, b"PICINDEX", "the index")
        return np.frombuffer(part(data, 64, len(data) - 64, words[8], "the index"), ROW).tolist()
    except (OSError, ValueError) as error:
        skip(f"{error}: the containers are looked for")
    rows = [row for file in manifest["files"] for row in find_containers(folder, file["stream"], file["file"])]
    if len(rows) != manifest["containers"]:  # the numbers of deleted records count all containers
        raise ValueError(f"the index is damaged, and {len(rows)} of {manifest['containers']} containers are found")
    return [row for _, row in sorted(rows)]


def find_containers(folder, stream, number):
    """Yield the place in stored order and the row of each container of a file that has a sound header."""
    data, offset = (folder / f"{stream:04}" / f"{number:06}.pic").read_bytes(), BLOCK
    while offset < len(data):
        try:
            words = header(data[offset : offset + 64], b"PICC", "a container")
        except ValueError:
            offset += BLOCK
            continue
        yield (number, words[14], stream), (stream, number, offset, words[3], words[2], words[15], 0)
        offset += max(BLOCK, words[3])


def read_array(folder, described):
    """An array file of the edits, checked."""
    if not re.fullmatch(r"edits/[0-9a-f]{16}\.npy", described["file"]):
        raise ValueError(f"{described['file']} is no name of an array file")
    data = (folder / described["file"]).read_bytes()
    check(data, described["crc32c"], described["file"])
    return np.load(io.BytesIO(data), allow_pickle=False)


def read_columns(folder, manifest, skip):
    """Values by name and id."""
    columns = {}
    for column in read_edits(manifest)["columns"]:
        try:
            ids, values = (read_array(folder, column[name]) for name in ("ids", "values"))
            if column["kind"] == "text":
                ends = read_array(folder, column["ends"]).tolist()
                values = [bytes(values[a:b]).decode() for a, b in zip([0, *ends], ends, strict=False)]
            columns[column["name"]] = dict(zip(ids.tolist(), values, strict=True))
        except (OSError, ValueError) as error:  # noqa: PERF203 - other columns are read
            skip(f"column {column['name']}: {error}")
    return columns


def read_container(folder, row, skip):
    """The bytes of a container, and its decompressed extras or None."""
    stream, number, offset, size, count, header_crc = row[:6]
    with (folder / f"{stream:04}" / f"{number:06}.pic").open("rb") as file:
        file.seek(offset)
        data = file.read(size)
    try:
        words = header(data, b"PICC", "a container's header")
    except ValueError as error:
        skip(f"{error}; its images do not need it, its extras do")
        return data, None
    if (words[12], words[13], words[3], words[2], words[15]) != (stream, number, size, count, header_crc):
        raise ValueError("another container stands there")
    if not words[5] or zstd is None:
        return data, None
    start = 64 + (64 + 16 * (words[1] & 0xFFFF)) * count + 2 * words[4]
    try:
        frame = part(data, start, words[5], words[10], "the extras")
        return data, zstd.ZstdDecompressor().decompress(frame, max_length=min(words[6], 1 << 28))
    except (ValueError, zstd.ZstdError) as error:
        skip(error)
        return data, None


def follow(reference, root):
    """The bytes of another program's file that a reference names."""
    (start,), (length, crc) = (
        np.frombuffer(reference, "<u8", 1).tolist(),
        np.frombuffer(reference, "<u4", 2, 8).tolist(),
    )
    path = reference[16:].decode()
    if {"", ".", ".."} & {*path.split("/")}:
        raise ValueError(f"the reference to {path} leads out of {root}")
    with (root / path).open("rb") as file:
        file.seek(start)
        data = file.read(length)
    return part(data, 0, length, crc, f"{path} from byte {start} on")


def find_root(folder, manifest, root):
    """The folder that references are relative to; None where the dataset holds its images."""
    if manifest["format_version"] < 3:
        return None
    found = Path(root) if root else folder / manifest["references"]["root"]
    if not root and not found.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"the images are in {found}; give that folder as root if you trust the index")
    return found


class Record(SimpleNamespace):
    """id, label, jpeg (the file's bytes), attachments and columns by name, extra (a JSON value), foreign."""

    @property
    def image(self):
        """The pixels, RGB, uint8 (height, width, 3)."""
        with Image.open(io.BytesIO(self.jpeg)) as opened:
            upright = ImageOps.exif_transpose(opened) if self.foreign else opened
            return np.asarray(upright.convert("RGB"))


def read_entry(data, k):
    """The index entry of record k of a container."""
    place = data[64 + 64 * k : 128 + 64 * k]
    if len(place) < 64 or masked(crc32c(place[:60])) != int.from_bytes(place[60:], "little"):
        raise ValueError("its index entry is damaged")
    return {name: int(value) for name, value in zip(ENTRY.names, np.frombuffer(place, ENTRY)[0], strict=True)}


def read_record(data, entry, places, extras, root):
    """Read a record of a container by its entry, and attachments by their entries' places."""
    jpeg = part(data, entry["offset"], entry["length"], entry["crc"], "its image")
    attachments = {}
    for name, place in places.items():
        offset, length, crc, entry_crc = np.frombuffer(data[place : place + 16], "<u4").tolist()
        if masked(crc32c(data[place : place + 12])) != entry_crc:
            raise ValueError(f"the entry of its attachment {name} is damaged")
        if length:
            attachments[name] = part(data, offset, length, crc, f"its attachment {name}")
    if root:
        jpeg, attachments = follow(jpeg, root), {name: follow(data, root) for name, data in attachments.items()}
    end = entry["extra_offset"] + entry["extra_length"]
    extra = json.loads(extras[entry["extra_offset"] : end]) if extras and entry["extra_length"] else None
    known = {"id": entry["id"], "label": entry["label"], "foreign": bool(entry["flags"] & 2)}
    return Record(**known, jpeg=jpeg, attachments=attachments, extra=extra)


def tell(what):
    """Say on stderr what is left out."""
    sys.stderr.write(f"skipped: {what}\n")


def records(folder, ids=None, *, root=None, skip=tell):
    """Yield the records in stored order, or only the records of some ids.

    ``root`` is the folder of the images of an index. ``skip`` is called with what is damaged and left out.
    """
    folder, first = Path(folder), 0
    manifest = read_manifest(folder)
    names, root = manifest["attachments"], find_root(folder, manifest, root)
    tombstones, columns = read_edits(manifest)["tombstones"], read_columns(folder, manifest, skip)
    deleted = set(read_array(folder, tombstones).tolist()) if tombstones else set()
    for row in read_index(folder, manifest, skip):
        where, count = f"{row[0]:04}/{row[1]:06}.pic, container at byte {row[2]}", row[4]
        numbers = [k for k in range(count) if first + k not in deleted]
        first += count
        try:
            data, extras = read_container(folder, row, lambda what, where=where: skip(f"{where}: {what}"))
        except (OSError, ValueError) as error:
            skip(f"{where}: {error}; {len(numbers)} records")
            continue
        for k in numbers:
            places = {name: 64 + 64 * count + 16 * (k * len(names) + i) for i, name in enumerate(names)}
            try:
                entry = read_entry(data, k)
                if ids is not None and entry["id"] not in ids:
                    continue
                record = read_record(data, entry, places, extras, root)
            except (OSError, ValueError) as error:
                skip(f"{where}: record {k}: {error}")
                continue
            record.columns = {name: values[record.id] for name, values in columns.items() if record.id in values}
            record.label = int(record.columns.pop("label", record.label))
            yield record


def write(record, out):
    """Write a record's image and attachments into a folder; returns its line of JSON."""
    kind = "jpg" if record.jpeg.startswith(b"\xff\xd8") else "image"
    files = {"image": (f"{record.id}.{kind}", record.jpeg)}
    for number, (name, data) in enumerate(record.attachments.items()):
        files[name] = (f"{record.id}.{number}", data)
    for name, data in files.values():
        (out / name).write_bytes(data)
    named = {name: file for name, (file, _) in files.items()}
    columns = {name: np.asarray(value).tolist() for name, value in record.columns.items()}
    return json.dumps({"id": record.id, "label": record.label, **named, "columns": columns, "extra": record.extra})


def main(folder, out=None):
    """Count and decode the records, or write them."""
    if out is None:
        print(sum(record.image.ndim == 3 for record in records(folder)), "records")
        return
    Path(out).mkdir()
    lines = [write(record, Path(out)) for record in records(folder)]
    (Path(out) / "records.jsonl").write_text("".join(f"{line}\n" for line in lines))
    print(len(lines), "records")


if __name__ == "__main__":
    main(*sys.argv[1:])
