"""The processes that a session's founder starts: head and node manager. They end when the founder does.

Each holds the read end of a pipe, its lifeline, whose other end the founder holds and nobody else. Closing it, by will
or by death, ends the child in good order.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from pathlib import Path

from dualray.exceptions import DualrayError
from dualray.real import session as sessions
from dualray.real.session import Session

_LOG_LINES_SHOWN = 15


class Children:
    """See the module."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._lifelines: dict[str, int] = {}

    def spawn(self, name: str, module: str, *args: str) -> subprocess.Popen[bytes]:
        """Start `python -m module SESSION LIFELINE args`; it finds modules where this process does."""
        read_fd, write_fd = os.pipe()
        try:
            paths = [path or str(Path.cwd()) for path in sys.path]
            environment = dict(os.environ)
            environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
            environment[sessions.ENVIRONMENT] = str(self.session.directory)
            process = subprocess.Popen(
                [sys.executable, "-m", module, str(self.session.directory), str(read_fd), *args],
                pass_fds=(read_fd,),
                stdin=subprocess.DEVNULL,
                env=environment,
            )
        except BaseException:
            os.close(write_fd)
            raise
        finally:
            os.close(read_fd)
        self.release(name)
        self.processes[name] = process
        self._lifelines[name] = write_fd
        return process

    def release(self, name: str) -> None:
        """Close one child's lifeline: it ends in good order."""
        fd = self._lifelines.pop(name, None)
        if fd is not None:
            os.close(fd)

    def check(self) -> None:
        """Raise DualrayError, with the last lines of the logs, when one has ended."""
        for name, child in self.processes.items():
            status = child.poll()
            if status is not None:
                raise DualrayError(f"the process {name} ended with status {status} while starting{self.last_logs()}")

    def last_logs(self) -> str:
        """The last lines of every child's log, with headings; empty when none has one."""
        return last_logs(self.session, list(self.processes))

    def end(self, timeout_s: float) -> None:
        """End all of them, the node manager before the head; who does not end in time is killed. Idempotent."""
        for name in list(self._lifelines):
            self.release(name)
        deadline = time.monotonic() + timeout_s
        for name, child in reversed(self.processes.items()):
            try:
                child.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                logging.getLogger("dualray").error("%s does not end; it is killed", name)
                child.kill()
                child.wait()


def last_logs(session: Session, names: list[str]) -> str:
    """The last lines of the logs of a session's processes, with headings."""
    text = ""
    for name in names:
        path = session.log_path(name)
        if path.exists():
            lines = path.read_text(errors="replace").splitlines()[-_LOG_LINES_SHOWN:]
            text += f"\nthe last lines of {name}'s log:\n" + "\n".join(lines)
    return text
