"""The node manager's side of the worker template: it orders workers and learns how they ended.

Theory of operation. `attach` takes the socket of a template that the founder has forked (`worker_template.py`
gives the protocol); `start` runs one with an environment of its own making. `fork` may be called at once, also
while the template still imports: orders wait in the socket, then in a queue here. Each order has one of two
fates, `on_forked` or `on_failed`, and each forked worker one, `on_exited`. When the template itself ends, its
workers die with it: every order that is open fails, every worker that lived is reported as killed (status -9),
and then `on_lost` is called, once. After `close` nothing is called any more.

Callbacks come on the loop's thread; `fork`, `signal` and `close` may be called from any thread.
"""

import array
import collections
import contextlib
import dataclasses
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from dualray.real.net.loop import Loop
from dualray.real.session.children import environment_of_workers
from dualray.real.session.worker_template import REQUEST_BYTES_MAX

_log = logging.getLogger(__name__)

_READS_PER_TURN: Final = 16


@dataclasses.dataclass(slots=True)
class _Order:
    worker: str
    data: bytes
    fds: tuple[int, ...]


class TemplateClient:
    """See the module's theory of operation.

    Args:
        loop: hears the template; the owner runs it.
        on_forked: called with (worker, pid).
        on_exited: called with (worker, pid, status): the exit code, or minus the signal that killed it.
        on_failed: called with (worker, error) when there is no such process.
        on_ready: called with the template's "ready" message, before any other callback.
        on_lost: called with the template's own status when it ended without `close`.
        env: the template's whole environment, which its workers inherit; by default this process's, with one thread
            for the numeric libraries where it does not say otherwise.
        cwd: its working directory; by default this process's.
    """

    def __init__(
        self,
        loop: Loop,
        on_forked: Callable[[str, int], object],
        on_exited: Callable[[str, int, int], object],
        *,
        on_failed: Callable[[str, str], object],
        on_ready: Callable[[dict[str, Any]], object] = lambda _: None,
        on_lost: Callable[[int], object] = lambda _: None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> None:
        self._loop = loop
        self._on_forked = on_forked
        self._on_exited = on_exited
        self._on_failed = on_failed
        self._on_ready = on_ready
        self._on_lost = on_lost
        self._env = environment_of_workers(os.environ) if env is None else dict(env)
        self._cwd = cwd
        self.reason = ""
        """Why the template has ended, in its own words."""
        self._lock = threading.Lock()
        self._queue: collections.deque[_Order] = collections.deque()  # what the socket did not take yet
        self._ordered: dict[str, None] = {}  # workers with an open order
        self._living: dict[str, int] = {}  # worker -> pid
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.pid = 0
        """The template's process id: of an attached one once it is ready."""
        self._is_ready = False

    def start(self) -> None:
        """Start the template; it is usable at once and fast once it has imported."""
        assert self._process is None, "a template is started once"
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        with theirs, contextlib.ExitStack() as undo:
            undo.callback(ours.close)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "dualray.real.session.worker_template", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                env=self._env,
                cwd=self._cwd,
            )
            undo.pop_all()
        self.pid = self._process.pid
        self._begin(ours)

    def attach(self, control: socket.socket) -> None:
        """Give orders to a template that somebody else has started, through this socket, which is then ours."""
        assert self._socket is None, "a template is attached once"
        control.setblocking(False)
        self._begin(control)

    @property
    def has_served(self) -> bool:
        """Whether the template's imports succeeded."""
        return self._is_ready

    def _begin(self, control: socket.socket) -> None:
        self._socket = control
        self._loop.call_soon(lambda: self._loop.add_reader(control.fileno(), self._read) if self._socket else None)

    def fork(self, worker: str, argv: Mapping[str, Any]) -> tuple[int, int]:
        """Order a worker.

        Args:
            worker: its name, not in use by another one.
            argv: what `dualray.real.processes.worker.main` is called with; JSON, up to REQUEST_BYTES_MAX.
        Returns:
            The read ends of its standard output and standard error, which are the caller's to close. They are at
            their end when the worker, and whatever it started, has ended, or at once when the order fails.
        """
        data = json.dumps({"op": "fork", "worker": worker, "argv": dict(argv)}).encode()
        if len(data) > REQUEST_BYTES_MAX:
            raise ValueError(
                f"the arguments of {worker} have {len(data)} bytes, but may have at most {REQUEST_BYTES_MAX}"
            )
        with self._lock:
            if worker in self._ordered or worker in self._living:
                raise ValueError(f"{worker} exists")
            stdout_read, stdout_write = os.pipe2(os.O_CLOEXEC)
            try:
                stderr_read, stderr_write = os.pipe2(os.O_CLOEXEC)
            except OSError:
                os.close(stdout_read)
                os.close(stdout_write)
                raise
            self._ordered[worker] = None
            order = _Order(worker, data, (stdout_write, stderr_write))
            if self._socket is None:
                self._close_fds(order)
                self._loop.call_soon(lambda: self._fail(worker, "the worker template has ended"))
            else:
                self._send(order)
        return stdout_read, stderr_read

    def signal(self, worker: str, number: int = signal.SIGKILL) -> None:
        """Send a signal to a worker that was forked; nothing happens when it has ended."""
        data = json.dumps({"op": "signal", "worker": worker, "signal": int(number)}).encode()
        with self._lock:
            if self._socket is not None:
                self._send(_Order(worker, data, ()))

    def close(self, timeout_s: float = 5.0) -> None:
        """End every worker (SIGKILL), wait until they are gone, and end the template, if `start` has started it.
        Idempotent."""
        # One that imports still has no workers, and its end is for whoever started it.
        self._loop.call_and_wait(lambda: self._hang_up(wait_s=timeout_s if self._is_ready else 0.0))
        if self._process is not None and self._process.returncode is None:
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self._process.kill()  # the kernel then kills the workers
                self._process.wait()

    # -- orders (under the lock) -----------------------------------------------------------------------------

    def _send(self, order: _Order) -> None:
        if self._queue or not self._try(order):
            self._queue.append(order)
            self._loop.call_soon(self._watch_writable)

    def _try(self, order: _Order) -> bool:
        """Hand one order to the kernel; False when the socket is full. A broken one is noticed by the reader."""
        assert self._socket is not None
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", order.fds))] if order.fds else []
        try:
            self._socket.sendmsg([order.data], rights, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return False
        except OSError:
            pass
        self._close_fds(order)
        return True

    @staticmethod
    def _close_fds(order: _Order) -> None:
        for fd in order.fds:
            os.close(fd)

    @staticmethod
    def _wait_for_end(control: socket.socket, timeout_s: float) -> None:
        control.settimeout(timeout_s)
        try:
            control.shutdown(socket.SHUT_WR)
            while control.recv(REQUEST_BYTES_MAX):
                pass
        except OSError:  # too late, or the template itself is gone
            return

    # -- on the loop's thread --------------------------------------------------------------------------------

    def _watch_writable(self) -> None:
        if self._socket is not None and self._queue:
            self._loop.add_writer(self._socket.fileno(), self._write)

    def _write(self) -> None:
        with self._lock:
            assert self._socket is not None
            while self._queue and self._try(self._queue[0]):
                self._queue.popleft()
            if not self._queue:
                self._loop.remove_writer(self._socket.fileno())

    def _read(self) -> None:
        """Take in news, to a bound: where hundreds of workers end at once, others are heard between."""
        for _ in range(_READS_PER_TURN):
            if self._socket is None:
                return
            try:
                data = self._socket.recv(REQUEST_BYTES_MAX)
            except BlockingIOError:
                return
            except ConnectionResetError:
                data = b""
            if not data:
                self._lose()
                return
            self._hear(json.loads(data))

    def _hear(self, message: dict[str, Any]) -> None:
        match message:
            case {"ready": int(pid)}:
                self.pid, self._is_ready = pid, True
                self._on_ready(message)
            case {"forked": str(worker), "pid": int(pid)}:
                with self._lock:
                    del self._ordered[worker]
                    self._living[worker] = pid
                self._on_forked(worker, pid)
            case {"failed": str(worker), "error": str(error)}:
                self._fail(worker, error)
            case {"unable": str(why)}:
                self.reason = why
                _log.critical("the worker template ends: %s", why)
            case {"exited": str(worker), "pid": int(pid), "status": int(status)}:
                with self._lock:
                    del self._living[worker]
                self._on_exited(worker, pid, status)
            case _:
                raise ValueError(f"the worker template (the process that forks new workers) reports: {message}")

    def _fail(self, worker: str, error: str) -> None:
        with self._lock:
            known = self._ordered.pop(worker, "unknown") is None
        if known:
            self._on_failed(worker, error)

    def _lose(self) -> None:
        """The template has ended by itself."""
        with self._lock:
            ordered, living = list(self._ordered), dict(self._living)
        self._hang_up()
        status = self._process.wait() if self._process is not None else -signal.SIGKILL
        with contextlib.ExitStack() as calls:  # each is made, also when one of them raises; last in, first out
            calls.callback(self._on_lost, status)
            for worker, pid in reversed(living.items()):
                calls.callback(self._on_exited, worker, pid, -signal.SIGKILL)
            for worker in reversed(ordered):
                calls.callback(self._on_failed, worker, f"the template ended with status {status}")

    def _hang_up(self, *, wait_s: float = 0.0) -> None:
        """Say that no more orders come, and wait at most so long until the template has ended our workers."""
        with self._lock:
            if self._socket is None:
                return
            self._loop.remove_reader(self._socket.fileno())
            self._loop.remove_writer(self._socket.fileno())
            with self._socket:
                if wait_s:
                    self._wait_for_end(self._socket, wait_s)
            self._socket = None
            for order in self._queue:
                self._close_fds(order)
            self._queue.clear()
            self._ordered.clear()
            self._living.clear()
