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
    """Report on the progress of a verb, for a ``progress`` callback.

    Attributes:
        verb, stage: name of the verb, such as "convert", and of its current stage, such as "rows".
        done, total: number of the stage's items done, and of all its items; None if not counted.
        rate: items done per second in this stage; None while unknown.
        seconds: seconds since the verb began.
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
        uuid: UUID of the dataset; None for a shard.
        inputs: number of inputs of this call.
        images: number of images in the whole dataset, or in the shard.
        classes, bytes: number of classes, and bytes of the dataset's files; None for a shard.
        stages: duration of each stage in seconds.
        outcome: number of inputs by status; ``source_bytes``, total of the inputs; ``jpeg_bytes``, total of their
            JPEGs.
        status: number of inputs by status.
        formats: number of inputs by format, the most frequent first.
        reasons: number of inputs by status and reason, the most frequent first.
        remarks: messages on the source, such as on files left out.
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
        images: number of images encoded at each quality.
        lossless: number of images that ``convert`` stores without loss, whatever the quality.
        failed: number of images that cannot be read.
        reencode: whether JPEGs that ``convert`` would store without loss were encoded too, on request or because all
            images are of this kind.
        source_bytes: total bytes of the encoded images' files.
        encoder, subsampling, resize, quality: settings of the planned conversion.
        qualities: for each subsampling and quality, means over the images of ``bytes`` per image, ``psnr`` in dB and
            ``ssim``; ``saved``, the fraction of ``source_bytes`` that is saved; ``ssim_low``, the fifth percentile of
            SSIM.
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
        ok: whether the dataset is undamaged.
        records_lost: number of records that damage makes unreadable.
        remarks: faults that are not damage, such as a missing copy of the manifest.
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
        images: number of images that remain.
        manifest: whether the manifest was restored from its copy.
        copy: whether the manifest's copy was written anew.
        index: whether the index of containers was rebuilt from the files.
        counts: whether the counts of records by label were written.
        records_lost: number of unreadable records, which were deleted.
        losses: damage to the containers of the deleted records.
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
        remarks: messages on data that the format cannot hold.
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
        format_version, read_by: version of the dataset's format, and first picstore release that reads it.
        images: number of images that a loader reads, all or selected ones.
        stored_images, deleted: number of records in the files, and how many of them are deleted.
        read_bytes, copy_bytes: bytes that an epoch reads, and an estimate for a shuffled copy.
        bytes: size of the dataset's files.
        encode, references, provenance, outcome: the manifest's entries of these names: settings of the JPEGs, folder of
            an index's images, origin of the data, number of inputs by status.
        shuffle, shuffle_history: the manifest's entry on the last shuffle, and its entries on all shuffles.
        order: statistics of the records' stored order; None for fewer than two records.
        sampled_containers: number of containers read for ``order`` and ``histograms``: all or 1,000.
        counts_kept: whether counts by class are stored in the dataset; if not, this call counted the records.
        histograms: histograms of ``label``, ``width``, ``height`` and ``bytes``; each has ``counts``, and either the
            ``edges`` of the counted bins, or the counted ``values`` and their ``names``.
        croissant: Croissant metadata file that was written; None if not requested.
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

    The image has the lowest id of the group; if two datasets are compared, it belongs to the other dataset.
    """

    id: int
    duplicates: list[Duplicate]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassCounts:
    """Number of images of a class in each of two datasets.

    Attributes:
        name: name of the class; ``label 7`` if class 7 has no name.
        label, other_label: label of the class in each dataset; None without the class.
    """

    name: str
    label: int | None
    images: int
    other_label: int | None
    other_images: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Histograms of the images of two datasets, over the same bins or values.

    Attributes:
        name: counted property: "width", "height", "bytes", "bits per pixel", "chroma sampling" or "quality".
        edges: edges of the bins; a bin includes its lower edge, the last bin also its upper. Empty if ``values`` are
            given.
        values: counted values; empty if there are bins.
        counts, other_counts: number of each dataset's images, by bin or value.
        median, other_median: median of each dataset; None if it has no images, or if there are no bins.
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
    """Images that two datasets share, found by perceptual hashes.

    Attributes:
        distance: largest number of the 64 hash bits in which near-duplicates differ.
        shared: number of the first dataset's images with a near-duplicate in the other.
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
        same_labels: whether all classes in both datasets have the same label in both.
        classes: the first dataset's classes by label, then classes that only the other dataset has.
        sizes: distributions of width, height, bytes, bits per pixel and chroma sampling.
        quality: distribution of JPEG quality on libjpeg's scale, estimated from at most 500 images of each dataset.
        images_shared: images that both datasets have; None without a search.
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
    """Dataset of a training run, in the version that the run used, and how often the run drew its records.

    Attributes:
        dataset, uuid: path or URL, and UUID of the dataset's version.
        samples: number of samples drawn in the audited steps.
        unseen: number of records never drawn in these steps.
        least, most: smallest and largest number of times that a record was drawn.
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
        steps: number of steps done when the state was saved; steps are numbered from 0 through all epochs.
        epoch, batch: epoch in which the state was saved, and number of steps done in it.
        world_size: number of ranks that the state names.
        first, stop: first audited step, and step after the last audited step.
        datasets: datasets of the run; several if the loader mixed datasets.
        remarks: what the state cannot tell, and what was assumed.
        rows: requested samples, records or ids, as dictionaries; empty if written to ``csv``.
        csv: file with the rows; None if not requested.
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
        distance: largest number of the 64 hash bits in which near-duplicates differ.
        duplicates: number of images that can be deleted as duplicates.
        unreadable: number of images left out because they cannot be read.
        groups: groups of near-duplicates, in ascending order of ids.
        ids: file with the ids of all duplicates; None if not requested.
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
        uuid: UUID of the dataset's version that has the column.
        images: number of images that were to get a value.
        values: number of images with a value.
        form: type of a value, such as "text", "float32" or "float32 of shape (512,)"; None if no image has a value.
        failed: number of images without a value, because of damage or an exception in the function.
        reasons: number of images without a value, by reason, the most frequent first.
        ledger: file with a line for each image without a value; None if all images have a value.
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
