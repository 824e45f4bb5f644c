"""What every platform has to do alike: convert, shuffle, verify, load, resume and show, with golden digests.

    python scripts/smoke.py [--no-torch] [--epochs N] [--write]

It uses the picstore that its Python has installed. A line a step says "ok" or what failed. The digests are of bytes
that the platform of the golden ones, x86-64 with CPython 3.11, wrote; --write stores this platform's.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import picstore

GOLDEN = Path(__file__).with_name("smoke.json")
STEPS: dict[str, Callable[[Smoke], str | None]] = {}  # what each returns is compared with the golden digest
TORCH: list[str] = []  # steps that need it
Step = Callable[["Smoke"], "str | None"]


class Failed(Exception):
    """A step did something else than elsewhere."""


class Smoke:
    """The folder that steps work in, and their options."""

    def __init__(self, folder: Path, epochs: int) -> None:
        self.folder, self.epochs = folder, epochs
        self.train = folder / "train"

    def picstore(self, *arguments: object) -> None:
        """Run a verb; Failed if it does not succeed."""
        done = subprocess.run([sys.executable, "-m", "picstore", *map(str, arguments)], capture_output=True, text=True)
        if done.returncode:
            raise Failed(f"picstore {arguments[0]}: exit code {done.returncode}: {done.stderr[-2000:]}")

    def loader(self, **options: Any) -> picstore.Loader:
        """A loader of the shuffled data set, with small augmented images."""
        transform = [
            picstore.RandomResizedCrop(64, scale=(0.5, 1)),
            picstore.RandomHorizontalFlip(),
            picstore.ColorJitter(0.3, 0.3, 0.3, 0.1),
            picstore.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4)),
        ]
        given = {"batch_size": 16, "transform": transform, "seed": 3, "threads": 2, "drop_last": False, **options}
        return picstore.Loader(self.train, **given)


def step(function: Step) -> Step:
    STEPS[function.__name__.replace("_", " ")] = function
    return function


def torch_step(function: Step) -> Step:
    TORCH.append(function.__name__.replace("_", " "))
    return step(function)


def digest(parts: Iterable[bytes]) -> str:
    """SHA-256 of byte strings one after the other, its first half."""
    total = hashlib.sha256()
    for part in parts:
        total.update(part)
    return total.hexdigest()[:32]


def batches_digest(batches: Iterable[Any]) -> str:
    return digest(
        array.contiguous().numpy().tobytes() for batch in batches for array in (batch.images, batch.labels, batch.ids)
    )


def equal(found: object, expected: object) -> None:
    if found != expected:
        raise Failed(f"{found} is not {expected}")


@step
def convert(smoke: Smoke) -> str:
    """PNGs of a drawing and of noise, of odd sizes, are encoded; the JPEGs that come of them are taken as they are."""
    random = np.random.default_rng(7)
    photos = smoke.folder / "photos"
    for k in range(60):
        height, width = 80 + k % 9, 96 + k % 13
        wave = np.sin(np.arange(height)[:, None] / (3 + k) + np.arange(width) / (5 + k % 7))[..., None]
        pixels = 128 + 90 * wave * [1, -0.5, 0.3] + random.normal(0, 9, (height, width, 3))
        file = photos / f"class{k % 3}" / f"{k:03}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file)
    sizes = ("--streams", 2, "--file-size", "64KiB", "--container-size", "16KiB")
    smoke.picstore("convert", photos, smoke.folder / "png", *sizes)
    for record in picstore.Dataset(smoke.folder / "png"):
        (photos / f"class{record.label}" / f"{record.id:03}.jpg").write_bytes(record.jpeg)
    smoke.picstore("convert", photos, smoke.folder / "all", *sizes)
    return digest(path.read_bytes() for path in sorted((smoke.folder / "all").rglob("*.pic")))


@step
def shuffle(smoke: Smoke) -> str:
    smoke.picstore("shuffle", smoke.folder / "all", smoke.train, "--seed", 5)
    return digest([picstore.Dataset(smoke.train).uuid.encode()])


@step
def verify(smoke: Smoke) -> None:
    smoke.picstore("verify", "--decode", smoke.train)


@step
def decode(smoke: Smoke) -> str:
    images = (picstore.decode(record.jpeg) for record in picstore.Dataset(smoke.train))
    return digest(np.ascontiguousarray(image).tobytes() for image in images)


@torch_step
def loader(smoke: Smoke) -> str:
    """Epochs of the default loader, in a process of its own; the digest is of the first two."""
    loader = smoke.loader()
    first = batches_digest([batch for _ in range(2) for batch in loader])
    for _ in range(smoke.epochs - 2):
        equal(sum(len(batch.labels) for batch in loader), 120)
    loader.close()
    return first


@torch_step
def threads(smoke: Smoke) -> None:
    """The same batches in this process, in which a free-threaded Python keeps its lock off."""
    with_process, alone = smoke.loader(), smoke.loader(isolate=False)
    equal(batches_digest(alone), batches_digest(with_process))
    if getattr(sys, "_is_gil_enabled", lambda: True)() and "free-threading" in sys.version:
        raise Failed("a library has switched the lock of this free-threaded Python on")


def in_workers(method: str, smoke: Smoke) -> None:
    from torch.utils.data import DataLoader

    options = {"batch_size": None, "num_workers": 2, "multiprocessing_context": method}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        found = batches_digest(DataLoader(smoke.loader(), **options))
    equal(found, batches_digest(smoke.loader()))


for _method in ("fork", "spawn", "forkserver"):
    STEPS[_method] = functools.partial(in_workers, _method)
    TORCH.append(_method)


@torch_step
def resume(smoke: Smoke) -> None:
    stopped = smoke.loader()
    batches = iter(stopped)
    for _ in range(3):
        next(batches)
    resumed = smoke.loader()
    resumed.load_state_dict(stopped.state_dict())
    equal(batches_digest(resumed), batches_digest(batches))


@torch_step
def view(smoke: Smoke) -> None:
    """The page answers at the address that the command prints."""
    command = [sys.executable, "-m", "picstore", "view", str(smoke.train)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        words = (word for line in process.stdout or () for word in line.split())
        address = next((word for word in words if word.startswith("http://")), None)
        if address is None:
            raise Failed("it prints no address")
        with urllib.request.urlopen(address, timeout=60) as answer:  # noqa: S310 - of this machine
            equal(answer.status, 200)
    finally:
        process.terminate()
        process.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-torch", action="store_true", help="leave out the steps that need PyTorch")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--write", action="store_true", help="store digests as golden")
    options = parser.parse_args()
    golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        smoke = Smoke(Path(folder), options.epochs)
        for name, run in STEPS.items():
            if options.no_torch and name in TORCH:
                continue
            began = time.monotonic()
            try:
                found = run(smoke)
                if options.write and found:
                    golden[name] = found
                equal(found, golden.get(name))
            except Exception as error:
                failed += 1
                print(f"{name}: {type(error).__name__}: {error}", flush=True)
            else:
                print(f"{name}: ok, {time.monotonic() - began:.1f} s", flush=True)
    if options.write:
        GOLDEN.write_text(json.dumps(golden, indent=2) + "\n")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
