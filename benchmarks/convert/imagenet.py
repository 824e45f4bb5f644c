"""A rehearsal of ImageNet: from a thousand tars to training, each stage as a user runs it, with all that it uses.

Each stage is a command or a program in a process of its own, and its result is compared with what must come out. A
stage that fails ends the rehearsal, and its row says why.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.child import FailedError
from benchmarks.convert.imagenet_programs import PAGE
from benchmarks.convert.imagenet_tars import class_starts, read_pool, write_pool
from benchmarks.harness import Row, Table, say
from benchmarks.options import Options
from benchmarks.photographs import pillow, size_of
from benchmarks.usage import Usage, measure_command

IMAGES, CLASSES, QUICK = 1_281_000, 1000, 800
STEPS, BATCH, QUICK_BATCH = 2000, 256, 16
AHEAD = 20
_IN_TAR = 512 + 256  # bytes that a tar adds to an image on average
_LIMIT = 4 * 3600.0  # seconds of a stage


@dataclass
class _Rehearsal:
    """Stages that ran in a folder, a row each."""

    work: Path
    rows: list[Row] = field(default_factory=list)

    def command(self, verb: str, *arguments: object, images: int = 0) -> dict[str, Any]:
        """Run ``picstore VERB --json``; returns the object that it prints."""
        command = [sys.executable, "-m", "picstore", verb, *map(str, arguments), "--json"]
        used = self._run(f"`{verb}`" if "--decode" not in arguments else f"`{verb} --decode`", command, images)
        answer: dict[str, Any] = json.loads(used.output)
        stages = {name: seconds for name, seconds in answer.get("stages", {}).items() if seconds >= 0.05}
        self.note(**stages)
        return answer

    def program(self, name: str, target: str, *arguments: Any, images: int = 0, status: int = 0) -> Any:
        """Run a function of this package; returns its answer, None if it ends with the status of a signal."""
        called = (f"benchmarks.convert.{target}", json.dumps(arguments, default=str))
        used = self._run(name, [sys.executable, "-m", "benchmarks.child", *called], images, status)
        answer = {"answer": None} if status else json.loads(used.output)
        self.expect(answer.keys(), {"answer"}, f"answer {answer}")
        return answer["answer"]

    def note(self, **seconds: float) -> None:
        """Add seconds of parts to the last row."""
        self.rows[-1]["parts"] = ", ".join(f"{name} {each:.1f} s" for name, each in seconds.items())

    def expect(self, actual: object, wanted: object, what: str) -> None:
        """Fail the last stage unless two values are equal."""
        if actual != wanted:
            raise FailedError(f"{what}: {actual!r:.300}, not {wanted!r:.300}")

    def _run(self, name: str, command: list[str], images: int, status: int = 0) -> Usage:
        row: Row = {"stage": name}
        self.rows.append(row)
        used = measure_command(command, limit=_LIMIT)
        row |= {"s": used.seconds, "CPU s": used.cpu, "images/s": images / used.seconds if images else None}
        row |= {"largest process, MiB": used.largest, "all, MiB": used.together}
        moved = {"read, GB": used.read, "from the disk, GB": used.disk, "written, GB": used.written}
        row |= {title: f"{size / 1e9:.2f}" for title, size in {**moved, "stored, GB": size_of(self.work)}.items()}
        say(f"{name}: {used.seconds:.1f} s, {used.cpu:.1f} s of CPU, {used.largest:.0f} MiB")
        self.expect(used.status, status, f"status, after {used.errors[-1000:]}")
        self.expect(used.left, 0, "processes that went on after it")
        return used


@dataclass(frozen=True)
class _Plan:
    """Sizes of a rehearsal, and what must come out of it: a record's id is its image's number in the tars."""

    count: int
    classes: int
    batch: int
    steps: int
    workers: int

    @property
    def ahead(self) -> int:
        """Steps of each run that goes on with another's; half of them, and as many more, end before ``steps`` do."""
        return min(AHEAD, self.steps // 3)

    @property
    def deleted(self) -> list[int]:
        """Ids of the images that are deleted, one in a thousand or more."""
        return list(range(7, self.count, min(1000, self.count // 10)))

    @property
    def relabeled(self) -> list[int]:
        """Ids of the images that get label 0."""
        return [id_ + 1 for id_ in self.deleted if id_ + 1 < self.count]

    def labels(self) -> np.ndarray:
        """Labels by id, after the edits."""
        starts = class_starts(self.count, self.classes)
        labels = np.repeat(np.arange(self.classes), np.diff(starts))
        labels[self.relabeled] = 0
        return labels

    def live(self) -> np.ndarray:
        """Ids that are not deleted."""
        return np.setdiff1d(np.arange(self.count), self.deleted)


def imagenet(options: Options) -> Table:
    """Convert tars like ImageNet's, shuffle, verify, train, resume, edit and look."""
    count = options.images or (QUICK if options.quick else IMAGES)
    batch = QUICK_BATCH if options.quick else BATCH
    steps = min(STEPS, count * 2 // 5 // batch)
    plan = _Plan(count, max(2, min(CLASSES, count // 64)), batch, steps, options.workers)
    if plan.ahead < 2:
        raise FailedError(f"{count} images are {steps} steps in two fifths of an epoch; take more --images")
    work = options.work / "imagenet"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    mean = write_pool(options.photographs, work / "pool")
    _require_space(work, count, mean)
    rehearsal = _Rehearsal(work)
    try:
        _prepare(rehearsal, plan)
        _train(rehearsal, plan)
        _edit(rehearsal, plan)
    except FailedError as error:
        say(f"{rehearsal.rows[-1]['stage']}: {error}")
        rehearsal.rows[-1]["problem"] = f"failed ({error})"
    about = (
        f"{count:,} images of {mean / 1e3:.1f} KB on average in {plan.classes:,} tars; "
        f"{options.workers} processes, {steps:,} steps of {batch}. Memory is resident; of all processes it is "
        "sampled, and shared pages count once. Bytes are counted at system calls: pipes count, mapped files do not"
    )
    return Table(about, rehearsal.rows)


def _require_space(work: Path, count: int, mean: int) -> None:
    """Refuse a folder that cannot hold tars and a data set, or two data sets, at once."""
    needed, free = 2.1 * count * (mean + _IN_TAR), shutil.disk_usage(work).free
    if free < needed:
        raise FailedError(
            f"{work} has {free / 1e9:.1f} GB free, and {needed / 1e9:.1f} GB are needed at a time: the tars and a data "
            "set, or two data sets; name another folder by --work, or by TMPDIR"
        )


def _prepare(rehearsal: _Rehearsal, plan: _Plan) -> None:
    """Tars, their conversion, and a shuffled copy; what is not needed any more is removed at once."""
    work, workers = rehearsal.work, ("--workers", plan.workers)
    tars, converted, shuffled = work / "tars", work / "converted", work / "shuffled"
    size = rehearsal.program(
        "tars", "imagenet_tars:write_tars", work / "pool", tars, plan.count, plan.classes, images=plan.count
    )
    rehearsal.expect(len(list(tars.iterdir())), plan.classes, "tars")
    done = rehearsal.command("convert", tars, converted, "--source", "imagenet", *workers, images=plan.count)
    rehearsal.expect(done["status"], {"lossless": plan.count}, "inputs by status")
    rehearsal.expect(done["outcome"]["source_bytes"], size, "bytes of the inputs")
    rehearsal.expect((done["images"], done["classes"]), (plan.count, plan.classes), "images and classes")
    shutil.rmtree(tars)
    done = rehearsal.command("shuffle", converted, shuffled, "--seed", 1, *workers, images=plan.count)
    rehearsal.expect(done["images"], plan.count, "images")
    shutil.rmtree(converted)
    _verify(rehearsal, plan, plan.count)


def _verify(rehearsal: _Rehearsal, plan: _Plan, images: int, *arguments: str) -> None:
    path = rehearsal.work / "shuffled"
    done = rehearsal.command("verify", path, *arguments, "--workers", plan.workers, images=images)
    rehearsal.expect((done["images"], done["ok"], done["damage"]), (images, True, []), "images, ok and damage")


def _train(rehearsal: _Rehearsal, plan: _Plan) -> None:
    """Train, go on from the middle until killed, and go on from there; ids are compared with the first run's."""
    path, first, second = (rehearsal.work / name for name in ("shuffled", "first.json", "second.json"))
    target, middle = "imagenet_programs:train", plan.steps // 2
    seconds = rehearsal.program("train", target, path, plan.batch, plan.steps, first, images=plan.steps * plan.batch)
    rehearsal.note(**{"first batch": seconds})
    whole = np.load(first.with_suffix(".npy"))
    rehearsal.expect((len(whole), len(np.unique(whole))), (plan.steps, plan.steps * plan.batch), "steps, different ids")
    shutil.copy(first, second)
    going_on = (target, path, plan.batch, plan.ahead, second, "resume")
    images = plan.ahead * plan.batch
    rehearsal.program("resume, and be killed", *going_on, "kill", images=images, status=-signal.SIGKILL)
    place = middle + plan.ahead // 2
    _expect_ids(rehearsal, np.load(second.with_suffix(".npy")), whole[middle:place])
    seconds = rehearsal.program("resume", *going_on, images=images)
    rehearsal.note(**{"first batch": seconds})
    _expect_ids(rehearsal, np.load(second.with_suffix(".npy")), whole[place : place + plan.ahead])


def _expect_ids(rehearsal: _Rehearsal, actual: np.ndarray, wanted: np.ndarray) -> None:
    rehearsal.expect(actual.tolist(), wanted.tolist(), "ids of the batches, beside the uninterrupted run's")


def _edit(rehearsal: _Rehearsal, plan: _Plan) -> None:
    """Delete, add columns, relabel; then everything that reads must show it."""
    path, listed = rehearsal.work / "shuffled", rehearsal.work / "deleted.txt"
    listed.write_text("".join(f"{id_}\n" for id_ in plan.deleted))
    done = rehearsal.command("delete", path, "--ids", listed)
    live, labels = plan.live(), plan.labels()
    rehearsal.expect((done["images"], done["deleted"]), (len(live), len(plan.deleted)), "images and deleted")
    left = rehearsal.program("columns", "imagenet_programs:edit", path, plan.relabeled, images=len(live))
    rehearsal.expect(left, len(live), "records")
    _verify(rehearsal, plan, len(live), "--decode")
    _table(rehearsal, live, labels)
    places = np.random.default_rng(0).choice(len(live), 200)
    wrong = rehearsal.program(
        "`ds[i]`, 200 times", "imagenet_programs:read", path, rehearsal.work / "pool", places.tolist()
    )
    rehearsal.expect(wrong, 0, "records with other pixels")
    _view(rehearsal, path, live, labels)
    seconds = rehearsal.program("first batch", "imagenet_programs:first_batch", path, plan.batch)
    rehearsal.note(**{"first batch": seconds})


def _table(rehearsal: _Rehearsal, live: np.ndarray, labels: np.ndarray) -> None:
    path, file = rehearsal.work / "shuffled", rehearsal.work / "table.npz"
    told = rehearsal.program("`ds.table`", "imagenet_programs:table", path, file, images=len(live))
    rehearsal.expect(told["records"], len(live), "records")
    table = np.load(file)
    order = np.argsort(table["id"])
    widths = np.array([pillow(jpeg).width for jpeg in read_pool(rehearsal.work / "pool")])
    wanted = {"id": live, "label": labels[live], "width": widths[live % len(widths)], "score": live / 2}
    for name, values in wanted.items():
        differ = int((table[name][order] != values).sum())
        rehearsal.expect(differ, 0, f"records with another {name}")


def _view(rehearsal: _Rehearsal, path: Path, live: np.ndarray, labels: np.ndarray) -> None:
    label = int(labels.max()) // 2
    told = rehearsal.program("`view`", "imagenet_programs:view", path, label)
    rehearsal.note(**told.pop("seconds"))
    wanted = {"images": len(live), "page": min(PAGE, len(live)), "of the class": int((labels[live] == label).sum())}
    rehearsal.expect(told, wanted, "the page")
