"""Results of the verbs: what ``picstore VERB --json`` prints, as frozen dataclasses. ``to_json`` gives the object."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Result of a verb."""

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``--json`` prints."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressReport(Result):
    """How far a verb is, as a progress callback gets it.

    Attributes:
        verb, stage: names, such as "convert" and "rows".
        done, total: items of the stage; None where they are not counted.
        rate: items per second in this stage; None while unknown.
        seconds: since the verb began.
        left: seconds that the stage will take; None while unknown.
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
    """Converted inputs of one format of files; bytes are the files' and their JPEGs'."""

    format: str
    inputs: int
    lossless: int
    source_bytes: int
    jpeg_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasonCount:
    """Number of inputs with one status of the ledger for one reason."""

    status: str
    reason: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertResult(Result):
    """Result of ``convert``, ``append``, ``index`` and ``merge``.

    Attributes:
        dataset: path or URL of the data set.
        uuid: of the data set; None for one shard of several.
        inputs: number of inputs that were converted, of ``append`` the new ones.
        images: in the whole data set, or in the shard.
        classes, bytes: number of classes, and size of the data set's files; None for a shard.
        seconds: of the verb.
        stages: seconds of each stage.
        outcome: inputs by status, ``source_bytes`` and ``jpeg_bytes``.
        status: inputs by status.
        formats, reasons: the most frequent first.
        remarks: on the source, such as files that were left out.
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
        images: number that were encoded; the figures are means of them.
        lossless: images that convert keeps without loss, whatever the quality.
        failed: images that cannot be read.
        reencode: whether JPEGs that could be kept were encoded too: on request, or where all could be kept.
        source_bytes: size of the files of ``images``.
        encoder, subsampling, resize, quality: as given.
        qualities: a row for each subsampling and quality: ``bytes``, ``saved`` against the files, ``psnr`` in dB,
            ``ssim``, and ``ssim_low``, the 5 % below.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleResult(Result):
    """Result of ``shuffle``: the copy, and its last entry of the manifest's shuffle history."""

    dataset: str
    uuid: str
    images: int
    shuffle: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedPlace:
    """Damage to a file: its name relative to the data set, byte offset, problem, and number of records lost."""

    file: str
    offset: int
    problem: str
    records_lost: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyResult(Result):
    """Result of ``verify``.

    Attributes:
        images, files: in the data set.
        ok: whether there is no damage.
        records_lost: by all damage.
        remarks: on what is no damage, such as a missing copy of the manifest.
        damage: all damaged places, in the order of the manifest's files.
    """

    dataset: str
    images: int
    files: int
    ok: bool
    records_lost: int
    remarks: list[str]
    damage: list[DamagedPlace]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteResult(Result):
    """Result of ``delete``: the data set's new uuid, images left, and images that were deleted now."""

    dataset: str
    uuid: str
    images: int
    deleted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Records of one container that could not be read and were deleted."""

    file: str
    offset: int
    problem: str
    records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairResult(Result):
    """Result of ``repair``.

    Attributes:
        images: left.
        manifest: whether the manifest was restored from its copy.
        copy: whether the copy was written from the manifest.
        index: whether the index was rebuilt.
        counts: whether the counts of labels were written.
        records_lost: deleted now, as they cannot be read; ``losses`` says where.
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
        out, format: folder and format.
        images, bytes: number of records written, and size of their JPEGs.
        records_lost: damaged records that were left out.
        seconds: of the verb.
        remarks: on what the format cannot take.
    """

    out: str
    format: str
    images: int
    bytes: int
    records_lost: int
    seconds: float
    remarks: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class InfoResult(Result):
    """Result of ``info``.

    Attributes:
        format_version, read_by: of the manifest, and the first picstore that reads it.
        images: that a loader gives; of a selection its own.
        stored_images, deleted: records in the files, and how many are deleted.
        read_bytes, copy_bytes: that an epoch reads, and that it would read of a copy, about.
        bytes: of the files.
        encode, references, provenance, outcome: from the manifest: settings of the JPEGs, folder of an index's images,
            origin, and outcome of the conversion.
        shuffle, shuffle_history: the last shuffle, and all.
        order: statistics of the stored order; None for fewer than two records.
        sampled_containers: of which ``order`` and the histograms of sizes are: all, or 1,000.
        counts_kept: whether the counts by class were kept beside the manifest; else they were counted now.
        histograms: of ``label``, ``width``, ``height`` and ``bytes``.
    """

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicate:
    """A near-duplicate: its id, and the bits by which its hash differs from the hash of the group's image."""

    id: int
    distance: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DuplicateGroup:
    """An image, the lowest id of its group or one of the other data set, and its near-duplicates by id."""

    id: int
    duplicates: list[Duplicate]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassCounts:
    """Images of a class in two data sets.

    Attributes:
        name: of the class; ``label 7`` where it has none.
        label, other_label: its label in each; None where a data set does not have it.
        images, other_images: number of images in each.
    """

    name: str
    label: int | None
    images: int
    other_label: int | None
    other_images: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Images of two data sets counted in the same bins.

    Attributes:
        name: what is counted: "width", "height", "bytes", "bits per pixel", "chroma sampling" or "quality".
        edges: of the bins, one more than counts; a bin holds its lower edge, the last one both. Empty for values.
        values: what the counts are of; empty for bins.
        counts, other_counts: images of each data set.
        median, other_median: None for values, and where there is no image.
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
    """Images that two data sets share, by perceptual hashes.

    Attributes:
        distance: bits of 64 in which hashes may differ.
        shared: number of images of the first data set that the other has too.
        repeated, other_repeated: near-duplicates within each.
        groups: an image of the other data set, and its near-duplicates in the first.
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
        dataset, other: paths or URLs.
        images, other_images: number of each.
        same_labels: whether each class that both have has one label in both.
        classes: by the first data set's labels, then the other's classes.
        sizes: of width, height, bytes, bits per pixel and chroma sampling, of all images.
        quality: of JPEGs, on libjpeg's scale, estimated from the quantization tables of at most 500 images of each.
        images_shared: None where they were not looked for.
        seconds: of the verb.
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
class DupesResult(Result):
    """Result of ``dupes``.

    Attributes:
        dataset, other: paths or URLs.
        distance: bits in which hashes may differ.
        images: that were compared.
        duplicates: number of images that could be deleted.
        unreadable: images that were left out.
        groups: by id.
        seconds: of the verb.
    """

    dataset: str
    other: str | None
    distance: int
    images: int
    duplicates: int
    unreadable: int
    groups: list[DuplicateGroup]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmResult(Result):
    """Result of ``warm``: kernels compiled now and before, the seconds it took, and the folder that keeps them."""

    compiled: int
    cached: int
    seconds: float
    folder: str
