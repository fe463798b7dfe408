"""Hold the runs of the swarm scenarios against what is kept of them, or keep them anew: see runs.py.

Functions travel with the name of their file, and a traceback names it: what is sent must be as long in every checkout.
So modules with remote functions are loaded here, before anybody else does, under their paths from the root.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
MODULES = ("dualray.testing.workloads", "scenarios.swarm_programs", "scenarios.swarm_corners")


class _FromTheRoot(importlib.machinery.SourceFileLoader):
    """Loads a module that knows itself by its path from the root."""

    def __init__(self, module: str) -> None:
        super().__init__(module, module.replace(".", "/") + ".py")


def load(module: str) -> None:
    """Import a module. The working directory is the repository's root."""
    loader = _FromTheRoot(module)
    spec = importlib.util.spec_from_loader(module, loader)
    assert spec is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[module] = made
    loader.exec_module(made)


if __name__ == "__main__":
    os.chdir(ROOT)
    for name in MODULES:
        load(name)
    from tests.kept_runs.runs import main

    sys.exit(main())
