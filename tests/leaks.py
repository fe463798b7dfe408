"""What a test must not leave behind: processes, shared-memory segments, sockets and other descriptors, temporary files.

`survey()` lists what is there now; `leaked(before)` surveys again, for as long as clean-up may take, and returns what
is there and was not in `before`. The fixtures in `conftest.py` put the two round every module, and round every
conformance test.

What counts as ours, on a machine where others work too:

- A process is ours when it descends from this process, or carries the mark of this run of pytest, which `mark_run`
  puts in the environment for every process started from here to inherit (each worker of pytest-xdist has a mark of its
  own). Redis writes its title over its environment: a process without a mark has that of its nearest ancestor with one.
  Where none has one, as the environment was scrubbed, it is ours when it names a dualray session and nobody is left
  above it who does not: an orphan. One that a shell of somebody else started is theirs.
- A temporary file is ours when it has dualray's name: `mark_run` gives each run a temporary directory of its own.
- A segment is ours when it has dualray's name, unless a living process of somebody else has a session of that name, or
  has the segment open, or the session's directory lies in the temporary directory of another run.
- A descriptor is of this process, and is of a kind that someone opened on purpose: sockets, pipes, epoll and the like,
  and files of a session. Regular files are left to Python's own ResourceWarning, which is an error here.

Nothing that was there before counts, nor what belongs to a session that was: a cluster that a module's fixture started
may start workers and open sockets during any test of the module, and is judged when the module ends.
"""

from __future__ import annotations

import contextlib
import gc
import glob
import os
import shutil
import stat
import sys
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

import psutil

RUN_VARIABLE = "PYTEST_DUALRAY_RUN"  # not DUALRAY_...: those are dualray's own settings
SESSION_VARIABLE = "DUALRAY_SESSION"
NAME_PREFIX = "dualray"  # of session directories, and of segments in /dev/shm
CLEAN_UP_S = 5.0
_COLLECTING_PAUSE_S = 0.08
"""Garbage is collected when what remains has stayed for as long as this: most is gone after a moment."""

_RUN_PREFIX = "dr"  # of the temporary directory of a run
_SHARED_MEMORY = Path("/dev/shm")  # Linux; elsewhere segments have no directory to look into
_DESCRIPTORS = Path("/dev/fd")
_NAMES_OF_DESCRIPTORS = Path("/proc/self/fd")
_ANONYMOUS_KINDS = ("eventpoll", "eventfd", "inotify", "io_uring", "memfd", "pidfd", "signalfd", "timerfd")
_INIT_PID = 1

Key: TypeAlias = tuple[str | int | float, ...]


@dataclass(frozen=True, slots=True)
class Holding:
    """One thing that is there. `key` tells it from a later thing of the same name; `session` is "" when unknown."""

    kind: Literal["process", "segment", "descriptor", "temporary file"]
    key: Key
    name: str
    session: str = ""
    is_certainly_ours: bool = True

    def __str__(self) -> str:
        if self.kind != "temporary file":
            return f"{self.kind} {self.name}"
        inside = [str(path.relative_to(self.name)) for path in Path(self.name).rglob("*")]
        return f"{self.kind} {self.name}" + (f", with {', '.join(sorted(inside)[:20])}" if inside else "")


Survey: TypeAlias = Mapping[Key, Holding]


@dataclass(frozen=True, slots=True)
class Process:
    """What a look at one process tells. `run` is the mark that it carries, None without one; `session` "" without."""

    pid: int
    parent_pid: int
    started_s: float
    is_zombie: bool
    command: tuple[str, ...]
    run: str | None
    session: str

    @property
    def mentions_a_session(self) -> bool:
        return self.session != "" or any(f"{NAME_PREFIX}-" in word for word in self.command)


def mark_run() -> Path:
    """Mark this process's environment, so that what it starts and makes can be told from what others do.

    Returns the temporary directory that everything uses from now on. It has a short name, because the paths of Unix
    sockets in it end at 107 bytes. pytest's own directories (`tmp_path`) stay where people look for them.
    """
    inherited = os.environ.get(RUN_VARIABLE)
    own = f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
    os.environ[RUN_VARIABLE] = own if inherited is None else f"{inherited}/{own}"
    root = os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    directory = tempfile.mkdtemp(prefix=_RUN_PREFIX, dir=root)
    tempfile.tempdir = os.environ["TMPDIR"] = directory
    return Path(directory)


def remove_unless_something_leaked(directory: Path) -> None:
    """Remove what `mark_run` made, unless something of dualray's is still in it: its logs tell how it came about."""
    if not list(directory.glob(f"{NAME_PREFIX}*")):
        shutil.rmtree(directory, ignore_errors=True)


def survey() -> Survey:
    """Everything of ours that is there now."""
    processes = {process.pid: process for process in _all_processes()}
    here, run = os.getpid(), os.environ.get(RUN_VARIABLE, "")
    ours = [process for process in processes.values() if is_ours(process, processes, here=here, run=run)]
    our_pids = {process.pid for process in ours} | {here}
    others = [process for process in processes.values() if process.pid not in our_pids]
    held_processes = [_holding(process, processes) for process in ours]
    holdings = (*held_processes, *_segments(others), *_temporary_files(), *_descriptors())
    return {holding.key: holding for holding in holdings}


def leaked(before: Survey, *, timeout_s: float = CLEAN_UP_S) -> list[Holding]:
    """What came after `before` and is still there when `timeout_s` has passed; returns as soon as nothing is."""
    deadline = time.monotonic() + timeout_s
    pause_s = 0.01
    while remaining := _news(before, survey()):
        if time.monotonic() >= deadline:
            return remaining
        if pause_s >= _COLLECTING_PAUSE_S:
            gc.collect()  # a descriptor may wait in a cycle; if nobody closed it, the ResourceWarning says so
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.25)
    return []


def end(holdings: Iterable[Holding]) -> None:
    """End leaked processes and remove leaked segments, so that one leak does not starve every test after it.

    Only what is certainly ours.
    """
    for holding in holdings:
        if not holding.is_certainly_ours:
            continue
        if holding.kind == "process":
            _, pid, started_s = holding.key
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(int(pid))
                if process.create_time() == started_s:
                    process.kill()
        elif holding.kind == "segment":
            with contextlib.suppress(OSError):
                Path(holding.name).unlink()


def _news(before: Survey, now: Survey) -> list[Holding]:
    sessions = {holding.session for holding in before.values()} - {""}
    return sorted(
        (
            holding
            for key, holding in now.items()
            if key not in before
            and not _belongs_to(holding, sessions)
            and not (holding.kind == "descriptor" and sessions)  # a descriptor does not tell whose it is
        ),
        key=lambda holding: (holding.kind, holding.name),
    )


def _belongs_to(holding: Holding, sessions: Iterable[str]) -> bool:
    return any(session == holding.session or _names_session(holding.name, session) for session in sessions)


def _names_session(name: str, session: str) -> bool:
    """Whether `name` is a path of `session`, which is an id, or the path of the session's directory."""
    token = Path(session).name.removeprefix(f"{NAME_PREFIX}-")
    return token != "" and token in name


# ------------------------------------------------------------------------------------------------------- processes


def _all_processes() -> Iterator[Process]:
    """Every process but the kernel's own threads.

    Two surveys surround each conformance test, and most processes are the same in both. So a process is looked at
    whole when it is new, and when it has started another program.
    """
    known = dict(_seen)
    _seen.clear()
    for pid in psutil.pids():
        status = _kernel_status(pid)
        if status is not None and status.is_of_kernel:
            continue
        seen = None if status is None else known.get(status.program)
        if status is not None and seen is not None:
            found = replace(seen, parent_pid=status.parent_pid)
        else:
            try:
                found = _look_at(psutil.Process(pid))
            except psutil.Error:
                continue  # it has ended
        if status is not None:
            _seen[status.program] = found
        yield found


def _look_at(process: psutil.Process) -> Process:
    with process.oneshot():
        # Zombies, and processes of other users, keep these to themselves.
        command: tuple[str, ...] = ()
        environment: dict[str, str] = {}
        with contextlib.suppress(psutil.ZombieProcess, psutil.AccessDenied, OSError):
            command = tuple(process.cmdline())
            environment = process.environ() if command else {}  # the kernel's own threads have neither
        return Process(
            pid=process.pid,
            parent_pid=process.ppid() or 0,
            started_s=process.create_time(),
            is_zombie=process.status() == psutil.STATUS_ZOMBIE,
            command=command,
            run=environment.get(RUN_VARIABLE),
            session=environment.get(SESSION_VARIABLE, ""),
        )


@dataclass(frozen=True, slots=True)
class _KernelStatus:
    """What the kernel says of a process that lives. `program` changes when the process starts another program."""

    program: tuple[int, ...]
    parent_pid: int
    is_of_kernel: bool


_seen: dict[tuple[int, ...], Process] = {}
"""The processes of the last survey, by their programs."""
_FLAG_OF_KERNEL_THREADS = 0x00200000


def _kernel_status(pid: int) -> _KernelStatus | None:
    """None where there is no /proc, for a zombie, and for a process whose program the kernel does not tell us."""
    try:
        line = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    state, parent_pid, *fields = line[line.rindex(b")") + 2 :].split()
    is_of_kernel = bool(int(fields[4]) & _FLAG_OF_KERNEL_THREADS)
    # Where its arguments and its environment lie: the kernel draws the places anew for each program.
    places = tuple(map(int, fields[43:47]))
    if state == b"Z" or not (is_of_kernel or all(places)):
        return None
    started = int(fields[17])
    return _KernelStatus(program=(pid, started, *places), parent_pid=int(parent_pid), is_of_kernel=is_of_kernel)


def is_ours(process: Process, processes: Mapping[int, Process], *, here: int, run: str) -> bool:
    """Whether `process` counts as started by the run of the mark `run`, in the process with the pid `here`."""
    if process.pid == here or not _is_of_run(process, processes, here=here, run=run):
        return False
    # multiprocessing's and joblib's helper: one a process, started once, ends with its parent
    return not any("resource_tracker" in word for word in process.command)


def _is_of_run(process: Process, processes: Mapping[int, Process], *, here: int, run: str) -> bool:
    if process.is_zombie:  # a parent of ours failed to wait; an orphan's zombie is init's to reap
        return process.parent_pid == here
    ancestors = list(_ancestors(process, processes))
    if any(ancestor.pid == here for ancestor in ancestors):
        return True
    marked = (one.run for one in (process, *ancestors) if one.run is not None)
    if (mark := next(marked, None)) is not None:
        return mark == run or mark.startswith(f"{run}/")
    is_orphan = all(ancestor.mentions_a_session for ancestor in ancestors if ancestor.pid != _INIT_PID)
    return process.mentions_a_session and is_orphan


def _ancestors(process: Process, processes: Mapping[int, Process]) -> Iterator[Process]:
    seen = {process.pid}
    while (parent := processes.get(process.parent_pid)) is not None and parent.pid not in seen:
        seen.add(parent.pid)  # pids may be reused while we look
        yield parent
        process = parent


def _holding(process: Process, processes: Mapping[int, Process]) -> Holding:
    command = " ".join(process.command) or "(ended, and its parent has not waited for it)"
    session = f" of session {process.session}" if process.session else ""
    return Holding(
        kind="process",
        key=("process", process.pid, process.started_s),
        name=f"{process.pid}{session}: {command[:200]}",
        session=process.session,
        is_certainly_ours=(
            process.run is not None or any(ancestor.pid == os.getpid() for ancestor in _ancestors(process, processes))
        ),
    )


# ----------------------------------------------------------------------------------------- segments and other files


def _segments(others: Sequence[Process]) -> Iterator[Holding]:
    sessions = {process.session for process in others} - {""} | _of_other_runs()
    for holding in _files("segment", _SHARED_MEMORY):
        if _belongs_to(holding, sessions) or any(_has_open(process, holding) for process in others):
            continue
        if os.path.lexists(holding.name):  # and not removed by its owner while we looked
            yield holding


def _of_other_runs() -> set[str]:
    """Sessions whose directories lie in other runs' temporary directories, also those of which no process lives: their
    tests kill, too."""
    own = Path(tempfile.gettempdir())
    pattern = f"{own.parent}/{_RUN_PREFIX}*/{NAME_PREFIX}-*"
    found = map(Path, glob.glob(pattern))  # noqa: PTH207 - pathlib's is upset by what goes meanwhile
    return {path.name for path in found if path.parent != own}


def _has_open(process: Process, segment: Holding) -> bool:
    """Whether the process maps the segment, or has a descriptor of it."""
    directory = Path("/proc", str(process.pid))
    with contextlib.suppress(OSError):  # it ended, or is another user's: then it could not have opened ours
        if segment.name in (directory / "maps").read_text(errors="replace"):
            return True
        for entry in (directory / "fd").iterdir():
            with contextlib.suppress(OSError):
                if str(entry.readlink()) == segment.name:
                    return True
    return False


def _temporary_files() -> Iterator[Holding]:
    return _files("temporary file", Path(tempfile.gettempdir()))


def _files(kind: Literal["segment", "temporary file"], directory: Path) -> Iterator[Holding]:
    for path in sorted(directory.glob(f"{NAME_PREFIX}*")):
        with contextlib.suppress(FileNotFoundError):
            yield Holding(kind=kind, key=(kind, str(path), path.lstat().st_ino), name=str(path))


# ----------------------------------------------------------------------------------------------------- descriptors


def _descriptors() -> Iterator[Holding]:
    tracker = getattr(sys.modules.get("multiprocessing.resource_tracker"), "_resource_tracker", None)
    helper_descriptor = getattr(tracker, "_fd", None)  # the pipe to the helper of the same name, see is_ours
    for descriptor in sorted(int(entry.name) for entry in _DESCRIPTORS.iterdir() if entry.name.isdigit()):
        if descriptor == helper_descriptor:
            continue
        try:
            status = os.fstat(descriptor)
        except OSError:
            continue  # the one that listed the directory
        name = _name_of_descriptor(descriptor, status)
        if name is not None:
            key = ("descriptor", descriptor, status.st_dev, status.st_ino)
            yield Holding(kind="descriptor", key=key, name=f"{descriptor}: {name}")


def _name_of_descriptor(descriptor: int, status: os.stat_result) -> str | None:
    """What the descriptor is open on, if it is of a kind that counts."""
    try:
        target = str((_NAMES_OF_DESCRIPTORS / str(descriptor)).readlink())
    except OSError:
        target = ""  # no /proc, as on macOS
    if stat.S_ISSOCK(status.st_mode):
        return target or "socket"
    if stat.S_ISFIFO(status.st_mode):
        return target or "pipe"
    if target.startswith(("anon_inode:", "/memfd:")):
        return target if any(kind in target for kind in _ANONYMOUS_KINDS) else None
    ours = (str(_SHARED_MEMORY / NAME_PREFIX), str(Path(tempfile.gettempdir()) / NAME_PREFIX))
    return target if target.startswith(ours) else None
