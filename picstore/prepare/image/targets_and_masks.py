"""Attachments that lie on the pixels of their image, such as masks: turned and resized with it, and their sizes."""

from __future__ import annotations

import io

from PIL import Image

from picstore.errors import ImageError
from picstore.prepare.image.decode_image import TO_UPRIGHT, foreign_errors
from picstore.prepare.image.exif_orientation import CoordinateMap
from picstore.prepare.image.size_limits import open_by_pillow

_LOSSLESS = ("PNG", "TIFF", "BMP", "GIF")
_INDEXED = ("1", "L", "P", "I", "I;16", "I;16B")  # modes of masks, whose values are never mixed
_MAGIC = (b"\x89PNG", b"II*\0", b"MM\0*", b"BM", b"GIF8", b"\xff\xd8\xff")
_CANNOT_FOLLOW = "cannot be turned or resized with its image"
# JPEG quality of an attached JPEG that is resized.
_QUALITY = 95


def move_attachment(name: str, data: bytes, image: CoordinateMap) -> bytes:
    """Turn and resize an attachment as its image was, if it has the size of the image before that.

    A size that only the pixels of the file have, before it is rotated upright, tells that the attachment is to be
    rotated too. A JPEG may also be smaller than its image by a whole factor. Grey and palette images take
    the value of the nearest pixel. A mask of the stored image's size, and what is not a mask, is returned as it is.

    Args:
        name: of the attachment, in messages.
        image: how the image was turned and resized.

    Raises:
        ImageError: the attachment cannot follow its image: it cannot be decoded, is a mask of another size, or has
            several frames.
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
            return data if moved is None else _encoded(moved, kind)
    except ImageError as error:
        raise ImageError(f"{name}: {error}") from error


def _factor(size: tuple[int, int], image: CoordinateMap, kind: str) -> int:
    """By how much an attachment is smaller than its image, 0 if it does not lie on the image's pixels."""
    if size in (image.upright_size, image.raw_size):
        return 1
    for whole in (image.upright_size, image.raw_size):
        factor = round(whole[0] / size[0])
        if kind == "JPEG" and factor > 1 and size == (-(-whole[0] // factor), -(-whole[1] // factor)):
            return factor
    return 0


def _require_follower(opened: Image.Image, image: CoordinateMap, factor: int) -> None:
    """Raise ImageError for a mask that would lie elsewhere than on its image, and for frames that would be lost."""
    if not factor and _is_mask(opened) and opened.size != image.stored_size:
        raise ImageError(f"{_CANNOT_FOLLOW}: {_sizes(opened.size, image.upright_size)}")
    if factor and opened.format in _LOSSLESS and (frames := getattr(opened, "n_frames", 1)) > 1:
        raise ImageError(f"{_CANNOT_FOLLOW}: it has {frames} frames")


def _moved(opened: Image.Image, image: CoordinateMap, factor: int) -> Image.Image | None:
    """The attachment in the pixels of the stored image; None if it needs no change."""
    upright = tuple(-(-side // factor) for side in image.upright_size)
    turn = TO_UPRIGHT[image.orientation] if opened.size != upright else None
    turned = opened if turn is None else opened.transpose(turn)
    width, height = (-(-side // factor) for side in image.stored_size)
    if turned.size == (width, height):
        return None if turn is None else turned
    rule = Image.Resampling.NEAREST if _is_mask(opened) else Image.Resampling.LANCZOS
    return turned.resize((width, height), rule)


def _encoded(moved: Image.Image, kind: str) -> bytes:
    out = io.BytesIO()
    moved.save(out, kind, **({"quality": _QUALITY, "subsampling": 0} if kind == "JPEG" else {}))
    return out.getvalue()


def mask_problem(name: str, data: bytes, size: tuple[int, int]) -> str:
    """Say that an attachment is a mask of another size than its image; empty if it is none, or of that size."""
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
