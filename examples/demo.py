"""The demo: one program on real processes and on virtual clusters, with every decision taken by the same code.

It trains examples/lbfgs.py on this machine, then runs the same file on 1, 4 and 11 virtual nodes, and once more on 11
of which one is killed half-way. One table compares the runs, and the demo checks what it claims: the parameters are
equal to the last bit in every run, and what was lost with the killed node was made again by exactly the tasks that the
lineage of the lost objects predicts. At the end the decision logs of the real run are replayed: fresh machines must
derive every command again, and every action of the run must belong to exactly one command.

Logs, traces and a timeline of each run, for https://ui.perfetto.dev, are left in demo_output/.

    make demo
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from dualray.report.lineage import Copies, predicted_reconstructions
from dualray.report.summary import Summary, summary
from dualray.report.timeline import write_timeline
from dualray.report.traces import natural, read_traces
from dualray.shared.proof.trace import TraceEvent, TraceKind

PROGRAM = Path(__file__).with_name("lbfgs.py")
DUALRAY = (sys.executable, "-m", "dualray")
GRADIENT = "Network.loss_and_gradient"
DRIVER_NODE = "node-0"
VIRTUAL_CPUS = 2  # of each virtual node
NODES = (1, 4, 11)
ACCURACY_LEAST = 0.95
RUN_TIMEOUT_S = 150


class DemoFailed(Exception):
    """A run ended badly, or a claim does not hold; the message says which."""


@dataclass(frozen=True)
class Plan:
    """One run of the program."""

    name: str
    mode: str
    nodes: int
    fault: str = ""

    @property
    def words(self) -> str:
        where = "on this machine" if self.mode == "real" else f"on {self.nodes} virtual node{'s'[: self.nodes > 1]}"
        return f"{PROGRAM.name} in {self.mode} mode {where}{', with a fault' if self.fault else ''}"


@dataclass(frozen=True)
class Run:
    """What one run gave."""

    plan: Plan
    result: dict[str, Any]
    events: Sequence[TraceEvent]
    figures: Summary
    predicted: int


def run(plan: Plan, output: Path, program_args: Sequence[str]) -> Run:
    """Run the program as a user would, and read what it left."""
    log = output / plan.name
    shutil.rmtree(log, ignore_errors=True)  # a log of an earlier demo is no part of this run
    command = [*DUALRAY, "run", str(PROGRAM), "--mode", plan.mode, "--decision-log", str(log)]
    if plan.mode == "sim":
        command += ["--nodes", str(plan.nodes), "--num-cpus", str(VIRTUAL_CPUS)]
    if plan.fault:
        command += ["--faults", plan.fault]
    stdout = call([*command, "--", "--json", *program_args])
    events = read_traces(log)
    write_timeline(events, output / f"timeline_{plan.name}.json")
    result: dict[str, Any] = json.loads(stdout.splitlines()[-1])
    return Run(plan, result, events, summary(events), predicted_reconstructions(events))


def call(command: Sequence[str]) -> str:
    """What a command printed.

    Raises:
        DemoFailed: it failed, or took too long.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DUALRAY_")}
    shown = " ".join(command)
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=RUN_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise DemoFailed(f"{shown}\ndid not end within {RUN_TIMEOUT_S} s") from error
    if done.returncode != 0:
        raise DemoFailed(f"{shown}\nended with code {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout


def half_way_fault(events: Sequence[TraceEvent]) -> str:
    """A fault that bites: half-way through, the node dies that then holds the most objects of which nobody has another
    copy. It is anchored at the start of a task, not at a time, so that it bites at the same place in every run."""
    half = sum(event.kind is TraceKind.TASK_STARTED and event.name == GRADIENT for event in events) // 2
    nodes = sorted({event.subject for event in events if event.kind is TraceKind.NODE_STARTED}, key=natural)
    copies = Copies()
    starts = 0
    for event in events:
        copies.apply(event)
        starts += event.kind is TraceKind.TASK_STARTED and event.name == GRADIENT
        if starts == half:
            break
    victim = max((node for node in nodes if node != DRIVER_NODE), key=lambda node: len(copies.sole(node)))
    return f"kill {victim} when {GRADIENT} starts {half}"


def table_of(runs: Sequence[Run]) -> Table:
    """The runs side by side."""
    table = Table(
        title="The same program, the same decisions",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=0,  # so that it fits 80 columns
    )
    table.add_column("mode")
    table.add_column("nodes", justify="right")
    table.add_column("faults")
    for heading in (
        "accu-\nracy",
        "makespan\nin seconds",
        "tasks",
        "recon-\nstruc-\ntions",
        "by\nline-\nage*",
        "bytes\nmoved",
    ):
        table.add_column(heading, justify="right")
    table.add_column("hash of\nparame-\nters", no_wrap=True)
    for run in runs:
        clock = "wall" if run.plan.mode == "real" else "virtual"
        table.add_row(
            run.plan.mode,
            str(run.figures.nodes),
            ", ".join(run.figures.faults) or "none",
            f"{run.result['accuracy']:.1%}",
            f"{run.figures.makespan_ns / 1e9:.2f} {clock}",
            f"{run.figures.tasks:,}",
            str(run.figures.reconstructions),
            str(run.predicted),
            f"{run.figures.bytes_moved / 1e6:.1f} MB",
            run.result["sha256"][:8],
        )
    return table


def check(runs: Sequence[Run]) -> None:
    """What the demo claims.

    Raises:
        DemoFailed: it does not hold.
    """
    hashes = {run.plan.name: run.result["sha256"] for run in runs}
    if len(set(hashes.values())) != 1:
        differing = "".join(f"\n  {name}: {digest}" for name, digest in hashes.items())
        raise DemoFailed(f"the parameters are not equal in all runs:{differing}")
    for run in runs:
        name, figures = run.plan.name, run.figures
        if run.result["accuracy"] < ACCURACY_LEAST:
            raise DemoFailed(f"{name}: accuracy {run.result['accuracy']:.4f} is below {ACCURACY_LEAST}")
        if figures.reconstructions != run.predicted:
            raise DemoFailed(f"{name}: {figures.reconstructions} reconstructions; lineage predicts {run.predicted}")
        if run.plan.fault and not figures.faults:
            raise DemoFailed(f"{name}: the fault {run.plan.fault!r} never happened")
        if run.plan.fault and figures.reconstructions == 0:
            raise DemoFailed(f"{name}: a node was killed, and nothing had to be reconstructed")


def main(
    output: Annotated[Path, typer.Option(help="Where logs, traces and timelines go.")] = Path("demo_output"),
    iterations: Annotated[int, typer.Option(min=1, help="Of L-BFGS, in each run.")] = 60,
) -> None:
    """Train on real processes and on virtual clusters, and compare the runs."""
    console = Console()
    started = time.monotonic()
    output.mkdir(parents=True, exist_ok=True)
    program_args = ("--iterations", str(iterations))
    runs = []
    columns = (SpinnerColumn(finished_text="[green]ok"), TextColumn("{task.description}"), TimeElapsedColumn())
    try:
        with Progress(*columns, console=console) as progress:

            def perform(plan: Plan) -> None:
                step = progress.add_task(plan.words, total=1)
                runs.append(run(plan, output, program_args))
                progress.update(step, completed=1)

            perform(Plan("real", "real", 1))
            for nodes in NODES:
                perform(Plan(f"sim_{nodes}", "sim", nodes))
            fault = half_way_fault(runs[-1].events)
            perform(Plan(f"sim_{NODES[-1]}_killed", "sim", NODES[-1], fault))
        console.print(table_of(runs))
        console.print("* reconstructions that the lineage of the lost objects predicts")
        check(runs)
        console.print(f"The fault was: {fault}. The parameters are equal to the last bit in all {len(runs)} runs.\n")
        console.print(f"dualray replay {output / 'real'}")
        console.print(call([*DUALRAY, "replay", str(output / "real")]), markup=False, highlight=False)
    except (DemoFailed, ValueError) as error:
        console.print(f"The demo has failed: {error}", style="red", markup=False, soft_wrap=True)
        raise typer.Exit(1) from None
    console.print(f"Timelines for https://ui.perfetto.dev: {output}/timeline_*.json")
    console.print(f"All claims hold. The demo took {time.monotonic() - started:.0f} s.")


if __name__ == "__main__":
    typer.run(main)
