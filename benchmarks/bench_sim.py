"""Sim mode beside the kernel that it stands on: SimPy's bare timeouts, and what a virtual cluster does in the same run.

`python -m benchmarks.bench_sim` prints the table of docs/performance.md: each row in a process of its own, for its peak
memory, with SimPy's bare timeouts before and after it in that process. Times are CPU time, so that the ratio holds on a
machine that others use, too. `--only bag_100` measures one row, `--tasks 1e5` makes the bags smaller. From a checkout
it measures Python; `make bench-sim` measures the compiled wheel, with these arguments in BENCH_SIM_ARGS.

Modelled rows run `dualray sim workload bag`: policies, invariants and the event hash are on. Executed rows call the
functions, pickle arguments and results, and record everything. `make bench` runs two small bags of the latter.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import simpy
from rich.console import Console
from rich.table import Table

import dualray
from benchmarks.conftest import Measure, Row
from dualray.shared.model.config import Config
from dualray.shared.model.demands import parse_resources
from dualray.shared.scenario.file import parse_scenario
from dualray.sim.modelled.programs import run_workload
from dualray.sim.processes.node import Hardware
from dualray.testing.explore import explore

TIMEOUTS = 100_000
BAGS = (
    Row(name="sim_bag_100", operation="empty task, 100 virtual nodes; other: a SimPy timeout", count=2000, rounds=3),
    Row(name="sim_bag_1000", operation="empty task, 1,000 virtual nodes; other: a SimPy timeout", count=2000, rounds=1),
)
NODES = {"sim_bag_100": 100, "sim_bag_1000": 1000}
STORE_BYTES = 2 * 1024**3
READ_TOGETHER = 1000
"""Results of executed functions, where some are ahead of what was read."""


# ---- make bench ------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["dualray", "simpy"])
def one_round(request: pytest.FixtureRequest, bag: Row) -> Iterator[tuple[str, Row, Callable[[], object]]]:
    """The peer, its row, and one round of it."""
    if request.param == "simpy":
        row = Row(name=bag.name, operation=bag.operation, count=TIMEOUTS, rounds=3)
        yield "simpy", row, bare_timeouts
        return
    dualray.init(mode="sim", nodes=NODES[bag.name])
    task = dualray.remote(lambda: None)
    yield "dualray", bag, lambda: dualray.get([task.remote() for _ in range(bag.count)])
    dualray.shutdown()


def bare_timeouts() -> None:
    """One process that waits again and again."""

    def wait(environment: simpy.Environment) -> Generator[Any, None, None]:
        for _ in range(TIMEOUTS):
            yield environment.timeout(1)

    environment = simpy.Environment()
    environment.process(wait(environment))
    environment.run()


@pytest.mark.parametrize("bag", BAGS, ids=[bag.name for bag in BAGS])
def test_bag_of_tasks(one_round: tuple[str, Row, Callable[[], object]], measure: Measure) -> None:
    peer, row, run = one_round
    measure(row, peer, run)


# ---- The table -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A row of the table; `aim` is a ratio to bare timeouts, or seeds a second."""

    what: str
    aim: float
    run: Callable[[int], int]
    """Given the tasks of a whole bag, runs it, and says how many operations that were."""
    unit: str = "tasks"


def _alike(nodes: int) -> list[Hardware]:
    return [Hardware(total=parse_resources(num_cpus=8, num_gpus=0, resources=None), store_bytes=STORE_BYTES)] * nodes


def _mixed(nodes: int) -> list[Hardware]:
    """Four kinds of machines with eight CPUs on average, memory, and a few GPUs, in turn."""
    kinds = [(4, 0, "16GiB"), (8, 0, "32GiB"), (16, 0, "64GiB"), (4, 2, "32GiB")]
    machines = [
        Hardware(
            total=parse_resources(num_cpus=cpus, num_gpus=gpus, memory=memory, resources={"disk": 4}),
            store_bytes=STORE_BYTES,
        )
        for cpus, gpus, memory in kinds
    ]
    return [machines[index % len(machines)] for index in range(nodes)]


def _bag(hardware: list[Hardware], tasks: int, seconds: float, **demand: float) -> int:
    """At 80,000 tasks a second of virtual time the slots are full, and the driver, which makes 294,000, is not."""
    result = run_workload(
        "bag", {"tasks": tasks, "seconds": seconds, "ahead": 200_000, **demand}, hardware=hardware, config=Config()
    )
    assert not result.failed, result.failed
    assert result.tasks == tasks
    return tasks


def _executed(tasks: int, ahead: int) -> int:
    """User functions, with an argument and a result that are pickled, and so many of them ahead of what was read."""
    dualray.init(mode="sim", nodes=1000, num_cpus=8)
    square = dualray.remote(duration=0.1)(lambda number: number * number)
    refs: deque[dualray.ObjectRef[int]] = deque()
    total = 0
    try:
        for number in range(tasks):
            refs.append(square.remote(number))
            if len(refs) == ahead:
                total += sum(dualray.get([refs.popleft() for _ in range(READ_TOGETHER)]))
        total += sum(dualray.get(list(refs)))
        refs.clear()
    finally:
        dualray.shutdown()
    assert total == sum(number * number for number in range(tasks))
    return tasks


SCENARIO = """
name: hundred-tasks
description: a program of a hundred tasks on eleven nodes
cluster: {nodes: 11}
workload: {generate: bag_of_tasks, kwargs: {tasks: 50}}
"""


def _explored(seeds: int) -> int:
    found = explore(parse_scenario(SCENARIO, "benchmark"), seeds=range(seeds), jobs=2, directory=Path())
    assert not found.findings, found.findings
    return seeds


CASES = {
    "bag_100": Case(what="modelled bag, 100 nodes", aim=0.09, run=lambda tasks: _bag(_alike(100), tasks, 0.01)),
    "bag_1000": Case(what="modelled bag, 1,000 nodes", aim=0.065, run=lambda tasks: _bag(_alike(1000), tasks, 0.1)),
    "bag_10000": Case(what="modelled bag, 10,000 nodes", aim=0.045, run=lambda tasks: _bag(_alike(10_000), tasks, 1.0)),
    "mixed_1000": Case(
        what="modelled bag, 1,000 nodes of four kinds, CPU and memory",
        aim=0.065 / 1.5,
        run=lambda tasks: _bag(_mixed(1000), tasks, 0.1, memory=2 * 1024**3),
    ),
    "executed_1000": Case(
        what="executed functions, 1,000 nodes, 16,000 ahead",
        aim=0.04,
        run=lambda tasks: _executed(tasks, 16_000),
    ),
    "burst_1000": Case(
        what="executed functions, 1,000 nodes, all at once",
        aim=0.04,
        run=lambda tasks: _executed(tasks // 10, tasks),
    ),
    "seeds": Case(
        what="explored seeds, 11 nodes, 100 tasks, 2 jobs",
        aim=200,
        run=lambda tasks: _explored(tasks // 100),
        unit="seeds",
    ),
}


def bare_per_s() -> float:
    """SimPy's bare timeouts a second of CPU time, the best of three."""
    seconds = []
    for _ in range(3):
        began_s = time.process_time()
        bare_timeouts()
        seconds.append(time.process_time() - began_s)
    return TIMEOUTS / min(seconds)


def measure_here(name: str, tasks: int) -> dict[str, float]:
    """One row, in this process: operations, CPU and wall seconds, bare timeouts a second, peak bytes."""
    before = bare_per_s()
    children_s = _children_s()
    began_s, wall_s = time.process_time(), time.perf_counter()
    count = CASES[name].run(tasks)
    cpu_s, wall_s = time.process_time() - began_s, time.perf_counter() - wall_s
    cpu_s += _children_s() - children_s
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"count": count, "cpu_s": cpu_s, "wall_s": wall_s, "bare": max(before, bare_per_s()), "peak": peak}


def _children_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def measure_apart(name: str, tasks: int) -> dict[str, float]:
    """One row, in a process of its own."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [sys.executable, "-m", "benchmarks.bench_sim", "--here", name, "--tasks", str(tasks)]
        subprocess.run([*command, "--output", file.name], check=True)
        figures: dict[str, float] = json.loads(Path(file.name).read_text())
    return figures


def table_of(figures: dict[str, dict[str, float]]) -> Table:
    """The rows side by side with what they should be."""
    core = "compiled" if dualray.__compiled__ else "Python"
    table = Table(
        "row",
        "operations",
        "a CPU second",
        "bare timeouts",
        "ratio",
        "aim",
        "wall s",
        "peak MiB",
        title=f"Simulation; the core is {core}",
    )
    for name, row in figures.items():
        case = CASES[name]
        per_s = row["count"] / row["cpu_s"]
        if case.unit == "seeds":  # on two processors, of all processes that take part, their start included
            ratio, aim, bare = f"{2 * per_s:.0f} seeds/s", f"{case.aim:.0f} seeds/s", f"{row['bare']:,.0f} /s"
        else:
            ratio, aim, bare = f"{per_s / row['bare']:.4f}", f"{case.aim:.4f}", f"{row['bare']:,.0f} /s"
        table.add_row(
            f"{name}: {case.what}",
            f"{row['count']:,.0f}",
            f"{per_s:,.0f}",
            bare,
            ratio,
            aim,
            f"{row['wall_s']:.1f}",
            f"{row['peak'] / 2**20:,.0f}",
        )
    return table


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(CASES), action="append", help="measure this row; may repeat")
    parser.add_argument("--tasks", type=float, default=1e6, help="tasks of a bag")
    parser.add_argument("--here", choices=list(CASES), help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.here:
        given.output.write_text(json.dumps(measure_here(given.here, int(given.tasks))))
        return
    figures = {name: measure_apart(name, int(given.tasks)) for name in given.only or CASES}
    Console(width=160).print(table_of(figures))


if __name__ == "__main__":
    main()
