"""Hold the runs of the swarm scenarios against what is kept of them, or keep them anew: see runs.py.

Functions travel with the name of their file, and a traceback names files: what is sent must be as long in every
checkout. So modules are loaded here with code that knows its file by the path from the root.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType

PACKAGES = ("dualray", "scenarios")
PROGRAMS = ("dualray.testing.workloads", "scenarios.swarm_programs", "scenarios.swarm_corners")
"""Modules whose functions travel. They are compiled each time: the code that is read from a cache has other constants
in common, and is pickled otherwise."""


class _FromTheRoot(SourceFileLoader):
    """Loads a module whose code knows its file by the path from the root."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's code."""
        if module.__name__ in PROGRAMS:
            module.__file__ = module.__name__.replace(".", "/") + ".py"  # it travels, too
        super().exec_module(module)

    def get_code(self, fullname: str) -> CodeType | None:
        """The code of the module, and of all in it."""
        filename = fullname.replace(".", "/") + ".py"
        if fullname in PROGRAMS:
            compiled: CodeType = compile(self.get_data(self.path), filename, "exec", dont_inherit=True)
            return compiled
        code = super().get_code(fullname)
        return None if code is None else _named(code, filename)


def _named(code: CodeType, filename: str) -> CodeType:
    inner = tuple([_named(each, filename) if isinstance(each, CodeType) else each for each in code.co_consts])
    return code.replace(co_filename=filename, co_consts=inner)


class _Finder(MetaPathFinder):
    """Finds what everybody finds. Compiled modules stay as they are."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """As any finder."""
        if fullname.partition(".")[0] not in PACKAGES:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _FromTheRoot(fullname, spec.loader.path)
        return spec


if __name__ == "__main__":
    sys.meta_path.insert(0, _Finder())
    from tests.kept_runs.runs import main

    sys.exit(main())
