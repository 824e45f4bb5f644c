"""Tables of verbs that are killed or lose power at random moments: what is left, and that it can go on."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import Row, Table, say
from benchmarks.options import Options
from benchmarks.torture.objects import object_stage
from benchmarks.torture.strike import Strikes, calm, join_rows, strike
from benchmarks.torture.syscalls import Trigger
from benchmarks.torture.verbs import COUNT, VERBS, Stage, Verb

STRIKES = 200
OBJECT_VERBS = ("convert", "append", "delete", "columns", "merge", "shuffle", "retry")
QUICK = ("delete", "append")  # verbs of the short form


def kills(options: Options) -> Table:
    """Kill every verb's process group with SIGKILL at random write events, before one or in the middle of a write."""
    about = (
        f"SIGKILL to the process group of each verb on {COUNT} photographs, before a random write event (open, write, "
        "fsync, rename, link, unlink, mkdir) or in the middle of a write. Then the verb is run again, as its message "
        "says, and must end in the bytes of an uninterrupted run and without any other file."
    )
    return _table(options, "kill", "kills", about)


def power(options: Options) -> Table:
    """Cut the power at random write events and after the end, on a file system that promises no more than POSIX."""
    about = (
        "simulated power cuts before a random write event and after the end: of every file only the bytes before its "
        "last fsync stay and a random share of the rest, of every folder only the changes before its last fsync "
        "and a random number of the next. What reported success must be complete."
    )
    return _table(options, "power", "power cuts", about)


def objects(options: Options) -> Table:
    """Kill the verbs that edit in place, and convert, before random requests to an object store."""
    names = ("delete",) if options.quick else OBJECT_VERBS
    about = "SIGKILL before a random writing request (put, copy, delete) to a server of S3's protocol on this machine"
    strikes = options.rounds or (3 if options.quick else 60)
    with object_stage(options.work / "objects") as stage:
        rows = [_strike_often(VERBS[name], stage, "kill", strikes, "kills") for name in names]
    return Table(about, join_rows(rows, "kills"))


def _table(options: Options, action: str, word: str, about: str) -> Table:
    verbs = [VERBS[name] for name in QUICK] if options.quick else list(VERBS.values())
    stage = Stage(Path(options.work) / action)
    rows = []
    for verb in verbs:
        strikes = options.rounds or (8 if options.quick else STRIKES)
        rows.append(_strike_often(verb, stage, action, strikes, word))
        if action == "kill" and verb.workers and not options.quick:
            rows.append(_strike_often(verb, stage, action, strikes, word, workers=2))
    return Table(about, join_rows(rows, word))


def _strike_often(verb: Verb, stage: Stage, action: str, strikes: int, word: str, workers: int = 0) -> Row:
    name = f"{verb.name}, {workers} processes" if workers else verb.name
    quiet = calm(verb, stage)
    into = Strikes(name, len(quiet.events))
    for trigger in _triggers(action, len(quiet.events), strikes, random.Random(name)):
        strike(verb, stage, quiet, trigger, into, workers=workers)
    say(f"{name}: {dict(into.states)} {into.wrong[:3]}")
    return into.row(word)


def _triggers(action: str, events: int, strikes: int, rng: random.Random) -> Iterator[Trigger]:
    """Every event once in random order, and again; of writes and unsynced changes none, all, or a random share."""
    moments: list[int] = []
    for _ in range(strikes):
        moments = moments or rng.sample(range(events + 1), events + 1)
        yield Trigger(moments.pop(), action, rng.choice((0.0, rng.random(), 1.0)))
