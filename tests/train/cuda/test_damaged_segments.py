"""Damaged segments: the kernels for GPUs, interpreted, end, stay in bounds, and refuse what the CPU's decoder refuses.

It is a short form of ``python -m benchmarks torture --only segments``, which takes a million.
"""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from grids import slow_except

from benchmarks.torture.damage import QUIET, damaged, make_seeds
from benchmarks.torture.segments import decode_whole, judge, make_images, run_chunk

pytest.importorskip("triton")


@pytest.mark.slow
@pytest.mark.interpreted
@pytest.mark.parametrize("count", slow_except([300], [300, 1_000], mark=pytest.mark.nightly))
def test_damaged_segments_and_tables_are_refused_as_by_the_cpu(count: int) -> None:
    result = run_chunk(90_000, count, "few")
    assert result["problems"] == []
    counts = result["counts"]
    of = {name: sum(counts[key] for key in counts if key.endswith(f": {name}")) for name in ("flagged", "equal")}
    assert of["flagged"] > count // 4
    assert of["equal"] > count // 15


def test_damage_leaves_sound_tables_and_changes_streams_of_every_kind() -> None:
    images = make_images(1, 400, "short")
    assert len({image.kind for image in images}) == 14
    refused = sum(decode_whole(image.jpeg) is None for image in images)
    assert 0.5 * len(images) < refused < len(images)


def test_a_missed_refusal_a_wrong_flag_and_other_pixels_are_found() -> None:
    (seed, *_) = make_seeds([("420", 19, 34)], QUIET, np.random.default_rng(1))
    sound, short = (damaged(kind, seed, Random(1)) for kind in ("none", "truncation"))
    pixels = decode_whole(sound.jpeg)
    assert pixels is not None
    assert decode_whole(short.jpeg) is None
    assert judge(sound, 0, 0, pixels)[1] == judge(short, 0, 2, None)[1] == ""
    assert judge(sound, 0, 0, pixels ^ 1)[1]
    assert judge(sound, 0, 2, None)[1]
    assert judge(short, 0, 0, pixels)[1]
