"""The command `dualray run`. It ends as the script does; 2 when the command was given something that it cannot use."""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated

from dualray.as_ray import install
from dualray.cli.after_run import print_summary, read_summaries, run_as_main
from dualray.cli.declare import Argument, Commands, Exit, Option
from dualray.cli.printing import refuse
from dualray.settings import limits_of, resolve

app = Commands()


@app.add(
    "run",
    # `dualray run script.py --mode sim --batch-size 3`: what is not ours is the script's, wherever it stands.
    takes_unknown=True,
)
def run_command(
    script: Annotated[str, Argument(help="A Python file; or `-m`, and then a module.")],
    args: Annotated[list[str] | None, Argument(help="For the script; after `--` all are.")] = None,
    as_ray: Annotated[bool, Option("--as-ray", help="`import ray` means dualray.")] = False,
    mode: Annotated[str | None, Option(help="real, sim or ray.")] = None,
    nodes: Annotated[int | None, Option(help="sim: virtual nodes.")] = None,
    num_cpus: Annotated[float | None, Option(help="CPUs of each node.")] = None,
    seed: Annotated[int | None, Option(help="Seeds the tasks' randomness.")] = None,
    faults: Annotated[list[str] | None, Option(help="sim: such as 'kill node-5 at 2.5s'; may repeat.")] = None,
    decision_log: Annotated[Path | None, Option(help="Directory for decision logs and traces.")] = None,
    quiet: Annotated[bool, Option("--quiet", help="sim: print no summary at the end.")] = False,
    as_json: Annotated[bool, Option("--json", help="sim: print the summary as JSON, on stderr.")] = False,
) -> None:
    """Run an unchanged script, or `-m` a module, with settings given from outside. The exit code is the program's."""
    if script == "-m" and not args:
        refuse("-m needs the name of a module after it")
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
        refuse(error)
    if resolved["mode"].value == "ray":
        _refuse_on_ray({"--as-ray": as_ray, "--seed": seed is not None, "--decision-log": decision_log is not None})
    if as_ray:
        install()
    of_simulations = [name for name, value in (("--nodes", nodes), ("--faults", faults)) if value is not None]
    with tempfile.TemporaryDirectory(prefix="dualray-run-") as directory:
        path = Path(directory) / "summary"
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


def _clocks(mode: str) -> AbstractContextManager[None]:
    """The program's clocks in this mode, while it has no runtime."""
    if mode != "sim":
        return nullcontext()
    from dualray.sim.usercode.program_clock import PROGRAM_CLOCK  # noqa: PLC0415 - sim mode alone needs it

    return PROGRAM_CLOCK.standing()


def _refuse_on_ray(given: dict[str, bool]) -> None:
    """Options that mean nothing to Ray, in mode "ray"."""
    ways_out = {
        "--as-ray": "the name `ray` must mean Ray: leave it out, and a program of Ray's runs on Ray as it is",
        "--seed": "Ray seeds no tasks: leave it out, or say --mode sim",
        "--decision-log": "Ray logs no decisions that could be replayed: leave it out, or say --mode real or sim",
    }
    for name, is_given in given.items():
        if is_given:
            refuse(f"{name} in mode 'ray': {ways_out[name]}")


def _say_ignored(script: str, names: list[str], mode: str | None) -> None:
    """What is for simulations was given, and there was none."""
    why = f"ran in {mode} mode" if mode in ("real", "ray") else "has not started a simulation; say --mode sim"
    print(
        f"dualray: {' and '.join(names)} {'have' if len(names) > 1 else 'has'} been ignored: {script} {why}",
        file=sys.stderr,
    )
