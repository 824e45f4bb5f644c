"""``picstore verify``."""

from __future__ import annotations

from dataclasses import asdict

import click

from picstore.cli import options
from picstore.cli.terminal import echo, echo_json
from picstore.storage.location.resolve import Location, locate

_DAMAGE_FOUND = 3


@click.command("verify")
@click.argument("dataset", metavar="DATASET", type=locate)
@click.option("--decode", is_flag=True, help="Decode every image too, and compare it with the index.")
@options.root
@options.workers
@options.quiet
@options.as_json
@click.pass_context
def command(
    context: click.Context,
    dataset: Location,
    decode: bool,
    root: Location | None,
    workers: int | None,
    as_json: bool,
) -> None:
    """Read all of DATASET, check every checksum, and report file and offset of all damage.

    The exit code is 3 if there is damage.
    """
    from picstore.cli.progress import show_progress
    from picstore.prepare.engine.processes import default_workers
    from picstore.prepare.upkeep.verify import verify

    with show_progress("verify") as bar:
        manifest, findings, remarks = verify(
            dataset, root=root, decode=decode, workers=workers or default_workers(), progress=bar
        )
    lost = sum(finding.records_lost for finding in findings)
    if as_json:
        result = {"dataset": str(dataset), "images": manifest.images_left, "ok": not findings, "records_lost": lost}
        echo_json({**result, "remarks": remarks, "damage": [asdict(finding) for finding in findings]})
    else:
        for finding in findings:
            echo(f"{finding.file} at byte {finding.offset}: {finding.problem} ({finding.records_lost} records lost)")
        for remark in remarks:
            echo(f"{dataset}: {remark}")
        state = f"{len(findings)} damaged places, {lost:,} records lost" if findings else "no damage"
        echo(f"{dataset}: {manifest.images_left:,} images in {len(manifest.files):,} files, {state}")
    if findings:
        context.exit(_DAMAGE_FOUND)
