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


# Callers give the text; what was looked up is missing, and there is nothing to choose from; or a table tells what to
# write, which tests/train/test_from_dataloader.py reads.
FINE = {
    "jpeg/pixels.py: {}",
    "storage/location/local.py: {}",
    "storage/record_facts.py: {} has no record with the id {}{}",
<<<<<<< HEAD
=======
    "viewer/ledger.py: {} has no picture {}",
    "viewer/records.py: there is no record with the id {}",
}
# Messages to mend; a mended one leaves the list.
TO_MEND = {
    "lightning.py: without a length Lightning takes batches ahead, which its checkpoints ",
    "prepare/convert/append.py: the source has attachments {}, the data set {}",
    "prepare/convert/append.py: the source has the label {} without a name, the data set {} classes",
    "prepare/convert/append.py: the source names its classes and the data set does not; append a sourc",
    "prepare/convert/convert.py: an index is converted as a whole, without --append, --retry-failed, --",
    "prepare/convert/finish.py: {} is already a data set, made of other inputs or with other settings",
    "prepare/convert/job.py: there is no shard {}; of N shards the first is 0/N and the last N-1/N",
    "prepare/convert/job.py: {} is made by {} shards, not by {}",
    "prepare/convert/merge_shards.py: {} holds shards of different conversions: {} of {} is {}, of {} {}",
    "prepare/convert/merge_shards.py: {} holds shards {} and {}; they are not of one conversion",
    "prepare/convert/merge_shards.py: {} is already a data set",
    "prepare/exports/mds.py: an attachment is called {}, which is a column of the export",
    "prepare/exports/parquet.py: an attachment is called {}, which is a column of the export",
    "prepare/image/settings.py: size {} is out of range: a side has 1 to {} pixels",
    "prepare/image/settings.py: the encoder mozjpeg has no subsampling 422; choose 420 or 444, or the ",
    "prepare/sources/coco.py: {} has {} bytes; annotations of {} can be read",
    "prepare/sources/coco.py: {} is not an annotation file of COCO: it has no list of {}",
    "prepare/sources/ffcv.py: {} is no .beton of version {}",
    "prepare/sources/file_patterns.py: {} stands for more than {} files",
    "prepare/sources/hdf5.py: which of {} in {}? Name it by --image-field",
    "prepare/sources/index_json.py: {} is not the index of a data set: it has no list of {}",
    "prepare/sources/index_json.py: {}: {} is no count",
    "prepare/sources/litdata.py: {}: chunks that are encrypted, or not written by litdata.optimize, are",
    "prepare/sources/mds.py: {}: a shard without columns",
    "prepare/sources/mds.py: {}: shards of format {}, version {}; version 2 of mds is read",
    "prepare/sources/named_files.py: {} is not the name of a file",
    "prepare/sources/open.py: {} belongs to the source {}; {} is read as {}",
    "prepare/sources/parquet.py: {} holds no files *.parquet",
    "prepare/sources/source_file.py: {} has {} bytes; {} can be read",
    "prepare/sources/table.py: {} line {}: {} values, {} columns",
    "prepare/sources/table.py: {}: attachment {}",
    "prepare/sources/table.py: {}: no {}",
    "prepare/sources/table.py: {}: two columns of one name in {}",
    "prepare/upkeep/dupes.py: distance {} is out of range; it is 0 to {} of 64 bits",
    "prepare/writer.py: label {} of {} classes",
    "train/batching/collate.py: collate returned {} of {} items for a batch of {} records",
    "train/batching/columns.py: the column {} has values of another kind or shape in each data set",
    "train/batching/spec.py: some lists of transforms fix the size of images, others do not; end al",
    "train/core.py: the state is of worker and workers {}, this is {}; a DataLoader's stat",
    "train/core.py: there is no batch {}; the epoch has {}",
    "train/core.py: workers of a DataLoader make the batches, and the loader does not know",
    "train/cuda/augment.py: images are on {}; kernels take them on {}",
    "train/cuda/decode.py: decoder {} works on a GPU; with device {} use 'cpu'",
    "train/cuda/resample_params.py: image {} shows the box {} (left, top, width, height) within the clip {",
    "train/loader.py: {} do not go together with weights, balance and repeat",
    "train/mux.py: read and peek take single images, without Views, MixUp and CutMix; ite",
    "train/mux.py: {} has no records",
    "train/mux.py: {} has no records with {}",
    "train/mux_config.py: a mux of no data sets",
    "train/mux_config.py: schedule names {}; the data sets, each once, are {}",
>>>>>>> new
    "train/options.py: picstore.{} has no {}",
    "viewer/ledger.py: {} has no picture {}",
    "viewer/records.py: there is no record with the id {}",
    "viewer/background.py: a {} runs already; cancel it before another one",
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
