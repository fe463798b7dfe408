"""The watchdog looks on from another thread, and nothing that a run does may depend on when it does."""

import time
import weakref

from dualray.sim.usercode.watchdog import LOOKS, Watchdog


class Value:
    pass


def hold(until_s):
    """A frame with a local that is in use for a while: what has become of it when the frame has ended."""
    value = Value()
    seen = weakref.ref(value)
    while time.monotonic() < until_s:
        pass
    return seen


def test_it_keeps_nothing_alive_that_it_has_come_by():
    watchdog = Watchdog(lambda: 0, lambda: None, still_s=0.05 * LOOKS)
    try:
        for _ in range(3):  # each lasts over a look at least, and ends before the next one
            assert hold(time.monotonic() + 0.06)() is None
    finally:
        watchdog.stop()
