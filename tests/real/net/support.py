"""Waiting for what another thread or process does."""

import time
from collections.abc import Callable

DEADLINE_S = 30.0


def wait_for(condition: Callable[[], object], what: str) -> None:
    """Wait until the condition holds; the deadline is for the machine that is broken, not for the one that is slow."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"gave up waiting until {what}"
        time.sleep(0.001)
