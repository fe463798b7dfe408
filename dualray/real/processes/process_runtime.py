"""The common part of the runtimes of drivers and workers in real mode."""

from __future__ import annotations

import socket
from collections.abc import Mapping

from dualray.core_verbs import VerbsOverCore
from dualray.real.processes.process import UserProcess
from dualray.runtime import LogReader
from dualray.shared.core.core_worker import write_row
from dualray.shared.model.accelerators import Names
from dualray.shared.model.ids import FunctionID


class ProcessRuntime:
    """The part of dualray.runtime.Runtime that does not depend on who runs here."""

    mode = "real"
    owns_interpreter = True
    models_calls = False
    threads_may_wait = True

    def __init__(self, process: UserProcess) -> None:
        self._process = process
        self.core = process.core
        self.verbs = VerbsOverCore(process.core, process.session.device_names)

    @property
    def device_names(self) -> Names:
        return self._process.session.device_names

    @property
    def logs(self) -> LogReader:
        from dualray.real.observe.log_reader import LogReader  # noqa: PLC0415 - few ask

        return LogReader(str(self._process.session.store_directory))

    def free_port(self) -> int:
        with socket.socket() as probe:
            probe.bind(("", 0))
            port: int = probe.getsockname()[1]
            return port

    def addresses(self) -> dict[str, str]:
        return self._process.session.addresses()

    def read_table(self, name: str) -> dict[str, dict[str, str]]:
        return self._process.read_table(name)

    def write_row(self, table: str, key: str, fields: Mapping[str, str]) -> None:
        write_row(self.core, table, key, fields)

    def read_functions(self) -> dict[FunctionID, bytes]:
        return self._process.read_functions()

    def silence(self) -> None:
        self._process.silence()

    def end_in_fork(self) -> bool:
        self.core.close()
        return True
