"""The founder: one process that imports once, and forks head, node managers and worker templates of a session.

Theory of operation. Whoever makes a session, a driver or a node's daemon, runs `python -m dualray.real.session.zygote
SESSION FD`, FD being one end of a SOCK_SEQPACKET pair. The founder imports what head and node manager need and forks
those that the client asks for; with a node manager goes a worker template (worker_template.py), which imports the rest
by itself while the cluster already answers. What was imported here is in memory once for all of them. In JSON, a
datagram each:

    client -> founder   {"op": "start", "name": "node-0", "module": "dualray.real.processes.node", "arguments": [...]}
                        {"op": "release", "name": "node-0"}: it is to end in good order
                        {"op": "signal", "name": "node-0", "signal": 10}
    founder -> client   {"started": "node-0", "pid": PID}
                        {"failed": "node-0", "error": TEXT}, in place of "started"
                        {"ended": "node-0", "pid": PID, "status": EXIT CODE, or minus the signal}, after "started"

Who dies when. Head and node managers hold each the read end of a pipe, its lifeline, whose other end the founder holds
and nobody else; closing it, by will or by death, ends the process in good order. At the end of file on the client's
socket, or when the client has died and something else holds its socket, the founder closes all lifelines, waits until
they have ended, kills who has not within END_WITHIN_S, and ends. A template whose node manager has ended is killed, and
its workers with it (PR_SET_PDEATHSIG).

It has one thread and never blocks. If an import has started another thread, it starts interpreters instead of forking.
"""

from __future__ import annotations

import gc
import importlib
import json
import logging
import os
import random
import selectors
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from dualray.exceptions import ControlPlaneError
from dualray.real.limits import is_exhaustion, limit_in_words, raise_open_files
from dualray.real.session import worker_template
from dualray.real.session.children import END_WITHIN_S, FOUNDER_MODULE, MESSAGE_BYTES_MAX, NODE_MODULE
from dualray.real.session.parents import count_threads
from dualray.real.session.titles import set_title
from dualray.real.session.worker_template import end_process
from dualray.visible_devices import hidden

_PARENT_CHECK_S: Final = 1.0


@dataclass(slots=True)
class _Process:
    """A head or a node manager."""

    name: str
    pid: int
    lifeline: int | None
    """The write end."""
    template: int | None = None
    """The pid of its template."""


class Founder:
    """See the module.

    Args:
        session: the directory of the session.
        client: the socket of who makes it.
    """

    def __init__(self, session: str, client: socket.socket) -> None:
        self._session = session
        self._client = client
        """Open until we end: that tells it so."""
        self._is_ending = False
        self._parent_pid = os.getppid()
        self._processes: dict[int, _Process] = {}
        self._templates: set[int] = set()
        self._kill_at = 0.0
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector = selectors.DefaultSelector()

    def run(self) -> None:
        """Import, and serve until the client is gone and all have ended."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the driver, which then ends us
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a terminal that closes is the driver's to mind
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # the wake-up pipe says it
        self._selector.register(self._client, selectors.EVENT_READ, self._on_client)
        self._selector.register(self._wake_read, selectors.EVENT_READ, self._on_child_ended)
        while not self._is_ending or self._processes or self._templates:
            for key, _ in self._selector.select(_PARENT_CHECK_S):
                key.data()
            if os.getppid() != self._parent_pid:
                self._end()
            if self._is_ending and time.monotonic() > self._kill_at:
                for pid in self._processes:
                    os.kill(pid, signal.SIGKILL)

    # ---- The client ------------------------------------------------------------------------------------------

    def _on_client(self) -> None:
        try:
            data = self._client.recv(MESSAGE_BYTES_MAX)
        except ConnectionResetError:
            data = b""
        if not data:
            self._end()
            return
        order: dict[str, Any] = json.loads(data)
        known = [process for process in self._processes.values() if process.name == order["name"]]
        match order["op"]:
            case "start":
                self._start(order["name"], order["module"], order["arguments"])
            case "release":
                for process in known:
                    self._release(process)
            case "signal":
                for process in known:
                    os.kill(process.pid, order["signal"])

    def _tell(self, message: dict[str, Any]) -> None:
        try:
            self._client.send(json.dumps(message).encode(), socket.MSG_NOSIGNAL)
        except (BrokenPipeError, ConnectionResetError):  # it is gone, and its end of file says so
            return

    def _end(self) -> None:
        """The client is gone, or wants all to end."""
        if self._is_ending:
            return
        self._is_ending = True
        self._selector.unregister(self._client)
        for process in self._processes.values():
            self._release(process)
        self._kill_at = time.monotonic() + END_WITHIN_S

    # ---- Head and node managers ------------------------------------------------------------------------------

    @staticmethod
    def _release(process: _Process) -> None:
        if process.lifeline is not None:
            os.close(process.lifeline)
            process.lifeline = None

    def _start(self, name: str, module: str, arguments: list[str]) -> None:
        """Start `python -m module SESSION LIFELINE arguments`; a node manager with a template, whose socket comes
        before the arguments."""
        lifeline_read, lifeline_write = os.pipe()
        process = _Process(name, 0, lifeline_write)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        argv = [self._session, str(lifeline_read), *([str(ours.fileno())] if module == NODE_MODULE else []), *arguments]
        try:
            # The node manager goes first: it is waited for.
            process.pid = self._launch(
                module,
                argv,
                title=[self._session, *arguments],
                fds=(lifeline_read, ours.fileno()),
                not_its=(lifeline_write, theirs.fileno()),
            )
            self._processes[process.pid] = process
            if module == NODE_MODULE:
                process.template = self._launch(
                    worker_template.MODULE,
                    [str(theirs.fileno())],
                    title=[name],
                    fds=(theirs.fileno(),),
                    not_its=(lifeline_read, ours.fileno()),
                    environment=hidden(),  # no GPU is seen until a lease says which
                )
                self._templates.add(process.template)
        except OSError as error:
            self._release(process)
            said = limit_in_words(error) if is_exhaustion(error) else f"{type(error).__name__}: {error}"
            self._tell({"failed": name, "error": said})
            return
        finally:
            os.close(lifeline_read)
            ours.close()
            theirs.close()
        self._tell({"started": name, "pid": process.pid})

    def _launch(
        self,
        module: str,
        argv: list[str],
        *,
        title: list[str],
        fds: tuple[int, ...],
        not_its: tuple[int, ...],
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> int:
        """A child that does what `python -m module argv` does, with `fds` and without `not_its`; its pid. In lists of
        processes its arguments are those of `title`. `environment` is added to ours."""
        self._prepare(module)
        if count_threads() > 1:
            process = subprocess.Popen(
                [sys.executable, "-m", module, *argv],
                stdin=subprocess.DEVNULL,
                pass_fds=fds,
                env=os.environ | environment,
            )
            process.returncode = 0  # it is reaped here, with the others
            return process.pid
        pid = os.fork()
        if pid == 0:
            os.environ.update(environment)
            self._become(module, argv, title, not_its)
        return pid

    @staticmethod
    def _prepare(module: str) -> None:
        """Import what a child is to run, once for all that follow, and so that its collections copy no page."""
        if module not in sys.modules:
            gc.disable()  # nothing of what is imported is garbage
            importlib.import_module(module)
            gc.collect()
            gc.freeze()
            gc.enable()

    def _become(self, module: str, argv: list[str], title: list[str], not_its: tuple[int, ...]) -> None:
        """The rest of a child's life."""
        code: object = 1
        try:
            self._leave_to_child()
            for fd in not_its:
                os.close(fd)
            set_title(module, title)
            random.seed()
            main: Callable[[list[str]], object] = sys.modules[module].main
            code = main(argv)
        except SystemExit as end:
            code = end.code
        except BaseException as error:  # noqa: BLE001 - this is the end of the process, as of any program
            if isinstance(error, (OSError, MemoryError)) and is_exhaustion(error):
                logging.getLogger("dualray").critical("this process cannot run: %s", limit_in_words(error))
            elif isinstance(error, ControlPlaneError):
                logging.getLogger("dualray").critical("this process cannot run: %s", error)
            else:
                traceback.print_exc()
        end_process(code)

    def _leave_to_child(self) -> None:
        """Close what is the founder's, and put back its signals."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)
        self._client.close()
        for process in self._processes.values():
            self._release(process)

    def _on_child_ended(self) -> None:
        os.read(self._wake_read, 4096)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._templates.discard(pid)
            process = self._processes.pop(pid, None)
            if process is not None:
                self._release(process)
                if process.template in self._templates:
                    os.kill(process.template, signal.SIGKILL)
                code = os.waitstatus_to_exitcode(status)
                self._tell({"ended": process.name, "pid": pid, "status": code})


def main(arguments: list[str]) -> None:
    """Entry: `python -m dualray.real.session.zygote SESSION FD`."""
    session, fd = arguments[:2]
    raise_open_files()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the thread that called init() may block what ends a session
    del sys.argv[1:]  # they would be those of the workers
    os.set_inheritable(int(fd), False)
    set_title(FOUNDER_MODULE, [session])
    Founder(session, socket.socket(fileno=int(fd))).run()
    end_process(None)


if __name__ == "__main__":
    main(sys.argv[1:])
