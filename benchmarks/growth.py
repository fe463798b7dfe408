"""How the cost of a task grows with the tasks in flight, and with the nodes: `python -m benchmarks.growth`.

Each row submits so many empty tasks from one driver and then waits for all of them, again and again until two seconds
are over. PSS (proportional set size) is summed over every process, while the first tasks are in flight; so are CPU
seconds, over the whole row. The nodes are all on this machine, with one CPU each, and every one of them has work.
"""

from __future__ import annotations

import time
from typing import Annotated

import psutil
import typer
from rich import box
from rich.console import Console
from rich.table import Table

import dualray
from dualray.cluster_utils import Cluster

AT_LEAST_S = 2.0


@dualray.remote
def empty() -> None:
    """The task."""


def everybody() -> list[psutil.Process]:
    """This process and all that it has started."""
    me = psutil.Process()
    return [me, *me.children(recursive=True)]


def cpu_s() -> float:
    """CPU seconds of all of them up to now."""
    total = 0.0
    for process in everybody():
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:  # it has ended since it was listed
            continue
        total += times.user + times.system
    return total


def pss_mib() -> float:
    """PSS of this process and of all that it has started, in MiB."""
    total = 0
    for process in everybody():
        try:
            total += process.memory_full_info().pss
        except psutil.NoSuchProcess:  # it has ended since it was listed
            continue
    return total / 2**20


def one_row(in_flight: int) -> tuple[int, float, float, float]:
    """Tasks, seconds, CPU seconds of all processes, and the largest PSS seen."""
    done, highest, cpu = 0, 0.0, cpu_s()
    start = time.perf_counter()
    while time.perf_counter() - start < AT_LEAST_S:
        refs = [empty.remote() for _ in range(in_flight)]
        paused = time.perf_counter()
        if not done:
            highest = pss_mib()
        start += time.perf_counter() - paused
        dualray.get(refs)
        done += in_flight
        del refs
    return done, time.perf_counter() - start, cpu_s() - cpu, highest


def new_table(title: str, first: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for heading in (first, "tasks/s", "CPU µs/task", "PSS MiB"):
        table.add_column(heading, justify="right")
    return table


def add_row(table: Table, what: int, in_flight: int) -> None:
    done, seconds, cpu, pss = one_row(in_flight)
    table.add_row(f"{what:,}", f"{done / seconds:,.0f}", f"{cpu / done * 1e6:.1f}", f"{pss:,.0f}")


def main(
    most: Annotated[int, typer.Option(help="The largest number of tasks in flight.")] = 1_000_000,
    nodes: Annotated[int, typer.Option(help="The largest number of nodes.")] = 8,
) -> None:
    """Print both tables."""
    table = new_table("Tasks in flight, one node with two workers", "in flight")
    dualray.init(num_cpus=2, object_store_memory=512 * 2**20)
    dualray.get([empty.remote() for _ in range(1000)])
    in_flight = 1000
    while in_flight <= most:
        add_row(table, in_flight, in_flight)
        in_flight *= 10
    dualray.shutdown()
    Console().print(table)
    table = new_table("Nodes of one CPU, 20,000 tasks in flight", "nodes")
    count = 1
    while count <= nodes:
        size = {"num_cpus": 1, "object_store_memory": 64 * 2**20}
        with Cluster(initialize_head=True, connect=True, head_node_args=size) as cluster:
            for _ in range(count - 1):
                cluster.add_node(**size)
            cluster.wait_for_nodes()
            dualray.get([empty.options(scheduling_strategy="SPREAD").remote() for _ in range(1000)])
            add_row(table, count, 20_000)
        count *= 2
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
