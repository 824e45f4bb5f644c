"""``picstore.Writer``, which makes a dataset in Python, image by image."""

from __future__ import annotations

import operator
import os
import queue
import reprlib
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from picstore._version import __version__
from picstore.arrays import U8, Array
from picstore.errors import ImageError, PicstoreError, UsageError
from picstore.prepare.convert import resumable_job
from picstore.prepare.convert.kernel_warmup import load_kernels
from picstore.prepare.convert.row_division import DatasetShape
from picstore.prepare.convert.row_writer import RowWriter, make_record
from picstore.prepare.image.encode_settings import EncodeSettings
from picstore.prepare.image.libvips import require_mozjpeg
from picstore.prepare.image.map_requests import parse_requests
from picstore.prepare.image.read_map import as_values, make_map, read_values
from picstore.prepare.image.targets_and_masks import map_targets, move_attachment
from picstore.prepare.image.training_jpeg import make_training_jpeg
from picstore.storage.class_names import checked_names
from picstore.storage.format.container_index import FileSummary
from picstore.storage.format.maps import PREFIX, MapSpec
from picstore.storage.format.record import Record
from picstore.storage.location.resolve import Where, locate_writable
from picstore.storage.manifest_writer import publish_dataset
from picstore.storage.record_counts import RecordCounts

if TYPE_CHECKING:
    from PIL import Image
    from typing_extensions import Unpack

    from picstore.prepare.image.encode_settings import EncodeOptions


_CLOSED = "the Writer is closed"
# Queue of requests to a Writer's thread. A request is a tuple: function that appends a record, the record, and a queue
# for the record's id or the error. None ends the thread.
_Appends: TypeAlias = (
    "queue.SimpleQueue[tuple[Callable[[Record], int], Record, queue.SimpleQueue[int | BaseException]] | None]"
)


class Writer:
    """Writer of a new dataset, which is finished when the ``with`` block ends without an error.

    After an error the destination has no manifest, so no reader opens it. Several threads may add images at a time. In
    a process forked from the writer's, ``add`` and ``close`` raise UsageError, and the end of the block does nothing.

    Args:
        path: a directory, or a URL such as ``s3://bucket/train``, that does not exist or is empty.
        classes: names of the classes. Labels are then −1, indices into ``classes``, or names.
        attachments: names of the attachments that records may have.
        maps: further attachments, which are maps, in the form of :func:`picstore.convert`:
            ``"depth,scale=0.001,unit=m"`` for the attachment ``map:depth``. ``dtype`` and ``channels``, if not given,
            are those of the first map.
        shape: number of streams, and sizes of files and containers.
        encode: settings resize, quality, subsampling, background, max_pixels, reencode, encoder of ``picstore
            convert``.

    Raises:
        UsageError: a setting is out of its range, or the destination is a dataset.
        NotADataset: the destination holds other files.
        Unfinished: the destination holds an unfinished dataset.
        Damage: the destination holds a job file that cannot be read.
        MissingDependency: the requested encoder is not installed.
    """

    def __init__(
        self,
        path: Where,
        *,
        classes: Sequence[str] = (),
        attachments: Sequence[str] = (),
        maps: Sequence[str] = (),
        shape: DatasetShape | None = None,
        **encode: Unpack[EncodeOptions],
    ) -> None:
        self._root = locate_writable(path)
        self._classes = checked_names(classes, "classes")
        self._requests = {PREFIX + each.name: each for each in parse_requests(maps)}
        if any(each.files for each in self._requests.values()):
            raise UsageError(f"maps {list(maps)!r} name files; leave them out, and give each map to add(attachments=…)")
        self._specs: dict[str, MapSpec] = {}
        self._specs_lock = threading.Lock()
        self._fields = tuple(dict.fromkeys((*checked_names(attachments, "attachments"), *self._requests)))
        self._encode = EncodeSettings.from_json({**encode})
        if self._encode.encoder == "mozjpeg":
            require_mozjpeg()
        # Load kernels now instead of at the first image, because an exception of a signal handler while llvmlite loads
        # a kernel may end the process ("double free"), and a program may interrupt ``add`` on purpose.
        load_kernels(self._encode)
        self._shape = shape or DatasetShape()
        self._summaries: list[FileSummary] = []
        self._counts = RecordCounts.of({})
        self._rows = 0
        self._count = 0
        self._row: RowWriter | None = None
        # A separate thread writes the records. Exceptions of signal handlers, such as KeyboardInterrupt, are raised in
        # the main thread only, so each record is added whole or not at all. The queues are implemented in C, where no
        # such exception can leave a lock held.
        self._appends: _Appends = queue.SimpleQueue()
        self._thread = threading.Thread(target=_serve_appends, args=(self._appends,), daemon=True)
        self._thread.start()
        weakref.finalize(self, self._appends.put, None)  # Once the Writer is garbage, None ends the thread.
        # Message of the error that ``add`` raises once the Writer is closed or has failed; empty until then.
        self._refusal = ""
        self._published = False
        self._pid = os.getpid()
        begun = resumable_job.begin_job(self._root, {"verb": "Writer", "picstore": __version__}, resume=False)
        with ExitStack() as held:
            held.enter_context(resumable_job.hold_job(self._root, resumable_job.new_job(**begun)))
            resumable_job.require_free(self._root)
            self._held = held.pop_all()
        # Release the lock at the interpreter's end at the latest, before the modules that this needs are emptied.
        weakref.finalize(self, self._held.close)

    def add(
        self,
        image: bytes | Image.Image | U8 | Any,
        label: int | str = -1,
        *,
        extra: Any = None,
        attachments: dict[str, bytes | Any] | None = None,
    ) -> int:
        """Append an image and return its id, 0 for the first.

        Several threads may call this method at a time; ids are in the order in which images are ready. An exception
        from outside, such as KeyboardInterrupt, leaves the record added whole or not at all, and more images can be
        added.

        Args:
            image: bytes of a file in any format that convert reads, or pixels. A JPEG is stored without loss if convert
                would do so. Pixels are a PIL image, a uint8 array (H, W, 3) or (H, W), or a uint8 torch tensor (3, H,
                W), (1, H, W) or (H, W).
            label: index or name of the image's class in ``classes``; −1 for unknown.
            extra: any JSON value. Its ``boxes``, ``box_labels``, ``polygons`` and ``keypoints`` are targets as in
                docs/formats.md, in pixels of the image as a viewer shows it; they are scaled with the image.
            attachments: bytes by name; for a map also an array, (H, W) or (H, W, channels). An image or map of the size
                of ``image`` is turned and resized with it; other attachments are stored unchanged.

        Raises:
            ImageError: the image cannot become a training JPEG; nothing was added.
            UsageError: label, extra or attachments are invalid; nothing was added.
            PicstoreError: an earlier error in writing, such as a full disk, or ``close`` ended the Writer.
        """
        self._check_process()
        label = self._number_of(label)
        if callable(getattr(image, "detach", None)):
            image = _pixels_of(image)
        elif isinstance(image, (bytearray, memoryview)):
            image = bytes(image)
        elif not isinstance(image, (bytes, np.ndarray)) and not hasattr(image, "getbands"):
            given_type = "is a path" if isinstance(image, (str, os.PathLike)) else f"is of type {type(image).__name__}"
            raise UsageError(
                f"image {reprlib.repr(image)} {given_type}; give the bytes of a file, such as path.read_bytes(), a PIL "
                "image, or uint8 pixels as an array or tensor"
            )
        if unknown := set(attachments or ()) - set(self._fields):
            raise UsageError(f"attachment {min(unknown)!r} was not declared; declared are {list(self._fields)}")
        given: Mapping[str, object] = attachments or {}
        blobs, maps = {}, {}
        for name, blob in given.items():
            if name in self._requests and isinstance(blob, (bytes, np.ndarray)):
                maps[name] = blob
                continue
            if not isinstance(blob, (bytes, bytearray)):
                kind = type(blob).__name__
                raise UsageError(f"attachment {name!r} is of type {kind}; give bytes, for instance a PNG file's")
            # Copy the attachment, because the caller may change a bytearray before the Writer's thread writes it.
            blobs[name] = bytes(blob)
        made = make_training_jpeg(image, settings=self._encode, bounded=True)
        blobs = {name: move_attachment(name, blob, made.coordinates) for name, blob in blobs.items()}
        blobs |= {name: make_map(name, each, self._spec(name, each), made.coordinates) for name, each in maps.items()}
        try:
            extra = map_targets(extra, made.coordinates)
        except ImageError as error:
            raise UsageError(f"extra: {error}") from error
        record = make_record(made.jpeg, id=0, label=label, extra=extra, attachments=blobs, info=made.info)
        self._require_open()
        answer: queue.SimpleQueue[int | BaseException] = queue.SimpleQueue()
        self._appends.put((self._append, record, answer))
        appended = answer.get()
        if isinstance(appended, BaseException):
            raise appended
        return appended

    def _spec(self, name: str, first: bytes | Array) -> MapSpec:
        with self._specs_lock:
            if name not in self._specs:
                try:
                    values = read_values(first) if isinstance(first, bytes) else as_values(first)
                except ImageError as error:
                    raise ImageError(f"{name}: {error}") from error
                self._specs[name] = self._requests[name].specify(values)
            return self._specs[name]

    def _append(self, record: Record) -> int:
        """Append a record with the next id, and return the id; called in the Writer's thread."""
        self._require_open()
        id_ = self._count
        try:
            if self._row is None:
                self._row = RowWriter(self._root, row=self._rows, shape=self._shape, fields=self._fields)
            self._row.add(replace(record, id=id_))
            self._count += 1
            if self._row.bytes >= self._shape.streams * self._shape.file_size:
                self._end_row()
        except UsageError:  # The record is too large and was not added; the Writer can still take other records.
            raise
        except BaseException as error:
            self._refusal = f"an error in writing has ended the Writer: {error}"
            raise
        return id_

    def _require_open(self) -> None:
        if self._refusal:
            raise PicstoreError(self._refusal)

    def _end_thread(self, refusal: str) -> None:
        """Reject further records with the message ``refusal``, and wait until earlier records are written."""
        self._refusal = self._refusal or refusal
        self._appends.put(None)
        self._thread.join()

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise UsageError(
                f"this Writer belongs to process {self._pid}, of which this one is a fork; send it the images, or give "
                "each process a Writer of its own and join the datasets by `picstore shuffle`"
            )

    def _number_of(self, label: int | str) -> int:
        """Return the class number of a label, given as number or class name; raise UsageError for an unknown class."""
        if isinstance(label, str):
            if label not in self._classes:
                known = f"its classes are {reprlib.repr(list(self._classes))}" if self._classes else "it has no classes"
                raise UsageError(f"label is {label!r}, and {known}; give Writer(classes=[...]) its name, or a number")
            if self._classes.count(label) > 1:
                raise UsageError(f"label is {label!r}, which is the name of several classes; give the number of one")
            return self._classes.index(label)
        try:
            number = operator.index(label)
        except TypeError:
            raise UsageError(f"label is {reprlib.repr(label)}; give an integer, or the name of a class") from None
        if self._classes and not -1 <= number < len(self._classes):
            raise UsageError(f"label {number} is no class; give 0 to {len(self._classes) - 1}, or -1 for unknown")
        return number

    def _end_row(self) -> None:
        if self._row is not None:
            with self._row:
                self._summaries += self._row.close()
            self._counts = RecordCounts.join([self._counts, self._row.counts])
            self._rows += 1
            self._row = None

    def close(self) -> None:
        """Write the last files, the index and the manifest. After an error, call this again to retry."""
        self._check_process()
        if self._published:
            return
        if self._refusal != _CLOSED:
            self._require_open()
            self._end_thread(_CLOSED)
        self._end_row()
        provenance = {"picstore": __version__, "source": "Writer", "inputs": self._count}
        if self._specs:
            provenance["maps"] = {name.removeprefix(PREFIX): spec.to_json() for name, spec in self._specs.items()}
        publish_dataset(
            self._root,
            self._summaries,
            counts=self._counts,
            streams=self._shape.streams,
            container_size=self._shape.container_size,
            classes=self._classes,
            attachments=self._fields,
            encode=self._encode.to_json(),
            provenance=provenance,
        )
        resumable_job.remove_job(self._root)
        self._held.close()
        self._published = True

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self._refusal in ("", _CLOSED):
            self.close()
            return
        if self._pid != os.getpid():  # This is a forked process; only the process that made the Writer may end files.
            return
        self._end_thread("the Writer has ended with an error")
        with self._held:
            if self._row is not None:
                with self._row:
                    pass
        if kind is None:
            raise PicstoreError(self._refusal)


def _serve_appends(appends: _Appends) -> None:
    """Append records, in a Writer's thread, in the order of requests until None is received."""
    while (each := appends.get()) is not None:
        append, record, answer = each
        try:
            answer.put(append(record))
        except BaseException as error:
            answer.put(error)
        # Delete these references to the Writer, because a Writer that the program drops while the loop waits must be
        # freed: its finalizer sends the None that ends this thread.
        del each, append, record, answer


def _pixels_of(tensor: Any) -> U8:
    """Return a torch tensor as pixels (H, W, 3) or (H, W); raise UsageError unless it is uint8, channels first."""
    shape = tuple(tensor.shape)
    if str(tensor.dtype) != "torch.uint8":
        raise UsageError(f"image is a tensor of {tensor.dtype}; give uint8, as (image * 255).round().to(torch.uint8)")
    if len(shape) not in (2, 3) or (len(shape) == 3 and shape[0] not in (1, 3)):
        raise UsageError(f"image is a tensor of shape {shape}; give (3, H, W), (1, H, W) or (H, W)")
    pixels: U8 = tensor.detach().cpu().numpy()
    if len(shape) == 2 or shape[0] == 1:
        return pixels.reshape(shape[-2:])
    return np.ascontiguousarray(pixels.transpose(1, 2, 0))
