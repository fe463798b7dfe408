"""Copying what is large into the object store with several threads: one cannot fill what the memory takes.

Of 100 MiB on two processors it takes two thirds of the time of one thread. A thread costs as much to wake as 1 MiB to
copy, and half as many threads as there are processors, or two, do no harm where the others compute.
"""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Final

import numpy as np

_PART_BYTES_MIN: Final = 8 * 2**20
_PARTS_MAX: Final = 8
_PAGE: Final = 4096

_helpers: ThreadPoolExecutor | None = None


def copy(target: memoryview, source: memoryview) -> None:
    """Copy the bytes of `source` into `target`, which has as many; other threads run meanwhile."""
    to, of = np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8)
    processors = len(os.sched_getaffinity(0))
    parts = min(len(of) // _PART_BYTES_MIN, max(2, processors // 2), processors, _PARTS_MAX)
    if parts < 2:
        np.copyto(to, of)
        return
    step = -(-len(of) // (parts * _PAGE)) * _PAGE
    copied: list[Future[None]] = []
    try:
        for start in range(step, len(of), step):
            part = slice(start, start + step)
            try:
                copied.append(_pool().submit(np.copyto, to[part], of[part]))
            except RuntimeError:  # an interpreter that ends has no threads for us, nor a machine that has too many
                _end_helpers()
                np.copyto(to[start:], of[start:])
                break
        np.copyto(to[:step], of[:step])
    finally:
        _wait_for_all(copied)
    for each in copied:
        each.result()


def _wait_for_all(copied: list[Future[None]]) -> None:
    """Whatever interrupts this thread: while others write, the memory must not be given to anybody else."""
    interrupt: BaseException | None = None
    while not all(part.done() for part in copied):
        try:
            wait(copied)
        except BaseException as error:  # noqa: BLE001 - it is raised below
            interrupt = error
    if interrupt is not None:
        raise interrupt


def _pool() -> ThreadPoolExecutor:
    global _helpers  # noqa: PLW0603 - threads are the process's
    if _helpers is None:
        _helpers = ThreadPoolExecutor(_PARTS_MAX - 1, thread_name_prefix="dualray-copying")
    return _helpers


def _end_helpers() -> None:
    """What one of them may have been given without our knowledge, it has done afterwards."""
    if _helpers is not None:
        _helpers.shutdown()
        _forget_helpers()


def _forget_helpers() -> None:
    global _helpers  # noqa: PLW0603
    _helpers = None  # a forked process has none of its parent's threads


os.register_at_fork(after_in_child=_forget_helpers)
