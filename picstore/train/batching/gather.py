"""Gathering of a batch's records: stream, size and label of each slot (index in the batch), before any decoding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from picstore.arrays import I64, U64, Bools, Table
from picstore.errors import Corrupt, Damage, PicstoreError
from picstore.jpeg.tiles import HEIGHT, MAX_PIXELS_A_BYTE, MCU_HEIGHT, rows_to_cut
from picstore.storage.format.checksum import crc32c, masked
from picstore.storage.format.container import Container
from picstore.storage.format.layout import ENTRY, FOREIGN
from picstore.storage.format.maps import MapSpec, StoredMap
from picstore.storage.location.resolve import Root
from picstore.train.batching.damage import next_sound, replacements
from picstore.train.batching.host_batch import RecordFiles
from picstore.train.batching.spec import MAX_PIXELS
from picstore.train.batching.views_reach import boxes_to_cut, layouts_of
from picstore.train.order.requests import SourceRequest, TrainingSource
from picstore.train.transforms.transform_plan import TARGETS

ReadResult: TypeAlias = "Container | Damage"  # a container, or why it cannot be read
# Source, epoch and index of a container; the epoch, because each epoch's crops need other parts of the container.
EpochContainer: TypeAlias = tuple[int, int, int]
ReadContainers: TypeAlias = Mapping[EpochContainer, ReadResult]


@dataclass(frozen=True, slots=True)
class BatchRecords:
    """Records of a batch before decoding: streams, sizes and labels by slot, in arrays of n slots."""

    containers: list[Container]  # containers of the records; cleared when the batch is filled
    container: I64  # (n,), index in ``containers`` of each record's container; −1 if a slot is empty
    folders: tuple[Root, ...]  # root folder of each dataset, by the index in ``source``
    entries: Table  # ``layout.ENTRY`` (n,), index entries; zeros for an empty slot
    held: Table  # (n,), index entries that describe only the parts of records that were read
    tops: I64  # (n,), number of the image's pixel rows above the rows that were read
    addresses: U64  # (n, 2), address of the stream, and of its segment lengths, see ``jpeg.cut.TiledJpegs``; 0 if empty
    sizes: I64  # (n, 2), bytes of the stream, and number of its restart segments; 0 for an empty slot
    layouts: I64  # (n, 6), sizes and tilings of the images in ``held``, see ``layouts_of``
    image_sizes: I64  # (n, 2), width and height of stored images
    labels: I64  # (n,), −1 if nothing of the record's container can be read
    ids: I64  # (n,), ids of the records; −1 if nothing of the record's container can be read
    source: I64  # (n,), index of the dataset of each slot
    extras: list[bytes]  # each record's annotations as JSON; empty if no target of the loader needs them
    attachments: list[dict[str, bytes | memoryview | StoredMap]]  # image files and maps for targets, by name
    points: I64  # (n, 2), address of the entry points within segments, and their distance in MCUs; 0 without any
    damage: list[Damage]  # damage of records that were replaced by sound records of their containers
    problems: dict[int, Damage]  # reason why a slot has no image, by slot
    weight: float = 1.0  # factor for the loss of the batch, see ``Batch.weight``

    @classmethod
    def empty(cls, count: int, folders: Iterable[Root], *, weight: float = 1.0) -> BatchRecords:
        """Return records for ``count`` slots, all of which are still empty."""
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
        """Whether each slot's stream is a file of another kind than an upright JPEG: bool (n,)."""
        foreign: Bools = (self.entries["flags"] & FOREIGN) != 0
        return foreign

    def jpeg(self, slot: int) -> memoryview:
        """Return a slot's stream, which shares the container's memory; it is empty if the slot is empty."""
        if not self.sizes[slot, 0]:
            return memoryview(b"")
        buffer: memoryview = self.containers[self.container[slot]].buffer
        offset = int(self.held["offset"][slot])
        return buffer[offset : offset + int(self.sizes[slot, 0])]

    def address(self, slot: int) -> tuple[str, int]:
        """Return the file of the record in a slot, and the record's offset there."""
        container: Container = self.containers[self.container[slot]]
        offset = int(self.entries["offset"][slot])
        if container.origin is not None:
            return container.origin(offset)
        return str(self.folders[self.source[slot]] / container.ref.name), container.ref.offset + offset

    def files(self) -> RecordFiles:
        """Return, for all slots, the record's file and the record's offset there."""
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
        """Convert boxes, int64 (n, 4), from coordinates in stored images to coordinates in the rows that were read."""
        moved: I64 = boxes - self.tops[slots][:, None] * np.array([0, 1, 0, 1])
        return moved

    def check_reach(self, reach: I64) -> None:
        """Raise PicstoreError if ``reach``, int64 (n, 4), includes rows of tiles that were not read."""
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
        """Convert problems by slot to Corrupt errors, each of which names the record, its file and its offset."""
        ids = self.ids
        return {slot: Corrupt(f"record {ids[slot]} {text}", *self.address(slot)) for slot, text in problems.items()}

    def release(self) -> None:
        """Drop the containers, which would otherwise stay in memory until the consumer takes the batch."""
        # With a size of 0, nothing is read at the address that a slot's stream had in its container.
        self.sizes[:] = 0
        self.containers.clear()
        self.extras.clear()
        self.attachments.clear()


@lru_cache(maxsize=1 << 12)
def _path_in(root: Root, name: str) -> str:
    """Return the path of a file, cached because pathlib takes 4 µs and a batch has 36 containers."""
    return str(root / name)


def gather_records(
    requests: Sequence[SourceRequest],
    containers: ReadContainers,
    *,
    sources: Sequence[TrainingSource],
    max_pixels: int = MAX_PIXELS,
) -> BatchRecords:
    """Collect the records of a batch from the containers that were read.

    Each slot is in exactly one of ``requests``. An image with more than ``max_pixels``, or with more pixels than its
    stream can hold, is entered as a problem; its slot gets the size of the image that will replace it.

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
        # A damaged image may have a size that transforms reject, for example because a crop does not fit.
        records.image_sizes[slot] = records.image_sizes[replacement]
    return records


def _refuse_large(records: BatchRecords, max_pixels: int) -> None:
    """Empty the slots whose images claim too many pixels, so that no memory is allocated for them."""
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
    """Fill the slots of one request; return the number of images with too many pixels."""
    records.source[request.slots] = request.source
    numbers, number_of = np.unique(request.samples.container, return_inverse=True)
    read = [containers[request.source, request.epoch, number] for number in numbers.tolist()]
    plain = [each for each in read if not isinstance(each, Damage) and not each.damage and each.records is None]
    if len(plain) == len(read) and not source.plan.targets:
        picks = np.array([number_of, request.samples.record, request.slots], np.int64)
        return _enter(records, plain, picks, source=source, max_pixels=max_pixels)
    found = _find_sound(records, request, containers, source=source)
    if source.plan.targets:
        wants_extra, maps = not set(TARGETS).isdisjoint(source.plan.targets), source.dataset.manifest.maps
        for container, here, mine in found:
            file = str(source.dataset.path / container.ref.name)
            _enter_targets(records, container, here, mine, maps=maps, file=file, wants_extra=wants_extra)
    if not found:
        return 0
    number_of = np.repeat(range(len(found)), [len(here) for _, here, _ in found])
    rows, slots = np.concatenate([mine for *_, mine in found]), np.concatenate([here for _, here, _ in found])
    picks = np.array([number_of, rows, slots], np.int64)
    return _enter(records, [container for container, *_ in found], picks, source=source, max_pixels=max_pixels)


def _find_sound(
    records: BatchRecords, request: SourceRequest, containers: ReadContainers, *, source: TrainingSource
) -> list[tuple[Container, I64, I64]]:
    """List a request's containers, each with the slots to fill and the index in the container of each slot's record.

    Damaged records are replaced by sound records of the same container.
    """
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
            damage = [describe_damage(container, record, file) for record in mine[~container.good[mine]].tolist()]
            sizes = np.stack([container.index["width"], container.index["height"]], axis=1).astype(np.int64)
            sound_ones = container.good & source.dataset.live.mask(number)
            alike = sound_ones & source.uses_plan(request.plan, request.epoch, sizes)
            # A record of another bucket (range of image shapes) may replace a damaged record only in a batch of one
            # record, because such a batch has no other slot to copy.
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
    """Fill slots with records of ``found``; for ``picks`` and the result, see the kernel ``enter_records``."""
    from picstore.train.batching.batch_kernels import enter_records  # imported late, because it imports numba

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
    records: BatchRecords,
    container: Container,
    slots: I64,
    numbers: I64,
    *,
    maps: Mapping[str, MapSpec],
    file: str,
    wants_extra: bool,
) -> None:
    for slot, number in zip(slots.tolist(), numbers.tolist(), strict=True):
        try:
            extra = container.extra_json(number) if wants_extra else b""
            attachments = container.attachments(number)
        except Damage as error:
            records.problems[slot] = type(error)(error.what, file, error.offset)
            continue
        stored = {name: StoredMap(maps[name], blob) for name, blob in attachments.items() if name in maps and len(blob)}
        records.extras[slot], records.attachments[slot] = extra, {**attachments, **stored}
    # Drop decompressed extras larger than the container, because the budget counts only the container's bytes.
    container.release_extras(above=len(container.buffer))


def describe_damage(container: Container, record: int, file: str) -> Damage:
    """Return the error for a damaged record; it names the record's id and offset if the index entry is sound."""
    if cause := container.causes.get(record):
        if cause.file != container.ref.name:
            return cause
        return type(cause)(cause.what, file, cause.offset)
    entry = container.index[record]
    start = container.ref.offset
    if has_sound_entry(container, record):
        return Corrupt(f"record {entry['id']} fails its CRC", file, start + int(entry["offset"]))
    text = f"the index entry of record number {record} in container {container.ref.ordinal} is damaged"
    return Corrupt(text, file, start)


def has_sound_entry(container: Container, record: int) -> bool:
    """Return whether a record's index entry passes its CRC; if so, its id is right even if the image is damaged."""
    entry = container.index[record]
    return bool(masked(crc32c(entry.tobytes()[:-4])) == entry["entry_crc"])
