from __future__ import annotations

import random
from collections.abc import Callable, Generator
from typing import Any

import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st
from simpy.core import EmptySchedule

from dualray.sim.kernel.calendar import DAY_BITS, TOMBSTONES_MIN, Due
from dualray.sim.kernel.kernel import LATE, NORMAL, URGENT, Kernel, Scheduled

DAY_NS = 1 << DAY_BITS


def run_out(kernel: Kernel) -> None:
    assert kernel.run_until(lambda: False) is False


def test_events_happen_in_the_order_of_time_priority_and_sequence() -> None:
    kernel = Kernel()
    seen: list[tuple[int, str]] = []

    def note(name: str) -> None:
        seen.append((kernel.now_ns, name))

    kernel.call_after(5, note, "late", priority=LATE)
    kernel.call_after(5, note, "first")
    kernel.call_after(3 * DAY_NS, note, "days later")
    kernel.call_after(5, note, "urgent", priority=URGENT)
    kernel.call_after(5, note, "second", priority=NORMAL)
    kernel.call_after(0, note, "now")
    run_out(kernel)
    assert seen == [
        (0, "now"),
        (5, "urgent"),
        (5, "first"),
        (5, "second"),
        (5, "late"),
        (3 * DAY_NS, "days later"),
    ]
    assert kernel.events_performed == 6


class Calls(Due):
    def __init__(self, fn: Callable[[int], object], number: int) -> None:
        self.fn = fn
        self.number = number

    def happen(self) -> None:
        self.fn(self.number)


def random_program(seed: int, events_max: int) -> list[tuple[int, int]]:
    """Events beget and cancel events on all sides of the day's border. Returns (time, number) as performed."""
    kernel, chance = Kernel(), random.Random(seed)
    made: list[Scheduled | None] = []
    seen: list[tuple[int, int]] = []
    cancelled = 0
    spans = (0, 1, DAY_NS - 1, DAY_NS, DAY_NS + 1, 5 * DAY_NS)

    def schedule() -> None:
        if len(made) < events_max:
            number, delay_ns = len(made), chance.choice(spans)
            how = chance.randrange(5)
            if how == 0:
                kernel.calendar.post(kernel.now_ns + delay_ns, perform, number)
                made.append(None)
            elif how == 1:
                kernel.calendar.post_due(kernel.now_ns + delay_ns, Calls(perform, number))
                made.append(None)
            else:
                priority = chance.choice((URGENT, NORMAL, LATE))
                made.append(kernel.call_after(delay_ns, perform, number, priority=priority))

    def perform(number: int) -> None:
        nonlocal cancelled
        seen.append((kernel.now_ns, number))
        for _ in range(chance.randrange(4)):
            schedule()
        while chance.random() < 0.4:
            victim = made[chance.randrange(len(made))]
            cancelled += victim is not None and victim.cancel()

    schedule()
    run_out(kernel)
    assert kernel.events_performed == len(seen)
    assert len(seen) + cancelled == len(made)
    assert kernel.events_pending == 0
    assert [at_ns for at_ns, _ in seen] == sorted(at_ns for at_ns, _ in seen)
    return seen


@given(st.integers(0, 2**32), st.integers(1, 300))
def test_the_calendar_keeps_the_order_of_one_heap(seed: int, events_max: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dualray.sim.kernel.calendar.DAY_BITS", 62)  # one day for everything: a plain heap
        expected = random_program(seed, events_max)
    assert random_program(seed, events_max) == expected
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dualray.sim.kernel.calendar.TOMBSTONES_MIN", 1)  # and sweeping at every turn changes nothing
        assert random_program(seed, events_max) == expected


@pytest.mark.parametrize("delay", [1.0, 1.5, -1, True, None, "1"])
def test_a_delay_is_an_int_of_nanoseconds_and_not_negative(delay: Any) -> None:
    with pytest.raises(AssertionError, match="delay"):
        Kernel().call_after(delay, print)


def test_simpys_own_timeouts_are_held_to_the_same() -> None:
    kernel = Kernel()
    with pytest.raises(AssertionError, match=r"0\.5"):
        kernel.timeout(0.5)


def test_a_cancelled_event_does_not_happen_and_does_not_move_the_clock() -> None:
    kernel = Kernel()
    seen: list[str] = []
    event = kernel.call_after(10, seen.append, "cancelled")
    kernel.call_after(3, seen.append, "kept")
    states = [event.pending, event.cancel(), event.pending, event.cancel()]
    assert states == [True, True, False, False]
    run_out(kernel)
    assert (seen, kernel.now_ns, kernel.events_performed) == (["kept"], 3, 1)
    assert kernel.peek() == float("inf")
    with pytest.raises(EmptySchedule):
        kernel.step()


def test_a_performed_event_cannot_be_cancelled() -> None:
    kernel = Kernel()
    event = kernel.call_after(0, print)
    event.cancel()
    done = kernel.call_after(0, lambda: None)
    kernel.step()
    assert done.cancel() is False


def test_timers_armed_and_cancelled_do_not_pile_up() -> None:
    kernel = Kernel()
    for _ in range(10 * TOMBSTONES_MIN):
        kernel.call_after(10 * DAY_NS, print).cancel()
        kernel.call_after(5, print).cancel()
    assert len(kernel.calendar.today) + sum(map(len, kernel.calendar.days.values())) < 2 * TOMBSTONES_MIN
    seen: list[int] = []
    kernel.call_after(20 * DAY_NS, seen.append, 1)  # behind a day whose events were all swept
    run_out(kernel)
    assert (seen, kernel.now_ns) == ([1], 20 * DAY_NS)


def test_peek_looks_past_cancelled_events_and_empty_days() -> None:
    kernel = Kernel()
    kernel.call_after(1, print).cancel()
    kernel.call_after(2 * DAY_NS, print).cancel()
    kernel.call_after(4 * DAY_NS, print)
    assert kernel.peek() == 4 * DAY_NS


def test_daemon_events_happen_but_keep_nothing_alive() -> None:
    kernel = Kernel()
    beats: list[int] = []

    def beat() -> None:
        beats.append(kernel.now_ns)
        kernel.call_after(10, beat, daemon=True)

    kernel.call_after(10, beat, daemon=True)
    assert kernel.run_until(lambda: False) is False
    assert beats == []
    kernel.call_after(35, lambda: None)
    assert kernel.run_until(lambda: False) is False
    assert beats == [10, 20, 30]
    cancelled = kernel.call_after(1_000, lambda: None)
    cancelled.cancel()
    assert kernel.run_until(lambda: False) is False
    assert beats == [10, 20, 30]


def test_run_until_asks_before_each_event() -> None:
    kernel = Kernel()
    seen: list[int] = []
    for value in range(5):
        kernel.call_after(value, seen.append, value)
    assert kernel.run_until(lambda: len(seen) == 3) is True
    assert seen == [0, 1, 2]
    assert kernel.run_until(lambda: True) is True
    assert seen == [0, 1, 2]


def test_an_error_in_an_event_passes_through_and_the_kernel_goes_on() -> None:
    kernel = Kernel()
    seen: list[int] = []

    def fail() -> None:
        raise ValueError("broken invariant")

    kernel.call_after(1, fail)
    kernel.call_after(2, seen.append, 2)
    with pytest.raises(ValueError, match="broken invariant"):
        kernel.run_until(lambda: False)
    run_out(kernel)
    assert seen == [2]
    assert kernel.events_performed == 2


def test_simpy_processes_and_conditions_mix_in() -> None:
    kernel = Kernel()
    seen: list[tuple[int, str]] = []

    def process() -> Generator[simpy.Event, Any, None]:
        yield kernel.timeout(7)
        seen.append((kernel.now_ns, "timeout"))
        own = kernel.call_after(5, seen.append, (12, "called"))
        yield own
        seen.append((kernel.now_ns, "after own"))
        yield own  # an event of the past
        yield kernel.any_of([kernel.call_after(3 * DAY_NS, lambda: None), kernel.timeout(1)])
        seen.append((kernel.now_ns, "any"))

    kernel.process(process())
    run_out(kernel)
    assert seen == [(7, "timeout"), (12, "called"), (12, "after own"), (13, "any")]
    assert kernel.now_ns == 12 + 3 * DAY_NS


def test_simpys_run_works_on_the_calendar() -> None:
    kernel = Kernel()
    seen: list[int] = []
    for day in range(5):
        kernel.call_after(day * DAY_NS, seen.append, day)
    kernel.run(until=2 * DAY_NS + 1)
    assert seen == [0, 1, 2]
    kernel.run()
    assert seen == [0, 1, 2, 3, 4]


def test_a_failed_simpy_event_is_not_silent() -> None:
    kernel = Kernel()
    kernel.event().fail(OSError("lost"))
    with pytest.raises(OSError, match="lost"):
        kernel.run_until(lambda: False)


def test_hooks_run_at_fixed_counts_in_the_order_of_their_adding() -> None:
    kernel = Kernel()
    calls: list[tuple[str, int]] = []

    def tick(left: int) -> None:
        if left:
            kernel.call_after(1, tick, left - 1)

    kernel.on_event(lambda count: calls.append(("a", count)), every=4)
    remove = kernel.on_event(lambda count: calls.append(("b", count)), every=2)
    kernel.call_after(1, tick, 8)
    kernel.run_until(lambda: kernel.events_performed == 5)
    assert calls == [("b", 2), ("a", 4), ("b", 4)]
    remove()
    remove()
    kernel.on_event(lambda count: calls.append(("c", count)), every=3)  # counts from the start, not from now
    run_out(kernel)
    assert calls[3:] == [("c", 6), ("a", 8), ("c", 9)]


def test_a_hook_may_remove_itself() -> None:
    kernel = Kernel()
    calls: list[int] = []

    def once(count: int) -> None:
        calls.append(count)
        remove()

    remove = kernel.on_event(once, every=1)
    for delay in range(3):
        kernel.call_after(delay, lambda: None)
    run_out(kernel)
    assert calls == [1]
