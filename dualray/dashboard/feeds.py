"""Where a page's tables come from: a run's directory, a program that is started to be watched, or a cluster.

Each feed has a thread that calls `refresh` again and again. What was there when it began is read at once. Then it rests
after each look, the longer the more the look took, and much longer while no CPU is free (pace.py). A look at a run that
writes more than can be read in that time takes a part of it: the page is behind the run then, and says so. Nobody looks
while no page asks.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol
from uuid import uuid4

import msgpack

from dualray.dashboard.from_trace import TraceTables, seconds
from dualray.dashboard.pace import Machine, rest_s
from dualray.dashboard.tables import Tables
from dualray.report.critical_path import critical_path
from dualray.report.drawings import Clock
from dualray.report.explain import Teller
from dualray.report.find import find_id
from dualray.report.headline import headline
from dualray.report.histories import Lives
from dualray.report.notices import ActorNamed, HeadTail, NodeNotice
from dualray.report.record import read_record
from dualray.report.summary import summary
from dualray.report.tail import TraceTail
from dualray.report.traces import DECISIONS, TRACES
from dualray.shared.model.codec import SURROGATES
from dualray.shared.proof.trace import TraceEvent
from dualray.util import state

__all__ = ["DirectoryFeed", "Feed", "LogFile", "answer_of", "follow", "kept_logs"]

LOOK_EVERY_S: Final = 0.25
EVENTS_AT_ONCE: Final = 5_000
"""Rows that are taken in while the tables are held."""
OPENING_READ_BYTES: Final = 1 << 22
LOOK_BYTES: Final = 1 << 18
"""Of each file, read by one look at a run that goes on."""
QUIET_S: Final = 3.0
"""A directory in which nothing was written for so long shows a run that is over, or that stands still."""
WATCHED_S: Final = 10.0
"""A page that has not asked for so long is closed, or its browser is stopped."""
READ_ON_S: Final = 2.0
"""For so long a run is read on after a page has asked. A page that is hidden asks less often than that."""
LOG_LINES: Final = 1_000
OPENING_BYTES: Final = 1 << 16
CLOCK: Final = "cluster.clock"
"""Of a simulation with a pace; see dualray/sim/cluster/run_logs.py."""

_Row = TraceEvent | NodeNotice | ActorNamed

LogFile = dict[str, str]
"""`name`, and the `node` whose file it is."""


class Feed(Protocol):
    """A run or cluster that a page shows."""

    name: str
    tables: Tables
    asked_s: float
    """When a page has asked last, by `time.monotonic`."""
    pages: int
    """How many were open when pages were counted last."""
    is_opening: bool
    """Whether what was there when it began is still being read."""
    asks_others: bool
    """Whether a look keeps other processes busy, so that it counts with all the time that it takes."""

    def refresh(self) -> bool:
        """Look once. Whether there is more to be read."""

    def story(self, wanted: str) -> dict[str, Any]:
        """The story of a task or an object.

        Raises:
            ValueError: there is none to be told; the message says why.
        """

    def answer(self) -> str:
        """Of a run that is over: how it ended, and why it took so long.

        Raises:
            ValueError: that cannot be told; the message says why.
        """

    def logs(self) -> list[LogFile]:
        """The log files that there are.

        Raises:
            ValueError, DualrayError: there are none; the message says why.
        """

    def log(self, name: str, node: str) -> str:
        """The last lines of a log file.

        Raises:
            ValueError, DualrayError: there is no such file.
        """

    def close(self) -> None:
        """End what was started for it."""


def follow(feed: Feed, until: threading.Event) -> None:
    """Look again and again, until that is set; the body of a feed's thread."""
    machine = Machine()
    now = time.monotonic if feed.asks_others else time.thread_time
    while not until.is_set():
        began_s = now()
        try:
            has_more = feed.refresh()
        except Exception as error:  # noqa: BLE001 - the page says so, and others go on
            feed.tables.head["error"] = str(error) or type(error).__name__
            has_more = False
        if not (has_more and feed.is_opening):
            rest = rest_s(now() - began_s, feed.pages, is_busy=machine.is_busy())
            until.wait(rest if has_more else max(LOOK_EVERY_S, rest))


class DirectoryFeed:
    """A run that leaves its trace in a directory: one that goes on, or one that is over. Nobody reads on while no page
    asks: what was written then is read when one does.

    Args:
        directory: of the run, as `init(decision_log=)` was given it.
        name: the title.
        logs: where `init(log_directory=)` has kept its logs.
        program: what writes into the directory, if it was started to be watched; its output is in `output`.
    """

    def __init__(
        self,
        directory: Path,
        *,
        name: str = "",
        logs: Path | None = None,
        program: subprocess.Popen[bytes] | None = None,
        output: Path | None = None,
    ) -> None:
        self.name = name or directory.name or str(directory)
        self.tables = Tables()
        self.asked_s = time.monotonic()
        self.pages, self.is_opening, self.asks_others = 0, True, False
        self._directory = directory
        self._logs = logs
        self._program = program
        self._code: int | None = None
        """With which it has ended, before the files were read last."""
        self._output = output
        self._tail = TraceTail(directory)
        self._head_tail = HeadTail(directory)
        self._clock = directory / CLOCK
        self._reached_ns = 0
        """What the run's clock said when its files were read last."""
        self._paced: dict[str, float] | None = None
        """Its pace, and for how long it rests there; None: it has no pace."""
        self._pending: list[_Row] = []
        self._early: list[NodeNotice | ActorNamed] = []
        """What the head has noticed after the last row of the trace that was read."""
        self._trace = TraceTables(self.tables)
        self._quiet_since_s = time.monotonic()
        self._looks_with_news = 0
        """The reading of what was there when it began is one look."""
        self._openings: set[str] = set()
        self._told: tuple[int, Lives, Teller] | None = None
        self._answer: tuple[int, str] | None = None
        self._reading = threading.Lock()
        """Held while the whole run is read: several pages ask at once."""
        self.tables.head.update(run=uuid4().hex, name=self.name, source="run", state="waiting", error="")
        if program is None and not any(directory.glob(TRACES)):
            raise ValueError(
                f"{str(directory)!r} has no trace ({TRACES}); to write a trace, run the program with "
                f"decision_log={str(directory)!r}"
            )

    def refresh(self) -> bool:
        """Read what is new; the tables are held for a part of it at a time."""
        if not self.is_opening and time.monotonic() - self.asked_s > READ_ON_S:
            return False
        if not self._pending and self._directory.is_dir():
            if self._program is not None:  # asked first: what it has written last is read then
                self._code = self._program.poll()
            self._look()
        taken, self._pending = self._pending[:EVENTS_AT_ONCE], self._pending[EVENTS_AT_ONCE:]
        now_s = time.monotonic()
        with self.tables.lock:
            if taken:
                self._quiet_since_s = now_s
                self._trace.take(taken)
                self._read_openings()
            has_more = bool(self._pending) or self._tail.has_more
            self.is_opening = self.is_opening and has_more
            if not has_more:
                self._trace.reach(self._reached_ns)
            state = self._state(now_s, has_more=has_more)
            if state == "over" and self.tables.head["state"] != "over":
                self._trace.end()
            is_virtual = (self._directory / "cluster.trace").exists()
            self.tables.head.update(
                state=state,
                is_virtual=is_virtual,
                paced=self._paced,
                is_behind=has_more and not self.is_opening,
                knows_head=self._head_tail.has_logs,
            )
        return has_more

    def _look(self) -> None:
        """Read what is new. First the clock, then the head's log, then the trace: so the trace, which is read last, has
        all that came before what the others tell."""
        self._read_clock()
        notices = self._head_tail.look()
        self._trace.happened.is_head_seen = self._head_tail.has_logs
        rows = self._tail.look(OPENING_READ_BYTES if self.is_opening else LOOK_BYTES)
        self._looks_with_news += bool(rows) and not (self.is_opening and self._looks_with_news)
        last_ns = rows[-1].time_ns if rows else 0
        is_whole = (self.is_opening or self._code is not None) and not self._tail.has_more
        due = self._early + [notice for notice in notices if is_whole or notice.time_ns <= last_ns]
        self._early = [notice for notice in notices if not is_whole and notice.time_ns > last_ns]
        self._pending = sorted([*rows, *due], key=lambda row: row.time_ns)

    def _read_clock(self) -> None:
        """A simulation with a pace says which time it has reached, and for how long it rests there."""
        try:
            now_ns, left_s, pace = self._clock.read_text().split()
        except (FileNotFoundError, ValueError):  # it has no pace, or has just begun or ended
            self._paced = None
            return
        self._reached_ns = int(now_ns)
        self._paced = {"pace": float(pace), "rests_s": float(left_s)}
        self._quiet_since_s = time.monotonic()

    def _state(self, now_s: float, *, has_more: bool) -> str:
        if has_more:
            return "reading" if self.is_opening or self._code is not None else "running"
        if self._program is not None:
            code = self._code
            if code is None:
                return "running" if self._trace.start_ns is not None else "waiting"
            if code and not self.tables.head["error"]:
                self.tables.head["error"] = f"the program ended with exit code {code}: see its output under Logs"
            return "over"
        if now_s - self._quiet_since_s < QUIET_S:
            return "running" if self._looks_with_news > 1 or self._paced else "reading"  # or all was there at once
        return "over" if self._looks_with_news == 1 else "quiet"  # all of it was there at the first look

    def _read_openings(self) -> None:
        """What the nodes of a real run have stands at the beginning of their decision logs."""
        for path in self._directory.glob(f"node-*{DECISIONS.removeprefix('*')}"):
            stem = path.name.removesuffix(DECISIONS.removeprefix("*"))
            if stem in self._openings or "." in stem or not path.stat().st_size:
                continue
            self._openings.add(stem)
            self._trace.has(stem.partition("~")[0], _capacity(path))

    def story(self, wanted: str) -> dict[str, Any]:
        _, lives, teller = self._read_all()
        story = teller.tell(find_id(lives, wanted))
        began_ns = self._trace.start_ns or lives.zero_ns  # the page's own zero
        lines = [
            [None if line.time_ns is None else seconds(line.time_ns - began_ns), line.text, list(line.details)]
            for line in story.lines
        ]
        return {"title": story.title, "lines": lines, "now_s": seconds(lives.end_ns - began_ns)}

    def answer(self) -> str:
        size, lives, _ = self._read_all()
        with self._reading:
            if self._answer is None or self._answer[0] != size:
                self._answer = size, answer_of(lives)
            return self._answer[1]

    def _read_all(self) -> tuple[int, Lives, Teller]:
        """The whole run as its files tell it now."""
        with self._reading:
            size = sum(path.stat().st_size for path in self._directory.iterdir())
            if self._told is None or self._told[0] != size:
                lives = Lives(read_record(self._directory))
                self._told = (size, lives, Teller(lives, goes_on=self.tables.head["state"] != "over"))
            return self._told

    def logs(self) -> list[LogFile]:
        found = [{"name": OUTPUT, "node": ""}] if self._output is not None else []
        try:
            return found + (kept_logs(self._logs) if self._logs is not None else [])
        except ValueError:
            return found  # the run is a simulation, or has not begun

    def log(self, name: str, node: str) -> str:
        if name == OUTPUT and self._output is not None:
            return "\n".join(self._output.read_text(errors="replace").split("\n")[-LOG_LINES:])
        if self._logs is None:
            raise ValueError(f"the run has no log {name!r}; give the directory of the run's logs with `--logs DIR`")
        return _text(state.get_log(filename=name, node_id=node or None, directory=self._logs, tail=LOG_LINES))

    def close(self) -> None:
        if self._program is not None and self._program.poll() is None:
            self._program.terminate()
            try:
                self._program.wait(5)
            except subprocess.TimeoutExpired:
                self._program.kill()
                self._program.wait()


def answer_of(lives: Lives) -> str:
    """How a run ended, and why it took so long: the sentences that begin its report.

    Raises:
        ValueError: it ran no task.
    """
    if not lives.tasks:
        raise ValueError("the run has no tasks, so the dashboard cannot show the run")
    return headline(lives, critical_path(lives), summary(lives.record.events), Clock.of(lives))


OUTPUT: Final = "what the program printed"


def kept_logs(directory: Path | None) -> list[LogFile]:
    """The log files in a directory, or, with None, of the cluster that this process is part of."""
    nodes: list[str | None] = [None]
    if directory is None:
        nodes = [row["node_id"] for row in state.list_nodes(raise_on_missing_output=False)]
    found: dict[tuple[str, str], None] = {}
    for node in nodes:
        try:
            groups = state.list_logs(node_id=node, directory=directory)
        except ValueError:
            continue  # it is on another machine
        found.update({(name, node or ""): None for names in groups.values() for name in names})
    return [{"name": name, "node": node} for name, node in found]


def _text(chunks: Iterable[Any]) -> str:
    return "".join(chunks)


def _capacity(path: Path) -> Sequence[tuple[str, int]]:
    stream = msgpack.Unpacker(raw=False, use_list=False, max_buffer_size=0, unicode_errors=SURROGATES)
    with path.open("rb") as file:
        stream.feed(file.read(OPENING_BYTES))
    for opening in stream:
        machine = opening["machine"]
        return [*machine["total"], ("object_store", machine["store_bytes"])]
    return []
