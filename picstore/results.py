"""Results of the verbs, as frozen dataclasses; their fields are those that ``picstore VERB --json`` prints."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Result of a verb."""

    @property
    def exit_code(self) -> int:
        """Exit code of the command: 0, or 3 if the verb found or met damage."""
        return 0

    def to_json(self) -> dict[str, Any]:
        """Return the result as the object that ``--json`` prints."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressReport(Result):
    """Report on the progress of a verb, for the callback that a caller passes as ``progress``.

    Attributes:
        verb, stage: names of the verb, such as "convert", and of its current stage, such as "rows".
        done, total: number of the stage's items that are done, and of all its items; None if they are not counted.
        rate: number of items done per second in this stage; None while unknown.
        seconds: time since the verb began.
        left: seconds until the stage ends; None while unknown.
    """

    verb: str
    stage: str
    done: int | None
    total: int | None
    rate: float | None
    seconds: float
    left: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatCount:
    """Number of converted inputs in one file format, and total bytes of their files and of the JPEGs made from them."""

    format: str
    inputs: int
    lossless: int
    source_bytes: int
    jpeg_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasonCount:
    """Number of inputs that have the same status and reason in the ledger."""

    status: str
    reason: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertResult(Result):
    """Result of ``convert``, ``append``, ``index`` and ``merge``.

    Attributes:
        dataset: path or URL of the dataset.
        uuid: UUID of the dataset; None if the result is a shard.
        inputs: number of inputs of the conversion; for ``append`` only of new inputs.
        images: number of images in the whole dataset, or in the shard.
        classes, bytes: number of classes, and total bytes of the dataset's files; None if the result is a shard.
        seconds: duration of the conversion in seconds.
        stages: duration of each stage in seconds.
        outcome: number of inputs by status, total ``source_bytes`` of the inputs and ``jpeg_bytes`` of their JPEGs.
        status: number of inputs by status.
        formats, reasons: number of inputs by format, and by status and reason; the most frequent first.
        remarks: remarks on the source, such as files that were left out.
    """

    dataset: str
    uuid: str | None
    inputs: int
    images: int
    classes: int | None
    bytes: int | None
    seconds: float
    stages: dict[str, float]
    outcome: dict[str, int]
    status: dict[str, int]
    formats: list[FormatCount]
    reasons: list[ReasonCount]
    remarks: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityResult(Result):
    """Result of ``measure_quality``.

    Attributes:
        images: number of encoded images, over which the means in ``qualities`` are taken.
        lossless: number of images that ``convert`` stores without loss, whatever the quality.
        failed: number of images that cannot be read.
        reencode: whether JPEGs that ``convert`` would store without loss were encoded too, on request or because all
            images are such JPEGs.
        source_bytes: total bytes of the files of the encoded images.
        encoder, subsampling, resize, quality: settings of the planned conversion.
        qualities: for each subsampling and quality the means of ``bytes``, of ``saved`` (the fraction of the files'
            bytes that is saved), of ``psnr`` in dB and of ``ssim``; and ``ssim_low``, the fifth percentile of SSIM.
    """

    images: int
    lossless: int
    failed: int
    reencode: bool
    source_bytes: int
    encoder: str
    subsampling: str
    resize: str | None
    quality: int
    qualities: list[dict[str, Any]]

    @property
    def title(self) -> str:
        """Title for a plot, such as ``200 images, turbo, resized to shorter:256``."""
        resized = "" if self.resize is None else f", resized to {self.resize}"
        return f"{self.images:,} images, {self.encoder}{resized}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleResult(Result):
    """Facts about a shuffled copy; the attribute ``shuffle`` is the last entry of the manifest's list of shuffles."""

    dataset: str
    uuid: str
    images: int
    shuffle: dict[str, Any]


@dataclass(frozen=True, slots=True)
class DamagedPlace:
    """Damage to a file: the file's name relative to the dataset, byte offset, problem, and number of lost records."""

    file: str
    offset: int
    problem: str
    records_lost: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyResult(Result):
    """Result of ``verify``.

    Attributes:
        images, files: number of images and number of files in the dataset.
        ok: True if there is no damage.
        records_lost: number of records that cannot be read because of the damage.
        remarks: remarks on faults that are not damage, such as a missing copy of the manifest.
        damage: all damaged places, in the order of the manifest's files.
    """

    dataset: str
    images: int
    files: int
    ok: bool
    records_lost: int
    remarks: list[str]
    damage: list[DamagedPlace]

    @property
    def exit_code(self) -> int:
        return 0 if self.ok else 3


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteResult(Result):
    """Result of ``delete``: the dataset's new UUID, number of remaining images, and of images that were deleted."""

    dataset: str
    uuid: str
    images: int
    deleted: int


@dataclass(frozen=True, slots=True)
class Loss:
    """Damage to a container, and number of the container's records that were deleted because they cannot be read."""

    file: str
    offset: int
    problem: str
    records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairResult(Result):
    """Result of ``repair``.

    Attributes:
        images: number of images that remain in the dataset.
        manifest: whether the manifest was restored from its copy.
        copy: whether the copy of the manifest was written anew.
        index: whether the index of the containers was rebuilt from the files.
        counts: whether the counts of records by label were written.
        records_lost: number of records that were deleted because they cannot be read.
        losses: damage to the containers of these records.
    """

    dataset: str
    uuid: str
    images: int
    manifest: bool
    copy: bool
    index: bool
    counts: bool
    records_lost: int
    losses: list[Loss]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportResult(Result):
    """Result of ``export``.

    Attributes:
        out, format: folder and format of the exported files.
        images, bytes: number of exported records, and total bytes of their JPEGs.
        records_lost: number of damaged records that were left out.
        seconds: duration of the export in seconds.
        remarks: remarks on data that the format cannot hold.
    """

    out: str
    format: str
    images: int
    bytes: int
    records_lost: int
    seconds: float
    remarks: list[str]

    @property
    def exit_code(self) -> int:
        return 3 if self.records_lost else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class InfoResult(Result):
    """Result of ``info``.

    Attributes:
        dataset: path or URL of the dataset.
        format_version, read_by: version of the dataset's format, and first release of picstore that reads this version.
        images: number of images that a loader reads; with a selection, number of selected images.
        stored_images, deleted: number of records in the files, and number of deleted records.
        read_bytes, copy_bytes: number of bytes that an epoch reads, and an estimate of that number for a shuffled copy.
        bytes: total bytes of the dataset's files.
        encode, references, provenance, outcome: the manifest's entries on the settings of the JPEGs, the folder of an
            index's images, the origin, and the number of inputs by status.
        shuffle, shuffle_history: entry of the manifest on the last shuffle, and entries on all shuffles.
        order: statistics of the order in which records are stored; None for fewer than two records.
        sampled_containers: number of containers that were read for ``order`` and the histograms: all or 1,000.
        counts_kept: True if the dataset stores the counts by class, False if this call counted the records.
        histograms: histograms of ``label``, ``width``, ``height`` and ``bytes``.
        croissant: file of Croissant metadata that was written; None if none was asked for.
    """

    dataset: str
    format_version: int
    read_by: str
    uuid: str
    images: int
    stored_images: int
    deleted: int
    read_bytes: int
    copy_bytes: int
    columns: list[str]
    bytes: int
    streams: int
    files: int
    containers: int
    container_size: int
    classes: list[str]
    attachments: list[str]
    encode: dict[str, Any] | None
    references: dict[str, Any] | None
    provenance: dict[str, Any]
    outcome: dict[str, int] | None
    shuffle: dict[str, Any] | None
    shuffle_history: list[dict[str, Any]]
    order: dict[str, Any] | None
    sampled_containers: int
    counts_kept: bool
    histograms: dict[str, dict[str, Any]]
    croissant: str | None = None


@dataclass(frozen=True, slots=True)
class Duplicate:
    """Near-duplicate of a group's image: its id, and the number of bits in which the hashes of both images differ."""

    id: int
    distance: int


@dataclass(frozen=True, slots=True)
class DuplicateGroup:
    """Image and its near-duplicates, which are sorted by id.

    The image is that with the lowest id of the group or, if two datasets are compared, an image of the other dataset.
    """

    id: int
    duplicates: list[Duplicate]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassCounts:
    """Number of images of a class in each of two datasets.

    Attributes:
        name: name of the class; ``label 7`` if the class 7 has no name.
        label, other_label: label of the class in each dataset; None if a dataset does not have the class.
        images, other_images: number of images of the class in each dataset.
    """

    name: str
    label: int | None
    images: int
    other_label: int | None
    other_images: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Histogram of the images of two datasets, in the same bins or by the same values.

    Attributes:
        name: "width", "height", "bytes", "bits per pixel", "chroma sampling" or "quality".
        edges: edges of the bins; a bin includes its lower edge, the last bin also its upper. Empty if there are values.
        values: counted values; empty if there are bins.
        counts, other_counts: number of images of each dataset, by bin or value.
        median, other_median: median of each dataset; None if values are counted or the dataset has no images.
    """

    name: str
    edges: list[float]
    values: list[str]
    counts: list[int]
    other_counts: list[int]
    median: float | None
    other_median: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedImages:
    """Images that two datasets share, as found by perceptual hashes.

    Attributes:
        distance: limit of the search: hashes of near-duplicates differ in at most this many of 64 bits.
        shared: number of images of the first dataset that the other dataset has too.
        repeated, other_repeated: number of near-duplicates within each dataset.
        groups: images of the other dataset, each with its near-duplicates in the first dataset.
    """

    distance: int
    shared: int
    repeated: int
    other_repeated: int
    groups: list[DuplicateGroup]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareResult(Result):
    """Result of ``compare``.

    Attributes:
        dataset, other: paths or URLs of the datasets.
        images, other_images: number of images in each dataset.
        same_labels: True if each class that both datasets have has the same label in both.
        classes: classes in the order of the first dataset's labels, then classes that only the other dataset has.
        sizes: distributions of width, height, bytes, bits per pixel and chroma sampling, of all images.
        quality: distribution of JPEG quality on libjpeg's scale, estimated from the quantization tables of at most 500
            images of each dataset.
        images_shared: images that both datasets have; None if they were not searched for.
        seconds: duration of the comparison in seconds.
    """

    dataset: str
    other: str
    images: int
    other_images: int
    same_labels: bool
    classes: list[ClassCounts]
    sizes: list[Distribution]
    quality: Distribution
    images_shared: SharedImages | None
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedDataset:
    """Dataset of a training run, in the version that the run had, and how often the run drew its records.

    Attributes:
        dataset, uuid: path or URL, and UUID of the version that the run had.
        records: number of records in that version.
        samples: number of samples that the audited steps drew.
        unseen: number of records that none of the audited steps drew.
        least, most: smallest and largest number of samples of any record.
    """

    dataset: str
    uuid: str
    records: int
    samples: int
    unseen: int
    least: int
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditResult(Result):
    """Result of the command ``audit``; in Python see :func:`picstore.audit`.

    Attributes:
        steps: number of steps that were done when the state was saved; steps are numbered from 0 through all epochs.
        epoch, batch: epoch in which the state was saved, and number of steps that were done in this epoch.
        world_size: number of ranks that the state names.
        first, stop: first audited step, and step after the last audited step.
        datasets: datasets of the run; a mux has several.
        remarks: remarks on what the state cannot tell, and on what was assumed.
        rows: requested samples, records or ids, each with its fields; empty if they were written to ``csv``.
        csv: file to which the rows were written; None for no file.
        count: number of rows.
    """

    steps: int
    epoch: int
    batch: int
    world_size: int
    first: int
    stop: int
    datasets: list[AuditedDataset]
    remarks: list[str]
    rows: list[dict[str, Any]]
    csv: str | None
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DupesResult(Result):
    """Result of ``dupes``.

    Attributes:
        dataset, other: paths or URLs of the datasets.
        distance: limit of the search: hashes of near-duplicates differ in at most this many of 64 bits.
        images: number of compared images.
        duplicates: number of images that can be deleted because they are duplicates.
        unreadable: number of images that were left out because they cannot be read.
        groups: groups of near-duplicates, in ascending order of ids.
        ids: file to which the ids of all duplicates were written; None if no file was requested.
        seconds: duration of the search in seconds.
    """

    dataset: str
    other: str | None
    distance: int
    images: int
    duplicates: int
    unreadable: int
    groups: list[DuplicateGroup]
    ids: str | None
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmResult(Result):
    """Result of ``warm``: number of kernels it compiled, number compiled before, duration in seconds, and folder."""

    compiled: int
    cached: int
    seconds: float
    folder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MapResult(Result):
    """Result of ``map``.

    Attributes:
        dataset: path or URL of the dataset.
        column: name of the column that was written.
        uuid: UUID of the dataset's version that has the column.
        images: number of images for which the function was to return values.
        values: number of images that have a value.
        form: type of a value, such as "text", "float32" or "float32 of shape (512,)"; None if no image has a value.
        failed: number of images without a value, because they are damaged or the function raised an exception.
        reasons: number of images without a value by reason; the most frequent reason first.
        ledger: file with a line for each image without a value; None if all images have a value.
        seconds: duration of the run in seconds.
    """

    dataset: str
    column: str
    uuid: str
    images: int
    values: int
    form: str | None
    failed: int
    reasons: list[ReasonCount]
    ledger: str | None
    seconds: float
