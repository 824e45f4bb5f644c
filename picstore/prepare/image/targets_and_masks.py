"""Targets and attachments of an image, such as boxes and masks: rotated and resized with the image, and checked."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image

from picstore.arrays import F64
from picstore.errors import ImageError
from picstore.prepare.engine.library_errors import foreign_errors
from picstore.prepare.image.exif_orientation import DECIMALS, TO_UPRIGHT, CoordinateMap
from picstore.prepare.image.size_limits import open_by_pillow
from picstore.storage.annotations import read_objects

_LOSSLESS = ("PNG", "TIFF", "BMP", "GIF")
# Modes of Pillow in which an attached image counts as a mask, whose values must not be interpolated in resizing.
_INDEXED = ("1", "L", "P", "I", "I;16", "I;16B")
_MAGIC = (b"\x89PNG", b"II*\0", b"MM\0*", b"BM", b"GIF8", b"\xff\xd8\xff")
_CANNOT_FOLLOW = "cannot be turned or resized with its image"
# JPEG quality at which an attached JPEG is encoded after it was resized.
_QUALITY = 95


def map_targets(extra: Any, coordinates: CoordinateMap, *, annotated: tuple[int, int] | None = None) -> Any:
    """Check ``boxes``, ``polygons`` and ``keypoints`` of an extra, and map them to the pixels of the stored image.

    Args:
        extra: any JSON value; everything except these targets stays unchanged.
        annotated: width and height of the image that was annotated: the upright image, or the raw image if the
            annotating program ignored the orientation. None means the upright image.

    Returns:
        The same extra if its coordinates need no mapping, else a changed copy.

    Raises:
        ImageError: a target is malformed, or ``annotated`` is the size of neither the upright nor the raw image.
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
    """Map keypoints (x, y, v) to stored pixels; (0, 0) is the center of the first pixel.

    A keypoint [0, 0, 0] stays unchanged, because it was not marked.
    """
    centers = coordinates.map_points(points[:, :2] + 0.5, rotate=rotate) - 0.5
    marked = (points != 0).any(axis=1, keepdims=True)
    rows = np.round(np.where(marked, centers, 0.0), DECIMALS).tolist()
    return [[x, y, int(v)] for (x, y), v in zip(rows, points[:, 2].tolist(), strict=True)]


def move_attachment(name: str, data: bytes, image: CoordinateMap) -> bytes:
    """Rotate and resize an attachment like its image, if it has the image's original size.

    An attachment of the upright image's size is only resized; an attachment of the raw image's size is rotated too. A
    JPEG attachment may also be smaller than its image by an integer factor. Masks are resized to the nearest pixel's
    value. An attachment of any other size is returned unchanged; if it is a mask, it must have the stored image's size.

    Raises:
        ImageError: the attachment cannot be decoded, is a mask of another size, or has several frames.
    """
    if (image.orientation == 1 and image.stored_size == image.upright_size) or not data.startswith(_MAGIC):
        return data
    try:
        with foreign_errors(_CANNOT_FOLLOW):
            with open_by_pillow(data, [*_LOSSLESS, "JPEG"]) as opened:
                kind = str(opened.format)
                factor = _factor(opened.size, image, kind)
                _require_follower(opened, image, factor)
                if not factor:
                    return data
                moved = _moved(opened, image, factor)
            if moved is None:
                return data
            out = io.BytesIO()
            moved.save(out, kind, **({"quality": _QUALITY, "subsampling": 0} if kind == "JPEG" else {}))
            return out.getvalue()
    except ImageError as error:
        raise ImageError(f"{name}: {error}") from error


def _factor(size: tuple[int, int], image: CoordinateMap, kind: str) -> int:
    """Return the factor by which an attachment is smaller than its image; 0 if the size does not fit the image."""
    if size in (image.upright_size, image.raw_size):
        return 1
    for whole in (image.upright_size, image.raw_size):
        factor = round(whole[0] / size[0])
        if kind == "JPEG" and factor > 1 and size == (-(-whole[0] // factor), -(-whole[1] // factor)):
            return factor
    return 0


def _require_follower(opened: Image.Image, image: CoordinateMap, factor: int) -> None:
    """Raise ImageError if an attachment is a mask of a wrong size, or would lose frames when it is resized."""
    if not factor and _is_mask(opened) and opened.size != image.stored_size:
        raise ImageError(f"{_CANNOT_FOLLOW}: {_sizes(opened.size, image.upright_size)}")
    if factor and opened.format in _LOSSLESS and (frames := getattr(opened, "n_frames", 1)) > 1:
        raise ImageError(f"{_CANNOT_FOLLOW}: it has {frames} frames")


def _moved(opened: Image.Image, image: CoordinateMap, factor: int) -> Image.Image | None:
    """Rotate and resize an attachment like its image, which is ``factor`` times as large; None if nothing changes."""
    upright = tuple(-(-side // factor) for side in image.upright_size)
    turn = TO_UPRIGHT[image.orientation] if opened.size != upright else None
    turned = opened if turn is None else opened.transpose(turn)
    width, height = (-(-side // factor) for side in image.stored_size)
    if turned.size == (width, height):
        return None if turn is None else turned
    rule = Image.Resampling.NEAREST if _is_mask(opened) else Image.Resampling.LANCZOS
    return turned.resize((width, height), rule)


def mask_problem(name: str, data: bytes, size: tuple[int, int]) -> str:
    """Return a message if an attachment is a mask that does not have its image's ``size``; else an empty string."""
    if not data.startswith(_MAGIC):
        return ""
    try:
        with foreign_errors("damaged"):
            opened = open_by_pillow(data, list(_LOSSLESS))
    except ImageError:
        return ""
    return f"{name} {_sizes(opened.size, size)}" if _is_mask(opened) and opened.size != size else ""


def _is_mask(opened: Image.Image) -> bool:
    return opened.mode in _INDEXED and opened.format in _LOSSLESS


def _sizes(size: tuple[int, int], image: tuple[int, int]) -> str:
    return f"has {size[0]} × {size[1]} pixels, its image {image[0]} × {image[1]}"
