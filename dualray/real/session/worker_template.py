"""The warm template: a process that has imported what every worker needs, and forks them in a millisecond.

Theory of operation. The founder forks it for a node manager, or somebody runs `python -m
dualray.real.session.worker_template FD`, with the standard input closed and FD one end of a SOCK_SEQPACKET pair. It
imports WARM_IMPORTS, freezes the garbage collector's view of them (so that a child's collection does not copy
their pages) and serves one request a datagram, in JSON:

    node -> template    {"op": "fork", "worker": "node-0/w3", "argv": {...}} and two descriptors (SCM_RIGHTS): the
                        write ends for the worker's standard output and standard error
                        {"op": "signal", "worker": "node-0/w3", "signal": 9}
    template -> node    {"ready": PID, "threads": 1, "missing": [MODULES]}, once, after the imports
                        {"forked": "node-0/w3", "pid": PID}
                        {"failed": "node-0/w3", "error": TEXT}, in place of "forked"
                        {"unable": TEXT}, in place of "ready": it ends
                        {"exited": "node-0/w3", "pid": PID, "status": EXIT CODE, or minus the signal}, after "forked"

It has one thread, one loop and no other state than its children, so a fork copies no lock that somebody
holds. If an import has started a thread all the same (`threads` says so), it does not fork but starts a fresh
interpreter for each worker: slower, the same in every other way. Signals go through the template because only
who reaps a child knows that its pid is still its own.

A worker gets the two descriptors as 1 and 2, ignores SIGINT (Ctrl-C reaches the whole foreground process
group, and what it means is the driver's to say), dies with the template (PR_SET_PDEATHSIG), has fresh seeds
in `random` and numpy, and calls `dualray.real.processes.worker.main(argv)`; what that returns is the exit code, as in
sys.exit. It leaves by os._exit: the template's own cleanup is not its business.

At the end of file on the control socket, which is also what a killed node manager leaves, the template kills
its children, reaps them and exits. With a worker that it kills, it kills what the worker has started, as in Ray.
"""

import array
import errno
import gc
import json
import os
import random
import selectors
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any, Final, NoReturn, TextIO, TypeVar, cast

from dualray.real.limits import is_exhaustion, limit_in_words
from dualray.real.session.parents import count_threads, die_with, kill_children, kill_with_children
from dualray.real.session.titles import set_title

MODULE: Final = "dualray.real.session.worker_template"
WORKER_MODULE: Final = "dualray.real.processes.worker"
WARM_IMPORTS: Final = ("cloudpickle", "numpy", "numpy.random", "msgpack", WORKER_MODULE)

REQUEST_BYTES_MAX: Final = 128 << 10
"""Of one datagram: the system's default socket buffer takes it whole."""


_FDS_OF_A_WORKER: Final = 2
_RIGHTS_BYTES: Final = socket.CMSG_SPACE(_FDS_OF_A_WORKER * array.array("i").itemsize)
_WAIT_S: Final = 0.05
_WAITS_MAX: Final = 200
"""A template without memory tries again this often, and then ends."""

_T = TypeVar("_T")


def _when_there_is_memory(step: Callable[[], _T]) -> _T:
    """Take a step again and again until there is memory for it.

    Raises:
        MemoryError: there was none for so long.
    """
    for _ in range(_WAITS_MAX):
        try:
            return step()
        except MemoryError:
            time.sleep(_WAIT_S)
    return step()


class Template:
    """The template's loop."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._workers: dict[int, str] = {}  # pid -> worker, from the fork until it is reaped
        self._thread_count = 1
        self._buffer = bytearray(REQUEST_BYTES_MAX)  # made now: later there may be no memory for it
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector = selectors.DefaultSelector()

    def run(self) -> None:
        """Import, say so, and serve until the node manager hangs up."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        gc.disable()  # nothing of what is imported is garbage
        try:
            missing = warm_up()
        except (ImportError, OSError, MemoryError) as error:
            self._say({"unable": f"a worker's modules cannot be imported: {_in_words(error)}"})
            raise
        gc.collect()
        gc.freeze()
        gc.enable()
        self._thread_count = count_threads()
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # the wake-up pipe says it
        self._selector.register(self._control, selectors.EVENT_READ)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        try:
            self._say({"ready": os.getpid(), "threads": self._thread_count, "missing": missing})
            while _when_there_is_memory(self._serve):
                pass
        except (BrokenPipeError, ConnectionResetError):  # the node manager is gone
            pass
        except MemoryError:
            self._say({"unable": limit_in_words(MemoryError())})
            raise
        finally:
            self._end()

    def _serve(self) -> bool:
        """One turn; False at the end of file."""
        for key, _ in self._selector.select():
            if key.fileobj is self._control:
                size, rights, flags, _ = self._control.recvmsg_into(
                    [self._buffer], _RIGHTS_BYTES, socket.MSG_CMSG_CLOEXEC
                )
                if not size:
                    return False
                fds = [fd for _, _, data in rights for fd in _descriptors_of(data)]
                try:
                    self._obey(size, fds, complete=not flags & socket.MSG_TRUNC)
                finally:
                    for fd in fds:
                        os.close(fd)
            else:
                os.read(self._wake_read, 4096)
                self._reap()
        return True

    def _obey(self, size: int, fds: list[int], *, complete: bool) -> None:
        if not complete:
            raise ValueError(
                "a request to the worker template (the process that forks new workers) has more than "
                f"{REQUEST_BYTES_MAX} bytes"
            )
        request: dict[str, Any] = _when_there_is_memory(lambda: json.loads(self._buffer[:size]))
        worker: str = request["worker"]
        if request["op"] == "signal":
            for pid, name in self._workers.items():
                if name == worker and request["signal"] == signal.SIGKILL:
                    kill_with_children(pid)
                elif name == worker:
                    os.kill(pid, request["signal"])
            return
        try:
            if len(fds) < _FDS_OF_A_WORKER:  # the kernel has left out what there was no room for
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            stdout, stderr = fds
            start = self._fork if self._thread_count == 1 else self._spawn
            pid = start(worker, request["argv"], stdout, stderr)
        except (OSError, ValueError, MemoryError) as error:
            self._say({"failed": worker, "error": _in_words(error)})
            return
        self._workers[pid] = worker
        self._say({"forked": worker, "pid": pid})

    def _fork(self, worker: str, argv: dict[str, Any], stdout: int, stderr: int) -> int:
        template = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                signal.set_wakeup_fd(-1)
                self._selector.close()
                self._control.close()
                os.close(self._wake_read)
                os.close(self._wake_write)
                set_title(WORKER_MODULE, [worker])
                become_worker(template, stdout, stderr)
            except BaseException:  # noqa: BLE001 - nothing of the template's own code may run on in a child
                traceback.print_exc()
                os._exit(1)
            run_worker(argv)
        return pid

    def _spawn(self, worker: str, argv: dict[str, Any], stdout: int, stderr: int) -> int:
        """Start a worker in a new interpreter; its argv goes through a file in memory, which nobody else reads."""
        fd = os.memfd_create("argv", os.MFD_CLOEXEC)
        try:
            os.write(fd, json.dumps(argv).encode())
            os.lseek(fd, 0, os.SEEK_SET)
            command = [sys.executable, "-m", MODULE, "--worker", str(os.getpid()), str(fd)]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, pass_fds=(fd,))
        finally:
            os.close(fd)
        process.returncode = 0  # it is reaped here, with the others
        return process.pid

    def _reap(self) -> None:
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            pid = ended.si_pid
            worker = self._workers.pop(pid, None)
            if worker is not None:
                _kill_group(pid)  # before it is reaped: no other group can have its number yet
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            if worker is not None:
                self._say({"exited": worker, "pid": pid, "status": code})

    def _end(self) -> None:
        for pid in self._workers:
            kill_with_children(pid)
        for pid in self._workers:
            _kill_group(pid)
            os.waitpid(pid, 0)

    def _say(self, message: dict[str, Any]) -> None:
        data = _when_there_is_memory(lambda: json.dumps(message).encode())
        _when_there_is_memory(lambda: self._control.send(data, socket.MSG_NOSIGNAL))


def _kill_group(pid: int) -> None:
    """Kill what a worker has started and left, as far as it is in the worker's process group."""
    with suppress(ProcessLookupError, PermissionError):  # PermissionError: all that is left is another user's
        os.killpg(pid, signal.SIGKILL)


def _descriptors_of(rights: bytes) -> list[int]:
    """Those of a control message; the kernel cuts off what this process has no room for."""
    fds = array.array("i")
    fds.frombytes(rights[: len(rights) - len(rights) % fds.itemsize])
    return fds.tolist()


_NOT_MAPPED: Final = "failed to map segment"
"""What the dynamic linker says if it has no memory for an extension module."""


def _in_words(error: Exception) -> str:
    if isinstance(error, (OSError, MemoryError)) and is_exhaustion(error):
        return limit_in_words(error)
    if isinstance(error, ImportError) and _NOT_MAPPED in str(error):
        return limit_in_words(MemoryError())
    return f"{type(error).__name__}: {error}"


def warm_up() -> list[str]:
    """Import what every worker needs; the names of the modules that are not installed."""
    missing: list[str] = []
    for name in WARM_IMPORTS:
        try:
            import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:  # it is there, and what it needs is not
                raise
            missing.append(name)
    import_module("dualray.shared.model.codec").prepare()  # once, and not in each worker
    return missing


def become_worker(parent: int, stdout: int, stderr: int) -> None:
    """Turn a fresh child process into a worker's, up to its own code."""
    try:
        die_with(parent, signal.SIGKILL)
    except ProcessLookupError:
        os._exit(1)
    os.setpgid(0, 0)  # the template kills the group when this process has ended
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for source, target in ((stdout, 1), (stderr, 2)):
        if source != target:
            os.dup2(source, target)
            os.close(source)
    for stream in (sys.stdout, sys.stderr):
        cast(TextIO, stream).reconfigure(line_buffering=True)  # type: ignore[attr-defined]
    random.seed()
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        numpy_random.seed()


def run_worker(argv: dict[str, Any]) -> NoReturn:
    """Call the worker's main and leave the process with what it returns."""
    code: object = 1
    try:
        try:
            main: Callable[[dict[str, Any]], object] = import_module(WORKER_MODULE).main
            code = main(argv)
        except SystemExit as end:
            code = end.code
        except BaseException:  # noqa: BLE001 - this is the end of the process, as of any program
            traceback.print_exc()
        kill_children(os.getpid())
        end_process(code)
    finally:
        os._exit(1)  # its streams may be closed, so that it could say nothing


def end_process(code: object) -> NoReturn:
    """Leave this process at once, with what sys.exit would make of `code`."""
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)  # noqa: T201 - as sys.exit does
        code = 1
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # nobody reads any more, or it was closed
            pass
    os._exit(0 if code is None else code & 0xFF)


def main(arguments: list[str]) -> None:
    """Entry: `python -m dualray.real.session.worker_template FD`."""
    if arguments[0] == "--worker":
        parent, fd = int(arguments[1]), int(arguments[2])
        with os.fdopen(fd, "rb") as file:
            argv = json.loads(file.read())
        become_worker(parent, 1, 2)
        run_worker(argv)
    fd = int(arguments[0])
    os.set_inheritable(fd, False)
    with socket.socket(fileno=fd) as control:
        Template(control).run()


if __name__ == "__main__":
    main(sys.argv[1:])
