"""Patches of images of several sizes, padded to one length, as timm's NaFlexVit takes them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from picstore.errors import UsageError


def patchify(
    images: Sequence[torch.Tensor], patch_size: int = 16, *, lengths: Sequence[int] | None = None
) -> dict[str, torch.Tensor]:
    """Cut images into patches, in rows from the top left, and pad them to sequences of one length with zeros.

    Args:
        images: N of (3, H, W), whose sides are multiples of the patch, such as ``ResizeToSequence`` makes.
        patch_size: side of a patch in pixels.
        lengths: lengths that sequences may have, such as ``Sequences``' for compiled models; the smallest one that
            holds all images is taken. By default the length of the longest image.

    Returns:
        ``patches``, (N, length, patch_size² · 3) of the images' dtype, in which the three values of a pixel are
        neighbors; ``patch_coord``, int64 (N, length, 2), the row and column of each; ``patch_valid``, bool (N,
        length), False where a sequence is padded.

    Raises:
        UsageError: there is no image, a side is no multiple of the patch, or no length is long enough.
    """
    if not len(images) or any(side % patch_size for image in images for side in image.shape[1:]):
        shapes = [tuple(each.shape) for each in images]
        raise UsageError(f"patchify: images have shapes {shapes}; their sides must be multiples of {patch_size}")
    grids = [(image.shape[1] // patch_size, image.shape[2] // patch_size) for image in images]
    longest = max(rows * columns for rows, columns in grids)
    length = min((each for each in lengths or [longest] if each >= longest), default=0)
    if not length:
        raise UsageError(f"patchify: an image has {longest} patches, more than lengths {lengths}; give a larger one")
    first, count = images[0], len(images)
    patches = first.new_zeros((count, length, patch_size * patch_size * first.shape[0]))
    coordinates = torch.zeros((count, length, 2), dtype=torch.int64, device=first.device)
    valid = torch.zeros((count, length), dtype=torch.bool, device=first.device)
    for k, (image, (rows, columns)) in enumerate(zip(images, grids, strict=True)):
        cut = image.reshape(-1, rows, patch_size, columns, patch_size)
        n = rows * columns
        patches[k, :n] = cut.permute(1, 3, 2, 4, 0).reshape(n, -1)
        index = torch.arange(n, device=first.device)
        coordinates[k, :n] = torch.stack([index // columns, index % columns], dim=1)
        valid[k, :n] = True
    return {"patches": patches, "patch_coord": coordinates, "patch_valid": valid}
