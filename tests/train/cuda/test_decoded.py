"""Decoded images as arrays of addresses: the tensors that they stand for."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from picstore.errors import UsageError
from picstore.train.cuda.decoded import DecodedImages

pytestmark = pytest.mark.interpreted


def block(*sizes: tuple[int, int]) -> tuple[DecodedImages, list[torch.Tensor]]:
    """Images of widths and heights in one block, whose rows begin at multiples of 4 bytes; and their pixels."""
    pitches = [-(-width // 4) * 4 for width, _ in sizes]
    counts = [3 * pitch * height for pitch, (_, height) in zip(pitches, sizes, strict=True)]
    memory, firsts = torch.arange(sum(counts)).to(torch.uint8), np.cumsum(counts) - counts
    planes = [
        (memory.data_ptr() + int(first), pitch * height, pitch)
        for first, pitch, (_, height) in zip(firsts, pitches, sizes, strict=True)
    ]
    made = DecodedImages(np.array(planes), np.array(sizes), (memory,), np.zeros(len(sizes), np.int64))
    expected = [
        memory[int(first) : int(first) + count].view(3, height, pitch)[:, :, :width]
        for first, count, pitch, (width, height) in zip(firsts, counts, pitches, sizes, strict=True)
    ]
    return made, expected


def test_images_of_a_block_are_views_of_it() -> None:
    images, expected = block((5, 3), (8, 2), (1, 1))
    assert len(images) == len(list(images)) == 3
    for image, other in zip(images, expected, strict=True):
        assert torch.equal(image, other)
        assert image.data_ptr() == other.data_ptr()
    with pytest.raises(IndexError):
        images[3]


def test_images_that_are_chosen_joined_and_replaced_stay_theirs() -> None:
    (one, pixels), (other, more) = block((5, 3), (8, 2)), block((2, 7))
    grey = torch.full((1, 4, 4), 9, dtype=torch.uint8)
    joined = DecodedImages.join([one, other]).select(np.array([2, 0, 2, 1]))
    assert [torch.equal(a, b) for a, b in zip(joined, [more[0], pixels[0], more[0], pixels[1]], strict=True)] == [
        True
    ] * 4
    replaced = joined.replaced([1, 3], [grey, pixels[0].contiguous()])
    assert torch.equal(replaced[0], more[0]) and torch.equal(replaced[2], more[0])
    assert replaced[1] is grey and torch.equal(replaced[3], pixels[0])
    assert replaced.planes[1].tolist() == [grey.data_ptr(), 0, 4]
    assert joined.replaced([], []) is joined


@pytest.mark.parametrize(
    "image",
    [
        torch.zeros(2, 4, 4, dtype=torch.uint8),
        torch.zeros(3, 4, 4),
        torch.zeros(3, 0, 4, dtype=torch.uint8),
        torch.zeros(3, 4, 8, dtype=torch.uint8)[:, :, ::2],
        torch.zeros(4, 4, dtype=torch.uint8),
    ],
    ids=["2 planes", "float", "empty", "every second pixel", "no planes"],
)
def test_tensors_that_kernels_cannot_read_are_refused(image: torch.Tensor) -> None:
    with pytest.raises(UsageError, match="an image is"):
        DecodedImages.from_tensors([torch.zeros(3, 4, 4, dtype=torch.uint8), image])
