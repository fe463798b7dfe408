"""Limits that the system sets a process: they are raised where that is ours to do, and named where one is reached."""

from __future__ import annotations

import errno
import mmap
import os
import resource
import threading
from pathlib import Path
from typing import Final

from dualray.exceptions import DualrayError

OPEN_FILES_MAX: Final = 1 << 16
"""More is not asked for: some programs close, one by one, all descriptors that they might have."""

OPEN_FILES_MIN: Final = 40
"""Of a node manager with one worker, and of a driver: with fewer a session does not start."""

_NO_THREAD: Final = "can't start new thread"
_STACK_BYTES: Final = 8 << 20
"""Of a thread, where the system sets no limit."""
_BEGINS_WITHIN_S: Final = 10.0
_FIRST_FRAMES_BYTES: Final = 4 << 20
"""A new thread asks for 16 KiB for its frames, and may ask for an arena of 1 MiB for its objects."""


def open_standard_streams() -> None:
    """Open /dev/null where this process has no descriptor 0, 1 or 2. Otherwise the next socket would get that number,
    and the processes that it starts would write their output there."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= _STANDARD_FD_MAX:
        os.set_inheritable(fd, True)
    os.close(fd)


_STANDARD_FD_MAX: Final = 2


def raise_open_files() -> None:
    """Let this process, and those that it starts, have as many files open as the hard limit allows, up to
    OPEN_FILES_MAX: an actor takes three of its node manager's, and one of each process that calls it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def check_open_files() -> None:
    """That a process of a session has room for the files that it has open from the beginning.

    Raises:
        DualrayError: this process may not have so many, and cannot raise its limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < OPEN_FILES_MIN:
        raise DualrayError(
            f"this process may have {_amount(soft)} open files (RLIMIT_NOFILE, with the hard limit "
            f"{_amount(hard)}), but dualray needs at least {OPEN_FILES_MIN}. Raise the limit with `ulimit -n`"
        )


def check_room_for_files(count: int) -> None:
    """That this process may open so many files more.

    Raises:
        OSError: EMFILE, ENFILE: it may not.
    """
    opened: list[int] = []
    try:
        while len(opened) < count:
            opened.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    finally:
        for fd in opened:
            os.close(fd)


def starved_in_words(process: str, limit: int) -> str:
    """That another process has reached its limit of open files."""
    return (
        f"{process} has reached its limit of open files, {limit:,} (RLIMIT_NOFILE); raise the limit with `ulimit -n`, "
        "or use fewer actors"
    )


def limit_in_words(error: OSError | RuntimeError | MemoryError) -> str:
    """Which limit has been reached, with its value and the way out; the error's own words when it is none."""
    if isinstance(error, MemoryError):
        return _memory()
    if isinstance(error, RuntimeError):  # "can't start new thread", of which Python keeps no number
        is_limited = resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
        return f"{error}: {_processes()}" + (f"; {_memory()}" if is_limited else "")  # its stack is memory, too
    if error.errno == errno.EMFILE:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        return (
            f"this process has reached its limit of open files, {_amount(soft)} (RLIMIT_NOFILE; the hard limit is "
            f"{_amount(hard)}); raise the limit with `ulimit -n`, or use fewer actors"
        )
    if error.errno == errno.ENFILE:
        return "this machine has reached its limit of open files; raise fs.file-max"
    if error.errno == errno.EAGAIN:
        return f"{error.strerror}: {_processes()}"
    if error.errno == errno.ENOMEM:
        return _memory()
    if error.errno == errno.EFBIG:
        soft, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        return (
            f"this process may only write files up to {_amount(soft)} bytes (RLIMIT_FSIZE); raise the limit with "
            "`ulimit -f`, or use a smaller object store"
        )
    if error.errno == errno.ENOSPC:
        return f"no space left on the disk of {error.filename}" if error.filename else "no space left on the disk"
    return str(error)


class _Started(threading.Event):
    """An event that a thread sets when it begins. A wait without a timeout ends after _BEGINS_WITHIN_S."""

    def wait(self, timeout: float | None = None) -> bool:
        return super().wait(_BEGINS_WITHIN_S if timeout is None else timeout)


def start_thread(thread: threading.Thread) -> None:
    """Start a thread when there is memory for it.

    `Thread.start` alone waits for ever for a thread that has got its stack, and then no memory for its first frame. If
    somebody lowers the limit between the check and the start, this waits for a while.

    Raises:
        RuntimeError: the words that Python uses: no thread can be started.
    """
    check_room_for_thread()
    thread._started = started = _Started()  # type: ignore[attr-defined]  # the event that `Thread.start` waits for
    thread.start()
    if not started.is_set():
        raise RuntimeError(_NO_THREAD)


def check_room_for_thread() -> None:
    """That this process has address space for one thread more.

    Raises:
        RuntimeError: it has not, in the words that Python uses.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_STACK)
    stack_bytes = soft if soft != resource.RLIM_INFINITY else _STACK_BYTES
    try:
        mmap.mmap(-1, stack_bytes + _FIRST_FRAMES_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except (OSError, MemoryError):
        raise RuntimeError(_NO_THREAD) from None


def is_out_of_threads(error: BaseException) -> bool:
    """Whether a thread could not be started, for which Python has no class of its own."""
    return isinstance(error, RuntimeError) and str(error) == _NO_THREAD


def is_exhaustion(error: BaseException) -> bool:
    """Whether it says that something has run out, and may be there again later."""
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, OSError) and error.errno in (
        errno.EMFILE,
        errno.ENFILE,
        errno.EAGAIN,
        errno.ENOMEM,
        errno.ENOSPC,
        errno.ENOBUFS,
        errno.EFBIG,
    )


def _memory() -> str:
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft == resource.RLIM_INFINITY:
        return "this machine, or this container, has no memory left"
    return (
        f"this process may have {_amount(soft)} bytes of address space (RLIMIT_AS), but needs more; raise the limit "
        f"with `ulimit -v`, or use a smaller object store"
    )


def _processes() -> str:
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    try:
        allowed = Path("/sys/fs/cgroup/pids.max").read_text().strip()
    except OSError:
        allowed = "unknown"
    return (
        f"this user may have {_amount(soft)} processes and threads (RLIMIT_NPROC), this container {allowed} "
        f"(pids.max); raise the lower limit, or use fewer workers"
    )


def _amount(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else f"{limit:,}"
