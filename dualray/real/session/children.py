"""The processes of a session, seen by the one that makes it: the founder, and through it head and node manager.

All of them end when this process does, by will or by death, in good order: see zygote.py. This module imports little,
so that the founder can begin before the rest of its client has been imported.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dualray.exceptions import DualrayError
from dualray.real.session import session as sessions
from dualray.real.session.session import Session
from dualray.real.session.titles import ROOM

FOUNDER_MODULE: Final = "dualray.real.session.zygote"
HEAD_MODULE: Final = "dualray.real.processes.head"
NODE_MODULE: Final = "dualray.real.processes.node"
MESSAGE_BYTES_MAX: Final = 64 << 10

ONE_THREAD: Final = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""A library that starts threads when it is imported makes a process unfit for forking."""

OUR_THREADS: Final = "DUALRAY_SETS_THREADS"
"""Set in the environment of workers where nobody has said how many threads there are to be."""


def environment_of_workers(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with one thread for the numeric libraries, where it does not say otherwise."""
    ours = {} if "OMP_NUM_THREADS" in environment else {OUR_THREADS: "1"}
    return ONE_THREAD | ours | dict(environment)


END_WITHIN_S: Final = 10.0
"""So long the founder waits for its processes to end. Then it kills those that have not."""
_FOUNDER_ENDS_WITHIN_S: Final = END_WITHIN_S + 3.0
"""A founder that is killed earlier leaves a frozen process behind, and no other process ends it."""
_LOG_LINES_SHOWN = 15
_KILL_TIMEOUT_S = 5.0


@dataclass(slots=True)
class Child:
    """Head or node manager."""

    pid: int | None = None
    """None until it has been started."""
    status: int | None = None
    """The exit code, or minus the signal that ended it; None while it lives."""


def module_path() -> str:
    """PYTHONPATH of a process that is to find modules where this one does. If the working directory was removed, no
    module can be there."""
    try:
        here = str(Path.cwd())
    except FileNotFoundError:
        here = ""
    return os.pathsep.join(dict.fromkeys(path or here for path in sys.path if path or here))


class Children:
    """See the module. `start` is to be called first, and `end` at last."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.processes: dict[str, Child] = {}
        self._founder: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def start(self) -> None:
        """Start the founder, which finds modules where this process does."""
        assert self._founder is None, "the founder is started once"
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = environment_of_workers(os.environ)
        environment["PYTHONPATH"] = module_path()
        environment[sessions.ENVIRONMENT] = str(self.session.directory)
        with theirs:
            try:
                self._founder = subprocess.Popen(
                    [sys.executable, "-m", FOUNDER_MODULE, str(self.session.directory), str(theirs.fileno()), ROOM],
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    env=environment,
                )
            except BaseException:
                ours.close()
                raise
        self._control = ours

    def spawn(self, name: str, module: str, *arguments: str) -> None:
        """Let the founder start `module`, with these arguments after those that all have; without waiting for it."""
        self.release(name)
        self.processes[name] = Child()
        self._order({"op": "start", "name": name, "module": module, "arguments": arguments})

    def release(self, name: str) -> None:
        """Let one end in good order."""
        if name in self.processes:
            self._order({"op": "release", "name": name})

    def send_signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to one, if it lives."""
        self._order({"op": "signal", "name": name, "signal": int(number)})

    def _order(self, order: dict[str, Any]) -> None:
        if self._control is not None:
            try:
                self._control.send(json.dumps(order).encode(), socket.MSG_NOSIGNAL)
            except (BrokenPipeError, ConnectionResetError):  # the founder has ended, which its end of file says
                return

    # ---- What became of them ---------------------------------------------------------------------------------

    def fileno(self) -> int:
        """To be polled: readable when there is news."""
        assert self._control is not None, "start it first"
        return self._control.fileno()

    def update(self, timeout_s: float = 0.0) -> None:
        """Take in the founder's news, of which the first may take this long."""
        while self._control is not None and select.select([self._control], [], [], timeout_s)[0]:
            timeout_s = 0.0
            try:
                data = self._control.recv(MESSAGE_BYTES_MAX)
            except ConnectionResetError:
                data = b""
            if not data:
                self._control.close()
                self._control = None
                for child in self.processes.values():
                    child.status = -signal.SIGKILL if child.status is None else child.status
                return
            match json.loads(data):
                case {"started": str(name), "pid": int(pid)}:
                    self.processes[name] = Child(pid)
                case {"failed": str(name), "error": str(error)}:
                    raise DualrayError(f"the process {name} could not be started: {error}")
                case {"ended": str(name), "pid": int(pid), "status": int(status)}:
                    if self.processes[name].pid == pid:  # else there is a next one of that name
                        self.processes[name].status = status

    def check(self, timeout_s: float = 0.0) -> None:
        """Take in news, and raise DualrayError, with the last lines of the logs, when one has ended."""
        self.update(timeout_s)
        for name, child in self.processes.items():
            if child.status is not None:
                raise DualrayError(
                    f"the process {name} ended with status {child.status} while starting{self.last_logs()}"
                )

    def last_logs(self) -> str:
        """The last lines of every child's log, with headings; empty when none has one."""
        return last_logs(self.session, list(self.processes))

    def end(self) -> None:
        """End all of them; who does not end in time is killed. Idempotent."""
        if self._founder is None:
            return
        if self._control is not None:
            with self._control as control:
                control.settimeout(_FOUNDER_ENDS_WITHIN_S)
                try:
                    control.shutdown(socket.SHUT_WR)
                    while control.recv(MESSAGE_BYTES_MAX):  # until the founder has ended, as the last
                        pass
                except TimeoutError:
                    logging.getLogger("dualray").error("the session does not end; dualray kills its template process")
                    self._founder.kill()
                except OSError:  # it has ended by itself
                    pass
            self._control = None
        try:
            self._founder.wait(_KILL_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._founder.kill()
            self._founder.wait()


def last_logs(session: Session, names: list[str]) -> str:
    """The last lines of the logs of a session's processes, with headings."""
    text = ""
    for name in names:
        path = session.log_path(name)
        if path.exists():
            lines = path.read_text(errors="replace").splitlines()[-_LOG_LINES_SHOWN:]
            text += f"\nthe last lines of {name}'s log:\n" + "\n".join(lines)
    return text
