"""Table of mutations: one operator or number of a module changed at a time, and whether its tests notice."""

from __future__ import annotations

import ast
import io
import os
import random
import re
import shutil
import subprocess
import sys
import time
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

from benchmarks.child import ROOT
from benchmarks.harness import Row, Table, say
from benchmarks.options import Options

# Modules whose errors would be silent: wrong order, wrong bytes or wrong pixels, without an exception.
PLACES = ("train/order", "train/batching", "train/transforms", "storage/format", "storage/edits", "jpeg")
COUNT = 500
_SEED = 1
_PATIENCE = 60.0  # seconds added to five times what the tests take: a mutation may loop forever

_BINARY = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "+"), ast.FloorDiv: ("//", "*"), ast.Div: ("/", "*"),
    ast.Mod: ("%", "*"), ast.LShift: ("<<", ">>"), ast.RShift: (">>", "<<"), ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"), ast.BitXor: ("^", "|"),
}  # fmt: skip
_COMPARE = {
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
}  # fmt: skip


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

    def describe(self, source: str) -> str:
        """The changed line."""
        return f"{self.path}:{self.line}: {self.apply(source).splitlines()[self.line - 1].strip()}"


def mutations(options: Options) -> Table:
    """Run the fast tests that mirror a module on random mutations: --rounds, or as many as --minutes allow."""
    count = options.rounds or (4 if options.quick else COUNT)
    paths = sorted(path for place in PLACES for path in (ROOT / "picstore" / place).rglob("*.py"))
    found = [each for path in paths for each in find_mutations(path.relative_to(ROOT), path.read_text())]
    chosen = random.Random(_SEED).sample(found, min(count, len(found)))
    bench = _Bench(options)
    end = time.monotonic() + (float("inf") if options.rounds else options.seconds)
    with ThreadPoolExecutor(options.workers) as pool:
        outcomes = list(pool.map(lambda each: bench.try_one(each) if time.monotonic() < end else None, chosen))
    tried = [(each, noticed) for each, noticed in zip(chosen, outcomes, strict=True) if noticed is not None]
    for each, noticed in tried:
        if not noticed:
            say(f"survived: {each.describe((ROOT / each.path).read_text())}")
    about = (
        f"{len(tried)} of {len(found):,} mutations, drawn at random: an operator or a number is changed, and the fast "
        "tests of the mirrored file run, or where it has none of the files in its folder that name it"
    )
    return Table(about, list(_rows(tried)))


def _rows(tried: list[tuple[Mutation, bool]]) -> Iterator[Row]:
    by_place: dict[str, list[bool]] = defaultdict(list)
    for each, noticed in tried:
        place = next(place for place in PLACES if each.path.is_relative_to(Path("picstore") / place))
        by_place[place].append(noticed)
    by_place["all"] = [noticed for _, noticed in tried]
    for place, noticed in by_place.items():
        share = sum(noticed) / max(len(noticed), 1)
        yield {"modules": place, "mutations": len(noticed), "noticed": sum(noticed), "share": f"{share:.0%}"}


def find_mutations(path: Path, source: str) -> Iterator[Mutation]:
    """Find operators, comparisons, ``and``, ``or``, ``not``, numbers and truth values, none of them in annotations."""
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))

    def between(begin: tuple[int, int], end: tuple[int, int], old: str, new: str) -> Iterator[Mutation]:
        inside = (token for token in tokens if begin <= token.start and token.end <= end and token.string == old)
        for token in list(inside)[:1]:
            yield Mutation(path, token.start[0], token.start[1], token.end[1], new)

    for node in _executed(ast.parse(source)):
        begin, end = (node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)
        if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
            yield from between(_end(node.left), _begin(node.right), *_BINARY[type(node.op)])
        elif isinstance(node, ast.Compare) and type(node.ops[0]) in _COMPARE:
            yield from between(_end(node.left), _begin(node.comparators[0]), *_COMPARE[type(node.ops[0])])
        elif isinstance(node, ast.BoolOp):
            old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
            yield from between(_end(node.values[0]), _begin(node.values[1]), old, new)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield from between(begin, end, "not", "")
        elif isinstance(node, ast.Constant) and type(node.value) is bool:
            yield from between(begin, end, str(node.value), str(not node.value))
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            yield Mutation(path, begin[0], begin[1], end[1], str(node.value + 1))


def _executed(node: ast.AST) -> Iterator[ast.expr]:
    """Expressions of a tree that are run: neither annotations nor docstrings."""
    for name, field in ast.iter_fields(node):
        if name in ("annotation", "returns"):
            continue
        for child in field if isinstance(field, list) else [field]:
            if isinstance(child, ast.AST):
                if isinstance(child, ast.expr):
                    yield child
                yield from _executed(child)


def _begin(node: ast.expr) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _end(node: ast.expr) -> tuple[int, int]:
    return node.end_lineno or 0, node.end_col_offset or 0


class _Bench:
    """Copies of the tree, one a worker, in which modules are changed in turn."""

    def __init__(self, options: Options) -> None:
        self._free: Queue[Path] = Queue()
        self._usual: dict[tuple[str, ...], float] = {}  # seconds of tests that pass
        for number in range(options.workers):
            copy = options.work / f"tree-{number}"
            for name in ("picstore", "tests", "examples", "docs", "scripts"):
                shutil.copytree(ROOT / name, copy / name, dirs_exist_ok=True)
            for name in ("pyproject.toml", "README.md", "CHANGELOG.md"):
                shutil.copy(ROOT / name, copy)
            self._free.put(copy)

    def try_one(self, mutation: Mutation) -> bool | None:
        """Whether the tests fail with a mutation; None if there are no tests, or they fail without it."""
        tests = mirrored_tests(mutation.path)
        copy = self._free.get()
        try:
            if tests not in self._usual:
                began = time.monotonic()
                passed = _passes(copy, tests, 900.0)
                self._usual[tests] = time.monotonic() - began if passed else 0.0
            if not tests or not self._usual[tests]:
                say(f"no tests that pass: {mutation.path} {tests}")
                return None
            source = (copy / mutation.path).read_text()
            (copy / mutation.path).write_text(mutation.apply(source))
            try:
                return not _passes(copy, tests, _PATIENCE + 5 * self._usual[tests])
            finally:
                (copy / mutation.path).write_text(source)
        finally:
            self._free.put(copy)


def mirrored_tests(path: Path) -> tuple[str, ...]:
    """Files of tests of a module: the one of its name, or those of the nearest folder that name it."""
    folder = Path("tests") / path.parent.relative_to("picstore")
    if (ROOT / folder / f"test_{path.stem}.py").exists():
        return (str(folder / f"test_{path.stem}.py"),)
    while not list((ROOT / folder).glob("test_*.py")):
        folder = folder.parent
    named = re.compile(rf"\b{path.stem}\b")
    every = sorted((ROOT / folder).glob("test_*.py"))
    chosen = [each for each in every if named.search(each.read_text())] or every
    return tuple(str(each.relative_to(ROOT)) for each in chosen)


def _passes(copy: Path, tests: tuple[str, ...], limit: float) -> bool:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.Popen(
        command, cwd=copy, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        return process.wait(limit) == 0
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.wait()
        return False
