"""A session imports no module before a process needs it: see docs/inside_performance.md."""

import subprocess
import sys

import pytest

HEAVY = {"asyncio", "cloudpickle", "numpy", "prometheus_client", "psutil", "pydantic", "redis", "simpy", "ssl", "yaml"}


def imported_by(statement: str) -> set[str]:
    """The modules that are there after a statement in a fresh interpreter."""
    program = f"{statement}\nimport sys\nprint(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "module", ["dualray.real.session.zygote", "dualray.real.processes.head", "dualray.real.processes.node"]
)
def test_what_is_forked_first_imports_nothing_heavy(module: str) -> None:
    found = imported_by(f"import {module}")
    assert module in found
    assert found & HEAVY == set()


def test_the_package_imports_a_name_when_it_is_used() -> None:
    found = imported_by("import dualray")
    assert found & (HEAVY | {"dualray.api", "dualray.exceptions"}) == set()
    found = imported_by("from dualray import *; assert remote and exceptions.DualrayError")
    assert {"dualray.api", "dualray.exceptions"} <= found
    assert found & {"redis", "asyncio", "psutil", "pydantic", "simpy"} == set()


def test_a_worker_needs_no_client_library_of_redis() -> None:
    assert imported_by("import dualray.real.processes.worker") & {"redis", "asyncio", "psutil", "pydantic"} == set()
