"""Copying what is large into the object store with several threads: one cannot fill what the memory takes.

Threads take pieces in turn until there are none: the one whose processor others use meanwhile copies fewer, and who
begins late, or never, holds nobody up. A thread costs as much to wake as 1 MiB to copy, and half as many threads as
there are processors, or two, do no harm where the others compute.
"""

from __future__ import annotations

import itertools
import os
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Final

import numpy as np

from dualray.real.limits import check_room_for_thread

_PART_BYTES_MIN: Final = 8 * 2**20
"""Of a thread."""
_PIECE_BYTES: Final = 2 * 2**20
_THREADS_MAX: Final = 8

_helpers: ThreadPoolExecutor | None = None


def copy(target: memoryview, source: memoryview) -> None:
    """Copy the bytes of `source` into `target`, which has as many; other threads run meanwhile."""
    to, of = np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8)
    processors = len(os.sched_getaffinity(0))
    threads = min(len(of) // _PART_BYTES_MIN, max(2, processors // 2), processors, _THREADS_MAX)
    if threads < 2:
        np.copyto(to, of)
        return
    turns = itertools.count()

    def copy_pieces() -> None:
        while (start := next(turns) * _PIECE_BYTES) < len(of):
            np.copyto(to[start : start + _PIECE_BYTES], of[start : start + _PIECE_BYTES])

    helping: list[Future[None]] = []
    try:
        for _ in range(threads - 1):
            try:
                check_room_for_thread()
                helping.append(_pool().submit(copy_pieces))
            except RuntimeError:  # an interpreter that ends has no threads for us, nor a machine that has too many
                break
        copy_pieces()
    finally:
        helped = [each for each in helping if not each.cancel()]  # the others have not begun
        _wait_for_all(helped)
    for each in helped:
        each.result()


def _wait_for_all(helped: list[Future[None]]) -> None:
    """Whatever interrupts this thread: while others write, the memory must not be given to anybody else."""
    interrupt: BaseException | None = None
    while not all(each.done() for each in helped):
        try:
            wait(helped)
        except BaseException as error:  # noqa: BLE001 - it is raised below
            interrupt = error
    if interrupt is not None:
        raise interrupt


def _pool() -> ThreadPoolExecutor:
    global _helpers  # noqa: PLW0603 - threads are the process's
    if _helpers is None:
        _helpers = ThreadPoolExecutor(_THREADS_MAX - 1, thread_name_prefix="dualray-copying")
    return _helpers


def _forget_helpers() -> None:
    global _helpers  # noqa: PLW0603
    _helpers = None  # a forked process has none of its parent's threads


os.register_at_fork(after_in_child=_forget_helpers)
