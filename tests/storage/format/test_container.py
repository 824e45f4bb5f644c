"""storage.container: packing, unpacking, and what damage costs."""

from __future__ import annotations

import dataclasses
import io
import random
import struct
import sys
import tracemalloc

import numpy as np
import pytest
from grids import slow_except
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from samples import picture

from picstore.errors import Corrupt, Damage, TooLarge, Truncated, UsageError
from picstore.kernels.crc32c import compile_crc32c
from picstore.prepare.convert.row_writer import make_record
from picstore.storage.format import checksum
from picstore.storage.format.checksum import combine_crcs, combine_runs, crc32c, masked
from picstore.storage.format.container import Container, ContainerRef
from picstore.storage.format.container_writer import pack_container, packed_size
from picstore.storage.format.layout import ALIGNMENT, ATTACHMENT, ENTRY, SAMPLINGS, SEALED, SEGMENT, ContainerHeader
from picstore.storage.format.read_container import unpack_container
from picstore.storage.format.record import ImageInfo, Record, extra_to_json
from picstore.storage.format.zstd import compress

REF = ContainerRef("0003/000007.pic", 8192, stream=3, file=7, ordinal=2)
FIELDS = ("mask", "depth")
_BY_INSTRUCTION, _BY_DIVISION = compile_crc32c(), compile_crc32c(instruction=False)


def portable(data: bytes, before: int = 0) -> int:
    return _BY_DIVISION(before, np.frombuffer(data, np.uint8).ctypes.data, len(data))


def packed(*records: object, **options: object) -> bytearray:
    """A container in one piece."""
    return bytearray().join(pack_container(*records, **options))  # type: ignore[arg-type]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
infos = st.builds(
    ImageInfo,
    width=st.integers(1, 65535),
    height=st.integers(1, 65535),
    sampling=st.sampled_from(SAMPLINGS),
    restart_interval=st.integers(0, 65535),
    header_length=st.integers(0, 1 << 20),
    segments=st.lists(st.integers(0, 65535), max_size=6).map(lambda lengths: np.array(lengths, dtype=SEGMENT)),
)
records = st.builds(
    Record,
    id=st.integers(0, (1 << 64) - 1),
    label=st.integers(-(1 << 63), (1 << 63) - 1),
    jpeg=st.binary(max_size=300),
    info=infos,
    extra_json=json_values.map(extra_to_json),
    attachments=st.dictionaries(st.sampled_from(FIELDS), st.binary(max_size=50)),
)


def jpeg(number: int) -> bytes:
    """A picture of two restart segments."""
    out = io.BytesIO()
    Image.fromarray(picture(number, width=24, height=16)).save(out, "JPEG", quality=90, restart_marker_blocks=1)
    return out.getvalue()


def sample(count: int = 4, *, attachments: bool = True) -> list[Record]:
    """Records of real JPEGs with extras, and one field of attachments."""
    made = []
    for k in range(count):
        attached = {"mask": bytes([k]) * 20} if attachments else {}
        made.append(make_record(jpeg(k), id=100 + k, label=k - 1, extra={"name": f"näme {k}"}, attachments=attached))
    return made


def reread(block: bytes, fields: tuple[str, ...] = FIELDS, records: int | None = None) -> Container:
    return unpack_container(memoryview(block), ref=REF, fields=fields, records=records)


def assert_same(a: Record, b: Record) -> None:
    assert (a.id, a.label, bytes(a.jpeg), a.info, a.extra_json) == (b.id, b.label, bytes(b.jpeg), b.info, b.extra_json)
    assert np.array_equal(a.info.segments, b.info.segments)
    kept = {name: bytes(blob) for name, blob in a.attachments.items() if blob}  # empty and absent are one
    assert kept == {name: bytes(blob) for name, blob in b.attachments.items()}


def header_of(block: bytes) -> ContainerHeader:
    return ContainerHeader.unpack(block, file="", offset=0)


def with_header(block: bytes, **changes: int) -> bytes:
    """The container with other fields in its header, which holds its CRC again."""
    return dataclasses.replace(header_of(block), **changes).pack() + block[SEALED:]


def with_cell(block: bytes, column: str, row: int, value: int) -> bytes:
    """The container with another value in its index; every CRC holds again."""
    header = header_of(block)
    index = np.frombuffer(block, dtype=ENTRY, count=header.records, offset=SEALED).copy()
    index[column][row] = value
    index["entry_crc"][row] = masked(crc32c(index[row].tobytes()[:-4]))
    whole = index.tobytes() + block[SEALED + index.nbytes : SEALED + header.index_size]
    changed = block[:SEALED] + whole + block[SEALED + len(whole) :]
    return with_header(changed, index_crc=crc32c(whole))


def test_the_layouts_have_the_sizes_that_the_format_gives_them() -> None:
    assert (ENTRY.itemsize, ATTACHMENT.itemsize, SEGMENT.itemsize) == (64, 16, 2)
    assert ContainerHeader.STRUCT.size + 4 == SEALED == 64


@pytest.mark.parametrize("crc", [crc32c, portable])
def test_crc32c_gives_the_values_of_rfc_3720(crc) -> None:
    assert crc(b"") == 0
    assert crc(b"123456789") == 0xE3069283
    assert crc(bytes(32)) == 0x8A9136AA
    assert crc(b"\xff" * 32) == 0x62A8AB43
    assert crc(memoryview(bytes(range(32)))) == 0x46DD794E
    assert crc(bytearray(range(31, -1, -1))) == 0x113FDB5C


@given(st.binary(max_size=200))
def test_the_implementations_of_crc32c_agree(data: bytes) -> None:
    by_instruction = _BY_INSTRUCTION(0, np.frombuffer(data, np.uint8).ctypes.data, len(data))
    assert crc32c(data) == portable(data) == by_instruction


@given(st.lists(st.binary(max_size=50), max_size=5))
def test_the_crc_of_parts_is_that_of_the_whole(parts: list[bytes]) -> None:
    value = 0
    for part in parts:
        value = portable(part, value)
    crcs, lengths = np.array([crc32c(part) for part in parts], np.uint32), np.array([len(p) for p in parts], np.int64)
    assert value == combine_crcs(crcs, lengths) == crc32c(b"".join(parts))


@pytest.mark.parametrize("size", [0, 1, checksum._LONG - 1, checksum._LONG, checksum._LONG + 13])
def test_the_crc_of_any_length_is_that_of_the_reference(size: int) -> None:
    data = np.random.default_rng(size).bytes(size + 3)
    expected = portable(data[3:])
    assert [crc32c(data[3:]), crc32c(memoryview(data)[3:]), crc32c(np.frombuffer(data, np.uint8)[3:])] == [expected] * 3


@pytest.mark.parametrize("lacking", ["google_crc32c", "google_crc32c._crc32c"])
def test_without_google_crc32c_the_instruction_of_the_cpu_gives_the_same(
    monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    data = np.random.default_rng(0).bytes(checksum._LONG)
    monkeypatch.setitem(sys.modules, lacking, None)
    short, long = checksum._load()
    assert "google" not in f"{short.__module__}{long!r}" and long.argtypes == _BY_INSTRUCTION.argtypes  # type: ignore[attr-defined]
    monkeypatch.setattr(checksum, "_short", short)
    monkeypatch.setattr(checksum, "_without_lock", long)
    assert [crc32c(data), crc32c(data[:100]), crc32c(b"")] == [portable(data), portable(data[:100]), 0]


@given(st.lists(st.lists(st.binary(max_size=50), min_size=1, max_size=5), min_size=1, max_size=5))
def test_the_crcs_of_several_wholes_are_found_at_once(wholes: list[list[bytes]]) -> None:
    parts = [part for whole in wholes for part in whole]
    crcs, lengths = np.array([crc32c(part) for part in parts], np.uint32), np.array([len(p) for p in parts], np.int64)
    starts = np.cumsum([0, *map(len, wholes[:-1])])
    assert combine_runs(crcs, lengths, starts).tolist() == [crc32c(b"".join(whole)) for whole in wholes]


def test_the_crc_of_long_parts_is_that_of_the_whole() -> None:
    parts = [b"a", b"\xff" * (1 << 20), b"", b"b" * 0x7654321, b"c" * 0x1234567]
    crcs, lengths = np.array([crc32c(part) for part in parts], np.uint32), np.array([len(p) for p in parts], np.int64)
    assert combine_crcs(crcs, lengths) == crc32c(b"".join(parts))


def test_the_crc_of_the_index_depends_on_the_entries() -> None:
    """It would not if entries ended in their plain CRC: bytes with their CRC behind them all have the same CRC."""
    assert crc32c(b"a" + crc32c(b"a").to_bytes(4, "little")) == crc32c(b"b" + crc32c(b"b").to_bytes(4, "little"))
    originals = sample(3)
    variants = [
        originals,
        originals[::-1],
        [dataclasses.replace(originals[0], label=7), *originals[1:]],
        [*originals[:2], dataclasses.replace(originals[2], id=7)],
        [dataclasses.replace(originals[0], attachments={"mask": bytes(19), "depth": b"0"}), *originals[1:]],
    ]
    blocks = [packed(variant, fields=FIELDS, ref=REF) for variant in variants]
    assert len({header_of(block).index_crc for block in blocks}) == len(variants)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(records, min_size=1, max_size=6), st.sampled_from([FIELDS, FIELDS[:1], ()]))
def test_records_come_back_as_they_were(originals: list[Record], fields: tuple[str, ...]) -> None:
    declared = [
        dataclasses.replace(r, attachments={name: blob for name, blob in r.attachments.items() if name in fields})
        for r in originals
    ]
    block = packed(declared, fields=fields, ref=REF)
    assert len(block) % ALIGNMENT == 0
    bound = packed_size(
        len(declared),
        attachments=len(fields),
        segments=sum(len(r.info.segments) for r in declared),
        extras=sum(len(r.extra_json) for r in declared),
        payload=sum(len(r.jpeg) + sum(map(len, r.attachments.values())) for r in declared),
    )
    assert len(block) <= bound
    assert packed(declared, fields=fields, ref=REF) == block
    container = reread(block, fields)
    assert len(container) == len(declared)
    assert not container.damage
    assert container.good.all()
    for k, original in enumerate(declared):
        assert_same(original, container.record(k))
        assert bytes(container.jpeg(k)) == original.jpeg


def test_incompressible_extras_stay_within_the_bound_on_a_containers_size() -> None:
    noise = random.Random(0).randbytes
    for length in (1, 100, 4000, 200_000):
        record = Record(id=0, label=0, jpeg=b"", info=ImageInfo(1, 1), extra_json=noise(length))
        block = packed([record], ref=REF)
        assert len(block) <= packed_size(1, attachments=0, segments=0, extras=length, payload=0)


def test_an_image_is_a_view_of_the_container_and_not_a_copy() -> None:
    block = packed(sample(), fields=("mask",), ref=REF)
    view = reread(block, ("mask",)).record(2).jpeg
    assert isinstance(view, memoryview)
    assert view.obj is block


def test_records_beyond_the_limits_of_a_container_are_refused() -> None:
    with pytest.raises(UsageError, match="at most 64"):
        packed(sample(1), fields=[f"field{k}" for k in range(65)], ref=REF)
    huge = memoryview(bytes(1 << 29))
    several = [Record(id=k, label=0, jpeg=huge, info=ImageInfo(1, 1)) for k in range(9)]  # over 2**32 bytes
    with pytest.raises(UsageError, match="smaller containers"):
        packed(several, ref=REF)


@pytest.mark.parametrize(("id", "label"), [(-1, 0), (1 << 64, 0), (0, 1 << 63), (0, -(1 << 63) - 1)])
def test_ids_and_labels_that_do_not_fit_are_refused(id: int, label: int) -> None:
    with pytest.raises(UsageError, match="64 bits"):
        Record(id=id, label=label, jpeg=b"", info=ImageInfo(1, 1))


@pytest.mark.parametrize("size", [(0, 1), (1, 0), (65536, 1), (1, 65536)])
def test_image_sizes_that_do_not_fit_are_refused(size: tuple[int, int]) -> None:
    with pytest.raises(UsageError, match="pixels"):
        ImageInfo(*size)


@pytest.mark.parametrize("extra", [{1, 2}, b"bytes", float("nan"), "\ud800", object()])
def test_extras_that_json_cannot_hold_are_refused(extra: object) -> None:
    with pytest.raises(UsageError, match="not JSON"):
        extra_to_json(extra)


def test_an_extra_may_have_16_mib_and_no_more() -> None:
    assert len(extra_to_json("x" * ((1 << 24) - 2))) == 1 << 24
    with pytest.raises(UsageError, match="at most"):
        extra_to_json("x" * ((1 << 24) - 1))


def test_extras_nested_too_deeply_are_refused() -> None:
    deep: list = []
    for _ in range(200_000):
        deep = [deep]
    with pytest.raises(UsageError, match="not JSON"):
        extra_to_json(deep)


# Damage: one bit


@pytest.mark.parametrize("step", [*slow_except([13], [3, 13]), pytest.param(1, marks=pytest.mark.nightly)])
def test_any_flipped_bit_costs_at_most_a_record_and_never_passes_for_good(step: int) -> None:
    """Every bit of a whole container, one at a time; some of every part of it in a default run."""
    originals = sample(3)
    block = bytearray(packed(originals, fields=("mask",), ref=REF))
    header = header_of(bytes(block))
    payload_end = header.payload[1]
    for bit in range(0, 8 * len(block), step):
        at = bit >> 3
        if at >= payload_end and at % 64:  # of the padding a sample will do
            continue
        block[at] ^= 1 << (bit & 7)
        container = reread(block, ("mask",), records=3)
        in_segments = header.segments_at <= at < header.extras_at
        in_extras = header.extras_at <= at < header.payload_at
        assert container.good.sum() >= 2, at
        assert bool(container.damage) == (at < payload_end), at
        assert container.good.all() == (at < SEALED or in_segments or in_extras or at >= payload_end), at
        assert (container.segment_table is None) == in_segments, at
        assert (container.extras is None) == in_extras, at
        for k in np.flatnonzero(container.good):
            entry, original = container.index[k], originals[k]
            assert (entry["id"], entry["label"]) == (original.id, original.label)
            assert bytes(container.jpeg(k)) == original.jpeg
            assert container.info(k) == original.info
            if in_extras:
                with pytest.raises(Corrupt, match="extras"):
                    container.record(k)
            elif in_segments:
                assert len(container.record(k).info.segments) == 0
            else:
                assert_same(original, container.record(k))
        for k in np.flatnonzero(~container.good):
            with pytest.raises(Corrupt, match=f"record {k} of container 2"):
                container.record(k)
        block[at] ^= 1 << (bit & 7)


def test_a_flipped_bit_in_the_header_is_mended_without_knowing_the_footer() -> None:
    originals = sample(3)
    block = bytearray(packed(originals, fields=("mask",), ref=REF))
    for bit in range(8 * SEALED):
        block[bit >> 3] ^= 1 << (bit & 7)
        container = reread(block, ("mask",))
        assert len(container.damage) == 1
        for k, original in enumerate(originals):
            assert_same(original, container.record(k))
        block[bit >> 3] ^= 1 << (bit & 7)


def test_images_outlive_a_lost_header_when_the_footer_knows_their_number() -> None:
    originals = sample(3)
    block = bytearray(packed(originals, fields=("mask",), ref=REF))
    for spoilt in (bytes(SEALED), b"\xff" * SEALED, random.Random(0).randbytes(SEALED)):
        block[:SEALED] = spoilt
        with pytest.raises(Corrupt):
            reread(block, ("mask",))
        container = reread(block, ("mask",), records=3)
        assert container.good.all()
        assert len(container.damage) == 1
        for k, original in enumerate(originals):
            assert bytes(container.jpeg(k)) == original.jpeg
            assert container.info(k) == original.info
            with pytest.raises(Corrupt, match="extras"):
                container.record(k)


def test_two_to_four_flipped_bits_in_a_header_are_never_put_right_wrongly() -> None:
    block = packed(sample(2), fields=("mask",), ref=REF)
    rng = random.Random(1)
    for _ in range(200):
        damaged = bytearray(block)
        for bit in rng.sample(range(8 * SEALED), rng.choice((2, 3, 4))):
            damaged[bit >> 3] ^= 1 << (bit & 7)
        with pytest.raises(Corrupt):
            reread(damaged, ("mask",))


def test_each_damaged_image_is_lost_alone() -> None:
    originals = sample(6, attachments=False)
    block = bytearray(packed(originals, ref=REF))
    index = reread(bytes(block), ()).index
    for k in (1, 4):
        block[int(index["offset"][k]) + 5] ^= 0x55
    block[SEALED + 2 * ENTRY.itemsize] ^= 1
    container = reread(block, ())
    assert np.flatnonzero(~container.good).tolist() == [1, 2, 4]
    assert [error.what for error in container.damage] == [
        "the index of container 2 is damaged, 1 of 6 records lost",
        "the payload of container 2 is damaged, 2 of 6 records lost",
    ]
    assert (container.damage[0].file, container.damage[0].offset) == (REF.name, REF.offset)


def test_random_damage_never_gives_wrong_bytes() -> None:
    originals = sample(5)
    block = packed(originals, fields=("mask",), ref=REF)
    rng = random.Random(2)
    survivors = refused = 0
    for _ in range(600):
        damaged = bytearray(block)
        for _ in range(rng.choice((1, 3, 10, 100))):
            first = rng.randrange(len(damaged))
            damaged[first : first + 8] = rng.randbytes(len(damaged[first : first + 8]))
        try:
            container = reread(damaged, ("mask",), records=rng.choice((None, 5)))
        except Damage:
            refused += 1
            continue
        for k in np.flatnonzero(container.good):
            survivors += 1
            try:
                assert_same(originals[k], container.record(k))
            except AssertionError:
                assert container.segment_table is None
            except Corrupt:
                assert container.extras is None
    assert survivors > 1000
    assert refused > 10


# Damage: missing bytes, garbage, hostile fields


def test_a_container_cut_off_anywhere_is_truncated() -> None:
    block = packed(sample(2), fields=("mask",), ref=REF)
    for length in range(len(block)):
        for known in (None, 2):
            with pytest.raises(Truncated):
                reread(block[:length], ("mask",), records=known)


@given(st.binary(max_size=400), st.sampled_from([None, 0, 1, 5, 1 << 20]))
def test_garbage_is_damage(garbage: bytes, known: int | None) -> None:
    with pytest.raises(Damage):
        container = reread(garbage, records=known)
        assert not container.good.any()
        raise container.damage[0]


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"size": 0xFFFFFFFF}, TooLarge),
        ({"size": (1 << 30) + 4096}, TooLarge),
        ({"size": 1 << 30}, Corrupt),
        ({"size": 0}, Corrupt),
        ({"records": 0xFFFFFFFF}, TooLarge),
        ({"records": (1 << 20) + 1}, TooLarge),
        ({"records": 1 << 20}, Corrupt),
        ({"records": 0}, Corrupt),
        ({"attachments": 65}, TooLarge),
        ({"attachments": 64}, Corrupt),
        ({"attachments": 0}, Corrupt),
        ({"segments": 0xFFFFFFFF}, Corrupt),
        ({"extras_size": 0xFFFFFFFF}, Corrupt),
        ({"extras_raw": 0xFFFFFFFF}, TooLarge),
        ({"extras_raw": (1 << 28) + 1}, TooLarge),
        ({"payload_size": 0xFFFFFFFF}, Corrupt),
        ({"stream": 4}, Corrupt),
        ({"file": 8}, Corrupt),
        ({"ordinal": 3}, Corrupt),
        ({"size": 12288, "payload_size": 8192}, Truncated),
    ],
)
def test_a_hostile_header_that_holds_its_crc_is_refused_without_allocating(changes, error) -> None:
    block = with_header(packed(sample(2), fields=("mask",), ref=REF), **changes)
    tracemalloc.start()
    try:
        with pytest.raises(error):
            reread(block, ("mask",))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("changes", [{"records": 1}, {"payload_size": 0}, {"payload_size": 1}, {"segments": 0}])
def test_a_header_that_lies_within_the_padding_never_gives_wrong_bytes(changes) -> None:
    originals = sample(2)
    container = reread(with_header(packed(originals, fields=("mask",), ref=REF), **changes), ("mask",))
    assert container.damage
    for k in np.flatnonzero(container.good):
        assert bytes(container.jpeg(k)) == originals[k].jpeg


def test_a_container_of_another_conversion_is_told_by_its_headers_crc() -> None:
    block = packed(sample(2), fields=("mask",), ref=REF)
    crc = header_of(block).crc
    assert crc == int.from_bytes(block[SEALED - 4 : SEALED], "little")
    unpack_container(memoryview(block), ref=REF, fields=("mask",), records=2, header_crc=crc)
    with pytest.raises(Corrupt, match="differs from what the footer says"):
        unpack_container(memoryview(block), ref=REF, fields=("mask",), records=2, header_crc=crc ^ 1)
    with pytest.raises(Corrupt, match="differs from what the footer says"):
        unpack_container(memoryview(block), ref=REF, fields=("mask",), records=3)


@pytest.mark.parametrize("claimed", [1, 1000, 1 << 28])
def test_extras_that_lie_about_their_size_are_lost_and_no_image_is(claimed: int) -> None:
    originals = sample(2)
    block = packed(originals, fields=("mask",), ref=REF)
    tracemalloc.start()
    try:
        container = reread(with_header(block, extras_raw=claimed), ("mask",))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert container.good.all()
    assert [error.what for error in container.damage] == ["the extras of container 2 are damaged, the images are not"]
    with pytest.raises(Corrupt, match="extras"):
        container.record(0)


@pytest.mark.parametrize("frame", [b"", b"no zstd at all", compress(bytes(1 << 28))[:-3]])
def test_a_frame_of_extras_that_is_none_loses_the_extras_and_no_image(frame: bytes) -> None:
    extra = b'{"a":1}'
    record = Record(id=1, label=0, jpeg=b"12345", info=ImageInfo(1, 1), extra_json=extra)
    header = header_of(packed([record], ref=REF))
    at = SEALED + ENTRY.itemsize + len(frame)
    index = np.zeros(1, dtype=ENTRY)
    index[0] = (1, 0, at, 5, crc32c(b"12345"), 1, 1, 0, 0, 0, 0, 0, 0, 0, len(extra), 0, 0)
    index["entry_crc"] = masked(crc32c(index.tobytes()[:-4]))
    size = -(-(at + 5) // ALIGNMENT) * ALIGNMENT
    changed = dataclasses.replace(
        header, size=size, extras_size=len(frame), extras_crc=crc32c(frame), index_crc=crc32c(index.tobytes())
    )
    block = (changed.pack() + index.tobytes() + frame + b"12345").ljust(size, b"\0")
    container = reread(block, ())
    assert container.good.all()
    assert container.extras is None
    assert bytes(container.jpeg(0)) == b"12345"


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("offset", 0),
        ("offset", 63),
        ("offset", 0xFFFFFFFF),
        ("length", 0xFFFFFFFF),
        ("length", 1 << 20),
        ("width", 0),
        ("height", 0),
        ("sampling", len(SAMPLINGS)),
        ("sampling", 255),
    ],
)
def test_an_impossible_entry_loses_its_record_even_when_every_crc_holds(column: str, value: int) -> None:
    originals = sample(3)
    container = reread(with_cell(packed(originals, fields=("mask",), ref=REF), column, 1, value), ("mask",))
    assert container.good.tolist() == [True, False, True]
    for k in (0, 2):
        assert_same(originals[k], container.record(k))


def test_entries_that_share_bytes_lose_the_container_though_all_crcs_hold() -> None:
    block = packed(sample(3), fields=("mask",), ref=REF)
    first = reread(block, ("mask",)).index[0]
    container = reread(with_cell(block, "offset", 1, int(first["offset"])), ("mask",))
    assert not container.good.any()


@pytest.mark.parametrize("column", ["segment_first", "segment_count"])
def test_an_entry_outside_of_the_segment_table_costs_the_segments_only(column: str) -> None:
    block = with_cell(packed(sample(3), fields=("mask",), ref=REF), column, 1, 0xFFFFFFFF)
    container = reread(block, ("mask",))
    assert container.good.all()
    assert len(container.damage) == 1
    assert len(container.info(1).segments) == 0


@pytest.mark.parametrize("column", ["extra_offset", "extra_length"])
def test_an_entry_outside_of_the_extras_costs_the_extras_only(column: str) -> None:
    container = reread(with_cell(packed(sample(3), fields=("mask",), ref=REF), column, 1, 0xFFFFFFFF), ("mask",))
    assert container.good.all()
    assert len(container.damage) == 1
    with pytest.raises(Corrupt, match="extras"):
        container.record(0)


@pytest.mark.parametrize("place", ["shared with another record's", "beyond the end"])
def test_extras_that_overlap_or_end_too_late_are_lost_alone(place: str) -> None:
    block = packed(sample(3), fields=("mask",), ref=REF)
    index = reread(block, ("mask",)).index
    assert (index["extra_length"] > 1).all()
    last = int(index[2]["extra_offset"]) + int(index[2]["extra_length"])
    at = int(index[1]["extra_offset"]) if place.startswith("shared") else last - 1
    container = reread(with_cell(block, "extra_offset", 2, at), ("mask",))
    assert container.good.all()
    with pytest.raises(Corrupt, match="extras"):
        container.record(0)


# Reading a record alone


def test_a_record_can_be_read_with_only_the_index_in_memory() -> None:
    originals = sample(4)
    block = packed(originals, fields=("mask",), ref=REF)
    head = header_of(block).payload_at
    asked: list[tuple[int, int]] = []

    def read(offset: int, length: int) -> memoryview:
        asked.append((offset, length))
        return memoryview(block)[offset : offset + length]

    container = unpack_container(memoryview(block)[:head], ref=REF, fields=("mask",), size=len(block), read=read)
    assert asked == []
    assert_same(originals[2], container.record(2))
    assert sum(length for _, length in asked) == len(originals[2].jpeg) + 20


@pytest.mark.parametrize("attachments", [True, False])
def test_records_that_are_extracted_keep_their_bytes_and_segments(attachments: bool) -> None:
    originals = sample(6)
    container = reread(packed(originals, fields=("mask",), ref=REF), ("mask",))
    chosen = np.array([1, 2, 5])
    extracted = container.extract(chosen, attachments=attachments)
    assert extracted.rows(chosen).tolist() == [0, 1, 2] and len(extracted) == 3
    for k, number in enumerate(chosen.tolist()):
        original, held = originals[number], extracted.held[k]
        assert bytes(extracted.jpeg(k)) == original.jpeg
        expected = original.attachments if attachments else {}
        assert {name: bytes(blob) for name, blob in extracted.attachments(k).items()} == expected
        first, count = int(held["segment_first"]), int(held["segment_count"])
        assert extracted.segments[first : first + count].tolist() == original.info.segments.tolist()
        assert extracted.extra_json(k) == original.extra_json
        moved = extracted.index[k].copy()
        assert np.array_equal(extracted.info(k).segments, original.info.segments)
        moved["segment_first"] = container.index["segment_first"][number]
        assert moved == container.index[number]
    size = sum(len(originals[k].jpeg) + 20 * attachments for k in chosen.tolist())
    assert len(extracted.buffer) == size and len(extracted.segments) == 2 * len(chosen)


def test_a_record_read_alone_is_checked() -> None:
    block = bytearray(packed(sample(2), fields=("mask",), ref=REF))
    head = header_of(bytes(block)).payload_at
    block[head + 3] ^= 4
    container = unpack_container(
        memoryview(block)[:head],
        ref=REF,
        fields=("mask",),
        size=len(block),
        read=lambda offset, length: memoryview(block)[offset : offset + length],
    )
    with pytest.raises(Corrupt, match="fails its CRC") as caught:
        container.record(0)
    assert caught.value.offset == REF.offset + head
    assert container.record(1).id == 101


def test_the_header_is_laid_out_as_the_format_says() -> None:
    record = Record(id=5, label=-1, jpeg=b"JPEG", info=ImageInfo(3, 2, "420", 4, 1, np.array([7, 8], dtype=SEGMENT)))
    block = packed([record], ref=REF)
    fields = struct.unpack_from("<4sHH14I", block)
    assert fields[:-1] == (
        *(b"PICC", 0, 0, 1, 4096, 2, 0, 0, 4),
        *(crc32c(block[64:128]), crc32c(b"\7\0\x08\0"), 0, crc32c(b"JPEG"), 3, 7, 2),
    )
    assert fields[-1] == crc32c(block[:60])
    entry = struct.unpack_from("<QqIIIHHBBHIIIIIII", block, SEALED)
    assert entry[:-1] == (5, -1, 132, 4, crc32c(b"JPEG"), 3, 2, 5, 0, 4, 1, 0, 2, 0, 0, 0)
    crc = crc32c(block[64:124])
    assert entry[-1] == ((crc >> 15 | crc << 17) + 0xA282EAD8) % (1 << 32)
    assert block[128:136] == b"\7\0\x08\0JPEG"
    assert not any(block[136:])


def test_extras_that_another_thread_releases_are_not_damaged() -> None:
    """Releases them before each line that reads them, as a thread of the loader may."""
    made = [make_record(jpeg(k), id=k, label=0, extra={"n": k}) for k in range(3)]
    container = unpack_container(memoryview(packed(made, fields=(), ref=REF)), ref=REF, fields=(), records=3)
    expected = container.extras

    def release(frame: object, event: str, argument: object) -> object:
        container._extras = None
        return release

    before = sys.gettrace()
    found = []
    for _ in range(3):
        sys.settrace(release)
        try:
            found.append(container.extras)
        finally:
            sys.settrace(before)
        assert container.extras == expected
    assert found == [expected] * 3
