"""The verbs that write, on data sets of a few KB: how each begins, what it leaves when it ends, and its remedy."""

from __future__ import annotations

import hashlib
import io
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import picstore
from picstore.errors import NotADataset, Unfinished
from picstore.prepare.convert import conversion_job as convert_module
from picstore.prepare.convert.append_images import append
from picstore.prepare.convert.conversion_job import ConvertOptions, convert
from picstore.prepare.convert.merge_shards import merge
from picstore.prepare.convert.retry import retry_failed
from picstore.prepare.convert.row_division import DatasetShape, Shard
from picstore.prepare.engine import worker_processes
from picstore.prepare.exports.run_export import export
from picstore.prepare.image.encode_settings import EncodeSettings
from picstore.prepare.sources.open import open_source
from picstore.prepare.upkeep.repair_dataset import repair
from picstore.prepare.upkeep.shuffled_copy import shuffle
from picstore.storage.location.resolve import LOCK

SHAPE = DatasetShape(streams=2, container_size=4 << 10, file_size=4 << 10)
COUNT = 12  # photographs of each source
BROKEN = "0/003.jpg"  # the photograph that fails before a retry


class InlineEngine(worker_processes.LocalEngine):
    """Runs tasks in this process."""

    def run(self, function: Any, tasks: Any, *, on_progress: Any = lambda _: None) -> Iterator[tuple[Any, Any]]:
        while tasks:
            task = tasks.popleft()
            yield task, function(task, on_progress)


INLINE = InlineEngine(1)


def jpeg(number: int) -> bytes:
    """A small photograph, a different one for each number."""
    small = np.random.default_rng(number).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(small).resize((60, 40), Image.Resampling.BICUBIC).save(out, "JPEG", quality=90)
    return out.getvalue()


def tree(root: Path) -> dict[str, str]:
    """Every file below a folder but locks, which are empty, with the hash of its bytes."""
    files = (path for path in sorted(root.rglob("*")) if path.is_file() and path.name != LOCK)
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


class Stage:
    """Folders of a run: ``given``, which no verb writes to, and ``work``, which is what a verb is struck in."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.given, self.work = folder, folder / "given", folder / "work"
        self.dataset = self.work / "deep" / "ds"
        convert_module.start_fork_server = lambda *_: None  # tasks run in this process, or in forks of it
        for name, first in (("photos", 0), ("more", 100), ("broken", 0)):
            for k in range(COUNT):
                path = self.given / name / str(k % 3) / f"{k:03d}.jpg"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(jpeg(first + k))
        (self.given / "broken" / BROKEN).write_bytes(b"damaged")
        convert(open_source(self.given / "broken"), self.given / "failed", self.options())
        convert(open_source(self.given / "photos"), self.given / "plain", self.options())
        shutil.copytree(self.given / "plain", self.given / "edited")
        names = [f"photograph {k}" for k in range(COUNT)]
        picstore.Dataset(self.given / "edited").without([3]).save().with_columns({"caption": names[1:]}).save()
        for index in range(2):
            part = self.given / f"shard-{index}"
            convert(open_source(self.given / "photos"), part, self.options(), shard=Shard(index, 2))

    def options(self, engine: worker_processes.Engine = INLINE) -> ConvertOptions:
        """Options of conversions."""
        return ConvertOptions(encode=EncodeSettings(), shape=SHAPE, workers=engine)

    def begin(self, verb: Verb) -> None:
        """Make ``work`` what it is before a verb."""
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir(parents=True)
        self.fill(verb)

    def files(self) -> dict[str, str]:
        """All that lies in ``work``, with hashes."""
        return tree(self.work)

    def clear(self) -> None:
        """Remove the data set."""
        shutil.rmtree(self.dataset, ignore_errors=True)

    def fill(self, verb: Verb) -> None:
        """Put the data set that a verb edits into an empty ``work``."""
        if verb.edits:
            shutil.copytree(self.given / verb.edits, self.dataset)
        if verb.name == "repair":
            self._damage()

    def _damage(self) -> None:
        """Damage a record, the index and the manifest."""
        for name, offset in (("0001/000000.pic", 6000), ("picstore.idx", 80), ("picstore.json", 100)):
            path = self.dataset / name
            raw = bytearray(path.read_bytes())
            raw[min(offset, len(raw) - 1)] ^= 0x10
            path.write_bytes(raw)


@dataclass(frozen=True)
class Verb:
    """One verb.

    Attributes:
        run: the verb on a stage, with an engine; ``again`` is how a user goes on after an interruption.
        edits: the given data set that it edits; empty for a verb that makes something new.
        workers: whether it has tasks for several processes.
    """

    name: str
    run: Callable[[Stage, worker_processes.Engine, bool], object]
    edits: str = ""
    workers: bool = False

    def again(self, stage: Stage, after: dict[str, str]) -> None:
        """Go on after an interruption; what cannot be resumed is removed and made once more."""
        if self.name in _BEGIN_AGAIN and stage.files() != after:
            stage.clear()
        if self.name not in _BEGIN_AGAIN or not stage.dataset.exists():
            self.run(stage, INLINE, True)


def _convert(stage: Stage, engine: worker_processes.Engine, again: bool) -> object:
    return convert(open_source(stage.given / "photos"), stage.dataset, stage.options(engine), resume=again)


def _append(stage: Stage, engine: worker_processes.Engine, again: bool) -> object:
    return append(open_source(stage.given / "more"), stage.dataset, stage.options(engine), resume=again)


def _retry(stage: Stage, engine: worker_processes.Engine, _: bool) -> object:
    return retry_failed(open_source(stage.given / "photos"), stage.dataset, stage.options(engine))


def _merge(stage: Stage, engine: worker_processes.Engine, _: bool) -> object:
    return merge(stage.dataset, [stage.given / f"shard-{index}" for index in range(2)], workers=engine)


def _delete(stage: Stage, *_: object) -> object:
    return picstore.Dataset(stage.dataset).without([2, 7]).save()


def _columns(stage: Stage, *_: object) -> object:
    scores = np.arange(3 * COUNT, dtype=np.float32).reshape(COUNT, 3)
    dataset = picstore.Dataset(stage.dataset)
    return dataset.with_columns({"score": scores[: len(dataset)], "label": [2] * len(dataset)}).save()


def _repair(stage: Stage, *_: object) -> object:
    return repair(stage.dataset)


def _shuffle(method: str) -> Callable[[Stage, worker_processes.Engine, bool], object]:
    return lambda stage, engine, _: shuffle(
        stage.given / "edited", stage.dataset, seed=1, method=method, workers=engine
    )


def _write(stage: Stage, *_: object) -> object:
    with picstore.Writer(stage.dataset, shape=SHAPE, attachments=["mask"]) as writer:
        for k in range(COUNT):
            writer.add(jpeg(k), attachments={"mask": bytes(100)})
    return None


def _export(format: str) -> Callable[[Stage, worker_processes.Engine, bool], object]:
    return lambda stage, engine, _: export(
        stage.given / "edited", stage.dataset, format=format, shard_size=6000, workers=engine
    )


def _cache(stage: Stage, *_: object) -> object:
    return list(picstore.Dataset(stage.given / "edited", cache=stage.dataset))


VERBS = {
    verb.name: verb
    for verb in (
        Verb("convert", _convert, workers=True),
        Verb("append", _append, "edited", workers=True),
        Verb("delete", _delete, "plain"),
        Verb("columns", _columns, "edited"),
        Verb("repair", _repair, "plain"),
        Verb("retry", _retry, "failed", workers=True),
        Verb("merge", _merge),
        Verb("shuffle", _shuffle("transpose"), workers=True),
        Verb("shuffle uniform", _shuffle("uniform"), workers=True),
        Verb("Writer", _write),
        Verb("export folder", _export("folder"), workers=True),
        Verb("export webdataset", _export("webdataset"), workers=True),
        Verb("export mds", _export("mds"), workers=True),
        Verb("cache", _cache),
    )
}
_BEGIN_AGAIN = {name for name in VERBS if name.startswith(("shuffle", "Writer", "export"))}


def content(path: Path, **options: Any) -> list[Any]:
    """Everything that a reader of a data set sees."""
    dataset = picstore.Dataset(path, **options)
    return [dataset.uuid, dataset.classes, *map(record_content, dataset)]


def record_content(record: Any) -> tuple[Any, ...]:
    """Everything that a reader sees of a record."""
    columns = {name: np.asarray(value).tolist() for name, value in record.columns.items()}
    attachments = {name: bytes(blob) for name, blob in record.attachments.items()}
    return record.id, record.label, bytes(record.jpeg), record.extra_json, sorted(attachments.items()), columns


def state(verb: Verb, stage: Stage, before: Any, after: Any) -> str:
    """Name what a verb has left: absent, as before, resumable or complete; or wrong, and why.

    ``before`` and ``after`` are what :func:`look` returned before the verb and after it.
    """
    try:
        seen = look(verb, stage)
    except Unfinished:
        return "resumable"
    except NotADataset:
        return "absent" if before is None else "wrong: the data set is gone"
    except Exception as error:
        if verb.name == "repair":  # which begins with what cannot be read
            return "as before"
        return f"wrong: {type(error).__name__}: {error}"
    if seen == after:
        return "complete"
    if seen is None and before is None:
        return "absent"
    return "as before" if seen == before else "wrong: neither as before nor complete"


def look(verb: Verb, stage: Stage) -> Any:
    """What a reader sees of a verb's result; None where there is nothing, or what says itself that it is unfinished."""
    if verb.name.startswith("export"):
        whole = stage.dataset.is_dir() and not (stage.dataset / ".unfinished").exists()
        return (tree(stage.dataset) or None) if whole else None
    if verb.name == "cache":
        return content(stage.given / "edited", cache=stage.dataset) if stage.dataset.exists() else None
    return content(stage.dataset)
