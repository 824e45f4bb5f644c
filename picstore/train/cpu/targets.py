"""Targets beyond a label: boxes, keypoints, polygons and masks of one image, moved as its pixels are.

What a record holds is described in docs/formats.md, "Targets". All of it is checked here once more, since a data set
may come from anybody; what is wrong is an ImageError, which the loader treats as it does an image that is damaged. All
results are arrays, of which ``batch.make_tensors`` makes ``tv_tensors``.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from picstore.arrays import F32, F64, I64, Array, Bools
from picstore.errors import ImageError
from picstore.storage.annotations import Objects, read_objects
from picstore.train.batching.gather import BatchRecords
from picstore.train.batching.parameters import TransformParams
from picstore.train.cpu.render import render_mask
from picstore.train.transforms.compose import TARGETS
from picstore.train.transforms.geometry import Geometry

LEAST_SIDE = 1.0  # output pixels: an object whose box has less left of its width or height is dropped

_NEAR = 1e-6  # pixels that rounding may cost
_MASK_FORMATS = ("PNG", "TIFF", "BMP", "GIF")  # those that keep values as they are
_MASK_MODES = ("1", "L", "P", "I;16", "I;16B", "I")  # "I": what some versions of Pillow make of 16 bits


def add_target(
    targets: list[dict[str, Any]], draft: BatchRecords, slot: int, *, names: Sequence[str], look: TransformParams
) -> dict[int, str]:
    """Make what goes with the image of a slot of a batch; returns by the slot what is wrong with that."""
    try:
        extra, blobs = _parse(draft.extras[slot]), draft.attachments[slot]
        targets[slot] = make_target(names, extra, blobs, look.geometry, slot)
    except ImageError as error:
        return {slot: str(error)}
    return {}


def _parse(extra: bytes) -> Any:
    """An extra as Python values, None for none."""
    try:
        return json.loads(extra) if extra else None
    except (ValueError, RecursionError) as error:
        raise ImageError(f"has an extra that is not JSON: {error}") from error


def make_target(
    names: Sequence[str], extra: Any, masks: Mapping[str, bytes | memoryview], geometry: Geometry, slot: int
) -> dict[str, Any]:
    """The targets of one image.

    A box becomes the upright box around its moved corners, cut off at the edge of the output. An object of which this
    leaves less than ``LEAST_SIDE`` is dropped with all its fields, whichever of them are asked for; without boxes in
    the extra none is dropped.

    Args:
        names: fields of the extra or attachments that are masks, see ``check_targets``.
        extra: of the record; None for none, which has no objects.
        masks: image files by attachment.
        geometry: of the batch.
        slot: number of the image in it.

    Returns:
        By name, for k objects that are left and an output of H × W pixels:

        - ``boxes``: float32 (k, 4), XYXY; with them ``labels``, int64 (k,), −1 where there are none.
        - ``keypoints``: float32 (k, m, 2), x and y from the centre of the first pixel; with them
          ``visibility``, int64 (k, m), 0 for what is not marked or lies outside, whose x and y are 0 too. Objects of
          fewer points are filled up with such.
        - ``polygons``: for each object a list of float32 (p, 2), cut off at the edge of the output; none where nothing
          is left.
        - ``index``: int64 (k,), with any of these: which objects of the extra they are.
        - ``extra``: the extra as it is.
        - an attachment: a mask (H, W) by nearest neighbour, 0 outside; uint8, or int64 where it has more than 8 bits.
          None where the record has none.

    Raises:
        ImageError: the extra or a mask is not what it should be.
    """
    target: dict[str, Any] = {}
    if not {"boxes", "keypoints", "polygons"}.isdisjoint(names):
        if not isinstance(extra, (dict, type(None))):
            raise ImageError("the extra is no JSON object, so it holds no targets")
        fields = ["boxes", *(["box_labels"] * ("boxes" in names)), *names]
        target |= _objects(names, read_objects(extra, fields), geometry, slot)
    for name in names:
        if name == "extra":
            target[name] = extra
        elif name not in TARGETS:
            blob = masks.get(name, b"")
            target[name] = _mask(name, blob, geometry, slot) if len(blob) else None
    return target


def _objects(names: Sequence[str], objects: Objects, geometry: Geometry, slot: int) -> dict[str, Any]:
    if "boxes" in names and objects.boxes is None and objects.count:
        raise ImageError("the extra has objects but no boxes")
    index: I64 = np.arange(objects.count)
    target: dict[str, Any] = {}
    if objects.boxes is not None:
        boxes = _move_boxes(objects.boxes, geometry, slot)
        index = np.flatnonzero((boxes[:, 2:] - boxes[:, :2] >= LEAST_SIDE - _NEAR).all(axis=1))
    if "boxes" in names:
        left = np.zeros((0, 4)) if objects.boxes is None else boxes[index]
        labels = np.full(objects.count, -1) if objects.labels is None else objects.labels
        target["boxes"] = left.astype(np.float32)
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
    """Boxes (k, 4) in output pixels, inside the output; empty or NaN where nothing is left."""
    low, high = _shown(geometry, slot)
    boxes = np.concatenate([np.maximum(boxes[:, :2], low), np.minimum(boxes[:, 2:], high)], axis=1)
    corners = boxes[:, [[0, 1], [2, 1], [2, 3], [0, 3]]]
    moved = geometry.points_to_output(slot, corners.reshape(-1, 2)).reshape(-1, 4, 2)
    least, most = moved.min(axis=1), moved.max(axis=1)
    edges = geometry.edges[slot]
    for k in np.flatnonzero(~_inside(corners, edges).all(axis=(1, 2))):
        rest = geometry.points_to_output(slot, _clip(corners[k], edges))
        least[k] = rest.min(axis=0, initial=np.inf)
        most[k] = rest.max(axis=0, initial=-np.inf)
    empty = (boxes[:, 2:] <= boxes[:, :2]).any(axis=1)
    most[empty] = least[empty]
    size = geometry.size[slot]
    return np.concatenate([np.clip(least, 0, size), np.clip(most, 0, size)], axis=1)


def _move_keypoints(keypoints: list[F64] | None, index: I64, geometry: Geometry, slot: int) -> tuple[F32, I64]:
    """Places float32 (k, m, 2) and visibility int64 (k, m) of the objects that ``index`` names."""
    chosen = [keypoints[k] for k in index] if keypoints else [np.zeros((0, 3))] * len(index)
    most = max(map(len, keypoints or chosen), default=0)
    table = np.zeros((len(chosen), most, 3))
    for row, points in zip(table, chosen, strict=True):
        row[: len(points)] = points
    centres = table[:, :, :2].reshape(-1, 2) + 0.5
    low, high = _shown(geometry, slot)
    moved = geometry.points_to_output(slot, centres)
    seen = ((centres >= low) & (centres <= high)).all(axis=1) & _inside(centres, geometry.edges[slot]).all(axis=1)
    seen &= ((moved >= -_NEAR) & (moved <= geometry.size[slot] + _NEAR)).all(axis=1)
    visibility = np.where(seen.reshape(table.shape[:2]), table[:, :, 2], 0).astype(np.int64)
    places = np.where(visibility[:, :, None] != 0, moved.reshape(*table.shape[:2], 2) - 0.5, 0)
    return places.astype(np.float32), visibility


def _move_polygons(polygons: list[list[F64]], geometry: Geometry, slot: int) -> list[list[F32]]:
    """The outlines of each object, float32 (p, 2), cut off at the edge of what is shown."""
    lengths = [len(outline) for outlines in polygons for outline in outlines]
    if not lengths:
        return [[] for _ in polygons]
    shown = np.concatenate([_sides(*_shown(geometry, slot)), geometry.edges[slot]])
    output = _sides(np.zeros(2), geometry.size[slot])
    # Most outlines are whole or gone: that is found out for all at once.
    points = np.concatenate([outline for outlines in polygons for outline in outlines])
    moved = geometry.points_to_output(slot, points)
    beyond = ~np.concatenate([_inside(points, shown), _inside(moved, output)], axis=1)
    ends: I64 = np.cumsum(lengths)
    starts: I64 = ends - np.array(lengths)
    cut = np.logical_or.reduceat(beyond, starts).tolist()
    gone = np.logical_and.reduceat(beyond, starts).tolist()
    rest = zip(starts.tolist(), ends.tolist(), map(any, cut), map(any, gone), strict=True)
    result: list[list[F32]] = []
    for outlines in polygons:
        left = []
        for outline in outlines:
            start, end, is_cut, is_gone = next(rest)
            if not is_cut:
                left.append(moved[start:end])
            elif not is_gone:
                left.append(_clip(geometry.points_to_output(slot, _clip(outline, shown)), output))
        result.append([each.astype(np.float32) for each in left if len(each) >= 3])
    return result


def _shown(geometry: Geometry, slot: int) -> tuple[I64, I64]:
    """Left and top, right and bottom of what transforms have left of the source; edges may hide more."""
    clip = geometry.clip[slot]
    return np.maximum(clip[:2], 0), np.minimum(clip[2:], geometry.source_size[slot])


def _sides(low: npt.ArrayLike, high: npt.ArrayLike) -> F64:
    """A rectangle as half-planes, float64 (4, 3): a·x + b·y + c ≥ 0 inside."""
    (left, top), (right, bottom) = np.asarray(low), np.asarray(high)
    return np.array([[1, 0, -left], [0, 1, -top], [-1, 0, right], [0, -1, bottom]], dtype=np.float64)


def _inside(points: F64, planes: F64) -> Bools:
    """Whether points (…, 2) lie in half-planes (q, 3): bool (…, q)."""
    inside: Bools = points @ planes[:, :2].T + planes[:, 2] >= -_NEAR
    return inside


def _clip(outline: F64, planes: F64) -> F64:
    """A polygon (p, 2) cut off at half-planes (q, 3), empty where nothing is left.

    Sutherland and Hodgman, "Reentrant polygon clipping", CACM 17 (1974): where a concave polygon falls apart, its parts
    stay joined by lines along the edge.
    """
    for plane in planes[~_inside(outline, planes).all(axis=0)]:
        distance = outline @ plane[:2] + plane[2]
        after, next_distance = np.roll(outline, -1, axis=0), np.roll(distance, -1)
        inside = distance >= 0
        crosses = inside != (next_distance >= 0)
        share = np.divide(distance, distance - next_distance, out=np.zeros_like(distance), where=crosses)
        meets = outline + share[:, None] * (after - outline)
        outline = np.stack([outline, meets], axis=1)[np.stack([inside, crosses], axis=1)]
    return outline


def _mask(name: str, blob: bytes | memoryview, geometry: Geometry, slot: int) -> Array:
    mask = _open_mask(name, blob, *geometry.source_size[slot].tolist())
    width, height = geometry.size[slot].tolist()
    out = np.empty((height, width), dtype=mask.dtype)
    render_mask(mask, geometry, slot, out=out)
    return out if out.dtype == np.uint8 else out.astype(np.int64)


def _open_mask(name: str, blob: bytes | memoryview, width: int, height: int) -> Array:
    """The values of a mask, uint8, uint16 or int32 (height, width)."""
    try:
        with Image.open(io.BytesIO(blob), formats=_MASK_FORMATS) as image:
            _check_mask(name, image, width, height)
            values = np.asarray(image)
    except ImageError:
        raise
    except Exception as error:  # whatever Pillow raises on a file that is none, see prepare/image/read.py
        raise ImageError(f"{name} is no mask, a grey or palette image in {', '.join(_MASK_FORMATS)}") from error
    kind = {"u": np.uint16, "i": np.int32}.get(values.dtype.kind if values.itemsize > 1 else "", np.uint8)
    return np.ascontiguousarray(values, dtype=kind)


def _check_mask(name: str, image: Image.Image, width: int, height: int) -> None:
    if image.size != (width, height):
        raise ImageError(f"{name} has {image.width} × {image.height} pixels, its image {width} × {height}")
    if image.mode not in _MASK_MODES:
        raise ImageError(f"{name} is an image of mode {image.mode}; a mask is grey or has a palette")
