"""Records a run (`init(record=...)`): each process writes its notes, and the driver makes one file of them.

A worker writes its notes soon after they were made, because it is ended with SIGKILL; a driver, whose every
microsecond counts, at the end, or when there are many. A worker with notes that are not written yet has a file with its
pid beside its notes. At the end the driver waits until no living worker has such a file.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import time
from pathlib import Path
from typing import Any, Protocol

import psutil

from dualray.real.net.loop import Loop
from dualray.real.session.session import Session
from dualray.recording.file import make_record, write_record
from dualray.recording.recorded import RecordedCoreWorker
from dualray.recording.usage import PeakMemory, Usage, machine_words
from dualray.shared.model.ids import Address, is_driver
from dualray.shared.model.resources import told
from dualray.shared.proof.trace import TraceEvent, from_bytes

_DUE = ".due"
_WORKER_S = 0.05
"""How long notes of a worker wait."""
_LAST_NOTES_S = 10.0
"""How long a driver waits at the end for the notes of workers, some of which may have ended without writing theirs."""
_DRIVER_S = 10.0
"""So often a driver looks at how many notes it holds."""
_DRIVER_NOTES_MAX = 400_000
"""Notes that a driver keeps in memory: about 200 bytes each."""


class NotedProcess(Protocol):
    """What a file of notes needs of its process."""

    address: Address
    session: Session
    loop: Loop


class NoteFile:
    """The notes of one process."""

    def __init__(self, process: NotedProcess) -> None:
        self._process = process
        self._core: RecordedCoreWorker | None = None
        self._path = process.session.notes_directory / f"{process.address.replace('/', '.')}.notes"
        self._due = self._path.with_suffix(_DUE)
        self._is_driver = is_driver(process.address)
        self._is_due = False

    def make_core(self, **arguments: Any) -> RecordedCoreWorker:
        """The core worker whose notes these are."""
        self._core = RecordedCoreWorker(**arguments, usage=Usage(), peak_bytes=PeakMemory(), on_note=self._on_note)
        return self._core

    def _on_note(self) -> None:
        if not self._is_due:
            self._is_due = True
            if not self._is_driver:
                # Without a free descriptor there is no file, and the driver does not wait for these notes.
                with contextlib.suppress(OSError):
                    self._due.write_text(str(os.getpid()))
            self._process.loop.call_later(_DRIVER_S if self._is_driver else _WORKER_S, self._on_due)

    def _on_due(self) -> None:
        assert self._core is not None
        notes = self._core.notes
        if not notes and not self._is_driver:
            self._due.unlink(missing_ok=True)
        self._is_due = False
        if not notes:  # a note that came before the line above has set no timer
            return
        if not self._is_driver or len(notes) >= _DRIVER_NOTES_MAX:
            self.write()
        self._on_note()

    def write(self) -> None:
        """Write what has gathered."""
        if self._core is not None and self._core.notes:
            with self._path.open("ab") as file:
                file.write(self._core.take())


def may_write(mark: Path) -> bool:
    """Whether the worker whose notes are not written yet, as this file says, may still write them."""
    try:
        pid = mark.read_text()
    except OSError:  # the notes are written
        return False
    return not pid or psutil.pid_exists(int(pid))


class RunNotes:
    """The record of a run, which goes to `path` at the end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._began_ns = 0
        self._ended_ns = 0
        self._notes: dict[str, bytes] = {}
        self._trace: list[TraceEvent] = []
        self._facts: dict[str, Any] = {}

    def program_begins(self) -> None:
        """`init` is over."""
        self._began_ns = time.monotonic_ns()

    def program_ends(self) -> None:
        """`shutdown` was called."""
        self._ended_ns = time.monotonic_ns()

    def wait_for_notes(self, session: Session) -> None:
        """Before workers are ended: wait until they have written their last notes."""
        deadline = time.monotonic() + _LAST_NOTES_S
        written = 0
        while written < 2 and time.monotonic() < deadline:  # twice: a note may come as the file goes
            written = 0 if any(map(may_write, session.notes_directory.glob(f"*{_DUE}"))) else written + 1
            time.sleep(_WORKER_S)

    def collect(self, session: Session) -> None:
        """Read what the processes have left; the driver has left all. The session's files go with its processes."""
        directory = session.notes_directory
        self._notes = {file.stem.replace(".", "/", 1): file.read_bytes() for file in sorted(directory.glob("*.notes"))}
        for file in sorted(directory.glob("*.trace")):
            self._trace += from_bytes(file.read_bytes())
        self._facts = {
            "mode": "real",
            "nodes": {
                session.node: {"resources": told(session.total).as_floats(), "object_store": session.store_bytes}
            },
            "machine": machine_words(),
            "cores": len(os.sched_getaffinity(0)),
            "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            "inline_bytes_max": session.config.inline_bytes_max,
        }

    def write(self, *, driver: bytes) -> None:
        """Make the file."""
        facts = {**self._facts, "driver": driver.hex()}
        record = make_record(self._notes, self._trace, began_ns=self._began_ns, ended_ns=self._ended_ns, facts=facts)
        write_record(self._path, record)
