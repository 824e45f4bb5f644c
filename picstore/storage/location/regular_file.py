"""Regular files and folders of this machine; pipes, sockets and devices are detected before a call could wait."""

from __future__ import annotations

import errno
import os
import platform
import stat


class NotRegular(OSError):
    """Error for a path that is a named pipe, a socket or a device."""


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Return whether a directory entry is a folder or a link to a folder; False if links form a circle."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def kind_of(mode: int) -> str:
    """Return "a named pipe", "a socket" or "a device" for the ``st_mode`` of a file that is not regular."""
    if stat.S_ISFIFO(mode):
        return "a named pipe"
    return "a socket" if stat.S_ISSOCK(mode) else "a device"


def version_of(status: os.stat_result) -> str:
    """Describe the version of a local file: size, modification time, change time, and the name of this machine.

    The change time (ctime) reveals changes that keep size and modification time, such as those by ``mv`` and ``cp -p``.
    Inode numbers are not used, because several FUSE file systems change them later.
    """
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {platform.node()}"


def is_version(status: os.stat_result, version: str) -> bool:
    """Return whether a file still has the ``version`` that :func:`version_of` described.

    If ``version`` is from another machine, only size and modification time must agree, because a copy's change time
    differs.
    """
    size, modified, changed, machine = version.split(" ", 3)
    same = (status.st_size, status.st_mtime_ns) == (int(size), int(modified))
    return same and (status.st_ctime_ns == int(changed) or machine != platform.node())


def open_regular(path: str | os.PathLike[str]) -> tuple[int, int]:
    """Open a regular file for reading; return its descriptor and size. Raise OSError immediately for other files.

    Opening a named pipe could wait forever for a writer, and reading a device might never end.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except ValueError as error:  # The path contains half a surrogate pair or a zero byte.
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from error
    except OSError as error:
        if error.errno == errno.ENXIO:  # The path is a socket, or a device that does not exist.
            raise NotRegular(errno.EINVAL, "a socket or a device, not a regular file", path) from error
        raise
    status = os.fstat(file)
    if stat.S_ISREG(status.st_mode):
        return file, status.st_size
    os.close(file)
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise NotRegular(errno.EINVAL, f"{kind_of(status.st_mode)}, not a regular file", path)
