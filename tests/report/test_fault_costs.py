"""What each fault cost: by hand-written rows, and of a run that loses a node."""

from __future__ import annotations

from pathlib import Path

import pytest

from dualray.dashboard.feeds import DirectoryFeed
from dualray.report.fault_costs import FaultCosts, costs_of
from dualray.report.notices import NodeNotice, Noticed
from dualray.report.page import page
from dualray.report.record import read_record
from dualray.shared.model.ids import HEAD
from dualray.shared.proof.trace import TraceEvent, TraceKind
from tests.report.support import result, simulate, task, two_steps

S = 1_000_000_000
START, END, RETRY = TraceKind.TASK_STARTED, TraceKind.TASK_ENDED, TraceKind.TASK_RETRIED
Row = tuple[float, TraceKind, str, str, str, int]


def taken(*rows: Row | NodeNotice) -> FaultCosts:
    """Of three nodes, and of rows: time in s, kind, process, subject, other, amount."""
    costs = FaultCosts()
    for node in ("node-0", "node-1", "node-2"):
        costs.take(TraceEvent(0, TraceKind.NODE_STARTED, node, node))
    for row in rows:
        if isinstance(row, NodeNotice):
            costs.take(row)
        else:
            time_s, kind, process, subject, other, amount = row
            name = "kill node" if kind is TraceKind.FAULT else "f"
            costs.take(TraceEvent(round(time_s * S), kind, process, subject, other, name, amount))
    return costs


def test_a_node_that_dies_costs_what_ran_there_what_it_held_and_the_time_until_that_starts_again() -> None:
    costs = taken(
        (1, START, "node-2/w0", task(1), "", 0),
        (3, END, "node-2/w0", task(1), "", 0),
        (3, TraceKind.OBJECT_STORED, "node-2/w0", result(1), "", 1000),
        (3, START, "node-2/w0", task(2), "", 0),
        (3, START, "node-0/w0", task(3), "", 0),
        (4, TraceKind.FAULT, "node-2", "node-2", "", 0),
        (7, RETRY, "driver-1", task(2), "retry", 1),
        (7, RETRY, "driver-1", task(1), "reconstruction", 1),
        (8, START, "node-1/w0", task(1), "", 1),
        (10, END, "node-1/w0", task(1), "", 1),
        (10, START, "node-1/w0", task(2), "", 1),
        (11, END, "node-1/w0", task(2), "", 1),
        (20, END, "node-0/w0", task(3), "", 0),
    )
    (cost,) = costs.all
    assert (cost.what, cost.time_ns) == ("kill node: node-2", 4 * S)
    assert list(cost.again) == [task(2), task(1)]
    assert cost.lost_ns == (1 + 2) * S, "1 s of the attempt that was cut off, and 2 s that the lost object had taken"
    assert cost.redone_ns == (2 + 1) * S
    assert costs.idle_ns(cost) == 4 * S, "node-1, from the death until it ran; node-0 ran all the time"
    assert costs.words(cost) == (
        "3 s of work was lost, and 2 tasks ran again, for 3 s in total. "
        "While lost work waited to start again, nodes ran nothing for 4 s, summed over the nodes."
    )
    assert costs.words_of_all() == costs.words(cost)


def test_stretches_that_overlap_count_once_and_what_still_waits_counts_until_now() -> None:
    costs = taken(
        (0, START, "node-2/w0", task(1), "", 0),
        (0, START, "node-2/w1", task(2), "", 0),
        (1, TraceKind.FAULT, "node-2", "node-2", "", 0),
        (2, RETRY, "driver-1", task(1), "retry", 1),
        (2, RETRY, "driver-1", task(2), "retry", 1),
        (3, START, "node-0/w0", task(1), "", 1),
        (6, END, "node-0/w0", task(1), "", 1),
    )
    (cost,) = costs.all
    assert list(cost.waiting) == [task(2)]
    assert costs.idle_ns(cost) == (2 * 2 + 3) * S, "both nodes for 2 s, and node-1 for 3 s until now"
    assert costs.words(cost).startswith("2 s of work was lost, and 2 tasks run again. While lost work waited")


def test_an_actor_that_starts_again_has_lost_what_its_calls_had_left() -> None:
    costs = taken(
        (0, TraceKind.TASK_PUSHED, HEAD, task(1), "", 0),
        (0, START, "node-2/w0", task(1), "", 0),
        (1, END, "node-2/w0", task(1), "", 0),
        (1, START, "node-2/w0", task(2), "", 0),
        (2, END, "node-2/w0", task(2), "", 0),
        (3, TraceKind.FAULT, "node-2", "node-2/w0", "", 0),
        (3, TraceKind.TASK_PUSHED, HEAD, task(1), "", 1),
        (4, START, "node-1/w0", task(1), "", 1),
        (5, END, "node-1/w0", task(1), "", 1),
        (6, TraceKind.FAULT, "node-1", "node-1/w0", "", 0),
        (6, TraceKind.TASK_PUSHED, HEAD, task(1), "", 2),
    )
    first, second = costs.all
    assert costs.words(first) == (
        "The actor f died with what 1 finished call had changed in it, and started again from its constructor."
    )
    assert costs.words(second) == "The actor f died before a call had finished, and started again from its constructor."
    assert costs.words_of_all() == ("2 actors died with what 1 finished call had changed in them, and 2 started again.")


def test_until_the_head_detects_a_death_lost_work_waits_and_is_said_to_be_lost() -> None:
    rows: list[Row | NodeNotice] = [
        (0, START, "node-2/w0", task(1), "", 0),
        (1, TraceKind.FAULT, "node-2", "node-2", "", 0),
        (3, START, "node-0/w0", task(2), "", 0),
    ]
    assert taken(*rows[:2]).words_of_all() == "1 s of work was lost.", "no row has told yet for how long nodes are idle"
    costs = taken(*rows)
    assert costs.words_of_all() == (
        "1 s of work was lost. While lost work waited to start again, nodes ran nothing for 4 s, summed over the nodes."
    )
    costs = taken(*rows, NodeNotice(7 * S, "node-2", 0, Noticed.DEAD), (8, END, "node-0/w0", task(2), "", 0))
    assert costs.words_of_all() == "1 s of work was lost, and no task ran again."


def test_a_second_fault_takes_the_repeat_of_the_first() -> None:
    costs = taken(
        (0, START, "node-2/w0", task(1), "", 0),
        (1, TraceKind.FAULT, "node-2", "node-2", "", 0),
        (1, RETRY, "driver-1", task(1), "retry", 1),
        (1, START, "node-1/w0", task(1), "", 1),
        (4, TraceKind.FAULT, "node-1", "node-1", "", 0),
        (4, RETRY, "driver-1", task(1), "retry", 2),
        (4, START, "node-0/w0", task(1), "", 2),
        (9, END, "node-0/w0", task(1), "", 2),
    )
    assert [(cost.lost_ns, cost.redone_ns, len(cost.again)) for cost in costs.all] == [
        (1 * S, 3 * S, 1),
        (3 * S, 5 * S, 1),
    ]
    assert costs.words_of_all().startswith("4 s of work was lost, and 1 task ran again, for 8 s in total.")


def test_a_retry_after_an_error_and_what_ends_without_a_loss_are_no_faults() -> None:
    costs = taken(
        (0, START, "node-2/w0", task(1), "", 0),
        (1, END, "node-2/w0", task(1), "ValueError", 0),
        (1, RETRY, "driver-1", task(1), "retry", 1),
        (2, START, "node-2/w0", task(1), "", 1),
        (3, END, "node-2/w0", task(1), "", 1),
        (4, TraceKind.WORKER_ENDED, "node-2", "node-2/w0", "idle", 0),
        NodeNotice(5 * S, "node-2", 0, Noticed.LEAVING),
        NodeNotice(6 * S, "node-2", 0, Noticed.DEAD),
    )
    assert costs.all == []
    assert costs.words_of_all() == ""


def test_a_node_that_the_head_declares_dead_and_a_worker_that_ends_count_if_work_was_lost() -> None:
    costs = taken(
        (0, START, "node-2/w0", task(1), "", 0),
        (0, START, "node-1/w0", task(2), "", 0),
        NodeNotice(5 * S, "node-2", 0, Noticed.DEAD),
        (6, TraceKind.WORKER_ENDED, "node-1", "node-1/w0", "exit code 1", 0),
        (7, TraceKind.NODE_STARTED, "node-2", "node-2", "", 0),
        NodeNotice(8 * S, "node-2", 0, Noticed.DEAD),
    )
    assert [(cost.what, cost.lost_ns) for cost in costs.all] == [
        ("node-2 was declared dead", 5 * S),
        ("node-1/w0 ended: exit code 1", 6 * S),
    ]
    assert costs.words(costs.all[0]) == "5 s of work was lost, and no task ran again."


def test_an_actor_that_is_made_again_is_booked_on_the_fault() -> None:
    costs = taken(
        (0, TraceKind.TASK_PUSHED, HEAD, task(1), "node-2/w0", 0),
        (0, START, "node-2/w0", task(1), "", 0),
        (1, END, "node-2/w0", task(1), "", 0),
        (4, TraceKind.FAULT, "node-2", "node-2", "", 0),
        (6, TraceKind.TASK_PUSHED, HEAD, task(1), "node-1/w0", 1),
        (7, START, "node-1/w0", task(1), "", 1),
        (9, END, "node-1/w0", task(1), "", 1),
    )
    (cost,) = costs.all
    assert (list(cost.again), cost.lost_ns, cost.redone_ns) == ([task(1)], 0, 0)
    assert cost.actors == {task(1): ("f", 0)}


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    log = tmp_path_factory.mktemp("run") / "faulty"
    simulate(lambda: two_steps(6), log, faults=["kill node-2 when augment starts 2"])
    return log


def test_the_report_and_the_live_page_say_the_same(faulty: Path) -> None:
    record = read_record(faulty)
    costs = costs_of(record)
    (cost,) = costs.all
    words = costs.words(cost)
    retried = {event.subject for event in record.events if event.kind is RETRY}
    assert cost.again.keys() == retried
    assert f" of work was lost, and {len(retried)} tasks ran again, for " in words
    assert words in page(record)
    feed = DirectoryFeed(faulty)
    while feed.refresh():
        pass
    assert [row[6] for row in feed.tables.rows("happened") if row[3].startswith("node-2 was killed")] == [words]
