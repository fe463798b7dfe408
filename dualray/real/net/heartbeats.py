"""Heartbeats: who has been silent for how long. What follows from silence is decided elsewhere.

Theory of operation. Head and node managers of a cluster send one another an empty message every quarter of the
heartbeat timeout, and any message counts as a sign of life. Each silence is reported once, and so is its end. When the
check itself comes late, because this process was stopped or starved, it was deaf and not the others silent: everybody
gets a fresh timeout.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dualray.real.net.loop import Loop, Timer

BEATS_PER_TIMEOUT = 4


@dataclass(slots=True)
class _Watched:
    heard_ns: int
    is_silent: bool = False


class Heartbeats:
    """See the module.

    Args:
        loop: runs the checks.
        timeout_ns: silence is reported after so long.
        beat: called with each watched address; sends it a sign of life.
        on_silent, on_heard: called with the address.
    """

    def __init__(
        self,
        loop: Loop,
        *,
        timeout_ns: int,
        beat: Callable[[str], object],
        on_silent: Callable[[str], object],
        on_heard: Callable[[str], object],
    ) -> None:
        self._loop = loop
        self._timeout_ns = timeout_ns
        self._period_ns = max(1, timeout_ns // BEATS_PER_TIMEOUT)
        self._beat = beat
        self._on_silent = on_silent
        self._on_heard = on_heard
        self._watched: dict[str, _Watched] = {}
        self._checked_ns = loop.now_ns()
        self._timer: Timer = loop.call_later(self._period_ns / 1e9, self._check)

    def watch(self, address: str) -> None:
        """From now on; a watch that there is begins anew."""
        self._watched[address] = _Watched(self._loop.now_ns())

    def unwatch(self, address: str) -> None:
        """Not any more; harmless when it is not watched."""
        self._watched.pop(address, None)

    def hear(self, address: str) -> None:
        """Something has come from this address."""
        watched = self._watched.get(address)
        if watched is not None:
            watched.heard_ns = self._loop.now_ns()
            if watched.is_silent:
                watched.is_silent = False
                self._on_heard(address)

    def _check(self) -> None:
        now_ns = self._loop.now_ns()
        was_deaf = now_ns - self._checked_ns > 2 * self._period_ns
        self._checked_ns = now_ns
        for address, watched in list(self._watched.items()):
            if was_deaf:
                watched.heard_ns = max(watched.heard_ns, now_ns - self._period_ns)
            elif not watched.is_silent and now_ns - watched.heard_ns >= self._timeout_ns:
                watched.is_silent = True
                self._on_silent(address)
            self._beat(address)
        self._timer = self._loop.call_later(self._period_ns / 1e9, self._check)
