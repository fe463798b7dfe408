"""The loop of a process: callbacks, timers, descriptors, and who wakes it."""

import socket
import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest

from dualray.real.net.loop import Loop
from tests.real.net.support import DEADLINE_S


@pytest.fixture
def loop() -> Iterator[Loop]:
    errors: list[Exception] = []
    loop = Loop(errors.append)
    loop.errors = errors  # type: ignore[attr-defined]
    yield loop
    loop.close()


def test_the_loops_callbacks_run_in_order_and_timers_by_deadline(loop: Loop) -> None:
    seen: list[object] = []
    loop.call_later(0.02, lambda: seen.append("later"))
    loop.call_later(0.01, lambda: seen.append("sooner"))
    loop.call_later(0.005, lambda: seen.append("cancelled")).cancel()
    loop.call_later(0.03, loop.stop)
    for index in range(3):
        loop.call_soon(partial(seen.append, index))
    loop.run()
    assert seen == [0, 1, 2, "sooner", "later"]
    assert not loop.call_soon(lambda: None)
    with pytest.raises(RuntimeError, match="once"):
        loop.run()


def test_the_loop_tells_errors_and_goes_on(loop: Loop) -> None:
    loop.call_soon(lambda: 1 / 0)
    loop.call_later(0, lambda: int("x"))
    loop.call_later(0.001, loop.stop)
    loop.run()
    assert [type(error) for error in loop.errors] == [ZeroDivisionError, ValueError]  # type: ignore[attr-defined]


def test_the_loop_is_woken_by_other_threads(loop: Loop) -> None:
    thread = threading.Thread(target=loop.run)
    thread.start()
    seen: list[int] = []
    for index in range(100):
        loop.call_and_wait(partial(seen.append, index))
    assert seen == list(range(100))
    with pytest.raises(ZeroDivisionError):
        loop.call_and_wait(lambda: 1 / 0)
    early = threading.Event()
    loop.call_later(3600, lambda: None)
    loop.call_later(0, early.set)
    assert early.wait(DEADLINE_S)
    loop.stop()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    loop.call_and_wait(partial(seen.append, 100))
    assert seen[-1] == 100


def test_cancelled_timers_do_not_pile_up(loop: Loop) -> None:
    for _ in range(10_000):
        loop.call_later(3600, lambda: None).cancel()
    assert len(loop._timers) < 200


def test_a_descriptor_that_a_callback_closes_is_not_served_from_old_news(loop: Loop) -> None:
    pairs = [socket.socketpair() for _ in range(2)]
    served: list[int] = []

    def serve(index: int) -> None:
        served.append(index)
        for ours, theirs in pairs:
            loop.remove_reader(ours.fileno())
            ours.close()
            theirs.close()
        loop.stop()

    for index, (ours, theirs) in enumerate(pairs):
        loop.add_reader(ours.fileno(), partial(serve, index))
        theirs.send(b"x")
    loop.run()
    assert len(served) == 1


def test_stop_before_run_is_honoured(loop: Loop) -> None:
    seen: list[int] = []
    loop.call_soon(partial(seen.append, 1))
    loop.stop()
    loop.run()
    assert seen == [1]


class Awaited:
    is_set = False


def test_a_wait_within_a_turn_that_is_about_to_sleep_loses_no_news() -> None:
    errors: list[Exception] = []
    made: list[Loop] = []
    inner = Awaited()
    runs: list[None] = []

    def finalizer() -> None:
        if made and made[0]._sleeping and not runs:
            runs.append(None)
            made[0].call_soon(partial(setattr, inner, "is_set", True))
            made[0].pump(inner)

    loop = Loop(errors.append, on_turn=finalizer, is_shared=True)
    made.append(loop)
    thread = threading.Thread(target=loop.run)
    thread.start()
    while not inner.is_set:
        time.sleep(0.001)
    time.sleep(0.01)  # it sleeps now
    came = threading.Event()
    loop.call_soon(came.set)
    assert came.wait(DEADLINE_S)
    loop.stop()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    assert errors == []
    loop.close()
