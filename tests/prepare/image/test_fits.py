"""FITS of known pixels, in every type that the standard has, scaled by BSCALE and BZERO or not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pictures import open_image

from picstore.errors import ImageError
from picstore.prepare.image.encode_settings import EncodeSettings

PLAIN = EncodeSettings()
GREY = np.rint(np.linspace(0, 255, 33)[None, :] * np.linspace(0.5, 1, 24)[:, None])
TYPES = {8: "u1", 16: ">i2", 32: ">i4", 64: ">i8", -32: ">f4", -64: ">f8"}


def header(*cards: str) -> bytes:
    text = "".join(card.ljust(80) for card in (*cards, "END"))
    return text.encode().ljust(-(-len(text) // 2880) * 2880)


def unit(stored: np.ndarray, bits: int, *cards: str, first: str = "SIMPLE  =                    T") -> bytes:
    """A unit of a FITS file, whose first row is the lowest."""
    axes = [f"NAXIS{k + 1}  = {length:20d}" for k, length in enumerate(stored.shape[::-1])]
    head = header(first, f"BITPIX  = {bits:20d}", f"NAXIS   = {stored.ndim:20d}", *axes, *cards)
    data = stored[..., ::-1, :].astype(TYPES[bits]).tobytes()
    return head + data.ljust(-(-len(data) // 2880) * 2880, b"\0")


def scaled(factor: str, zero: str) -> tuple[str, str]:
    return f"BSCALE  = {factor:>20s} / a factor", f"BZERO   = {zero:>20s} / a shift"


STORED = {  # by name: BITPIX, what is stored for GREY, and cards
    "bytes": (8, GREY, ()),
    "signed bytes": (8, np.rint(GREY * 127 / 255) + 128, scaled("1", "-128")),
    "16 bits": (16, np.rint(GREY * 32_767 / 255), ()),
    "small values in 16 bits": (16, GREY, ()),
    "unsigned 16 bits": (16, GREY * 257 - 32_768, scaled("1.0", "32768.0")),
    "32 bits": (32, np.rint(GREY * (2**31 - 1) / 255), ()),
    "unsigned 32 bits": (32, GREY * 16_843_009 - 2**31, scaled("1", "2147483648")),
    "64 bits": (64, GREY * (2**55), ()),
    "unsigned 64 bits": (64, (GREY - 127.5) * 2**55 * 2, scaled("1", "9223372036854775808")),
    "scaled 16 bits": (16, np.rint(GREY / 255 * 20_000 - 10_000), scaled("5.0D-5", "0.5")),
    "scaled bytes": (8, GREY, scaled("2.0", "0")),
    "floats": (-32, GREY / 255, ()),
    "doubles": (-64, GREY * 257, ()),
    "scaled floats": (-32, GREY * 10, scaled("0.1", "0")),
}


@pytest.mark.parametrize("name", STORED)
def test_a_fits_of_any_type_has_its_known_pixels(name):
    bits, stored, cards = STORED[name]
    got = np.asarray(open_image(unit(stored, bits, *cards), settings=PLAIN))
    # Doubled bytes exceed 255, so they count as 0 … 65,535, as floats do.
    expected = GREY * 2 * 255 / 65_535 if name == "scaled bytes" else GREY
    assert np.abs(got - expected).max() <= (2 if name in ("signed bytes", "64 bits") else 1)


def test_blank_is_black_and_of_a_cube_the_first_plane_counts():
    stored = np.where(GREY > 200, 99, GREY)
    got = np.asarray(open_image(unit(stored, 16, "BLANK   =                   99"), settings=PLAIN))
    assert (got == np.where(stored == 99, 0, GREY)).all()
    cube = np.stack([GREY, GREY * 0])
    assert (np.asarray(open_image(unit(cube, 8), settings=PLAIN)) == GREY).all()


def test_a_picture_in_an_extension_is_found_behind_tables():
    empty = header("SIMPLE  =                    T", "BITPIX  =                    8", "NAXIS   =                    0")
    table = unit(np.zeros((4, 1000)), 8, "PCOUNT  = 5000", "GCOUNT  = 1", first="XTENSION= 'BINTABLE'") + bytes(5760)
    picture = unit(GREY, 8, first="XTENSION= 'IMAGE   '")
    assert (np.asarray(open_image(empty + picture, settings=PLAIN)) == GREY).all()
    assert (np.asarray(open_image(empty + table + picture, settings=PLAIN)) == GREY).all()
    with pytest.raises(ImageError, match="FITS without a picture"):
        open_image(empty + table, settings=PLAIN)


def test_what_a_fits_cannot_give_is_refused_by_name():
    packed = unit(np.zeros((2, 8)), 8, "ZIMAGE  =                    T", first="XTENSION= 'BINTABLE'")
    empty = header("SIMPLE  =                    T", "BITPIX  =                    8", "NAXIS   =                    0")
    for data, reason in (
        (empty + packed, "compressed FITS is not read; unpack it with funpack"),
        (unit(GREY, 8).replace(b"BITPIX  =                    8", b"BITPIX  =                    9"), "BITPIX 9"),
        (unit(GREY, 8, *scaled("nan", "0")), "BSCALE is nan"),
        (unit(GREY, 8, *scaled("1", "x")), "BZERO is 'x', not a number"),
        (unit(GREY, 8)[:3000], "truncated FITS"),
        (unit(GREY, 8)[:400], "truncated FITS: its header has no end"),
        (unit(GREY, 8).replace(b"NAXIS   =                    2", b"NAXIS   =                    1"), "one axis"),
    ):
        with pytest.raises(ImageError, match=reason):
            open_image(data, settings=PLAIN)
    with pytest.raises(ImageError, match="--max-pixels"):
        open_image(unit(GREY, 8), settings=EncodeSettings(max_pixels=700))


@given(st.data())
def test_damage_in_a_fits_is_a_picture_or_an_image_error(data):
    file = bytearray(unit(GREY, 16, *scaled("1", "32768")))
    for _ in range(data.draw(st.integers(1, 4))):
        file[data.draw(st.integers(0, 600))] = data.draw(st.integers(0, 255))
    try:
        assert min(open_image(bytes(file), settings=EncodeSettings(max_pixels=1 << 20)).size) >= 1
    except ImageError as error:
        assert "\n" not in str(error)
