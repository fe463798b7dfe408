"""A worker process: runs the tasks that are pushed to it, one at a time, on its main thread.

It is forked from the warm template and lives until its node manager ends it or is gone.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import traceback
from collections import deque
from collections.abc import Mapping
from pathlib import Path

from dualray import runtime
from dualray.real import session as sessions
from dualray.real.gpus import VisibleGpus
from dualray.real.process import Signal, UserProcess
from dualray.real.runner import EXIT_AFTER_ERROR
from dualray.real.worker_output import marked_stream
from dualray.shared.core_worker import CoreWorker
from dualray.shared.model.commands import RunTask
from dualray.shared.model.events import WorkerReady
from dualray.shared.model.ids import HEAD, Address, NodeID, root_task_id


class WorkerRuntime:
    """The runtime that user code in a worker sees."""

    mode = "real"

    def __init__(self, verbs: CoreWorker, gpu_names: tuple[str, ...]) -> None:
        self.verbs = verbs
        self.gpu_names = gpu_names

    def shutdown(self) -> None:
        """A task cannot end the cluster."""


class _Inbox:
    """The tasks that the machine wants to have run now, and the main thread's wait for them."""

    def __init__(self) -> None:
        self._tasks: deque[RunTask] = deque()
        self._signal: Signal | None = None

    def put(self, task: RunTask) -> None:
        """A task is to run. Any thread."""
        self._tasks.append(task)
        if self._signal is not None:
            self._signal.set()

    def get(self, process: UserProcess) -> RunTask:
        """The next task. The main thread."""
        while not self._tasks:
            signal_ = self._signal = process.new_signal()
            if not self._tasks:  # else it came before the signal
                signal_.wait()
        self._signal = None
        return self._tasks.popleft()


def main(argv: Mapping[str, str]) -> None:
    """Run a worker; `argv` names session, node and address. Does not return."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    address, node = Address(argv["address"]), NodeID(argv["node"])
    inbox = _Inbox()
    process = UserProcess(
        session=sessions.load(Path(argv["session"])),
        address=address,
        node=node,
        root=root_task_id(address, 0),
        is_driver=False,
        on_task=inbox.put,
        on_lost=lambda peer: os._exit(0) if peer in (node, HEAD) else None,
        on_error=_end_after_error,
        tell=lambda words: sys.stderr.write(words),
    )
    core = process.core
    sys.stdout = marked_stream(1, lambda: core.execution, errors="replace")
    sys.stderr = marked_stream(2, lambda: core.execution, errors="backslashreplace")
    names = process.session.gpu_names
    runtime.set_current(WorkerRuntime(process.core, names))
    visible = VisibleGpus(names)
    process.start()
    with process.lock:
        process.send(Address(node), WorkerReady(worker=address), [])
        process.end_step()
    try:
        while True:
            task = inbox.get(process)
            if task.spec.actor_id is None:  # a method: its actor has them for life
                visible.show(task.gpu_ids)
            core.execute(task)
    except SystemExit as exit_:  # user code wants its process to end
        _exit(exit_.code)
    except Exception as error:  # noqa: BLE001 - user code's are caught where it runs: this one is ours
        _end_after_error(error)
    except BaseException:  # noqa: BLE001 - user code's, and nobody has caught it: so ends a Python process
        traceback.print_exc()
        _exit(1)


def _exit(code: object) -> None:
    sys.stdout.flush()
    if code is not None and not isinstance(code, int):
        sys.stderr.write(f"{code}\n")
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def _end_after_error(error: BaseException) -> None:
    logging.getLogger("dualray").critical("this worker met a bug and ends", exc_info=error)
    sys.stderr.flush()
    os._exit(EXIT_AFTER_ERROR)
