"""Chains of verbs on one data set, with failing and full disks and kills in each step."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import picstore
from benchmarks.harness import Row, Table, say
from benchmarks.options import Options
from benchmarks.torture.faults import fill_disks
from benchmarks.torture.strike import Strikes, calm, join_rows, judge, run_in_child, strike
from benchmarks.torture.syscalls import MEETS, Trigger
from benchmarks.torture.verbs import VERBS, Stage, Verb
from picstore.prepare.convert.append_images import append
from picstore.prepare.sources.open import open_source
from picstore.prepare.upkeep.shuffled_copy import shuffle

# Each begins with a data set of the stage, or with nothing; each step works on what the steps before it have made.
CHAINS = {
    "failed": ("retry", "append", "delete", "columns", "repair", "append again", "shuffle", "delete"),
    "": ("merge", "append", "delete", "repair", "shuffle uniform", "columns", "append again", "delete"),
}
STRIKES = 60  # a step
_SHARES = (0.0, 0.3, 0.6, 0.9, 1.5)  # of the room for what a step adds
_FILE_LIMITS = (1, 4096, 12_288)  # bytes


class ChainStage(Stage):
    """A stage whose verbs begin with the result of the step before."""

    def fill(self, verb: Verb) -> None:
        if verb.edits:
            shutil.copytree(self.given / "chain", self.dataset)
        if verb.name == "repair":
            self._damage()

    def go_on(self) -> None:
        """Take what is there for the next step."""
        shutil.rmtree(self.given / "chain", ignore_errors=True)
        shutil.copytree(self.dataset, self.given / "chain")


def chains(options: Options) -> Table:
    """Strike at each step of chains of verbs; what goes on must have the bytes of an undisturbed chain."""
    strikes = options.rounds or (4 if options.quick else STRIKES)
    about = (
        f"{strikes} strikes at random write events of each step of two chains, in which each verb works on what the "
        "one before has left: full disks, EIO, EMFILE, short writes, torn renames, SIGKILL; then limits on the size of "
        "files, and, where mounting is possible, a tmpfs that fills. After each the step is run again and must end in "
        "the bytes of an undisturbed chain and without any other file."
    )
    stage, rows = ChainStage(options.work / "chains"), []
    for number, (begin, names) in enumerate(CHAINS.items(), 1):
        shutil.rmtree(stage.given / "chain", ignore_errors=True)
        if begin:
            shutil.copytree(stage.given / begin, stage.given / "chain")
        for place, name in enumerate(names[:3] if options.quick else names, 1):
            rows.append(_strike_step(f"{number}.{place} {name}", _step(name, stage), stage, strikes, options.quick))
    return Table(about, join_rows(rows, "strikes"))


def _strike_step(label: str, verb: Verb, stage: ChainStage, strikes: int, quick: bool) -> Row:
    quiet = calm(verb, stage)
    into, rng = Strikes(label, len(quiet.events)), random.Random(label)
    every = [
        (at, action)
        for at, kind in enumerate(quiet.events)
        for action in ("kill", *MEETS)
        if kind in MEETS.get(action, (kind,)) and (action != "kill" or kind != "read")
    ]
    for at, action in rng.sample(every, min(strikes, len(every))):
        strike(verb, stage, quiet, Trigger(at, action, rng.random(), lasting=action == "ENOSPC"), into)
    for limit in _FILE_LIMITS[:: 3 if quick else 1]:
        stage.begin(verb)
        done = run_in_child(verb, stage, Trigger(), file_limit=limit)
        judge(verb, stage, quiet, done, into, f"files of {limit} bytes")
    fill_disks(verb, stage, quiet, _SHARES[:: 3 if quick else 1], into)
    shutil.rmtree(stage.work, ignore_errors=True)
    stage.begin(verb)
    run_in_child(verb, stage, Trigger())
    stage.go_on()
    say(f"{label}: {dict(into.states)} {into.wrong[:3]}")
    return into.row("strikes")


def _step(name: str, stage: ChainStage) -> Verb:
    """A verb of the table that edits the chain's data set, or makes one of it."""
    run: dict[str, Callable[..., Any]] = {
        "append again": lambda stage, engine, again: append(
            open_source(stage.given / "photos"), stage.dataset, stage.options(engine), resume=again
        ),
        "columns": lambda stage, *_: _score(picstore.Dataset(stage.dataset)),
        "shuffle": _shuffle("transpose"),
        "shuffle uniform": _shuffle("uniform"),
    }
    if name == "delete":
        ids = sorted(record.id for record in picstore.Dataset(stage.given / "chain"))[1:9:3]
        run[name] = lambda stage, *_: picstore.Dataset(stage.dataset).without(ids).save()
    verb = replace(VERBS[name.removesuffix(" again")], edits="" if name.startswith(("merge", "shuffle")) else "chain")
    return replace(verb, run=run.get(name, verb.run))


def _score(dataset: picstore.Dataset) -> picstore.Dataset:
    return dataset.with_columns({"score": np.arange(len(dataset), dtype=np.float32)}).save()


def _shuffle(method: str) -> Callable[..., Any]:
    return lambda stage, engine, _: shuffle(
        Path(stage.given / "chain"), stage.dataset, seed=1, method=method, workers=engine
    )
