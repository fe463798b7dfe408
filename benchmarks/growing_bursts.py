"""Clusters that grow, real and foretold. `python -m benchmarks.growing_bursts` runs three programs on a real cluster of
the local provider, and prints what each took beside the same file simulated and beside a prediction from a record.

The record is of a real run on one node with all CPUs. How long nodes take to join is measured: the simulation and the
prediction have the mean and the deviation of the real run for `start_up`. How long their first workers take is that of
the record's first worker. They know nothing else of it. The head counts a node until it has lost it: `shut_down` is 0.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

import dualray
import dualray.autoscaler
from dualray.cluster_utils import Cluster
from dualray.shared.scenario.file import parse_growth
from dualray.whatif.growing import predict_growing
from dualray.whatif.predict import load

GROWS = """
cluster:
  cpus: 1
  object_store: 64MiB
  groups: {{cpu: {{max: 3, start_up: '{start_up}', shut_down: 0s, worker_start: {worker_start}, paid_least: 0s}}}}
config: {{idle_timeout_ns: 5000000000}}
"""
STORE_BYTES = 64 << 20
NODES = 4


@dualray.remote
def piece(number: int, seconds: float = 2.0) -> int:
    """A piece of work."""
    time.sleep(seconds)
    return number


@dualray.remote
def several(count: int) -> int:
    """Work that asks for more."""
    return sum(dualray.get([piece.remote(number) for number in range(count)]))


@dualray.remote(num_cpus=1)
class Keeper:
    """One CPU for as long as it lives."""

    def add(self, number: int) -> int:
        """Work, too."""
        time.sleep(1.0)
        return number


def bursts() -> None:
    """Three, with rests in which the nodes leave."""
    for _ in range(3):
        dualray.get([piece.remote(number) for number in range(12)])
        time.sleep(15)


def actors() -> None:
    """Actors for a while, then tasks."""
    keepers: list[Any] = [Keeper.remote() for _ in range(3)]  # type: ignore[attr-defined]
    for _ in range(10):
        dualray.get([keeper.add.remote(1) for keeper in keepers])
    for keeper in keepers:
        dualray.kill(keeper)
    time.sleep(12)
    dualray.get([piece.remote(number) for number in range(8)])


def nested() -> None:
    """Tasks that wait for tasks."""
    dualray.get([several.options(num_cpus=0).remote(8) for _ in range(3)])
    time.sleep(10)


PROGRAMS: Mapping[str, Callable[[], None]] = {each.__name__: each for each in (bursts, actors, nested)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Grown:
    """What became of one program on one cluster.

    Attributes:
        last_s: from the launches of a burst until its last node has joined, on average; 0: nobody says.
        start_up: of its nodes, as a distribution.
    """

    makespan_s: float
    node_seconds: float
    launches: int
    last_s: float
    start_up: str


def _group() -> dict[str, Any]:
    return dualray.autoscaler.status()["groups"][0]


def run(program: Callable[[], None], mode: str, start_up: str, worker_start: str) -> Grown:
    """The program on a cluster that grows."""
    growth = parse_growth(GROWS.format(start_up=start_up, worker_start=worker_start), "grows.yaml")
    head = {"num_cpus": 1, "object_store_memory": STORE_BYTES, "autoscale": growth}
    with Cluster(initialize_head=True, connect=True, mode=mode, head_node_args=head):
        dualray.get(piece.remote(0, 0.0))
        began_s = time.monotonic()
        program()
        makespan_s, row = time.monotonic() - began_s, _group()
        ups_s, launched = row["start_ups_s"], len(dualray.nodes()) - 1
        last_s = mean(max(ups_s[index : index + NODES - 1]) for index in range(0, len(ups_s), NODES - 1))
        return Grown(
            makespan_s=makespan_s,
            node_seconds=row["node_seconds"],
            launches=launched,
            last_s=last_s,
            start_up=f"normal({mean(ups_s):.3f}s, {stdev(ups_s):.3f}s)",
        )


def record(program: Callable[[], None], path: Path) -> None:
    """The program on a real node with as many CPUs as the cluster may have, recorded."""
    with dualray.init(mode="real", num_cpus=NODES, object_store_memory=STORE_BYTES, record=path):
        program()


def foretell(path: Path, start_up: str) -> Grown:
    """What the record says that it would take on a cluster that grows."""
    growth = parse_growth(GROWS.format(start_up=start_up, worker_start="1ms"), "grows.yaml")
    (row,) = predict_growing(load(path), growth, fixed=())
    return Grown(
        makespan_s=row.makespan_s,
        node_seconds=row.node_hours * 3600 - row.makespan_s,  # the first node is of no group
        launches=row.launched,
        last_s=0.0,
        start_up=start_up,
    )


def _beside(real: float, other: float) -> str:
    return f"{other:.1f} ({other / real - 1:+.0%})"


def main(
    runs: Annotated[int, typer.Option(help="Real runs of each program.")] = 5,
    only: Annotated[str, typer.Option(help="One program alone.")] = "",
) -> None:
    """Print a table of all runs."""
    console = Console()
    table = Table("program", "", "launches", "makespan, s", "last node, s", "node-seconds", box=box.SIMPLE)
    for name, program in PROGRAMS.items():
        if only not in ("", name):
            continue
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory, "run.parquet")
            record(program, path)
            cold = f"{load(path).graph.cold_start_ns}ns"
            for _ in range(runs):
                console.print(f"{name} ...")
                real = run(program, "real", "2s", "1ms")
                simulated = run(program, "sim", real.start_up, cold)
                rows = {"simulated": simulated, "predicted": foretell(path, real.start_up)}
                cells = [f"{each:.1f}" for each in (real.makespan_s, real.last_s, real.node_seconds)]
                table.add_row(name, "real", str(real.launches), *cells)
                for words, row in rows.items():
                    cells = [
                        _beside(real.makespan_s, row.makespan_s),
                        _beside(real.last_s, row.last_s) if row.last_s else "",
                        _beside(real.node_seconds, row.node_seconds),
                    ]
                    table.add_row("", words, str(row.launches), *cells)
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
