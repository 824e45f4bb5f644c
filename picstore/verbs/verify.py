"""``picstore.verify``: check every checksum of a data set."""

from __future__ import annotations

from picstore.display.progress import ProgressOption, open_display
from picstore.prepare.upkeep import verify_dataset as upkeep
from picstore.results import DamagedPlace, VerifyResult
from picstore.storage.location.resolve import Where, locate
from picstore.verbs.common_arguments import open_engine


def verify(
    dataset: Where,
    *,
    decode: bool = False,
    root: Where | None = None,
    workers: int | None = None,
    engine: str = "local",
    progress: ProgressOption = False,
) -> VerifyResult:
    """Read all of a data set, check every checksum, and list all damage; ``ok`` of the result tells whether there is.

    Args:
        dataset: path or URL.
        decode: decode every image too, and compare it with the index.
        root: folder of the images of an index, which you trust; None where the index says it, if you made it.
        workers: number of processes; None for the number of cores.
        engine: "local", or "ray" for the cluster of RAY_ADDRESS.
        progress: as :func:`picstore.convert` has it.

    Raises:
        NotADataset, Unfinished, UnsupportedVersion: there is no data set, or a later picstore wrote it; or it is an
            index of images that are gone.
        UsageError: an index from elsewhere needs ``root``.
        Damage: the manifest is damaged, so its files are not known.
        MissingDependency, PicstoreError: Ray is not installed, or the cluster cannot be reached.
    """
    with open_engine(engine, workers) as processes, open_display("verify", progress) as display:
        done = upkeep.verify(dataset, root=root, decode=decode, workers=processes, progress=display)
    return VerifyResult(
        dataset=str(locate(dataset)),
        images=done.manifest.images_left,
        files=len(done.manifest.files),
        ok=not done.findings,
        records_lost=sum(finding.records_lost for finding in done.findings),
        remarks=done.remarks,
        damage=[
            DamagedPlace(file=each.file, offset=each.offset, problem=each.problem, records_lost=each.records_lost)
            for each in done.findings
        ],
    )
