"""The demo of the documentation: cut.js, a second implementation of cuts, makes what picstore.cut makes."""

from __future__ import annotations

import base64
import functools
import io
import random
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
from PIL import Image
from samples import picture

import picstore

DEMO = Path(__file__).parents[1] / "docs" / "demo"
MARKUP = (DEMO / "index.md").read_text().partition('<div id="demo"')
# Cut boxes of one JPEG: [bytes, left, top] of each, or the sentence that says why there are none.
CUT = """async ([jpeg, boxes]) => {
  const { cut, parse } = await import("./cut.js");
  const bytes = Uint8Array.from(atob(jpeg), (each) => each.charCodeAt(0));
  const encode = (each) => btoa(Array.from(each, (value) => String.fromCharCode(value)).join(""));
  try {
    const image = parse(bytes);
    return boxes.map(([left, top, width, height]) => {
      const result = cut(image, { left, top, width, height });
      return [encode(result.bytes), left - result.left, top - result.top];
    });
  } catch (error) {
    return error.message;
  }
}"""

pytestmark = pytest.mark.slow


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def page(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The demo without the site's theme around it."""
    folder = tmp_path_factory.mktemp("demo")
    for each in DEMO.iterdir():
        (folder / each.name).write_bytes(each.read_bytes())
    body = MARKUP[1] + MARKUP[2].partition("\n</div>\n")[0] + "\n</div>"
    style = (DEMO.parent / "stylesheets" / "extra.css").read_text()
    (folder / "index.html").write_text(f"<!doctype html><meta charset=utf-8><style>{style}</style>{body}")
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=folder))
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    page = browser.new_page()
    page.goto(f"http://127.0.0.1:{server.server_address[1]}/index.html")
    page.wait_for_function("document.getElementById('demo-result').textContent.includes('tiles')")
    yield page
    page.close()
    server.shutdown()
    server.server_close()


def _jpeg(width: int, height: int, sampling: str = "420") -> bytes:
    pixels = np.ascontiguousarray(picture(width, width=width, height=height))
    if sampling == "grey":
        return simplejpeg.encode_jpeg(pixels[:, :, :1].copy(), quality=90, colorspace="GRAY")
    return simplejpeg.encode_jpeg(pixels, quality=90, colorsubsampling=sampling)


def _cut(page: Any, stream: bytes, boxes: list[tuple[int, int, int, int]]) -> Any:
    return page.evaluate(CUT, [base64.b64encode(stream).decode(), boxes])


@pytest.mark.parametrize("sampling", ["444", "422", "420", "440", "grey"])
def test_the_browsers_cuts_are_pythons_byte_for_byte(page: Any, sampling: str) -> None:
    draw = random.Random(sampling)
    for size in ((333, 217), (64, 64), (130, 40), (16, 300), (1, 1)):
        marked = picstore.add_restart_markers(_jpeg(*size, sampling))
        boxes = []
        for _ in range(20):
            left, top = draw.randrange(size[0]), draw.randrange(size[1])
            boxes.append((left, top, draw.randint(1, size[0] - left), draw.randint(1, size[1] - top)))
        for box, (data, dx, dy) in zip(boxes, _cut(page, marked, boxes), strict=True):
            assert (base64.b64decode(data), (dx, dy)) == picstore.cut(marked, box), (size, box)


def test_the_browser_says_why_a_file_cannot_be_cut(page: Any) -> None:
    whole = [(0, 0, 8, 8)]
    assert "no restart markers" in _cut(page, _jpeg(160, 120), whole)
    progressive = io.BytesIO()
    Image.fromarray(picture(1)).save(progressive, "JPEG", progressive=True)
    assert "progressive" in _cut(page, progressive.getvalue(), whole)
    assert _cut(page, b"\x89PNG\r\n\x1a\n", whole) == "This is no JPEG."
    assert _cut(page, b"", whole) == "This is no JPEG."


def test_damaged_files_are_cut_or_refused_in_a_sentence(page: Any) -> None:
    marked, draw = picstore.add_restart_markers(_jpeg(160, 120)), random.Random(1)
    for _ in range(300):
        damaged = bytearray(marked[: draw.choice([len(marked), draw.randrange(len(marked))])])
        for _ in range(draw.randint(1, 4)):
            if damaged:
                damaged[draw.randrange(min(len(damaged), 700))] = draw.randrange(256)
        answer = _cut(page, bytes(damaged), [(0, 0, 1, 1)])
        assert isinstance(answer, list) or answer.endswith((".", "coefficients.")), answer


def test_dragging_the_box_makes_another_cut(page: Any) -> None:
    before = page.text_content("#demo-result")
    box = page.locator("#demo-box").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2 + 90, box["y"] + box["height"] / 2 + 60, steps=5)
    page.mouse.up()
    assert page.text_content("#demo-result") != before
    left, top, width, height = (int(page.input_value(f"#demo-{name}")) for name in ("left", "top", "width", "height"))
    expected, _ = picstore.cut((DEMO / "astronaut.jpg").read_bytes(), (left, top, width, height))
    encoded = page.evaluate(
        """async () => {
          const blob = await (await fetch(document.getElementById("demo-cut").src)).blob();
          return btoa(String.fromCharCode(...new Uint8Array(await blob.arrayBuffer())));
        }"""
    )
    assert base64.b64decode(encoded) == expected
    assert page.evaluate("document.getElementById('demo-cut').decode().then(() => true)")
    assert Image.open(io.BytesIO(expected)).size == tuple(
        page.evaluate("(({naturalWidth: w, naturalHeight: h}) => [w, h])(document.getElementById('demo-cut'))")
    )
