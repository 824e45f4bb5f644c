"""Functions for the commands that do more than the function of the same name in ``picstore``.

Their parameter ``**options`` stands for the other parameters of the function in ``picstore``.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import signal
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from picstore.cli.print_result import echo
from picstore.errors import counted

if TYPE_CHECKING:
    from picstore.results import DeleteResult, Result
    from picstore.storage.location.resolve import Where


def convert(
    source: Where,
    out: Where | None = None,
    *,
    measure: int | None = None,
    plot: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Result:
    """Convert the images of SRC, in many formats, to a picstore dataset DST.

    Every image becomes a baseline JPEG with restart markers. A JPEG that is baseline, upright, of a usual sampling and
    not resized keeps its coefficients. DST/ledger.jsonl lists the status of every input; an input that fails is left
    out and does not stop the conversion. With ``measure`` there is no DST, and nothing is converted.

    Args:
        measure: encode N images (200 if N is omitted) at several qualities and subsamplings, and print PSNR, SSIM and
            bytes.
        plot: SVG file for a plot of ``measure``; needs picstore[plot].
    """
    from picstore.verbs.convert import convert as make_dataset
    from picstore.verbs.measure_quality import measure_quality

    if options["append"] and out is None:
        raise click.UsageError("--append needs DST")
    if plot is not None and measure is None:
        raise click.UsageError("--plot goes with --measure")
    if out is not None and measure is None:
        return make_dataset(source, out, **options)
    if out is None and measure is not None:
        taken = inspect.signature(measure_quality).parameters
        of_images = {name: value for name, value in options.items() if name in taken}
        return measure_quality(source, measure, plot=plot, **of_images)
    raise click.UsageError("give either DST or --measure")


def delete(
    dataset: Where, *, id: Sequence[int] = (), ids: str | os.PathLike[str] | None = None, **options: Any
) -> DeleteResult:
    """Do as :func:`picstore.delete`.

    Args:
        id: id of an image to delete; may be repeated.
        ids: file of ids to delete, one per line.
    """
    from picstore.verbs.delete import delete as delete_images
    from picstore.verbs.delete import read_ids

    return delete_images(dataset, [*id, *(read_ids(ids) if ids is not None else ())], **options)


def audit(
    checkpoint: str,
    dataset: Sequence[Where],
    *,
    steps: str | None = None,
    id: Sequence[int] = (),
    ids: str | os.PathLike[str] | None = None,
    path: Sequence[str] = (),
    counts: bool = False,
    unseen: bool = False,
    csv: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Result:
    """Do as :func:`picstore.audit`.

    Args:
        checkpoint: see :func:`picstore.audit`.
        dataset: see :func:`picstore.audit`.
        steps: list the samples of steps A to B - 1, counted from 0 through all epochs; with ids or paths, look for
            these images only in steps A to B - 1.
        id: id of an image to look for; may be repeated.
        ids: file of ids to look for, one per line.
        path: path of an image to look for, in the source that was converted; may be repeated.
        counts: list how often each image was drawn.
        unseen: list the images that were not drawn yet.
        csv: file to write the list to, which may then have any length.
    """
    from picstore.cli.audit_rows import answer
    from picstore.verbs.audit import audit as audit_state
    from picstore.verbs.delete import read_ids

    audited = audit_state(checkpoint, dataset, **options)
    wanted = [*id, *(read_ids(ids) if ids is not None else ())]
    return answer(audited, steps=steps, ids=wanted, paths=path, counts=counts, unseen=unseen, csv=csv)


def bench(
    dataset: Where,
    *,
    images: int = 2000,
    batch_size: int = 128,
    size: int = 224,
    color: bool = False,
    threads: int | None = None,
    processes: int | None = None,
    isolate: bool = True,
    cache: str | os.PathLike[str] | None = None,
    cache_limit: str = "50GiB",
    root: Where | None = None,
) -> Result:
    """Measure how fast this machine loads DATASET, stage by stage, and name the slowest stage.

    The transforms are RandomResizedCrop and RandomHorizontalFlip. Files that were read before may be in the page cache,
    and then load faster.

    Args:
        images: number of images to measure.
        batch_size: images per batch.
        size: width and height of the output in pixels.
        color: add ColorJitter(0.4, 0.4, 0.4, 0.1) and Normalize to the transforms.
        threads: threads of the loader; None for the number of cores.
        processes: processes of the loader, which share its threads; None for one for each 4 cores, at most 8.
        isolate: run the loader in its own process instead of the command's.
        cache: folder that caches containers of a remote dataset; None for no cache.
        cache_limit: maximum size of the ``cache`` folder.
        root: see :func:`picstore.info`.
    """
    import picstore
    from picstore.cores import count_cores
    from picstore.train.profile import measure
    from picstore.verbs.common_arguments import require_range

    for name, value in (("images", images), ("batch_size", batch_size), ("size", size), ("threads", threads)):
        require_range(name, value, 1)
    transform = [picstore.RandomResizedCrop(size), picstore.RandomHorizontalFlip()]
    if color:
        normalize = picstore.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
        transform += [picstore.ColorJitter(0.4, 0.4, 0.4, 0.1), normalize]
    return measure(
        picstore.Dataset(dataset, root=root, cache=cache, cache_limit=cache_limit),
        transform=transform,
        batch_size=batch_size,
        images=images,
        threads=threads or count_cores(),
        processes=processes,
        isolate=isolate,
    )


def view(dataset: Where, other: Where | None = None, *, open: bool = False, **options: Any) -> None:
    """Show DATASET on a web page of this machine, with OTHER beside it.

    The command prints the address, which holds a token, and serves the page until it is interrupted. The server changes
    nothing, and listens only on the loopback interface; for a remote machine use ssh -L PORT:127.0.0.1:PORT. With
    OTHER, a page compares both datasets: classes, sizes, qualities, and images that both have.

    Args:
        open: open the page in the browser of this machine.
    """
    import webbrowser

    with _ending_at_once():
        from picstore.verbs.view import open_page

        page = open_page(dataset, other, **options)
        from picstore.viewer.security import redirecting_file
        from picstore.viewer.server import end_by
    with contextlib.ExitStack() as stack:
        echo(*(f"{name}: {counted(images, 'image')}" for name, images in page.shown), f"  {page.address}")
        if options["embed"]:
            echo(f"  in a notebook: IPython.display.IFrame({page.address!r}, '100%', 800)")
        echo("  Ctrl-C ends it")
        if open:
            webbrowser.open(stack.enter_context(redirecting_file(page.address)))
        number = page.serve()
    end_by(number)


@contextlib.contextmanager
def _ending_at_once() -> Iterator[None]:
    """Let SIGINT and SIGTERM end the process immediately during the ``with`` block, in which nothing needs cleaning up.

    Signal handlers that raise an exception do not suffice, because some modules, such as numba, discard exceptions
    during their import.
    """
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
