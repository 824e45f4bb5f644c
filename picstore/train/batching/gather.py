"""Records of a batch: the stream, size and label of each slot, before any pixel. A slot is an index in the batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from picstore.arrays import I64, U16, U64, Bools, Table
from picstore.errors import Corrupt, Damage, PicstoreError
from picstore.jpeg.tiles import HEIGHT, MAX_PIXELS_A_BYTE, MCU_HEIGHT, rows_to_cut
from picstore.storage.format.checksum import crc32c, masked
from picstore.storage.format.container import Container
from picstore.storage.format.layout import ENTRY, FOREIGN, MCU_SIZES
from picstore.storage.location.resolve import Root
from picstore.train.batching.damage import next_sound, replacements
from picstore.train.batching.host_batch import RecordFiles
from picstore.train.batching.spec import MAX_PIXELS
from picstore.train.batching.views_reach import boxes_to_cut
from picstore.train.order.requests import SourceRequest, TrainingSource
from picstore.train.transforms.transform_plan import TARGETS

Lengths: TypeAlias = U16
ReadResult: TypeAlias = "Container | Damage"  # a container, or why nothing of it can be read
# Source, epoch and number. Each epoch has its own crops, and its own records that are read alone: what was read of a
# container for one epoch is not what another epoch needs.
EpochContainer: TypeAlias = tuple[int, int, int]
ReadContainers: TypeAlias = Mapping[EpochContainer, ReadResult]

_MCU_SIZES = np.array(MCU_SIZES)  # by code of sampling


@dataclass(frozen=True, slots=True)
class BatchRecords:
    """Streams, sizes and labels of a batch: arrays by slot."""

    containers: list[Container]  # that hold the records; dropped once the batch is filled
    container: I64  # (n,), index in ``containers`` of a slot's record, −1 for none
    folders: tuple[Root, ...]  # of the data sets, by source
    entries: Table  # ``layout.ENTRY`` (n,), of the containers' indexes; zeros for none
    held: Table  # the same of their ``held``
    tops: I64  # (n,), rows of pixels of the stored images above the held ones
    addresses: U64  # of the streams and of their segments' lengths, see ``jpeg.cut.TiledJpegs``
    sizes: I64  # of both; 0 for none
    layouts: I64  # (n, 6), of what is held of the images, see :func:`layouts_of`
    image_sizes: I64  # (n, 2), width and height of the stored images
    labels: I64  # −1, as in ``ids``, where nothing of the record's container can be read
    ids: I64
    source: I64  # number of the data set
    extras: list[bytes]  # inputs of targets: JSON; empty without targets
    attachments: list[dict[str, bytes | memoryview]]  # inputs of targets: fields by name
    points: I64  # (n, 2), entry points of the held segments, as ``describe_tiles`` takes them
    damage: list[Damage]  # the records for which another of their container was taken
    problems: dict[int, Damage]  # by slot, why it has no image
    weight: float = 1.0  # of the batch among all ranks' batches

    @classmethod
    def empty(cls, count: int, folders: Iterable[Root], *, weight: float = 1.0) -> BatchRecords:
        """``count`` slots without records."""
        return cls(
            containers=[],
            container=np.full(count, -1, dtype=np.int64),
            folders=tuple(folders),
            entries=np.zeros(count, dtype=ENTRY),
            held=np.zeros(count, dtype=ENTRY),
            tops=np.zeros(count, dtype=np.int64),
            addresses=np.zeros((count, 2), dtype=np.uint64),
            sizes=np.zeros((count, 2), dtype=np.int64),
            layouts=np.ones((count, 6), dtype=np.int64),
            image_sizes=np.ones((count, 2), dtype=np.int64),
            labels=np.full(count, -1, dtype=np.int64),
            ids=np.full(count, -1, dtype=np.int64),
            source=np.zeros(count, dtype=np.int64),
            extras=[b""] * count,
            attachments=[{}] * count,
            points=np.zeros((count, 2), dtype=np.int64),
            damage=[],
            problems={},
            weight=weight,
        )

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def foreign(self) -> Bools:
        """Slots whose image is no upright JPEG, bool (n,): its stream is a file of any format."""
        foreign: Bools = (self.entries["flags"] & FOREIGN) != 0
        return foreign

    def jpeg(self, slot: int) -> memoryview:
        """A slot's stream, a view of its container; empty for none."""
        if not self.sizes[slot, 0]:
            return memoryview(b"")
        buffer: memoryview = self.containers[self.container[slot]].buffer
        offset = int(self.held["offset"][slot])
        return buffer[offset : offset + int(self.sizes[slot, 0])]

    def address(self, slot: int) -> tuple[str, int]:
        """File and offset of the record in a slot."""
        container: Container = self.containers[self.container[slot]]
        offset = int(self.entries["offset"][slot])
        if container.origin is not None:
            return container.origin(offset)
        return str(self.folders[self.source[slot]] / container.ref.name), container.ref.offset + offset

    def files(self) -> RecordFiles:
        """Files and offsets of all slots' records."""
        slots, count = np.flatnonzero(self.container >= 0), len(self.containers)
        numbers, source = self.container[slots], np.zeros(count, np.int64)
        source[numbers] = self.source[slots]
        elsewhere = np.array([container.origin is not None for container in self.containers], np.bool_)
        starts = np.array([container.ref.offset for container in self.containers], np.int64)
        names = [
            _path_in(self.folders[each], container.ref.name)
            for each, container in zip(source.tolist(), self.containers, strict=True)
        ]
        number, offsets = self.container.copy(), np.zeros(len(self), np.int64)
        offsets[slots] = self.entries["offset"][slots].astype(np.int64) + starts[numbers]
        for slot in slots[elsewhere[numbers]].tolist():
            name, offsets[slot] = self.address(slot)
            number[slot] = len(names)
            names.append(name)
        return RecordFiles(names, number, offsets)

    def to_held(self, boxes: I64, slots: Sequence[int] | slice) -> I64:
        """Convert boxes, int64 (n, 4), from pixels of slots' stored images to pixels of their held rows."""
        moved: I64 = boxes - self.tops[slots][:, None] * np.array([0, 1, 0, 1])
        return moved

    def check_reach(self, reach: I64) -> None:
        """Raise PicstoreError if rows of tiles that the views of a slot reach, int64 (n, 4), were not read."""
        slots = np.flatnonzero((self.sizes[:, 0] > 0) & (self.layouts[:, HEIGHT] < self.image_sizes[:, 1]))
        if not len(slots):
            return
        layouts = layouts_of(self.entries[slots])
        rows = rows_to_cut(boxes_to_cut(reach[slots], layouts[:, :2]), layouts)
        tops, height = self.tops[slots], layouts[:, MCU_HEIGHT]
        bottoms = tops + self.layouts[slots, HEIGHT]
        missing = (rows[:, 0] * height < tops) | (np.minimum(rows[:, 1] * height, layouts[:, HEIGHT]) > bottoms)
        for k in np.flatnonzero(missing).tolist():
            raise PicstoreError(
                f"record {self.ids[slots[k]]} needs rows {rows[k, 0]} to {rows[k, 1] - 1} of its tiles, and pixels "
                f"{tops[k]} to {bottoms[k] - 1} from the top were read: a fault of picstore, please report it"
            )

    def corrupt(self, problems: Mapping[int, str]) -> dict[int, Damage]:
        """The errors of slots, given the problem of each."""
        ids = self.ids
        return {slot: Corrupt(f"record {ids[slot]} {text}", *self.address(slot)) for slot, text in problems.items()}

    def release(self) -> None:
        """Let go of the containers, which would stay in memory until the consumer takes the batch."""
        self.sizes[:] = 0  # so that nothing follows the addresses any more
        self.containers.clear()
        self.extras.clear()
        self.attachments.clear()


@lru_cache(maxsize=1 << 12)
def _path_in(root: Root, name: str) -> str:
    """Path of a file, as text; pathlib takes 4 µs, and a batch has 36 containers."""
    return str(root / name)


def layouts_of(entries: Table) -> I64:
    """Sizes and tiling of images, from their index entries: int64 (n, 6), as ``jpeg.cut`` takes them."""
    sizes = _MCU_SIZES[entries["sampling"]]
    columns = (entries["width"], entries["height"], sizes[:, 0], sizes[:, 1])
    return np.stack([*columns, entries["restart_interval"], entries["header_length"]], axis=1).astype(np.int64)


def gather_records(
    requests: Sequence[SourceRequest],
    containers: ReadContainers,
    *,
    sources: Sequence[TrainingSource],
    max_pixels: int = MAX_PIXELS,
) -> BatchRecords:
    """Collect the records of a batch, each slot of which is in one request, from what was read of containers.

    An image of more than ``max_pixels`` is a problem of its slot, as is one of more than its stream can hold. Slots
    with problems have the size of the image that will replace theirs.

    Raises:
        Damage: a source has no sound record in the batch.
    """
    count = sum(len(request.slots) for request in requests)
    folders = (source.dataset.path for source in sources)
    records = BatchRecords.empty(count, folders, weight=requests[0].weight)
    large = sum(
        _gather_source(records, request, containers, source=sources[request.source], max_pixels=max_pixels)
        for request in requests
    )
    if large:
        _refuse_large(records, max_pixels)
    for slot, replacement in replacements(records.source, records.problems).items():
        # Transforms refuse some sizes, such as one smaller than a crop; the replacement's size is fine.
        records.image_sizes[slot] = records.image_sizes[replacement]
    return records


def _refuse_large(records: BatchRecords, max_pixels: int) -> None:
    """Empty the slots whose images claim too many pixels, so that nothing is allocated for them."""
    pixels = records.image_sizes.prod(axis=1)
    held = records.entries["length"].astype(np.int64)
    limits = np.where(records.foreign, max_pixels, np.minimum(max_pixels, MAX_PIXELS_A_BYTE * held))
    for slot in np.flatnonzero((held > 0) & (pixels > limits)).tolist():
        width, height = records.image_sizes[slot].tolist()
        reason = f"max_pixels allows ({max_pixels:,})" if pixels[slot] > max_pixels else f"{held[slot]:,} bytes hold"
        text = f"record {records.ids[slot]} claims {width} × {height} pixels, more than {reason}"
        records.problems[slot] = Corrupt(text, *records.address(slot))
        records.sizes[slot], records.image_sizes[slot] = 0, 1


def _gather_source(
    records: BatchRecords,
    request: SourceRequest,
    containers: ReadContainers,
    *,
    source: TrainingSource,
    max_pixels: int,
) -> int:
    """Fill the slots of a source, and count its images of too many pixels."""
    records.source[request.slots] = request.source
    numbers, number_of = np.unique(request.samples.container, return_inverse=True)
    read = [containers[request.source, request.epoch, number] for number in numbers.tolist()]
    plain = [each for each in read if not isinstance(each, Damage) and not each.damage and each.records is None]
    if len(plain) == len(read) and not source.plan.targets:
        picks = np.array([number_of, request.samples.record, request.slots], np.int64)
        return _enter(records, plain, picks, source=source, max_pixels=max_pixels)
    found = _find_sound(records, request, containers, source=source)
    if source.plan.targets:
        wants_extra = not set(TARGETS).isdisjoint(source.plan.targets)
        for container, here, mine in found:
            file = str(source.dataset.path / container.ref.name)
            _enter_targets(records, container, here, mine, file=file, wants_extra=wants_extra)
    if not found:
        return 0
    number_of = np.repeat(range(len(found)), [len(here) for _, here, _ in found])
    rows, slots = np.concatenate([mine for *_, mine in found]), np.concatenate([here for _, here, _ in found])
    picks = np.array([number_of, rows, slots], np.int64)
    return _enter(records, [container for container, *_ in found], picks, source=source, max_pixels=max_pixels)


def _find_sound(
    records: BatchRecords, request: SourceRequest, containers: ReadContainers, *, source: TrainingSource
) -> list[tuple[Container, I64, I64]]:
    """List the containers of a source with slots and rows of their records; sound ones take damaged ones' places."""
    order = np.argsort(request.samples.container, kind="stable")
    numbers, wanted = request.samples.container[order], request.samples.record[order]
    slots = request.slots[order]
    starts = np.flatnonzero(np.diff(numbers, prepend=-1)).tolist()
    found = []
    for number, start, end in zip(numbers[starts].tolist(), starts, [*starts[1:], len(slots)], strict=True):
        key = request.source, request.epoch, number
        container, here, mine = containers[key], slots[start:end], wanted[start:end]
        if isinstance(container, Damage):
            records.problems.update((slot, container) for slot in here.tolist())
            continue
        if container.damage:
            file = str(source.dataset.path / container.ref.name)
            damage = [_describe_damage(container, record, file) for record in mine[~container.good[mine]].tolist()]
            sizes = np.stack([container.index["width"], container.index["height"]], axis=1).astype(np.int64)
            sound_ones = container.good & source.dataset.live.mask(number)
            alike = sound_ones & source.uses_plan(request.plan, request.epoch, sizes)
            # One of another bucket only where nothing else is left: a batch of one record.
            sound = np.flatnonzero(alike if alike.any() or len(records) > 1 else sound_ones)
            if not len(sound):
                records.problems.update(zip(here.tolist(), damage, strict=True))
                continue
            records.damage.extend(damage)
            mine = next_sound(mine, sound)
        found.append((container, here, container.rows(mine)))
    return found


def _enter(
    records: BatchRecords, found: Sequence[Container], picks: I64, *, source: TrainingSource, max_pixels: int
) -> int:
    """Fill the slots of records, given as :func:`enter_records` takes them; count the ones of too many pixels."""
    from picstore.train.batching.record_kernels import enter_records  # with numba

    number_of, _, slots = picks
    places = np.array([container.place() for container in found], np.uint64)
    records.container[slots] = number_of + len(records.containers)
    records.containers.extend(found)
    taking = (
        records.entries.view(np.uint8).reshape(-1, ENTRY.itemsize),
        records.held.view(np.uint8).reshape(-1, ENTRY.itemsize),
        records.tops,
        records.addresses,
        records.sizes,
        records.layouts,
        records.image_sizes,
        records.ids,
        records.points,
    )
    large: int = enter_records(places, picks, taking, max_pixels)
    labels = source.dataset.labels(records.entries["id"][slots], records.entries["label"][slots])
    records.labels[slots] = source.batch_labels(labels)
    return large


def _enter_targets(
    records: BatchRecords, container: Container, slots: I64, numbers: I64, *, file: str, wants_extra: bool
) -> None:
    for slot, number in zip(slots.tolist(), numbers.tolist(), strict=True):
        try:
            extra = container.extra_json(number) if wants_extra else b""
            attachments = container.attachments(number)
        except Damage as error:
            records.problems[slot] = type(error)(error.what, file, error.offset)
            continue
        records.extras[slot], records.attachments[slot] = extra, attachments
    # The budget counts the container's bytes: extras that take more are decompressed for each batch.
    container.release_extras(above=len(container.buffer))


def _describe_damage(container: Container, record: int, file: str) -> Damage:
    """The error of a damaged record; it has id and offset if the index entry is sound."""
    if cause := container.causes.get(record):
        if cause.file != container.ref.name:
            return cause
        return type(cause)(cause.what, file, cause.offset)
    entry = container.index[record]
    start = container.ref.offset
    if masked(crc32c(entry.tobytes()[:-4])) == entry["entry_crc"]:
        return Corrupt(f"record {entry['id']} fails its CRC", file, start + int(entry["offset"]))
    text = f"the index entry of record number {record} in container {container.ref.ordinal} is damaged"
    return Corrupt(text, file, start)
