"""Files of known pixels in formats whose depth Pillow's modes do not tell: right, or refused by name."""

from __future__ import annotations

import itertools
import struct
import zlib

import numpy as np
import pytest
from pictures import by_imagemagick, open_image, quadrants, require

from picstore.errors import ImageError
from picstore.prepare.image.encode_settings import EncodeSettings

PLAIN = EncodeSettings()
HEIGHT, WIDTH = 9, 13
ACROSS, DOWN = np.meshgrid(np.linspace(0, 1, WIDTH), np.linspace(0, 1, HEIGHT))
COLOR = np.stack([ACROSS, DOWN, 1 - ACROSS], axis=-1)
ALPHA = np.linspace(1, 0, HEIGHT)[:, None] * np.ones((1, WIDTH))


def error_of(data: bytes, expected: np.ndarray, name: str = "") -> float:
    """Largest difference to the expected color, 0 … 1, in steps of 255."""
    pixels = np.asarray(open_image(data, settings=PLAIN, name=name).convert("RGB"))
    expected = expected if expected.ndim == 3 else expected[..., None]
    return float(np.abs(pixels - 255 * expected).max())


def whole(values: np.ndarray, top: int) -> np.ndarray:
    return np.rint(values * top).astype(int)


def over_white(color: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    return color * alpha[..., None] + 1 - alpha[..., None]


def packed(rows: np.ndarray, bits: int, *, multiple: int = 8) -> list[bytes]:
    lines = ("".join(f"{value:0{bits}b}" for value in row) for row in rows.reshape(len(rows), -1).tolist())
    full = (line.ljust(-(-len(line) // multiple) * multiple, "0") for line in lines)
    return [int(line, 2).to_bytes(len(line) // 8, "big") for line in full]


def png(samples: np.ndarray, bits: int, kind: int, **chunks: bytes) -> bytes:
    rows = b"".join(b"\0" + row for row in packed(samples, bits))
    parts = {"IHDR": struct.pack(">IIBBBBB", WIDTH, HEIGHT, bits, kind, 0, 0, 0), **chunks,
             "IDAT": zlib.compress(rows), "IEND": b""}  # fmt: skip
    body = ((name.encode(), part) for name, part in parts.items())
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(part)) + name + part + struct.pack(">I", zlib.crc32(name + part)) for name, part in body
    )


@pytest.mark.parametrize("bits", [1, 2, 4, 8, 16])
def test_grey_and_palettes_of_a_png_have_their_known_pixels(bits):
    top = (1 << bits) - 1
    grey = whole(ACROSS, top)
    assert error_of(png(grey, bits, 0), grey / top) <= 1
    seen = np.where(grey == grey[0, 7], 1, grey / top)
    assert error_of(png(grey, bits, 0, tRNS=struct.pack(">H", grey[0, 7])), seen) <= 1
    if bits <= 8:
        palette = np.stack([np.arange(top + 1) * 255 // top, np.arange(top + 1) * 77 % 256, np.full(top + 1, 9)], -1)
        colors = palette.astype(np.uint8).tobytes()
        alpha = np.arange(top + 1) * 255 // top
        assert error_of(png(grey, bits, 3, PLTE=colors), palette[grey] / 255) == 0
        transparent = png(grey, bits, 3, PLTE=colors, tRNS=alpha.astype(np.uint8).tobytes())
        assert error_of(transparent, over_white(palette[grey] / 255, alpha[grey] / 255)) <= 1.5


@pytest.mark.parametrize("bits", [8, 16])
def test_colors_and_alpha_of_a_png_have_their_known_pixels(bits):
    top = (1 << bits) - 1
    rgb, alpha, grey = whole(COLOR, top), whole(ALPHA, top)[..., None], whole(ACROSS, top)[..., None]
    assert error_of(png(rgb, bits, 2), rgb / top) <= 1
    one = np.where((rgb == rgb[3, 7]).all(-1)[..., None], 1, rgb / top)
    assert error_of(png(rgb, bits, 2, tRNS=struct.pack(">HHH", *rgb[3, 7].tolist())), one) <= 1
    assert error_of(png(np.concatenate([rgb, alpha], -1), bits, 6), over_white(rgb / top, alpha[..., 0] / top)) <= 2.1
    assert error_of(png(np.concatenate([grey, alpha], -1), bits, 4), over_white(grey / top, alpha[..., 0] / top)) <= 2.1


@pytest.mark.parametrize("top", [1, 3, 100, 255, 256, 1_023, 4_095, 65_534, 65_535])
def test_netpbm_files_of_any_maxval_have_their_known_pixels(top):
    size = b"%d %d %d\n" % (WIDTH, HEIGHT, top)
    for kind, values in (("grey", whole(ACROSS, top)), ("color", whole(COLOR, top))):
        raw = values.astype(">u2" if top > 255 else "u1").tobytes()
        text = " ".join(map(str, values.ravel())).encode()
        binary, plain = {"grey": (b"P5", b"P2"), "color": (b"P6", b"P3")}[kind]
        assert error_of(binary + b" " + size + raw, values / top) <= 1
        assert error_of(plain + b" " + size + text, values / top) <= 1


def pam(samples: np.ndarray, top: int, kind: str) -> bytes:
    head = f"P7\nWIDTH {WIDTH}\nHEIGHT {HEIGHT}\nDEPTH {samples.shape[2]}\nMAXVAL {top}\nTUPLTYPE {kind}\nENDHDR\n"
    return head.encode() + samples.astype(">u2" if top > 255 else "u1").tobytes()


def test_a_pam_is_right_or_its_alpha_is_refused():
    require(by_imagemagick(quadrants(), "miff"), "ImageMagick")
    for top in (1, 15, 255, 1_023, 65_535):
        rgb, grey = whole(COLOR, top), whole(ACROSS, top)[..., None]
        assert error_of(pam(rgb, top, "RGB"), rgb / top) <= 1
        assert error_of(pam(grey, top, "GRAYSCALE"), grey / top) <= 1
        opaque = pam(np.concatenate([rgb, rgb[..., :1] * 0 + top], -1), top, "RGB_ALPHA")
        if top in (255, 65_535):
            assert error_of(opaque, rgb / top) <= 1
        else:
            with pytest.raises(ImageError, match="PAM with alpha is only read with a MAXVAL of 255 or 65,535"):
                open_image(opaque, settings=PLAIN)


@pytest.mark.parametrize("order", ["<", ">"])
def test_a_pfm_of_either_order_has_its_known_pixels(order):
    require(by_imagemagick(quadrants(), "miff"), "ImageMagick")
    head = b"%d %d\n%s\n" % (WIDTH, HEIGHT, b"-1.0" if order == "<" else b"1.0")
    assert error_of(b"Pf\n" + head + ACROSS[::-1].astype(order + "f4").tobytes(), ACROSS) <= 1
    assert error_of(b"PF\n" + head + COLOR[::-1].astype(order + "f4").tobytes(), COLOR) <= 1


@pytest.mark.parametrize("size", [1, 2])
def test_an_sgi_of_8_or_16_bits_has_its_known_pixels(size):
    top = 256**size - 1
    for planes in ([ACROSS], [ACROSS, DOWN, 1 - ACROSS], [ACROSS, DOWN, 1 - ACROSS, np.ones_like(DOWN)]):
        count = len(planes)
        head = struct.pack(">HBBHHHHii", 474, 0, size, 2 if count == 1 else 3, WIDTH, HEIGHT, count, 0, top)
        body = b"".join(whole(plane, top)[::-1].astype(f">u{size}").tobytes() for plane in planes)
        assert error_of(head.ljust(512, b"\0") + body, ACROSS if count == 1 else COLOR) <= 1


@pytest.mark.parametrize(("bits", "mode"), [*itertools.product([8, 16, 32], [1, 3, 4])])
def test_a_psd_of_any_depth_has_its_known_pixels(bits, mode):
    require(bits == 8 or by_imagemagick(quadrants(), "miff"), "ImageMagick")
    planes = {1: [ACROSS], 3: [*np.moveaxis(COLOR, -1, 0)], 4: [*np.moveaxis(COLOR, -1, 0), np.ones_like(DOWN)]}[mode]
    head = b"8BPS" + struct.pack(">H6xHIIHH", 1, len(planes), HEIGHT, WIDTH, bits, mode) + bytes(12) + b"\0\0"
    samples = (
        plane.astype(">f4") if bits == 32 else whole(plane, (1 << bits) - 1).astype(f">u{bits // 8}")
        for plane in planes
    )
    data = head + b"".join(each.tobytes() for each in samples)
    assert error_of(data, ACROSS if mode == 1 else COLOR) <= 1


def bmp(pixels: np.ndarray, bits: int, masks: tuple[int, ...], size: int) -> bytes:
    rows = (row.astype(f"<u{bits // 8}").tobytes() for row in pixels[::-1])
    body = b"".join(row.ljust(-(-len(row) // 4) * 4, b"\0") for row in rows)
    fields = struct.pack("<III", *masks) if masks else b""
    head = struct.pack("<IiiHHIIiiII", size, WIDTH, HEIGHT, 1, bits, 3 if masks else 0, len(body), 0, 0, 0, 0)
    head += fields if size == 40 else fields.ljust(size - 40, b"\0")
    start = 14 + len(head)
    return b"BM" + struct.pack("<IHHI", start + len(body), 0, 0, start) + head + body


@pytest.mark.parametrize("header", [40, 56, 108, 124])
@pytest.mark.parametrize("masks", [
    (0xF800, 0x7E0, 0x1F), (0x7C00, 0x3E0, 0x1F), (0xFF0000, 0xFF00, 0xFF), (0xFF, 0xFF00, 0xFF0000),
    (0xFF000000, 0xFF0000, 0xFF00), (0x3FF00000, 0xFFC00, 0x3FF), (0xF00, 0xF0, 0xF), (0xFC00, 0x3F8, 0x7),
], ids=lambda masks: f"{masks[0]:x}")  # fmt: skip
def test_bit_masks_of_a_bmp_give_known_pixels_or_a_refusal(header, masks):
    pixels, seen = np.zeros((HEIGHT, WIDTH), np.int64), []
    for k, mask in enumerate(masks):
        shift = (mask & -mask).bit_length() - 1
        pixels |= whole(COLOR[..., k], mask >> shift) << shift
        seen.append((pixels >> shift & mask >> shift) / (mask >> shift))
    bits = 16 if masks[0] < 1 << 16 and masks[2] < 1 << 16 else 32
    data = bmp(pixels, bits, masks, header)
    if masks[0] in (0xF00, 0xFC00):
        with pytest.raises(ImageError, match=r"BMP of 16 bits is only read with 5, 6 and 5|needs ImageMagick"):
            open_image(data, settings=PLAIN)
    elif masks[0] not in (0xFF, 0x3FF00000) or by_imagemagick(quadrants(), "miff"):
        assert error_of(data, np.stack(seen, -1)) <= 8


@pytest.mark.parametrize("sixteenth", [0, 0x8000])
def test_the_sixteenth_bit_of_a_tga_hides_nothing(sixteenth):
    fives = whole(COLOR, 31)
    words = (fives[..., 0] << 10 | fives[..., 1] << 5 | fives[..., 2] | sixteenth).astype("<u2")
    for depth, descriptor in ((15, 0x20), (16, 0x20), (16, 0x21)):
        head = struct.pack("<BBBHHBHHHHBB", 0, 0, 2, 0, 0, 0, 0, 0, WIDTH, HEIGHT, depth, descriptor)
        assert error_of(head + words.tobytes(), fives / 31, "x.tga") <= 1


@pytest.mark.parametrize("digits", [1, 2, 3, 4])
def test_an_xpm_with_colors_of_any_length_has_its_known_pixels(digits):
    keys = "ABCDEFGHIJKLMNOP"
    palette = np.array([(k / 15, 1 - k / 15, k * 7 % 16 / 15) for k in range(16)])
    top = 16**digits - 1
    colors = [f'"{key} m #000 c #{"".join(f"{round(v * top):0{digits}x}" for v in color)}",'
              for key, color in zip(keys, palette, strict=True)]  # fmt: skip
    numbers = whole(ACROSS, 15)
    rows = [f'"{"".join(keys[number] for number in row)}",' for row in numbers]
    text = "\n".join(["/* XPM */", "static char *x[] = {", f'"{WIDTH} {HEIGHT} 16 1",', *colors, *rows, "};", ""])
    assert error_of(text.encode(), palette[numbers], "x.xpm") <= 1


JPEG_2000 = {  # by components and bits: 4 × 4 pixels, red from 0 to 1, green from 1 to 0, blue and alpha 1
    (3, 12): (
        "ff4fff51002f0000000000040000000400000000000000000000000400000004000000000000000000030b01010b01010b01"
        "01ff52000c00000001000004040001ff5c00044060ff90000a00000000004f0001ff93dfe068116a4a60a805b06ba4333ca3"
        "95889c2cc75809c2cc75809c561bdfe068216d43d71e215f9837ef1be186b29d60270b31d60270b31d5fbacfe41014005caf"
        "ffd9"
    ),
    (3, 16): (
        "ff4fff51002f0000000000040000000400000000000000000000000400000004000000000000000000030f01010f01010f01"
        "01ff52000c00000001000004040001ff5c00044080ff90000a0000000000640001ff93dff89118116a4a60a805b06ba4333c"
        "a395889c2cc75809c2cc75809c2cc75809c2cc75809c561bdff89118216d43d71e215f9837ef1be186b29d60270b31d60270"
        "b31d60270b31d60270b31d5fbacffc301014005cafffd9"
    ),
    (2, 12): (
        "ff4fff51002c0000000000040000000400000000000000000000000400000004000000000000000000020b01010b0101ff52"
        "000c00000001000004040001ff5c00044060ff90000a0000000000480001ff93dfe068116a4a60a805b06ba4333ca395889c"
        "2cc75809c2cc75809c561bdfe068216d43d71e215f9837ef1be186b29d60270b31d60270b31d5fbaffd9"
    ),
}


@pytest.mark.parametrize(("components", "bits"), JPEG_2000)
def test_white_of_a_deep_jpeg_2000_is_not_black(components, bits):
    data = bytes.fromhex(JPEG_2000[components, bits])
    if components == 2:
        with pytest.raises(ImageError, match="JPEG 2000 of signed samples, or of 2 or over 4 components"):
            open_image(data, settings=PLAIN)
        return
    require(by_imagemagick(quadrants(), "jp2"), "JPEG 2000 in ImageMagick")
    ramp = np.linspace(0, 1, 4)
    expected = np.stack([ramp, ramp[::-1], np.ones(4)], -1)[None].repeat(4, 0)
    assert error_of(data, expected) <= 1
