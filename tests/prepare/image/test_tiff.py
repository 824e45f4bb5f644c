"""TIFFs of known pixels: each layout of samples comes out right, or is refused by name."""

from __future__ import annotations

import io
import itertools

import numpy as np
import pytest
import tiff_files
from hypothesis import given
from hypothesis import strategies as st
from pictures import open_image
from PIL import Image
from tiff_files import (
    BLACK_IS_ZERO,
    CMYK,
    DEFLATE,
    FLOAT,
    LAB,
    LZW,
    NONE,
    OLD_DEFLATE,
    PACKBITS,
    PALETTE,
    RGB,
    SIGNED,
    WHITE_IS_ZERO,
    YCBCR,
    Tiff,
)  # fmt: skip

from picstore.errors import ImageError
from picstore.prepare.image.encode_settings import EncodeSettings
from picstore.prepare.image.tiff_layout import read_tags
from picstore.train.cpu.mask_and_image_targets import open_mask

PLAIN = EncodeSettings()
HEIGHT, WIDTH = 9, 13
ACROSS, DOWN = np.meshgrid(np.linspace(0, 1, WIDTH), np.linspace(0, 1, HEIGHT))
RAMPS = [ACROSS, DOWN, 1 - ACROSS, DOWN / 2]  # of four channels


def stored(ramps: list[np.ndarray], layout: Tiff) -> np.ndarray:
    """Samples of a layout that hold ramps from 0 to 1."""
    values = np.stack(ramps, axis=-1)
    if layout.kind == FLOAT:
        return values
    top = (1 << layout.bits - (layout.kind == SIGNED)) - 1
    exact = [int(each * (1 << 40)) * top + (1 << 39) >> 40 for each in values.ravel()]
    return np.array(exact, dtype=object).reshape(values.shape)


def example(layout: Tiff) -> tuple[bytes, np.ndarray]:
    """A TIFF of a layout, and its colors from 0 to 1, (height, width, 3), over white."""
    alpha = next((each for each in layout.extra if each), 0)
    opaque = DOWN if alpha else np.ones_like(DOWN)
    grey = layout.photometric in (WHITE_IS_ZERO, BLACK_IS_ZERO)
    ramps = RAMPS[: 1 if grey else {CMYK: 4}.get(layout.photometric, 3)]
    if layout.photometric == CMYK:
        color = np.stack([(1 - each) * (1 - ramps[3]) for each in ramps[:3]], axis=-1)
    else:
        color = np.stack(ramps * 3 if grey else ramps, axis=-1)
    if layout.photometric == WHITE_IS_ZERO:
        ramps = [1 - ACROSS]
    if alpha == 1:
        ramps = [each * opaque for each in ramps]
    extra = [opaque if each else ACROSS for each in layout.extra]
    return layout.write(stored(ramps + extra, layout)), color * opaque[..., None] + 1 - opaque[..., None]


def error_of(layout: Tiff) -> float:
    data, color = example(layout)
    pixels = np.asarray(open_image(data, settings=PLAIN).convert("RGB"))
    return float(np.abs(pixels - 255 * color).max())


def allowed(layout: Tiff) -> float:
    """Steps of 255 that a layout may be off: half a step of its own samples, one of the reduction, more with alpha."""
    own = 0 if layout.kind == FLOAT else 255 / ((1 << layout.bits - (layout.kind == SIGNED)) - 1)
    blended = bool(layout.extra) or layout.photometric == CMYK
    return (1 if not blended else 2.6) + own * (1 if not blended else 3)


DEPTHS = [1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 24, 32, 64]
ORDERS = ["<", ">"]
COMPRESSIONS = [NONE, LZW, DEFLATE, OLD_DEFLATE, PACKBITS]
GREY = [
    Tiff(bits, meaning, order=order, compression=compression, strips=4)
    for bits, meaning, order, compression in itertools.product(
        DEPTHS, (WHITE_IS_ZERO, BLACK_IS_ZERO), ORDERS, (NONE, LZW)
    )
]
PLANES = [
    Tiff(bits, meaning, order=order, planar=planar, extra=extra, compression=compression, strips=5)
    for bits, order, planar, (meaning, extra, compression) in itertools.product(
        (4, 8, 12, 16, 32),
        ORDERS,
        (1, 2),
        [(RGB, (), NONE), (RGB, (), DEFLATE), (RGB, (0,), NONE), (RGB, (1,), LZW), (RGB, (2,), NONE),
         (RGB, (2, 0), LZW), (CMYK, (), NONE), (CMYK, (0,), DEFLATE), (BLACK_IS_ZERO, (2,), NONE),
         (BLACK_IS_ZERO, (1,), DEFLATE), (WHITE_IS_ZERO, (2,), DEFLATE)],
    )
]  # fmt: skip
SIGNED_OR_FLOAT = [
    Tiff(bits, meaning, kind, order, compression=compression, predictor=predictor)
    for (kind, bits), meaning, order, (compression, predictor) in itertools.product(
        [(SIGNED, 8), (SIGNED, 16), (SIGNED, 32), (FLOAT, 16), (FLOAT, 32), (FLOAT, 64)],
        (WHITE_IS_ZERO, BLACK_IS_ZERO, RGB),
        ORDERS,
        [(NONE, 1), (DEFLATE, 1), (LZW, None)],
    )
    if predictor != 1 or compression != LZW
]
OTHERS = [
    Tiff(bits, meaning, order=order, **how)
    for bits, meaning, order, how in itertools.product(
        (1, 4, 8, 12, 16),
        (WHITE_IS_ZERO, BLACK_IS_ZERO, RGB),
        ORDERS,
        [{"planar": 2}, {"fill": 2}, {"fill": 2, "compression": LZW}, {"tile": 16},
         {"tile": 16, "compression": DEFLATE},
         {"big": True}, {"compression": PACKBITS, "strips": 2}],
    )
] + [
    Tiff(bits, meaning, order=order, compression=DEFLATE, predictor=2, planar=planar)
    for bits, meaning, order, planar in itertools.product((8, 16, 32, 64), (WHITE_IS_ZERO, RGB), ORDERS, (1, 2))
]  # fmt: skip


def predicted(layout: Tiff) -> Tiff:
    """The layout with the predictor of its kind, in place of None."""
    if layout.predictor is not None:
        return layout
    return Tiff(**{**vars_of(layout), "predictor": 3 if layout.kind == FLOAT else 2})


def vars_of(layout: Tiff) -> dict:
    return {name: getattr(layout, name) for name in layout.__dataclass_fields__}


@pytest.mark.parametrize(
    "layouts", [GREY, PLANES, SIGNED_OR_FLOAT, OTHERS], ids=["grey", "planes", "signed and float", "others"]
)
def test_every_layout_of_a_sweep_has_its_known_pixels(layouts):
    wrong = {}
    for layout in map(predicted, layouts):
        if (error := error_of(layout)) > allowed(layout):
            wrong[str(layout)] = error
    assert not wrong


@given(st.data())
def test_depth_order_planes_strips_and_codes_change_no_pixel(data):
    meaning = data.draw(st.sampled_from([WHITE_IS_ZERO, BLACK_IS_ZERO, RGB]))
    kind = data.draw(st.sampled_from([1, 1, SIGNED, FLOAT]))
    bits = data.draw(
        st.sampled_from({1: [*range(1, 17), 24, 32, 64], SIGNED: [8, 16, 32, 64], FLOAT: [16, 32, 64]}[kind])
    )
    extra = data.draw(st.sampled_from([(), (0,), (2,), (0, 2)]))
    predictors = [3] if kind == FLOAT else [2] if bits in (8, 16, 32, 64) else []
    layout = Tiff(
        bits, meaning, kind, data.draw(st.sampled_from("<>")), data.draw(st.sampled_from([1, 2])), extra,
        compression := data.draw(st.sampled_from(COMPRESSIONS)),
        data.draw(st.sampled_from([1, *predictors] if compression not in (NONE, PACKBITS) else [1])),
        data.draw(st.sampled_from([1, 2])), data.draw(st.integers(0, HEIGHT)), data.draw(st.sampled_from([0, 0, 16])),
        data.draw(st.booleans()),
    )  # fmt: skip
    assert error_of(layout) <= allowed(layout)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("planar", [1, 2])
def test_lab_and_ycbcr_in_planes_are_as_in_one(order, planar):
    for meaning, bits in ((YCBCR, 8), (YCBCR, 16), (LAB, 8)):
        layout = Tiff(bits, meaning, order=order, planar=planar, compression=DEFLATE, tags={530: (3, [1, 1])})
        samples = stored([0.3 + ACROSS / 3, 0.4 + DOWN / 5, 0.5 + ACROSS / 8], layout)
        raw = (samples >> bits - 8).astype(np.uint8)
        mode = "LAB" if meaning == LAB else "YCbCr"
        expected = Image.frombytes(mode, (WIDTH, HEIGHT), raw.tobytes())
        got = open_image(layout.write(samples), settings=PLAIN)
        want = open_image(saved_as_tiff(expected), settings=PLAIN)
        assert np.abs(np.asarray(got).astype(int) - np.asarray(want)).max() <= 1


def saved_as_tiff(image: Image.Image, **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "TIFF", **options)
    return buffer.getvalue()


@pytest.mark.parametrize("bits", [1, 2, 4, 8, 12, 16])
def test_a_palette_of_any_depth_gives_its_colors(bits):
    count = 1 << bits
    channels = [np.arange(count) * 65_535 // (count - 1), np.arange(count)[::-1] * 65_535 // (count - 1)]
    channels.append((np.arange(count) * 9_973) % 65_536)
    samples = np.rint(ACROSS * (count - 1)).astype(int)[..., None]
    tags = {320: (3, np.concatenate(channels).tolist())}
    for order, compression, fill in itertools.product(ORDERS, (NONE, LZW), (1, 2)):
        data = Tiff(bits, PALETTE, order=order, compression=compression, fill=fill, tags=tags).write(samples)
        pixels = np.asarray(open_image(data, settings=PLAIN))
        assert (pixels == np.stack(channels, axis=-1)[samples[..., 0]] >> 8).all(), (order, compression, fill)


@pytest.mark.parametrize("code", ["group3", "group4", "tiff_ccitt"])
@pytest.mark.parametrize("fill", [1, 2])
def test_a_fax_is_right_in_both_meanings_and_bit_orders(code, fill):
    source = Image.fromarray((ACROSS + DOWN > 1).repeat(7, axis=1)).convert("1")
    data = saved_as_tiff(source, compression=code)
    tags = read_tags(data)
    strip = data[tags[273][0] : tags[273][0] + tags[279][0]]
    strip = strip if fill == 1 else bytes(int(f"{each:08b}"[::-1], 2) for each in strip)
    keys = {256: source.width, 257: source.height, 258: 1, 259: tags[259], 266: fill, 277: 1, 278: source.height}
    for meaning, planar in itertools.product((WHITE_IS_ZERO, BLACK_IS_ZERO), (1, 2)):
        entries = {tag: (4, [value]) for tag, value in {**keys, 262: meaning, 284: planar}.items()}
        image = open_image(tiff_files.assemble(entries, [strip]), settings=PLAIN)
        inverted = meaning != tags[262]
        assert (np.asarray(image) == np.asarray(source.convert("L")) ^ (255 if inverted else 0)).all()


@pytest.mark.parametrize("mode", ["L", "RGB", "YCbCr"])
def test_jpeg_in_a_tiff_stays_pillow_s(mode):
    smooth = (
        Image.fromarray((np.stack([ACROSS, DOWN, ACROSS], -1) * 200).astype(np.uint8)).resize((64, 48)).convert(mode)
    )
    pixels = np.asarray(
        open_image(saved_as_tiff(smooth, compression="jpeg", quality=95), settings=PLAIN).convert("RGB")
    )
    assert np.abs(pixels.astype(int) - np.asarray(smooth.convert("RGB"))).max() < 12


def grey_of(values, layout: Tiff) -> list[int]:
    data = layout.write(np.array(values, dtype=object if layout.kind != FLOAT else float).reshape(1, -1, 1))
    return np.asarray(open_image(data, settings=PLAIN))[0].tolist()


def test_small_integers_in_32_bits_are_scaled_by_8_or_16():
    assert grey_of([0, 1, 128, 255], Tiff(32)) == [0, 1, 128, 255]
    assert grey_of([0, 257, 65_535], Tiff(32, order=">")) == [0, 1, 255]
    assert grey_of([0, 1 << 31, (1 << 32) - 1], Tiff(32)) == [0, 128, 255]
    assert grey_of([0, -5, 100, 255], Tiff(16, kind=SIGNED)) == [0, 0, 100, 255]
    assert grey_of([-32_768, 0, 32_767], Tiff(16, kind=SIGNED)) == [0, 0, 255]


def test_special_floats_of_any_width_follow_the_rule_of_floats():
    values = [float("nan"), float("-inf"), float("inf"), -1.0, 0.5, 1.0]
    for bits, order in itertools.product((16, 32, 64), ORDERS):
        assert grey_of(values, Tiff(bits, kind=FLOAT, order=order)) == [0, 0, 255, 0, 128, 255]


@pytest.mark.parametrize(("layout", "channels", "reason"), [
    (Tiff(8, CMYK, extra=(2,)), 5, "CMYK of 8 bits, unsigned with extra samples 2"),
    (Tiff(16, WHITE_IS_ZERO, extra=(1,)), 2, "WhiteIsZero of 16 bits"),
    (Tiff(24, kind=FLOAT), 1, "24 bits, float"),
    (Tiff(12, predictor=2), 1, "BlackIsZero of 12 bits"),
    (Tiff(8, WHITE_IS_ZERO, predictor=2), 1, "WhiteIsZero of 8 bits, unsigned, compression 1: with a predictor"),
    (Tiff(16, RGB, compression=PACKBITS, predictor=2), 3, "compression 32773: with a predictor"),
    (Tiff(32, kind=FLOAT, predictor=3), 1, "float, compression 1: with a predictor"),
    (Tiff(16, LAB), 3, "Lab of 16 bits"),
    (Tiff(8, 32_803), 1, r"color filter array \(photometric interpretation 32803\)"),
    (Tiff(16, tags={259: (3, [7])}), 1, "compression 7"),
    (Tiff(16, tags={259: (3, [34_712])}), 1, "compression 34712"),
    (Tiff(32, kind=6), 1, "32 bits, complex"),
    (Tiff(8, RGB, tags={258: (3, [5, 6, 5])}), 3, r"different bits a sample in one pixel \(5, 6\)"),
    (Tiff(8, BLACK_IS_ZERO), 2, "2 samples a pixel in BlackIsZero; ExtraSamples does not explain them"),
    (Tiff(8, YCBCR), 3, "YCbCr of 8 bits"),  # without its tag, subsampling is 2 × 2
])  # fmt: skip
def test_a_layout_without_proof_is_refused_by_its_name(layout, channels, reason):
    samples = np.zeros((HEIGHT, WIDTH, channels)) if layout.kind == FLOAT else np.zeros((HEIGHT, WIDTH, channels), int)
    with pytest.raises(ImageError, match=reason):
        open_image(layout.write(samples), settings=PLAIN)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("bits", [8, 12])
@pytest.mark.parametrize("kind", [1, 3, 4])
def test_the_orientation_is_applied_whoever_decodes(orientation, bits, kind):
    data, _ = example(Tiff(bits, tags={274: (kind, [orientation])}))
    upright = np.asarray(open_image(example(Tiff(bits))[0], settings=PLAIN))
    turned = [upright, upright[:, ::-1], upright[::-1, ::-1], upright[::-1], upright.T, upright.T[:, ::-1],
              upright[::-1, ::-1].T, upright.T[::-1]]  # fmt: skip
    assert np.array_equal(np.asarray(open_image(data, settings=PLAIN)), turned[orientation - 1])


LAYOUTS = [
    Tiff(12, strips=2),
    Tiff(16, RGB, planar=2, compression=LZW),
    Tiff(16, WHITE_IS_ZERO, tile=16, compression=DEFLATE),
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=["packed", "planes", "tiles"])
def test_a_cut_tiff_is_refused(layout):
    data = example(layout)[0]
    for length in range(0, len(data), 7):
        with pytest.raises(ImageError):
            open_image(data[:length], settings=PLAIN)


@given(st.sampled_from(LAYOUTS), st.data())
def test_damage_in_a_tiff_is_a_picture_or_an_image_error(layout, data):
    file = bytearray(example(layout)[0])
    for _ in range(data.draw(st.integers(1, 4))):
        file[data.draw(st.integers(0, len(file) - 1))] = data.draw(st.integers(0, 255))
    try:
        assert min(open_image(bytes(file), settings=EncodeSettings(max_pixels=1 << 20)).size) >= 1
    except ImageError as error:
        assert "\n" not in str(error)


def test_a_header_that_claims_too_much_takes_no_memory():
    def claim(**tags):
        data = {256: 13, 257: 9, 258: 12, 259: 1, 262: 1, 277: 1, 278: 9, **{int(k[1:]): v for k, v in tags.items()}}
        return tiff_files.assemble({tag: (4, [value]) for tag, value in data.items()}, [bytes(200)])

    for tags, reason in (
        ({"t256": 1 << 30}, "--max-pixels"),
        ({"t322": 1, "t323": 1}, "offsets for 117 strips"),
        ({"t322": 1 << 20, "t323": 1 << 20}, "--max-pixels"),
        ({"t277": 1 << 31}, "samples a pixel"),
        ({"t258": 1 << 31}, "2147483648 bits"),
        ({"t278": 0}, "offsets for 9 strips"),
        ({"t256": 0}, "0 × 9 pixels"),
    ):
        with pytest.raises(ImageError, match=reason):
            open_image(claim(**tags), settings=PLAIN)


@pytest.mark.parametrize(("bits", "meaning", "kind", "order", "planar", "code"), [
    *itertools.product([8, 12, 16], [WHITE_IS_ZERO, BLACK_IS_ZERO], [1], ORDERS, [1, 2], [NONE, LZW]),
    *itertools.product([16, 32], [BLACK_IS_ZERO], [SIGNED], ORDERS, [1, 2], [NONE, LZW]),
])  # fmt: skip
def test_values_of_a_mask_in_a_tiff_are_exact_or_refused(bits, meaning, kind, order, planar, code):
    classes = np.arange(HEIGHT * WIDTH).reshape(HEIGHT, WIDTH, 1)
    top = (1 << bits) - 1
    samples = top - classes if meaning == WHITE_IS_ZERO else classes
    data = Tiff(bits, meaning, kind, order, planar, compression=code).write(samples)
    try:
        mask = open_mask("mask", data, WIDTH, HEIGHT)
    except ImageError as error:
        assert bits > 8 or planar == 2, error  # what programs write is read
        return
    assert (mask == classes[..., 0]).all()
