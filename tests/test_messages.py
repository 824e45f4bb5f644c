"""Messages of UsageError name the argument and its value, and say what to write.

The messages are read from the source, where ``{}`` stands for a value that is known only when the program runs.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path

import picstore

ROOT = Path(__file__).parents[1] / "picstore"
VALUE = "{}"
OPENING = re.compile(rf"[a-z]|--[a-z]|\{{\}}|(?:{'|'.join(picstore.__all__)})\b")
VAGUE = re.compile(r"\b(?:invalid|illegal|bad|wrong|incorrect|improper|malformed|not valid|not correct)\b")
NAMED = re.compile(r"\{\}|--[a-z]|\w=|\w\(\)|'\w+'")
# An imperative at the beginning of a clause tells what to write.
IMPERATIVE = re.compile(
    r"(?:^|[;:,.] |\bor |\band )(?:add|append|begin|choose|continue|convert|copy|end|give|iterate|keep|leave|make|mix"
    r"|multiply|name|omit|put|raise|read|remove|rename|replace|resize|resume|retry|return|save|set|store|take|unpack"
    r"|use|write)\b",
    re.IGNORECASE,
)
# What is possible tells it too, and so does a reason or a remedy that the message ends with.
POSSIBLE = re.compile(
    r"\b(?:at least|at most|belong together|exclude each other|in \d|lies in|must|needs?|needed|neither .* nor|not in"
    r"|not one of|not within|only|possible|there are|(?:columns|declared|known|labels) are|takes)\b"
    r"|; it has |`picstore |[:;] \{\}$"
)


@dataclass(frozen=True)
class Message:
    """A message with ``{}`` for each value, its module, and the arguments of the functions around it."""

    text: str
    module: str
    arguments: frozenset[str]

    @property
    def place(self) -> str:
        """Module and beginning of the message."""
        return f"{self.module}: {self.text[:70]}"

    def problem(self) -> str:
        """What the message lacks; empty if nothing."""
        if not self.text.replace(VALUE, ""):
            return "its text is not known here"
        if not OPENING.match(self.text) or self.text.endswith(".") or "\n" in self.text:
            return "it begins with a small letter or a public name, and ends without a period"
        if VAGUE.search(self.text):
            return "it judges, instead of naming what is possible"
        if not NAMED.search(self.text) and not self.arguments & set(re.findall(r"\w+", self.text)):
            return "it names no argument and no value"
        if not IMPERATIVE.search(self.text) and not POSSIBLE.search(self.text):
            return "it does not say what to write"
        return ""


def texts(node: ast.expr, function: ast.AST | None) -> Iterator[str]:
    """Yield what an expression may become, with ``{}`` for each value."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(str(each.value) if isinstance(each, ast.Constant) else VALUE for each in node.values)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        yield from map("".join, product(texts(node.left, function), texts(node.right, function)))
    elif isinstance(node, ast.IfExp):
        yield from texts(node.body, function)
        yield from texts(node.orelse, function)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        yield from (re.sub(r"\{[^{}]*\}", VALUE, text) for text in texts(node.func.value, function))
    elif isinstance(node, ast.Name) and function is not None and (given := assigned(function, node.id)):
        for each in given:
            yield from texts(each, None)
    else:
        yield VALUE


def assigned(function: ast.AST, name: str) -> list[ast.expr]:
    """Find the values that a function assigns to a name."""
    found = [each for each in ast.walk(function) if isinstance(each, ast.Assign)]
    return [each.value for each in found if any(isinstance(t, ast.Name) and t.id == name for t in each.targets)]


def messages_in(node: ast.AST, module: str, function: ast.AST | None, arguments: frozenset[str]) -> Iterator[Message]:
    """Yield the messages of UsageError below a node of a module's syntax tree."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        own = {each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)}
        function, arguments = node, arguments | own - {"self", "cls"}
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "UsageError":
        for text in texts(node.args[0], function):
            yield Message(text, module, arguments)
    for child in ast.iter_child_nodes(node):
        yield from messages_in(child, module, function, arguments)


@cache
def messages() -> tuple[Message, ...]:
    """All messages of UsageError in picstore."""
    found: list[Message] = []
    for path in sorted(ROOT.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found += messages_in(tree, path.relative_to(ROOT).as_posix(), None, frozenset())
    return tuple(found)


# Callers give the text; what was looked up is missing, and there is nothing to choose from; the order of calls is
# wrong; or a table tells what to write, which tests/train/test_from_dataloader.py reads.
FINE = {
    "jpeg/pixels.py: {}",
    "storage/location/local.py: {}",
    "train/loader_options.py: picstore.{} has no {}",
    "storage/record_table.py: {} has no record with the id {}{}",
    "viewer/ledger_summary.py: {} has no picture {}",
    "viewer/records.py: there is no record with the id {}",
}


def test_messages_name_the_argument_and_say_what_to_write() -> None:
    lacking = {each.place: each.problem() for each in messages() if each.problem()}
    assert {place: problem for place, problem in lacking.items() if place not in FINE} == {}
    assert set(lacking) == FINE, "take what is mended out of the list"


def test_messages_that_lack_something_are_found() -> None:
    written = {
        'raise UsageError("invalid size")': "judges",
        'raise UsageError("")': "not known",
        'raise UsageError("Size is 5; give 6")': "small letter",
        'raise UsageError("give another one")': "names no argument",
        'raise UsageError(f"size {size} cannot be")': "what to write",
        'text = f"size {size}"\n    raise UsageError(text + " is odd")': "what to write",
        'raise UsageError("size is {}; give 1 to 9".format(size))': "",
    }
    for code, problem in written.items():
        tree = ast.parse(f"def check(size):\n    {code}")
        (message,) = messages_in(tree, "module.py", None, frozenset())
        assert problem in message.problem(), code
        assert bool(problem) == bool(message.problem()), code
