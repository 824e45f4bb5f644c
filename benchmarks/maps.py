"""Images/s of the standard job with a depth map beside each image, in each form that storage has, and without."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

import picstore
from benchmarks.harness import Case, Table, measure, tabulate
from benchmarks.options import Options
from benchmarks.photographs import find
from picstore.jpeg.markers import parse_header

BATCH = 128
# By case, what a Writer is told of the map; the first case reads its dataset without the map.
MAPS = {
    "uint16, nearest": "depth,dtype=uint16",
    "uint16, linear": "depth,dtype=uint16,interpolation=linear,invalid=0",
    "float16, linear": "depth,dtype=float16,interpolation=linear",
    "float32, linear": "depth,dtype=float32,interpolation=linear",
}


def depth(options: Options) -> Table:
    """Measure the loader with each map in turn."""
    first = next(iter(MAPS))
    cases = [Case("no map", partial(_epoch, options, ()), partial(_write, options, first))]
    cases += [Case(name, partial(_epoch, options, ("map:depth",)), partial(_write, options, name)) for name in MAPS]
    results = measure(cases, rounds=options.round_count(5))
    for result in results[1:]:
        result.figures = {"bytes of a map": _bytes_of_maps(_write(options, result.name))}
    about = (
        "photographs, and a drawn surface with some noise as depth; RandomResizedCrop(224) and flip, batches "
        f"of {BATCH}; {options.workers} threads"
    )
    return tabulate(results, about, first="no map")


def _epoch(options: Options, targets: tuple[str, ...], root: Path) -> int:
    """Make an epoch with a loader of this process that begins now: one that waits for its turn has batches ready."""
    steps = [picstore.RandomResizedCrop(224), picstore.RandomHorizontalFlip()]
    given = {"batch_size": 8 if options.quick else BATCH, "threads": options.workers, "isolate": False}
    loader = picstore.Loader(root, transform=steps, targets=targets, **given)
    count = sum(len(batch.labels) for batch in loader)
    loader.close()
    return count


def _write(options: Options, name: str) -> Path:
    """Write copies of the photographs with maps of their sizes; return the dataset, which may be there already."""
    root = options.work / f"maps-{list(MAPS).index(name)}"
    if root.exists():
        return root
    random = np.random.default_rng(0)
    part = root.with_suffix(".part")
    with picstore.Writer(part, maps=[MAPS[name]]) as writer:
        for path in find(options.photographs, options.image_count(300)):
            jpeg = path.read_bytes()
            header = parse_header(jpeg)
            y, x = np.mgrid[0 : header.height, 0 : header.width]
            surface = 4000 + 2000 * np.sin(x / 90) + 1500 * np.cos(y / 70) + random.normal(0, 1, x.shape)
            values = surface.astype(np.uint16) if "uint16" in name else (surface / 1000).astype(name.partition(",")[0])
            for _ in range(1 if options.quick else max(1, options.copies * 2 // 5)):
                writer.add(jpeg, attachments={"map:depth": values})
    part.rename(root)
    return root


def _bytes_of_maps(root: Path) -> int:
    dataset = picstore.Dataset(root)
    return sum(len(record.attachments["map:depth"]) for record in dataset) // len(dataset)
