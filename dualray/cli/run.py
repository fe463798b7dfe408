"""The command `dualray run`. It ends as the script does; 2 when the command was given something that it cannot use."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

import click

from dualray.as_ray import install
from dualray.cli.after_run import print_summary, read_summaries, run_as_main
from dualray.cli.declare import Argument, Commands, Exit, Option
from dualray.cli.printing import (
    AS_RAY_HELP,
    DECISION_LOG_HELP,
    FAULTS_HELP,
    JSON_HELP,
    MODE_HELP,
    NODES_HELP,
    NUM_CPUS_HELP,
    SCRIPT_ARGS_HELP,
    SEED_HELP,
    in_options,
    refuse,
    say_aside,
)
from dualray.settings import limits_of, resolve

app = Commands()
_OPTION_MIN = 5
"""Fewest characters, with the dashes, of an argument that may be a misspelled option."""

Script = Annotated[
    str,
    Argument(
        help="Python file to run. To run a module with `dualray run`, write -m and the name of the module instead "
        "of a file."
    ),
]
Nodes = Annotated[int | None, Option(help=f"{NODES_HELP} `dualray run` uses --nodes only in a simulation.")]
Faults = Annotated[list[str] | None, Option(help=f"{FAULTS_HELP} `dualray run` injects faults only into a simulation.")]
AsJson = Annotated[
    bool, Option("--json", help=f"{JSON_HELP} `dualray run --json` prints a simulation's summary as JSON on stderr.")
]


@app.add(
    "run",
    # `dualray run script.py --mode sim --batch-size 3`: options that this command lacks are the script's.
    takes_unknown=True,
)
def run_command(
    script: Script,
    args: Annotated[list[str] | None, Argument(help=SCRIPT_ARGS_HELP)] = None,
    as_ray: Annotated[bool, Option("--as-ray", help=AS_RAY_HELP)] = False,
    mode: Annotated[str | None, Option(help=MODE_HELP)] = None,
    nodes: Nodes = None,
    num_cpus: Annotated[float | None, Option(help=NUM_CPUS_HELP)] = None,
    seed: Annotated[int | None, Option(help=SEED_HELP)] = None,
    faults: Faults = None,
    decision_log: Annotated[Path | None, Option(help=DECISION_LOG_HELP)] = None,
    quiet: Annotated[bool, Option("--quiet", help="Print no summary at the end of a simulation.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run a Python script or module with real processes, in a simulation, or on a Ray cluster.

    `dualray run` exits with the exit code of the script that it runs.

    Example: dualray run train.py --mode sim --nodes 4 --faults 'kill node-2 at 3s'
    """
    if script == "-m" and not args:
        refuse("-m needs the name of a module after it, as in: dualray run -m package.module")
    if script != "-m" and not Path(script).is_file():
        refuse(f"there is no file {script!r}")
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
        resolved = resolve({})
        limits_of(resolved)
    except (ValueError, TypeError) as error:
        refuse(in_options(error, given))
    _say_misspelled(script, args or [])
    if resolved["mode"].value == "ray":
        _refuse_on_ray({"--as-ray": as_ray, "--seed": seed is not None, "--decision-log": decision_log is not None})
    if as_ray:
        install()
    of_simulations = [name for name, value in (("--nodes", nodes), ("--faults", faults)) if value is not None]
    with _file_of_summaries() as path:
        os.environ.setdefault("DUALRAY_RUN_SUMMARY", str(path))
        try:
            with _clocks(resolved["mode"].value):
                run_as_main([script, *(args or [])])
        except Exit:
            of_simulations = []  # what it says may be why there was none
            raise
        finally:
            found = read_summaries(path)
            if found and not quiet:
                print_summary(found, as_json=as_json)
            elif of_simulations and not found:
                _say_ignored(script, of_simulations, mode)


@contextmanager
def _file_of_summaries() -> Iterator[Path]:
    """Open a file for the summaries. On Linux, the file is in memory and ends with this process, even by a signal."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("dualray-run-summary")
        path = Path(f"/proc/{os.getpid()}/fd/{fd}")
        try:
            if path.exists():
                yield path
                return
        finally:
            os.close(fd)
    with tempfile.TemporaryDirectory(prefix="dualray-run-") as directory:
        yield Path(directory) / "summary"


def _say_misspelled(script: str, args: list[str]) -> None:
    """Warn about an argument of the script that resembles an option of this command, for which it may be meant."""
    if "--" in sys.argv:
        return
    own = [name for param in click.get_current_context().command.params for name in param.opts if name.startswith("--")]
    for arg in args:
        name = arg.partition("=")[0]
        near = [each for each in own if each.startswith(name)] or get_close_matches(name, own, n=1, cutoff=0.85)
        if name.startswith("--") and len(name) >= _OPTION_MIN and near:
            say_aside(
                f"dualray: {name} is an argument of {script}. Did you mean {near[0]}? Write -- before the script's "
                f"arguments to hide this line"
            )


def _clocks(mode: str) -> AbstractContextManager[None]:
    """Return a context with the clocks of this mode, for a program that has no runtime yet."""
    if mode != "sim":
        return nullcontext()
    from dualray.sim.usercode.program_clock import PROGRAM_CLOCK  # noqa: PLC0415 - sim mode alone needs it

    return PROGRAM_CLOCK.standing()


def _refuse_on_ray(given: dict[str, bool]) -> None:
    """Refuse options that have no meaning in mode "ray"."""
    ways_out = {
        "--as-ray": "in this mode `import ray` must import Ray itself; leave the option out",
        "--seed": "Ray does not seed tasks; leave the option out, or use --mode sim",
        "--decision-log": "Ray writes no decision logs; leave the option out, or use --mode real or --mode sim",
    }
    for name, is_given in given.items():
        if is_given:
            refuse(f"{name} cannot be used with mode 'ray': {ways_out[name]}")


def _say_ignored(script: str, names: list[str], mode: str | None) -> None:
    """Warn about options for simulations if the script started no simulation."""
    why = f"ran in {mode} mode" if mode in ("real", "ray") else "started no simulation; add --mode sim"
    print(
        f"dualray: {' and '.join(names)} had no effect: {script} {why}",
        file=sys.stderr,
    )
