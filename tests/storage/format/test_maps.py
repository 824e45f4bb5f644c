"""Maps in storage: every value back, only the rows that are asked for, and damage told apart from values."""

from __future__ import annotations

import importlib.util
import io
import json
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pictures import depth_and_masks
from PIL import Image

from picstore.errors import ImageError
from picstore.storage.format.maps import (
    DTYPES,
    MapSpec,
    check_form,
    decode_map,
    encode_map,
    export_map,
    read_form,
)


def values_of(dtype: str, height: int, width: int, channels: int, seed: int = 0) -> np.ndarray:
    """Random bits, so that floats have NaN, infinity and negative zero among them."""
    bits = np.random.default_rng(seed).bytes(height * width * channels * np.dtype(dtype).itemsize)
    return np.frombuffer(bits, dtype).reshape(height, width, channels)


@given(
    st.sampled_from(DTYPES),
    st.integers(1, 70),
    st.integers(1, 40),
    st.integers(1, 4),
    st.tuples(st.integers(-2, 72), st.integers(-2, 72)),
    st.integers(0, 99),
)
def test_rows_of_a_map_are_its_values_bit_for_bit(
    dtype: str, height: int, width: int, channels: int, rows: tuple[int, int], seed: int
) -> None:
    values = values_of(dtype, height, width, channels, seed)
    blob = encode_map(values)
    assert read_form(blob) == (dtype, channels, width, height)
    assert decode_map(blob).tobytes() == values.tobytes()
    part = decode_map(memoryview(blob), rows=rows)
    assert part.dtype == dtype
    assert part.tobytes() == values[max(rows[0], 0) : max(rows[1], 0)].tobytes()


def test_depth_is_stored_in_blocks_and_masks_as_png() -> None:
    depth, masks = (encode_map(values[:, :, None]) for values in depth_and_masks())
    assert (depth[:4], masks[:4]) == (b"PICM", b"\x89PNG")
    assert (decode_map(depth)[:, :, 0] == depth_and_masks()[0]).all()


def test_only_sound_depth_of_an_image_is_exported_as_png() -> None:
    depth = encode_map(depth_and_masks()[0][:, :, None])
    assert (decode_map(export_map(depth, 160, 120))[:, :, 0] == depth_and_masks()[0]).all()
    assert export_map(depth, 160, 120)[:4] == b"\x89PNG"
    floats = encode_map(values_of("float32", 120, 160, 1))
    for blob, width in ((depth, 161), (depth[:-1], 160), (depth[:9], 160), (floats, 160), (b"other", 160)):
        assert export_map(blob, width, 120) == blob


def test_what_png_holds_is_a_png_that_pillow_opens() -> None:
    for values in (*(values_of("uint8", 9, 7, channels) for channels in (1, 3, 4)), depth_and_masks()[1][:9, :7, None]):
        with Image.open(io.BytesIO(encode_map(values))) as image:
            assert image.format == "PNG"
            assert (np.asarray(image).reshape(values.shape) == values).all()


def test_blocks_are_as_docs_format_says() -> None:
    """The bytes are parsed here by the page alone; blocks of 64 KiB have 4 of the rows."""
    from picstore.storage.format.zstd import ZstdDecompressor

    values = values_of("float32", 10, 2048, 2)
    blob = encode_map(values)
    assert struct.unpack("<4sBBBBHHI", blob[:16]) == (b"PICM", 1, 3, 2, 0, 2048, 10, 4)
    sizes = struct.unpack("<3I", blob[16:28])
    at, read = 28, []
    for size, rows in zip(sizes, (4, 4, 2), strict=True):
        planes = np.frombuffer(ZstdDecompressor().decompress(blob[at : at + size]), np.uint8).astype(np.uint32)
        weights = planes.reshape(4, rows, 2, 2048)
        differences = sum(weights[k] << 8 * k for k in range(4))
        read.append(np.cumsum(differences, axis=2, dtype=np.uint32).transpose(0, 2, 1))
        at += size
    assert at == len(blob)
    assert np.concatenate(read).tobytes() == values.view(np.uint32).tobytes()


def test_a_crop_of_blocks_decodes_no_other_rows() -> None:
    """The last of four blocks is damaged, and the rows above it are read all the same."""
    values = values_of("float16", 64, 2048, 1)
    blob = bytearray(encode_map(values))
    last = len(blob) - int.from_bytes(blob[28:32], "little")
    blob[last : last + 4] = bytes(4)
    assert decode_map(bytes(blob), rows=(0, 40)).tobytes() == values[:40].tobytes()
    with pytest.raises(ImageError, match="damaged"):
        decode_map(bytes(blob))


def test_a_crop_of_a_png_decodes_no_rows_below_it() -> None:
    values = values_of("uint16", 64, 2048, 1)
    blob = bytearray(encode_map(values))
    blob[len(blob) // 2 : -16] = b"\xff" * (len(blob) - 16 - len(blob) // 2)
    assert decode_map(bytes(blob), rows=(3, 20)).tobytes() == values[3:20].tobytes()
    with pytest.raises(ImageError, match="damaged"):
        decode_map(bytes(blob))


@given(st.sampled_from(("uint16", "float32")), st.data())
def test_damaged_maps_raise_image_errors_and_nothing_else(dtype: str, data: st.DataObject) -> None:
    blob = bytearray(encode_map(values_of(dtype, 12, 9, 2 if dtype == "float32" else 1)))
    for _ in range(data.draw(st.integers(1, 4))):
        blob[data.draw(st.integers(0, len(blob) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(blob[: data.draw(st.integers(0, len(blob)))])
    spec = MapSpec(dtype=dtype, channels=2 if dtype == "float32" else 1)
    try:
        check_form(cut, spec, 9, 12)
        assert decode_map(cut).shape == (12, 9, spec.channels)
    except ImageError:
        pass


def test_a_block_of_more_bytes_than_its_rows_is_refused() -> None:
    """A frame of 16 MiB in place of 64 bytes."""
    from picstore.storage.format.zstd import compress

    blob = bytearray(encode_map(np.zeros((4, 4, 1), np.float32)))
    frame = compress(bytes(1 << 24), level=3)
    blob[16:20] = struct.pack("<I", len(frame))
    with pytest.raises(ImageError, match="another size"):
        decode_map(bytes(blob[:20]) + frame)


def test_a_png_of_another_form_is_not_a_stored_map() -> None:
    out = io.BytesIO()
    Image.new("LA", (3, 2)).save(out, "PNG")
    with pytest.raises(ImageError, match="color type 4"):
        read_form(out.getvalue())
    header = b"IHDR" + struct.pack(">IIBBBBB", 3, 2, 16, 0, 0, 0, 1)
    with pytest.raises(ImageError):
        read_form(b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header)))


def test_the_golden_maps_read_as_they_were_made_and_make_the_same_batches() -> None:
    """A frozen dataset: tests/fixtures/make_golden_maps.py made it, and no later version writes it again."""
    import picstore

    golden = Path(__file__).parents[2] / "fixtures"
    spec = importlib.util.spec_from_file_location("make_golden_maps", golden / "make_golden_maps.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    dataset = picstore.Dataset(golden / "golden" / "maps")
    for record in dataset:
        expected = made.maps_of(record.id)
        assert record.attachments.keys() == (expected.keys() if record.id < 7 else {"map:normal"})
        for name, blob in record.attachments.items():
            values = expected[name].reshape(30, 40, -1)
            assert picstore.decode_map(blob).tobytes() == values.tobytes()
    loader = made.make_loader(dataset.path)
    found = [made.describe_batch(batch) for _ in range(2) for batch in loader]
    loader.close()
    assert found == [json.loads(line) for line in (golden / "golden" / "maps.json").read_text().splitlines()]
