"""`dualray stack`: what every worker does right now, without its help where it hangs.

Theory of operation. Each worker has a file `<session>/stacks/<address>.<pid>` open. On STACK_SIGNAL its main thread,
when it next runs Python, writes there where each of its threads is, its tasks, where its coroutines wait; and END. Who
asks sends the signal, and reads what has been added. A worker that has not answered in half of the time hangs in a
library: on HANG_SIGNAL faulthandler writes where the main thread is, which needs neither the interpreter nor a lock. It
leaves out the other threads: to walk their frames while they run can end a process.

A signal that nobody expects ends a process, and pids are given again: it is only sent to who has the file open.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

from dualray.real.session.session import Session, all_running
from dualray.shared.handles import CALL_TASK
from dualray.shared.model.ids import short

if TYPE_CHECKING:
    import asyncio

    from dualray.shared.core.core_worker import CoreWorker

STACK_SIGNAL: Final = int(signal.SIGRTMIN) + 9 if hasattr(signal, "SIGRTMIN") else int(signal.SIGUSR2)
HANG_SIGNAL: Final = STACK_SIGNAL + 1 if hasattr(signal, "SIGRTMIN") else None
END: Final = "-- end --\n"
_FILE_BYTES_MAX: Final = 1 << 20
"""Beyond that a file begins anew."""
_LOOK_AGAIN_S: Final = 0.01
_HANGS_AFTER_S: Final = 2.0
"""Who has not answered by then hangs, or the machine is very busy."""
_QUIET_S: Final = 1.0
"""A worker that hangs adds no END: it has said what it can when nothing comes any more."""
_OUR_CODE: Final = str(Path(__file__).parents[2]) + os.sep
_STANDARD_LIBRARY: Final = str(Path(os.__file__).parent) + os.sep
_FRAME: Final = re.compile(r'  File "(?P<file>.*)", line \d+ in (?P<function>.*)')
_OUR_ANSWER: Final = " in say_more"
_CALLS_USER_CODE: Final = frozenset({"call", "call_async", "call_and_await"})
"""Functions of ours below which there is only us."""


@dataclass(frozen=True, slots=True)
class WorkerStacks:
    """What one worker has answered; `words` is empty when it has not."""

    worker: str
    pid: int
    words: str
    is_whole: bool
    """Whether its interpreter ran, so that it could tell its tasks and coroutines too."""


# ---- In a worker -------------------------------------------------------------------------------------------------


def answer(directory: Path, address: str, describe: Callable[[], str]) -> None:
    """Answer from now on; `describe` says what only Python knows. Called by a worker's main thread."""
    path = directory / f"{quote(address, safe='')}.{os.getpid()}"
    unready = path.with_suffix(".unready")  # to be asked now would be our end
    file = os.open(unready, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def say_more(number: int, frame: FrameType | None) -> None:
        try:
            words = describe()
        except Exception as error:  # noqa: BLE001 - it would be raised in the user's code
            words = f"{error!r} while the tasks were listed\n"
        faulthandler.dump_traceback(file=file, all_threads=True)  # the others stand still meanwhile
        os.write(file, (words + END).encode(errors="backslashreplace"))

    signal.signal(STACK_SIGNAL, say_more)
    if HANG_SIGNAL is not None:
        faulthandler.register(HANG_SIGNAL, file=file, all_threads=False)
    unready.rename(path)


def describe_worker(core: CoreWorker, loops: Sequence[asyncio.AbstractEventLoop]) -> str:
    """The tasks that a worker has begun, and where the coroutines of its event loops are."""
    tasks = [core.current_task] if core.current_task is not None else []
    tasks += core.machine.running_calls()
    lines = [f"runs {task.spec.template.name} (task {short(task.spec.task_id)})" for task in tasks] or ["runs nothing"]
    for loop in loops:
        lines += _describe_coroutines(loop)
    return "\n" + "\n".join(lines) + "\n"


def _describe_coroutines(loop: asyncio.AbstractEventLoop) -> Iterator[str]:
    import asyncio  # noqa: PLC0415 - who has a loop has imported it

    for task in sorted(asyncio.all_tasks(loop), key=lambda task: (task.get_name() != CALL_TASK, task.get_name())):
        frames = list(_frames_of(task.get_coro()))
        while frames and frames[0][0].f_code.co_filename.startswith(_OUR_CODE):
            del frames[0]
        yield f"\nCoroutine {task.get_name()} (most recent call first):"
        for frame, line in reversed(frames):
            yield f'  File "{frame.f_code.co_filename}", line {line} in {frame.f_code.co_name}'


def _frames_of(awaitable: Any) -> Iterator[tuple[FrameType, int]]:
    """Of a coroutine, and of what it awaits, and so on."""
    while awaitable is not None:
        frame = getattr(awaitable, "cr_frame", None) or getattr(awaitable, "gi_frame", None)
        if frame is None:
            return
        yield frame, frame.f_lineno
        awaitable = getattr(awaitable, "cr_await", None) or getattr(awaitable, "gi_yieldfrom", None)


# ---- Who asks ----------------------------------------------------------------------------------------------------


def ask(directory: Path, within_s: float) -> list[WorkerStacks]:
    """Ask the workers whose files are in a directory, all at once; by address."""
    asked = []
    for path, address, pid in _workers(directory):
        if _has_open(pid, path):
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                asked.append(_Answer(path, address, pid))
    began_s = time.monotonic()
    deadline_s, hang_s = began_s + within_s, began_s + min(within_s / 2, _HANGS_AFTER_S)
    waiting = asked
    while waiting and time.monotonic() < deadline_s:
        time.sleep(_LOOK_AGAIN_S)
        waiting = [each for each in waiting if not each.is_over()]
        if time.monotonic() > hang_s:
            hang_s = deadline_s
            for each in waiting:
                each.ask_where_it_hangs()
    return sorted((each.result() for each in asked), key=lambda stacks: (len(stacks.worker), stacks.worker))


def _workers(directory: Path) -> Iterator[tuple[Path, str, int]]:
    """The file, the address and the pid of each worker that has answered from a directory, and perhaps has ended."""
    for path in directory.iterdir() if directory.is_dir() else ():
        address, _, pid = path.name.rpartition(".")
        if pid.isdigit():
            yield path, unquote(address), int(pid)


def pids_of_cluster(session: Session) -> dict[str, int]:
    """The pids of the workers of a session's cluster that this machine runs, or has run, by address."""
    sessions = [session]
    if session.cluster is not None:
        address = session.cluster.address
        others = (other for other in all_running() if other.cluster is not None and other.cluster.address == address)
        sessions += [other for other in others if other.directory != session.directory]
    return {address: pid for each in sessions for _, address, pid in _workers(each.stacks)}


def without_ours(words: str) -> str:
    """Stacks as `ask` gives them, without the threads and the frames that are there for dualray's sake."""
    kept = []
    for block in words.split("\n\n"):
        lines = block.split("\n")
        frames = [_FRAME.fullmatch(line) for line in lines[1:]]
        for index, frame in enumerate(frames):
            if frame is not None and frame["file"].startswith(_OUR_CODE) and frame["function"] in _CALLS_USER_CODE:
                kept.append("\n".join(lines[: index + 1]))
                break
        else:
            places = [frame["file"] for frame in frames if frame is not None]
            ours = [place.startswith(_OUR_CODE) for place in places]
            known = (_OUR_CODE, _STANDARD_LIBRARY, "<frozen ")
            if not any(ours) or not all(place.startswith(known) for place in places):
                kept.append(block)
    return "\n\n".join(kept)


class _Answer:
    """The answer of one worker, while it comes."""

    def __init__(self, path: Path, worker: str, pid: int) -> None:
        self._path = path
        self._worker = worker
        self._pid = pid
        if path.stat().st_size > _FILE_BYTES_MAX:
            os.truncate(path, 0)
        self._begin = path.stat().st_size
        self._words = ""
        self._said_s = time.monotonic()
        os.kill(pid, STACK_SIGNAL)

    def ask_where_it_hangs(self) -> None:
        """Its interpreter has not answered; a process that is stopped will not either."""
        if HANG_SIGNAL is not None and not self._words and _runs(self._pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, HANG_SIGNAL)

    def is_over(self) -> bool:
        """Look at the file: whether nothing more is expected."""
        with self._path.open("rb") as file:
            file.seek(self._begin)
            words = file.read().decode(errors="replace")
        if words != self._words:
            self._words = words
            self._said_s = time.monotonic()
        if words.endswith(END) or (words and time.monotonic() - self._said_s > _QUIET_S):
            return True
        try:
            os.kill(self._pid, 0)
        except ProcessLookupError:  # it has ended
            return True
        return False

    def result(self) -> WorkerStacks:
        is_whole = self._words.endswith(END)
        lines = [line for line in self._words.removesuffix(END).split("\n") if not line.endswith(_OUR_ANSWER)]
        return WorkerStacks(self._worker, self._pid, "\n".join(lines).strip("\n"), is_whole)


def _has_open(pid: int, path: Path) -> bool:
    import psutil  # noqa: PLC0415 - workers do without

    try:
        return any(file.path == str(path) for file in psutil.Process(pid).open_files())
    except psutil.Error:
        return False


def _runs(pid: int) -> bool:
    import psutil  # noqa: PLC0415 - workers do without

    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_STOPPED)
    except psutil.Error:
        return False
