"""Where the points of an image file lie in its training JPEG, and the targets of a record moved there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from picstore.arrays import F64
from picstore.errors import ImageError
from picstore.storage.annotations import read_objects

_DECIMALS = 3  # of moved coordinates: a thousandth of a pixel

# EXIF orientations that swap width and height, and which of x and y they mirror after that (EXIF 2.32, 4.6.4.A). Those
# from 2 to 4 keep the size, by which it is told whether targets are of the turned image; such are always taken for it.
_MIRRORED = {5: (False, False), 6: (True, False), 7: (True, True), 8: (False, True)}


@dataclass(frozen=True, slots=True)
class Placement:
    """How the pixels of an image file came to be those of its training JPEG: turned upright, then resized.

    Attributes:
        orientation: EXIF's, of the file; 1 is upright.
        upright: width and height of the upright image, before it was resized.
        stored: width and height of the training JPEG.
    """

    orientation: int
    upright: tuple[int, int]
    stored: tuple[int, int]

    @property
    def in_file(self) -> tuple[int, int]:
        """Width and height as they are in the file, before it is turned."""
        return self.upright[::-1] if self.orientation in _MIRRORED else self.upright

    def move(self, points: F64, *, turn: bool) -> F64:
        """Points (k, 2) of the upright image, or with ``turn`` of the image as it is in the file, in the stored one."""
        if turn:
            swapped = points[:, ::-1]
            points = np.where(_MIRRORED[self.orientation], np.array(self.upright) - swapped, swapped)
        scale = np.array(self.stored) / np.array(self.upright)
        moved: F64 = np.round(points * scale, _DECIMALS)
        return moved


def move_targets(extra: Any, placement: Placement, *, annotated: tuple[int, int] | None = None) -> Any:
    """Bring ``boxes``, ``polygons`` and ``keypoints`` of an extra to the pixels of the stored image, and check them.

    Args:
        extra: any JSON value; what is no target stays.
        placement: of the image.
        annotated: width and height of the image that the coordinates are of: the upright one, or the one in the file
            where a viewer ignored the orientation. None is the upright one, as a viewer shows it.

    Returns:
        The same extra when the coordinates are right as they are, else a changed copy.

    Raises:
        ImageError: a target does not have its form, or ``annotated`` is another image's size.
    """
    objects = read_objects(extra)
    turn = annotated is not None and annotated != placement.upright
    if turn and annotated != placement.in_file:
        (width, height), (real_width, real_height) = annotated or (0, 0), placement.upright
        raise ImageError(f"annotated as {width} × {height} pixels, but it has {real_width} × {real_height}")
    if not turn and placement.stored == placement.upright:
        return extra
    moved = dict(extra) if isinstance(extra, dict) else extra
    if objects.boxes is not None:
        corners = placement.move(objects.boxes.reshape(-1, 2), turn=turn).reshape(-1, 2, 2)
        moved["boxes"] = np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1).tolist()
    if objects.polygons is not None:
        moved["polygons"] = [
            [placement.move(outline, turn=turn).ravel().tolist() for outline in each] for each in objects.polygons
        ]
    if objects.keypoints is not None:
        moved["keypoints"] = [_move_keypoints(points, placement, turn=turn) for points in objects.keypoints]
    return moved


def _move_keypoints(points: F64, placement: Placement, *, turn: bool) -> list[list[float]]:
    """Keypoints count from the centre of the first pixel; [0, 0, 0] is one that was not marked, and stays."""
    centres = placement.move(points[:, :2] + 0.5, turn=turn) - 0.5
    marked = (points != 0).any(axis=1, keepdims=True)
    rows = np.round(np.where(marked, centres, 0.0), _DECIMALS).tolist()
    return [[x, y, int(v)] for (x, y), v in zip(rows, points[:, 2].tolist(), strict=True)]
