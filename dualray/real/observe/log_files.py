"""The log files of sessions on this machine: which there are, and what a task, an actor or a worker has printed.

Theory of operation. Nobody is asked: files are read, so that also a session that hangs, and one that has ended and
whose logs were kept, can be read. What workers print lies in a file of each stream, and beside it who has printed what
(worker_output.py): a `_Growing` reads both, in *pieces* of one printer, first all that there is and then, to follow,
what has come since. It keeps its file open, and so loses nothing when that begins anew or goes with its session.
"""

from __future__ import annotations

import fnmatch
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import BinaryIO, Final, Self

from dualray.real.observe.worker_output import INDEX_SUFFIX, Printer
from dualray.real.session.session import Session, all_running, founder_of
from dualray.shared.nearest import nearest

STREAMS: Final = ("out", "err")
_BLOCK_BYTES: Final = 1 << 18
_LOOK_AGAIN_S: Final = 0.1
_QUIET_S: Final = 1.0
"""A session whose founder was killed has ended when nothing comes any more."""
_TASK_ID_HEX: Final = 32
_KNOWN_SHOWN: Final = 8
_NODE_LOG: Final = re.compile(r"(node-\d+)\.log")
_WORKER_FILE: Final = re.compile(r"(?P<worker>.+-w\d+)\.(?P<stream>out|err)(?:\.old)?")

Wanted = Callable[[Printer | None], bool]
"""Whether a printer's lines are asked for; None: nobody knows whose they are."""


# ---- Which there are -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LogFileEntry:
    """One file."""

    session: str
    """The name of its session's directory."""
    node: str
    name: str
    path: Path
    size_bytes: int
    changed_s: float
    """Seconds since 1970."""

    @property
    def group(self) -> str:
        """What kind of file it is: head, node, daemon, workers, worker_out or worker_err."""
        worker = _WORKER_FILE.fullmatch(self.name)
        if worker is not None:
            return f"worker_{worker['stream']}"
        stem = self.name.partition(".")[0]
        return "node" if stem == self.node else stem


@dataclass(frozen=True, slots=True)
class LogPlace:
    """The logs of one session, that is of one node of a cluster, on this machine."""

    session: str
    node: str
    directory: Path
    running: Session | None = None
    """None of a session that has ended."""

    def files(self, pattern: str = "*") -> list[LogFileEntry]:
        """Those whose names a glob matches, by name."""
        found = []
        for path in self._paths():
            if not fnmatch.fnmatchcase(path.name, pattern):
                continue
            try:
                known = path.stat()
            except FileNotFoundError:  # it has just been renamed, or its session has ended
                continue
            found.append(LogFileEntry(self.session, self.node, path.name, path, known.st_size, known.st_mtime))
        return sorted(found, key=lambda entry: _in_order(entry.name))

    def _paths(self) -> list[Path]:
        try:
            return [path for path in self.directory.iterdir() if path.is_file() and path.suffix != INDEX_SUFFIX]
        except FileNotFoundError:  # its session has ended
            return []

    @property
    def cluster(self) -> str:
        """See `cluster_of`."""
        return self.session if self.running is None else cluster_of(self.running)

    def has_ended(self, quiet_s: float) -> bool:
        """Whether nothing more is to be expected after so many seconds of silence."""
        if self.running is None or not self.running.directory.exists():
            return True
        return founder_of(self.running.directory) is None and quiet_s > _QUIET_S


def cluster_of(session: Session) -> str:
    """What the sessions of one cluster have in common: the address of its head, or of a session that nobody joins its
    name."""
    return session.cluster.address if session.cluster is not None else session.directory.name


def places_here(sessions: Iterable[Session] | None = None) -> list[LogPlace]:
    """Of the sessions of this user that run on this machine, oldest first, or of the given ones."""
    found = all_running() if sessions is None else sessions
    return [LogPlace(session.directory.name, session.node, session.logs, session) for session in found]


def places_in(directory: Path) -> list[LogPlace]:
    """Of sessions whose logs are kept: in a directory that `init(log_directory=)` was given, or in that of one of them.

    Raises:
        ValueError: there are no logs.
    """
    directory = directory.absolute()
    if not directory.is_dir():
        raise ValueError(f"there is no directory {str(directory)!r}; `init(log_directory=DIR)` creates one")
    running = {session.logs.resolve(): session for session in all_running()}
    found = []
    for each in (directory, *sorted(directory.iterdir())):
        nodes = [match[1] for path in each.glob("node-*.log") if (match := _NODE_LOG.fullmatch(path.name))]
        if nodes:
            found.append(LogPlace(each.name, nodes[0], each, running.get(each.resolve())))
    if not found:
        raise ValueError(
            f"{str(directory)!r} has no log files of a cluster, such as node-0.log. Give the directory that the "
            "program passed to init(log_directory=DIR), or the subdirectory of one session"
        )
    return sorted(found, key=lambda place: (place.directory / f"{place.node}.log").stat().st_mtime_ns)


def chosen(places: Sequence[LogPlace], *, session: str | None, node: str | None) -> list[LogPlace]:
    """Those of one session, by its name or a part of it, and of one node.

    Raises:
        ValueError: there is none.
    """
    if session is not None:
        names = [place.session for place in places]
        places = [place for place in places if session in place.session]
        if not places:
            raise ValueError(f"there is no session {session!r}{nearest(session, names)}")
    if node is not None:
        nodes = sorted({place.node for place in places})
        places = [place for place in places if place.node == node]
        if not places:
            raise ValueError(
                f"this machine has no logs of node {node!r}{_ended(nearest(node, nodes))} Look for the logs of a "
                "node on the node's machine"
            )
    return list(places)


def find_files(places: Sequence[LogPlace], pattern: str) -> list[LogFileEntry]:
    """The files whose names a glob matches; never empty.

    Raises:
        ValueError: it matches none.
    """
    found = [entry for place in places for entry in place.files(pattern)]
    if not found:
        known = dict.fromkeys(entry.name for place in places for entry in place.files())
        raise ValueError(f"no log file is called {pattern!r}{_nearest_of(pattern, known)}")
    return found


def literally(name: str) -> str:
    """The glob that matches one name alone."""
    return re.sub(r"([*?[])", r"[\1]", name)


def _in_order(name: str) -> tuple[list[tuple[int, str]], str]:
    """w9 before w10."""
    return [(int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", name)], name


def _nearest_of(name: str, known: Iterable[str]) -> str:
    """`nearest`, which names all that are known, of what may be many."""
    names = list(known)
    more = len(names) - _KNOWN_SHOWN
    words = nearest(name, names)
    if words.endswith("?") or more <= 0:
        return words
    return f"; known are {', '.join(names[:_KNOWN_SHOWN])} and {more} more: `dualray logs` lists them"


def _ended(words: str) -> str:
    return words if words.endswith("?") else f"{words}."


# ---- Who has printed -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LogQuery:
    """What is asked for: some files, and whose lines of them."""

    places: tuple[LogPlace, ...]
    pattern: str
    """Of the files; new ones that match are followed, too."""
    wanted: Wanted | None
    """None: all lines."""


def of_file(entry: LogFileEntry, places: Sequence[LogPlace]) -> LogQuery:
    """All of one file."""
    here = tuple(place for place in places if place.directory == entry.path.parent)
    return LogQuery(here, literally(entry.name), None)


def of_worker(places: Sequence[LogPlace], worker: str, *, stream: str = "out") -> LogQuery:
    """What one worker has printed: by address (`node-0/w3`), or as its files are called (`node-0-w3`).

    Raises:
        ValueError: there is no such worker, or it has printed nothing.
    """
    _check_stream(stream)
    stem = worker.replace("/", "-")
    by_stem: dict[str, list[LogPlace]] = {}
    for place in places:
        for entry in place.files():
            if match := _WORKER_FILE.fullmatch(entry.name):
                here = by_stem.setdefault(match["worker"], [])
                if place not in here:
                    here.append(place)
    if stem not in by_stem:
        addresses = ["/w".join(known.rsplit("-w", 1)) for known in by_stem]
        raise ValueError(f"these logs have no output of worker {worker!r}{_nearest_of(worker, addresses)}")
    if len(by_stem[stem]) > 1:
        sessions = ", ".join(place.session for place in by_stem[stem])
        raise ValueError(f"several sessions have a worker {worker!r}; choose one of the sessions {sessions}")
    return LogQuery(tuple(by_stem[stem]), f"{literally(stem)}.{stream}*", None)


def of_pid(places: Sequence[LogPlace], pid: int, *, stream: str = "out") -> LogQuery:
    """What the tasks have printed that ran in one process.

    Raises:
        ValueError: there are none.
    """
    _check_stream(stream)

    def wanted(printer: Printer | None) -> bool:
        return printer is not None and printer.pid == pid

    pids = {printer.pid for printer in _printers(places)}
    if pid not in pids:
        raise ValueError(
            f"these logs have no output of a worker with pid {pid}{_nearest_of(str(pid), map(str, sorted(pids)))}"
        )
    return LogQuery(_of_one_cluster(places, wanted, f"pid {pid}"), f"*.{stream}*", wanted)


def of_task(
    places: Sequence[LogPlace],
    task_id: str,
    *,
    attempt: int | None = None,
    stream: str = "out",
    may_come: bool = False,
) -> LogQuery:
    """What one task has printed, in all its attempts or in one; with `may_come` also one that has not yet.

    Args:
        places: where to look.
        task_id: in hex; its beginning is enough where no other that has printed begins so.
        attempt: 0 is the first; None: all.
        stream: "out" or "err".
        may_come: a whole id of which nothing is known is not an error.

    Raises:
        ValueError: nothing that has printed has this id, or several begin so.
    """
    _check_stream(stream)
    known = {printer.task_id.hex(): printer.name for printer in _printers(places)}
    found = bytes.fromhex(_whole_id("task", task_id, known, may_come=may_come))
    attempts = sorted({printer.attempt for printer in _printers(places) if printer.task_id == found})
    if attempt is not None and attempt not in attempts and not may_come:
        raise ValueError(
            f"attempt {attempt} of task {found.hex()} has printed nothing. Attempts that printed: "
            f"{', '.join(map(str, attempts))}. Choose one with --attempt-number, or with attempt_number= of get_log"
        )

    def wanted(printer: Printer | None) -> bool:
        return printer is not None and printer.task_id == found and attempt in (None, printer.attempt)

    return LogQuery(_of_one_cluster(places, wanted, f"task {found.hex()}"), f"*.{stream}*", wanted)


def of_actor(places: Sequence[LogPlace], actor_id: str, *, stream: str = "out", may_come: bool = False) -> LogQuery:
    """What one actor has printed, in all its lives; the arguments are those of `of_task`.

    Raises:
        ValueError: as of `of_task`.
    """
    _check_stream(stream)
    known = {printer.actor_id.hex(): printer.name for printer in _printers(places) if printer.actor_id}
    found = bytes.fromhex(_whole_id("actor", actor_id, known, may_come=may_come))

    def wanted(printer: Printer | None) -> bool:
        return printer is not None and printer.actor_id == found

    return LogQuery(_of_one_cluster(places, wanted, f"actor {found.hex()}"), f"*.{stream}*", wanted)


def _of_one_cluster(places: Sequence[LogPlace], wanted: Wanted, what: str) -> tuple[LogPlace, ...]:
    """Those of the cluster in which somebody has printed; all where nobody has.

    A program has the same ids whenever it runs: so they alone do not tell its sessions apart. Of sessions that have
    ended nobody knows which cluster they were of, but two with the same node were not of one.

    Raises:
        ValueError: it was in several.
    """
    found = [place for place in places if any(map(wanted, _printers([place])))]
    for one, other in combinations(found, 2):
        both_run = one.running is not None and other.running is not None
        if one.cluster != other.cluster if both_run else one.node == other.node:
            raise ValueError(
                f"{what} has printed in several sessions, because each run of a program uses the same ids. Choose "
                "one session with --session, or pass the directory of the session in Python: "
                f"{', '.join(place.session for place in found)}"
            )
    clusters = {place.cluster for place in found}
    return tuple(place for place in places if not found or place.cluster in clusters)


def _check_stream(stream: str) -> None:
    if stream not in STREAMS:
        raise ValueError(f"suffix={stream!r} must be 'out' or 'err'")


_ARTICLES: Final = {"task": "a task", "actor": "an actor"}


def _whole_id(what: str, given: str, known: dict[str, str], *, may_come: bool) -> str:
    found = [each for each in known if each.startswith(given.lower())] if given else []
    if len(found) == 1:
        return found[0]
    if len(found) > 1:
        raise ValueError(
            f"{what} {given!r} matches several ids: {_named(found, known)}; give more characters of the id"
        )
    if may_come and re.fullmatch(rf"[0-9a-f]{{{_TASK_ID_HEX}}}", given):
        return given
    called = [each for each, name in known.items() if name == given]
    if len(called) == 1:
        return called[0]
    if called:
        raise ValueError(f"{given!r} is the name of several; give one of these ids: {_named(called, known)}")
    way_out = f"dualray.util.state.list_{what}s() has the ids; {_ARTICLES[what]} that prints nothing is in no log"
    if not known:
        raise ValueError(f"these logs have no output of {what} {given!r}, or of any other {what}: {way_out}")
    close = nearest(given, known)
    hint = close if close.endswith("?") else f"; the logs have {_named(list(known), known)}."
    raise ValueError(f"these logs have no output of {what} {given!r}{hint} {way_out}")


def _named(ids: Sequence[str], names: dict[str, str]) -> str:
    shown = ", ".join(f"{each} ({names[each]})" for each in ids[:_KNOWN_SHOWN])
    more = len(ids) - _KNOWN_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def _printers(places: Iterable[LogPlace]) -> Iterator[Printer]:
    """Who has printed, as the indexes say: each task as often as it has begun to."""
    for place in places:
        for path in sorted(place.directory.glob(f"*{INDEX_SUFFIX}")):
            try:
                text = path.read_bytes()
            except FileNotFoundError:  # it has just been renamed, or its session has ended
                continue
            for line in text.splitlines():
                entry = _Entry.parse(line)
                if entry is not None and entry.printer.name:
                    yield entry.printer


@dataclass(slots=True)
class _Entry:
    """A line of an index."""

    offset: int
    since_s: float
    printer: Printer

    @classmethod
    def parse(cls, line: bytes) -> _Entry | None:
        """None of one that a full disk has cut short."""
        try:
            offset, since_s, words = line.split(b"\t", 2)
            return cls(int(offset), float(since_s), Printer.parse(words))
        except ValueError:
            return None


# ---- What was printed ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Piece:
    """What one printer has printed without a break."""

    file: BinaryIO
    since_s: float
    begin: int
    end: int

    def read(self) -> Iterator[bytes]:
        at = self.begin
        while at < self.end:
            data = os.pread(self.file.fileno(), min(_BLOCK_BYTES, self.end - at), at)
            if not data:
                return
            at += len(data)
            yield data


class _Growing:
    """One file, and its index, as they grow."""

    def __init__(self, path: Path, wanted: Wanted | None) -> None:
        self._wanted = wanted
        self._index_path = path.with_name(path.name + INDEX_SUFFIX)
        self._file = path.open("rb")
        known = os.fstat(self._file.fileno())
        self.identity = (known.st_dev, known.st_ino)
        self._index = self._open_index()
        self._partial = b""
        self._ahead: list[_Entry] = []
        """Of lines that are not there yet."""
        self.end = 0
        """How much of it has been looked at."""
        self._printer: Printer | None = None
        self._since_s = known.st_mtime if wanted is None else 0.0

    def _open_index(self) -> BinaryIO | None:
        try:
            return self._index_path.open("rb") if self._wanted is not None else None
        except FileNotFoundError:
            return None

    def news(self) -> list[_Piece]:
        """What has come since the last time, of that which is wanted."""
        size = os.fstat(self._file.fileno()).st_size  # before the index is read: so it tells of all up to here
        ahead = [*self._ahead, *self._entries()]
        pieces = []
        while ahead and ahead[0].offset < size:
            entry = ahead.pop(0)
            pieces.append(self._piece_to(entry.offset))
            self._printer = entry.printer
            self._since_s = max(self._since_s, entry.since_s)  # a clock may be set back; a file's order stays
        pieces.append(self._piece_to(size))
        self._ahead = ahead
        return [piece for piece in pieces if piece is not None]

    def _piece_to(self, end: int) -> _Piece | None:
        begin, self.end = self.end, end
        is_wanted = self._wanted is None or self._wanted(self._printer)
        return _Piece(self._file, self._since_s, begin, end) if is_wanted and begin < end else None

    def _entries(self) -> Iterator[_Entry]:
        if self._index is None:
            self._index = self._open_index()
        if self._index is not None:
            *lines, self._partial = (self._partial + self._index.read()).split(b"\n")
            for line in lines:
                entry = _Entry.parse(line)
                if entry is not None:
                    yield entry

    def close(self) -> None:
        self._file.close()
        if self._index is not None:
            self._index.close()


def read(query: LogQuery, *, tail: int, follow: bool) -> Iterator[bytes]:
    """Yield the file's text or its last lines, then the text that is added.

    Raises:
        ValueError: as of `LogReader.read`; at once.
    """
    reader = LogReader(query)
    there = reader.read(tail)

    def chunks() -> Iterator[bytes]:
        with reader:
            yield from there
            if follow:
                yield from reader.follow()

    return chunks()


class LogReader:
    """Reads what a query asks for; a context manager.

    Args:
        query: what.
    """

    def __init__(self, query: LogQuery) -> None:
        self._query = query
        self._growing: dict[tuple[int, int], _Growing] = {}
        """By device and inode: a file that begins anew is another one."""
        self._unwanted: dict[tuple[int, int], int] = {}
        """How long the others were: of many workers, most have nothing that is asked for."""
        self.is_empty = False
        """Whether `read` has found nothing at all."""
        self.has_left_out = False
        """Whether there were more lines than it was to read."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._growing.values():
            each.close()

    def read(self, tail: int = -1) -> Iterator[bytes]:
        """What there is: all of it (-1), or the last lines.

        Raises:
            ValueError: `tail` is neither -1 nor a number of lines.
        """
        if type(tail) is not int or tail < -1:
            raise ValueError(f"tail={tail!r} must be a number of lines, or -1 for all")
        return self._read(tail)

    def _read(self, tail: int) -> Iterator[bytes]:
        pieces = self._news()
        self.is_empty = not pieces
        if tail != -1:
            last = _last_lines(pieces, tail)
            self.has_left_out = _bytes(last) < _bytes(pieces)
            pieces = last
        for piece in pieces:
            yield from piece.read()

    def follow(self) -> Iterator[bytes]:
        """What comes from now on, until the session ends."""
        heard_s = time.monotonic()
        has_ended = False
        while True:
            quiet_s = time.monotonic() - heard_s
            is_last = has_ended
            has_ended = all(place.has_ended(quiet_s) for place in self._query.places)
            for piece in self._news():
                heard_s = time.monotonic()
                yield from piece.read()
            if is_last:
                return
            time.sleep(_LOOK_AGAIN_S)

    def _news(self) -> list[_Piece]:
        """Of all files, in order of time."""
        pieces = [piece for growing in self._growing.values() for piece in growing.news()]
        for place in self._query.places:
            for entry in reversed(place.files(self._query.pattern)):  # .old first
                pieces += self._news_of(entry.path)
        return sorted(pieces, key=lambda piece: piece.since_s)

    def _news_of(self, path: Path) -> list[_Piece]:
        """Of a file that is not open; it stays open when there are some, or will be."""
        try:
            known = path.stat()
            identity = (known.st_dev, known.st_ino)
            if identity in self._growing or self._unwanted.get(identity) == known.st_size:
                return []
            growing = _Growing(path, self._query.wanted)
        except FileNotFoundError:  # it has just been renamed, or its session has ended
            return []
        pieces = growing.news() if growing.identity not in self._growing else []
        if pieces or (self._query.wanted is None and growing.identity not in self._growing):
            self._growing[growing.identity] = growing
        else:
            self._unwanted[growing.identity] = growing.end
            growing.close()
        return pieces


def _bytes(pieces: Iterable[_Piece]) -> int:
    return sum(piece.end - piece.begin for piece in pieces)


def _last_lines(pieces: Sequence[_Piece], lines: int) -> list[_Piece]:
    """The last ones of what the pieces are together."""
    kept: list[_Piece] = []
    for piece in reversed(pieces):
        if lines <= 0:
            break
        begin, found = _begin_of_last(piece, lines)
        lines -= found
        kept.append(_Piece(piece.file, piece.since_s, begin, piece.end))
    return kept[::-1]


def _begin_of_last(piece: _Piece, lines: int) -> tuple[int, int]:
    """Where the last lines of a piece begin, and how many they are."""
    fd = piece.file.fileno()
    found = 0 if os.pread(fd, 1, piece.end - 1) == b"\n" else 1
    at = piece.end
    while at > piece.begin:
        size = min(_BLOCK_BYTES, at - piece.begin)
        at -= size
        block = os.pread(fd, size, at)
        place = len(block)
        while (place := block.rfind(b"\n", 0, place)) != -1:
            if found == lines:
                return at + place + 1, lines
            found += 1
    return piece.begin, found
