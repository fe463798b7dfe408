"""Looks into the machines of a real run: what they keep at its end, and whether their invariants hold.

Theory of operation. A real machine lives in a process of its own. Its decision log has every event that it has handled,
so a fresh machine that handles the same events comes to the same state. `Replicas` makes such a machine for each log,
follows the logs while the run goes on, and asks the machines what a simulation asks its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from dualray.exceptions import DualrayError
from dualray.report.traces import decision_logs
from dualray.shared.machines.head.head import Head
from dualray.shared.machines.node.node import Node
from dualray.shared.machines.owner.owner import Owner
from dualray.shared.proof.decision_log import LogTail
from dualray.shared.proof.leftovers import has_references, left_in_head, left_in_node, left_in_owner
from dualray.testing.checkers import choice_check

CHECKED_EVERY = 16
"""Decisions of one machine between two checks of its invariants."""
LOG_BYTES_MAX = 1 << 26
"""Of all logs of a run: replaying more would take longer than the run."""


class _Replica:
    """One machine, as far as its log has been read. `broken` is the first that did not hold, in words."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.machine: Owner | Node | Head | None = None
        self.broken = ""
        self._tail = LogTail()
        self._read_bytes = 0
        self._decisions = 0

    @property
    def address(self) -> str:
        return "" if self._tail.spec is None else self._tail.spec.address

    def look(self) -> None:
        """Handle what the log has gained."""
        with self.path.open("rb") as file:
            file.seek(self._read_bytes)
            data = file.read()
        self._read_bytes += len(data)
        if self.broken or not data:
            return
        try:
            for now_ns, event in self._tail.feed(data):
                if self.machine is None:
                    assert self._tail.spec is not None
                    self.machine = self._tail.spec.make()
                    if isinstance(self.machine, Head):
                        self.machine.watch_choices(choice_check())
                self.machine.handle(event, now_ns)
                self._decisions += 1
                if self._decisions % CHECKED_EVERY == 0:
                    self.machine.check_invariants()
            if self.machine is not None:
                self.machine.check_invariants()
        except (DualrayError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
            words = str(error) if isinstance(error, DualrayError) else f"{type(error).__name__}: {error}"
            self.broken = words if self.address in words else f"{self.address}: {words}"


class Replicas:
    """See the module.

    Args:
        directory: the decision logs of the run.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._replicas: dict[Path, _Replica] = {}

    @property
    def is_too_large(self) -> bool:
        """Whether the logs are too large to be replayed."""
        return sum(path.stat().st_size for path in decision_logs(self._directory)) > LOG_BYTES_MAX

    def look(self) -> None:
        """Have each machine handle what its process has handled since the last call."""
        for path in decision_logs(self._directory):
            self._replicas.setdefault(path, _Replica(path)).look()

    def violations(self) -> list[str]:
        """The invariants that did not hold, in words."""
        return [replica.broken for replica in self._replicas.values() if replica.broken]

    def left(self, nodes: Sequence[str], driver: str) -> list[str] | None:
        """What the head, the present lives of these nodes, and the driver keep; None: the driver has references still.

        Args:
            driver: an address; empty if the program's driver has ended.
        """
        owner = self._of(driver)
        if isinstance(owner, Owner) and has_references(owner):
            return None
        left = left_in_owner(owner, driver) if isinstance(owner, Owner) else []
        heads = [machine for machine in self._sound() if isinstance(machine, Head)]
        groups = {group for head in heads for group in head.groups_kept()}
        for name in nodes:
            lives = list(self._lives_of(name))
            if lives:
                left += left_in_node(max(lives, key=lambda node: node.incarnation), name, groups)
        return left + [words for head in heads for words in left_in_head(head)]

    def _of(self, address: str) -> Owner | Node | Head | None:
        replicas = self._replicas.values()
        found = [replica.machine for replica in replicas if replica.address == address and not replica.broken]
        return found[-1] if found else None

    def _lives_of(self, name: str) -> Iterator[Node]:
        for machine in self._sound():
            if isinstance(machine, Node) and machine.node == name:
                yield machine

    def _sound(self) -> Iterator[Owner | Node | Head]:
        """Machines that have handled all events. A broken one has stopped, and keeps what it had."""
        for replica in self._replicas.values():
            if replica.machine is not None and not replica.broken:
                yield replica.machine
