"""How pytest-xdist spreads the tests (`-n 3`): what needs most of the machine, the tests of real processes, runs on one
worker, one after another; all others run beside it, file by file.

A scheduler of our own, because `--dist loadgroup` writes a test's group into its id, which pytest has made read-only.
"""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

MACHINE = "machine"

_NEED_THE_MACHINE = (
    "tests/real/",
    "tests/test_classic_scripts.py",
    "tests/test_demo.py",
    "tests/test_deployment.py",
    "tests/test_leaks.py",
    "tests/test_wheel.py",
)


class MachineBesideFiles(LoadScopeScheduling):  # type: ignore[misc]  # xdist ships no types
    """See the module."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


def scope_of(nodeid: str) -> str:
    """What runs on one worker, in order: a file, or everything that needs the machine."""
    return MACHINE if nodeid.startswith(_NEED_THE_MACHINE) else nodeid.partition("::")[0]
