"""Results of verbs as text for a terminal, or as JSON.

Names and reasons may come from files of unknown origin, so their control characters are escaped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from picstore.display.terminal import ascii_json, visible
from picstore.errors import counted

if TYPE_CHECKING:
    from picstore import results
    from picstore.train.profile import Report

_MOST_REASONS = 8
_MOST_FORMATS = 10
_MOST_DUPLICATES = 20  # Largest number to print: groups of duplicates, duplicates in a group, rows of ``audit``.
_MOST_CLASSES = 4
_WORTH_COPYING = 0.8  # ``info`` advises a copy if an epoch of it reads less than this fraction of the bytes read now.


def echo(*lines: str, err: bool = False) -> None:
    r"""Print lines; unprintable characters, and newlines within a line, are printed as escapes, ``\x1b`` or ``\n``."""
    for line in lines:
        click.echo(visible(line), err=err)


def print_result(result: results.Result, *, as_json: bool) -> None:
    """Print the result of a verb as one line of JSON in ASCII, or as lines of text."""
    if as_json:
        click.echo(ascii_json(result.to_json()))
    else:
        echo(*_LINES[type(result).__name__](result))


def _conversion(result: results.ConvertResult) -> Iterator[str]:
    contents = "in this shard"
    if result.bytes is not None:
        contents = f"of {counted(result.classes or 0, 'class')}, {result.bytes / 1e6:,.1f} MB"
    rate = result.inputs / max(result.seconds, 1e-9)
    made = f"{counted(result.images, 'image')} {contents}"
    yield f"{result.dataset}: {made}, {result.seconds:.1f} s ({rate:,.0f} images/s)"
    yield "  " + _outcome(result.outcome)
    if result.stages:
        yield "  seconds: " + ", ".join(f"{stage} {value:.1f}" for stage, value in result.stages.items())
    formats = [] if result.outcome.get("indexed") else result.formats
    yield from format_lines(formats)
    named = {each.format for each in formats}
    reasons = [each for each in result.reasons if each.reason not in named]
    for each in reasons[:_MOST_REASONS]:
        yield f"  {each.count:>9,} {each.status}: {each.reason}"
    others = len(reasons) - _MOST_REASONS
    if others > 0:
        where = f", see {result.dataset}/ledger.jsonl" if result.uuid else ""
        yield f"  and {counted(others, 'other reason')}{where}"


def _outcome(outcome: dict[str, int]) -> str:
    """Format a conversion's outcome: ``399 lossless, 1 reencoded, 0 failed; 43.0 MB of JPEGs from 43.3 MB, -0.7 %``."""
    indexed = outcome.get("indexed")
    known = ("indexed", "failed", "lost") if indexed else ("lossless", "reencoded", "failed", "lost", "duplicate")
    counts = ", ".join(f"{outcome[status]:,} {status}" for status in known if status in outcome)
    source, jpeg = outcome["source_bytes"], outcome["jpeg_bytes"]
    if indexed:
        return f"{counts}; {source / 1e6:,.1f} MB stay where they are"
    if not source:
        return counts
    return f"{counts}; {jpeg / 1e6:,.1f} MB of JPEGs from {source / 1e6:,.1f} MB" + _change(source, jpeg)


def format_lines(formats: Iterable[results.FormatCount]) -> list[str]:
    """Format the counts of a conversion's inputs: a line for each of the 10 most frequent formats, one for the rest."""
    rows = [(each.format, each.inputs, each.lossless, each.source_bytes, each.jpeg_bytes) for each in formats]
    rest = rows[_MOST_FORMATS:]
    if len(rest) > 1:
        inputs, lossless, source, jpeg = (sum(row[k] for row in rest) for k in (1, 2, 3, 4))  # type: ignore[misc]
        rows[_MOST_FORMATS:] = [(f"{len(rest)} others", inputs, lossless, source, jpeg)]
    width = max((len(name) for name, *_ in rows), default=0)
    return [
        f"  {inputs:>9,} {name:<{width}} {lossless:>9,} lossless, "
        f"{source / 1e6:,.1f} MB to {jpeg / 1e6:,.1f} MB" + _change(source, jpeg)
        for name, inputs, lossless, source, jpeg in rows
    ]


def _change(before: int, after: int) -> str:
    return f", {after / before - 1:+.1%}" if before else ""


def _qualities(result: results.QualityResult) -> Iterator[str]:
    total = result.images + (0 if result.reencode else result.lossless) + result.failed
    if result.lossless:
        rest = "with --reencode they would have:" if result.reencode else "see --reencode"
        yield f"{result.lossless} of {counted(total, 'image', 'stay')} without loss, whatever the quality; {rest}"
    if result.failed:
        yield f"{result.failed} of {counted(total, 'image')} cannot be read"
    if not result.images:
        yield "nothing to measure"
        return
    yield f"{result.title}; the files have {result.source_bytes // result.images:,} bytes each"
    yield "subsampling  quality       bytes    saved  PSNR, dB     SSIM  5 % below"
    for row in result.qualities:
        mark = "*" if (row["subsampling"], row["quality"]) == (result.subsampling, result.quality) else " "
        yield (
            f"{row['subsampling']:>11}{row['quality']:>8}{mark}{row['bytes']:>12,}{row['saved']:>9.1%}"
            f"{row['psnr']:>10.2f}{row['ssim']:>9.4f}{row['ssim_low']:>11.4f}"
        )
    yield "PSNR and SSIM are of RGB, means over images; * is --subsampling and --quality"


def _shuffle(result: results.ShuffleResult) -> Iterator[str]:
    method, seed = result.shuffle["method"], result.shuffle["seed"]
    yield f"{result.dataset}: {counted(result.images, 'image')} shuffled ({method}, seed {seed})"


def _verification(result: results.VerifyResult) -> Iterator[str]:
    for each in result.damage:
        yield f"{each.file} at byte {each.offset}: {each.problem} ({counted(each.records_lost, 'record')} lost)"
    for remark in result.remarks:
        yield f"{result.dataset}: {remark}"
    state, lost = "no damage", f"{counted(result.records_lost, 'record')} lost"
    if not result.ok:
        state = f"{counted(len(result.damage), 'damaged place')}, {lost}"
    yield f"{result.dataset}: {counted(result.images, 'image')} in {counted(result.files, 'file')}, {state}"


def _repair(result: results.RepairResult) -> Iterator[str]:
    for loss in result.losses:
        yield f"{loss.file} at byte {loss.offset}: {loss.problem} ({counted(loss.records, 'record')} deleted)"
    for restored, text in (
        (result.manifest, "manifest restored from its copy"),
        (result.copy, "copy of the manifest written"),
        (result.index, "index rebuilt from the files"),
        (result.counts, "counts of labels written"),
    ):
        if restored:
            yield f"{result.dataset}: {text}"
    deleted = counted(result.records_lost, "lost record")
    yield f"{result.dataset}: {deleted} deleted, {counted(result.images, 'image')} left"


def _deletion(result: results.DeleteResult) -> Iterator[str]:
    yield f"{result.dataset}: {result.deleted:,} images deleted, {result.images:,} left"


def _export(result: results.ExportResult) -> Iterator[str]:
    lost = f", {counted(result.records_lost, 'damaged record')} left out" if result.records_lost else ""
    size = f"{result.bytes / 1e6:,.1f} MB, {result.seconds:.1f} s"
    yield f"{result.out}: {counted(result.images, 'image')} as {result.format}, {size}{lost}"


def _duplicates(result: results.DupesResult) -> Iterator[str]:
    for group in sorted(result.groups, key=lambda group: -len(group.duplicates))[:_MOST_DUPLICATES]:
        shown = ", ".join(f"{each.id} ({each.distance})" for each in group.duplicates[:_MOST_DUPLICATES])
        more = len(group.duplicates) - _MOST_DUPLICATES
        yield f"{group.id}: {shown}" + (f" and {more:,} more" if more > 0 else "")
    if (more := len(result.groups) - _MOST_DUPLICATES) > 0:
        yield f"… and {counted(more, 'more group')}; --json lists all"
    unread = f", {counted(result.unreadable, 'unreadable image')} left out" if result.unreadable else ""
    found = counted(result.duplicates, "duplicate") + ("" if result.other is None else f" of images in {result.other}")
    found += f" in {counted(len(result.groups), 'group')}{unread}"
    yield f"{result.dataset}: {counted(result.images, 'image')}, {found}"
    if result.duplicates:
        first = "" if result.ids else "--ids FILE, then "
        yield f"to delete them: {first}picstore delete {result.dataset} --ids {result.ids or 'FILE'}"


def _info(result: results.InfoResult) -> Iterator[str]:
    yield f"{result.dataset}: picstore dataset, uuid {result.uuid}"
    yield f"  format      {result.format_version}, which picstore {result.read_by} and later read"
    yield f"  images      {result.images:,}, {result.bytes / 1e6:,.1f} MB"
    few = ", ".join(result.classes[:_MOST_CLASSES]) + (", …" if len(result.classes) > _MOST_CLASSES else "")
    yield f"  classes     {len(result.classes):,}" + (f": {few}" if few else "")
    parts = ("stream", result.streams), ("file", result.files), ("container", result.containers)
    yield "  layout      " + ", ".join(counted(number, noun) for noun, number in parts)
    if result.deleted:
        yield f"  deleted     {counted(result.deleted, 'more image')}; shuffle leaves them out for good"
    if (left := result.stored_images - result.deleted) > result.images:
        yield f"  selection   {result.images:,} of {counted(left, 'image')}"
    if result.copy_bytes < _WORTH_COPYING * result.read_bytes:
        read, copied = result.read_bytes / 1e6, result.copy_bytes / 1e6
        yield f"  reading     an epoch reads {read:,.1f} MB; of a copy by picstore shuffle about {copied:,.1f} MB"
    if result.columns:
        yield "  columns     " + ", ".join(result.columns)
    for name, entry in result.provenance.get("maps", {}).items():
        form = f"{entry['dtype']} × {entry['channels']}, {entry['interpolation']}"
        yield f"  map:{name:<8} {form}" + (f", times {entry['scale']:g} in {entry['unit']}" if entry["unit"] else "")
    if encode := result.encode:
        size = encode["resize"] or "as the source"
        yield f"  encoding    quality {encode['quality']}, {encode['subsampling']}, size {size}"
    if references := result.references:
        yield f"  images in   {references['root']}, {references['foreign']:,} of them not upright JPEGs"
    source = result.provenance
    yield f"  made        by picstore {source.get('picstore')} from {source.get('source')}"
    if outcome := result.outcome:
        yield f"  converted   {_outcome(outcome)}"
    event = result.shuffle
    yield "  shuffled    " + (f"{event['method']}, seed {event['seed']}" if event else "no")
    if result.croissant:
        yield f"  croissant   {result.croissant}"
    yield from _order(result)


def _order(result: results.InfoResult) -> Iterator[str]:
    from picstore.display.histograms import histogram_lines, sample_note

    if order := result.order:
        yield (
            f"  order       correlation with the input {order['correlation']:+.3f}; neighbors of one class "
            f"{order['same_class_neighbours']:.1%}, {order['expected_same_class_neighbours']:.1%} in a random order"
            f"{sample_note(result.sampled_containers, result.containers)}"
        )
    yield from histogram_lines(result.histograms, containers=result.containers)


def _audit(result: results.AuditResult) -> Iterator[str]:
    ranks = f", {result.world_size} ranks" if result.world_size > 1 else ""
    yield f"state after {result.steps:,} steps: epoch {result.epoch}, batch {result.batch}{ranks}"
    asked = "" if (result.first, result.stop) == (0, result.steps) else f" in steps {result.first} to {result.stop - 1}"
    for each in result.datasets:
        times = f"{each.least} to {each.most} times" if each.least < each.most else f"{each.least} times"
        images = counted(each.records, "image")
        yield f"{each.dataset}: {images}, drawn {times} each{asked}, {each.unseen:,} of them never"
    for row in result.rows[:_MOST_DUPLICATES]:
        steps = row.get("steps", [])
        shown = ", ".join(
            f"{name} {value}" for name, value in row.items() if name != "steps" and value not in (None, "")
        )
        few = ", ".join(map(str, steps[:_MOST_DUPLICATES])) + (", …" if len(steps) > _MOST_DUPLICATES else "")
        yield f"  {shown}" + (f", at steps {few}" if few else "")
    if result.csv is not None:
        yield f"{counted(result.count, 'row')} in {result.csv}"
    elif (more := result.count - _MOST_DUPLICATES) > 0:
        yield f"  … and {more:,} more; --csv FILE or --json has all"
    yield from result.remarks


def _warm(result: results.WarmResult) -> Iterator[str]:
    compiled = f"{counted(result.compiled, 'kernel')} compiled in {result.seconds:.1f} s"
    yield f"{compiled}, {result.cached} were there; in {result.folder}"


def _bench(report: Report) -> Iterator[str]:
    yield f"{'stage':<10}{'us an image':>14}{'images/s of a thread':>24}"
    for name, microseconds in report.microseconds.items():
        yield f"{name:<10}{microseconds:>14,.1f}{1e6 / microseconds if microseconds else 0:>24,.0f}"
    stats = report.stats
    yield f"Reading runs at {report.read_rate / 1e6:,.0f} MB/s."
    yield f"The loader with {counted(report.threads, 'thread')} makes {report.rate:,.0f} images/s."
    yield (
        f"In its {report.seconds:.2f} s it waited {stats.waited_on_disk:.2f} on the disk, its consumer waited "
        f"{stats.waited_on_decode:.2f} on it, and finished batches {stats.waited_on_consumer:.2f} on the consumer."
    )
    yield report.verdict


# Functions that format results, by name of the result's class; names, because importing the classes takes time.
_LINES: dict[str, Callable[[Any], Iterator[str]]] = {
    "AuditResult": _audit,
    "ConvertResult": _conversion,
    "QualityResult": _qualities,
    "ShuffleResult": _shuffle,
    "VerifyResult": _verification,
    "RepairResult": _repair,
    "DeleteResult": _deletion,
    "ExportResult": _export,
    "DupesResult": _duplicates,
    "InfoResult": _info,
    "WarmResult": _warm,
    "Report": _bench,
}
