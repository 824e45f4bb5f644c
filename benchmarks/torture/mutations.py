"""Table of mutations: one operator or number of a module changed at a time, and whether its tests notice."""

from __future__ import annotations

import ast
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tokenize
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from threading import Lock
from typing import Any

from benchmarks.child import ROOT, FailedError
from benchmarks.harness import Row, Table, say
from benchmarks.options import Options

# Modules whose errors would be silent: wrong order, wrong bytes or wrong pixels, without an exception.
PLACES = ("train/order", "train/batching", "train/transforms", "storage/format", "storage/edits", "jpeg")
COUNT = 500
SEED = 20261124
_QUICK, _TOTAL = 0.5, 5.0  # seconds of CPU of a test, and of a group of tests
_NO_TESTS = 5  # pytest's exit code where a mutation changes the names of all cases

_BINARY = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "+"), ast.FloorDiv: ("//", "*"), ast.Div: ("/", "*"),
    ast.Mod: ("%", "*"), ast.LShift: ("<<", ">>"), ast.RShift: (">>", "<<"), ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"), ast.BitXor: ("^", "|"),
}  # fmt: skip
_COMPARE = {
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
}  # fmt: skip


# Arguments that a user of the module cannot notice.
_SKIPPED = {"zip": {"strict"}, "dataclass": {"frozen", "slots"}, "field": {"repr"}}


@dataclass(frozen=True)
class Mutation:
    """A token of a module, and what takes its place."""

    path: Path  # from the root
    line: int
    begin: int
    end: int
    text: str

    def apply(self, source: str) -> str:
        """Change the source of the module."""
        lines = source.splitlines(keepends=True)
        line = lines[self.line - 1]
        lines[self.line - 1] = line[: self.begin] + self.text + line[self.end :]
        return "".join(lines)

    def key(self, source: str) -> str:
        """The changed line without its comment, and its module, whatever stands above it."""
        line = self.apply(source).splitlines()[self.line - 1]
        return f"{self.path}: {line.partition('  # ')[0].strip()}"


def mutations(options: Options) -> Table:
    """Run the quick tests that mirror a module on random mutations: --rounds, or as many as --minutes allow.

    With --work, a run that was interrupted goes on.
    """
    count = options.rounds or (4 if options.quick else COUNT)
    found, chosen = sample(count, seed=int(os.environ.get("PICSTORE_MUTATION_SEED", SEED)))
    bench = _Bench(options.work, options.workers)
    end = time.monotonic() + (float("inf") if options.rounds else options.seconds)
    try:
        with ThreadPoolExecutor(options.workers) as pool:
            tried = [*pool.map(lambda name: bench.try_one(name, chosen[name], end=end), chosen)]
    finally:
        bench.close()
    about = (
        f"{len(tried) - tried.count(None)} of {found:,} mutations, drawn at random: an operator or number is changed, "
        f"and the quick tests run (at most {_QUICK} s of CPU each): first of the mirrored file, then of the "
        f"files beside it that import the module, then of the others there, each time {_TOTAL:.0f} s at most. "
        "Equivalent: what equivalent.txt names, with the reason."
    )
    pairs = zip(chosen.values(), tried, strict=True)
    return Table(about, list(_rows([(each, result["noticed"]) for each, result in pairs if result is not None])))


def sample(count: int, *, seed: int) -> tuple[int, dict[str, Mutation]]:
    """Count all mutations, and draw some, by name: nearly the same after the code has changed a little."""
    found: dict[str, Mutation] = {}
    for path in sorted(path for place in PLACES for path in (ROOT / "picstore" / place).rglob("*.py")):
        source, times = path.read_text(), Counter[str]()
        for each in find_mutations(path.relative_to(ROOT), source):
            key = each.key(source)
            times[key] += 1
            found[f"{key}  ({times[key]})" if times[key] > 1 else key] = each
    drawn = sorted(found, key=lambda name: hashlib.sha256(f"{seed} {name}".encode()).digest())
    return len(found), {name: found[name] for name in drawn[:count]}


def _rows(tried: list[tuple[Mutation, bool]]) -> Iterator[Row]:
    named = equivalents()
    by_place: dict[str, list[str]] = defaultdict(list)
    for each, noticed in tried:
        place = next(place for place in PLACES if each.path.is_relative_to(Path("picstore") / place))
        text = each.key((ROOT / each.path).read_text())
        by_place[place].append("noticed" if noticed else "equivalent" if text in named else "survived")
    by_place["all"] = [outcome for outcomes in by_place.values() for outcome in outcomes]
    for place, outcomes in by_place.items():
        counts = {each: outcomes.count(each) for each in ("noticed", "equivalent", "survived")}
        share = counts["noticed"] / max(len(outcomes), 1)
        yield {"modules": place, "mutations": len(outcomes), **counts, "noticed of all": f"{share:.1%}"}


def equivalents() -> dict[str, str]:
    """Mutations that change nothing but speed, by path and changed line, with the reason."""
    lines = Path(__file__).with_name("equivalent.txt").read_text().splitlines()
    pairs = zip(lines[::2], lines[1::2], strict=True)
    return {mutation: reason.strip() for mutation, reason in pairs}


def find_mutations(path: Path, source: str) -> Iterator[Mutation]:
    """Find operators, comparisons, ``and``, ``or``, ``not``, numbers and truth values that something depends on."""
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    starts = [token.start for token in tokens]
    for node in _executed(ast.parse(source)):
        if (change := _change(node)) is None:
            continue
        begin, end, old, new = change
        if old is None:
            yield Mutation(path, begin[0], begin[1], end[1], new)
            continue
        for token in tokens[bisect_left(starts, begin) : bisect_left(starts, end)]:
            if token.string == old:
                yield Mutation(path, token.start[0], token.start[1], token.end[1], new)
                break


def _change(node: ast.expr) -> tuple[tuple[int, int], tuple[int, int], str | None, str] | None:
    """Where the changed token of an expression lies, it, None for all that lies there, and what takes its place."""
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return _end(node.left), _begin(node.right), *_BINARY[type(node.op)]
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _COMPARE:
        return _end(node.left), _begin(node.comparators[0]), *_COMPARE[type(node.ops[0])]
    if isinstance(node, ast.BoolOp):
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        return _end(node.values[0]), _begin(node.values[1]), old, new
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return _begin(node), _end(node), "not", ""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        value = str(not node.value) if isinstance(node.value, bool) else str(node.value + 1)
        return _begin(node), _end(node), None, value
    return None


def _executed(node: ast.AST) -> Iterator[ast.expr]:
    """Expressions of a tree that are run and that something depends on."""
    for name, field in ast.iter_fields(node):
        if name in ("annotation", "returns"):
            continue
        for child in field if isinstance(field, list) else [field]:
            if isinstance(child, ast.AST) and not _is_skipped(node, child):
                if isinstance(child, ast.expr):
                    yield child
                yield from _executed(child)


def _is_skipped(parent: ast.AST, node: ast.AST) -> bool:
    """Whether no test is expected to notice a change of a node: docs/archive/torture-2026-11.md names each of these."""
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return True
    if isinstance(parent, ast.Raise):  # the wording of its message; what is raised, and when, stays
        return True
    if isinstance(node, ast.FunctionDef):
        return node.name.startswith("prefetch")
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id.startswith("prefetch"):
        return True
    if isinstance(node, ast.keyword) and isinstance(parent, ast.Call) and isinstance(parent.func, ast.Name):
        return node.arg in _SKIPPED.get(parent.func.id, ())
    return False


def _begin(node: ast.expr) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _end(node: ast.expr) -> tuple[int, int]:
    return node.end_lineno or 0, node.end_col_offset or 0


class _Bench:
    """Copies of the tree, one a worker, in which modules are changed in turn, and results that are kept in a file."""

    def __init__(self, work: Path, workers: int) -> None:
        self._work, self._results, self._lock = work, work / "mutations.jsonl", Lock()
        self._usual = work / "usual"  # CPU seconds of tests, a file of each test module
        self._usual.mkdir(exist_ok=True)
        lines = self._results.read_text().splitlines() if self._results.exists() else []
        self._known = {each["mutation"]: each for each in map(json.loads, lines)}
        self._free: Queue[_Server] = Queue()
        for number in range(workers):
            self._free.put(_Server(work / f"tree-{number}"))

    def close(self) -> None:
        """End the processes."""
        while not self._free.empty():
            self._free.get().close()

    def try_one(self, name: str, mutation: Mutation, *, end: float = float("inf")) -> dict[str, Any] | None:
        """Run tests with a mutation, or take an earlier result; None after the ``end``, or if there are no tests.

        Returns:
            ``mutation``, ``noticed``, and ``by``: the test that failed, or what ended the run.
        """
        if name in self._known:
            return self._known[name]
        if time.monotonic() >= end:
            return None
        server = self._free.get()
        try:
            answer = self._run(server, mutation)
        finally:
            self._free.put(server)
        if answer is None:
            say(f"no tests that pass: {mutation.path}")
            return None
        code, failed = answer["code"] if answer["code"] != _NO_TESTS else 0, answer["failed"]
        by = failed[0] if failed else f"exit code {code}"
        result = {"mutation": name, "line": mutation.line, "noticed": code != 0, "by": by, "cpu": answer["cpu"]}
        with self._lock, self._results.open("a") as file:
            file.write(json.dumps(result) + "\n")
        say(f"{'noticed ' if code else 'SURVIVED'} {name} {by if code else ''}")
        return result

    def _run(self, server: _Server, mutation: Mutation) -> dict[str, Any] | None:
        """Run the tests that mirror a module, group by group, until one fails; None if there are none."""
        groups = [_quickest([self._seconds(server, each) for each in files]) for files in mirrored_tests(mutation.path)]
        groups = [chosen for chosen in groups if chosen]
        source = mutation.apply((ROOT / mutation.path).read_text())
        return server.ask(groups=groups, path=str(mutation.path), source=source) if groups else None

    def _seconds(self, server: _Server, tests: str) -> dict[str, float]:
        """CPU seconds of each test of a file that passes."""
        digest = hashlib.sha256((server.tree / tests).read_bytes()).hexdigest()[:12]
        known = self._usual / f"{Path(tests).stem}-{digest}.json"
        if not known.exists():
            server.ask(tests=[tests])  # compiles kernels, which is no test's time
            answer = server.ask(tests=[tests])
            if answer["code"] not in (0, _NO_TESTS):
                raise FailedError(f"{tests} fails without a mutation: {answer['failed']}")
            known.write_text(json.dumps(answer["seconds"]))
        return dict(json.loads(known.read_text()))


def _quickest(files: list[dict[str, float]]) -> dict[str, float]:
    """The quick tests of some files, the quickest first, for as long as a mutation may take."""
    tests = {name: seconds for file in files for name, seconds in file.items()}
    total, chosen = 0.0, {}
    for name, seconds in sorted(tests.items(), key=lambda item: item[1]):
        total += seconds
        if seconds > _QUICK or total > _TOTAL:
            break
        chosen[name] = seconds
    return chosen


class _Server:
    """A copy of the tree, and the process that runs its tests."""

    def __init__(self, tree: Path) -> None:
        self.tree, self._number = tree, int(time.time())
        for name in ("picstore", "tests", "examples", "docs", "scripts"):
            shutil.rmtree(tree / name, ignore_errors=True)
            shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "README.md", "CHANGELOG.md"):
            shutil.copy(ROOT / name, tree)
        kernels = tree / "kernels" / "picstore"
        kernels.mkdir(parents=True, exist_ok=True)
        for path in (ROOT / "picstore/kernels/__pycache__").glob("*.kernel"):  # of unchanged code
            shutil.copy(path, kernels)
        environment = {**os.environ, "PYTHONPATH": str(tree)}
        command = [sys.executable, str(Path(__file__).with_name("mutant_server.py"))]
        self._process = subprocess.Popen(
            command, cwd=tree, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def ask(self, **request: Any) -> dict[str, Any]:
        """Run tests; see ``mutant_server``."""
        assert self._process.stdin and self._process.stdout  # noqa: S101 - they are pipes
        self._number += 1
        number = self._number if "path" in request else 0
        self._process.stdin.write(json.dumps({"number": number, **request}) + "\n")
        self._process.stdin.flush()
        return dict(json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def mirrored_tests(path: Path) -> list[list[str]]:
    """Files of tests of a module: the one of its name; files beside it that import it; the folder's other files.

    Where the mirrored folder has no tests, these are the files of the nearest above that import the module. The file of
    its name may lie above too: no two files of tests have one name.
    """
    mirrored = folder = Path("tests") / path.parent.relative_to("picstore")
    while not list((ROOT / folder).glob("test_*.py")):
        folder = folder.parent
    parent, name = ".".join(path.parent.parts), path.stem
    imports = re.compile(rf"from {parent}.{name} import|from {parent} import .*\b{name}\b")
    above = [each / f"test_{name}.py" for each in folder.parents if each != Path()]
    groups: list[list[str]] = [[str(each) for each in above if (ROOT / each).exists()], [], []]
    for each in sorted((ROOT / folder).glob("test_*.py")):
        group = 0 if each.stem == f"test_{name}" else 1 if imports.search(each.read_text()) else 2
        groups[group].append(str(each.relative_to(ROOT)))
    return groups if folder == mirrored or not (groups[0] or groups[1]) else groups[:2]
