"""The provider of real nodes: starts machines and gives them back, as the head's autoscaler orders. Decides nothing.

Theory of operation. It lives in the daemon of the head's node, which outlives the head, and listens at a Unix socket in
the session's directory. The head connects, and sends a line of JSON for each order:

    head -> provider   {"op": "launch", "group": "cpu", "ids": ["launch-1", "launch-2"]}
                       {"op": "terminate", "id": "launch-1"}
    provider -> head   {"group": "cpu", "ids": ["launch-1"], "reason": "why not"}

A few threads carry the orders out. An id is launched once, however often it is ordered. One that is terminated while
it starts is ended as soon as it has started; one that was refused or has ended is no more.

`local` starts a node's daemon on this machine. The node holds the other end of a pipe of ours, and so ends with this
process, however that ends. `command` calls the user's commands: see launch_commands.py.

When the daemon ends, all that is left is ended.
"""

from __future__ import annotations

import collections
import contextlib
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from dualray.exceptions import DualrayError
from dualray.real.limits import start_thread
from dualray.real.net.addresses import listen
from dualray.real.session.session import PROVIDER_SOCKET, Session
from dualray.shared.model.specs import LAUNCH_LABEL

_LINE_BYTES_MAX: Final = 1 << 20

_log = logging.getLogger("dualray")


class LaunchRefusedError(Exception):
    """No node comes of a launch; the message says why."""


@dataclass(slots=True)
class Launch:
    """One machine that was ordered."""

    launch_id: str
    group: str
    is_unwanted: bool = False
    """It was terminated: it is to be ended once it has started."""
    is_ending: bool = False
    ended: threading.Event = field(default_factory=threading.Event)
    machine: Any = None
    """What its starter has made."""


class Starter(Protocol):
    """Starts and ends one machine; called from several threads."""

    parallel: int
    """Calls at a time."""

    def leftovers(self) -> Sequence[Callable[[], object]]:
        """What is to be done about machines of an earlier life, each to be called once."""

    def admit(self, others: int) -> None:
        """Whether one more may be launched beside so many; raises LaunchRefusedError."""

    def start(self, launch: Launch) -> Any:
        """Start it; raises LaunchRefusedError."""

    def end(self, launch: Launch) -> bool:
        """End it, also one of which the start has failed; whether it is gone."""

    def close(self) -> None:
        """All have ended, or will not."""


class Provider:
    """See the module.

    Args:
        session: of the head's node.
        starter: carries out each single order.
    Raises:
        OSError: the socket cannot be made.
    """

    def __init__(self, session: Session, starter: Starter) -> None:
        self._starter = starter
        self._launches: dict[str, Launch] = {}
        self._gone: dict[str, None] = {}
        """Ids that were refused, or have ended: they are not launched again."""
        self._lock = threading.Lock()
        self._orders: collections.deque[Callable[[], object]] = collections.deque()
        self._has_orders = threading.Semaphore(0)
        self._is_closed = False
        self._head: socket.socket | None = None
        self._listener = listen(session.directory / PROVIDER_SOCKET)
        self._listener.setblocking(True)
        for leftover in starter.leftovers():
            self._do(leftover)
        for index in range(starter.parallel):
            start_thread(threading.Thread(target=self._work, name=f"dualray-launch-{index}", daemon=True))
        self._server = threading.Thread(target=self._serve, name="dualray-provider", daemon=True)
        start_thread(self._server)

    # ---- The head --------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        """A thread: take the head's orders until it, or the provider, ends."""
        try:
            self._head, _ = self._listener.accept()
            with self._head, self._head.makefile("rb") as lines:
                while line := lines.readline(_LINE_BYTES_MAX):
                    self._take(json.loads(line))
        except OSError as error:
            if not self._is_closed:
                _log.error("the provider of nodes lost its connection to the head process: %s", error)

    def _take(self, order: Mapping[str, Any]) -> None:
        if order["op"] == "launch":
            for launch_id in order["ids"]:
                self.launch(order["group"], launch_id)
        else:
            self.terminate(order["id"])

    def _tell_failed(self, launch: Launch, reason: str) -> None:
        _log.warning("%s of group %s: %s", launch.launch_id, launch.group, reason)
        line = json.dumps({"group": launch.group, "ids": [launch.launch_id], "reason": reason})
        with contextlib.suppress(OSError), self._lock:  # a head that is gone wants nothing any more
            if self._head is not None:
                self._head.sendall(line.encode() + b"\n")

    # ---- Orders ----------------------------------------------------------------------------------------------

    def launch(self, group: str, launch_id: str) -> None:
        """Start a machine, unless this id was ordered before."""
        with self._lock:
            if launch_id in self._launches or launch_id in self._gone or self._is_closed:
                return
            launch = Launch(launch_id, group)
            others = len(self._launches)
            self._launches[launch_id] = launch
        try:
            self._starter.admit(others)
        except LaunchRefusedError as refusal:
            self._forget(launch)
            self._tell_failed(launch, str(refusal))
            return
        self._do(lambda: self._start(launch))

    def terminate(self, launch_id: str) -> None:
        """End a machine; one that starts, when it has started."""
        with self._lock:
            launch = self._launches.get(launch_id)
            if launch is None or launch.is_ending:
                return
            launch.is_unwanted = True
            if launch.machine is None:
                return
            launch.is_ending = True
        self._do(lambda: self._end(launch))

    def _start(self, launch: Launch) -> None:
        if launch.is_unwanted:
            self._forget(launch)
            return
        try:
            machine = self._starter.start(launch)
        except LaunchRefusedError as refusal:
            self._starter.end(launch)
            self._forget(launch)
            self._tell_failed(launch, str(refusal))
            return
        _log.info("%s of group %s has started", launch.launch_id, launch.group)
        if self._is_unwanted_with(launch, machine):
            self._end(launch)

    def _is_unwanted_with(self, launch: Launch, machine: Any) -> bool:
        """Whether a launch was terminated before it had its machine."""
        with self._lock:
            launch.machine = machine
            launch.is_ending = launch.is_unwanted
            return launch.is_ending

    def _end(self, launch: Launch) -> None:
        if self._starter.end(launch):
            _log.info("the node %s of group %s was given back", launch.launch_id, launch.group)
        self._forget(launch)

    def _forget(self, launch: Launch) -> None:
        with self._lock:
            self._launches.pop(launch.launch_id, None)
            self._gone[launch.launch_id] = None
        launch.ended.set()

    # ---- Threads ---------------------------------------------------------------------------------------------

    def _do(self, order: Callable[[], object]) -> None:
        self._orders.append(order)
        self._has_orders.release()

    def _work(self) -> None:
        while True:
            self._has_orders.acquire()
            order = self._orders.popleft()
            try:
                order()
            except Exception:  # noqa: BLE001 - whatever it is, the other launches go on
                _log.critical("the provider failed because of a bug in dualray", exc_info=True)

    def close(self, timeout_s: float) -> None:
        """End all machines, and wait for that, at most this long. Idempotent."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            left = list(self._launches.values())
        for launch in left:
            self.terminate(launch.launch_id)
        deadline = time.monotonic() + timeout_s
        for launch in left:
            if not launch.ended.wait(max(deadline - time.monotonic(), 0.0)):
                _log.error("the node %s of group %s was not given back in time", launch.launch_id, launch.group)
        for connection in (self._listener, self._head):
            if connection is not None:
                with contextlib.suppress(OSError):  # the head has closed it
                    connection.shutdown(socket.SHUT_RDWR)
        self._server.join()
        self._listener.close()
        self._starter.close()


# ---- Nodes on this machine -------------------------------------------------------------------------------------------


class LocalStarter:
    """Starts nodes' daemons on this machine.

    Args:
        plan: what `Growth.launch_plan` says.
        start: starts a node of a group with these labels and returns what `stop` takes; raises DualrayError, ValueError
            or OSError.
        stop: ends it.
    """

    def __init__(
        self,
        plan: Mapping[str, Any],
        *,
        start: Callable[[Mapping[str, Any], Mapping[str, str]], Any],
        stop: Callable[[Any], None],
    ) -> None:
        self.parallel: int = plan["said"]["parallel"]
        self._nodes_max: int = plan["said"]["nodes"]
        self._groups: Mapping[str, Any] = plan["groups"]
        self._start_node = start
        self._stop_node = stop

    def leftovers(self) -> Sequence[Callable[[], object]]:
        return ()

    def admit(self, others: int) -> None:
        if others >= self._nodes_max:
            raise LaunchRefusedError(f"the local provider may run at most {self._nodes_max} nodes on this machine")

    def start(self, launch: Launch) -> Any:
        offer = self._groups[launch.group]
        try:
            return self._start_node(offer, offer["labels"] | {LAUNCH_LABEL: launch.launch_id})
        except (DualrayError, ValueError, OSError) as error:
            raise LaunchRefusedError(str(error).splitlines()[0]) from error

    def end(self, launch: Launch) -> bool:
        if launch.machine is not None:
            self._stop_node(launch.machine)
        return True

    def close(self) -> None:
        """Nothing is left to do."""
