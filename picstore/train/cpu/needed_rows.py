"""Rows of tiles that an epoch's transforms need of stored images, known before any image is read.

Random parameters are functions of (seed, epoch, record id), so the reader of a container draws its records' crops.
"""

from __future__ import annotations

import contextlib
from itertools import product

import numpy as np

from picstore.arrays import I64, Table
from picstore.errors import UsageError
from picstore.jpeg.tiles import rows_to_cut
from picstore.train.batching.gather import layouts_of
from picstore.train.batching.parameters import draw_geometry
from picstore.train.batching.views_reach import align_reach, boxes_to_cut, joint_factors, joint_reach
from picstore.train.order.requests import TrainingSource
from picstore.train.transforms.transform_plan import TransformPlan

_MAX_COPIES = 8  # of a record in an epoch; the crops of more reach about all rows


def needed_rows(source: TrainingSource, epoch: int, max_pixels: int, entries: Table) -> I64:
    """Compute the rows of tiles that an epoch needs of some images, as :data:`picstore.storage.row_reader.RowsOf`.

    Args:
        source: the data set, its seed and transforms.
        max_pixels: of an image; larger ones are refused, so no row of them is needed.
        entries: ``layout.ENTRY`` (n,).
    """
    layouts = layouts_of(entries)
    sizes = layouts[:, :2]
    ids = entries["id"].astype(np.int64)
    used = np.stack([source.uses_plan(number, epoch, sizes) for number in range(len(source.plans))])
    reach = np.concatenate([np.zeros_like(sizes), sizes], axis=1)  # all of images that several plans may need
    used &= used.sum(axis=0) == 1
    for number in np.flatnonzero(used.any(axis=1)).tolist():
        chosen = used[number]
        reach[chosen] = _reach(source, source.plans[number], epoch, ids[chosen], sizes[chosen])
    rows = rows_to_cut(boxes_to_cut(reach, sizes), layouts)
    rows[sizes.prod(axis=1) > max_pixels] = 0
    return rows


def _reach(source: TrainingSource, plan: TransformPlan, epoch: int, ids: I64, sizes: I64) -> I64:
    """What an epoch reaches of images: int64 (n, 4), all of them where it cannot be known before they are read."""
    groups = plan.groups
    if source.copies <= _MAX_COPIES and not any(group.needs_boxes for group in groups):
        drawn = product(groups, range(source.copies))
        with contextlib.suppress(UsageError):  # an image that a transform refuses; its batch tells, if there is one
            geometries = [draw_geometry(source, group, epoch, ids, sizes, copies=copy)[0] for group, copy in drawn]
            return align_reach(
                joint_reach(geometries, len(ids)), joint_factors(geometries, len(ids), plan.reducing_gap)
            )
    return np.concatenate([np.zeros_like(sizes), sizes], axis=1)
