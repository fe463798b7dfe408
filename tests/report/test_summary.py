from __future__ import annotations

from pathlib import Path

from dualray.report.summary import RECONSTRUCTION, summary
from dualray.report.traces import read_traces
from dualray.shared.proof.trace import TraceKind
from tests.report.support import Rows, result, simulate, task, two_steps


def test_counts_what_the_rows_say():
    rows = Rows()
    rows.add(TraceKind.NODE_STARTED, "node-0", "node-0")
    rows.submitted(task(1))  # at 1 us
    rows.ran("node-0/w0", task(1))
    rows.stored("node-0/w0", result(1), amount=500)
    rows.moved("node-0", "node-1", result(1), amount=500)
    rows.killed("node-0")
    rows.retried(task(1), RECONSTRUCTION)
    rows.retried(task(1), "retry", attempt=2)
    rows.add(TraceKind.TASK_STARTED, "node-2/w0", task(1), amount=2)
    rows.add(TraceKind.TASK_ENDED, "node-2/w0", task(1), amount=2, other="APPLICATION")  # at 11 us
    found = summary(rows.events)
    assert found.makespan_ns == 9_000 + 1_000
    assert (found.nodes, found.tasks, found.failed) == (2, 1, 1)
    assert (found.retries, found.reconstructions) == (1, 1)
    assert found.bytes_moved == 500
    assert found.faults == ("kill node-0",)
    assert found.counts[TraceKind.TASK_ENDED] == 2
    assert found.counts[TraceKind.WORKER_ENDED] == 0


def test_of_nothing_is_nothing():
    found = summary([])
    assert (found.makespan_ns, found.nodes, found.tasks, found.faults) == (0, 0, 0, ())


def test_of_a_run(tmp_path: Path):
    simulate(lambda: two_steps(4), tmp_path, nodes=3)
    found = summary(read_traces(tmp_path))
    assert (found.nodes, found.tasks, found.failed, found.retries) == (3, 4 * 4, 0, 0)
    assert found.makespan_ns > 0
    assert found.bytes_moved > 0
