"""The tables of the control plane as one process uses them: the rows that it writes gather, and go out together."""

from __future__ import annotations

import time
from typing import Any

from dualray.exceptions import ControlPlaneError
from dualray.real.control_plane.shards import Tables, tables_at
from dualray.real.net.loop import Loop
from dualray.real.quiet_lock import QuietLock
from dualray.real.session.session import Session
from dualray.shared.core.layout import deserialize_own
from dualray.shared.model.codec import SURROGATES, pack, unpack
from dualray.shared.model.commands import WriteRecord, WriteRecords
from dualray.shared.model.ids import FunctionID

_FUNCTIONS = "functions"
_ROWS_MAX = 128
"""Rows of the control plane's tables that wait for company at most."""
_ROWS_S = 0.005
"""How long they wait."""
_SETTLE_TIMEOUT_S = 0.25
"""How long a process that is asked for its tasks waits until its rows are there."""
_FLUSH_TIMEOUT_S = 5.0
"""How long a reader of a table waits until our own rows are there."""
_PUT_AGAIN_WITHIN_S = 5.0
"""After the control plane's server was started again with empty tables, its functions are there within this."""
_POLL_S = 0.02


class ProcessTables:
    """See the module. What writes rows holds `lock`.

    Args:
        session: says where the control plane is; it is asked when it is first needed.
        lock: the process's.
        loop: on it the rows go out, soon after they were written.
    """

    def __init__(self, session: Session, lock: QuietLock, loop: Loop) -> None:
        self._session, self._lock, self._loop = session, lock, loop
        self._tables: Tables | None = None
        self._rows: list[tuple[str, tuple[str, ...], bytes]] = []
        """Table, keys and packed fields, which these keys share."""
        self._rows_count = 0
        self._functions: dict[FunctionID, bytes] = {}
        """Those that this process has put into the function table of an `init` session, which lies in memory alone."""
        self._rows_are_due = False
        self.rows_written: dict[str, int] = {}
        """Of each table: one of `tasks` for each task that has finished here, and one of `tasks` and of `errors` for
        each of our own that has failed."""

    def close(self) -> None:
        """Write what has gathered, and end the connection."""
        with self._lock:
            self.write_rows()
        if self._tables is not None:
            self._tables.close()

    def write_record(self, record: WriteRecord) -> None:
        self._add_rows(record.table, (record.key,), record.fields)

    def write_records(self, records: WriteRecords) -> None:
        self._add_rows(records.table, records.keys, records.fields)

    def _add_rows(self, table: str, keys: tuple[str, ...], fields: tuple[tuple[str, str], ...]) -> None:
        self._rows.append((table, keys, pack(dict(fields))))
        self._rows_count += len(keys)
        if self._rows_count >= _ROWS_MAX:
            self.write_rows()
        elif not self._rows_are_due:
            self._rows_are_due = True
            self._loop.call_later(_ROWS_S, self._on_rows_due)

    def _on_rows_due(self) -> None:
        with self._lock:
            self._rows_are_due = False
            self.write_rows()

    def write_rows(self) -> None:
        """Hand the rows that have gathered to the control plane's thread, a table at a time."""
        tables: dict[str, list[tuple[bytes, bytes]]] = {}
        rows, self._rows, self._rows_count = self._rows, [], 0
        for table, keys, row in rows:
            tables.setdefault(table, []).extend([(key.encode(errors=SURROGATES), row) for key in keys])
        for table, records in tables.items():
            self.rows_written[table] = self.rows_written.get(table, 0) + len(records)
            self._control_plane().write_many_behind(table, records)

    def settle_records(self) -> None:
        self.write_rows()
        if self._tables is not None:
            self._tables.flush(_SETTLE_TIMEOUT_S)

    def put_function(self, function: FunctionID, pickled: bytes) -> None:
        if self._session.cluster is None:  # a cluster's has a file
            self._functions[function] = pickled
        self._control_plane().put(_FUNCTIONS, function, pickled)

    def put_again(self) -> None:
        """The control plane's server was started again, with empty tables. Not for the loop's thread: it waits."""
        for function, pickled in list(self._functions.items()):
            self._control_plane().put(_FUNCTIONS, function, pickled)

    def load_function(self, function: FunctionID) -> Any:
        deadline_s = time.monotonic() + _PUT_AGAIN_WITHIN_S
        while (pickled := self._control_plane().get(_FUNCTIONS, function)) is None:
            if time.monotonic() < deadline_s:  # the server has died, and whoever has the function puts it again
                time.sleep(_POLL_S)
                continue
            raise ControlPlaneError(f"the control plane has no function with the id {function.hex()}")
        return deserialize_own(pickled)

    def read_table(self, table: str) -> dict[str, dict[str, str]]:
        """A table of the control plane, with all that this process has written up to now."""
        with self._lock:
            self.write_rows()
        self._control_plane().flush(_FLUSH_TIMEOUT_S)
        return {
            key.decode(errors=SURROGATES): unpack(value) for key, value in self._control_plane().scan(table).items()
        }

    def read_functions(self) -> dict[FunctionID, bytes]:
        """The function table."""
        return {FunctionID(key): pickled for key, pickled in self._control_plane().scan(_FUNCTIONS).items()}

    def _control_plane(self) -> Tables:
        with self._lock:
            if self._tables is None:
                session = self._session
                self._tables = tables_at(
                    session.redis_socket, session.password, session.redis_shards, on_again=self.put_again
                )
            return self._tables
