"""`dualray run` calls a script as Python would, shows its errors as Python would, and says what a simulation was."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from dualray.as_ray.programs import run
from dualray.cli.declare import Exit
from dualray.cli.error_help import key_of
from dualray.cli.printing import count_of
from dualray.testing.failures import from_user, user_traceback

__all__ = ["print_summary", "read_summaries", "run_as_main"]

FAULTS_SHOWN: Final = 3
NAMES_SHOWN: Final = 3
FAILED: Final = 1


# ---- the script ------------------------------------------------------------------------------------------------------


def run_as_main(words: Sequence[str]) -> None:
    """Run a program as `python WORDS` would, and shut down a runtime that the program leaves running.

    Raises:
        Exit: the program has ended by an exception, whose traceback has been printed without our own frames.
    """
    hook = sys.excepthook
    shown: list[Exception] = []

    def show(error: Exception) -> None:
        shown.append(error)
        _show(error, is_hooked=sys.excepthook is not hook)

    try:
        run(words, on_error=show)  # print the error that ended the program before the errors that it never read
    except Exception as error:  # noqa: BLE001 - as Python's own last word
        if error not in shown:
            _show(error, is_hooked=sys.excepthook is not hook)
        raise Exit(FAILED) from None


def _show(error: BaseException, *, is_hooked: bool) -> None:
    """Print the program's error. `is_hooked`: the script has set its own `sys.excepthook`."""
    sys.stdout.flush()
    if is_hooked:
        sys.excepthook(type(error), error, from_user(error.__traceback__))
        return
    print(user_traceback(error), end="", file=sys.stderr)
    if isinstance(error, ModuleNotFoundError) and error.name == "ray":
        print("dualray: Ray is not installed; --as-ray lets `import ray` import dualray", file=sys.stderr)
    if key := key_of(error):
        print(f"see: {key} (dualray help {key})", file=sys.stderr)


# ---- what it was -----------------------------------------------------------------------------------------------------


def read_summaries(path: Path) -> list[dict[str, Any]]:
    """The summaries of the simulations that a script has run, in order."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def print_summary(found: Sequence[dict[str, Any]], *, as_json: bool) -> None:
    """Print the summary of the last simulation on stderr, in at most eight lines."""
    last = found[-1]
    if as_json:
        print(json.dumps({**last, "simulations": len(found)}), file=sys.stderr)
        return
    for line in _lines(last, len(found)):
        print(f"dualray: {line}", file=sys.stderr)


def _lines(found: dict[str, Any], simulations: int) -> list[str]:
    nodes = count_of(found["nodes"], "node")
    which = f"; the last of {simulations} simulations" if simulations > 1 else ""
    lines = [f"simulated {found['virtual_s']:.6g} s of virtual time on {nodes}, seed {found['seed']}{which}"]
    failed = f", {count_of(found['failed'], 'failed attempt')}" if found["failed"] else ""
    retries = "" if not found["retries"] else ", 1 retry" if found["retries"] == 1 else f", {found['retries']} retries"
    lines.append(f"{count_of(found['tasks'], 'task')}{failed}{retries}")
    if found["evicted"] or found["spilled"] or found["recomputed"]:
        size = f" ({found['spilled_bytes'] / 2**20:.1f} MiB)" if found["spilled"] else ""
        lines.append(
            f"objects: {found['evicted']} evicted, {found['spilled']} spilled{size}, {found['recomputed']} recomputed"
        )
    faults = found["faults"]
    lines += [f"fault at {fault['at_s']:.6g} s: {fault['fault']}" for fault in faults[:FAULTS_SHOWN]]
    if len(faults) > FAULTS_SHOWN:
        lines.append(f"and {len(faults) - FAULTS_SHOWN} more faults; `dualray run --json` lists all")
    if never := found["never_happened"]:
        why = f": {never[0]['why']}" if never[0]["why"] else ""
        more = f" (and {len(never) - 1} more)" if len(never) > 1 else ""
        lines.append(f"this fault never happened: {never[0]['fault']}{why}{more}")
    if assumed := found["assumed"]:
        names = ", ".join(assumed[:NAMES_SHOWN])
        more = f" and {len(assumed) - NAMES_SHOWN} more" if len(assumed) > NAMES_SHOWN else ""
        lines.append(
            f"assumed that each call of {names}{more} computes for {found['assumed_s'] * 1e3:g} ms, in addition to "
            "its sleeps; to set other durations, use @remote(duration=...), or init(task_profile=) with a recorded run"
        )
    return lines
