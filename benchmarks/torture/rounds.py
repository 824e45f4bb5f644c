"""Rounds of two or three commands at once in one place: what reported success is there, the rest was refused."""

from __future__ import annotations

import contextlib
import multiprocessing
import random
import shutil
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import picstore
from benchmarks.child import MissingError
from benchmarks.harness import Row, Table, say
from benchmarks.options import Options
from benchmarks.torture.objects import object_stage
from benchmarks.torture.verbs import COUNT, INLINE, SHAPE, Stage, jpeg
from picstore.errors import NotADataset, PicstoreError
from picstore.prepare.convert.append_images import append
from picstore.prepare.convert.conversion_job import convert
from picstore.prepare.sources.open import open_source
from picstore.prepare.upkeep.repair_dataset import repair
from picstore.prepare.upkeep.shuffled_copy import shuffle
from picstore.prepare.upkeep.verify_dataset import verify
from picstore.storage.location.resolve import locate

ROUNDS = {"edits": 600, "beginnings": 300, "edits in a store": 60, "beginnings in a store": 40}
_MOST_DELAY = 0.03  # seconds between the beginnings of the commands of a round; each takes 10 to 100 ms
_EDITS = ("delete", "delete", "columns", "append photos", "append more", "repair")
_BEGINNINGS = ("convert photos", "convert more", "shuffle", "Writer", "resume photos")


@dataclass
class Rounds:
    """Counts of a table's row."""

    name: str
    rounds: int = 0
    commands: Counter[str] = field(default_factory=Counter)  # by outcome
    wrong: list[str] = field(default_factory=list)

    def row(self) -> Row:
        """The counts as a row of a table."""
        row: Row = {"commands of a round": self.name, "rounds": self.rounds, "succeeded": self.commands["success"]}
        row |= {"refused": self.commands["refused"], "wrong": len(self.wrong)}
        return row | ({"problem": f"failed: {self.wrong[0][:300]}"} if self.wrong else {})


def rounds(options: Options) -> Table:
    """Run pairs and triples of random commands in one place, each in a process of its own."""
    about = (
        "two or three random commands begun within 30 ms of each other, each in a process of its own: edits of one "
        "data set (delete, columns, append, repair), and beginnings of one (convert of two sources, with --resume too, "
        "shuffle, Writer). Every success must still be there afterwards, verify must find nothing, and an append that "
        "was refused at its end must go on with --resume."
    )
    rows = []
    with contextlib.ExitStack() as servers:
        stages: dict[bool, Stage] = {}
        for name, number in ROUNDS.items():
            count = options.rounds or (8 if options.quick else number)
            in_store = name.endswith("store")
            try:
                stage = stages.get(in_store) or _stage(in_store, Path(options.work) / "rounds", servers)
            except MissingError as error:
                rows.append({"commands of a round": name, "problem": f"needs {error}"})
                continue
            stages[in_store] = stage
            into = Rounds(name)
            rng = random.Random(name)
            for number in range(count):
                play = _edit_round if name.startswith("edits") else _begin_round
                into.wrong += [f"round {number}: {problem}" for problem in play(stage, rng, into)]
            say(f"{name}: {into.rounds} rounds, {dict(into.commands)} {into.wrong[:3]}")
            rows.append(into.row())
    return Table(about, rows)


def _stage(in_store: bool, folder: Path, servers: contextlib.ExitStack) -> Stage:
    stage = servers.enter_context(object_stage(folder / "store")) if in_store else Stage(folder / "folder")
    convert(open_source(stage.given / "more"), stage.given / "more-set", stage.options())
    return stage


def _edit_round(stage: Stage, rng: random.Random, into: Rounds) -> list[str]:
    """Edit one data set; deletions name different ids, so that each can be looked for."""
    shutil.rmtree(stage.work, ignore_errors=True)
    locate(stage.dataset).remove()
    for name, _ in locate(stage.given / "plain").files():
        (locate(stage.dataset) / name).write((stage.given / "plain" / name).read_bytes())
    chosen = rng.sample(_EDITS, rng.choice((2, 2, 3)))
    ids = rng.sample(range(COUNT), len(chosen))
    commands = [lambda name=name, id_=id_: _edit(stage, name, id_) for name, id_ in zip(chosen, ids, strict=True)]
    outcomes = _run_together(commands, rng, into)
    problems = [text for kind, text in outcomes if kind == "crash"]
    if any(name.startswith("append") for name in chosen):
        _finish_appends(stage, chosen, outcomes, problems)
    succeeded = [(name, id_) for name, id_, (kind, _) in zip(chosen, ids, outcomes, strict=True) if kind == "success"]
    return problems + _check_edits(stage, succeeded, outcomes)


def _edit(stage: Stage, name: str, id_: int) -> None:
    if name == "delete":
        picstore.Dataset(stage.dataset).without([id_]).save()
    elif name == "columns":
        picstore.Dataset(stage.dataset).with_columns({f"c{id_}": [id_]}, ids=[id_]).save()
    elif name == "repair":
        repair(stage.dataset)
    else:
        append(open_source(stage.given / name.removeprefix("append ")), stage.dataset, stage.options())


def _finish_appends(stage: Stage, chosen: list[str], outcomes: list[tuple[str, str]], problems: list[str]) -> None:
    """Go on with the append that was begun and refused, if one was; a later append must find no job."""
    for number, name in enumerate(chosen):
        if name.startswith("append") and outcomes[number][0] == "refused":
            with contextlib.suppress(PicstoreError):  # the job is another one's, or none was begun
                source = open_source(stage.given / name.removeprefix("append "))
                append(source, stage.dataset, stage.options(), resume=True)
                outcomes[number] = ("success", "")
    if next(locate(stage.dataset / "unfinished").files(), None) is not None:
        problems.append(f"an unfinished job stays after {chosen}: {outcomes}")


def _check_edits(stage: Stage, succeeded: list[tuple[str, int]], outcomes: Any) -> list[str]:
    """Look for everything that reported success."""
    problems = [str(finding) for finding in verify(stage.dataset, workers=INLINE).findings]
    dataset = picstore.Dataset(stage.dataset)
    records = {record.id: record for record in dataset}
    expected: Counter[bytes] = Counter()
    if len(records) != len(dataset):
        problems.append("an id twice")
    for name, id_ in succeeded:
        if name == "delete" and id_ in records:
            problems.append(f"{id_} came back")
        elif name == "columns" and f"c{id_}" not in dataset.columns:
            problems.append(f"column c{id_} is gone")
        elif name.startswith("append"):
            added = picstore.Dataset(stage.given / ("plain" if name == "append photos" else "more-set"))
            expected.update(bytes(record.jpeg) for record in added)
    deleted = {id_ for name, id_ in succeeded if name == "delete"}
    expected.update(bytes(r.jpeg) for r in picstore.Dataset(stage.given / "plain") if r.id not in deleted)
    stored = Counter(bytes(record.jpeg) for record in records.values())
    if stored != expected:
        lost, added = (expected - stored).total(), (stored - expected).total()
        problems.append(f"{lost} records lost and {added} too many after {succeeded}; {outcomes}")
    return problems


def _begin_round(stage: Stage, rng: random.Random, into: Rounds) -> list[str]:
    """Make data sets in one place; at most one kind of success is possible, and it is what lies there."""
    shutil.rmtree(stage.work, ignore_errors=True)
    locate(stage.dataset).remove()
    chosen = rng.sample(_BEGINNINGS, rng.choice((2, 2, 3)))
    outcomes = _run_together([lambda name=name: _begin(stage, name) for name in chosen], rng, into)
    problems = [text for kind, text in outcomes if kind == "crash"]
    uuids = {text for kind, text in outcomes if kind == "success"}
    if len(uuids) > 1:
        problems.append(f"{chosen}: successes with different results")
    try:
        left = picstore.Dataset(stage.dataset).uuid
    except NotADataset:
        left = ""
    if uuids and left not in uuids:
        problems.append(f"{chosen}: what succeeded is not what is there")
    if left and (findings := verify(stage.dataset, workers=INLINE).findings):
        problems.append(f"{chosen}: {findings[0]}")
    if left and not uuids:
        problems.append(f"{chosen}: all were refused and a data set is there")
    return problems


def _begin(stage: Stage, name: str) -> str:
    if name == "shuffle":
        return shuffle(stage.given / "plain", stage.dataset, seed=1, method="transpose", workers=INLINE).uuid
    if name == "Writer":
        with picstore.Writer(stage.dataset, shape=SHAPE) as writer:
            for k in range(COUNT):
                writer.add(jpeg(k))
        return picstore.Dataset(stage.dataset).uuid
    verb, _, source = name.partition(" ")
    result = convert(open_source(stage.given / source), stage.dataset, stage.options(), resume=verb == "resume")
    return "" if result.manifest is None else result.manifest.uuid


def _run_together(commands: list[Callable[[], object]], rng: random.Random, into: Rounds) -> list[tuple[str, str]]:
    """Run commands in a process each; returns for each "success", "refused" or "crash", and its result or error."""
    fork = multiprocessing.get_context("fork")
    running = []
    for command in commands:
        reader, writer = fork.Pipe(duplex=False)
        process = fork.Process(target=_run, args=(command, rng.random() * _MOST_DELAY, writer))
        process.start()
        writer.close()
        running.append((process, reader))
    outcomes = []
    for process, reader in running:
        try:
            outcomes.append(reader.recv())
        except EOFError:
            outcomes.append(("crash", "the process ended"))
        process.join()
    into.rounds += 1
    into.commands.update(kind for kind, _ in outcomes)
    return outcomes


def _run(command: Callable[[], Any], delay: float, writer: Connection) -> None:
    time.sleep(delay)
    try:
        writer.send(("success", str(command())))
    except PicstoreError as error:
        writer.send(("refused", str(error)))
    except BaseException:
        writer.send(("crash", traceback.format_exc()))
