"""The command line for faults on real processes: `dualray chaos`.

Exit codes as in app.py: 0; 1 when a result was wrong, something hung, a fault could not be performed, anything was left
behind, or the recorded decisions cannot be derived again; 2 when the command was given something that it cannot use.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Annotated, NoReturn

from dualray.cli.declare import Commands, Exit, Option
from dualray.cli.printing import refuse, say, show
from dualray.cli.progress import Progress
from dualray.exceptions import DualrayError
from dualray.report.proof import Proof, check_directory
from dualray.shared.scenario.fault_model import Fault, parse_fault
from dualray.testing.chaos import Soak, schedule, soak
from dualray.text_tables import Table

FAILED = 1
_LINES_SHOWN = 20

app = Commands()


def _end(number: int, frame: object) -> NoReturn:
    """SIGTERM ends a run as Ctrl-C does: what is paused goes on, and ends."""
    signal.signal(number, signal.SIG_IGN)  # once is enough: what follows takes a while
    raise SystemExit(128 + number)


@app.add("chaos")
def chaos_command(
    seed: Annotated[int, Option(min=0, help="Seed for the faults: the same seed draws the same faults.")] = 0,
    faults: Annotated[int, Option(min=1, help="Number of random faults.")] = 300,
    nodes: Annotated[int, Option(min=1, help="Nodes of the cluster; node-0, with head and driver, survives.")] = 3,
    workload: Annotated[
        str, Option(help="Workload: mixed (tasks, large objects, actors), or a generated one.")
    ] = "mixed",
    record: Annotated[
        Path | None, Option(help="A new directory for decision logs and traces; default: a temporary one.")
    ] = None,
    fault: Annotated[
        list[str] | None,
        Option(help="Fault in words, in place of random ones, such as 'pause node-1 at 2s for 1s'; may repeat."),
    ] = None,
    patience: Annotated[float, Option(min=1, help="Seconds without progress that count as a hang.")] = 60,
    dry_run: Annotated[bool, Option("--dry-run", help="Print the faults and exit.")] = False,
) -> None:
    """Kill, pause and slow down real processes while a workload runs, and check that nobody notices."""
    try:
        plan = (
            tuple(map(parse_fault, fault))
            if fault
            else schedule(seed=seed, faults=faults, nodes=nodes, workload=workload)
        )
    except ValueError as error:
        refuse(error)
    if dry_run:
        for planned in plan:
            print(planned)
        return
    if record is not None and any(record.glob("*.decisions")):
        refuse(f"{record} holds the logs of an earlier run: name a directory that is new or empty")
    with contextlib.ExitStack() as undo:
        undo.callback(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, _end))
        if record is None:
            record = Path(tempfile.mkdtemp(prefix="dualray-chaos-"))
            cleaning = undo.enter_context(contextlib.ExitStack())
            cleaning.callback(shutil.rmtree, record)
        else:
            cleaning = contextlib.ExitStack()
        try:
            found = _soak(plan, workload=workload, nodes=nodes, record=record, seed=seed, patience_s=patience)
            proof = check_directory(record)
        except (DualrayError, ValueError) as error:
            refuse(error)
        _show(found, proof)
        if found.is_right and proof.is_exact:
            return
        cleaning.pop_all()
        print(f"decision logs and traces: {record}")
        print(f"to see the faults: dualray chaos --seed {seed} --faults {faults} --nodes {nodes} --dry-run")
    raise Exit(FAILED)


def _soak(plan: tuple[Fault, ...], *, workload: str, nodes: int, record: Path, seed: int, patience_s: float) -> Soak:
    with Progress("faults", len(plan)) as progress:

        def show(words: str) -> None:
            progress.say(f"  {words}")

        def advance(so_far: Soak) -> None:
            news = f"{so_far.tasks:,} tasks, {so_far.rounds.total():,} rounds, {so_far.retries:,} retries"
            progress.update(completed=len(so_far.performed), note=news)

        return soak(
            plan,
            workload=workload,
            nodes=nodes,
            record=record,
            seed=seed,
            patience_s=patience_s,
            on_fault=show,
            on_progress=advance,
        )


def _show(found: Soak, proof: Proof) -> None:
    table = Table(title=f"Chaos: {found.seconds:.0f} s", has_head=False)
    table.add_column()
    table.add_column(justify="right")
    rounds = ", ".join(f"{name} {count:,}" for name, count in sorted(found.rounds.items()))
    for name, value in (
        ("faults performed", f"{len(found.performed):,} of {found.planned:,}"),
        ("rounds with the right result", rounds or "none"),
        ("attempts of tasks that ended", f"{found.tasks:,}"),
        ("retries of tasks", f"{found.retries:,}"),
        ("objects made again", f"{found.reconstructions:,}"),
        ("restarts of actors", f"{found.restarts:,}"),
        ("lives of nodes that ended", f"{found.deaths:,}"),
        ("wrong results", f"{len(found.wrong):,}"),
        ("left in the cluster, at rest", f"{len(found.unrest):,}"),
        ("left behind", f"{len(found.left_behind):,}"),
        ("decisions derived again", f"{proof.decisions:,}, different in {len(proof.differences):,} processes"),
        ("actions matched", f"{proof.matched:,}, orphans {proof.orphans:,}"),
    ):
        table.add_row(name, value)
    show(table)
    for title, lines in (
        ("hang", found.hang),
        ("wrong", found.wrong),
        ("not performed, or not healed", found.problems),
        ("left in the cluster", found.unrest),
        ("left behind", found.left_behind),
        ("derived otherwise", [f"{name}: {difference}" for name, difference in proof.differences.items()]),
    ):
        if lines:
            say(title, colour="red")
        for line in lines[:_LINES_SHOWN]:
            say(f"  {line}")
    if found.is_right and proof.is_exact:
        say("every result right, no hang, nothing left behind, every decision derived again", colour="green")
