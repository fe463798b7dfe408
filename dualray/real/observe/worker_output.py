"""Output of workers: it goes into files and, under the task's or actor's name, to the driver that the worker serves.

Theory of operation. A worker's stdout and stderr are pipes to its node manager. Which task prints is known where it
prints: the worker's streams put a *mark*, a line of its own, in front of what they write when the task has changed
since the last one. So a task that prints nothing costs nothing, and what is printed needs no message of its own. What
comes past these streams (children of a task, C code) counts as the task's that was marked last. A progress bar travels
the same way, as a line with a sign of its own, which no file gets.

The node manager cuts lines (`WorkerOutput`), appends each to a file of the stream in the session's logs/, keeps the
last ones for the error that may follow, and sends them, a list at a time, to the driver of the task's job
(`OutputRouter`). A task's id names its job; where a job's driver is, the head says, once.

A file has the lines alone, for grep. Beside it lies an index, with a line for each change of who prints:

    node-0-w3.out          what the worker has printed
    node-0-w3.out.tasks    offset, seconds since 1970, name, pid, task, attempt, actor; with tabs between

An entry is there before the lines that it tells of are: so what a reader (log_files.py) has seen of the file has its
entries.

    LINES    NM to driver    [name, pid, node, stream (1, 2, or BARS), [line, ...]] msgpack
    DRIVER?  NM to head      job
    DRIVER   head to NM      job, address; "" when there is none
    FLUSH    driver to NM    send what there is
    FLUSHED  NM to driver    it has been sent

A driver that does not keep up, or whose terminal is stuck, holds nobody up: what would make more than QUEUED_BYTES_MAX
wait for it is left out, and it is told how many lines those were; the files have them.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dualray.progress_bars import BarState
from dualray.real import files
from dualray.real.net.transport import Transport
from dualray.shared.core.execution import Execution
from dualray.shared.model.codec import pack, unpack
from dualray.shared.model.ids import HEAD, Address, NodeID, job_of, job_of_driver

LINES, DRIVER_ASKED, DRIVER_KNOWN, FLUSH, FLUSHED = 4, 5, 6, 7, 8
"""First bytes of raw messages; object_streams.py has others."""

QUEUED_BYTES_MAX: Final = 8 << 20
FILE_BYTES_MAX: Final = 64 << 20
"""Of one stream's file; the file before it is kept as .old."""
LINE_BYTES_MAX: Final = 64 << 10
"""A longer one is cut into several."""
WAITING_LINES_MAX: Final = 10_000
"""Lines kept while the head is asked for the driver."""

INDEX_SUFFIX: Final = ".tasks"
ROTATED_SUFFIX: Final = ".old"

ACTOR_NAME_CHARS_MAX: Final = 200
"""Of the `repr` of an actor, before each of its lines."""
BARS: Final = 3
"""Beside the streams 1 and 2: what comes are progress bars."""
_NEWLINE: Final = ord("\n")
_SIGN: Final = b"\0dualray-"
_TASK, _BAR = b"task", b"bar"
_log = logging.getLogger("dualray")


@dataclass(slots=True)
class Printer:
    """Who prints: the words of a mark."""

    name: str
    """The task's, or that of its actor's class; empty outside of tasks."""
    pid: int
    task_id: bytes
    attempt: int
    actor_id: bytes
    """Empty of a plain task."""

    @classmethod
    def parse(cls, words: bytes) -> Printer:
        """Read what `words` has written.

        Raises:
            ValueError: it has not.
        """
        name, pid, task, attempt, actor = words.decode().split("\t")
        return cls(name, int(pid), bytes.fromhex(task), int(attempt), bytes.fromhex(actor))

    def words(self) -> bytes:
        """In one line."""
        fields = (
            re.sub(r"[\0\t\r\n]", " ", self.name),
            self.pid,
            self.task_id.hex(),
            self.attempt,
            self.actor_id.hex(),
        )
        return "\t".join(map(str, fields)).encode(errors="replace")


# ---- In the worker -----------------------------------------------------------------------------------------------


class MarkedFile(io.RawIOBase):
    """A descriptor that says, before it writes, whose output follows.

    Args:
        fd: where it writes; not closed.
        execution: what runs now.
        actor: the actor that lives in this process, once its constructor has ended; else None.
    """

    def __init__(self, fd: int, execution: Callable[[], Execution], actor: Callable[[], Any]) -> None:
        self._fd = fd
        self._execution = execution
        self._actor = actor
        self._named: object = None
        self._actor_name = ""
        self._marked: Execution | None = None
        self._is_within_line = False

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return False

    def write(self, data: Any) -> int:
        execution = self._execution()
        if execution is not self._marked:
            self._marked = execution
            os.write(self._fd, mark(execution, self._name_of_actor()))
        written = os.write(self._fd, data)
        if written:
            self._is_within_line = data[written - 1] != _NEWLINE
        return written

    def _name_of_actor(self) -> str:
        """The name of an actor whose class has a `__repr__`, as in Ray. It is made once, for the first output after the
        constructor."""
        actor = self._actor()
        if actor is not self._named:
            self._named, self._actor_name = actor, ""
            shown: object = type(actor).__repr__
            if actor is not None and shown is not object.__repr__:
                with contextlib.suppress(Exception):  # it is the user's
                    self._actor_name = repr(actor)[:ACTOR_NAME_CHARS_MAX]
        return self._actor_name

    def end_line(self) -> None:
        """A task has ended within a line: nothing more of the line will come."""
        if self._is_within_line:
            self._is_within_line = False
            os.write(self._fd, b"\n")

    def say(self, words: str) -> None:
        """Say something that is no task's."""
        self._marked = None
        nobody = Printer("", os.getpid(), b"", 0, b"")
        os.write(self._fd, _marked(nobody) + words.encode(errors="backslashreplace") + b"\n")


class TellingHandler(logging.Handler):
    """Log lines of the runtime go to a worker's stderr under the worker's own name, whatever task it runs."""

    def __init__(self, file: MarkedFile) -> None:
        super().__init__()
        self._file = file

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._file.say(self.format(record))
        except OSError:  # a task has closed it
            return


def mark(execution: Execution, actor_name: str = "") -> bytes:
    """The line that names the task that prints: its own name, or that of its actor, by default the class."""
    name = execution.name if execution.is_task else ""
    if execution.actor_id is not None:
        name = actor_name or name.rpartition(".")[0] or name
    printer = Printer(name, os.getpid(), execution.task_id, execution.attempt, execution.actor_id or b"")
    return _marked(printer)


def _marked(printer: Printer) -> bytes:
    return _SIGN + _TASK + b"\t" + printer.words() + b"\n"


def bar_line(state: BarState) -> bytes:
    """The line that a progress bar is, among what its worker prints."""
    return _SIGN + _BAR + b"\t" + state.words() + b"\n"


def marked_stream(file: MarkedFile, *, errors: str) -> io.TextIOWrapper:
    """What `sys.stdout` or `sys.stderr` of a worker is to be."""
    buffer = io.BufferedWriter(file)
    return io.TextIOWrapper(buffer, encoding="utf-8", errors=errors, line_buffering=True)


class PartialLines:
    """Ends the lines that tasks have left open, as in Ray: what print(..., end="") writes is shown without a flush."""

    def __init__(self, streams: Sequence[tuple[io.TextIOWrapper, MarkedFile]]) -> None:
        self._streams = streams

    def end(self) -> None:
        """No task is in hand. A task may have closed a stream."""
        for stream, file in self._streams:
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
                file.end_line()


# ---- In the node manager -----------------------------------------------------------------------------------------


class LogFile:
    """One stream's file, made with its first line, of bounded size, and the index of who has printed what of it; a full
    disk costs lines and nothing else."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._index_path = path.with_name(path.name + INDEX_SUFFIX)
        self._file: io.BufferedWriter | None = None
        self._index: io.FileIO | None = None
        self._bytes = 0
        self._index_bytes = 0
        self._printer = b""
        """Of the last entry of the index."""
        self._is_broken = False

    def write(self, data: bytes, printer: bytes = b"") -> None:
        """Append what a printer (a mark's words) has printed, or nobody knows who; on the disk when it returns."""
        try:
            if max(self._bytes + len(data), self._index_bytes) > FILE_BYTES_MAX and self._file is not None:
                self._begin_anew()
            if self._file is None:
                self._file = os.fdopen(files.open_to_append(self._path), "ab")
                self._bytes = self._file.tell()
            if printer != self._printer:
                self._note(printer)
            self._file.write(data)
            self._file.flush()
            self._bytes += len(data)
        except OSError as error:
            self._tell(error)

    def _note(self, printer: bytes) -> None:
        if self._index is None:
            self._index = os.fdopen(files.open_to_append(self._index_path), "ab", buffering=0)
        entry = f"{self._bytes}\t{time.time():.6f}\t".encode() + printer + b"\n"
        self._index.write(entry)
        self._index_bytes += len(entry)
        self._printer = printer

    def _begin_anew(self) -> None:
        self.close()
        old = self._path.with_name(self._path.name + ROTATED_SUFFIX)
        old_index = old.with_name(old.name + INDEX_SUFFIX)
        old_index.unlink(missing_ok=True)
        if self._index_path.exists():
            self._index_path.rename(old_index)
        self._path.rename(old)
        self._index_bytes = 0
        self._printer = b""

    def _tell(self, error: OSError) -> None:
        if not self._is_broken:
            self._is_broken = True
            _log.error("%s cannot be written: %s", self._path, error)

    def close(self) -> None:
        file, self._file = self._file, None
        index, self._index = self._index, None
        for each in (file, index):
            if each is not None:
                try:
                    each.close()
                except OSError as error:
                    _log.error("%s cannot be written: %s", self._path, error)


class WorkerOutput:
    """One stream of a worker: cut into lines, the last ones kept for the error that may follow.

    Args:
        worker: its address: what lines are shown under that no task has printed.
        stream: 1 or 2.
        file: where each line goes.
        show: called with (name, pid, task id or b"", stream, lines) of what belongs together; None: files only.
        lines_kept: in `last_lines`.
    """

    def __init__(
        self,
        *,
        worker: str,
        stream: int,
        file: LogFile,
        show: Callable[[str, int, bytes, int, list[bytes]], None] | None,
        lines_kept: int,
    ) -> None:
        self._stream = stream
        self._file = file
        self._show = show
        self._name = worker
        self._worker = worker
        self._pid = 0
        self.task_id = b""
        """Of the task that printed last."""
        self._printer = b""
        """The words of the mark that came last."""
        self._partial = b""
        self.last_lines: deque[bytes] = deque(maxlen=lines_kept)

    @property
    def name(self) -> str:
        """Of the task or actor that printed last."""
        return self._name

    def feed(self, data: bytes) -> None:
        """More has been printed; empty at the end."""
        lines = (self._partial + data).split(b"\n")
        self._partial = lines.pop()
        if (not data and self._partial) or len(self._partial) > LINE_BYTES_MAX:
            lines.append(self._partial)
            self._partial = b""
        gathered: list[bytes] = []
        for line in lines:
            before, sign, said = line.partition(_SIGN)
            if before or not sign:
                gathered += _cut(before)
            if sign:
                self._give(gathered)
                gathered = []
                self._hear(said)
        self._give(gathered)
        if not data:
            self._file.close()

    def _hear(self, said: bytes) -> None:
        kind, _, label = said.partition(b"\t")
        if kind == _BAR:  # neither kept nor in a file: it is a picture, and the next one replaces it
            if self._show is not None:
                self._show(self._name, self._pid, self.task_id, BARS, [label])
            return
        try:
            if kind != _TASK:
                raise ValueError(kind)
            printer = Printer.parse(label)
        except ValueError:  # somebody prints what looks like a mark
            self._give([said])
            return
        self._name, self._pid, self.task_id = printer.name or self._worker, printer.pid, printer.task_id
        self._printer = label

    def _give(self, lines: list[bytes]) -> None:
        if not lines:
            return
        self.last_lines.extend(lines)
        self._file.write(b"".join(line + b"\n" for line in lines), self._printer)
        if self._show is not None:
            self._show(self._name, self._pid, self.task_id, self._stream, lines)


def _cut(line: bytes) -> list[bytes]:
    if len(line) <= LINE_BYTES_MAX:
        return [line]
    return [line[start : start + LINE_BYTES_MAX] for start in range(0, len(line), LINE_BYTES_MAX)]


class OutputRouter:
    """Sends lines to the drivers whose they are. On the loop's thread.

    Args:
        node: this node.
        transport: of the node manager.
        first_driver: of a session that a program has made, that program's address; None: the head knows
            all drivers.
    """

    def __init__(self, *, node: NodeID, transport: Transport, first_driver: Address | None) -> None:
        self._node = node
        self._transport = transport
        self._first_driver = first_driver
        self._drivers: dict[int, str] = {} if first_driver is None else {job_of_driver(first_driver): first_driver}
        self._waiting: dict[int, deque[bytes]] = {}
        self._left_out: dict[str, int] = {}
        self.lines = 0
        self.lines_left_out = 0

    def show(self, name: str, pid: int, task_id: bytes, stream: int, lines: list[bytes], owner: Address | None) -> None:
        """Lines of one stream of one worker; `owner` is the driver that takes what no task has printed, if any."""
        self.lines += len(lines)
        message = bytes((LINES,)) + pack([name, pid, self._node, stream, lines])
        job = job_of(task_id) if task_id else 0
        driver = self._drivers.get(job) or ((owner or self._first_driver) if job == 0 else None)
        if driver is not None:
            self._send(driver, message, len(lines))
        elif job and self._drivers.get(job) is None:
            waiting = self._waiting.get(job)
            if waiting is None:
                waiting = self._waiting[job] = deque(maxlen=WAITING_LINES_MAX)
                self._transport.send(HEAD, bytes((DRIVER_ASKED,)) + pack(job))
            waiting.append(message)

    def on_driver_known(self, header: memoryview) -> None:
        """The head has answered."""
        job, driver = unpack(header[1:])
        self._note(job, driver)

    def _note(self, job: int, driver: str) -> None:
        """Lines that waited go out, or nobody wants them."""
        self._drivers[job] = driver
        for message in self._waiting.pop(job, ()):
            if driver:
                self._send(driver, message, 1)

    def _send(self, driver: str, message: bytes, lines: int) -> None:
        if self._transport.queued_bytes(driver) > QUEUED_BYTES_MAX:
            self._left_out[driver] = self._left_out.get(driver, 0) + lines
            self.lines_left_out += lines
            return
        left_out = self._left_out.pop(driver, 0)
        if left_out:
            words = f"[{left_out} lines left out, because this program reads too slowly; the log files have them]"
            self._transport.send(
                driver, bytes((LINES,)) + pack(["dualray", os.getpid(), self._node, 2, [words.encode()]])
            )
        self._transport.send(driver, message)

    def answer_flush(self, driver: str) -> None:
        """The driver is about to leave: what there is for it goes out, whatever the head may still be asked."""
        self._note(job_of_driver(Address(driver)), driver)
        self._transport.send(driver, bytes((FLUSHED,)))


def answer_driver_asked(transport: Transport, peer: str, header: memoryview, drivers: Mapping[int, str]) -> None:
    """The head: say where a job's driver is."""
    job = unpack(header[1:])
    transport.send(peer, bytes((DRIVER_KNOWN,)) + pack([job, drivers.get(job, "")]))
