"""Coordinates of targets (boxes, polygons, keypoints) mapped from an image file to its training JPEG."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from picstore.arrays import F64
from picstore.errors import ImageError
from picstore.storage.annotations import read_objects

_DECIMALS = 3  # of mapped coordinates: a thousandth of a pixel

# EXIF orientations that swap width and height, and whether they then mirror x and y (EXIF 2.32, 4.6.4.A). The size
# tells raw from upright coordinates. Orientations 2 to 4 keep it, so with these all coordinates count as upright.
_MIRRORED = {5: (False, False), 6: (True, False), 7: (True, True), 8: (False, True)}


@dataclass(frozen=True, slots=True)
class CoordinateMap:
    """Map from the pixels of an image file to its training JPEG's: rotated upright, then resized.

    Attributes:
        orientation: EXIF orientation of the file; 1 is upright.
        upright_size: width and height of the upright image, before it is resized.
        stored_size: width and height of the training JPEG.
    """

    orientation: int
    upright_size: tuple[int, int]
    stored_size: tuple[int, int]

    @property
    def raw_size(self) -> tuple[int, int]:
        """Width and height in the file, before the image is rotated."""
        return self.upright_size[::-1] if self.orientation in _MIRRORED else self.upright_size

    def map_points(self, points: F64, *, rotate: bool) -> F64:
        """Map points (k, 2) of the upright image, or with ``rotate`` of the raw one, to the stored image."""
        if rotate:
            swapped = points[:, ::-1]
            points = np.where(_MIRRORED[self.orientation], np.array(self.upright_size) - swapped, swapped)
        scale = np.array(self.stored_size) / np.array(self.upright_size)
        mapped: F64 = np.round(points * scale, _DECIMALS)
        return mapped


def map_targets(extra: Any, coordinates: CoordinateMap, *, annotated: tuple[int, int] | None = None) -> Any:
    """Check ``boxes``, ``polygons`` and ``keypoints`` of an extra, and map them to the pixels of the stored image.

    Args:
        extra: any JSON value; all but targets stays as it is.
        coordinates: map of the image.
        annotated: width and height of the annotated image: the upright one, or the raw one if the annotating program
            ignored the orientation. None is the upright one.

    Returns:
        The same extra if its coordinates need no mapping, else a changed copy.

    Raises:
        ImageError: a target is malformed, or ``annotated`` is another image's size.
    """
    objects = read_objects(extra)
    rotate = annotated is not None and annotated != coordinates.upright_size
    if rotate and annotated != coordinates.raw_size:
        (width, height), (real_width, real_height) = annotated or (0, 0), coordinates.upright_size
        raise ImageError(f"annotated as {width} × {height} pixels, but it has {real_width} × {real_height}")
    if not rotate and coordinates.stored_size == coordinates.upright_size:
        return extra
    mapped = dict(extra) if isinstance(extra, dict) else extra
    if objects.boxes is not None:
        corners = coordinates.map_points(objects.boxes.reshape(-1, 2), rotate=rotate).reshape(-1, 2, 2)
        mapped["boxes"] = np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1).tolist()
    if objects.polygons is not None:
        mapped["polygons"] = [
            [coordinates.map_points(outline, rotate=rotate).ravel().tolist() for outline in each]
            for each in objects.polygons
        ]
    if objects.keypoints is not None:
        mapped["keypoints"] = [_map_keypoints(points, coordinates, rotate=rotate) for points in objects.keypoints]
    return mapped


def _map_keypoints(points: F64, coordinates: CoordinateMap, *, rotate: bool) -> list[list[float]]:
    """Map keypoints, which count from the center of the first pixel; [0, 0, 0] is unmarked and stays."""
    centers = coordinates.map_points(points[:, :2] + 0.5, rotate=rotate) - 0.5
    marked = (points != 0).any(axis=1, keepdims=True)
    rows = np.round(np.where(marked, centers, 0.0), _DECIMALS).tolist()
    return [[x, y, int(v)] for (x, y), v in zip(rows, points[:, 2].tolist(), strict=True)]
