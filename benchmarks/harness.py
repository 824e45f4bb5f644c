"""Benchmark harness: cases measured in interleaved rounds, ratios within a round, medians, verification, tables."""

from __future__ import annotations

import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from benchmarks.child import FailedError, MissingError

Row: TypeAlias = "dict[str, Any]"  # cells by column


@dataclass(frozen=True)
class Sample:
    """One timed run of a case.

    Attributes:
        items: images or bytes processed.
        seconds: time they took.
        figures: further columns, such as peak memory; the last round's are shown.
        check: numbers that must agree between the cases, such as the mean color.
    """

    items: float
    seconds: float
    figures: Row = field(default_factory=dict)
    check: Sequence[float] = ()


@dataclass(frozen=True)
class Case:
    """One contender.

    Attributes:
        name: first cell of its row.
        run: takes what ``prepare`` returned; returns the items processed, or a Sample that it timed itself.
        prepare: called once before the first round, not timed.
        check: computes the numbers that must agree between cases, once, not timed; or a Sample brings them.
        figures: further columns.
    """

    name: str
    run: Callable[[Any], float | Sample]
    prepare: Callable[[], Any] = lambda: None
    check: Callable[[Any], Sequence[float]] | None = None
    figures: Row = field(default_factory=dict)


@dataclass
class Result:
    """Samples of one case, one a round; ``problem`` says why there are none, or that they do not count."""

    name: str
    samples: list[Sample] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)  # speed of the first case over this one's, by round
    check: Sequence[float] = ()
    figures: Row = field(default_factory=dict)
    problem: str = ""


@dataclass(frozen=True)
class Unit:
    """Column of figures: its title and a sample's value."""

    title: str
    value: Callable[[Sample], float]


IMAGES_PER_SECOND = Unit("images/s", lambda sample: sample.items / sample.seconds)
MEGABYTES_PER_SECOND = Unit("MB/s", lambda sample: sample.items / sample.seconds / 1e6)
GIGABYTES_PER_SECOND = Unit("GB/s", lambda sample: sample.items / sample.seconds / 1e9)
MICROSECONDS = Unit("µs an image", lambda sample: sample.seconds / sample.items * 1e6)
SECONDS = Unit("s", lambda sample: sample.seconds)
MILLISECONDS = Unit("ms", lambda sample: sample.seconds * 1e3)


@dataclass
class Table:
    """Rows of a report.

    Attributes:
        about: what was measured on: number and size of the images, clock, rounds.
        rows: cells by column; a row may lack columns.
        samples: every measured value by case, for JSON.
    """

    about: str
    rows: list[Row]
    samples: dict[str, list[float]] = field(default_factory=dict)

    def markdown(self) -> str:
        """Lines of a Markdown table."""
        columns = list(dict.fromkeys(name for row in self.rows for name in row))
        lines = [columns, ["---"] * len(columns), *([shown(row.get(name)) for name in columns] for row in self.rows)]
        return "\n".join("| " + " | ".join(cell.replace("|", "/") for cell in line) + " |" for line in lines)


def shown(value: Any) -> str:
    """Text of a cell: three significant digits, thousands separated."""
    if value is None:
        return ""
    if isinstance(value, (bool, str)):
        return str(value)
    return f"{value:,.0f}" if isinstance(value, int) or abs(value) >= 100 else f"{value:#.3g}".rstrip(".")


def cpu_time() -> float:
    """CPU seconds of this process and of the child processes that it has waited for."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def say(line: str) -> None:
    """Print a line of progress to stderr."""
    sys.stderr.write(line + "\n")


def measure(
    cases: Sequence[Case],
    *,
    rounds: int,
    warmups: int = 1,
    clock: Callable[[], float] = time.perf_counter,
    tolerance: float = 0,
    seconds: float = float("inf"),
) -> list[Result]:
    """Measure cases in turn, A B C A B C …, so that a disturbance meets all of them.

    Args:
        rounds: timed runs of each case.
        warmups: runs of each case that are not timed.
        clock: ``time.perf_counter``, ``time.thread_time`` or ``cpu_time``.
        tolerance: by how much the checks of two cases may differ.
        seconds: no round after the first begins later than this.
    """
    end = time.perf_counter() + seconds
    results = [Result(case.name, figures=dict(case.figures)) for case in cases]
    states: dict[str, Any] = {}
    for case, result in zip(cases, results, strict=True):
        _attempt(case, result, lambda case=case, result=result: _prepare(case, result, states, warmups))
    for number in range(rounds):
        if number and time.perf_counter() > end:
            break
        for case, result in zip(cases, results, strict=True):
            if not result.problem:
                _attempt(case, result, lambda case=case, result=result: _run(case, result, states, clock))
        _add_ratios(results, number)
    compare_checks(results, tolerance)
    return results


def _attempt(case: Case, result: Result, step: Callable[[], None]) -> None:
    """Run a step of a case; a case that raises is out, and its row says why."""
    try:
        step()
    except (MissingError, ImportError) as error:
        result.problem = f"not installed ({error})"
    except FailedError as error:
        result.problem = f"failed ({error})"
    except Exception as error:  # whatever it is, the other cases go on
        result.problem = f"failed ({type(error).__name__}: {' '.join(str(error).split())[:200]})"
    if result.problem:
        say(f"{case.name}: {result.problem}")


def _prepare(case: Case, result: Result, states: dict[str, Any], warmups: int) -> None:
    states[case.name] = state = case.prepare()
    if case.check is not None:
        result.check = case.check(state)
    for _ in range(warmups):
        case.run(state)


def _run(case: Case, result: Result, states: dict[str, Any], clock: Callable[[], float]) -> None:
    start = clock()
    done = case.run(states[case.name])
    sample = done if isinstance(done, Sample) else Sample(done, clock() - start)
    result.samples.append(sample)
    result.figures |= sample.figures
    result.check = sample.check or result.check
    say(f"{case.name}: {shown(sample.items / sample.seconds)} items/s")


def _add_ratios(results: Sequence[Result], number: int) -> None:
    """Append to each result the first one's speed in this round divided by its own."""
    if not results or len(results[0].samples) <= number:
        return
    first = results[0].samples[number]
    for result in results[1:]:
        if len(result.samples) > number:
            sample = result.samples[number]
            result.ratios.append(first.items / first.seconds * sample.seconds / sample.items)


def compare_checks(results: Sequence[Result], tolerance: float) -> None:
    """Mark results whose check differs from the median of all by more than the tolerance."""
    checked = [result for result in results if result.check]
    if not checked:
        return
    usual = [statistics.median(column) for column in zip(*(result.check for result in checked), strict=True)]
    for result in checked:
        if max(abs(mine - other) for mine, other in zip(result.check, usual, strict=True)) > tolerance:
            numbers = ", ".join(map(shown, result.check))
            result.problem = f"its check ({numbers}) differs from the others' ({', '.join(map(shown, usual))})"


def tabulate(
    results: Sequence[Result], about: str, *, unit: Unit = IMAGES_PER_SECOND, first: str = "", names: Row | None = None
) -> Table:
    """Table of results: median, range, median ratio to the first case, further figures, problems.

    Args:
        first: name of the first case in the title of the column of ratios; without it there is no such column.
        names: cells that begin each row.
    """
    rows, samples = [], {}
    for result in results:
        values = [unit.value(sample) for sample in result.samples]
        samples[" ".join([*map(str, (names or {}).values()), result.name])] = values
        row: Row = {**(names or {}), "case": result.name}
        row[f"{unit.title}, median"] = statistics.median(values) if values else None
        row["min to max"] = f"{shown(min(values))} to {shown(max(values))}" if values else None
        if first:
            row |= {f"{first} is": f"{statistics.median(result.ratios):.2f}×" if result.ratios else ""}
        row |= result.figures
        rows.append(row | ({"problem": result.problem} if result.problem else {}))
    return Table(about, rows, samples)


def join(tables: Sequence[Table]) -> Table:
    """One table of the rows of several."""
    samples = {name: values for table in tables for name, values in table.samples.items()}
    return Table(tables[0].about, [row for table in tables for row in table.rows], samples)
