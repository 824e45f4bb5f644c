"""The part of an image that its views reach: the box that is decoded, and the rows of tiles that are read.

An image is decoded once for all views, at a scale that all views allow. Random parameters are functions of (seed,
epoch, record id), so the reader of a container can draw its records' crops and read only the rows of tiles under them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from itertools import product

import numpy as np

from picstore.arrays import I64, Table
from picstore.errors import Damage, NotADataset, UsageError
from picstore.jpeg.tiles import rows_to_cut
from picstore.storage.dataset import Dataset
from picstore.storage.format.container import Container
from picstore.storage.format.layout import MCU_SIZES
from picstore.storage.partial_reader import RowsOf
from picstore.train.batching.parameters import draw_geometry
from picstore.train.order.requests import TrainingSource
from picstore.train.transforms.geometry import Geometry
from picstore.train.transforms.transform_plan import TransformPlan

_FAR = 1 << 40  # coordinate in pixels that lies beyond every image
_MCU_SIZES = np.array(MCU_SIZES)  # width and height of an MCU in pixels, by code of the chroma sampling
# If records have more samples than this in an epoch, whole images are read, because crops reach nearly all rows.
_MAX_COPIES = 8


def joint_reach(geometries: Sequence[Geometry], n: int) -> I64:
    """Return, for each of n images, the box of source pixels that all its views together use, int64 (n, 4)."""
    if len(geometries) == 1 and len(geometries[0].size) == n:
        return geometries[0].reach
    reach = np.concatenate([geometry.reach.reshape(-1, n, 4) for geometry in geometries])
    empty = np.logical_or.reduce(reach[:, :, :2] >= reach[:, :, 2:], axis=2, keepdims=True)
    low = np.where(empty, _FAR, reach[:, :, :2]).min(axis=0)
    high = np.where(empty, -_FAR, reach[:, :, 2:]).max(axis=0)
    return np.concatenate([low, high], axis=1)


def joint_factors(geometries: Sequence[Geometry], n: int, gap: float | None) -> I64:
    """Return the factor by which decoding may divide each image's sides for all of its views: int64 (n,)."""
    if gap is None:
        return np.ones(n, dtype=np.int64)
    factors: I64 = np.concatenate([each.decode_factors(gap).reshape(-1, n) for each in geometries]).min(axis=0)
    return factors


def align_reach(reach: I64, factors: I64) -> I64:
    """Widen boxes (n, 4) to multiples of ``factors`` (n,), by which decoding divides the images' sides."""
    if factors.max(initial=1) == 1:
        return reach
    by = factors[:, None]
    return np.concatenate([reach[:, :2] // by * by, -(-reach[:, 2:] // by) * by], axis=1)


def boxes_to_cut(reach: I64, size: I64) -> I64:
    """Clip boxes of pixels that views use, as in ``Geometry.reach``, to the bounds of images of ``size`` (n, 2).

    Return int64 (n, 4): left, top, right, bottom. An empty box, of a view that shows only padding, becomes one pixel.
    """
    low = np.clip(reach[:, :2], 0, size - 1)
    return np.concatenate([low, np.clip(reach[:, 2:], low + 1, size)], axis=1)


def box_of_decoded(box: I64, origin: Sequence[int] | I64, factor: int) -> tuple[int, int, int, int]:
    """Convert a box (4,) in a stored image to pixels of the part from ``origin`` on, decoded at 1 / ``factor`` size."""
    left, top, right, bottom = (box - np.tile(np.asarray(origin, np.int64), 2)).tolist()
    return left // factor, top // factor, -(-right // factor), -(-bottom // factor)


def layouts_of(entries: Table) -> I64:
    """Return images' sizes and tilings, taken from index entries: int64 (n, 6), as in ``jpeg.cut.TiledJpegs``."""
    sizes = _MCU_SIZES[entries["sampling"]]
    columns = (entries["width"], entries["height"], sizes[:, 0], sizes[:, 1])
    return np.stack([*columns, entries["restart_interval"], entries["header_length"]], axis=1).astype(np.int64)


def needed_rows(source: TrainingSource, epoch: int, max_pixels: int, entries: Table) -> I64:
    """Compute, before images are read, the rows of tiles that an epoch needs of the images.

    Args:
        max_pixels: maximum number of pixels; larger images are refused, so none of their rows are needed.
        entries: ``layout.ENTRY`` (n,), index entries of the images.

    Returns:
        The rows, in the form of :data:`picstore.storage.partial_reader.RowsOf`.
    """
    layouts = layouts_of(entries)
    sizes = layouts[:, :2]
    ids = entries["id"].astype(np.int64)
    used = np.stack([source.uses_plan(number, epoch, sizes) for number in range(len(source.plans))])
    # Read an image whole if several plans (lists of transforms) may apply to it, because its batch's plan is unknown.
    reach = np.concatenate([np.zeros_like(sizes), sizes], axis=1)
    used &= used.sum(axis=0) == 1
    for number in np.flatnonzero(used.any(axis=1)).tolist():
        chosen = used[number]
        reach[chosen] = _reach_in_epoch(source, source.plans[number], epoch, ids[chosen], sizes[chosen])
    rows = rows_to_cut(boxes_to_cut(reach, sizes), layouts)
    rows[sizes.prod(axis=1) > max_pixels] = 0
    return rows


def _reach_in_epoch(source: TrainingSource, plan: TransformPlan, epoch: int, ids: I64, sizes: I64) -> I64:
    """Return the box that an epoch's views reach in each image, left, top, right, bottom: int64 (n, 4).

    The box is the whole image if transforms need the objects' boxes, which are not read yet, or if the epoch draws a
    record more than ``_MAX_COPIES`` times.
    """
    groups = plan.groups
    if source.copies <= _MAX_COPIES and not any(group.needs_boxes for group in groups):
        drawn = product(groups, range(source.copies))
        # A transform may reject an image, which is reported only if a batch takes the image.
        with contextlib.suppress(UsageError):
            geometries = [draw_geometry(source, group, epoch, ids, sizes, copies=copy)[0] for group, copy in drawn]
            return align_reach(
                joint_reach(geometries, len(ids)), joint_factors(geometries, len(ids), plan.reducing_gap)
            )
    return np.concatenate([np.zeros_like(sizes), sizes], axis=1)


def read_alone(
    dataset: Dataset, number: int, records: Collection[int], rows_of: RowsOf, *, attachments: bool
) -> Container | Damage:
    """Read only some records of a container; if a record is damaged, read the whole container to find a replacement."""
    wanted = np.zeros(int(dataset.rows["records"][number]), dtype=np.bool_)
    wanted[list(records)] = True
    try:
        container = dataset.containers.read_records(number, rows_of, wanted=wanted, attachments=attachments)
        return container if container.good[wanted].all() else dataset.containers.read(number)
    except Damage as error:
        return error
    except NotADataset:
        ref = dataset.containers.container_ref(number)
        return Damage("the file is missing", ref.name, ref.offset)
