"""The driver's process in real mode: it has started a head and a node on this machine and stops them at exit, or it has
joined a cluster through the node that this has here, and starts and stops nothing."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from dualray.exceptions import DualrayError
from dualray.progress_bars import DISPLAY, BarState
from dualray.real.limits import is_exhaustion
from dualray.real.net.addresses import socket_path
from dualray.real.observe.counters import TABLES_EMPTY
from dualray.real.observe.driver_output import DriverOutput
from dualray.real.observe.worker_output import FLUSH, FLUSHED, LINES
from dualray.real.processes.process import UserProcess
from dualray.real.processes.process_runtime import ProcessRuntime
from dualray.real.session.children import HEAD_MODULE, NODE_MODULE, Children, last_logs
from dualray.real.session.session import CONTROL_PLANE_FILE, METRICS_FILE, Session
from dualray.shared.model.events import Started
from dualray.shared.model.ids import FIRST_DRIVER, HEAD, Address, root_task_id
from dualray.shared.model.resources import offered_words
from dualray.user_metrics import METRICS

if TYPE_CHECKING:
    from dualray.real.processes.run_recorder import RunNotes

_DIRECTORY_CHECK_S = 2.0
_START_TIMEOUT_S = 60.0
"""Longer than the founder gives head and node manager."""
_LAST_LINES_TIMEOUT_S = 1.0
_POLL_S = 0.001


class RealRuntime(ProcessRuntime):
    """The driver's runtime: owns the processes that `init` has started, if it has.

    Args:
        session: the node's, made by this process or, with `joins`, by a node's daemon.
        driver, job: this driver's address and number; both are used once in a cluster.
        namespace: where the names of its actors stand; "": in one of its own.
        children: the session's processes, the founder started; None: another process has them.
    """

    def __init__(
        self,
        session: Session,
        *,
        children: Children | None,
        driver: Address = FIRST_DRIVER,
        job: int = 1,
        namespace: str = "",
    ) -> None:
        self.session = session
        self.control_plane = ""
        self._namespace = namespace
        self._is_stopped = False
        self.record: RunNotes | None = None
        """Makes the record of this run, at the end."""
        self._children = children
        self._pid = os.getpid()
        self._output = DriverOutput(session.node)
        self._flushed = threading.Semaphore(0)
        self._lost = threading.Event()
        super().__init__(
            UserProcess(
                session=session,
                address=driver,
                node=session.node,
                root=root_task_id(session.job_root, job),
                is_driver=True,
                on_tasks=_refuse_tasks,
                on_lost=self._on_peer_lost,
                on_error=self._on_error,
                tell=self._output.tell,
                on_raw=self._on_raw,
            )
        )

    @property
    def metrics_address(self) -> str | None:
        """host:port where this node serves its metrics; None when it does not."""
        path = self.session.directory / METRICS_FILE
        return path.read_text() if path.exists() else None

    # ---- Start -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start head and node, unless they are there, and wait until the cluster can be used."""
        if self._children is not None:
            self._children.spawn(HEAD, HEAD_MODULE)
            self._children.spawn(self.session.node, NODE_MODULE, self.session.node, "0")
        self._output.start()
        self._process.start()
        deadline = time.monotonic() + _START_TIMEOUT_S
        if self._children is not None:
            head = socket_path(self.session.sockets, HEAD)
            while not head.exists():  # the transport would try again and again, and in the end too late
                self._wait_for_news(deadline)
        self.core.dispatch(Started(namespace=self._namespace))
        control_plane = self.session.directory / CONTROL_PLANE_FILE
        # Who joins a cluster finds its control plane up; the file is on the head's machine alone.
        while not (self.core.machine.cluster and (self._children is None or control_plane.exists())):
            self._connect_to_node()
            self._wait_for_news(deadline)
        if self.session.cluster is None:
            self.control_plane = control_plane.read_text()
        if self._children is not None:
            logging.getLogger("dualray").info(
                "real mode: %s on this machine, control plane: %s",
                offered_words(self.session.total),
                self.control_plane,
            )
        else:
            logging.getLogger("dualray").info(
                "real mode: %s joined the cluster at %s through %s",
                self._process.address,
                self.session.directory if self.session.cluster is None else self.session.cluster.address,
                self.session.node,
            )
        if self.record is not None:
            self.record.program_begins()
        with contextlib.suppress(OSError):  # no address space: the first object that needs it says so
            self._process.store.attach()  # if the node manager dies later, what is there can still be read
        self._process.loop.call_later(_DIRECTORY_CHECK_S, self._check_directory)
        atexit.register(self.shutdown)

    def _connect_to_node(self) -> None:
        """Connect to the node manager before its first task: otherwise an actor that is submitted after this task could
        come first, because the head, which sends actors, has a connection."""
        if socket_path(self.session.sockets, self.session.node).exists():
            self._process.transport.connect(self.session.node)

    def _wait_for_news(self, deadline: float) -> None:
        if self._children is not None:
            self._children.check(_POLL_S)
        else:
            time.sleep(_POLL_S)
        if time.monotonic() > deadline:
            what = "answer" if self._children is None else "start"
            raise DualrayError(f"the cluster did not {what} within {_START_TIMEOUT_S:g} s{self._last_logs()}")

    def _last_logs(self) -> str:
        return last_logs(self.session, [HEAD, self.session.node])

    # ---- Trouble ---------------------------------------------------------------------------------------------

    def _on_peer_lost(self, peer: str) -> None:
        """Without head or node manager nothing goes on: whoever waits is told so."""
        if peer in (HEAD, self.session.node) and not self._is_stopped:
            if not self.session.sockets.exists() and self._children is not None:  # that is why
                self._fail_without_directory()
                return
            self._lost.set()
            what = "head process" if peer == HEAD else f"node manager {peer}"
            why = self._process.transport.why_lost(peer)
            if isinstance(why, OSError) and is_exhaustion(why):
                self.core.fail(
                    f"the driver has no connection to the {what}: {why.strerror or why}. Call dualray.shutdown(), and "
                    f"init() again when fewer files are open."
                )
                return
            self.core.fail(f"the {what} is gone{self._last_logs()}\nCall dualray.shutdown() and init() again.")

    def _check_directory(self) -> None:
        """Processes find one another through the session's directory: without it new connections wait for ever."""
        if self._is_stopped or self._lost.is_set():
            return
        if self.session.sockets.exists():
            self._process.loop.call_later(_DIRECTORY_CHECK_S, self._check_directory)
        else:
            self._fail_without_directory()

    def _fail_without_directory(self) -> None:
        self._lost.set()
        if self._children is None and not self.session.directory.exists():  # its end may be known later
            self.core.fail(
                f"the session's directory {self.session.directory} is gone: node {self.session.node} of this machine "
                f"has ended, or a program has deleted the directory. Call dualray.shutdown() and init() again."
            )
            return
        self.core.fail(
            f"the session's directory {self.session.directory} has been deleted while the session ran. Call "
            f"dualray.shutdown() and init() again. Set TMPDIR to a directory that no program cleans"
        )

    # ---- What workers print ----------------------------------------------------------------------------------

    def _on_raw(self, peer: str, header: memoryview) -> None:
        if header[0] == LINES and self.session.log_to_driver:
            self._output.put(header[1:])
        elif header[0] == FLUSHED:
            self._flushed.release()
        elif header[0] == TABLES_EMPTY:
            self._process.spawn(self._process.put_functions_again)

    def _fetch_last_lines(self) -> None:
        """What workers have printed up to now is to be shown before we leave."""
        if not self.session.log_to_driver or self._lost.is_set() or not self.core.execution.submitted:
            return
        nodes = [info.node for info in self.core.machine.cluster]
        for node in nodes:
            self._process.transport.send(node, bytes((FLUSH,)))
        deadline = time.monotonic() + _LAST_LINES_TIMEOUT_S
        for _ in nodes:
            if self._lost.is_set() or not self._flushed.acquire(timeout=max(0.0, deadline - time.monotonic())):
                return

    def _on_error(self, error: Exception) -> None:
        logging.getLogger("dualray").critical("the driver failed because of a bug in dualray", exc_info=error)
        self.core.fail(f"the driver failed because of a bug in dualray: {error!r}", is_sound=False)

    def show_bar(self, state: BarState) -> None:
        DISPLAY.take("", state)

    # ---- Questions -------------------------------------------------------------------------------------------

    def trace_source(self) -> Path | None:
        return self.session.record_directory

    # ---- End -------------------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Leave the cluster; stop every process and remove every file that `init` has made. Idempotent."""
        if self._is_stopped or os.getpid() != self._pid:  # a forked child of the driver's owns nothing here
            return
        self._is_stopped = True
        if self.record is not None:
            self.record.program_ends()
        atexit.unregister(self.shutdown)
        self.core.take_in_finalizers()
        self.core.tell_unread_failures()
        self._fetch_last_lines()
        if self.record is not None:
            self.record.wait_for_notes(self.session)
        self._process.close()
        if self.record is not None:
            self.record.collect(self.session)
        self._output.close()
        DISPLAY.forget()
        METRICS.clear()
        self._process.store.close(is_last=self._children is not None)
        if self._children is not None:
            self._children.end()
            self.session.remove()
        if self.record is not None:
            self.record.write(driver=self.core.execution.task_id)


def _refuse_tasks() -> None:
    raise AssertionError("dualray sent tasks to a driver, which runs no tasks: please report this bug of dualray")
