"""Reading a container: check the bytes and locate the records (docs/format.md, "Container" and "Recovery").

Damage is narrowed down to records: the CRC of each section is checked first; only if it is wrong, the CRCs of entries
and images show which records are good. Index entries hold offsets from the beginning of the container, so a container
without its header is readable if the file's footer states the number of records. A header's CRC suffices to correct one
flipped bit of the header. If the footer is lost, containers are found by their headers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import numpy as np

from picstore.arrays import Bools
from picstore.errors import Corrupt, Damage, Truncated, counted
from picstore.storage.format import layout
from picstore.storage.format.checksum import crc32c, entry_crcs
from picstore.storage.format.container import Container, ContainerRef
from picstore.storage.format.layout import ALIGNMENT, CONTAINER_MAGIC, SEALED
from picstore.storage.format.record import MAX_EXTRA
from picstore.storage.format.zstd import ZstdError, get_frame_info
from picstore.storage.location.resolve import Location, Where, file_name, locate, read_at

ParsedHeader: TypeAlias = "tuple[layout.ContainerHeader, Damage | None]"
# Bytes to read at a time when a damaged file is searched for containers, which begin at multiples of 4 KiB. In an
# object store, a request for each 4 KiB would take minutes.
_WINDOW = 1 << 20


def unpack_container(
    buffer: memoryview,
    *,
    ref: ContainerRef,
    fields: Sequence[str] = (),
    records: int | None = None,
    header_crc: int | None = None,
    size: int | None = None,
    read: Callable[[int, int], memoryview] | None = None,
    parsed: ParsedHeader | None = None,
) -> Container:
    """Check the bytes of a container and return it as a :class:`Container`, with all damage found.

    Args:
        buffer: the container's bytes; with ``read``, the bytes before the payload suffice.
        ref: the container's position, for messages and to compare with the header.
        fields: names of the attachments.
        records: number of records that the footer or index states. If it is given, a container with a damaged header
            can be read, except for its extras and segment table.
        header_crc: CRC of the header that the footer or index states; the header's own CRC differs if the file is from
            another conversion.
        size: number of bytes of the whole container, ``len(buffer)`` by default.
        read: see :class:`Container`.
        parsed: result of :func:`read_header` for the container, if the caller has it already.

    Raises:
        Damage: nothing of the container can be read, because the header is damaged and ``records`` is not given, or the
            header is sound but contradicts the arguments.
    """
    size = len(buffer) if size is None else size
    damage: list[Damage] = []
    header: layout.ContainerHeader | None = None
    try:
        header, flipped = parsed or read_header(buffer, ref=ref)
        damage += [flipped] if flipped else []
    except Damage as error:
        width = layout.ENTRY.itemsize + len(fields) * layout.ATTACHMENT.itemsize
        if records is None or len(buffer) < layout.SEALED + records * width:
            raise
        damage.append(error)
        count = records
    else:
        _compare(header, ref=ref, fields=len(fields), size=size)
        if records not in (None, header.records) or header_crc not in (None, header.crc):
            raise ref.corrupt("the container differs from what the footer says")
        count = header.records
    index = np.frombuffer(buffer, layout.ENTRY, count, offset=layout.SEALED)
    attached = np.frombuffer(buffer, layout.ATTACHMENT, count * len(fields), offset=layout.SEALED + index.nbytes)
    container = Container(
        ref=ref,
        buffer=buffer,
        size=size,
        index=index,
        fields=tuple(fields),
        good=np.ones(count, dtype=np.bool_),
        attached=attached.reshape(count, len(fields)),
        segment_table=None,
        extras_frame=None,
        extras_size=0,
        damage=damage,
        read=read,
        read_size=len(buffer),
    )
    _check_index(container, header)
    if read is None:
        _check_payload(container, header)
    if header is not None:
        _load_segments(container, header)
        _locate_extras(container, header)
    return container


def read_header(buffer: memoryview, *, ref: ContainerRef) -> ParsedHeader:
    """Return a container's header, and a Damage if a flipped bit in the header was corrected, else None.

    Raise Damage if the header is cut off, damaged in more than one bit, or states a length that is out of bounds.
    """
    flipped: Damage | None = None
    try:
        header = layout.ContainerHeader.unpack(buffer, file=ref.name, offset=ref.offset)
    except Corrupt as error:
        flipped = error
        if (whole := layout.correct_bit_flip(buffer)) is None:
            raise
        header = layout.ContainerHeader.unpack(whole, file=ref.name, offset=ref.offset)
    header.check(file=ref.name, offset=ref.offset)
    return header, flipped


def _compare(header: layout.ContainerHeader, *, ref: ContainerRef, fields: int, size: int) -> None:
    if header.size > size:
        raise Truncated(f"the container of {header.size} bytes is cut off after {size}", ref.name, ref.offset)
    if header.size < size:
        raise ref.corrupt("the container is smaller than the index says")
    if header.attachments != fields:
        raise ref.corrupt("the container has other attachments than the manifest")
    if (header.stream, header.file, header.ordinal) != (ref.stream, ref.file, ref.ordinal):
        raise ref.corrupt("the container belongs elsewhere")


def _mark_lost(container: Container, what: str, bad: Bools) -> None:
    count = int((bad & container.good).sum())
    container.good &= ~bad
    text = f"{what} of container {container.ref.ordinal} is damaged, {count} of {counted(len(bad), 'record')} lost"
    container.damage.append(container.ref.corrupt(text))


def _check_index(container: Container, header: layout.ContainerHeader | None) -> None:
    """Mark records as lost if their entries fail their CRC, or state impossible offsets, sizes or subsampling."""
    index, attached = container.index, container.attached
    whole = container.buffer[layout.SEALED : layout.SEALED + index.nbytes + attached.nbytes]
    bad = np.zeros(len(index), dtype=np.bool_)
    if header is None or crc32c(whole) != header.index_crc:
        bad |= index["entry_crc"] != entry_crcs(index)
        bad |= (attached["entry_crc"] != entry_crcs(attached)).any(axis=1)
    first, last = (layout.SEALED + len(whole), container.size) if header is None else header.payload
    starts, lengths = (
        np.concatenate([index[name][:, None], attached[name]], axis=1).astype(np.int64) for name in ("offset", "length")
    )
    ends = starts + lengths
    bad |= ((starts < first) | (ends > last)).any(axis=1)
    if (starts[~bad].ravel()[1:] < ends[~bad].ravel()[:-1]).any():
        # Two entries with right CRCs claim the same bytes of the payload, so picstore did not write this index.
        bad[:] = True
    bad |= (index["width"] == 0) | (index["height"] == 0) | (index["sampling"] >= len(layout.SAMPLINGS))
    if bad.any():
        _mark_lost(container, "the index", bad)


def _check_payload(container: Container, header: layout.ContainerHeader | None) -> None:
    if header is not None:
        first, last = header.payload
        if crc32c(container.buffer[first:last]) == header.payload_crc:
            return
    bad = np.zeros(len(container), dtype=np.bool_)
    for k in np.flatnonzero(container.good):
        for cell in (container.index[k], *container.attached[k]):
            first = int(cell["offset"])
            bad[k] |= crc32c(container.buffer[first : first + int(cell["length"])]) != cell["crc"]
    if bad.any():
        _mark_lost(container, "the payload", bad)


def _load_segments(container: Container, header: layout.ContainerHeader) -> None:
    raw = container.buffer[header.segments_at : header.extras_at]
    ends = container.index["segment_first"].astype(np.int64) + container.index["segment_count"]
    if crc32c(raw) == header.segments_crc and (ends[container.good] <= header.segments).all():
        container.segment_table = np.frombuffer(raw, dtype=layout.SEGMENT)
        return
    text = f"the segment table of container {container.ref.ordinal} is damaged, no record lost"
    container.damage.append(container.ref.corrupt(text))


def _locate_extras(container: Container, header: layout.ContainerHeader) -> None:
    """Check the zstd frame of the extras, without decompressing it, and each record's range of bytes in the extras."""
    raw = container.buffer[header.extras_at : header.payload_at]
    if not header.extras_raw and not container.index["extra_length"].any():
        container.extras_frame = raw
        return
    sound = not header.extras_raw or (crc32c(raw) == header.extras_crc and declared_size(raw) == header.extras_raw)
    chosen = container.good & (container.index["extra_length"] > 0)
    starts, lengths = (container.index[name][chosen].astype(np.int64) for name in ("extra_offset", "extra_length"))
    ends = starts + lengths
    # The records' extras must not overlap; otherwise their sum could be many times as large as the decompressed frame.
    apart = not (starts[1:] < ends[:-1]).any()
    if sound and apart and (ends <= header.extras_raw).all() and (lengths <= MAX_EXTRA).all():
        container.extras_frame, container.extras_size = raw, header.extras_raw
    else:
        container.mark_extras_damaged()


def declared_size(frame: memoryview) -> int:
    """Return the decompressed size that a zstd frame declares; -1 if it declares none."""
    try:
        size = get_frame_info(frame).decompressed_size
    except ZstdError:
        return -1
    return -1 if size is None else size


def recover_containers(root: Where, *, stream: int, file: int, fields: tuple[str, ...] = ()) -> Iterator[Container]:
    """Yield every container of a damaged file that can be read, in order; raise NotADataset if the file is missing.

    After damage, reading continues at the next multiple of 4 KiB where a container's magic number and a header with a
    right CRC lie, perhaps after correction of one bit. Lengths in a header with a wrong CRC are never used.
    """
    name = file_name(stream, file)
    path = locate(root) / name
    size = path.size()
    offset = ALIGNMENT
    while (offset := _find_magic(path, offset, size, name)) < size:
        step = ALIGNMENT
        try:
            head = read_at(path, offset, SEALED, file=name)
            header, _ = read_header(head, ref=ContainerRef(name, offset, stream, file))
            buffer = read_at(path, offset, header.size, file=name)
            ref = ContainerRef(name, offset, stream, file, header.ordinal)
            container = unpack_container(buffer, ref=ref, fields=fields)
        except Damage:
            pass  # Search on from the next multiple of 4 KiB.
        else:
            yield container
            step = header.size
        offset += step


def _find_magic(path: Location, offset: int, size: int, name: str) -> int:
    """Search a file from ``offset`` on for a container's magic number at a multiple of 4 KiB; return its offset.

    Return ``size``, the file's size, if there is none, or the file ends before a whole header.
    """
    while offset + SEALED <= size:
        window = read_at(path, offset, min(_WINDOW, size - offset), file=name)
        for at in range(0, len(window) - SEALED + 1, ALIGNMENT):
            if window[at : at + len(CONTAINER_MAGIC)] == CONTAINER_MAGIC:
                return offset + at
        offset += len(window)
    return size
