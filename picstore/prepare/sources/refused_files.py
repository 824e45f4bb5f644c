"""Files that no source reads: recognized by their first bytes, and rejected with a message that names a remedy."""

from __future__ import annotations

import re
from dataclasses import dataclass

from picstore.errors import UsageError
from picstore.prepare.sources.source_file import printable, visible_entries
from picstore.prepare.sources.source_kinds import SourceProbe
from picstore.storage.location.abstract_location import Entry
from picstore.storage.location.resolve import Location
from picstore.storage.location.text_files import is_wide

_UNPACK = "unpack it, and give the folder"
_EXPORT = "write its images to a folder, or to a dataset with picstore.Writer"
_FOLDER = "give the folder that holds it, or a list of images"
_PROBED_FILES = 8  # number of files to read in a folder, to learn whether a source can read the folder
# Offset of a magic number, its bytes, type of the file, and advice to the user. The first match decides, so a long
# magic number comes before a short one with which it begins.
_MAGIC: tuple[tuple[int, bytes, str, str], ...] = (
    (0, b"\xff\xd8\xff", "an image (JPEG)", _FOLDER),
    (0, b"\x89PNG\r\n\x1a\n", "an image (PNG)", _FOLDER),
    (0, b"GIF8", "an image (GIF)", _FOLDER),
    (0, b"II*\0", "an image (TIFF)", _FOLDER),
    (0, b"MM\0*", "an image (TIFF)", _FOLDER),
    (0, b"II+\0", "an image (BigTIFF)", _FOLDER),
    (0, b"MM\0+", "an image (BigTIFF)", _FOLDER),
    (8, b"WEBP", "an image (WebP)", _FOLDER),
    (0, b"BM", "an image (BMP)", _FOLDER),
    (0, b"8BPS", "an image (Photoshop)", _FOLDER),
    (4, b"ftypavif", "an image (AVIF)", _FOLDER),
    (4, b"ftyphei", "an image (HEIC)", _FOLDER),
    (4, b"ftypmif1", "an image (HEIF)", _FOLDER),
    (0, b"\xff\x0a", "an image (JPEG XL)", _FOLDER),
    (4, b"JXL \r\n\x87\n", "an image (JPEG XL)", _FOLDER),
    (4, b"jP  \r\n\x87\n", "an image (JPEG 2000)", _FOLDER),
    (0, b"\xff\x4f\xff\x51", "an image (JPEG 2000)", _FOLDER),
    (0, b"\x76\x2f\x31\x01", "an image (OpenEXR)", _FOLDER),
    (0, b"SIMPLE  =", "an image (FITS)", _FOLDER),
    (128, b"DICM", "an image (DICOM)", _FOLDER),
    (0, b"PK\x03\x04", "a zip archive", _UNPACK),
    (0, b"PK\x05\x06", "an empty zip archive", _UNPACK),
    (0, b"\x1f\x8b", "compressed by gzip", _UNPACK),
    (0, b"BZh", "compressed by bzip2", _UNPACK),
    (0, b"\xfd7zXZ\0", "compressed by xz", _UNPACK),
    (0, b"(\xb5/\xfd", "compressed by zstd", _UNPACK),
    (0, b"\x04\x22\x4d\x18", "compressed by lz4", _UNPACK),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive", _UNPACK),
    (0, b"Rar!\x1a\x07", "a RAR archive", _UNPACK),
    (0, b"!<arch>\n", "an ar archive", _UNPACK),
    (0, b"070701", "a cpio archive", _UNPACK),
    (0, b"hsqs", "a SquashFS image", "mount it, and give the folder"),
    (0, b"ARROW1\0\0", "an Arrow file", "write it as Parquet, by `to_parquet` of its library"),
    (0, b"FEA1", "a Feather file", "write it as Parquet, by `to_parquet` of its library"),
    (0, b"Obj\x01", "an Avro file", "write it as Parquet"),
    (0, b"ORC", "an ORC file", "write it as Parquet"),
    (0, b"\x93NUMPY", "a NumPy array", "give its images to picstore.Writer, as uint8 arrays (H, W, 3)"),
    (0, b"SQLite format 3\0", "an SQLite database", _EXPORT),
    (0, b"MATLAB 5.0", "a MATLAB file", _EXPORT),
    (0, b"\0\0\x08\x03", "an IDX file, as MNIST's", "give its images to picstore.Writer, as uint8 arrays (H, W)"),
    (0, b"\0\0\x08\x01", "an IDX file of labels, as MNIST's", _EXPORT),
    (0, b"%PDF", "a PDF document", "write its pages as images, for instance by pdftoppm"),
    (0, b"\x1aE\xdf\xa3", "a video (Matroska, WebM)", "write its frames as images, for instance by ffmpeg"),
    (4, b"ftyp", "a video (MP4, QuickTime)", "write its frames as images, for instance by ffmpeg"),
    (8, b"AVI ", "a video (AVI)", "write its frames as images, for instance by ffmpeg"),
    (0, b"\0\0\x01\xba", "a video (MPEG)", "write its frames as images, for instance by ffmpeg"),
    (0, b"OggS", "a video or sound (Ogg)", "write its frames as images, for instance by ffmpeg"),
    (0, b"GGUF", "weights of a model (GGUF)", "give images"),
    (0, b"\x7fELF", "a program", "give images"),
    (0, b"MZ", "a program", "give images"),
)
# Control characters, by which binary data is recognized: text has few, except in UTF-16. JSON may contain DEL, 0x7f.
_CONTROL = re.compile(rb"[\0-\x08\x0e-\x1a\x1c-\x1f]")
# Zip archives by suffix of the file's name: what such a file is, and advice to the user (for error messages).
_ZIPPED = {
    (".npz",): ("NumPy arrays (.npz)", "give its images to picstore.Writer, as uint8 arrays (H, W, 3)"),
    (".pt", ".pth", ".ckpt"): ("a file of PyTorch", "picstore opens no pickles; give its images to picstore.Writer"),
    (".docx", ".pptx", ".xlsx", ".odt", ".epub"): ("a document", _UNPACK),
}
# Annotation files of images in a folder: suffix of the name, beginning of the file, type, and remedy.
_ANNOTATIONS: tuple[tuple[str, re.Pattern[bytes], str, str], ...] = (
    (
        ".json",
        re.compile(rb'\s*\{\s*"(info|images|annotations|categories|licenses)"\s*:'),
        "COCO's annotations",
        "give the folder of their images, and the file by --annotations",
    ),
    (
        ".xml",
        re.compile(rb"\s*(<\?xml[^>]*>)?\s*<annotations>"),
        "CVAT's XML",
        "export COCO, Pascal VOC or YOLO instead",
    ),
    ("_annotations.csv", re.compile(rb".*xmin", re.IGNORECASE), "a table of boxes", "give this file instead"),
)
_PICKLE = ("a pickle", "picstore does not open pickles, as they can run programs; give its images to picstore.Writer")
_HUGGING_FACE = "load it by datasets.load_from_disk, write it by to_parquet('DIR/data.parquet'), and give DIR"
# Folders that other libraries write: names of files in the folder, type of the folder, and advice to the user.
_FOLDERS: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (
        ("dataset_dict.json",),
        "datasets that datasets' save_to_disk wrote",
        "give one of its splits, written as Parquet",
    ),
    (("dataset_info.json", "state.json"), "a dataset that datasets' save_to_disk wrote", _HUGGING_FACE),
    (("zarr.json",), "a Zarr array", _EXPORT),
    (("saved_model.pb",), "a model of TensorFlow", "give images"),
)


@dataclass(frozen=True, slots=True)
class Foreign:
    """Type of a file or folder that no source reads, and what the user can do with it."""

    what: str
    remedy: str


def describe_foreign(head: bytes, name: str) -> Foreign | None:
    """Return type of a file that no source reads, and advice to the user; None if the file is text or empty."""
    if head.startswith(b"PK\x03\x04"):
        for suffixes, (what, remedy) in _ZIPPED.items():
            if name.lower().endswith(suffixes):
                return Foreign(what, remedy)
    # Text has no zero byte, and few control characters.
    if is_wide(head) or (b"\0" not in head and len(_CONTROL.findall(head)) <= 1 + len(head) // 64):
        if head.lstrip()[:1] in (b"{", b"[") and name.lower().endswith(".json"):
            remedy = "give the folder of its images, and COCO's file by --annotations; JSON Lines are called .jsonl"
            return Foreign("a JSON document", remedy)
        return None
    for offset, magic, what, remedy in _MAGIC:
        if head.startswith(magic, offset):
            return Foreign(what, remedy)
    if len(head) > 9 and head[0] == 0x80 and 2 <= head[1] <= 5:
        return Foreign(*_PICKLE)
    if head[8:10] == b'{"' and int.from_bytes(head[:8], "little") < 1 << 32:
        return Foreign("a file of safetensors", "give images")
    return Foreign("binary data of no known format", "give images, or name what reads it by --source")


def require_text(location: Location) -> None:
    """Raise UsageError unless a file is text; the message states the file's type and a remedy, and quotes no bytes."""
    _refuse(location, describe_foreign(SourceProbe(location, is_folder=False).head(), location.name))


def require_readable(probe: SourceProbe) -> None:
    """Raise UsageError if another library wrote a folder, or no source reads the folder's files; see require_text."""
    for names, what, remedy in _FOLDERS:
        if set(names) <= set(probe.files):
            _refuse(probe.location, Foreign(what, remedy))
    _refuse_annotations(probe)
    if probe.folders or not probe.files:
        return
    probed = [(name, describe_foreign(probe.head(name), name)) for name in probe.files[:_PROBED_FILES]]
    if all(found and not found.what.startswith("an image") for _, found in probed):
        name, found = probed[0]
        _refuse(probe.location / name, found)


def _refuse_annotations(probe: SourceProbe) -> None:
    inner = [f"annotations/{entry.name}" for entry in _entries(probe, "annotations") if not entry.is_folder]
    for suffix, beginning, what, remedy in _ANNOTATIONS:
        for name in [name for name in (*probe.files, *inner) if name.lower().endswith(suffix)][:_PROBED_FILES]:
            if beginning.match(probe.head(name)):
                raise UsageError(
                    f"{printable(str(probe.location))} holds {what}, {printable(name)}; {remedy}. If its folders are "
                    "classes and nothing else, give --source folder"
                )


def _entries(probe: SourceProbe, folder: str) -> list[Entry]:
    return visible_entries(probe.location / folder) if folder in probe.folders else []


def _refuse(location: Location, found: Foreign | None) -> None:
    if found is not None:
        raise UsageError(f"{printable(str(location))} is {found.what}; {found.remedy}")
