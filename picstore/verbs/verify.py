"""``picstore.verify``: check every checksum of a dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING

from picstore.display.progress import ProgressOption, open_display
from picstore.results import VerifyResult
from picstore.verbs.common_arguments import EngineName, open_engine

if TYPE_CHECKING:
    from picstore.storage.location.resolve import Where


def verify(
    dataset: Where,
    *,
    decode: bool = False,
    root: Where | None = None,
    workers: int | None = None,
    engine: EngineName = "local",
    progress: ProgressOption = False,
) -> VerifyResult:
    """Read all of a dataset, check every checksum, and report file and offset of all damage.

    The exit code is 3 if there is damage.

    Args:
        dataset: path or URL.
        decode: decode every image too, and compare it with the index.
        root: see :func:`picstore.info`.
        workers, engine, progress: see :func:`picstore.convert`.

    Returns:
        ``ok`` is False if there is damage.

    Raises:
        NotADataset, Unfinished, UnsupportedVersion: there is no dataset, a later picstore wrote it, or it is an index
            of images that are gone.
        UsageError: an index from elsewhere needs ``root``.
        Damage: the manifest is damaged, so its files are not known.
        MissingDependency, PicstoreError: Ray is not installed, or the cluster cannot be reached.
    """
    from picstore.prepare.upkeep import verify_dataset
    from picstore.storage.location.resolve import locate

    with open_engine(engine, workers) as processes, open_display("verify", progress) as display:
        done = verify_dataset.verify(dataset, root=root, decode=decode, workers=processes, progress=display)
    return VerifyResult(
        dataset=str(locate(dataset)),
        images=done.manifest.images_left,
        files=len(done.manifest.files),
        ok=not done.findings,
        records_lost=sum(finding.records_lost for finding in done.findings),
        remarks=done.remarks,
        damage=done.findings,
    )
