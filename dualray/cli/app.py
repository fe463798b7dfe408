"""The commands `run`, `config`, `replay`, `sim params`, `sim workload`, `version`; and the app that all commands join.

Exit codes: 0; 1 when a check has failed; 2 when the command was given something that it cannot use. `run` ends as the
script does.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import dualray
from dualray.as_ray import install
from dualray.cli import chaos, cluster, logs, modelled, scenario, seeing, stack, state, whatif
from dualray.cli.after_run import print_summary, read_summaries, run_as_main
from dualray.report.proof import Proof, check_directory, load_log
from dualray.settings import SETTINGS, limits_of, resolve
from dualray.shared.model.config import Config
from dualray.shared.proof.decision_log import Difference, replay
from dualray.sim.cost.cost_model import CostModel

FAILED = 1
UNUSABLE = 2
ORPHANS_SHOWN = 10

app = typer.Typer(
    help="Distributed Python that you can prove before you deploy.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
sim = typer.Typer(help="The virtual cluster.", no_args_is_help=True)
app.add_typer(sim, name="sim")
app.add_typer(chaos.app)
app.add_typer(cluster.app)
app.add_typer(logs.app)
app.add_typer(stack.app)
app.add_typer(state.app)
modelled.add_to(sim)
scenario.add_to(app)
seeing.add_to(app)
whatif.add_to(app)


def _refuse(why: object) -> NoReturn:
    Console(stderr=True).print(f"dualray: {why}", style="red", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(UNUSABLE)


# ---- run ---------------------------------------------------------------------------------------------------------


@app.command(
    "run",
    # `dualray run script.py --mode sim --batch-size 3`: what is not ours is the script's, wherever it stands.
    context_settings={"ignore_unknown_options": True},
)
def run_command(
    script: Annotated[str, typer.Argument(help="A Python file; or `-m`, and then a module.")],
    args: Annotated[list[str] | None, typer.Argument(help="For the script; after `--` all are.")] = None,
    as_ray: Annotated[bool, typer.Option("--as-ray", help="`import ray` means dualray.")] = False,
    mode: Annotated[str | None, typer.Option(help="real or sim.")] = None,
    nodes: Annotated[int | None, typer.Option(help="sim: virtual nodes.")] = None,
    num_cpus: Annotated[float | None, typer.Option(help="CPUs of each node.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seeds the tasks' randomness.")] = None,
    faults: Annotated[list[str] | None, typer.Option(help="sim: such as 'kill node-5 at 2.5s'; may repeat.")] = None,
    decision_log: Annotated[Path | None, typer.Option(help="Directory for decision logs and traces.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="sim: do not say at the end what the simulation was.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="sim: say it as a JSON object, on stderr.")] = False,
) -> None:
    """Run an unchanged script, or `-m` a module, with settings given from outside. The exit code is the program's."""
    if script == "-m" and not args:
        _refuse("-m needs the name of a module after it")
    if script != "-m" and not Path(script).is_file():
        _refuse(f"there is no file {script!r}")
    given = {
        "MODE": mode,
        "NODES": nodes,
        "NUM_CPUS": num_cpus,
        "SEED": seed,
        "FAULTS": ";".join(faults) if faults else None,
        "DECISION_LOG": decision_log,
    }
    os.environ.update({f"DUALRAY_{name}": str(value) for name, value in given.items() if value is not None})
    try:
        limits_of(resolve({}))
    except (ValueError, TypeError) as error:
        _refuse(error)
    if as_ray:
        install()
    of_simulations = [name for name, value in (("--nodes", nodes), ("--faults", faults)) if value is not None]
    with tempfile.TemporaryDirectory(prefix="dualray-run-") as directory:
        path = Path(directory) / "summary"
        os.environ.setdefault("DUALRAY_RUN_SUMMARY", str(path))
        try:
            run_as_main([script, *(args or [])])
        except typer.Exit:
            of_simulations = []  # what it says may be why there was none
            raise
        finally:
            found = read_summaries(path)
            if found and not quiet:
                print_summary(found, as_json=as_json)
            elif of_simulations and not found:
                _say_ignored(script, of_simulations, mode)


def _say_ignored(script: str, names: list[str], mode: str | None) -> None:
    """What is for simulations was given, and there was none."""
    why = f"ran in {mode} mode" if mode == "real" else "has not started a simulation; say --mode sim"
    print(
        f"dualray: {' and '.join(names)} {'have' if len(names) > 1 else 'has'} been ignored: {script} {why}",
        file=sys.stderr,
    )


# ---- config ------------------------------------------------------------------------------------------------------


@app.command("config")
def config_command() -> None:
    """Show every setting, its value and where it came from, and every limit of the core."""
    try:
        settings = resolve({})
        config = limits_of(settings)
    except (ValueError, TypeError) as error:
        _refuse(error)
    table = _table(
        "Settings: argument of init, DUALRAY_<NAME>, dualray.toml, default", "setting", "value", "source", ""
    )
    for name, entry in settings.items():
        modes = "" if len(SETTINGS[name].modes) > 1 else f"{SETTINGS[name].modes[0]} mode only: "
        table.add_row(name, _shown(entry.value), entry.source, modes + SETTINGS[name].help)
    given = settings["limits"].value or {}
    limits = _table("Limits and policies: init(limits={...})", "limit", "value", "unit", "source", "why")
    for name, default, unit, why in Config.describe():
        source = settings["limits"].source if name in given else "default"
        limits.add_row(name, _shown(getattr(config, name, default)), unit, source, why)
    _print(table, limits)


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return "; ".join(map(str, value)) or "none"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "not set" if value is None else str(value)


# ---- replay ------------------------------------------------------------------------------------------------------


@app.command("replay")
def replay_command(
    path: Annotated[Path, typer.Argument(help="A decision log, or a directory with those of a run and its traces.")],
) -> None:
    """Derive every command of a run again, with fresh machines, and match every action with its command."""
    try:
        if path.is_dir():
            exact = _show_proof(check_directory(path))
        elif path.is_file():
            exact = _replay_one(path)
        else:
            _refuse(f"there is no file or directory {str(path)!r}")
    except ValueError as error:
        _refuse(error)
    if not exact:
        raise typer.Exit(FAILED)


def _replay_one(path: Path) -> bool:
    log = load_log(path)
    found = replay(log)
    print(f"{path}: {log.spec.kind} {log.spec.address}, seed {log.seed or 'none'}")
    if log.is_cut_off:
        print("the log ends in the middle of a decision: its process was killed")
    total = sum(len(decision.commands) for decision in log.decisions)
    print(f"decisions replayed: {found.decisions:,} of {len(log.decisions):,}")
    print(f"commands equal:     {found.commands:,} of {total:,}")
    if found.difference is not None:
        _show_difference(log.spec.address, found.difference)
    return found.difference is None


def _show_proof(proof: Proof) -> bool:
    table = _table("Replay", "process", "decisions", "commands equal", "actions matched", "orphans", "")
    for column in table.columns[1:5]:
        column.justify = "right"
    for process in proof.processes:
        remarks = [
            *(["differs"] if process.difference is not None else []),
            *([] if process.has_log else ["has left no log"]),
            *(["killed"] if process.was_killed else []),
            *(["log cut off"] if process.is_cut_off else []),
            *([f"{len(process.cut_short)} commands not carried out"] if process.cut_short else []),
        ]
        table.add_row(
            process.process,
            f"{process.decisions:,}",
            f"{process.commands:,}",
            f"{process.match.matched:,}",
            f"{process.orphans:,}",
            ", ".join(remarks),
        )
    _print(table)
    print(f"decisions:       {proof.decisions:,}")
    print(f"commands equal:  {proof.commands:,}, different in {len(proof.differences)} processes")
    print(f"actions matched: {proof.matched:,}")
    print(f"orphans:         {proof.orphans:,}")
    for name, difference in proof.differences.items():
        _show_difference(name, difference)
    for process in proof.processes:
        if process.orphans:
            _show_keys(f"{process.process}, actions without a command", process.match.actions_without_command)
            if not process.was_killed:
                _show_keys(f"{process.process}, commands without an action", process.match.commands_without_action)
    for name, keys in proof.cut_short.items():
        _show_keys(f"{name} was killed; told to, and not seen to do", keys)
    return proof.is_exact


def _show_difference(process: str, difference: Difference) -> None:
    print(f"{process}: the first command that differs: {difference}")


def _show_keys(what: str, keys: Iterable[tuple[str, str, str, int]]) -> None:
    listed = list(keys)
    if not listed:
        return
    print(f"{what}:")
    for kind, subject, other, attempt in listed[:ORPHANS_SHOWN]:
        print(f"  {kind} {subject}{f' to {other}' if other else ''}, attempt {attempt}")
    if len(listed) > ORPHANS_SHOWN:
        print(f"  and {len(listed) - ORPHANS_SHOWN} more")


# ---- sim params, version -----------------------------------------------------------------------------------------


@sim.command("params")
def sim_params_command() -> None:
    """Show what the virtual cluster assumes: the cost model, nodes of which nothing is said, and what is fixed."""
    from dualray.sim.params import fixed_params, node_params  # noqa: PLC0415 - it imports the simulator

    for title, params in (
        ("The cost model: `costs` of a scenario, or a calibration, change it", CostModel.params()),
        ("A node, where init() and the scenario say nothing else", node_params()),
        ("Fixed", fixed_params()),
    ):
        table = _table(title, "parameter", "default", "unit", "source")
        table.columns[1].justify = "right"
        for param in params:
            table.add_row(param.name, f"{param.default:,}", param.unit, param.source)
        _print(table)


@app.command("version")
def version_command() -> None:
    """Show the version, and whether the core is compiled."""
    print(f"dualray {dualray.__version__}{', with a compiled core' if dualray.__compiled__ else ''}")


def _table(title: str, *columns: str) -> Table:
    table = Table(title=escape(title), title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _print(*tables: Table) -> None:
    console = Console()
    for table in tables:
        console.print(table)
