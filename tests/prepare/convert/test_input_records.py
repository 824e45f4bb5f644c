"""Groups of a row's inputs: what they make is what each input makes alone, and a death is blamed on one input."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from picstore.errors import ImageError
from picstore.prepare.convert.input_records import group_inputs
from picstore.prepare.convert.row_division import DatasetShape
from picstore.prepare.convert.rows import RowTask, run_rows
from picstore.prepare.engine.worker_processes import Died
from picstore.prepare.image.encode_settings import EncodeSettings
from picstore.prepare.image.training_jpeg import TrainingJpeg, make_training_jpeg, reencode
from picstore.prepare.sources.inputs import Input
from picstore.storage.location.resolve import locate

PLAIN = EncodeSettings()


def encoded(kind: str, side: int, **options: Any) -> bytes:
    out = io.BytesIO()
    pixels = np.random.default_rng(side).integers(0, 256, (side, side, 3), np.uint8)
    Image.fromarray(pixels).save(out, kind, **options)
    return out.getvalue()


def test_a_group_makes_what_each_input_makes_alone() -> None:
    kinds = (("JPEG", {}), ("JPEG", {"progressive": True}), ("PNG", {}), ("JPEG", {"quality": 95}))
    streams = [encoded(kind, 20 + k, **options) for k in range(10) for kind, options in kinds]
    streams[4] = streams[4][:-2]  # its end is missing
    numbered = [(100 + k, Input(f"{k}.jpg", 0, "")) for k in range(len(streams))]
    grouped = list(group_inputs(numbered, lambda id_, _: streams[id_ - 100], PLAIN, lambda _: False))
    assert [(each.id, each.source) for each in grouped] == numbered
    assert [each.data for each in grouped] == streams
    lossless = 0
    for each, stream in zip(grouped, streams, strict=True):
        made = each.made
        if isinstance(made, TrainingJpeg):
            lossless += 1
        elif each.id == 104:
            with pytest.raises(ImageError, match="truncated"):
                make_training_jpeg(stream, settings=PLAIN)
            continue
        else:
            assert isinstance(made, str)
            made = reencode(stream, made, settings=PLAIN)
        assert made == make_training_jpeg(stream, settings=PLAIN)
        assert np.array_equal(made.info.segments, make_training_jpeg(stream, settings=PLAIN).info.segments)
    assert lossless == 19


def test_inputs_that_are_skipped_unreadable_or_large_are_left_for_later() -> None:
    small, large = encoded("JPEG", 40), encoded("JPEG", 1000, quality=100)
    assert len(large) > 1 << 20
    numbered = [(k, Input(str(k), 0, "")) for k in range(5)]

    def read(id_: int, source: Input) -> bytes:
        if id_ == 1:
            raise ImageError("cannot be read")
        return large if id_ == 3 else small

    skipped, failed, *others = group_inputs(numbered, read, PLAIN, (0).__eq__)
    assert (skipped.data, skipped.made) == (None, None)
    assert (str(failed.data), failed.made) == ("cannot be read", None)
    assert [(each.data, isinstance(each.made, TrainingJpeg)) for each in others] == [
        (small, True),
        (large, False),
        (small, True),
    ]


class _DiesAt:
    """Engine whose processes die at one input, which a group's position file does not tell."""

    def __init__(self, input_: int, last: int) -> None:
        self.input, self.last = input_, last

    def run(self, function: Any, tasks: deque[RowTask], *, on_progress: Any = None) -> Iterator[tuple[RowTask, Any]]:
        while tasks:
            task = tasks.popleft()
            at = self.last if task.groups_inputs else self.input
            task.position_file.write_bytes(at.to_bytes(8, "little"))
            yield task, None if self.input in task.blamed else Died(-11)
            self.task = task


def test_a_death_while_a_group_is_made_is_blamed_on_its_image(tmp_path: Path) -> None:
    inputs = [Input(str(k), 0, "") for k in range(16)]
    task = RowTask(locate(tmp_path), 0, range(16), inputs, PLAIN, DatasetShape(), tmp_path)
    engine = _DiesAt(7, 15)
    run_rows(deque([task]), engine, lambda _: None)
    assert engine.task.blamed.keys() == {7}


@pytest.mark.parametrize(("size", "group"), [(0, 16), (1 << 19, 9), ((1 << 19) - 1, 9), (5 << 20, 1)])
def test_groups_have_16_inputs_or_what_first_exceeds_4_mib(size: int, group: int) -> None:
    reads: list[int] = []

    def read(id_: int, source: Input) -> bytes:
        reads.append(id_)
        return bytes(size)

    numbered = [(k, Input(str(k), 0, "")) for k in range(40)]
    for number, _ in enumerate(group_inputs(numbered, read, PLAIN, lambda _: False)):
        assert len(reads) == min((number // group + 1) * group, 40)
