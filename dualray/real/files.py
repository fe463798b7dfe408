"""Files and directories where others may write: the temporary directory, /dev/shm, what holds spilled objects and logs.

Every other module of real mode makes and opens there through this one (`tests/real/test_files.py` looks for those that
do not). The rules: what is made must not exist, and belongs to this user alone (0700, 0600); what is opened must be
this user's, and no symbolic link is followed to it; files in such a directory are reached by its descriptor, so that
whoever renames the directory changes nothing. What others have put there is not read, not removed and no error of ours.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_OTHERS: Final = 0o077
_REMOVED_TIMES_MAX: Final = 5
_REMOVED_AGAIN_AFTER_S: Final = 0.02


def make_directory(path: Path) -> None:
    """Make a directory that this user alone may enter; its parents must be there.

    Raises:
        FileExistsError: something of that name is there, whoever's it is.
    """
    os.mkdir(path, 0o700)  # noqa: PTH102 - a Path would check nothing more


def ensure_directory(path: Path) -> None:
    """Make a directory for this user alone, or see that what is there is one; the errors of `open_directory`."""
    with contextlib.suppress(FileExistsError):
        make_directory(path)
    os.close(open_directory(path))


def open_directory(path: Path) -> int:
    """A descriptor of a directory, checked: it is this user's, and nobody else may enter it.

    Raises:
        PermissionError: it is somebody else's, or open to others; the message says which.
        OSError: it is missing, a symbolic link or no directory.
    """
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _check(fd, str(path), "0700")
    except BaseException:
        os.close(fd)
        raise
    return fd


@contextlib.contextmanager
def opened_directory(path: Path) -> Iterator[int]:
    """`open_directory`, and closed at the end."""
    fd = open_directory(path)
    try:
        yield fd
    finally:
        os.close(fd)


def create(name: str | Path, *, within: int | None = None, readable: bool = False) -> int:
    """A descriptor of a new file, mode 0600, to be written and, if `readable`, to be read.

    Args:
        within: a directory's descriptor, which `name` is relative to.
    Raises:
        FileExistsError: something of that name is there.
    """
    access = os.O_RDWR if readable else os.O_WRONLY
    return os.open(name, access | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=within)


def open_file(name: str | Path, *, within: int | None = None, writable: bool = False) -> int:
    """A descriptor of a file that is there, checked: it is this user's regular file, and nobody else may use it.

    Raises:
        PermissionError: it is somebody else's, open to others, or no regular file; the message says which.
        OSError: it is missing, or a symbolic link.
    """
    access = os.O_RDWR if writable else os.O_RDONLY
    fd = os.open(name, access | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=within)  # a FIFO would block
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise PermissionError(f"{name} is not a regular file")
        _check(fd, str(name), "0600")
        os.set_blocking(fd, True)
    except BaseException:
        os.close(fd)
        raise
    return fd


def open_to_append(path: Path) -> int:
    """A descriptor of a file, made if it is missing, to which bytes are appended. Its directory is checked, too.

    Raises:
        PermissionError: one of them is somebody else's, the directory is open to others, or the file is no regular one.
        OSError: the directory is missing, or one of them is a symbolic link.
    """
    with opened_directory(path.parent) as directory:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(path.name, flags, 0o644, dir_fd=directory)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid():
                raise PermissionError(f"{path} is not a regular file of this user's")
            os.set_blocking(fd, True)
        except BaseException:
            os.close(fd)
            raise
        return fd


def write(path: Path, content: bytes) -> None:
    """Make a file with this content; FileExistsError when something of that name is there."""
    with os.fdopen(create(path), "wb") as file:
        file.write(content)


def read(path: Path) -> bytes:
    """The content of a file of this user's; the errors of `open_file`."""
    with os.fdopen(open_file(path), "rb") as file:
        return file.read()


def is_own_directory(path: Path) -> bool:
    """Whether it is a directory of this user's, and no symbolic link to one; False also when that cannot be told."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()


def own_directories(parent: Path, prefix: str) -> Iterator[Path]:
    """Directories of this user's whose name begins so, by name. What others have put there is passed over."""
    try:
        found = sorted(path for path in parent.iterdir() if path.name.startswith(prefix))
    except OSError:
        return
    yield from filter(is_own_directory, found)


def remove_directory(path: Path) -> None:
    """Remove a directory of this user's with all that is in it, if it is there; nothing else is touched.

    A process of the session that ends meanwhile may put one more file there: then it is tried again.
    """
    for _ in range(_REMOVED_TIMES_MAX):
        if not is_own_directory(path):
            return
        shutil.rmtree(path, ignore_errors=True)
        if not os.path.lexists(path):
            return
        time.sleep(_REMOVED_AGAIN_AFTER_S)


def _check(fd: int, name: str, mode: str) -> None:
    status = os.fstat(fd)
    if status.st_uid != os.getuid():
        raise PermissionError(
            f"{name} belongs to uid {status.st_uid}, but must belong to uid {os.getuid()}: remove the file or directory"
        )
    if stat.S_IMODE(status.st_mode) & _OTHERS:
        raise PermissionError(
            f"{name} is accessible to other users (mode {stat.S_IMODE(status.st_mode):04o}): it must have mode {mode}"
        )
