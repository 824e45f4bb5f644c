"""picstore bench: what each stage takes, and what bounds the loader."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from commands import picstore_command, picstore_json

import picstore
from picstore.train.pipeline.stats import Stats, StatsCounter
from picstore.train.profile import STAGES, Report, measure

Make = Callable[..., Path]
CROP = [picstore.RandomResizedCrop(24), picstore.RandomHorizontalFlip()]


@pytest.mark.slow
def test_every_stage_is_measured_and_the_loader_has_made_as_many_images(make_dataset: Make) -> None:
    report = measure(make_dataset(60), transform=CROP, batch_size=8, images=100, threads=2)
    assert set(report.microseconds) == set(STAGES)
    assert all(report.microseconds[name] > 0 for name in ("plan", "decode", "augment"))
    assert report.images == report.stats.images == 96
    assert report.stats.batches == 12
    assert report.rate == pytest.approx(96 / report.seconds)


def test_a_data_set_smaller_than_the_batch_asked_for_is_measured_too(make_dataset: Make) -> None:
    report = measure(make_dataset(9), transform=CROP, batch_size=8, images=1, threads=1, isolate=False)
    assert report.images == 8


def test_the_verdict_names_what_takes_longest() -> None:
    work = {"read": 900.0, "plan": 10.0, "decode": 80.0, "augment": 10.0}
    report = Report(work, images=100, bytes=1, threads=3, rate=1.0, stats=Stats(working=27.0), seconds=10.0)
    assert "The 3 threads bound this run: decode takes 80% of the 100 microseconds" in report.verdict
    waiting = replace(report, stats=Stats(waited_on_disk=6.0))
    assert "Reading bounds this run: the loader waited on it for 60%" in waiting.verdict
    idle = replace(report, stats=Stats(working=6.0))
    assert "Python bounds this run: the 3 threads worked for 20% of the time" in idle.verdict


def test_bench_prints_its_figures_as_json_and_as_text(make_dataset: Make) -> None:
    path = make_dataset(40)
    options = ("--images", 32, "--batch-size", 8, "--size", 32, "--threads", 2)
    facts = picstore_json("bench", path, *options, "--colour", "--processes", 2)
    assert set(facts["microseconds"]) == set(STAGES)
    assert facts["images"] == facts["stats"]["images"] == 32
    text = picstore_command("bench", path, *options).stdout
    for word in (*STAGES, "The loader with 2 threads makes", "bound", facts["verdict"].split()[-1]):
        assert word in text


def test_stats_of_two_moments_can_be_subtracted_and_added(make_dataset: Make) -> None:
    loader = picstore.Loader(make_dataset(40), batch_size=8, transform=CROP, isolate=False)
    iterator = iter(loader)
    next(iterator)
    before = loader.stats
    next(iterator)
    next(iterator)
    since = loader.stats - before
    assert (since.batches, since.images) == (2, 16)
    assert (before + since).images == 24
    assert loader.stats.bytes > 0 and loader.stats.working > 0 and loader.stats.reading > 0


def test_a_slow_consumer_shows_as_waiting_for_it(make_dataset: Make) -> None:
    loader = picstore.Loader(make_dataset(80), batch_size=4, transform=CROP, isolate=False)
    list(loader)  # kernels are there now
    before = loader.stats
    for _ in loader:
        time.sleep(0.05)
    waited = loader.stats - before
    assert waited.waited_on_consumer > waited.waited_on_decode


def test_counters_survive_being_pickled() -> None:
    counters = StatsCounter()
    counters.add(images=3, reading=0.5)
    again = pickle.loads(pickle.dumps(counters))  # noqa: S301 - our own
    again.add(images=1)
    assert (again.stats.images, again.stats.reading) == (4, 0.5)
