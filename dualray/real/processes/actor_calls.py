"""Where the methods of an actor run of which several may run at a time: on threads, or as coroutines on event loops,
one for each concurrency group, so that one that blocks its loop holds up no other group.

How many run at a time, and in which order they begin, is the machine's to say. The constructor of an actor with
coroutines runs on the loop of its methods, and that of an actor with threads on the worker's main thread. The main
thread serves the sockets from then on.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from typing import Final

from dualray.real.limits import check_room_for_thread, start_thread
from dualray.shared.core.core_worker import CoreWorker
from dualray.shared.handles import CALL_TASK
from dualray.shared.model.commands import RunTask
from dualray.shared.model.ids import TaskID

_LOOK_AGAIN_S: Final = 0.01
"""Between looks of who waits for the calls of an event loop to end."""


class CallThreads:
    """Runs calls on threads that live as long as the actor: what a method keeps in a `threading.local` is there for a
    later call. Each concurrency group has its own, as many as calls of it may run; a thread is started when a call
    begins and none of its group is idle.

    Args:
        on_escape: called, on the thread, with what is no Exception and was caught by nobody.
    """

    def __init__(self, core: CoreWorker, on_escape: Callable[[BaseException], object]) -> None:
        self._core = core
        self._on_escape = on_escape
        self._threads: dict[str, ThreadPoolExecutor] = {}
        """By concurrency group."""

    def start(self, task: RunTask, threads_max: int) -> None:
        """Begin with a call, when one of the threads of its group is free: the one that has just reported is soon."""
        group = task.spec.template.concurrency_group
        threads = self._threads.get(group)
        if threads is None:
            name = f"dualray-call-{group}" if group else "dualray-call"
            threads = self._threads[group] = ThreadPoolExecutor(threads_max, thread_name_prefix=name)
        if len(threads._threads) < threads_max:
            check_room_for_thread()
        threads.submit(self._run, task)

    def wait(self) -> None:
        """Wait until the calls have ended."""
        for threads in self._threads.values():
            threads.shutdown(wait=True)

    def _run(self, task: RunTask) -> None:
        try:
            self._core.execute(task)
        except BaseException as error:  # noqa: BLE001 - the process decides
            self._on_escape(error)


class CallLoop:
    """Runs the calls of one concurrency group as coroutines, on an event loop with a thread of its own."""

    def __init__(self, core: CoreWorker, on_escape: Callable[[BaseException], object]) -> None:
        self._core = core
        self._on_escape = on_escape
        self.loop = asyncio.new_event_loop()
        self._calls: dict[TaskID, asyncio.Task[None]] = {}
        self._is_running = False

    def start(self, task: RunTask) -> None:
        """Begin with a call."""
        if not self._is_running:
            self._is_running = True
            start_thread(threading.Thread(target=self._run, name="dualray-asyncio", daemon=True))
        self.loop.call_soon_threadsafe(self._begin, task, context=Context())

    def _begin(self, task: RunTask) -> None:
        # Not by create_task: a method may have set a task factory, which may return anything.
        running = asyncio.Task(self._core.execute_async(task), loop=self.loop, name=CALL_TASK)
        task_id = task.spec.task_id
        self._calls[task_id] = running  # the loop keeps only weak references
        running.add_done_callback(lambda ended: self._end(task_id, ended))

    def _end(self, task_id: TaskID, ended: asyncio.Task[None]) -> None:
        if self._calls.get(task_id) is ended:  # else it was made again meanwhile
            del self._calls[task_id]
        error = ended.exception() if not ended.cancelled() else None
        if error is not None:
            self._on_escape(error)

    def wait(self) -> None:
        """Wait until the calls have ended. Another thread."""
        while self._calls:
            time.sleep(_LOOK_AGAIN_S)

    def cancel(self, task: TaskID) -> None:
        """Cancel a call, if it runs here. Any thread."""
        # Two turns: a coroutine that is cancelled before its first line would never be reported.
        self.loop.call_soon_threadsafe(self.loop.call_soon, self._cancel, task)

    def _cancel(self, task: TaskID) -> None:
        running = self._calls.get(task)
        if running is not None:
            running.cancel()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            while True:  # a method may have stopped the loop, and calls wait
                self.loop.run_forever()
        except BaseException as error:  # noqa: BLE001 - the process decides
            self._on_escape(error)
