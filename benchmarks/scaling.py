"""The cost of the autoscaler. `python -m benchmarks.scaling` prints the time of one decision of the head, and the rate
of a simulated cluster that grows and shrinks beside that of a fixed one.

A decision is that of the head's machine, from the timer to its commands: 10,000 leases of 100 shapes wait for nodes of
5 groups. "From nothing" there are no nodes. "After one change" there are, all in use, and one of them has reported.
"""

from __future__ import annotations

import time
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

import dualray
from dualray import runtime
from dualray.shared.machines.autoscaler.autoscaler import AUTOSCALER_TIMER
from dualray.shared.machines.autoscaler.groups import groups_to_text
from dualray.shared.machines.head.head import Head
from dualray.shared.model.config import Config
from dualray.shared.model.demands import parse_resources
from dualray.shared.model.events import (
    BacklogReported,
    DriverJoined,
    Event,
    LeaseRequested,
    NodeJoined,
    ResourcesReported,
    TimerFired,
)
from dualray.shared.model.ids import Address, NodeID, RequestID
from dualray.shared.model.resources import Resources
from dualray.shared.model.specs import NODE_GROUP_LABEL, LeaseShape, NodeInfo
from dualray.shared.policies.scaling import NodeGroupSpec
from dualray.shared.scenario.file import parse_scenario

SHAPES, LEASES = 100, 10_000
SECOND_NS = 10**9
DRIVER = Address("driver-1")


def amounts(cpus: float, gpus: float, memory: int) -> Resources:
    return parse_resources(num_cpus=cpus, num_gpus=gpus, memory=memory, resources={})


def groups(most: int) -> list[NodeGroupSpec]:
    """Five, of which one has GPUs."""
    return [
        NodeGroupSpec(
            name=f"group-{index}",
            total=amounts(4 * (index + 1), 2 if index == 4 else 0, (index + 1) << 33),
            labels=((NODE_GROUP_LABEL, f"group-{index}"),),
            most=most,
            price=(index + 1) * 100_000,
        )
        for index in range(5)
    ]


class Waiting:
    """A head for which leases wait, of `SHAPES` shapes, on so many nodes that are all in use."""

    def __init__(self, nodes: int, most: int) -> None:
        specs = groups(most)
        self.head = Head(
            config=Config(autoscaler_groups=groups_to_text(specs), infeasible="wait", upscaling_speed_percent=0)
        )
        self.now_ns = 0
        for number in range(nodes):
            spec = specs[number % len(specs)]
            name = NodeID(f"node-{number}")
            self(
                NodeJoined(info=NodeInfo(node=name, incarnation=0, total=spec.total, store_bytes=1, labels=spec.labels))
            )
            self.report(number)
        self(DriverJoined(address=DRIVER, node=NodeID("node-0")))
        self.shapes = []
        for index in range(SHAPES):
            demand = amounts(1 + index % 4 + index / 100, int(index % 4 == 3), (index % 7 + 1) << 28)
            self.shapes.append(LeaseShape(resources=demand, placement=demand, name=f"f{index}"))
            request = RequestID(f"driver-1#{index}")
            self(LeaseRequested(request_id=request, owner=DRIVER, shape=self.shapes[-1], count=4))

    def __call__(self, event: Event) -> None:
        self.now_ns += 1_000
        self.head.handle(event, self.now_ns)

    def report(self, number: int) -> None:
        """The node has nothing free."""
        self(ResourcesReported(node=NodeID(f"node-{number}"), incarnation=0, available={}))

    def decide(self) -> float:
        """Seconds of the processor's time of one decision."""
        backlog = (LEASES // SHAPES - 4,) * SHAPES
        self(TimerFired(timer=AUTOSCALER_TIMER))
        began_s = time.thread_time()
        self(BacklogReported(owner=DRIVER, shapes=tuple(self.shapes), counts=backlog))
        return time.thread_time() - began_s


def decisions(console: Console, repeats: int) -> None:
    """Print how long decisions take."""
    table = Table("nodes", "launched", "from nothing", "after one change", box=box.SIMPLE)
    for nodes in (10, 100, 1_000, 10_000):
        first = []
        empty = Waiting(0, nodes // 5)
        for _ in range(repeats):
            empty = Waiting(0, nodes // 5)
            first.append(empty.decide())
        assert empty.head.autoscaler is not None
        full = Waiting(nodes, nodes // 5)
        full.decide()
        again = []
        for number in range(repeats):
            full.report(number)
            again.append(full.decide())
        launched = empty.head.autoscaler.launched_count
        table.add_row(f"{nodes:,}", f"{launched:,}", f"{min(first) * 1e3:.1f} ms", f"{min(again) * 1e3:.1f} ms")
    console.print(table)


@dualray.remote
def empty(number: int) -> int:
    """The task."""
    return number


def rate(nodes: int, tasks: int, *, grows: bool) -> tuple[float, int]:
    """Tasks of a second of the processor's time in a simulation, and the most nodes that there were."""
    group = f"groups: {{cpu: {{min: 10, max: {nodes}, start_up: 1s}}}}" if grows else f"nodes: {nodes}"
    text = f"""
name: growth
cluster: {{cpus: 2, {group}}}
workload: {{function: a:b}}
durations: {{empty: 3s}}
config: {{idle_timeout_ns: 2000000000}}
"""
    began_s = time.process_time()
    with dualray.init(mode="sim", scenario=parse_scenario(text, "growth.yaml")):
        dualray.get([empty.remote(number) for number in range(tasks)])
        most = len(dualray.nodes())
        if grows:
            time.sleep(60)
            assert runtime.current("rate").verbs.head_rows("autoscaler")[0]["nodes"] == 10
    return tasks / (time.process_time() - began_s), most


def main(
    tasks: Annotated[int, typer.Option(help="Of each simulation.")] = 100_000,
    nodes: Annotated[int, typer.Option(help="At most, in simulations.")] = 1_000,
    repeats: Annotated[int, typer.Option(help="The least of so many is printed.")] = 5,
) -> None:
    """Print both tables."""
    console = Console()
    decisions(console, repeats)
    fixed, _ = rate(nodes, tasks, grows=False)
    growing, most = rate(nodes, tasks, grows=True)
    console.print(f"{tasks:,} tasks on {nodes:,} nodes: {fixed:,.0f} tasks/s")
    console.print(f"on 10 nodes that grow to {most:,} and back: {growing:,.0f} tasks/s, {growing / fixed:.0%}")


if __name__ == "__main__":
    typer.run(main)
