"""``picstore bench``."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from picstore.cli import options
from picstore.cli.terminal import echo, echo_json
from picstore.storage.location.resolve import Location, locate

if TYPE_CHECKING:
    from picstore.train.profile import Report


@click.command("bench")
@click.argument("dataset", metavar="DATASET", type=locate)
@click.option(
    "--images", type=click.IntRange(min=1), default=2000, show_default=True, help="Number of images to measure."
)
@click.option("--batch-size", type=click.IntRange(min=1), default=128, show_default=True, help="Images per batch.")
@click.option(
    "--size",
    type=click.IntRange(min=1),
    default=224,
    show_default=True,
    help="Width and height of the output in pixels.",
)
@click.option(
    "--color", "--colour", is_flag=True, help="Add ColorJitter(0.4, 0.4, 0.4, 0.1) and Normalize to the transforms."
)
@click.option("--threads", type=click.IntRange(min=1), help="Threads of the loader.  [default: number of cores]")
@click.option(
    "--processes",
    type=click.IntRange(min=1),
    help="Processes of the loader, which share its threads.  [default: one for each 4 cores, at most 8]",
)
@click.option(
    "--isolate/--no-isolate",
    default=True,
    show_default=True,
    help="Run the loader in its own process, or in the command's.",
)
@click.option(
    "--cache",
    metavar="DIR",
    type=options.PATH,
    help="Folder that caches containers of a remote data set.  [default: none]",
)
@click.option(
    "--cache-limit", metavar="SIZE", default="50GiB", show_default=True, help="Maximum size of the --cache folder."
)
@options.root
@options.as_json
def command(
    dataset: Location,
    images: int,
    batch_size: int,
    size: int,
    color: bool,
    threads: int | None,
    root: Location | None,
    as_json: bool,
    **of_loader: Any,
) -> None:
    """Measure how fast this machine loads DATASET, stage by stage, and name the slowest stage.

    The transforms are RandomResizedCrop and RandomHorizontalFlip. Files read before may come from the page cache.
    """
    import picstore
    from picstore.cores import count_cores
    from picstore.train.profile import measure

    transform = [picstore.RandomResizedCrop(size), picstore.RandomHorizontalFlip()]
    if color:
        normalize = picstore.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
        transform += [picstore.ColorJitter(0.4, 0.4, 0.4, 0.1), normalize]
    cache = {name: of_loader.pop(name) for name in ("cache", "cache_limit")}
    report = measure(
        picstore.Dataset(dataset, root=root, **cache),
        transform=transform,
        batch_size=batch_size,
        images=images,
        threads=threads or count_cores(),
        **of_loader,
    )
    if as_json:
        echo_json({**asdict(report), "verdict": report.verdict})
    else:
        echo(*_lines(report))


def _lines(report: Report) -> list[str]:
    lines = [f"{'stage':<10}{'us an image':>14}{'images/s of a thread':>24}"]
    for name, microseconds in report.microseconds.items():
        lines.append(f"{name:<10}{microseconds:>14,.1f}{1e6 / microseconds if microseconds else 0:>24,.0f}")
    stats = report.stats
    lines += [
        f"Reading runs at {report.read_rate / 1e6:,.0f} MB/s.",
        f"The loader with {report.threads} threads makes {report.rate:,.0f} images/s.",
        f"In its {report.seconds:.2f} s it waited {stats.waited_on_disk:.2f} on the disk, its consumer waited "
        f"{stats.waited_on_decode:.2f} on it, and finished batches {stats.waited_on_consumer:.2f} on the consumer.",
        report.verdict,
    ]
    return lines
