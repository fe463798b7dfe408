from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dualray as ray
from dualray.report.lineage import Copies, predict, predicted_reconstructions
from dualray.report.summary import RECONSTRUCTION, summary
from dualray.report.traces import read_traces
from dualray.shared.proof.trace import TraceKind
from tests.report.support import Rows, digest, result, simulate, task, two_steps, was_put


def chain_on(node: str) -> Rows:
    """Task 2 has made its result from that of task 1, which was dropped since."""
    rows = Rows()
    rows.submitted(task(1))
    rows.submitted(task(2), result(1))
    rows.ran("node-0/w0", task(1))
    rows.stored("node-0/w0", result(1))
    rows.ran(f"{node}/w0", task(2))
    rows.stored(f"{node}/w0", result(2))
    rows.deleted("node-0", result(1))
    return rows


def test_lost_object_is_made_again_with_its_lineage_that_is_gone():
    rows = chain_on("node-1")
    rows.killed("node-1")
    rows.submitted(task(3), result(2))
    (loss,) = predict(rows.events)
    assert loss.node == "node-1"
    assert [object_id.hex() for object_id in loss.lost] == [result(2)]
    assert [again.hex() for again in loss.again] == [task(1), task(2)]


def test_argument_that_still_exists_is_taken_as_it_is():
    rows = chain_on("node-1")
    rows.stored("node-0/w0", result(1))
    rows.killed("node-1")
    rows.submitted(task(3), result(2))
    assert [again.hex() for again in predict(rows.events)[0].again] == [task(2)]


def test_object_with_another_copy_is_not_lost():
    rows = chain_on("node-1")
    rows.moved("node-1", "node-2", result(2))
    rows.killed("node-1")
    rows.submitted(task(3), result(2))
    assert predict(rows.events)[0].lost == ()


def test_second_death_takes_the_copy_that_the_first_one_left():
    rows = chain_on("node-1")
    rows.moved("node-1", "node-2", result(2))
    rows.killed("node-1")
    rows.killed("node-2")
    rows.submitted(task(3), result(2))
    assert [len(loss.again) for loss in predict(rows.events)] == [0, 2]


def test_lost_object_that_nobody_needs_is_not_made_again():
    rows = chain_on("node-1")
    rows.submitted(task(3), result(2))
    rows.ran("node-0/w0", task(3))
    rows.killed("node-1")
    (loss,) = predict(rows.events)
    assert len(loss.lost) == 1
    assert loss.again == ()


@pytest.mark.parametrize("reason", ["retry", RECONSTRUCTION])
def test_task_that_starts_again_needs_its_arguments_unless_that_is_what_is_predicted(reason: str):
    rows = chain_on("node-1")
    rows.submitted(task(3), result(2))
    rows.ran("node-1/w1", task(3))
    rows.killed("node-1")
    rows.retried(task(3), reason)
    rows.ran("node-0/w0", task(3), attempt=1)
    assert predicted_reconstructions(rows.events) == (2 if reason == "retry" else 0)


def test_task_that_has_not_ended_needs_its_arguments():
    rows = chain_on("node-1")
    rows.submitted(task(3), result(2))
    rows.killed("node-1")
    assert predicted_reconstructions(rows.events) == 2


def test_shared_lineage_runs_once():
    rows = chain_on("node-1")
    rows.submitted(task(4), result(1))
    rows.ran("node-1/w0", task(4))
    rows.stored("node-1/w0", result(4))
    rows.killed("node-1")
    rows.submitted(task(5), result(2), result(4))
    assert predicted_reconstructions(rows.events) == 3


def test_object_that_was_put_cannot_be_made_again():
    rows = Rows()
    rows.stored("node-1/w0", was_put(9))
    rows.killed("node-1")
    rows.submitted(task(3), was_put(9))
    (loss,) = predict(rows.events)
    assert loss.again == ()
    assert "was created by put()" in loss.impossible[0]


def test_worker_that_is_killed_costs_no_object():
    rows = chain_on("node-1")
    rows.add(TraceKind.FAULT, "node-1", "node-1/w0", name="kill worker")
    rows.submitted(task(3), result(2))
    assert predict(rows.events) == []


def test_copies_are_told_by_node():
    rows = chain_on("node-1")
    rows.moved("node-1", "node-2", result(2))
    rows.stored("node-2/w3", result(7))
    copies = Copies()
    for event in rows.events:
        copies.apply(event)
    assert [object_id.hex() for object_id in copies.sole("node-2")] == [result(7)]
    assert copies.sole("node-1") == ()


# ---- Against what the product does -------------------------------------------------------------------------------


def test_prediction_is_what_a_run_with_a_killed_node_does(tmp_path: Path):
    undisturbed = simulate(lambda: two_steps(6), tmp_path / "undisturbed")
    fault = "kill node-2 when digest starts 7"
    assert simulate(lambda: two_steps(6), tmp_path / "killed", faults=[fault]) == undisturbed
    assert summary(read_traces(tmp_path / "undisturbed")).reconstructions == 0
    events = read_traces(tmp_path / "killed")
    counted = summary(events).reconstructions
    assert counted > 0
    assert predicted_reconstructions(events) == counted


@ray.remote(scheduling_strategy="SPREAD", max_retries=-1, duration=lambda number, *parts: 0.01 * (1 + number % 7))
def combine(number: int, *parts: Any) -> Any:
    total = number + sum(float(part.sum()) for part in parts) % 97
    return np.full(20_000 + 1_000 * (number % 5), total)


def random_program(seed: int) -> tuple[list[float], list[float]]:
    """A random graph of tasks whose results live in the stores; some are dropped, the others are read twice."""
    draw = random.Random(seed)
    pool: list[Any] = []
    for number in range(draw.randint(5, 30)):
        parts = [draw.choice(pool) for _ in range(min(len(pool), draw.randint(0, 3)))]
        pool.append(combine.remote(number, *parts))
        if draw.random() < 0.3 and len(pool) > 3:
            pool.pop(draw.randrange(len(pool)))
    first = ray.get([digest.remote(rows) for rows in pool])
    return first, [ray.get(digest.remote(rows)) for rows in pool]


@pytest.mark.slow
def test_prediction_is_what_random_programs_do(tmp_path: Path):
    """The node dies while results are read for the second time: see the limits of the prediction."""
    counted_in_all = 0
    for seed in range(40):
        log = tmp_path / str(seed)
        undisturbed = simulate(partial(random_program, seed), log / "undisturbed", nodes=4)
        digests = len(undisturbed[0])
        draw = random.Random(seed)
        fault = f"kill node-{draw.randint(1, 3)} when digest starts {digests + draw.randint(1, digests)}"
        disturbed = simulate(partial(random_program, seed), log / "killed", nodes=4, faults=[fault])
        assert disturbed == undisturbed, f"seed {seed}, {fault}"
        events = read_traces(log / "killed")
        counted = summary(events).reconstructions
        assert predicted_reconstructions(events) == counted, f"seed {seed}, {fault}"
        counted_in_all += counted
    assert counted_in_all > 0
