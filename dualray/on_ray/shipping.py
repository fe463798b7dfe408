"""dualray at the workers of a cluster: sent along with the job, and of one version everywhere."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FunctionType
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from dualray.exceptions import DualrayError
from dualray.version import __version__

_OF_A_JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Set by `ray job submit`, whose runtime environment Ray does not let the program add to."""
_PROBE_TIMEOUT_S = 120.0


def with_package(said: Mapping[str, Any]) -> tuple[dict[str, Any], Path]:
    """The runtime environment of a job that brings the package along, and the copy that it brings.

    Raises:
        DualrayError: the job has one already, which the program cannot add to.
    """
    if _OF_A_JOB in os.environ:
        raise DualrayError(
            "the workers of the cluster cannot import dualray, and dualray cannot change the runtime environment "
            f"of this job. Add dualray=={__version__} to pip in this runtime environment, or add the directory of "
            "dualray to py_modules"
        )
    copied = _pure_package()
    return {**said, "py_modules": [*said.get("py_modules", ()), str(copied)]}, copied


def _pure_package() -> Path:
    """A copy of the package without what was compiled, which fits one minor version of Python."""
    source = Path(__file__).parents[1]
    copied = Path(tempfile.mkdtemp(prefix="dualray-shipped-")) / "dualray"
    shutil.copytree(source, copied, ignore=shutil.ignore_patterns("*.so", "__pycache__", ".*_cache", "assets"))
    return copied


def workers_have_package() -> bool:
    """Whether the workers of each node import this version of dualray by themselves.

    Raises:
        DualrayError: another version of Python or Ray.
    """
    ours = {"Python": platform.python_version(), "Ray": ray.__version__}
    probe = ray.remote(num_cpus=0, max_retries=0)(_by_value(_versions))
    asked = {
        node["NodeID"]: probe.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], False)
        ).remote()
        for node in ray.nodes()
        if node["Alive"]
    }
    try:
        answers = dict(zip(asked, ray.get(list(asked.values()), timeout=_PROBE_TIMEOUT_S), strict=True))
    except ray.exceptions.RayError as error:
        raise DualrayError(
            f"a node of the Ray cluster could not run the task that checks the versions of Python and Ray: {error}"
        ) from error
    for node, theirs in answers.items():
        for name, version in ours.items():
            if minor(theirs[name]) != minor(version):
                raise DualrayError(
                    f"node {node} has {name} {theirs[name]}, but this program has {name} {version}: use the same "
                    "versions for the program and the cluster"
                )
    return all(minor(theirs["dualray"]) == minor(__version__) for theirs in answers.values())


def minor(version: str) -> str:
    """A version without its last part: "3.11" of "3.11.7"."""
    return ".".join(version.split(".")[:2])


def _by_value(function: Callable[[], dict[str, str]]) -> Callable[[], dict[str, str]]:
    """The function as one of no module: a worker without dualray unpickles it."""
    assert isinstance(function, FunctionType)
    made = FunctionType(function.__code__, {"__builtins__": __builtins__}, function.__name__)
    made.__module__ = "__main__"
    return made


def _versions() -> dict[str, str]:
    import platform  # noqa: PLC0415 - it runs where this module is not
    from importlib import import_module, util  # noqa: PLC0415 - as above

    import ray  # noqa: PLC0415 - as above

    found = util.find_spec("dualray") is not None
    return {
        "Python": platform.python_version(),
        "Ray": ray.__version__,
        "dualray": import_module("dualray.version").__version__ if found else "",
    }
