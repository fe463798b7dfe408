"""The provider `command`: the user's commands start machines and end them. Ids make that safe to repeat.

Before a launch command is called, its id is written to a ledger, and crossed off when the terminate command has
succeeded. So what a crash leaves is known: the next head with this ledger ends it before it launches anything. Ids
begin with a name of their cluster, so no two clusters order the same one.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import shlex
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from dualray.exceptions import DualrayError
from dualray.real.cluster.provider import Launch, LaunchRefusedError
from dualray.shared.model.specs import LAUNCH_LABEL

REFUSED_STATUS: Final = 75
"""Of a launch command that has no machine to give now: it is not called again (EX_TEMPFAIL of sysexits.h)."""
_SAID_BYTES: Final = 2_000
"""Of a command's output that are looked at."""

_log = logging.getLogger("dualray")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandPlace:
    """Where machines of the user's commands are to join.

    Attributes:
        address: host:port of the head.
        secret_file: has the cluster's secret.
        prefix: of the ids that commands are told.
        options: further words of `dualray start`, such as `--tls`.
    """

    address: str
    secret_file: Path
    prefix: str
    options: tuple[str, ...] = ()


class Ledger:
    """A file with the machines that were launched and have not ended. One process has it open at a time.

    Raises:
        DualrayError: another one has it open, or it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._file = path.open("a+", encoding="utf-8")
        except OSError as error:
            raise DualrayError(
                f"the file {path}, which lists the launched machines, cannot be written: {error.strerror}"
            ) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise DualrayError(
                f"the head process of another cluster uses {path} as its list of machines, and would end the "
                "machines of this cluster. Set another file with provider: {command: {ledger: FILE}}, or stop "
                "the other cluster"
            ) from None

    def left(self) -> dict[str, str]:
        """The machines that have not ended, by id, each with its group."""
        left: dict[str, str] = {}
        with self._lock:
            self._file.seek(0)
            lines = self._file.readlines()
        for line in lines:
            try:
                row = json.loads(line)
            except json.JSONDecodeError:  # a crash has cut the last line off before its command was called
                continue
            if row["op"] == "launched":
                left[row["id"]] = row["group"]
            else:
                left.pop(row["id"], None)
        return left

    def add(self, launch_id: str, group: str) -> None:
        """Note a machine, before it is launched."""
        self._write({"op": "launched", "id": launch_id, "group": group})

    def cross_off(self, launch_id: str) -> None:
        """A machine has ended."""
        self._write({"op": "ended", "id": launch_id})

    def _write(self, row: Mapping[str, str]) -> None:
        with self._lock:
            self._file.write(json.dumps(row) + "\n")
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Let others have it; an empty one is removed."""
        if not self.left():
            self.path.unlink(missing_ok=True)
        self._file.close()


class CommandStarter:
    """Calls the user's commands.

    Args:
        plan: what `Growth.launch_plan` says.
        place: where machines join.
        ledger: see the module.
    """

    def __init__(self, plan: Mapping[str, Any], place: CommandPlace, ledger: Ledger) -> None:
        said = plan["said"]
        self.parallel: int = said["parallel"]
        self._commands: Mapping[str, str] = said
        self._timeout_s = said["timeout"] / 1e9
        self._retries: int = said["retries"]
        self._pause_s = said["pause"] / 1e9
        self._groups: Mapping[str, Any] = plan["groups"]
        self._place = place
        self._ledger = ledger

    def leftovers(self) -> Sequence[Callable[[], object]]:
        return [partial(self._end_leftover, launch_id, group) for launch_id, group in self._ledger.left().items()]

    def _end_leftover(self, launch_id: str, group: str) -> None:
        _log.warning("an earlier cluster left the machine %s of group %s running; dualray ends it", launch_id, group)
        self._terminate(launch_id, group)

    def admit(self, others: int) -> None:
        """The launch command says what there is."""

    def start(self, launch: Launch) -> Any:
        launch_id = self._name(launch)
        environment = self._environment(launch_id, launch.group) | self._to_join(launch)
        self._ledger.add(launch_id, launch.group)
        problem = ""
        for attempt in range(self._retries + 1):
            if attempt:
                time.sleep(self._pause_s)
            if launch.is_unwanted:
                raise LaunchRefusedError(f"the cluster no longer needs a new node of group {launch.group!r}")
            status, problem = self._call("launch", environment)
            if status == 0:
                return launch_id
            if status == REFUSED_STATUS:
                break
            _log.warning("%s, attempt %d: %s", launch_id, attempt + 1, problem)
        raise LaunchRefusedError(problem)

    def end(self, launch: Launch) -> bool:
        return self._terminate(self._name(launch), launch.group)

    def close(self) -> None:
        self._ledger.close()

    def _name(self, launch: Launch) -> str:
        return f"{self._place.prefix}-{launch.launch_id}"

    def _terminate(self, launch_id: str, group: str) -> bool:
        for attempt in range(self._retries + 1):
            if attempt:
                time.sleep(self._pause_s)
            status, problem = self._call("terminate", self._environment(launch_id, group))
            if status == 0:
                self._ledger.cross_off(launch_id)
                return True
            _log.error("%s, attempt %d: %s", launch_id, attempt + 1, problem)
        _log.error("the machine %s stays in %s; the next cluster with this file ends it", launch_id, self._ledger.path)
        return False

    def _environment(self, launch_id: str, group: str) -> dict[str, str]:
        return {"DUALRAY_LAUNCH_ID": launch_id, "DUALRAY_LAUNCH_GROUP": group}

    def _to_join(self, launch: Launch) -> dict[str, str]:
        """What a launch command needs for its machine to join."""
        offer = self._groups[launch.group]
        labels = offer["labels"] | {LAUNCH_LABEL: launch.launch_id}
        joined = ",".join(f"{key}={value}" for key, value in labels.items())
        words = ["dualray", "start", "--address", self._place.address, "--labels", joined, *self._place.options]
        words += ["--num-cpus", f"{offer['num_cpus']:g}", "--num-gpus", f"{offer['num_gpus']:g}"]
        if offer["memory"]:
            words += ["--memory", str(offer["memory"])]
        if offer["resources"]:
            words += ["--resources", json.dumps(offer["resources"])]
        if offer["object_store_memory"] is not None:
            words += ["--object-store-memory", f"{offer['object_store_memory']}B"]
        return {
            "DUALRAY_LAUNCH_ADDRESS": self._place.address,
            "DUALRAY_LAUNCH_LABELS": joined,
            "DUALRAY_LAUNCH_START": shlex.join(words),
            "DUALRAY_LAUNCH_SECRET_FILE": str(self._place.secret_file),
        }

    def _call(self, which: str, environment: Mapping[str, str]) -> tuple[int | None, str]:
        """Run a command of the user's: its exit status, None when it took too long; and what went wrong, in words."""
        command = self._commands[which]
        with tempfile.TemporaryFile() as said:  # no pipe: a machine of this host may keep it open
            process = subprocess.Popen(
                ["/bin/sh", "-c", command],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                env=os.environ | environment,
                start_new_session=True,
            )
            try:
                status = process.wait(self._timeout_s)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                status = None
            last = _last_line(said.fileno())
        if status is None:
            return None, f"the {which} command took longer than {self._timeout_s:g} s and was killed{_colon(last)}"
        if status == REFUSED_STATUS:
            return status, last or f"the {which} command ended with status {status}: it has no machine available now"
        return status, f"the {which} command ended with status {status}{_colon(last)}"


def _last_line(fd: int) -> str:
    size = os.fstat(fd).st_size
    text = os.pread(fd, _SAID_BYTES, max(size - _SAID_BYTES, 0)).decode(errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _colon(words: str) -> str:
    return f": {words}" if words else ""
