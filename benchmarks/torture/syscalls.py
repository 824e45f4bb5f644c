"""A layer between this process and its system calls that write below one folder: it counts, fails, and cuts power.

It replaces functions of ``os`` and ``io`` in a child process that is thrown away. Power cuts follow POSIX to the
letter: of a file only synced bytes stay, of a folder only the changes before its last sync.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import os
import random
import shutil
import signal
import tarfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from picstore.storage.location import obstore_fork

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
ERRORS = {"ENOSPC": errno.ENOSPC, "EIO": errno.EIO, "EMFILE": errno.EMFILE}


@dataclass(frozen=True)
class Trigger:
    """What happens at one event.

    Attributes:
        at: number of the event, from 0 on.
        action: "kill" before it; "power" cut before it; a key of ERRORS; "short", a write of half its bytes; "torn", a
            rename that fails after it took effect; or "none".
        share: of a killed or cut write, the bytes that are written; of changes that are not synced, the ones that last.
        lasting: whether all later events of the same kinds fail too, as on a full disk.
    """

    at: int = -1
    action: str = "none"
    share: float = 0.0
    lasting: bool = False


# The events that an error may meet; a full disk still removes files.
MEETS = {
    "ENOSPC": ("open", "write", "mkdir", "link", "fsync"),
    "EIO": ("open", "write", "fsync", "rename", "link", "unlink", "mkdir"),
    "EMFILE": ("open", "read"),
    "short": ("write",),
    "torn": ("rename", "link"),
}


@dataclass
class _Change:
    """A change of a folder that is not synced, and how it is undone."""

    folder: str
    undo: Callable[[], Any]


@dataclass
class Layer:
    """Counts events below ``root`` while it is active; ``events`` holds their kinds."""

    root: Path
    trigger: Trigger
    graveyard: Path
    counter: Any = None  # shared by processes; None counts in this one
    requests: bool = False  # whether the writing requests of object stores are events too
    events: list[str] = field(default_factory=list)
    _changes: list[_Change] = field(default_factory=list)
    _unsynced: dict[int, tuple[str, int]] = field(default_factory=dict)  # by inode, name and synced bytes
    _lock: Any = field(default_factory=threading.RLock)
    _real: dict[str, Any] = field(default_factory=dict)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Replace the functions; they stay replaced in processes that are forked meanwhile."""
        names = ("open", "fsync", "rename", "replace", "link", "unlink", "remove", "mkdir", "rmdir")
        self._real = {name: getattr(os, name) for name in names} | {"io.open": io.open}
        wrapped = {name: getattr(self, f"_{name}") for name in names if name not in ("replace", "remove")}
        wrapped |= {"replace": wrapped["rename"], "remove": wrapped["unlink"]}
        try:
            vars(os).update(wrapped)
            io.open = builtins.open = tarfile.bltn_open = self._io_open  # type: ignore[assignment, attr-defined]
            if self.requests:
                self._count_requests()
            yield
        finally:
            vars(os).update({name: self._real[name] for name in names})
            io.open = builtins.open = tarfile.bltn_open = self._real["io.open"]  # type: ignore[attr-defined]

    def cut_power(self, share: float) -> None:
        """Undo what is not synced; of each folder's changes the first ``share`` last, of each file's bytes likewise."""
        for name, synced in self._unsynced.values():
            with contextlib.suppress(OSError):
                size = os.stat(name).st_size
                os.truncate(name, synced + int(share * (size - synced)))
        of_folder: dict[str, int] = {}
        for change in self._changes:
            of_folder[change.folder] = of_folder.get(change.folder, 0) + 1
        lasting = {folder: round(share * count) for folder, count in of_folder.items()}
        for change in reversed(self._changes):
            of_folder[change.folder] -= 1
            if of_folder[change.folder] >= lasting[change.folder]:
                with contextlib.suppress(OSError):
                    change.undo()

    # Events

    def _path(self, path: Any, dir_fd: int | None = None) -> str | None:
        """The absolute path if it lies below the root."""
        if isinstance(path, int):
            text = os.readlink(f"/proc/self/fd/{path}")
        else:
            base = os.readlink(f"/proc/self/fd/{dir_fd}") if dir_fd is not None else os.getcwd()
            text = os.path.normpath(os.path.join(base, os.fspath(path)))
        return text if text.startswith(f"{self.root}/") or text == str(self.root) else None

    def _event(self, kind: str, *, half: Callable[[float], Any] = lambda _: None) -> None:
        """Count an event; end the process or raise the error where it is the trigger's."""
        number = len(self.events)
        self.events.append(kind)
        if self.counter is not None:
            with self.counter.get_lock():
                number, self.counter.value = self.counter.value, self.counter.value + 1
        action, hit = self.trigger.action, number == self.trigger.at
        if action in ("kill", "power") and hit:
            half(self.trigger.share)
            if action == "power":
                self._restore()
                self.cut_power(self.trigger.share)
            os.killpg(0, signal.SIGKILL)
        hit |= self.trigger.lasting and number > self.trigger.at
        if hit and action in ERRORS and kind in MEETS[action]:
            if kind == "write" and action == "ENOSPC":
                half(self.trigger.share)
            raise OSError(ERRORS[action], os.strerror(ERRORS[action]))

    def _count_requests(self) -> None:
        """Make writing requests to object stores events."""
        library = obstore_fork.library()
        for kind in ("put", "copy", "delete"):
            setattr(library, kind, self._counted(kind, getattr(library, kind)))

    def _counted(self, kind: str, request: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            with self._lock:
                self._event(kind)
            return request(*arguments, **options)

        return counted

    def _restore(self) -> None:
        for name in ("rename", "unlink", "mkdir", "rmdir", "link", "open"):
            setattr(os, name, self._real[name])
        os.remove = self._real["remove"]

    def _hits(self, action: str) -> bool:
        return self.trigger.action == action and self.trigger.at == len(self.events) - 1

    def _keep(self, path: str) -> str | None:
        """Keep a file that is removed or replaced for a power cut; None where there is none."""
        if self.trigger.action != "power" or not os.path.isfile(path):
            return None
        kept = str(self.graveyard / f"{random.getrandbits(64):x}")
        self._real["link"](path, kept)
        return kept

    def _changed(self, path: str, undo: Callable[[], Any]) -> None:
        if self.trigger.action == "power":
            self._changes.append(_Change(os.path.dirname(path), undo))

    def _open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        name = self._path(path, dir_fd)
        if name is None:
            return int(self._real["open"](path, flags, mode, dir_fd=dir_fd))
        with self._lock:
            self._event("open" if flags & _WRITING else "read")
            new = not os.path.exists(name)
            descriptor = int(self._real["open"](path, flags, mode, dir_fd=dir_fd))
            if flags & os.O_CREAT and new:
                self._changed(name, lambda: self._real["unlink"](name))
            if flags & _WRITING and (new or flags & os.O_TRUNC):
                self._unsynced[os.fstat(descriptor).st_ino] = (name, 0)
            return descriptor

    def _io_open(self, file: Any, mode: str = "r", buffering: int = -1, *text: Any, **options: Any) -> Any:
        name = self._path(file) if isinstance(file, int) or not isinstance(file, io.IOBase) else None
        if name is None or not set(mode) & set("wax+"):
            if name is not None and not isinstance(file, int):
                with self._lock:
                    self._event("read")
            return self._real["io.open"](file, mode, buffering, *text, **options)
        raw_mode = mode.replace("b", "").replace("t", "")
        raw = _Raw(file, raw_mode, self, opener=lambda path, flags: self._open(path, flags, 0o666))
        if buffering == 0:
            return raw
        buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, *text, **options)

    def write(self, raw: io.FileIO, data: Any) -> int:
        """Write as the trigger says: all, half, or not at all."""
        view = memoryview(data).cast("B")

        def half(share: float) -> int:
            return io.FileIO.write(raw, view[: int(share * len(view))])

        with self._lock:
            self._event("write", half=half)
            if self._hits("short"):
                return half(0.5)
            return io.FileIO.write(raw, view)

    def _fsync(self, descriptor: int) -> None:
        name = self._path(descriptor)
        if name is None:
            self._real["fsync"](descriptor)
            return
        with self._lock:  # not synced in truth: it would only take time
            self._event("fsync")
            status = os.fstat(descriptor)
            self._unsynced[status.st_ino] = (name, status.st_size)
            self._changes = [change for change in self._changes if change.folder != name]

    def _rename(self, source: Any, target: Any, **folders: Any) -> None:
        name, old = self._path(target), self._path(source)
        if name is None or old is None:
            self._real["rename"](source, target, **folders)
            return
        with self._lock:
            self._event("rename")
            kept = self._keep(name)
            self._real["replace"](source, target, **folders)
            unsynced = {k: known for k, known in self._unsynced.items() if known[0] != name}  # of the replaced file
            self._unsynced = {k: (name if was == old else was, size) for k, (was, size) in unsynced.items()}

            def undo() -> None:
                self._real["rename"](name, old)
                if kept:
                    self._real["rename"](kept, name)

            self._changed(name, undo)
            if self._hits("torn"):
                raise OSError(errno.EIO, os.strerror(errno.EIO))

    def _link(self, source: Any, target: Any, **folders: Any) -> None:
        with self._lock:
            self._event("link")
            self._real["link"](source, target, **folders)
            name = self._path(target)
            if name is not None:
                self._changed(name, lambda: self._real["unlink"](name))
            if self._hits("torn"):
                raise OSError(errno.EIO, os.strerror(errno.EIO))

    def _unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        name = self._path(path, dir_fd)
        with self._lock:
            if name is not None:
                self._event("unlink")
                kept = self._keep(name)
            self._real["unlink"](path, dir_fd=dir_fd)
            if name is not None and kept:
                self._changed(name, lambda: self._real["rename"](kept, name))

    def _mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        name = self._path(path, dir_fd)
        with self._lock:
            if name is not None:
                self._event("mkdir")
            self._real["mkdir"](path, mode, dir_fd=dir_fd)
            if name is not None:
                self._changed(name, lambda: shutil.rmtree(name))

    def _rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        name = self._path(path, dir_fd)
        with self._lock:
            if name is not None:
                self._event("rmdir")
            self._real["rmdir"](path, dir_fd=dir_fd)
            if name is not None:
                self._changed(name, lambda: self._real["mkdir"](name))


class _Raw(io.FileIO):
    """A file whose writes pass through the layer."""

    def __init__(self, file: Any, mode: str, layer: Layer, opener: Any) -> None:
        super().__init__(file, mode, opener=opener)
        self._layer = layer

    def write(self, data: Any) -> int:
        return self._layer.write(self, data)
