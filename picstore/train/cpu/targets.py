"""Targets of an image: boxes, keypoints, polygons, masks and smaller images, moved like the image's pixels.

docs/formats.md, "Targets", defines the fields of a record. The fields are checked here again, because a dataset may
come from anybody; an invalid extra or mask is an ImageError, which the loader treats as damage. Results are arrays,
which ``batch.make_tensors`` converts to ``tv_tensors``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from picstore.arrays import F32, F64, I64, Bools
from picstore.errors import ImageError
from picstore.kernels.jit import kernel
from picstore.storage.annotations import Objects, parse_extra, read_objects
from picstore.storage.format.maps import StoredMap, split_target
from picstore.train.batching.gather import BatchRecords
from picstore.train.batching.host_batch import GroupTargets
from picstore.train.batching.parameters import TransformParams
from picstore.train.batching.spec import OutputSpec
from picstore.train.cpu.mask_and_image_targets import is_jpeg, make_image, make_map, make_mask
from picstore.train.transforms.geometry import Geometry
from picstore.train.transforms.transform_plan import TARGETS

# Minimum side in output pixels of an object's clipped box; objects with smaller boxes are dropped.
MIN_SIDE = 1.0

_TOLERANCE = 1e-6  # tolerance in pixels for rounding errors


def empty_targets(output: OutputSpec, n: int) -> list[GroupTargets] | None:
    """Return n empty dicts, one for each image, for each view of each group of views; None if there are no targets."""
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
    """Write the targets of each view of image ``slot`` to ``targets``.

    Return {slot: problem} if the record's extra (JSON annotations) or a mask is invalid, and {} otherwise.
    """
    try:
        extra, blobs = parse_extra(records.extras[slot]), records.attachments[slot]
        first = True
        for group, parameters in zip(targets, params, strict=True):
            for number, view in enumerate(group):
                row = number * len(records) + slot
                # Parse the extra again for each view, so that views share no objects: a training loop may change them.
                if not first and "extra" in names:
                    extra = parse_extra(records.extras[slot])
                view[slot], first = make_target(names, extra, blobs, parameters.geometry, row), False
    except ImageError as error:
        return {slot: str(error)}
    except MemoryError:
        return {slot: "has targets that take more memory than there is"}
    return {}


def make_target(
    names: Sequence[str], extra: Any, masks: Mapping[str, bytes | memoryview | StoredMap], geometry: Geometry, slot: int
) -> dict[str, Any]:
    """Return the targets of one image.

    A box becomes the upright box around its moved corners, clipped to the output. An object whose box is then smaller
    than ``MIN_SIDE`` is dropped with all its fields, even if boxes are not requested. Without boxes in the extra, no
    object is dropped.

    Args:
        names: fields of the extra, or attachments (masks, maps or JPEGs), see ``check_targets``.
        extra: the record's JSON annotations; None if it has none.
        masks: for each attachment of the record, the bytes of its image file, or a ``StoredMap``.
        geometry, slot: geometry of the batch, and index of the image.

    Returns:
        By name, for k remaining objects and an output of H × W pixels:

        - ``boxes``: float32 (k, 4), XYXY; with them ``labels``, int64 (k,), −1 if the extra has none.
        - ``keypoints``: float32 (k, m, 2), x and y from the center of the first pixel; with them ``visibility``, int64
          (k, m). Points that are not marked or lie outside have visibility 0 and x = y = 0. Objects with fewer than m
          points are padded with such points.
        - ``polygons``: for each object a list of float32 (p, 2), outlines clipped to the output. An outline that lies
          outside is left out.
        - ``index``: int64 (k,), indices of the remaining objects in the extra; with any of the names above.
        - ``extra``: the unchanged extra.
        - a map's name, also with ``:scaled`` or ``:valid``: array, see ``make_map``; None if the record has no map.
        - a mask's name: uint8 (H, W), or int64 if the mask has more than 8 bits, resampled by nearest neighbor, 0
          outside of the image; None if the record has no mask.
        - name of an attached JPEG: uint8 (3, h, w), see ``make_image``; None if the record has no such JPEG.

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
        elif name not in TARGETS and name not in target:
            base, _ = split_target(name)
            blob = masks.get(base, b"")
            if isinstance(blob, StoredMap):
                asked = [each for each in names if split_target(each)[0] == base]
                target |= make_map(base, asked, blob, geometry, slot)
                continue
            make = make_image if is_jpeg(blob) else make_mask
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
    """Map boxes (k, 4) to output pixels, and clip them to the output; a box outside of it has no area or is NaN."""
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
    """Map keypoints of the objects ``index`` to the output; return float32 (k, m, 2), and visibility, int64 (k, m)."""
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
    """Map each object's outlines to output pixels, clipped to the source's visible part and to the output."""
    lengths = [len(outline) for outlines in polygons for outline in outlines]
    if not lengths:
        return [[] for _ in polygons]
    shown = np.concatenate([_rect_edges(*_visible_rect(geometry, slot)), geometry.edges[slot]])
    output = _rect_edges(np.zeros(2), geometry.size[slot])
    # Most outlines lie wholly inside or outside, so test the points of all outlines at once, and clip only the others.
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
    """Return (left, top) and (right, bottom) of the part of an image within ``clip``; edges may hide some of it."""
    clip = geometry.clip[slot]
    return np.maximum(clip[:2], 0), np.minimum(clip[2:], geometry.source_size[slot])


def _rect_edges(low: npt.ArrayLike, high: npt.ArrayLike) -> F64:
    """Return the four sides of a rectangle as half-planes a·x + b·y + c ≥ 0: float64 (4, 3)."""
    (left, top), (right, bottom) = np.asarray(low), np.asarray(high)
    return np.array([[1, 0, -left], [0, 1, -top], [-1, 0, right], [0, -1, bottom]], dtype=np.float64)


def _inside(points: F64, planes: F64) -> Bools:
    """Return whether each point (…, 2) lies in each half-plane of ``planes`` (q, 3): bool (…, q)."""
    inside: Bools = points @ planes[:, :2].T + planes[:, 2] >= -_TOLERANCE
    return inside


def _clip_polygon(outline: F64, planes: F64) -> F64:
    """Clip a polygon (p, 2) to half-planes (q, 3); return an empty polygon if no part lies inside."""
    crossed = planes[~_inside(outline, planes).all(axis=0)]
    clipped: F64 = clip_polygon(np.ascontiguousarray(outline), crossed)
    return clipped


# This is a kernel, because an image may have thousands of outlines, and NumPy takes 0.2 ms for each.
@kernel("(float64[:, ::1], float64[:, ::1])")
def clip_polygon(outline, planes):
    """Clip a polygon to half-planes; return an empty polygon if no part lies inside.

    The algorithm is Sutherland and Hodgman, "Reentrant polygon clipping", CACM 17 (1974): pieces of a concave polygon
    stay joined by lines along the edge.

    Args:
        outline: float64 (p, 2), C-contiguous, x and y of the corners.
        planes: float64 (q, 3), coefficients a, b, c of half-planes a·x + b·y + c ≥ 0.

    Returns:
        float64 (r, 2), x and y of the clipped polygon's corners.
    """
    for q in range(planes.shape[0]):
        a, b, c = planes[q, 0], planes[q, 1], planes[q, 2]
        count = outline.shape[0]
        result = np.empty((2 * count, 2), np.float64)
        length = 0
        for k in range(count):
            after = k + 1 if k + 1 < count else 0
            x, y = outline[k, 0], outline[k, 1]
            distance = x * a + y * b + c
            following = outline[after, 0] * a + outline[after, 1] * b + c
            if distance >= 0:
                result[length, 0], result[length, 1] = x, y
                length += 1
            if (distance >= 0) != (following >= 0):
                fraction = distance / (distance - following)
                result[length, 0] = x + fraction * (outline[after, 0] - x)
                result[length, 1] = y + fraction * (outline[after, 1] - y)
                length += 1
        outline = result[:length]
    return outline
