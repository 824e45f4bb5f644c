"""RandomApply, RandomChoice and RandomOrder: which images get which transforms, in which order, from which numbers."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

import picstore
from picstore import rng
from picstore.errors import UsageError
from picstore.train.transforms import opcodes
from picstore.train.transforms.batch_random import BatchRandom
from picstore.train.transforms.choices import RandomApply, RandomChoice, RandomOrder
from picstore.train.transforms.color_program import ColorProgram, compose_color
from picstore.train.transforms.from_torchvision import transform_from_config
from picstore.train.transforms.geometry import Geometry
from picstore.train.transforms.transform_lists import compose
from picstore.train.transforms.transform_plan import plan_transforms

N = 4000
JITTER = picstore.ColorJitter(0.4, 0.4, 0.2, 0.1)
FLIP, FLOP = picstore.RandomHorizontalFlip(1.0), picstore.RandomVerticalFlip(1.0)


def draws(n: int = N, seed: int = 3) -> BatchRandom:
    return BatchRandom(seed, 0, np.arange(n))


def geometry(*transforms: object, n: int = N) -> Geometry:
    (group,) = plan_transforms(list(transforms))[0].groups
    return compose(group.geometry, Geometry.identity([60] * n, [50] * n), draws(n))


def program(*transforms: object, n: int = N) -> ColorProgram:
    (group,) = plan_transforms(list(transforms))[0].groups
    return compose_color(group.color, np.full((n, 2), 32), draws(n))


def steps(color: ColorProgram, slot: int) -> list[int]:
    return [code for code in color.opcode[slot].tolist() if code not in (opcodes.NOTHING, opcodes.NORMALIZE)]


def test_a_list_is_applied_as_a_whole_or_not_at_all_with_its_probability():
    made = geometry(RandomApply([FLIP, FLOP], p=0.3))
    assert (made.flip[:, 0] == made.flip[:, 1]).all()
    assert made.flip[:, 0].mean() == pytest.approx(0.3, abs=0.03)
    assert not geometry(RandomApply([FLIP], p=0)).flip.any()
    assert geometry(RandomApply([FLIP], p=1)).flip[:, 0].all()
    color = program(RandomApply([picstore.RandomInvert(1.0), picstore.RandomGrayscale(1.0)], p=0.8))
    counts = np.array([len(steps(color, slot)) for slot in range(N)])
    assert set(counts) == {0, 2}
    assert (counts == 2).mean() == pytest.approx(0.8, abs=0.03)


def test_one_transform_is_chosen_with_its_weight():
    made = geometry(RandomChoice([FLIP, FLOP], p=[3, 1]))
    assert (made.flip.sum(axis=1) == 1).all()
    assert made.flip[:, 0].mean() == pytest.approx(0.75, abs=0.03)
    chosen = program(
        RandomChoice([picstore.RandomGrayscale(1.0), picstore.RandomInvert(1.0), picstore.GaussianBlur(5)])
    )
    codes = [steps(chosen, slot) for slot in range(N)]
    assert {len(each) for each in codes} == {1}
    for code in (opcodes.SATURATION, opcodes.SOLARIZE, opcodes.BLUR):
        assert np.mean([each == [code] for each in codes]) == pytest.approx(1 / 3, abs=0.04)
    never = geometry(RandomChoice([FLIP, FLOP], p=[1, 0]))
    assert never.flip[:, 0].all() and not never.flip[:, 1].any()


def test_every_order_is_as_frequent():
    three = [picstore.RandomGrayscale(1.0), picstore.RandomInvert(1.0), picstore.GaussianBlur(5)]
    color = program(RandomOrder(three))
    orders = [tuple(steps(color, slot)) for slot in range(N)]
    assert len(set(orders)) == 6 and {len(order) for order in orders} == {3}
    for order in set(orders):
        assert orders.count(order) / N == pytest.approx(1 / 6, abs=0.03)
    moved = geometry(RandomOrder([picstore.RandomRotation((90, 90)), FLIP]), n=50)
    turned_first = compose([picstore.RandomRotation((90, 90)), FLIP], Geometry.identity([60], [50]), draws(1)).frame[0]
    flipped_first = compose([FLIP, picstore.RandomRotation((90, 90))], Geometry.identity([60], [50]), draws(1)).frame[0]
    is_first = np.isclose(moved.frame, turned_first).all(axis=(1, 2))
    assert 0 < is_first.sum() < 50
    assert np.isclose(moved.frame[~is_first], flipped_first).all()


def test_transforms_inside_draw_as_alone_from_a_child_of_the_records_key():
    made = geometry(RandomApply([picstore.RandomResizedCrop(20)], p=0.5))
    chosen = draws().uniform(1)[:, 0] < 0.5
    random = draws()
    random.uniform(1)
    alone = picstore.RandomResizedCrop(20)(Geometry.identity([60] * N, [50] * N), random.child(0))
    assert np.array_equal(made.frame[chosen], alone.frame[chosen])
    assert (made.size[~chosen] == [60, 50]).all() and (made.size[chosen] == 20).all()


def test_a_child_has_the_key_that_the_documentation_names():
    random = BatchRandom(5, 2, [7])
    random.uniform(4)
    parent = int(rng.keys(rng.key(rng.AUGMENT, 5, 2), np.array([7], np.uint64))[0])
    child = rng.keys(rng.keys(parent, np.array([4], np.uint64)), np.array([9], np.uint64))
    assert random.child(9).uniform(3).tolist() == [rng.unit(child[0], [0, 1, 2]).tolist()]
    assert random.uniform(1).tolist() == [rng.unit(parent, [4]).tolist()]


def test_an_image_is_the_same_in_any_batch_and_after_any_neighbors():
    transforms = [
        RandomOrder([picstore.RandomResizedCrop(20), RandomApply([picstore.RandomRotation(30)])]),
        RandomChoice([JITTER, RandomApply([picstore.RandomPosterize(3), picstore.GaussianNoise()])]),
    ]
    (group,) = plan_transforms(transforms)[0].groups

    def made(ids: list[int]) -> tuple[Geometry, ColorProgram]:
        random = BatchRandom(1, 2, ids)
        drawn = compose(group.geometry, Geometry.identity([60] * len(ids), [50] * len(ids)), random)
        return drawn, compose_color(group.color, drawn.size, random)

    together, colors = made([4, 9, 2, 11])
    for slot, number in enumerate([4, 9, 2, 11]):
        alone, color = made([number])
        assert np.array_equal(together.frame[slot], alone.frame[0])
        assert np.array_equal(together.interpolation[slot], alone.interpolation[0])
        width = color.opcode.shape[1]
        assert np.array_equal(colors.opcode[slot, :width], color.opcode[0])
        assert np.array_equal(colors.operands[slot, :width], color.operands[0])


def test_two_containers_of_a_list_draw_independently():
    made = geometry(
        RandomApply([picstore.RandomHorizontalFlip()], 1.0), RandomApply([picstore.RandomVerticalFlip()], 1.0)
    )
    assert (made.flip[:, 0] == made.flip[:, 1]).mean() == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize(
    ("transforms", "size"),
    [
        ([picstore.RandomResizedCrop(20), RandomApply([FLIP, picstore.RandomRotation(3)])], (20, 20)),
        ([RandomChoice([picstore.RandomResizedCrop(20), picstore.Resize((20, 20))])], (20, 20)),
        ([RandomChoice([picstore.RandomResizedCrop(20), picstore.Resize((21, 20))])], None),
        ([RandomApply([picstore.RandomResizedCrop(20)])], None),
        ([picstore.RandomResizedCrop(20), RandomApply([picstore.Pad(2)])], None),
        ([picstore.RandomResizedCrop(20), RandomOrder([FLIP, picstore.RandomRotation(9, expand=True)])], None),
        ([RandomApply([picstore.Pad(2)]), picstore.Resize((5, 6))], (5, 6)),
        ([picstore.RandomResizedCrop(200), RandomApply([picstore.RandomCrop(200)])], None),
    ],
)
def test_the_size_is_fixed_if_every_choice_gives_the_same(transforms: list, size: tuple[int, int] | None):
    (group,) = plan_transforms(transforms)[0].groups
    assert group.size == size


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RandomApply([]), "at least one"),
        (lambda: RandomApply(FLIP), "give a list"),
        (lambda: RandomApply([FLIP], 1.5), "probability"),
        (lambda: RandomApply([FLIP, JITTER]), "one kind"),
        (lambda: RandomChoice([FLIP, lambda images: images]), "callables of your own"),
        (lambda: RandomChoice([FLIP, FLOP], [1]), "2 numbers"),
        (lambda: RandomChoice([FLIP, FLOP], [0, 0]), "not all 0"),
        (lambda: RandomChoice([FLIP, FLOP], [-1, 2]), "at least 0"),
        (lambda: RandomOrder([picstore.Normalize((0, 0, 0), (1, 1, 1)), JITTER]), "put it after RandomOrder"),
        (lambda: RandomApply([picstore.MixUp(num_classes=3)]), "MixUp"),
        (lambda: RandomChoice([picstore.Pad(1, 3), picstore.Pad(1, 4)]), "same fill"),
        (lambda: plan_transforms([RandomApply([JITTER]), FLIP]), "RandomHorizontalFlip follows RandomApply"),
        (
            lambda: plan_transforms([picstore.Normalize((0, 0, 0), (1, 1, 1)), RandomApply([JITTER])]),
            "RandomApply follows Normalize",
        ),
        (lambda: plan_transforms([RandomApply([picstore.RandAugment()])], targets=("boxes",)), "moves the pixels"),
    ],
)
def test_containers_that_cannot_be_right_are_refused_when_they_are_made(make, message):
    with pytest.raises(UsageError, match=message):
        make()


def test_a_fill_inside_is_that_of_the_whole_list():
    made = geometry(RandomApply([picstore.RandomRotation(30, fill=9)], p=0.5), picstore.CenterCrop(90), n=20)
    assert (made.fill == 9).all()


def test_containers_can_be_pickled_and_come_from_tables():
    table = {
        "name": "RandomApply",
        "p": 0.25,
        "transforms": [{"name": "RandomChoice", "transforms": [{"name": "RandomInvert"}, {"name": "RandomGrayscale"}]}],
    }
    made = transform_from_config(table)
    expected = RandomApply([RandomChoice([picstore.RandomInvert(), picstore.RandomGrayscale()])], 0.25)
    again = pickle.loads(pickle.dumps(made))  # noqa: S301 - bytes of this test
    assert np.array_equal(program(made).opcode, program(expected).opcode)
    assert np.array_equal(program(again).opcode, program(expected).opcode)


def test_a_choice_of_transforms_of_the_batch_takes_one_for_each_batch():
    choice = RandomChoice([picstore.MixUp(num_classes=3), picstore.CutMix(num_classes=3)]).step.for_classes(3)
    assert choice.needs_floats
    images, labels = torch.rand(4, 3, 8, 8), torch.tensor([0, 1, 2, 0])
    kinds = set()
    for number in range(20):
        mixed, soft = choice(images, labels, BatchRandom(0, number, [0]))
        assert soft.shape == (4, 3) and torch.allclose(soft.sum(1), torch.ones(4))
        kinds.add(bool(((mixed == images) | (mixed == images.roll(1, 0))).all()))
    assert kinds == {True, False}
