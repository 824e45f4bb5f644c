"""The programs in examples/ do what they say."""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import importlib.util
import io
import json
import os
import random
import re
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from pictures import quadrants, require
from PIL import Image, ImageDraw
from programs import Program, run_program, run_ranks
from samples import picture
from torch._C._distributed_c10d import HashStore, PrefixStore, ProcessGroupGloo, Store

import picstore
from benchmarks.clusters import wait_until

Make = Callable[..., Path]
EXAMPLES = Path(__file__).parents[1] / "examples"


def run(*command: object, folder: Path, ranks: int = 1, modules: Sequence[str] = ()) -> str:
    """What a program that succeeds in ``folder`` writes to stdout: ``ranks`` processes as of torchrun.

    Args:
        modules: what it imports that takes seconds.
    """
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}
    options: dict[str, Any] = {"cwd": folder, "environment": environment, "modules": modules}
    return run_ranks(ranks, *command, **options) if ranks > 1 else run_program(*command, **options)


def losses(output: str) -> list[str]:
    """The lines of steps."""
    return [line for line in output.splitlines() if line.startswith("step ")]


@pytest.mark.slow
def test_plain_training_that_was_stopped_goes_on_to_the_same_last_digit(make_dataset: Make, tmp_path: Path) -> None:
    """A model with dropout and batch norm: weights, momentum, schedule, random state and order must all come back."""
    program = EXAMPLES / "train_resnet.py"
    options = [make_dataset(70), "--model", "mobilenet_v3_small", "--size", 32, "--batch-size", 8, "--epochs", 2]
    whole = losses(run(program, *options, folder=tmp_path))
    assert len(whole) == 16 and len({line.split()[-1] for line in whole}) == 16
    resumable = [*options, "--checkpoint", "run.pt", "--every", 5]
    first = losses(run(program, *resumable, "--stop-after", 7, folder=tmp_path))
    assert first == whole[:7]
    # From the middle of the first epoch into the second.
    assert losses(run(program, *resumable, folder=tmp_path)) == whole[5:]


@pytest.mark.slow
def test_training_on_2_and_3_processes_has_equal_losses_and_evaluates_once(make_dataset: Make, tmp_path: Path) -> None:
    training, validation = make_dataset(150), make_dataset(45, name="validation")
    options = [training, validation, "--backend", "gloo", "--model", "tiny", "--lr", 0.05]
    options += ["--epochs", 2, "--global-batch", 32, "--size", 32, "--lanes", 32]
    program, found = EXAMPLES / "train_ddp.py", {}
    for processes in (2, 3):
        output = run(program, *options, folder=tmp_path, ranks=processes)
        found[processes] = [float(line.split()[-1]) for line in losses(output)]
        assert [images for images, _ in re.findall(r"evaluated (\d+) images, (\d+) right", output)] == ["45", "45"]
    assert len(found[2]) == len(found[3]) == 8
    assert max(abs(a - b) for a, b in zip(found[2], found[3], strict=True)) < 1e-4
    assert len(set(found[2])) == 8


STEP = re.compile(r"step (\d+) ranks (\d+) ids (\w+) loss (\S+)\n")


class Steps:
    """Step, ranks, digest of ids, and loss of each step that a training prints to a pipe, which holds 90 of them.

    The ranks wait while nobody reads, so that no step is made and compared that the test does not need.
    """

    def __init__(self, pipe: Path) -> None:
        os.mkfifo(pipe)
        self._pipe = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
        fcntl.fcntl(self._pipe, fcntl.F_SETPIPE_SZ, 4096)
        self._text, self.made = "", list[tuple[int, int, str, float]]()

    def read(self, count: int, *, ranks: int) -> None:
        """Read until the last ``count`` steps were made by so many ranks."""
        deadline = time.monotonic() + 200
        while len(self.made) < count or {each[1] for each in self.made[-count:]} != {ranks}:
            assert select.select([self._pipe], [], [], deadline - time.monotonic())[0], f"{ranks} ranks make no step"
            self._text += os.read(self._pipe, 4096).decode()
            self.made = [(int(step), int(of), ids, float(loss)) for step, of, ids, loss in STEP.findall(self._text)]

    def close(self) -> None:
        os.close(self._pipe)


class Node:
    """A machine on which torchrun starts one worker, whose output goes to the pipe ``steps``.

    The worker is a fork of the launcher: a new Python, which imports torch, takes 3 s.
    """

    def __init__(self, *arguments: object, folder: Path) -> None:
        launcher = """
import os, runpy, signal, sys
from torch.distributed.launcher.api import elastic_launch
from torch.distributed.run import config_from_args, parse_args

def work(program, *arguments):
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.argv[:] = [program, *arguments]
    sys.path[0] = os.path.dirname(program)
    runpy.run_path(program, run_name="__main__")

os.dup2(os.open("steps", os.O_WRONLY), 1)
options = parse_args(sys.argv[1:])
config, *_ = config_from_args(options)
config.start_method = "fork"
elastic_launch(config, work)(options.training_script, *options.training_script_args)
"""
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # docs/distributed.md says why
        modules = ["torch.distributed.run"]
        self.launcher = Program("-c", launcher, *arguments, cwd=folder, environment=environment, modules=modules)

    def workers(self) -> list[int]:
        """Processes that the launcher has started."""
        threads = Path(f"/proc/{self.launcher.pid}/task").glob("*/children")
        return [int(number) for path in threads for number in path.read_text().split()]

    def kill(self) -> None:
        """Kill launcher and worker, as the machine's loss does."""
        for number in (self.launcher.pid, *self.workers()):
            os.kill(number, signal.SIGKILL)
        self.launcher.communicate(60)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_an_elastic_run_that_loses_a_rank_makes_the_same_global_batches(make_dataset: Make, tmp_path: Path) -> None:
    program, lost = EXAMPLES / "train_elastic.py", random.randrange(1, 12)
    options: list[object] = [program, make_dataset(150), "--backend", "gloo", "--model", "tiny", "--size", 32]
    options += ["--global-batch", 8, "--lr", 0.05, "--every", 5, "--checkpoint"]
    with socket.create_server(("127.0.0.1", 0)) as free:
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
    launch = ["--nnodes", "1:2", "--max-restarts", "9", "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint]
    timeouts = "last_call_timeout=3,keep_alive_interval=1,keep_alive_max_attempt=5"
    nodes: list[Node] = []

    def start(host: int) -> None:
        conf = ["--rdzv-conf", f"{timeouts},is_host={host}"]
        nodes.append(Node(*launch, *conf, *options, "elastic.pt", "--steps", 1 << 30, folder=tmp_path))

    steps = Steps(tmp_path / "steps")
    try:
        for host in (1, 0):
            start(host)
        assert wait_until(lambda: all(node.workers() for node in nodes), 120)
        steps.read(lost, ranks=2)
        nodes.pop().kill()
        steps.read(10, ranks=1)
        start(0)
        assert wait_until(nodes[-1].workers, 120)
        steps.read(10, ranks=2)
    finally:
        for node in nodes:
            node.kill()
        steps.close()
    last = max(step for step, *_ in steps.made)
    # As many lanes, 32, are the default of one rank and of two: whoever is late, one begins.
    undisturbed = run(*options, "undisturbed.pt", "--steps", last, folder=tmp_path, ranks=2)
    expected = {int(step): (ids, float(loss)) for step, _, ids, loss in STEP.findall(undisturbed)}
    assert [*expected] == sorted({step for step, *_ in steps.made}) == [*range(1, last + 1)]
    for step, _, ids, loss in steps.made:
        assert ids == expected[step][0], lost
        assert loss == pytest.approx(expected[step][1], abs=1e-3), lost


class Lost(Exception):
    """The end of a replica in the middle of a step."""


class StandIn:
    """Does for a replica what torchft's Manager does, by a plan of the attempts at steps.

    Args:
        plan: for each attempt the replicas that begin it, and whether they end it; if not, one is missing in the next.
        first: this replica's first attempt. After attempt 0 it gets weights and position from another.
        parts: what it gets, by name.
    """

    def __init__(
        self, store: Store, plan: Sequence[tuple[str, bool]], replica: str, first: int, parts: dict[str, Any]
    ) -> None:
        self.store, self.plan, self.replica, self.attempt, self.parts = store, plan, replica, first, parts
        self.first = first

    def current_step(self) -> int:
        return sum(made for _, made in self.plan[: self.attempt])

    def start_quorum(self) -> None:
        (replicas, _), key = self.plan[self.attempt], f"attempt {self.attempt}"
        before = self.plan[max(0, self.attempt - 1)][0]
        if self.replica == min({*replicas} & {*before}):
            states, content = {name: part.state_dict() for name, part in self.parts.items()}, io.BytesIO()
            torch.save({**states, "batches": json.dumps(states["batches"])}, content)
            self.store.set(key, content.getvalue())  # type: ignore[arg-type]  # takes bytes too
        if self.first == self.attempt > 0:
            states = torch.load(io.BytesIO(self.store.get(key)))
            for name, part in self.parts.items():
                part.load_state_dict(json.loads(states[name]) if name == "batches" else states[name])
        prefixed = PrefixStore(key, self.store)
        limit = timedelta(seconds=60)
        self.group: Any = ProcessGroupGloo(prefixed, self.participating_rank(), len(replicas), limit)

    def participating_rank(self) -> int:
        return self.plan[self.attempt][0].index(self.replica)

    def num_participants(self) -> int:
        return len(self.plan[self.attempt][0])

    def allreduce(self, tensor: torch.Tensor) -> Any:
        if not self.plan[self.attempt][1]:
            return SimpleNamespace(wait=tensor.zero_)
        work = self.group.allreduce([tensor])
        return SimpleNamespace(wait=lambda: (work.wait(), tensor.div_(self.num_participants())))

    def should_commit(self) -> bool:
        made = self.plan[self.attempt][1]
        self.attempt += 1
        if not made and self.replica not in self.plan[self.attempt][0]:
            raise Lost
        return made


@pytest.mark.slow
def test_replicas_that_come_and_go_make_the_batches_and_weights_of_one(
    make_dataset: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop of train_torchft.py, in threads on gloo: of four replicas one is lost during a step, and comes back."""
    monkeypatch.syspath_prepend(EXAMPLES)
    program = importlib.import_module("train_torchft")
    dataset, crop = picstore.Dataset(make_dataset(50)), [picstore.RandomResizedCrop(16), picstore.Normalize(0.5, 0.5)]

    def make_loader(rank: int, world_size: int) -> picstore.Loader:
        ranks: dict[str, Any] = {"rank": rank, "world_size": world_size, "global_batch_size": 11}
        return picstore.Loader(dataset, transform=crop, isolate=False, threads=1, **ranks)

    def train(store: Store, plan: Sequence[tuple[str, bool]], replica: str, first: int) -> tuple[Any, Any]:
        """Train a replica until it is lost or the plan ends; its weights, and the ids of each attempt's batch."""
        taken: dict[int, list[int]] = {}
        linear = torch.nn.Linear(3 * 16 * 16, 5)
        model = torch.nn.Sequential(torch.nn.Flatten(), linear)
        torch.nn.init.constant_(linear.weight, first)

        class Batches(program.ReplicaBatches):  # type: ignore[name-defined, misc]
            def take(self, rank: int, world_size: int) -> picstore.Batch:
                batch: picstore.Batch = super().take(rank, world_size)
                taken[manager.attempt] = batch.ids.tolist()
                return batch

        torch.nn.init.zeros_(linear.bias)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        batches = Batches(make_loader)
        parts = {"model": model, "optimizer": optimizer, "batches": batches}
        manager = StandIn(store, plan, replica, first, parts)
        with contextlib.suppress(Lost):
            program.train(manager, batches, model, optimizer, sum(made for _, made in plan))
        batches.loader.close()
        return linear.weight.detach(), taken

    plan = [("abcd", True)] * 2 + [("abcd", False)] + [("acd", True)] * 2 + [("acd", False), ("acd", True)]
    plan += [("abcd", True)] * 2

    weights, whole = train(HashStore(), [("a", True)] * 7, "a", 0)
    with ThreadPoolExecutor() as pool:
        lives = [("a", 0), ("b", 0), ("c", 0), ("d", 0), ("b", 7)]
        store = HashStore()
        ends = list(pool.map(lambda life: train(store, plan, *life), lives))
    for attempt, (replicas, _) in enumerate(plan):
        step = sum(made for _, made in plan[:attempt])
        shares = [taken[attempt] for _, taken in ends if attempt in taken]
        assert len(shares) == len(replicas) and sorted(chain.from_iterable(shares)) == sorted(whole[step])
    for found, taken in ends:
        assert len(plan) - 1 not in taken or torch.allclose(found, weights, atol=1e-6)


@pytest.mark.slow
def test_lightning_trains_and_resumes_from_its_checkpoint_on_two_processes(make_dataset: Make, tmp_path: Path) -> None:
    require(importlib.util.find_spec("lightning"), "lightning")
    options = [make_dataset(70), "--validation", make_dataset(21, name="validation"), "--cpu", "--devices", 1]
    options += ["--model", "tiny", "--size", 32, "--batch-size", 8, "--every", 3]
    program = EXAMPLES / "train_lightning.py"
    start = partial(run, program, *options, folder=tmp_path, modules=["lightning"])
    start("--epochs", 1)
    checkpoint = tmp_path / "checkpoints" / "last.ckpt"
    state = torch.load(checkpoint, weights_only=False)
    assert state["global_step"] == 6  # of 8
    both = ["--devices", 2, "--batch-size", 4]  # processes that Lightning starts
    start(*both, "--epochs", 2, "--resume", checkpoint)
    last = max((tmp_path / "checkpoints").glob("*.ckpt"), key=lambda path: path.stat().st_mtime)
    assert torch.load(last, weights_only=False)["global_step"] == 15  # of 16


@pytest.mark.slow
def test_jax_trains(make_dataset: Make, tmp_path: Path) -> None:
    require(importlib.util.find_spec("jax"), "jax")
    path = make_dataset(60)
    output = run(EXAMPLES / "train_jax.py", path, "--batch-size", 20, "--epochs", 6, folder=tmp_path)
    found = [float(line.split()[-1]) for line in output.splitlines()]
    assert len(found) == 6 and found[-1] < found[0]


@pytest.mark.slow
def test_jax_takes_a_batch_by_dlpack_with_the_same_values(make_dataset: Make, tmp_path: Path) -> None:
    """In a process of its own: once jax is imported, a fork is a warning."""
    require(importlib.util.find_spec("jax"), "jax")
    script = """
import sys
import jax.numpy as jnp
import numpy as np
import picstore
transform = [picstore.RandomResizedCrop(32), picstore.Normalize((0.5,) * 3, (0.2,) * 3)]
for options in ({"transform": transform}, {"transform": transform[:1]}):
    loader = picstore.Loader(sys.argv[1], batch_size=8, **options)
    taken = [(jnp.from_dlpack(batch.images), batch.images.numpy().copy()) for batch in loader]
    assert len(taken) == 7
    for array, values in taken:
        assert array.dtype == values.dtype and array.shape == (8, 3, 32, 32)
        assert np.array_equal(np.asarray(array), values)
"""
    run("-c", script, make_dataset(60), folder=tmp_path)


@pytest.mark.slow
def test_super_resolution_trains_on_pairs_of_crops_and_gets_better(tmp_path: Path) -> None:
    (tmp_path / "photographs").mkdir()
    for k in range(6):
        quadrants(400, 301 + k).save(tmp_path / "photographs" / f"{k}.jpg", quality=95)
    program = EXAMPLES / "train_super_resolution.py"
    run(program, "prepare", "photographs", "pairs", folder=tmp_path)
    options = ["--steps", 30, "--batch-size", 3, "--size", 64]
    found = [float(line.split()[-1]) for line in losses(run(program, "train", "pairs", *options, folder=tmp_path))]
    assert len(found) == 30 and sum(found[-5:]) < 0.7 * sum(found[:5])


COLORS = {"red": (200, 50, 60), "green": (40, 200, 90), "blue": (60, 70, 210), "yellow": (230, 230, 60)}


@pytest.fixture
def colored(tmp_path: Path) -> Callable[[str, int], Path]:
    """Makes a data set of pictures in four tints, their labels, with a column of captions that name the tint."""

    def make(name: str, count: int) -> Path:
        captions = [f"{list(COLORS)[k % 4]} picture {k}" for k in range(count)]
        with picstore.Writer(tmp_path / name, classes=list(COLORS)) as writer:
            for k in range(count):
                tint = np.array(list(COLORS.values())[k % 4])
                writer.add((tint + 0.15 * picture(k)).clip(0, 255).astype(np.uint8), label=k % 4)
        dataset = picstore.Dataset(tmp_path / name)
        dataset.with_columns({"caption": [captions[number] for number in dataset.ids]}).save()
        return tmp_path / name

    return make


@pytest.mark.slow
def test_timms_models_train_by_its_recipe_with_mixup_and_ema(
    colored: Callable[[str, int], Path], tmp_path: Path
) -> None:
    require(importlib.util.find_spec("timm"), "timm")
    options = [colored("train", 64), "--validation", colored("val", 21), "--model", "test_resnet"]
    options += ["--batch-size", 8, "--epochs", 4, "--ema-decay", 0.9]
    output = run(EXAMPLES / "train_timm.py", *options, folder=tmp_path, modules=["timm"])
    assert len(losses(output)) == 32
    *_, (accuracy, smoothed) = re.findall(r"accuracy (\S+) ema (\S+)", output)
    assert float(accuracy) > 70 and float(smoothed) > 50


@pytest.mark.slow
def test_sequences_of_drawn_lengths_train_timm_s_naflexvit(colored: Callable[[str, int], Path], tmp_path: Path) -> None:
    require(importlib.util.find_spec("timm"), "timm")
    options = [colored("train", 64), "--lengths", 4, 9, "--tokens", 72, "--width", 32, "--depth", 1]
    output = run(
        EXAMPLES / "train_naflex.py", *options, "--epochs", 4, "--lr", 0.005, folder=tmp_path, modules=["timm"]
    )
    found = re.findall(r"images (\d+) length (\d+) loss (\S+)", output)
    assert {(images, length) for images, length, _ in found} == {("18", "4"), ("8", "9")}
    assert float(found[-1][2]) < float(found[0][2])


@pytest.mark.slow
def test_accelerate_has_equal_losses_on_1_and_2_processes_and_dispatching(
    colored: Callable[[str, int], Path], tmp_path: Path
) -> None:
    require(importlib.util.find_spec("accelerate"), "accelerate")
    options = [colored("train", 70), "--cpu", "--model", "tiny", "--lr", 0.05]
    options += ["--epochs", 1, "--global-batch", 16, "--size", 32]
    program = EXAMPLES / "train_accelerate.py"
    start = partial(run, program, *options, folder=tmp_path, modules=["accelerate"])
    outputs = [start(), start(ranks=2), start("--dispatch", ranks=2)]
    one, two, dispatched = ([float(line.split()[-1]) for line in losses(output)] for output in outputs)
    assert len(one) == len(set(one)) == 4
    for others in (two, dispatched):
        assert max(abs(a - b) for a, b in zip(one, others, strict=True)) < 1e-4


@pytest.mark.slow
def test_the_trainer_of_transformers_resumes_to_the_same_result(
    colored: Callable[[str, int], Path], tmp_path: Path
) -> None:
    require(importlib.util.find_spec("transformers"), "transformers")
    options = [colored("train", 64), colored("val", 21), "--tiny", "--size", 32, "--batch-size", 8, "--epochs", 3]
    checkpoint = tmp_path / "one" / "checkpoint-16"
    start = partial(run, EXAMPLES / "train_trainer.py", *options, folder=tmp_path, modules=["transformers.trainer"])
    whole, resumed = start("--output", "one"), start("--output", "two", "--resume", checkpoint)
    found = [re.findall(r"'eval_(loss|accuracy)': ([\d.]+)", output)[-2:] for output in (whole, resumed)]
    assert found[0] == found[1]
    assert float(dict(found[0])["accuracy"]) > 0.6


@pytest.mark.slow
def test_image_and_text_towers_find_each_other(colored: Callable[[str, int], Path], tmp_path: Path) -> None:
    options = [colored("train", 64), "--batch-size", 8, "--size", 32, "--epochs", 20, "--lr", 3e-3]
    found = [float(line.split()[-1]) for line in losses(run(EXAMPLES / "train_clip.py", *options, folder=tmp_path))]
    assert len(found) == 160
    # Four tints, so two images of a batch of eight share theirs: log 2 if the towers know them, log 8 at first.
    assert sum(found[-8:]) / 8 < 1.3 < 1.9 < sum(found[:4]) / 4


@pytest.mark.slow
def test_segmentation_trains_on_masks_that_move_with_their_images(tmp_path: Path) -> None:
    with picstore.Writer(tmp_path / "shapes", attachments=["mask"]) as writer:
        for k in range(24):
            image, mask = Image.new("RGB", (80, 60), COLORS["green"]), Image.new("L", (80, 60), 0)
            for value, color in ((1, "red"), (2, "blue")):
                left, top = np.random.default_rng(10 * k + value).integers(0, 20, 2).tolist()
                box = [left + 40 * (value - 1), top, left + 40 * value - 20, top + 30]
                ImageDraw.Draw(image).rectangle(box, fill=COLORS[color])
                ImageDraw.Draw(mask).rectangle(box, fill=value)
            encoded = io.BytesIO()
            mask.save(encoded, "PNG")
            writer.add(image, attachments={"mask": encoded.getvalue()})
    options = ["shapes", "--classes", 3, "--model", "tiny", "--size", 48, "--batch-size", 6, "--epochs", 4]
    output = run(EXAMPLES / "train_segmentation.py", *options, "--lr", 1e-2, folder=tmp_path)
    found = [float(value) for value in re.findall(r"mean IoU (\S+)", output)]
    assert len(found) == 4 and found[-1] > 0.85


@pytest.mark.slow
def test_evaluation_takes_every_image_once_whatever_the_batch_size(
    colored: Callable[[str, int], Path], tmp_path: Path
) -> None:
    shape = ["--model", "tiny", "--size", 32]
    training = [colored("train", 64), *shape, "--batch-size", 8, "--epochs", 6, "--lr", 0.05]
    run(EXAMPLES / "train_resnet.py", *training, "--checkpoint", "run.pt", "--every", 8, folder=tmp_path)
    options = [colored("val", 21), *shape, "--weights", "run.pt", "--resize", 36]
    outputs = [run(EXAMPLES / "evaluate.py", *options, "--batch-size", size, folder=tmp_path) for size in (4, 21)]
    assert outputs[0] == outputs[1] and outputs[0].startswith("21 images, top-1 ")
    assert float(re.findall(r"top-1 ([\d.]+) %", outputs[0])[0]) > 70


@pytest.mark.slow
def test_self_distillation_takes_views_of_each_image(make_dataset: Make, tmp_path: Path) -> None:
    sizes = ["--size", 32, "--small-size", 16, "--local-views", 4, "--prototypes", 16]
    options = [make_dataset(70), "--model", "tiny", *sizes, "--batch-size", 16, "--steps", 20, "--lr", 1e-3]
    found = [float(line.split()[-1]) for line in losses(run(EXAMPLES / "train_dino.py", *options, folder=tmp_path))]
    assert len(found) == 20 and max(found) < 6 and np.std(found) > 0


@pytest.mark.slow
def test_detection_learns_where_a_square_is(tmp_path: Path) -> None:
    with picstore.Writer(tmp_path / "squares", classes=["red", "blue"]) as writer:
        for k in range(32):
            rng = np.random.default_rng(k)
            image, label = Image.new("RGB", (96, 72), COLORS["green"]), k % 2
            (left, top), side = rng.integers(0, 30, 2).tolist(), int(rng.integers(20, 40))
            box = [left, top, left + side, top + side]
            ImageDraw.Draw(image).rectangle(box, fill=COLORS["blue" if label else "red"])
            writer.add(image, label=label, extra={"boxes": [box], "box_labels": [label]})
    options = ["squares", "--sizes", 48, 64, "--max-size", 120, "--queries", 4, "--batch-size", 8, "--steps", 60]
    output = run(EXAMPLES / "train_detection.py", *options, "--lr", 2e-3, folder=tmp_path)
    found = [float(line.split()[-1]) for line in losses(output)]
    assert len(found) == 60 and np.mean(found[-10:]) < 0.75 * np.mean(found[:3])
