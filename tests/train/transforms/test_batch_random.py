"""Random numbers of images: functions of seed, epoch, record and view, as docs/reference/transforms.md specifies."""

from __future__ import annotations

import numpy as np

from picstore import rng
from picstore.train.transforms.batch_random import BatchRandom

IDS = np.array([7, 1 << 63, 0, 12345], np.uint64)


def drawn(seed: int, epoch: int, view: int, id_: int, position: int) -> float:
    key = rng.key(rng.AUGMENT, seed, epoch, id_, *[view] * bool(view))
    return float(rng.unit(key, np.array([position], np.uint64))[0])


def test_each_number_depends_on_seed_epoch_record_view_and_position() -> None:
    for views in (0, 3, np.array([0, 1, 0, 2])):
        random = BatchRandom(5, 9, IDS, views)
        numbers = np.concatenate([random.uniform(2), random.uniform(1), random.uniform(3)], axis=1)
        every = np.broadcast_to(views, 4).tolist()
        expected = [[drawn(5, 9, view, int(id_), k) for k in range(6)] for view, id_ in zip(every, IDS, strict=True)]
        assert numbers.tolist() == expected


def test_one_of_several_values_takes_a_number_and_a_single_one_none() -> None:
    random, same = BatchRandom(1, 2, np.arange(1000)), BatchRandom(1, 2, np.arange(1000))
    assert random.choice([4]).tolist() == [4] * 1000
    chosen = random.choice([3, 30, 300])
    expected = np.array([3, 30, 300])[np.floor(same.uniform(1)[:, 0] * 3).astype(int)]
    assert chosen.tolist() == expected.tolist() and set(chosen.tolist()) == {3, 30, 300}
    np.testing.assert_array_equal(random.uniform(2), same.uniform(2))


def test_children_draw_numbers_of_their_own_and_leave_the_position() -> None:
    random = BatchRandom(1, 2, IDS)
    random.uniform(3)
    first, second = (random.child(number).uniform(2) for number in (0, 1))
    assert np.unique(np.concatenate([first, second])).size == 16
    key = rng.key(rng.AUGMENT, 1, 2, int(IDS[3]), 3, 1)
    np.testing.assert_array_equal(second[3], rng.unit(key, np.arange(2, dtype=np.uint64)))
    assert random.uniform(1)[3, 0] == drawn(1, 2, 0, int(IDS[3]), 3)


def test_some_images_go_on_by_themselves() -> None:
    random = BatchRandom(1, 2, IDS)
    random.uniform(2)
    some = random.rows(np.array([2, 0]))
    expected = [[drawn(1, 2, 0, int(IDS[k]), position) for position in (2, 3)] for k in (2, 0)]
    assert some.uniform(2).tolist() == expected
    assert random.uniform(1)[1, 0] == drawn(1, 2, 0, int(IDS[1]), 2)
