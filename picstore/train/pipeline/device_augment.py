"""Augmentation of the images that a device has decoded, by group of views, for several batches together."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from picstore.arrays import I64, Bools
from picstore.train.batch import Batch
from picstore.train.batching.host_batch import HostBatch
from picstore.train.batching.parameters import TransformParams
from picstore.train.batching.spec import GroupSpec, OutputSpec
from picstore.train.transforms.geometry import Geometry

if TYPE_CHECKING:
    from picstore.train.cuda.decoded import DecodedImages

Images: TypeAlias = "list[torch.Tensor] | DecodedImages"  # decoded images of a batch, (3, h, w) each


def augment_batches(hosts: Sequence[HostBatch], images: Sequence[Images], output: OutputSpec) -> list[Batch]:
    """Augment the decoded images of several host batches on their device; labels and ids stay on the host."""
    made: list[list[Any]] = [[] for _ in hosts]
    places, given = [], []
    for host in hosts:
        encoded = host.encoded
        if encoded is None:
            raise TypeError("a batch for a decoder on a device has no streams")
        shown = slice(None) if encoded.shows_all else encoded.shown
        places.append((encoded.boxes[shown, :2], encoded.factors[shown]))
        chosen = [
            params if encoded.shows_all else params.select_slots(encoded.shown, count=group.count)
            for params, group in zip(encoded.params, output.groups, strict=True)
        ]
        given.append(chosen)
    for number, group in enumerate(output.groups):
        params = [each[number] for each in given]
        for views, one in zip(made, augment_views(images, places, params, output, group), strict=True):
            views.append(one)
    return [Batch.from_host(host, views, output.groups) for host, views in zip(hosts, made, strict=True)]


def augment_views(
    images: Sequence[Images],
    places: Sequence[tuple[I64, I64]],
    params: Sequence[TransformParams],
    output: OutputSpec,
    group: GroupSpec,
) -> list[Any]:
    """Resample and color the decoded images (3, h, w) of several batches; return the views of one group of views.

    Args:
        places: for each batch, left and top of each decoded image in its stored image, int64 (n, 2); and the factor by
            which decoding divided each image's sides, int64 (n,).
        params: for each batch, the parameters of the group's transforms.

    Returns:
        For each batch, a tensor (views, n, 3, H, W) if the transforms fix the size; otherwise a list of n images (3, h,
        w) for each view.
    """
    count, sizes = group.count, [len(each) for each in images]
    if len(images) > 1 and group.stacked:
        from picstore.train.cuda.decoded import DecodedImages  # imported late, because it imports Triton

        ends = np.cumsum([0, *sizes])
        again = np.concatenate([np.tile(np.arange(*two), count) for two in pairwise(ends.tolist())])
        joined = DecodedImages.join([each for each in images if not isinstance(each, list)]).select(again)
        origins, factors = (np.concatenate(parts)[again] for parts in zip(*places, strict=True))
        all_params, counts = TransformParams.concatenate(params), [count * n for n in sizes]
        made = augment_images(joined, (origins, factors), all_params, output, group, counts)
        return [views.view(count, n, *views.shape[1:]) for views, n in zip(made, sizes, strict=True)]
    return [_augment_alone(*each, output, group) for each in zip(images, places, params, strict=True)]


def _augment_alone(
    images: Images, places: tuple[I64, I64], params: TransformParams, output: OutputSpec, group: GroupSpec
) -> Any:
    count, n = group.count, len(images)
    if count > 1:
        again = np.tile(np.arange(n), count)
        images, places = _select(images, again), (places[0][again], places[1][again])
    made: Any = augment_images(images, places, params, output, group)
    if isinstance(made, list):
        return [made[k : k + n] for k in range(0, len(made), n)]
    return made.view(count, n, *made.shape[1:])


def _select(images: Images, numbers: I64) -> Images:
    return [images[number] for number in numbers.tolist()] if isinstance(images, list) else images.select(numbers)


def augment_images(
    images: Images,
    places: tuple[I64, I64],
    params: TransformParams,
    output: OutputSpec,
    group: GroupSpec,
    counts: Sequence[int] | None = None,
) -> Any:
    """Resample and color decoded images, one for each row of ``params``.

    Args:
        counts: each batch's number of images; may be given only if all outputs have the same size.

    Returns:
        With ``counts``, a list of one tensor for each batch. Without ``counts``, a tensor (n, 3, H, W) if the
        transforms fix the size, or else a list of n tensors (3, h, w).
    """
    from picstore.train.cuda.augment import augment

    origins, factors = places
    options: dict[str, Any] = {"dtype": output.dtype, "channels_last": output.channels_last, "factors": factors}
    if group.stacked:
        return augment(images, origins, params.geometry, params.program, counts=counts, **options)
    made: Any = []
    rest = np.flatnonzero(~_is_unchanged(params, output))
    if len(rest):
        chosen = images
        if len(rest) < len(images):
            chosen = _select(images, rest)
            params = params.select_slots(rest, count=1)
        options["factors"] = factors[rest]
        made = augment(chosen, origins[rest], params.geometry, params.program, **options)
    by_slot = dict(zip(rest.tolist(), made, strict=True))
    listed = [by_slot[slot] if slot in by_slot else image.contiguous() for slot, image in enumerate(images)]
    firsts = {image.data_ptr(): slot for slot, image in reversed(list(enumerate(listed)))}
    # Copy images that share memory, as replacements of damaged images do, so that writing to one changes no other.
    return [image if firsts[image.data_ptr()] == slot else image.clone() for slot, image in enumerate(listed)]


def _is_unchanged(params: TransformParams, output: OutputSpec) -> Bools:
    """Return whether each output image would equal the decoded image: bool (n,)."""
    geometry = params.geometry
    if output.dtype != "uint8" or output.channels_last or not params.program.empty:
        return np.zeros(len(geometry.size), dtype=np.bool_)
    same = (geometry.frame == Geometry.identity(*geometry.source_size.T).frame).all(axis=(1, 2))
    unchanged: Bools = same & (geometry.size == geometry.source_size).all(axis=1) & ~geometry.shows_edges
    return unchanged
