"""The seat of the loop: who runs it while threads wait, and while none does."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from dualray.real.net.loop import Loop
from dualray.real.processes.interpreter import InterpreterSettings

SOON_S = 10.0


class Flag:
    def __init__(self) -> None:
        self.is_set = False
        self.event = threading.Event()

    def set(self) -> None:
        self.is_set = True
        self.event.set()


@pytest.fixture
def errors() -> list[Exception]:
    return []


@contextmanager
def running_loop(errors: list[Exception], spin_ns: int) -> Iterator[Loop]:
    made = Loop(errors.append, spin_ns=spin_ns)
    thread = threading.Thread(target=made.run, name="background")
    thread.start()
    yield made
    made.stop()
    thread.join(SOON_S)
    assert not thread.is_alive()
    made.close()
    assert errors == []


@pytest.fixture
def loop(errors: list[Exception]) -> Iterator[Loop]:
    with running_loop(errors, spin_ns=50_000) as made:
        yield made


def test_a_waiting_thread_runs_the_loop_itself(loop: Loop) -> None:
    flag, ran_by = Flag(), []

    def callback() -> None:
        ran_by.append(threading.get_ident())
        flag.set()

    threading.Timer(0.05, lambda: loop.call_soon(callback)).start()
    assert loop.pump(flag)
    assert ran_by == [threading.get_ident()]


def test_the_background_thread_serves_when_nobody_waits(loop: Loop) -> None:
    flag, ran_by = Flag(), []

    def callback() -> None:
        ran_by.append(threading.current_thread().name)
        flag.set()

    loop.call_soon(callback)
    assert flag.event.wait(SOON_S)
    assert ran_by == ["background"]


def test_the_background_thread_serves_again_after_somebody_has_pumped_for_long(loop: Loop) -> None:
    pumped, later = Flag(), Flag()
    loop.call_later(0.1, pumped.set)  # long enough for the background thread to sleep without a timeout
    assert loop.pump(pumped)
    loop.call_soon(later.set)
    assert later.event.wait(SOON_S)


def test_a_thread_that_finds_another_one_pumping_waits_for_its_signal(loop: Loop) -> None:
    first, second, results = Flag(), Flag(), []
    pumping = threading.Thread(target=lambda: results.append(loop.pump(first)))
    pumping.start()
    deadline_s = time.monotonic() + SOON_S
    while not loop._is_pumped() and time.monotonic() < deadline_s:
        time.sleep(0.001)
    assert not loop.pump(second)
    loop.call_later(0.02, second.set)
    loop.wait_elsewhere(second, second.event)
    assert second.is_set
    loop.call_soon(first.set)
    pumping.join(SOON_S)
    assert results == [True]


def test_the_loop_goes_on_for_those_who_wait_elsewhere_when_the_pumping_thread_has_its_answer(loop: Loop) -> None:
    first, second = Flag(), Flag()
    waiting = threading.Thread(target=lambda: loop.wait_elsewhere(second, second.event))
    waiting.start()
    loop.call_later(0.01, first.set)
    loop.call_later(0.05, second.set)
    loop.pump(first)
    waiting.join(SOON_S)
    assert not waiting.is_alive()


def test_who_waits_for_what_takes_long_sleeps(errors: list[Exception]) -> None:
    """It would take four fifths of a processor to look for news for as long as it may, each time."""
    cpu_s, began_s = time.thread_time(), time.monotonic()
    with running_loop(errors, spin_ns=20_000_000) as loop:
        for _ in range(20):
            flag = Flag()
            loop.call_later(0.025, flag.set)
            assert loop.pump(flag)
    assert time.thread_time() - cpu_s < (time.monotonic() - began_s) / 3


def test_a_glance_takes_in_what_is_there_and_does_not_wait(loop: Loop) -> None:
    read_fd, write_fd = os.pipe()
    seen = []
    ready = Flag()

    def watch() -> None:
        loop.add_reader(read_fd, lambda: seen.append(os.read(read_fd, 1)))
        ready.set()

    loop.call_soon(watch)
    assert ready.event.wait(SOON_S)
    os.write(write_fd, b"x")
    deadline_s = time.monotonic() + SOON_S
    while not seen and time.monotonic() < deadline_s:
        loop.poll_once()
    assert seen == [b"x"]
    stop = Flag()
    loop.call_soon(lambda: loop.remove_reader(read_fd))
    loop.call_soon(stop.set)
    assert stop.event.wait(SOON_S)
    os.close(read_fd)
    os.close(write_fd)


def test_a_finalizer_may_wait_at_each_line_of_a_wait(loop: Loop) -> None:
    """The collector runs finalizers anywhere: also where a thread takes the seat, and where it has just left it."""

    def wait() -> bool:
        flag = Flag()
        loop.call_soon(flag.set)
        return loop.pump(flag)

    def is_answered_with_a_finalizer(at: int) -> bool | None:
        """Whether both waits end well, one within the other; None if the wait has fewer lines."""
        lines, answers = iter(range(at + 1)), []

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            if frame.f_code is Loop.pump.__code__ and event == "line" and next(lines, None) == at:
                answers.append(wait())
            return trace if event != "call" or frame.f_code is Loop.pump.__code__ else None

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            outer = wait()
        finally:
            sys.settrace(before)
        return outer and answers == [True] if answers else None

    at = 0
    while (answer := is_answered_with_a_finalizer(at)) is not None:
        assert answer, f"line {at} of the wait"
        at += 1
    assert at > 20


def test_pumping_ends_when_the_loop_stops(errors: list[Exception]) -> None:
    loop = Loop(errors.append)
    thread = threading.Thread(target=loop.run)
    thread.start()
    threading.Timer(0.05, loop.stop).start()
    assert not loop.pump(Flag())
    thread.join(SOON_S)
    assert not thread.is_alive()
    loop.close()


def test_the_interpreter_is_as_it_was_afterwards() -> None:
    before = gc.get_threshold(), sys.getswitchinterval()
    settings = InterpreterSettings()
    settings.restore()
    assert (gc.get_threshold(), sys.getswitchinterval()) == before


def test_what_the_user_has_set_is_left_alone() -> None:
    before = gc.get_threshold(), sys.getswitchinterval()
    gc.set_threshold(1234, 5, 6)
    sys.setswitchinterval(0.01)
    try:
        settings = InterpreterSettings()
        assert (gc.get_threshold(), round(sys.getswitchinterval(), 6)) == ((1234, 5, 6), 0.01)
        settings.restore()
        assert (gc.get_threshold(), round(sys.getswitchinterval(), 6)) == ((1234, 5, 6), 0.01)
    finally:
        gc.set_threshold(*before[0])
        sys.setswitchinterval(before[1])
