"""Damaged records of a batch: which sound one takes the place of each, and what is logged once."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from picstore.errors import Corrupt
from picstore.train.batching.damage import DamageLog, next_sound, replace_damaged, replacements
from picstore.train.batching.host_batch import HostBatch

PROBLEM = Corrupt("an image fails its CRC", "0000/000000.pic", 4096)


def test_the_next_sound_number_replaces_a_damaged_one() -> None:
    assert next_sound(np.array([0, 3, 4, 9, 10, 11]), np.array([2, 4, 9])).tolist() == [2, 4, 4, 9, 2, 2]


def test_a_slot_takes_the_next_sound_sample_of_its_data_set() -> None:
    source = np.array([0, 1, 0, 1, 0, 0])
    assert replacements(source, {0: PROBLEM, 3: PROBLEM, 5: PROBLEM}) == {0: 2, 3: 1, 5: 2}
    with pytest.raises(Corrupt, match="no sound record to replace it") as caught:
        replacements(source, {1: PROBLEM, 3: PROBLEM})
    assert (caught.value.file, caught.value.offset) == ("0000/000000.pic", 4096)


def test_a_replaced_slot_has_all_of_the_other_sample() -> None:
    images = [[np.arange(4.0)[:, None]], [10 + np.arange(4.0)[:, None], 20 + np.arange(4.0)[:, None]]]
    targets = [[[{"boxes": [k]} for k in range(4)]]]
    numbers, columns = np.arange(4), {"score": np.arange(4) * 0.5}
    batch = HostBatch(images, numbers + 100, numbers + 200, np.zeros(4, int), targets, [], columns=columns)
    replace_damaged(batch, {1: PROBLEM})
    for kept in (images[0][0][:, 0], images[1][0][:, 0] - 10, images[1][1][:, 0] - 20, batch.labels - 100):
        assert kept.tolist() == [0, 2, 2, 3]
    assert (batch.ids - 200).tolist() == [0, 2, 2, 3] and columns["score"].tolist() == [0, 1, 1, 1.5]
    assert [each["boxes"] for each in targets[0][0]] == [[0], [2], [2], [3]]
    assert targets[0][0][1]["boxes"] is not targets[0][0][2]["boxes"]


def test_each_damage_is_logged_once_and_the_first_fallback_alone(caplog: pytest.LogCaptureFixture) -> None:
    log = DamageLog(strict=False)
    other = Corrupt("an image fails its CRC", "0000/000000.pic", 8192)
    with caplog.at_level(logging.WARNING, "picstore"):
        log.report([PROBLEM, other])
        log.report([other])
        log.report_fallbacks(["progressive", "too large"], of=8)
        log.report_fallbacks(["progressive"], of=8)
    texts = [record.getMessage() for record in caplog.records]
    assert texts[:2] == [f"left out: {PROBLEM}", f"left out: {other}"]
    assert len(texts) == 3 and "2 of 8 images" in texts[2] and "refuses: progressive;" in texts[2]
