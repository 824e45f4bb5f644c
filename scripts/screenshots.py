"""Screenshots of `picstore view` for the documentation: ``python scripts/screenshots.py [CHROMIUM]``.

They show scikit-image's photographs, with boxes and a mask of this script's own, in docs/images/view-*.webp.
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw
from playwright.sync_api import Page, sync_playwright

import picstore
from picstore.prepare.convert.row_division import DatasetShape

IMAGES = Path(__file__).parents[1] / "docs" / "images"
PHOTOGRAPHS = {
    "people": ("astronaut.png", "camera.png"),
    "animals": ("chelsea.png",),
    "food": ("coffee.png",),
    "machines": ("motorcycle_left.png", "motorcycle_right.png", "rocket.jpg"),
    "sky": ("hubble_deep_field.jpg", "moon.png"),
    "textures": ("brick.png", "grass.png", "gravel.png"),
}
CAT = [90, 10, 415, 290]  # left, top, right, bottom in chelsea.png
OUTLINE = [90, 290, 100, 30, 150, 60, 280, 70, 340, 12, 370, 150, 415, 290]
EYES = [[178, 112, 2], [321, 134, 2]]
# By name: the address, and whether it is dark.
SHOTS = {
    "grid": ('browse?filter={"labels":[0,1,2,3,4]}', False),
    "image": ("image?position=CAT", True),
    "recipe": ("recipe?recipe=timm_default&position=CAT&count=10", False),
    "replay": ("replay?recipe=torchvision_resnet50_v2&batch_size=15&epoch=3&step=1", True),
    "health": ("health", False),
    "compare": ("compare", False),
}
_LOADED = """[...document.images].filter((each) => each.getBoundingClientRect().top < innerHeight)
    .every((each) => each.complete && each.naturalWidth)"""
SIZE = {"width": 1280, "height": 800}


def main() -> None:
    """Make the data sets and take all screenshots."""
    chromium = sys.argv[1] if len(sys.argv) > 1 else shutil.which("chromium") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as work, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        annotated = Path(work) / "photographs"
        cat = write_annotated(annotated)
        converted, inputs = convert_folder(Path(work))
        with (
            serving(annotated) as first,
            serving(converted, "--inputs", str(inputs)) as second,
            serving(annotated, str(write_smaller(Path(work) / "smaller"))) as both,
        ):
            servers = {"health": second, "compare": both}
            for name, (place, dark) in SHOTS.items():
                page = browser.new_context(viewport=SIZE, color_scheme="dark" if dark else "light").new_page()
                page.set_default_timeout(300_000)  # also on a busy machine
                page.goto(f"{servers.get(name, first)}#{place.replace('CAT', str(cat))}")
                page.wait_for_load_state("networkidle")
                if name == "health":
                    verify(page)
                if name == "compare":
                    page.get_by_role("button", name="Look for shared images").click()
                    page.locator(".pair-cell").first.wait_for()
                    page.wait_for_load_state("networkidle")
                page.wait_for_function(_LOADED)
                with Image.open(io.BytesIO(page.screenshot())) as shot:
                    shot.save(IMAGES / f"view-{name}.webp", quality=80, method=6)
        browser.close()


def iterate_photographs() -> Iterator[tuple[int, str, Image.Image]]:
    """Each photograph and two parts of it: class, name, image."""
    for label, photographs in enumerate(PHOTOGRAPHS.values()):
        for photograph in photographs:
            with Image.open(str(files("skimage.data") / photograph)) as opened:
                whole = opened.convert("RGB")
            width, height = whole.width // 64 * 64, whole.height  # whole tiles of 64 pixels
            parts = {"whole": (0, 0, width, height), "left": (0, 0, 2 * width // 3, height)}
            for part, box in {**parts, "lower": (0, height // 4, width, height)}.items():
                yield label, f"{Path(photograph).stem}-{part}", whole.crop(box)


def write_annotated(path: Path) -> int:
    """Write a data set with captions, and the cat's box, outline, eyes and mask; returns the position of the cat."""
    names = []
    shape = {"container_size": 1 << 19, "file_size": 1 << 21}
    with picstore.Writer(path, classes=list(PHOTOGRAPHS), attachments=["mask"], shape=DatasetShape(**shape)) as writer:
        for label, name, image in iterate_photographs():
            extra, attachments = {"file": f"{name}.png"}, {}
            if name == "chelsea-whole":
                extra |= {"boxes": [CAT], "box_labels": [label], "polygons": [[OUTLINE]], "keypoints": [EYES]}
                mask = Image.new("L", image.size)
                ImageDraw.Draw(mask).polygon(OUTLINE, fill=1)
                out = io.BytesIO()
                mask.save(out, "PNG")
                attachments["mask"] = out.getvalue()
            writer.add(image, label=label, extra=extra, attachments=attachments)
            names.append(name)
    dataset = picstore.Dataset(path)
    captions = [f"a photograph: {names[number]}" for number in dataset.ids]
    dataset.with_columns({"caption": captions}).save()
    return int(np.flatnonzero(dataset.ids == names.index("chelsea-whole"))[0])


def write_smaller(path: Path) -> Path:
    """Write four of the classes again, at half the size and a lower quality, one photograph in another class."""
    with picstore.Writer(path, classes=["food", "machines", "sky", "people"]) as writer:
        for label, name, image in iterate_photographs():
            if name.endswith("whole") and label in (0, 2, 3, 4):
                out = io.BytesIO()
                image.resize((image.width // 2, image.height // 2)).save(out, "JPEG", quality=70)
                writer.add(out.getvalue(), label=0 if name == "rocket-whole" else [3, -1, 0, 1, 2][label])
    return path


def convert_folder(work: Path) -> tuple[Path, Path]:
    """Convert a folder that has formats of several kinds, equal files and broken ones; returns data set and folder."""
    folder, path = work / "in", work / "converted"
    for number, (label, name, image) in enumerate(iterate_photographs()):
        target = folder / list(PHOTOGRAPHS)[label] / f"{name}.{'png' if number % 5 == 4 else 'jpg'}"
        target.parent.mkdir(parents=True, exist_ok=True)
        image.save(target, quality=90, progressive=number % 7 == 3)
        if number % 9 == 2:
            target.with_stem(f"{name}-cut-off").write_bytes(target.read_bytes()[: target.stat().st_size // 2])
        if number % 11 == 5:
            shutil.copy(target, target.with_stem(f"{name}-again"))
    sizes = ("--container-size", "128KiB", "--file-size", "256KiB")
    command = [sys.executable, "-m", "picstore", "convert", str(folder), str(path), *sizes]
    subprocess.run([*command, "--max-errors", "20", "--dedupe"], check=True)
    return path, folder


def verify(page: Page) -> None:
    """Verify, and wait for the end."""
    page.get_by_role("button", name="Verify").click()
    page.get_by_text("No damage").first.wait_for()
    page.wait_for_load_state("networkidle")


@contextmanager
def serving(path: Path, *options: str) -> Iterator[str]:
    """Run `picstore view`; yields its address."""
    command = [sys.executable, "-m", "picstore", "view", str(path), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield next(found[0] for line in process.stdout or () if (found := re.search(r"http://\S+", line)))
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
