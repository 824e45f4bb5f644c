"""Targets of an image: boxes, keypoints, polygons, masks and smaller images, moved as its pixels are.

docs/formats.md, "Targets", defines what a record holds. Everything is checked here again, since a data set may come
from anybody; an invalid extra or mask is an ImageError, which the loader treats as damage. Results are arrays, which
``batch.make_tensors`` converts to ``tv_tensors``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from picstore.arrays import F32, F64, I64, Array, Bools
from picstore.errors import ImageError
from picstore.storage.annotations import Objects, parse_extra, read_objects
from picstore.train.batching.gather import BatchRecords
from picstore.train.batching.host_batch import GroupTargets
from picstore.train.batching.parameters import TransformParams
from picstore.train.batching.spec import OutputSpec
from picstore.train.cpu.image_targets import is_jpeg, make_image
from picstore.train.cpu.polygons import clip_polygon
from picstore.train.cpu.render import render_mask
from picstore.train.transforms.geometry import Geometry
from picstore.train.transforms.transform_plan import TARGETS

MIN_SIDE = 1.0  # output pixels; an object whose box is narrower or lower after clipping is dropped

_TOLERANCE = 1e-6  # pixels; for rounding


def empty_targets(output: OutputSpec, n: int) -> list[GroupTargets] | None:
    """Room for the targets of n slots, by group; None if there are no targets."""
    if not output.targets:
        return None
    return [[[{} for _ in range(n)] for _ in range(group.count)] for group in output.groups]


def add_targets(
    targets: Sequence[GroupTargets],
    records: BatchRecords,
    slot: int,
    *,
    names: Sequence[str],
    params: Sequence[TransformParams],
) -> dict[int, str]:
    """Make the targets of a slot's views, by group; returns what is wrong with them, by slot."""
    try:
        extra, blobs = parse_extra(records.extras[slot]), records.attachments[slot]
        first = True
        for group, parameters in zip(targets, params, strict=True):
            for number, view in enumerate(group):
                row = number * len(records) + slot
                if not first and "extra" in names:  # a training may change what one view has
                    extra = parse_extra(records.extras[slot])
                view[slot], first = make_target(names, extra, blobs, parameters.geometry, row), False
    except ImageError as error:
        return {slot: str(error)}
    except MemoryError:
        return {slot: "has targets that take more memory than there is"}
    return {}


def make_target(
    names: Sequence[str], extra: Any, masks: Mapping[str, bytes | memoryview], geometry: Geometry, slot: int
) -> dict[str, Any]:
    """Make the targets of one image.

    A box becomes the upright box around its moved corners, clipped to the output. An object whose box is then smaller
    than ``MIN_SIDE`` is dropped with all its fields, whichever are asked for; without boxes in the extra none is
    dropped.

    Args:
        names: fields of the extra, or attachments that are masks or JPEGs, see ``check_targets``.
        extra: of the record; None has no objects.
        masks: image files by attachment.
        geometry: of the batch.
        slot: number of the image in it.

    Returns:
        By name, for k remaining objects and an output of H × W pixels:

        - ``boxes``: float32 (k, 4), XYXY; with them ``labels``, int64 (k,), −1 if the extra has none.
        - ``keypoints``: float32 (k, m, 2), x and y from the center of the first pixel; with them
          ``visibility``, int64 (k, m). Points that are not marked or lie outside have visibility 0 and x = y = 0;
          objects of fewer points are padded with such points.
        - ``polygons``: for each object a list of float32 (p, 2), clipped to the output; an outline outside is left out.
        - ``index``: int64 (k,), with any of the above: numbers of the objects in the extra.
        - ``extra``: the extra as it is.
        - an attachment: a mask (H, W) by nearest neighbor, 0 outside; uint8, or int64 if it has more than 8 bits; of
          a JPEG uint8 (3, h, w), see ``image_targets``. None if the record has none.

    Raises:
        ImageError: the extra or a mask is invalid.
    """
    target: dict[str, Any] = {}
    if not {"boxes", "keypoints", "polygons"}.isdisjoint(names):
        if not isinstance(extra, (dict, type(None))):
            raise ImageError("the extra is not a JSON object, so it holds no targets")
        fields = ["boxes", *(["box_labels"] * ("boxes" in names)), *names]
        target |= _object_targets(names, read_objects(extra, fields), geometry, slot)
    for name in names:
        if name == "extra":
            target[name] = extra
        elif name not in TARGETS:
            blob = masks.get(name, b"")
            make = make_image if is_jpeg(blob) else _mask_target
            target[name] = make(name, blob, geometry, slot) if len(blob) else None
    return target


def _object_targets(names: Sequence[str], objects: Objects, geometry: Geometry, slot: int) -> dict[str, Any]:
    if "boxes" in names and objects.boxes is None and objects.count:
        raise ImageError("the extra has objects but no boxes")
    index: I64 = np.arange(objects.count)
    target: dict[str, Any] = {}
    if objects.boxes is not None:
        boxes = _move_boxes(objects.boxes, geometry, slot)
        shown = (boxes[:, 2:] - boxes[:, :2] >= MIN_SIDE - _TOLERANCE).all(axis=1)
        if geometry.kept is not None:
            shown &= geometry.kept[slot, : len(boxes)]
        index = np.flatnonzero(shown)
    if "boxes" in names:
        remaining = np.zeros((0, 4)) if objects.boxes is None else boxes[index]
        labels = np.full(objects.count, -1) if objects.labels is None else objects.labels
        target["boxes"] = remaining.astype(np.float32)
        target["labels"] = labels[index].astype(np.int64)
    if "keypoints" in names:
        target["keypoints"], target["visibility"] = _move_keypoints(objects.keypoints, index, geometry, slot)
    if "polygons" in names:
        target["polygons"] = _move_polygons(
            [objects.polygons[k] if objects.polygons else [] for k in index], geometry, slot
        )
    target["index"] = index
    return target


def _move_boxes(boxes: F64, geometry: Geometry, slot: int) -> F64:
    """Move boxes (k, 4) to the output and clip them; boxes outside become empty or NaN."""
    low, high = _visible_rect(geometry, slot)
    boxes = np.concatenate([np.maximum(boxes[:, :2], low), np.minimum(boxes[:, 2:], high)], axis=1)
    corners = boxes[:, [[0, 1], [2, 1], [2, 3], [0, 3]]]
    moved = geometry.points_to_output(slot, corners.reshape(-1, 2)).reshape(-1, 4, 2)
    least, most = moved.min(axis=1), moved.max(axis=1)
    edges = geometry.edges[slot]
    for k in np.flatnonzero(~_inside(corners, edges).all(axis=(1, 2))):
        rest = geometry.points_to_output(slot, _clip_polygon(corners[k], edges))
        least[k] = rest.min(axis=0, initial=np.inf)
        most[k] = rest.max(axis=0, initial=-np.inf)
    empty = (boxes[:, 2:] <= boxes[:, :2]).any(axis=1)
    most[empty] = least[empty]
    size = geometry.size[slot]
    return np.concatenate([np.clip(least, 0, size), np.clip(most, 0, size)], axis=1)


def _move_keypoints(keypoints: list[F64] | None, index: I64, geometry: Geometry, slot: int) -> tuple[F32, I64]:
    """Points float32 (k, m, 2) and visibility int64 (k, m) of the objects ``index``."""
    chosen = [keypoints[k] for k in index] if keypoints else [np.zeros((0, 3))] * len(index)
    most = max(map(len, keypoints or chosen), default=0)
    table = np.zeros((len(chosen), most, 3))
    for row, each in zip(table, chosen, strict=True):
        row[: len(each)] = each
    centers = table[:, :, :2].reshape(-1, 2) + 0.5
    low, high = _visible_rect(geometry, slot)
    moved = geometry.points_to_output(slot, centers)
    seen = ((centers >= low) & (centers <= high)).all(axis=1) & _inside(centers, geometry.edges[slot]).all(axis=1)
    seen &= ((moved >= -_TOLERANCE) & (moved <= geometry.size[slot] + _TOLERANCE)).all(axis=1)
    visibility = np.where(seen.reshape(table.shape[:2]), table[:, :, 2], 0).astype(np.int64)
    points = np.where(visibility[:, :, None] != 0, moved.reshape(*table.shape[:2], 2) - 0.5, 0)
    return points.astype(np.float32), visibility


def _move_polygons(polygons: list[list[F64]], geometry: Geometry, slot: int) -> list[list[F32]]:
    """Move the outlines of each object and clip them to the visible rectangle, the edges and the output."""
    lengths = [len(outline) for outlines in polygons for outline in outlines]
    if not lengths:
        return [[] for _ in polygons]
    shown = np.concatenate([_rect_edges(*_visible_rect(geometry, slot)), geometry.edges[slot]])
    output = _rect_edges(np.zeros(2), geometry.size[slot])
    # Most outlines are whole or outside, which is found for all at once.
    points = np.concatenate([outline for outlines in polygons for outline in outlines])
    moved = geometry.points_to_output(slot, points)
    outside = ~np.concatenate([_inside(points, shown), _inside(moved, output)], axis=1)
    ends: I64 = np.cumsum(lengths)
    starts: I64 = ends - np.array(lengths)
    clipped = np.logical_or.reduceat(outside, starts).tolist()
    gone = np.logical_and.reduceat(outside, starts).tolist()
    rest = zip(starts.tolist(), ends.tolist(), map(any, clipped), map(any, gone), strict=True)
    result: list[list[F32]] = []
    for outlines in polygons:
        remaining = []
        for outline in outlines:
            start, end, is_clipped, is_gone = next(rest)
            if not is_clipped:
                remaining.append(moved[start:end])
            elif not is_gone:
                remaining.append(_clip_polygon(geometry.points_to_output(slot, _clip_polygon(outline, shown)), output))
        result.append([each.astype(np.float32) for each in remaining if len(each) >= 3])
    return result


def _visible_rect(geometry: Geometry, slot: int) -> tuple[I64, I64]:
    """Left and top, right and bottom of the clip within the source; edges may hide more."""
    clip = geometry.clip[slot]
    return np.maximum(clip[:2], 0), np.minimum(clip[2:], geometry.source_size[slot])


def _rect_edges(low: npt.ArrayLike, high: npt.ArrayLike) -> F64:
    """The four half-planes a·x + b·y + c ≥ 0 of a rectangle: float64 (4, 3)."""
    (left, top), (right, bottom) = np.asarray(low), np.asarray(high)
    return np.array([[1, 0, -left], [0, 1, -top], [-1, 0, right], [0, -1, bottom]], dtype=np.float64)


def _inside(points: F64, planes: F64) -> Bools:
    """Whether points (…, 2) lie in half-planes (q, 3): bool (…, q)."""
    inside: Bools = points @ planes[:, :2].T + planes[:, 2] >= -_TOLERANCE
    return inside


def _clip_polygon(outline: F64, planes: F64) -> F64:
    """Clip a polygon (p, 2) to half-planes (q, 3); empty if it lies outside."""
    crossed = planes[~_inside(outline, planes).all(axis=0)]
    clipped: F64 = clip_polygon(np.ascontiguousarray(outline), crossed)
    return clipped


def _mask_target(name: str, blob: bytes | memoryview, geometry: Geometry, slot: int) -> Array:
    # At its first use, as Pillow takes 40 ms of the time to the first batch.
    from picstore.train.cpu.mask_files import open_mask

    mask = open_mask(name, blob, *geometry.source_size[slot].tolist())
    width, height = geometry.size[slot].tolist()
    out = np.empty((height, width), dtype=mask.dtype)
    render_mask(mask, geometry, slot, out=out)
    return out if out.dtype == np.uint8 else out.astype(np.int64)
