"""One program in three modes: simulated, on real processes, and on a local Ray of three nodes.

It starts Ray on this machine, as three nodes, runs examples/lbfgs.py in each mode, without an edit, and prints one
table. The program's parameters must be equal to the last bit in all runs. Ray ends with the demo.

    make ray-demo
"""

import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

PROGRAM = Path(__file__).with_name("lbfgs.py")
NODES = 3
CPUS = 2  # of each node
STORE_BYTES = 256 * 1024 * 1024
RUN_TIMEOUT_S = 300


class DemoFailed(Exception):
    """A run ended badly, or the results differ; the message says which."""


@dataclass(frozen=True)
class Run:
    """A run of the program: in which mode, on how many nodes, what it printed last, and how long its process took."""

    mode: str
    nodes: int
    result: Mapping[str, Any]
    wall_s: float


@contextmanager
def local_ray() -> Iterator[str]:
    """The address of a Ray of NODES nodes, all on this machine."""
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own
        from ray.cluster_utils import Cluster  # noqa: PLC0415 - only now, for it takes seconds

        of_node = {"num_cpus": CPUS, "object_store_memory": STORE_BYTES}
        cluster = Cluster(initialize_head=True, head_node_args={**of_node, "include_dashboard": False})
    try:
        for _ in range(NODES - 1):
            cluster.add_node(**of_node)
        cluster.wait_for_nodes()
        yield cluster.address
    finally:
        cluster.shutdown()


def run(mode: str, nodes: int, program_args: Sequence[str], address: str = "") -> Run:
    """Run the program as a user would.

    Raises:
        DemoFailed: it failed, or took too long.
    """
    command = [sys.executable, "-m", "dualray", "run", str(PROGRAM), "--mode", mode]
    if mode == "sim":
        command += ["--nodes", str(nodes), "--num-cpus", str(CPUS)]
    command += ["--", "--json", *program_args]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DUALRAY_")}
    environment |= {"RAY_ADDRESS": address} if address else {}
    began_s = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=RUN_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise DemoFailed(f"{' '.join(command)}\ndid not end within {RUN_TIMEOUT_S} s") from error
    if done.returncode:
        raise DemoFailed(f"{' '.join(command)}\nended with code {done.returncode}:\n{done.stderr[-4000:]}")
    wall_s = time.monotonic() - began_s
    return Run(mode, nodes, json.loads(done.stdout.splitlines()[-1]), wall_s)


def table_of(runs: Sequence[Run]) -> Table:
    """What the runs have in common, and in what they differ."""
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("mode", "nodes", "actors", "its clock", "wall clock", "held out", "parameters"):
        table.add_column(name, justify="left" if name in ("mode", "parameters") else "right")
    for each in runs:
        result = each.result
        table.add_row(
            each.mode,
            str(each.nodes),
            str(result["actors"]),
            f"{result['seconds']:.2f} s",
            f"{each.wall_s:.1f} s",
            f"{result['accuracy']:.1%}",
            f"{result['sha256'][:16]}",
        )
    return table


def main(iterations: Annotated[int, typer.Option(min=1, help="Of L-BFGS, in each run.")] = 60) -> None:
    """Run one program simulated, on real processes and on Ray, and compare the runs."""
    console = Console()
    program_args = ("--iterations", str(iterations))
    try:
        runs = []
        for mode, nodes in (("sim", NODES), ("real", 1)):
            console.print(f"running {PROGRAM.name} in mode {mode!r} ...")
            runs.append(run(mode, nodes, program_args))
        console.print(f"starting a local Ray of {NODES} nodes ...")
        with local_ray() as address:
            console.print(f"running {PROGRAM.name} in mode 'ray' ...")
            runs.append(run("ray", NODES, program_args, address))
        console.print(table_of(runs))
        if len({each.result["sha256"] for each in runs}) > 1:
            raise DemoFailed("the parameters differ between the modes")
    except DemoFailed as error:
        console.print(f"The demo has failed: {error}", style="red", markup=False, soft_wrap=True)
        raise typer.Exit(1) from None
    console.print(f"The parameters are equal to the last bit in all {len(runs)} runs. Mode 'sim' tells virtual time.")


if __name__ == "__main__":
    typer.run(main)
