"""A worker process: runs the tasks that are pushed to it, one at a time, on its main thread.

It is forked from the warm template and lives until its node manager ends it or is gone.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn, Protocol

from dualray import runtime
from dualray.exceptions import ControlPlaneError, rays_words
from dualray.progress_bars import BarState
from dualray.real.limits import check_room_for_files, is_exhaustion, is_out_of_threads, limit_in_words
from dualray.real.observe import stacks
from dualray.real.observe.worker_output import MarkedFile, PartialLines, TellingHandler, bar_line, marked_stream
from dualray.real.processes.interrupts import TaskInterrupts, Terminations
from dualray.real.processes.process import Signal, Terminated, UserProcess
from dualray.real.processes.process_runtime import ProcessRuntime
from dualray.real.processes.runner import EXIT_AFTER_ERROR
from dualray.real.session import session as sessions
from dualray.real.session.parents import kill_children
from dualray.real.session.titles import RaysTitles
from dualray.shared.model.commands import RunTask
from dualray.shared.model.events import TaskPushed, WorkerReady
from dualray.shared.model.ids import HEAD, Address, FunctionID, NodeID, root_task_id
from dualray.visible_devices import VisibleDevices

_FILES_AT_FIRST: Final = 6
"""That a worker has open soon after it has begun: connections, and the arena."""


class _Load(Protocol):
    def __call__(self, function: FunctionID) -> Any: ...


class WorkerRuntime(ProcessRuntime):
    """The runtime that user code in a worker sees."""

    def __init__(self, process: UserProcess, stderr: MarkedFile) -> None:
        super().__init__(process)
        self._stderr = stderr

    def show_bar(self, state: BarState) -> None:
        self._stderr.write(bar_line(state))

    def trace_source(self) -> NoReturn:
        raise runtime.only_in_the_driver("timeline")

    def shutdown(self) -> None:
        """A task cannot end the cluster."""


class _Inbox:
    """The main thread's wait for tasks."""

    def __init__(self) -> None:
        self._signal: Signal | None = None
        self.before_waiting: Callable[[], None] = _nothing

    def tasks_came(self) -> None:
        """There are tasks to run. Any thread."""
        if self._signal is not None:
            self._signal.set()

    def get(self, process: UserProcess) -> RunTask | TaskPushed:
        """The next task. The main thread."""
        core = process.core
        while (task := core.next_task()) is None:
            signal_ = self._signal = process.new_signal()
            if not core.has_tasks:  # else they came before the signal
                self.before_waiting()
                signal_.wait()
            self._signal = None
        return task


def _nothing() -> None:
    """There is nothing to do yet."""


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
        on_tasks=inbox.tasks_came,
        on_lost=lambda peer: _on_lost(process, peer),
        on_error=_end_after_error,
        tell=lambda words: sys.stderr.write(words),
    )
    core = process.core
    process.on_escape = _end_by
    process.load_function = _or_end(process.load_function)
    process.transport.on_starved = _end_starved
    process.interrupts = TaskInterrupts(
        process.is_busy,
        process.loop.leave,
        is_in_user_code=lambda: core.is_in_user_code,
        is_due=core.is_to_be_interrupted,
        takes=core.takes_interrupt,
    )
    process.terminations = Terminations(process.is_busy, process.loop.leave, _raise_terminated)
    stdout, stderr = (MarkedFile(fd, lambda: core.execution, lambda: core.actor_instance) for fd in (1, 2))
    sys.stdout = printed = marked_stream(stdout, errors="replace")
    sys.stderr = errors = marked_stream(stderr, errors="backslashreplace")
    inbox.before_waiting = PartialLines(((printed, stdout), (errors, stderr))).end
    log = logging.getLogger("dualray")
    log.addHandler(TellingHandler(stderr))
    log.propagate = False  # handlers of the user's would show it as a task's
    runtime.set_current(WorkerRuntime(process, stderr))
    os.register_at_fork(after_in_child=process.note_fork)
    stacks.answer(process.session.stacks, address, lambda: stacks.describe_worker(core, process.loops_of_calls))
    visible = VisibleDevices(process.session.device_names)
    has_shutdown = False
    execute = core.execute if rays_words() is None else RaysTitles(core.execute)
    _start(process)
    with process.lock:
        process.send(Address(node), WorkerReady(worker=address), [])
        process.end_step()
    try:
        while True:
            task = inbox.get(process)
            if task.spec.actor_id is None:  # a method: its actor has them for life
                visible.show(task.device_ids, task.spec.template.runtime_env)
            execute(task)
            if task.spec.creates is not None:
                has_shutdown = task.spec.creates.has_shutdown
    except Terminated:
        (core.shut_down if has_shutdown else process.wait_for_calls)()
        _end_by_sigterm()
    except BaseException as error:  # noqa: BLE001 - user code's are caught where it runs
        _end_by(error)


def _end_by_sigterm() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    kill_children(os.getpid())
    os.kill(os.getpid(), signal.SIGTERM)


def _start(process: UserProcess) -> None:
    """Start the process's threads. Without room for them, or for files, it ends at once: whoever sends it a task would
    wait until it knows that nobody can connect to it."""
    try:
        process.start()
        check_room_for_files(_FILES_AT_FIRST)
    except RuntimeError as error:
        _end_after_error(error)
    except OSError as error:
        _end_starved(OSError(error.errno, limit_in_words(error)))


def _or_end(load: _Load) -> _Load:
    """Load functions like `load`. If this process has no descriptor for a connection to the control plane, end: each
    task with a new function would fail here, and another worker can run it."""

    def loaded(function: FunctionID) -> Any:
        try:
            return load(function)
        except ControlPlaneError as error:
            cause = error.__cause__
            if isinstance(cause, OSError) and is_exhaustion(cause):
                _end_starved(OSError(cause.errno, limit_in_words(cause)))
            raise

    return loaded


def _raise_terminated(_signal: int, _frame: FrameType | None) -> None:
    raise Terminated(1)


def _on_lost(process: UserProcess, peer: str) -> None:
    """Without its node manager or the head a worker has nothing to do. One that could not reach somebody else for want
    of a descriptor ends as well, so that its task is known to be lost: whoever waits would wait for ever."""
    if peer in (process.session.node, HEAD):
        kill_children(os.getpid())
        os._exit(0)
    why = process.transport.why_lost(peer)
    if isinstance(why, OSError) and is_exhaustion(why):
        _end_starved(why)


def _end_starved(error: OSError) -> None:
    """Others cannot reach this worker, or it cannot reach them, for want of a descriptor."""
    try:
        sys.stderr.write(f"this worker cannot connect to other processes, and ends: {error.strerror}\n")
        sys.stderr.flush()
    finally:
        os._exit(EXIT_AFTER_ERROR)


def _end_by(error: BaseException) -> None:
    """The process ends by what nobody has caught, whatever becomes of its words: a task may have closed its streams,
    and threads of the user's must not keep it."""
    try:
        _end_with_words(error)
    finally:
        os._exit(EXIT_AFTER_ERROR)


def _end_with_words(error: BaseException) -> None:
    if isinstance(error, SystemExit):  # user code wants its process to end
        _exit(error.code)
    if isinstance(error, Exception):  # user code's are caught where it runs: this one is ours
        _end_after_error(error)
    traceback.print_exception(error)  # user code's: so ends a Python process
    _exit(1)


def _exit(code: object) -> None:
    sys.stdout.flush()
    if code is not None and not isinstance(code, int):
        sys.stderr.write(f"{code}\n")
    sys.stderr.flush()
    kill_children(os.getpid())
    os._exit(code if isinstance(code, int) else int(code is not None))


def _end_after_error(error: BaseException) -> NoReturn:
    try:
        if isinstance(error, RuntimeError) and is_out_of_threads(error):
            sys.stderr.write(f"this worker ends: {limit_in_words(error)}\n")
            sys.stderr.flush()
            os._exit(EXIT_AFTER_ERROR)
        logging.getLogger("dualray").critical("this worker ends because of a bug in dualray", exc_info=error)
        sys.stderr.flush()
    finally:
        os._exit(EXIT_AFTER_ERROR)
