"""An annotated dataset, and running ``picstore view`` as a process."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image
from samples import picture

import picstore

TOKEN = "given-to-the-tests"  # noqa: S105
BASE = f"http://127.0.0.1:8000/{TOKEN}"  # of the server as an application
CLASSES = ("cat", "dog", "Sea lion")
COUNT = 36
# Controls and images that a screen reader has no name for, and ids that are used twice.
UNNAMED = """() => {
  const named = (e) => (e.getAttribute("aria-label") || e.getAttribute("aria-labelledby") || e.title ||
    e.labels?.[0]?.textContent || e.textContent || "").trim();
  const shown = [...document.querySelectorAll("a, button, input, select, textarea, meter, svg[role=img], summary")]
    .filter((e) => e.checkVisibility());
  const unnamed = shown.filter((e) => !named(e)).map((e) => e.outerHTML.slice(0, 120));
  const images = [...document.querySelectorAll("img:not([alt])")].map((e) => e.outerHTML.slice(0, 120));
  const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
  return [...unnamed, ...images, ...ids.filter((id, k) => ids.indexOf(id) !== k)];
}"""
# Texts whose contrast to what is behind them is less than 4.5 : 1, WCAG's level AA.
FAINT = """() => {
  const channels = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const part = (c) => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  const behind = (e) => {
    for (let at = e; at; at = at.parentElement) {
      const color = channels(getComputedStyle(at).backgroundColor);
      if (color.length === 3 || color[3] === 1) return color;
    }
    return [255, 255, 255];
  };
  return [...document.querySelectorAll("main *, header *")].filter((e) => e.checkVisibility() && !e.disabled &&
    !e.closest("svg") && [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim())).map((e) => {
    const [a, b] = [light(channels(getComputedStyle(e).color)), light(behind(e))].sort((x, y) => y - x);
    return [(a + 0.05) / (b + 0.05), e.outerHTML.slice(0, 100)];
  }).filter(([ratio]) => ratio < 4.5);
}"""


def mask(width: int, height: int) -> bytes:
    """A PNG with the values 0, 1 and 2 in thirds."""
    values = np.repeat(np.arange(3, dtype=np.uint8), -(-width // 3))[:width]
    out = io.BytesIO()
    Image.fromarray(np.tile(values, (height, 1))).save(out, "PNG")
    return out.getvalue()


def make_annotated(path: Path) -> Path:
    """36 pictures of three classes: boxes, outlines, keypoints, masks, captions and scores."""
    with picstore.Writer(path, classes=CLASSES, attachments=["mask"]) as writer:
        for number in range(COUNT):
            width, height = 160 + 8 * number, 120 + 4 * (number % 5)
            extra = {
                "boxes": [[20, 10, 80, 60], [90.5, 40, 150, 100]],
                "box_labels": [0, 2],
                "polygons": [[[20, 10, 80, 10, 50, 60]], [[90, 40, 150, 40, 150, 100, 90, 100]]],
                "keypoints": [[[30, 20, 2], [60, 40, 1]], [[100, 50, 0]]],
                "source": f"<b>file {number}</b>",
            }
            writer.add(
                picture(number, width=width, height=height),
                label=number % 3,
                extra=extra,
                attachments={"mask": mask(width, height)},
            )
    dataset = picstore.Dataset(path)
    ids = dataset.ids
    captions = [f"A Photo of thing {number} for <i>tests</i>" for number in ids]
    dataset.with_columns({"caption": captions, "score": ids / 20}).save()
    return path


@contextmanager
def started(
    *arguments: object, environment: dict[str, str] | None = None
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run ``picstore view ARGUMENTS`` until it has printed its address; yields the process and the address."""
    command = [sys.executable, "-m", "picstore", "view", *map(str, arguments)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=os.environ | (environment or {}))
    try:
        assert process.stdout is not None
        found = next(filter(None, (re.search(r"http://\S+", line) for line in process.stdout)), None)
        assert found is not None, "it ended without an address"
        yield process, found[0]
    finally:
        process.terminate()
        process.communicate(timeout=60)


@contextmanager
def serving(*arguments: object, environment: dict[str, str] | None = None) -> Iterator[str]:
    """Run ``picstore view ARGUMENTS``; yields the address that it prints."""
    with started(*arguments, environment=environment) as (_, address):
        yield address
