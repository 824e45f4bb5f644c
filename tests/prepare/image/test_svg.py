"""SVG: what is recognized, drawn, refused; and that nothing outside a document reaches its picture."""

from __future__ import annotations

import base64
import gzip

import pytest
from pictures import CORNERS, close, corners, missing_packages, open_image, require, saved
from PIL import Image

from picstore.errors import ImageError
from picstore.prepare.image import svg
from picstore.prepare.image.decode_image import decode_here
from picstore.prepare.image.encode_settings import EncodeSettings

PLAIN = EncodeSettings()
PROLOG = """<?xml version="1.0" encoding="UTF-8"?>
<!-- made by hand -->
<!DOCTYPE svg PUBLIC "-//W3C//DTD SVG 1.1//EN" "http://www.w3.org/Graphics/SVG/1.1/DTD/svg11.dtd">
"""
NAMES = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
SHAPES = """<defs/><metadata><x/></metadata><rect width="32" height="24" fill="rgb(220,30,30)"/>
<rect x="32" width="32" height="24" style="fill:#1ec81e"/>
<g transform="translate(0,24)"><path d="M0 0H32
V24H0z" fill="#1e1edc"/></g>"""
RED = (220, 30, 30)


@pytest.fixture(autouse=True, scope="module")
def _resvg() -> None:
    require(not missing_packages("formats"), "the extra formats")


def drawing(body: str = SHAPES, size: str = 'viewBox="0 0 64 48"') -> bytes:
    return f"{PROLOG}<svg {NAMES} {size}>{body}</svg>".encode()


def colors(image: Image.Image) -> set[tuple[int, ...]]:
    return {color for _, color in image.convert("RGB").getcolors(1 << 20)}


def test_an_svg_is_drawn_on_the_background() -> None:
    image = open_image(drawing(), settings=EncodeSettings(background=(1, 2, 3)))
    assert (image.mode, image.size) == ("RGB", (64, 48))
    assert close(corners(image), [*CORNERS[:3], (1, 2, 3)], 1)
    half = open_image(drawing('<rect width="64" height="48" fill="red" opacity="0.5"/>'), settings=PLAIN)
    assert close([half.getpixel((9, 9))], [(255, 128, 128)], 1)


@pytest.mark.parametrize(("size", "pixels"), [
    ('width="1in" height="48pt"', (96, 64)),
    ('width="6.35cm" height="25.4mm"', (240, 96)),
    ('width="4pc" height="48px" viewBox="0 0 640 480"', (64, 48)),
    ('width="100%" height="100%" viewBox="0 0 40 30"', (40, 30)),
    ('width="50%" viewBox="0,0,40,30"', (20, 15)),
    ('width="80" viewBox="0 0 40 30"', (80, 60)),
    ("", (300, 150)),
    ('width="80"', (80, 150)),
    ('width="50%" height="100%"', (150, 150)),
    ('width="10.5" height="1e1"', (11, 10)),
])  # fmt: skip
def test_the_size_of_an_svg_is_that_of_its_units_and_viewbox(size: str, pixels: tuple[int, int]) -> None:
    assert open_image(drawing(size=size), settings=PLAIN).size == pixels


@pytest.mark.parametrize("size", ["nonsense", "0", "-1", "1_0", "nan", "inf", "2em", "9" * 50, "1pxpx", "%"])
def test_an_svg_whose_size_cannot_be_read_is_refused(size: str) -> None:
    with pytest.raises(ImageError, match="damaged SVG"):
        open_image(drawing(size=f'width="{size}" height="10"'), settings=PLAIN)


@pytest.mark.parametrize("text", ["utf-16", "iso-8859-1", "windows-1252", "utf-8-sig"])
def test_an_svg_in_an_encoding_that_it_states_is_drawn(text: str) -> None:
    name = "UTF-8" if text == "utf-8-sig" else text
    document = f'<?xml version="1.0" encoding="{name}"?><svg {NAMES} viewBox="0 0 9 9"><title>ä</title>{SHAPES}</svg>'
    assert colors(open_image(document.encode(text), settings=PLAIN)) == {RED}
    with pytest.raises(ImageError, match="encoding"):
        open_image(document.replace(name, "koi8-r", 1).encode("utf-8"), settings=PLAIN)


def test_the_text_of_an_svg_is_drawn_whatever_its_font() -> None:
    for font in ("", 'font-family="no such font"', 'font-family="monospace"'):
        image = open_image(drawing(f'<text y="40" font-size="40" {font}>M</text>'), settings=PLAIN)
        assert (0, 0, 0) in colors(image)


def test_an_svg_must_be_one() -> None:
    assert svg.is_svg(drawing())
    assert svg.is_svg(b"\xef\xbb\xbf  <svg/>")
    assert svg.is_svg('<?xml version="1.0"?><s:svg xmlns:s="x"/>'.encode("utf-16"))
    for data in (b"", b"<html><svg/></html>", b"text <svg>", b"<svgx>", gzip.compress(drawing())):
        assert not svg.is_svg(data)
        with pytest.raises(ImageError):
            open_image(data, settings=PLAIN, name="x.svg")


@pytest.mark.parametrize("data", [
    b"<!---->" * 9_000 + b"x",
    b"<!-- " * 13_000,
    b"<?x ?>" * 10_000,
    b"<!DOCTYPE a [" + b"]\n" * 30_000,
    b" " * 65_000 + b"x",
    b'<svg width="' + b"1" * 2_000_000 + b'q"/>',
    b"<svg transform='" + b"scale(" * 200_000 + b"'/>",
    b"<svg style='" + b"url(" * 200_000 + b"'/>",
    b"<svg viewBox='" + b"1 " * 500_000 + b"'/>",
    b"<svg><style>" + b"@import" * 9 + b"url(#" * 200_000 + b"</style></svg>",
])  # fmt: skip
def test_recognizing_and_checking_an_svg_come_to_an_end(data: bytes) -> None:
    """By regular expressions some took minutes, and some for ever; each takes less than 0.1 s."""
    if svg.is_svg(data):
        with pytest.raises(ImageError):
            svg.check_document(data, max_pixels=1)


@pytest.mark.parametrize("body", [
    '<image width="64" height="48" xlink:href="file://{}"/>',
    '<image width="64" height="48" href="{}"/>',
    '<image width="64" height="48" href="&#x2f;{}"/>',
    '<image width="64" height="48" href=" data:image/svg+xml;base64,{}"/>',
    '<filter id="f"><feImage href="{}"/></filter><rect width="64" height="48" filter="url(#f)"/>',
    '<x:image xmlns:x="http://www.w3.org/2000/svg" width="64" height="48" x:href="{}"/>',
    '<use xlink:href="{}#x"/>',
    '<rect width="64" height="48" fill="url({})"/>',
    '<rect width="64" height="48" style="fill:URL( \'file://{}\')"/>',
    '<style>@import "{}";</style>',
    '<style>rect {{ fill: url({}) }}</style>',
    '<rect width="9" height="9" xlink:href="{}"/>',
    '<foreignObject><p>x</p></foreignObject>',
])  # fmt: skip
def test_an_svg_that_refers_to_other_files_is_refused(body: str, tmp_path) -> None:
    Image.new("RGB", (64, 48), (255, 0, 255)).save(tmp_path / "canary.png")
    with pytest.raises(ImageError, match=r"SVG (with|that)"):
        open_image(drawing(body.format(tmp_path / "canary.png")), settings=PLAIN)


def test_a_picture_inside_an_svg_is_drawn() -> None:
    inside = base64.b64encode(saved(Image.new("RGB", (8, 8), RED), "PNG")).decode()
    for href in ("href", "xlink:href"):
        element = f'<image width="64" height="48" preserveAspectRatio="none" {href}="data:image/png;base64,{inside}"/>'
        image = open_image(drawing(element), settings=PLAIN)
        assert colors(image) == {RED}
    link = open_image(drawing(f'<a href="https://example.org/"><g>{SHAPES}</g></a>'), settings=PLAIN)
    assert close([link.getpixel((5, 5))], [RED], 1)


def test_an_svg_that_declares_entities_is_too_large_or_too_deep_is_refused() -> None:
    bomb = b'<!DOCTYPE svg [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><svg xmlns="http://www.w3.org/2000/svg">&b;</svg>'
    outside = b'<!DOCTYPE svg [<!ENTITY a SYSTEM "file:///etc/hostname">]><svg><text>&a;</text></svg>'
    for data in (bomb, outside):
        with pytest.raises(ImageError, match="entities"):
            open_image(data, settings=PLAIN)
    with pytest.raises(ImageError, match="--max-pixels"):
        open_image(drawing(size='width="100000" height="100000"'), settings=PLAIN)
    with pytest.raises(ImageError, match="deep"):
        open_image(b"<svg>" + b"<g>" * 300 + b"</g>" * 300 + b"</svg>", settings=PLAIN)
    with pytest.raises(ImageError, match="damaged SVG"):
        open_image(b"<svg><g></svg>", settings=PLAIN)


def nested(kind: str, levels: int) -> str:
    made = "".join(
        f'<{kind} id="a{n + 1}">' + f'<rect width="9" height="9" {kind}="url(#a{n})"/>' * 9 + f"</{kind}>"
        for n in range(levels)
    )
    return f'{made}<rect width="9" height="9" {kind}="url(#a{levels})"/>'


@pytest.mark.parametrize("body", [
    nested("mask", 12),
    '<defs><rect id="a0" width="1" height="1"/>'
    + "".join(f'<g id="a{n + 1}">' + f'<use href="#a{n}"/>' * 10 + "</g>" for n in range(12))
    + '</defs><use href="#a12"/>',
    '<pattern id="p" width="100000" height="100000" patternUnits="userSpaceOnUse"><rect width="9" height="9"/>'
    '</pattern><g transform="scale(1000)"><rect width="9" height="9" fill="url(#p)"/></g>',
])  # fmt: skip
def test_a_drawing_that_grows_without_end_ends_its_own_process_alone(body: str) -> None:
    with pytest.raises(ImageError, match=r"damaged SVG|crashed its decoder"):
        open_image(drawing(body), settings=PLAIN)
    assert open_image(drawing(), settings=PLAIN).size == (64, 48)


def test_without_the_extra_an_svg_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "resvg_py", None)
    with pytest.raises(ImageError, match=r"pip install 'picstore\[formats\]'"):
        decode_here(drawing(), settings=PLAIN)
