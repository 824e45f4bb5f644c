"""engine="ray": the batches of a local loader from remote workers, whatever becomes of these.

Without a cluster; test_remote_cluster.py has clusters.
"""

from __future__ import annotations

import gc
import random
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import simplejpeg
import torch
from equal_batches import assert_same, same, take
from grids import slow_except
from inline_ray import InlineRay, RayError
from remote_recipes import CROP, RECIPES, contents, write_pictures

import picstore
from picstore.errors import Corrupt, PicstoreError, UsageError
from picstore.prepare.engine import ray as engine
from picstore.train.pipeline import device_augment, remote_sequence, remote_workers, runner

Make = Callable[..., Path]
OPTIONS: dict[str, Any] = {"batch_size": 8, "transform": CROP, "lanes": 4, "seed": 5}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[InlineRay]:
    """A cluster in this process; its workers end after the test."""
    made = InlineRay()
    for module in (engine, remote_workers):
        monkeypatch.setattr(module, "import_ray", lambda *_: made)
    yield made
    for actor in made.actors:
        made.kill(actor)


def remote_loader(path: Path, *, workers: int = 3, **options: Any) -> picstore.Loader:
    return picstore.Loader(path, engine="ray", workers=workers, **{**OPTIONS, **options})


def local_loader(path: Path, **options: Any) -> picstore.Loader:
    return picstore.Loader(path, isolate=False, threads=2, **{**OPTIONS, **options})


@pytest.mark.parametrize("workers", [1, 3])
def test_batches_of_two_epochs_are_those_of_a_local_loader(
    make_dataset: Make, cluster: InlineRay, workers: int
) -> None:
    path = make_dataset(100)
    loader = remote_loader(path, workers=workers)
    assert_same(take(loader, 2), take(local_loader(path), 2))
    assert len(cluster.actors) == workers
    assert all(options["num_cpus"] == 1 for options in cluster.options)
    loader.close()
    assert not cluster.living


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures with boxes, masks and captions."""
    return write_pictures(tmp_path_factory.mktemp("remote") / "dataset")


@pytest.mark.parametrize("name", slow_except(["masks"], RECIPES))
def test_batches_of_any_recipe_are_those_of_a_local_loader(pictures: Path, cluster: InlineRay, name: str) -> None:
    options = {"batch_size": 8, "lanes": 4, "seed": 3, **RECIPES[name]}
    remote = contents(picstore.Loader(pictures, engine="ray", workers=2, **options))
    local = contents(picstore.Loader(pictures, isolate=False, threads=2, **options))
    assert len(remote) == len(local) > 0
    assert remote == local


@pytest.mark.slow
def test_workers_that_die_at_any_moment_cost_no_batch(make_dataset: Make, cluster: InlineRay) -> None:
    path = make_dataset(100)
    rng = random.Random(7)

    def strike(ray: InlineRay) -> None:
        if ray.living and rng.random() < 0.2:
            ray.kill(rng.choice(ray.living))

    cluster.before_wait = strike
    loader = remote_loader(path)
    assert_same(take(loader, 3), take(local_loader(path), 3))
    assert len(cluster.actors) > 10, "several died"


def test_batches_whose_memory_is_lost_with_a_node_are_made_again(make_dataset: Make, cluster: InlineRay) -> None:
    path, get, rng, lost = make_dataset(100), cluster.get, random.Random(3), []

    def lose(reference: Any) -> Any:
        if hasattr(reference.value, "nbytes") and rng.random() < 0.2:
            lost.append(reference)
            raise RayError("the object's node died")
        return get(reference)

    cluster.get = lose  # type: ignore[method-assign]
    assert_same(take(remote_loader(path), 2), take(local_loader(path), 2))
    assert lost


def test_a_batch_at_which_each_worker_dies_is_an_error(make_dataset: Make, cluster: InlineRay) -> None:
    def strike(ray: InlineRay) -> None:
        for actor in ray.living:
            if any(method == "make" for method, *_ in actor.calls):
                ray.kill(actor)

    cluster.before_wait = strike
    with pytest.raises(PicstoreError, match=r"of epoch 0 lost its worker 4 times, last by RayError: the actor died$"):
        take(remote_loader(make_dataset(50)), 1)


def test_workers_that_end_before_they_are_ready_are_an_error(
    make_dataset: Make, cluster: InlineRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_workers, "_FAILING_SECONDS", 0.0)
    monkeypatch.setattr(remote_workers, "_RETRY_SECONDS", 0.0)
    cluster.before_wait = lambda ray: [ray.kill(actor) for actor in ray.living]  # type: ignore[assignment]
    with pytest.raises(PicstoreError, match=r"\d remote workers have ended before being ready, the last by RayError"):
        take(remote_loader(make_dataset(50)), 1)


def test_workers_that_end_as_they_start_are_replaced_until_a_node_is_lost(
    make_dataset: Make, cluster: InlineRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_workers, "_RETRY_SECONDS", 0.0)
    monkeypatch.setattr(remote_sequence, "_WAIT_SECONDS", 0.01)

    def strike(ray: InlineRay) -> None:
        for actor in ray.living:
            if len(ray.actors) < 20:
                ray.kill(actor)

    cluster.before_wait = strike
    path = make_dataset(50)
    assert_same(take(remote_loader(path), 1), take(local_loader(path), 1))
    assert len(cluster.actors) >= 20


def test_without_any_worker_there_is_a_warning_and_then_an_error(
    make_dataset: Make, cluster: InlineRay, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(remote_workers, "_WARNING_SECONDS", 0.01)
    monkeypatch.setattr(remote_workers, "NO_WORKER_SECONDS", 0.5)
    cluster.runs = lambda _: bool(time.sleep(0.01))  # type: ignore[func-returns-value]  # none has room on the cluster
    with pytest.raises(PicstoreError, match=r"no remote worker for \d+ s: each takes 3 CPUs, and 4 of the cluster's 4"):
        take(remote_loader(make_dataset(50), threads=3), 1)
    assert "waiting up to" in caplog.text


def test_workers_are_added_and_taken_away_while_batches_are_made(make_dataset: Make, cluster: InlineRay) -> None:
    path = make_dataset(100)
    loader, counts = remote_loader(path, workers=2), [3, 1, 5]
    assert loader.workers == 2
    taken = []
    for _ in range(3):
        for number, batch in enumerate(loader):
            taken.append(batch)
            if number == 4:
                loader.workers = counts.pop(0)
        assert len(cluster.living) == loader.workers
    assert_same(taken, take(local_loader(path), 3))
    with pytest.raises(UsageError, match="workers is 0"):
        loader.workers = 0
    with pytest.raises(UsageError, match="engine='ray'"):
        local_loader(path).workers = 2
    assert local_loader(path).workers is None


def test_what_waits_for_a_slow_trainer_is_bounded_in_bytes(make_dataset: Make, cluster: InlineRay) -> None:
    path, size = make_dataset(400), 8 * 3 * 32 * 32
    cluster.store = 4 * 10 * size  # of which a quarter is filled
    held: list[int] = []
    cluster.before_wait = lambda ray: held.append(len(ray.blocks))
    cluster.runs = lambda actor: bool(actor.number) or rng.random() < 0.05  # others are ahead of a slow worker
    rng = random.Random(1)
    for batches in zip(remote_loader(path, workers=3), local_loader(path), strict=True):
        assert same(*batches)
    assert 8 <= max(held) <= 10 + remote_workers.WINDOW, "the first span, which the trainer waits for, goes on"


def test_batches_are_writable_and_their_memory_is_freed_when_dropped(make_dataset: Make, cluster: InlineRay) -> None:
    loader = remote_loader(make_dataset(50))
    batches = iter(loader)
    kept, dropped = next(batches), next(batches)
    memory = [weakref.ref(reference) for reference in cluster.memory]
    addresses = [reference.value.ctypes.data for reference in cluster.memory]
    assert [kept.images.data_ptr(), dropped.images.data_ptr()] == addresses, "nothing is copied"
    kept.images.zero_()
    kept.labels[:] = 3
    cluster.memory.clear()
    before = kept.images.clone()
    del dropped
    gc.collect()
    assert memory[1]() is None, "nothing refers to the second batch in Ray's store"
    assert torch.equal(kept.images, before)


def test_a_run_moves_between_local_and_remote_workers_at_any_step(make_dataset: Make, cluster: InlineRay) -> None:
    path = make_dataset(100)
    expected, taken, state = take(local_loader(path), 2), [], None
    for step, make in enumerate([remote_loader, local_loader, remote_loader]):
        loader = make(path)
        if state is not None:
            loader.load_state_dict(state)
        taken += islice(loader, 5 if step < 2 else None)
        state = loader.state_dict()
        loader.close()
    assert_same(taken, expected[: len(taken)])
    assert len(taken) == 12


def test_the_workers_are_kept_when_a_loop_is_left_and_the_next_begins(make_dataset: Make, cluster: InlineRay) -> None:
    path = make_dataset(100)
    loader, local = remote_loader(path), local_loader(path)
    for batches in zip(islice(loader, 3), islice(local, 3), strict=True):
        assert same(*batches)
    assert_same(take(loader, 1), take(local, 1))
    assert len(cluster.actors) == 3
    together = list(zip(loader, loader, strict=False))  # a second iterator has workers of its own
    assert len(together) == 12 and len(cluster.actors) == 6


def test_damaged_records_are_replaced_or_raised_as_by_a_local_loader(
    make_dataset: Make, cluster: InlineRay, caplog: pytest.LogCaptureFixture
) -> None:
    path = make_dataset(60)
    file = sorted(path.glob("*/*.pic"))[1]
    content = bytearray(file.read_bytes())
    content[6000:6400] = bytes(400)
    file.write_bytes(content)
    local, loader = local_loader(path), remote_loader(path)
    assert_same(take(loader, 2), take(local, 2))
    assert loader.damaged == local.damaged > 0
    assert loader.stats.images == local.stats.images
    assert loader.stats.working > 0 and loader.stats.reading > 0
    assert sum(str(file) in record.getMessage() for record in caplog.records) >= 2
    strict = remote_loader(path, on_damage="raise")
    sound = iter(local_loader(path, on_damage="raise"))
    with pytest.raises(Corrupt) as expected:
        for _ in range(100):
            next(sound)
    with pytest.raises(Corrupt) as found:
        take(strict, 2)
    assert (found.value.file, found.value.offset) == (expected.value.file, expected.value.offset)
    assert strict.position == local_position_after(path)


def local_position_after(path: Path) -> tuple[int, int]:
    """Where a strict local loader stands after its error."""
    loader = local_loader(path, on_damage="raise")
    with pytest.raises(Corrupt):
        take(loader, 2)
    return tuple(loader.position)  # type: ignore[return-value]


@pytest.mark.slow
def test_spans_read_at_most_a_quarter_more_than_a_local_loader(make_dataset: Make, cluster: InlineRay) -> None:
    path = make_dataset(400, container_size=8 << 10)
    options = {"lanes": 4, "batch_size": 16}
    local, loader = local_loader(path, **options), remote_loader(path, workers=2, **options)
    take(loader, 4)
    take(local, 4)
    loader.close()
    local.close()
    # The epochs that are begun ahead count too, as do the short spans at first.
    assert loader.stats.bytes <= 1.25 * local.stats.bytes * (4 + 4) / 4


def test_workers_of_other_versions_are_refused_by_name(
    make_dataset: Make, cluster: InlineRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = {**remote_workers.versions(), "numba": "0.1", "picstore": "9"}
    monkeypatch.setattr(remote_workers, "versions", lambda: wanted)
    with pytest.raises(PicstoreError, match=r"picstore \S+ where the trainer has 9, numba \S+ where the trainer has"):
        take(remote_loader(make_dataset(20)), 1)


def test_a_data_set_that_a_worker_does_not_see_is_named(make_dataset: Make, cluster: InlineRay) -> None:
    path = make_dataset(50)
    loader = remote_loader(path)
    path.rename(path.with_name("elsewhere"))
    with pytest.raises(PicstoreError, match=r"remote worker cannot make batches: .*dataset.*under the same names"):
        take(loader, 1)


def test_what_cannot_be_sent_to_workers_is_named(make_dataset: Make, cluster: InlineRay) -> None:
    with pytest.raises(UsageError, match=r"remote workers cannot have collate: .*give a function of a module"):
        remote_loader(make_dataset(20), collate=lambda batch: {})  # plain pickle stands for Ray's, which can


def test_an_unexpected_error_of_a_worker_is_raised_with_its_cause(
    make_dataset: Make, cluster: InlineRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise AttributeError("a bug")

    monkeypatch.setattr(remote_workers.RemoteWorker, "make", fail)
    with pytest.raises(PicstoreError, match=r"a remote worker failed: AttributeError\('a bug'\)"):
        take(remote_loader(make_dataset(20)), 1)


def test_a_closed_loader_ends_its_iterators_and_may_be_iterated_again(make_dataset: Make, cluster: InlineRay) -> None:
    path = make_dataset(50)
    loader = remote_loader(path)
    batches = iter(loader)
    next(batches)
    loader.close()
    with pytest.raises(PicstoreError, match="the loader was closed"):
        next(batches)
    loader.set_epoch(0)
    assert_same(take(loader, 1), take(local_loader(path), 1))


def test_a_worker_that_starts_while_the_loader_is_closed_ends_too(
    make_dataset: Make, cluster: InlineRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As another thread or a garbage collection may close it."""
    loader, versions = remote_loader(make_dataset(50), workers=3), remote_workers.versions

    def close_meanwhile() -> dict[str, str]:
        if len(cluster.actors) == 2:
            loader.close()
        return versions()

    monkeypatch.setattr(remote_workers, "versions", close_meanwhile)
    with pytest.raises(PicstoreError, match="the loader was closed"):
        next(iter(loader))
    assert len(cluster.actors) == 2 and not cluster.living


def test_a_mux_has_the_same_batches(make_dataset: Make, cluster: InlineRay) -> None:
    sets = [make_dataset(60, name="one"), make_dataset(30, name="two")]

    def mux(**options: Any) -> picstore.DataMux:
        config = [(picstore.Dataset(path), 100 * number, 5 - number) for number, path in enumerate(sets)]
        return picstore.DataMux(config, transform=CROP, seed=2, epoch_batches=17, **options)

    assert_same([*mux(engine="ray", workers=2)], [*mux(isolate=False)])


def test_for_a_decoder_on_a_device_workers_send_cuts(
    make_dataset: Make, cluster: InlineRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decoder is libjpeg-turbo, and instead of augmenting each image becomes its left upper corner."""

    def decode(streams: list[torch.Tensor]) -> list[torch.Tensor]:
        pixels = [simplejpeg.decode_jpeg(stream.numpy().tobytes(), "RGB") for stream in streams]
        return [torch.from_numpy(each.transpose(2, 0, 1).copy()) for each in pixels]

    monkeypatch.setattr(runner, "choose_decoder", lambda name, _: "cpu" if name == "auto" else name)
    monkeypatch.setattr(runner, "load_decoder", lambda name, _: decode)
    monkeypatch.setattr(runner, "check_decoder", lambda decode, device: None)
    monkeypatch.setattr(
        device_augment, "augment_images", lambda pictures, *_: torch.stack([p[:, :2, :2] for p in pictures])
    )
    path = make_dataset(50)
    remote_batches = take(remote_loader(path, decoder="torchvision"), 1)
    assert_same(remote_batches, take(local_loader(path, decoder="torchvision"), 1))
    assert 0 < cluster.memory[-1].value.nbytes < 8 * 3 * 32 * 32, "less than the pixels"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "spark"}, "engine is 'spark'; give 'local' or 'ray'"),
        ({"workers": 2}, "workers are set with engine='ray'"),
        ({"engine": "ray", "workers": 0}, "workers is 0"),
        ({"engine": "ray", "isolate": False}, "leave one out"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(
    make_dataset: Make, cluster: InlineRay, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        picstore.Loader(make_dataset(10), **{**OPTIONS, **options})


def test_without_ray_the_loader_says_what_to_install(make_dataset: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(picstore.MissingDependency, match=r"engine='ray' needs Ray: pip install .*\[ray\]'"):
        remote_loader(make_dataset(10))


def test_a_worker_of_a_dataloader_refuses_to_have_remote_workers(make_dataset: Make, cluster: InlineRay) -> None:
    loader = torch.utils.data.DataLoader(remote_loader(make_dataset(40)), batch_size=None, num_workers=1)
    with pytest.raises(UsageError, match="iterate the loader itself"):
        next(iter(loader))
