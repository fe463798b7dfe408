"""The command line for modelled programs: `dualray sim workload`. Exit codes as in app.py."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import click

from dualray.cli.declare import Argument, Commands, Exit, Option
from dualray.cli.printing import (
    FAULTS_HELP,
    NODES_HELP,
    NUM_CPUS_HELP,
    SCENARIO_SEED_HELP,
    AsJson,
    print_json,
    refuse,
    say,
    show,
)
from dualray.shared.model.config import Config
from dualray.shared.model.demands import parse_resources
from dualray.shared.scenario.fault_model import parse_fault
from dualray.shared.scenario.file import ScenarioError
from dualray.shared.units import parse_size_bytes, size_words, time_words
from dualray.sim.cost.cost_model import CostModel
from dualray.sim.modelled.cluster import Modelled
from dualray.sim.modelled.programs import PROGRAMS, parameters, run_workload
from dualray.sim.network.topologies import Star, Wiring, wiring_of_scenario
from dualray.sim.processes.node import Hardware
from dualray.sim.runtime import hardware_of_scenario
from dualray.text_tables import Table

FAILED = 1


Program = Annotated[
    str,
    Argument(
        help=f"Built-in workload to simulate, one of {', '.join(PROGRAMS)}. `dualray sim workloads` lists the "
        "parameters of each built-in workload."
    ),
]
ScenarioFile = Annotated[
    Path | None,
    Option(
        help="YAML scenario file from which `dualray sim workload` takes settings such as the cluster, the faults and "
        "the costs of operations. `dualray sim workload` ignores the program that the scenario file names.",
    ),
]


def add_to(sim: Commands) -> None:
    """Add these commands to `dualray sim`."""
    sim.add("workload", takes_unknown=True, takes_more=True)(workload_command)
    sim.add("workloads")(workloads_command)


def workload_command(
    context: click.Context,
    name: Program,
    nodes: Annotated[int, Option(min=1, help=NODES_HELP)] = 10,
    node_cpus: Annotated[float, Option(help=NUM_CPUS_HELP)] = 8,
    node_gpus: Annotated[float, Option(help="Number of GPUs that each node of the cluster offers to tasks.")] = 0,
    object_store: Annotated[str, Option(help="Size of each node's object store, such as 2GiB.")] = "2GiB",
    scenario: ScenarioFile = None,
    faults: Annotated[list[str] | None, Option(help=FAULTS_HELP)] = None,
    seed: Annotated[
        int | None, Option(help=f"{SCENARIO_SEED_HELP} Without --seed and --scenario, the seed is 0.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Simulate a built-in workload, such as a shuffle, on a virtual cluster of any size.

    The tasks of a built-in workload take simulated time, but run no code. To set a parameter of a built-in workload,
    use an option with the name of the parameter, such as --tasks 1e6.

    Example: dualray sim workload bag --tasks 1e6 --seconds 0.5 --nodes 1000
    """
    began_s = time.perf_counter()
    try:
        given = dict(_parameters(context.args))
        planned = tuple(parse_fault(text) for text in faults or ())
        config, cost_model = Config(), CostModel()
        wiring: Wiring = Star
        if scenario is not None:
            from dualray.testing.run import load_scenario  # noqa: PLC0415 - who names no file needs no reader of files

            loaded = load_scenario(scenario)
            hardware: Sequence[Hardware] = hardware_of_scenario(loaded)
            config, cost_model = Config(**loaded.limits), cost_model.with_scenario(loaded)
            planned = (*loaded.planned(), *planned)
            wiring = wiring_of_scenario(loaded.cluster)
            seed = loaded.seed if seed is None else seed
        else:
            total = parse_resources(num_cpus=node_cpus, num_gpus=node_gpus, resources=None)
            hardware = [Hardware(total=total, store_bytes=parse_size_bytes(object_store, "--object-store"))] * nodes
        result = run_workload(
            name,
            given,
            hardware=hardware,
            config=config,
            cost_model=cost_model,
            faults=planned,
            seed=seed or 0,
            wiring=wiring,
        )
    except (ValueError, TypeError, ScenarioError) as error:
        refuse(error)
    took_s = time.perf_counter() - began_s
    if as_json:
        print_json(_as_json(name, len(hardware), result, took_s))
    else:
        _show(name, len(hardware), result, took_s)
    if result.failed:
        raise Exit(FAILED)


def _parameters(args: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Return the arguments `--name value` and `--name=value` as pairs."""
    left = iter(args)
    for arg in left:
        if not arg.startswith("--"):
            raise ValueError(f"{arg!r} is not an option; give a parameter of the workload as --name value")
        name, equals, value = arg.removeprefix("--").partition("=")
        if not equals:
            value = next(left, "")
            if not value:
                raise ValueError(f"--{name} needs a value after it, as in: --{name} 10")
        yield name.replace("-", "_"), value


def _as_json(name: str, nodes: int, result: Modelled, took_s: float) -> dict[str, Any]:
    return {
        "workload": name,
        "nodes": nodes,
        "makespan_s": result.makespan_ns / 1e9,
        "tasks": result.tasks,
        "attempts": result.attempts,
        "cpus_busy": result.busy_ns / max(result.cpu_ns, 1),
        "bytes_moved": result.moved_bytes,
        "evictions": result.evictions,
        "messages": result.messages,
        "events": result.events,
        "event_hash": result.hash,
        "faults": list(result.faults),
        "never_happened": list(result.never_happened),
        "failed": result.failed,
        "took_s": took_s,
    }


def _show(name: str, nodes: int, result: Modelled, took_s: float) -> None:
    rows: list[tuple[str, str]] = [
        ("virtual time", time_words(result.makespan_ns)),
        ("tasks", f"{result.tasks:,}"),
        ("attempts", f"{result.attempts:,}"),
        ("CPUs busy", f"{result.busy_ns / max(result.cpu_ns, 1):.1%}"),
        ("moved between nodes", size_words(result.moved_bytes)),
        ("evicted", f"{result.evictions:,} objects"),
        ("messages", f"{result.messages:,}"),
        ("events", f"{result.events:,}"),
        ("event hash", result.hash),
        (
            "real time",
            f"{took_s:.2f} s, {result.tasks / took_s:,.0f} tasks/s, {size_words(_peak_bytes())} of memory at most",
        ),
    ]
    if result.evictions == 0:
        rows = [row for row in rows if row[0] != "evicted"]
    rows += [("fault", fault) for fault in result.faults]
    rows += [("never happened", fault) for fault in result.never_happened]
    table = Table("", "", title=f"{name} on {nodes:,} nodes", has_head=False)
    for what, words in rows:
        table.add_row(what, words)
    show(table)
    if result.failed:
        say(result.failed)


def _peak_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def workloads_command(as_json: AsJson = False) -> None:
    """List the built-in workloads that `dualray sim workload` can simulate, each with its parameters.

    Example: dualray sim workloads
    """
    if as_json:
        rows = [{"workload": name, "parameter": parameter, "default": value} for name, parameter, value in parameters()]
        print_json(rows)
        return
    table = Table("workload", "what it is", "parameter", "default", title="Modelled programs")
    last = ""
    for name, parameter, default in parameters():
        words = (PROGRAMS[name].__doc__ or "").replace("\n    ", " ") if name != last else ""
        table.add_row(name if name != last else "", words, parameter, _shown(default))
        last = name
    show(table)


def _shown(default: Any) -> str:
    return f"{default:,}" if isinstance(default, int) else str(default)
