"""Run the small programs of this folder on an engine, in one session, and print what each has printed.

    python -m tests.guide_programs.run --engine sim                   # all, as JSON: by name, what it has printed
    python -m tests.guide_programs.run --engine real actor_pool       # some
    python -m tests.guide_programs.run --engine ray --write           # keep what they print on Ray, in outputs/

A program is a file of programs/ that says `import ray`, uses a node of four CPUs and two of the resource "special", and
prints what no id, time or order of arrival changes. What it prints on Ray 2.60 is kept in outputs/.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import io
import json
import os
import runpy
import sys
import threading
import traceback
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).parent
PROGRAMS: Final = HERE / "programs"
OUTPUTS: Final = HERE / "outputs"
ENGINES: Final = ("ray", "real", "sim")


def names() -> list[str]:
    """The programs there are."""
    return sorted(path.stem for path in PROGRAMS.glob("*.py"))


def kept(name: str) -> str:
    """What a program prints on Ray."""
    return (OUTPUTS / f"{name}.txt").read_text()


class _OfOneThread(io.StringIO):
    """What the thread prints that has made it. On Ray another one prints what its processes say."""

    def __init__(self) -> None:
        super().__init__()
        self._thread = threading.get_ident()

    def write(self, text: str) -> int:
        return super().write(text) if threading.get_ident() == self._thread else len(text)


def printed_by(name: str) -> str:
    """Run a program as a script, in the session there is; what it has printed, and how it has failed."""
    printed = _OfOneThread()
    main = sys.modules["__main__"]
    try:
        with contextlib.redirect_stdout(printed):
            runpy.run_path(str(PROGRAMS / f"{name}.py"), run_name="__main__")
    except Exception:  # noqa: BLE001 - it is the outcome
        printed.write(f"failed: {traceback.format_exc()}")
    finally:
        sys.modules["__main__"] = main
        gc.collect()  # its actors end with its handles
    return printed.getvalue()


def run(engine: str, chosen: list[str]) -> dict[str, str]:
    """What each program prints on an engine."""
    options: dict[str, Any] = {"num_cpus": 4, "resources": {"special": 2}, "object_store_memory": 200 << 20}
    if engine == "ray":
        os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
        options["include_dashboard"] = False
    else:
        os.environ["DUALRAY_MODE"] = engine
        importlib.import_module("dualray.as_ray").install()
    ray = importlib.import_module("ray")
    ray.init("local", log_to_driver=False, **options)
    try:
        found = {}
        for name in chosen:
            print(f"runs {name}", file=sys.stderr, flush=True)
            found[name] = printed_by(name)
        return found
    finally:
        ray.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="programs; default: all")
    parser.add_argument("--engine", choices=ENGINES, required=True)
    parser.add_argument("--write", action="store_true", help="keep what they print: on Ray alone")
    arguments = parser.parse_args()
    found = run(arguments.engine, arguments.names or names())
    if arguments.write:
        if arguments.engine != "ray":
            parser.error("--write keeps what Ray prints: --engine ray")
        for name, text in found.items():
            (OUTPUTS / f"{name}.txt").write_text(text)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
