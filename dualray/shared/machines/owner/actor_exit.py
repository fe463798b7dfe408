"""The end of an actor that wants to end: its last results arrive before the news of its death.

Theory of operation. A method has called `exit_actor`: nothing of the actor begins any more. Its worker tells each
process that it has to do with that it leaves; messages between two processes stay in order, so who has heard that has
all results that were sent to it, and says so. When all have, the head is told, and with it everybody, that the actor is
dead. Nobody waits for a process that has died, and no longer than `EXIT_PATIENCE_NS` for one that says nothing.

Relies on: messages between two processes stay in order.
Guarantees: the head is told once.
"""

from __future__ import annotations

from collections.abc import Iterable

from dualray.shared.machines.base import Outbox
from dualray.shared.model.commands import ArmTimer, CancelTimer
from dualray.shared.model.events import ActorExited, ActorLeaving
from dualray.shared.model.ids import HEAD, ActorID, Address

EXIT_TIMER = "exit-actor"
EXIT_PATIENCE_NS = 1_000_000_000


class ActorExit:
    """See the module."""

    def __init__(self, *, out: Outbox, address: Address) -> None:
        self.out = out
        self.address = address
        self._awaited: dict[Address, None] | None = None
        """Who has not said that it has heard; None: the actor does not leave, or has left."""
        self._news: ActorExited | None = None

    @property
    def has_begun(self) -> bool:
        """Whether the actor leaves, or has left."""
        return self._news is not None

    def begin(self, actor_id: ActorID, method: str, peers: Iterable[Address]) -> None:
        """`method` has called `exit_actor`."""
        if self._news is not None:
            return
        self._news = ActorExited(actor_id=actor_id, worker=self.address, method=method)
        self._awaited = dict.fromkeys(peers)
        for peer in self._awaited:
            self.out.send(peer, ActorLeaving(worker=self.address))
        if self._awaited:
            self.out.add(ArmTimer(timer=EXIT_TIMER, delay_ns=EXIT_PATIENCE_NS))
        self._leave_if_all_know()

    def on_heard(self, peer: Address) -> None:
        """A process has all that we have sent to it, or has died."""
        if self._awaited is not None and peer in self._awaited:
            del self._awaited[peer]
            self._leave_if_all_know()

    def on_timer(self) -> None:
        """Somebody says nothing."""
        if self._awaited is not None:
            self._leave()

    def _leave_if_all_know(self) -> None:
        if self._awaited is not None and not self._awaited:
            self.out.add(CancelTimer(timer=EXIT_TIMER))
            self._leave()

    def _leave(self) -> None:
        assert self._news is not None
        self._awaited = None
        self.out.send(HEAD, self._news)
