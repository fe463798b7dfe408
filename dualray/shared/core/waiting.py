"""Waiting: a thread or fiber asks the machine for something, and goes on when the machine completes the wait."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from dualray.exceptions import DualrayError
from dualray.shared.core.state import PendingWait
from dualray.shared.core.step import CoreStep
from dualray.shared.model.events import (
    ActorNameAsked,
    ClusterStateAsked,
    PlacementGroupAsked,
    RowsAsked,
    SpaceWanted,
    ViewReleased,
    WaitAbandoned,
    WaitStarted,
)
from dualray.shared.model.ids import ObjectID, TaskID, WaitID

WaitEvent: TypeAlias = WaitStarted | SpaceWanted | ClusterStateAsked | RowsAsked | PlacementGroupAsked | ActorNameAsked


class CoreWaiting(CoreStep):
    """Begins and ends waits, and says in words what is waited for."""

    def _next_wait(self) -> WaitID:
        return WaitID(next(self._wait_counter))

    def _wait_for(self, event: WaitEvent, *, is_read: bool = False) -> PendingWait:
        """Begin a wait, and return when it is over.

        Raises:
            DualrayError: the runtime has ended, or ends meanwhile.
        """
        if self._may_block_a_loop:
            self._warn_of_blocked_loop(event)
        wait = PendingWait(self.host.new_signal(), is_read)
        try:
            self._begin_wait(event, wait)
            self._end_wait(wait)
        except (Exception, KeyboardInterrupt):
            self.abandon(event.wait_id, wait)
            raise
        return wait

    def _begin_wait(self, event: WaitEvent, wait: PendingWait) -> None:
        with self.host.lock:
            self._check_it_goes_on()
            self._waits[event.wait_id] = wait
            self.dispatch(event)

    def _end_wait(self, wait: PendingWait) -> None:
        if not wait.is_done:
            wait.signal.wait()
        if not wait.is_done:
            raise DualrayError(self.end_reason)

    def abandon(self, wait_id: WaitID, wait: PendingWait) -> None:
        """The thread that waits was interrupted, by Ctrl-C or by an error of its own."""
        with self.host.lock:
            if self._waits.pop(wait_id, None) is not None:
                self.dispatch(WaitAbandoned(wait_id=wait_id))
            elif wait.is_done and wait.is_read:
                self._release_unread(wait.ready)

    def _release_unread(self, object_ids: Iterable[ObjectID]) -> None:
        for object_id in object_ids:
            if object_id in self.machine.views:
                self.dispatch(ViewReleased(object_id=object_id))

    def fail(self, reason: str, *, is_sound: bool = True) -> None:
        """Nothing will come any more: whoever waits, or will wait, raises. A machine that is sound is told so: news
        may still come of what was waited for."""
        self.end_reason = reason
        with self.host.lock:
            waits = list(self._waits)
            self.abandon_waits()
            for wait_id in waits if is_sound else ():
                self.dispatch(WaitAbandoned(wait_id=wait_id))

    def abandon_waits(self) -> None:
        """The runtime ends: whoever still waits is woken, and raises."""
        with self.host.lock:
            self._has_ended = True
            waits, self._waits = list(self._waits.values()), {}
        for wait in waits:
            wait.signal.set()

    def _check_it_goes_on(self) -> None:
        if self._has_ended:
            raise DualrayError(self.end_reason)

    def waiting(self) -> list[str]:
        """In words, what this process waits for."""
        return [reason for _, reason in self.waiters()]

    def waiters(self) -> list[tuple[str, str]]:
        """Who waits in this process, and in words for what."""
        found = []
        for wait_id in self._waits:
            name = self.machine.call_that_waits(wait_id) or self.execution.name
            found += [(name, reason) for reason in self.machine.misses(wait_id)]
        return found

    def _waiting_task(self) -> TaskID | None:
        return self.execution.task_id if self.execution.is_task else None

    def _warn_of_blocked_loop(self, event: WaitEvent) -> None:
        """Warn once that a coroutine blocks its event loop. A constructor is not warned: no method runs yet."""
        if self._has_warned or not isinstance(event, WaitStarted) or event.timeout_ns == 0:
            return
        constructor = self.execution.constructor
        if (constructor is None or constructor.task_id != self.execution.task_id) and self.host.is_on_loop:
            self._has_warned = True
            verb = "get" if event.read else "wait"
            self.host.tell(
                f"{self.execution.name} calls dualray.{verb}() on the event loop of its actor. Until "
                f"dualray.{verb}() returns, no other method of its concurrency group runs. If dualray.{verb}() waits "
                f"for a method of the same group, dualray.{verb}() never returns. Use `await ref` or "
                f"`await asyncio.gather(*refs)`.\n"
            )
