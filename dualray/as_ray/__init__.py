"""The name `ray`: programs and libraries that say `import ray` run on dualray, unchanged.

`install()` puts a finder before Python's own: `ray` is then the package in `site/ray`, whose modules have the names of
Ray's and hold dualray's functions and classes. What is new for them alone lies beside this module, so that whatever is
pickled names modules that are there with and without the name. A program that does not ask loads nothing of this.

    dualray run --as-ray script.py          python -m dualray.as_ray script.py
    pytest --dualray-as-ray                 DUALRAY_AS_RAY=1 python script.py

docs/ray_names.md lists the names; docs/as_ray.md says the rest.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, Final

from dualray.as_ray.data_names import REFUSED as OF_DATA

VARIABLE: Final = "DUALRAY_AS_RAY"
"""Set to 1 in the environment, it gives a process and its children the name from the start."""

PYTHON_VARIABLE: Final = "DUALRAY_AS_RAY_PYTHON"
"""Names the Python that runs the command `ray`: that of the program."""

COMMANDS: Final = Path(__file__).parent / "bin"
"""The directory of the command `ray`, for PATH."""

VARIABLES: Final = (VARIABLE, PYTHON_VARIABLE, "PATH")
"""What `install()` sets in the environment."""

PAGE: Final = "docs/ray_names.md"

_PACKAGE: Final = Path(__file__).parent / "site" / "ray"

REFUSED: Final = {
    "ray.ClientBuilder": "dualray has no Ray Client, because a driver always runs on a node of its cluster",
    "ray._config": "ray._config is private to Ray",
    "ray.cluster_utils.AutoscalingCluster": "instead of AutoscalingCluster, use the argument autoscale= of Cluster",
    "ray.client": "dualray has no Ray Client, because a driver always runs on a node of its cluster",
    "ray.cpp_function": "dualray runs only Python workers, and no workers in Java or C++",
    "ray.java_actor_class": "dualray runs only Python workers, and no workers in Java or C++",
    "ray.java_function": "dualray runs only Python workers, and no workers in Java or C++",
    "ray.util.connect": "dualray has no Ray Client, because a driver always runs on a node of its cluster",
    "ray.util.disconnect": "dualray has no Ray Client, because a driver always runs on a node of its cluster",
    "ray._private": "ray._private is private to Ray; dualray has only its names that test suites import",
    "ray._common": "ray._common is private to Ray; dualray has only its names that test suites import",
    "ray._raylet": "ray._raylet is private to Ray; dualray has only its classes of references, generators and ids, "
    "and its GcsClient",
    "ray.air": "ray.air is private to Ray's libraries; use dualray.train and dualray.data",
    "ray.autoscaler": "dualray has only the module ray.autoscaler.sdk of the package ray.autoscaler",
    "ray.autoscaler.sdk": "dualray has only request_resources() of ray.autoscaler.sdk; "
    "a cluster of `dualray start --autoscale` adds nodes",
    "ray.client_builder": "dualray has no Ray Client, because a driver always runs on a node of its cluster",
    "ray.core": "ray.core is private to Ray",
    "ray.cross_language": "dualray runs only Python workers, and no workers in Java or C++",
    "ray.dashboard": "instead of ray.dashboard, use `dualray dashboard`, `dualray status` and `dualray list`",
    "ray.dag": "dualray has no compiled graphs; run a task graph with its method execute()",
    "ray.data": "dualray has only the names of Ray Data that docs/data.md lists",
    "ray.experimental": "dualray does not send tensors directly between GPUs",
    "ray.experimental.tqdm_ray": "dualray has only tqdm() and safe_print() of ray.experimental.tqdm_ray",
    "ray.internal": "ray.internal is private to Ray",
    "ray.job_submission": "dualray has no server for jobs; run the program with `dualray run`",
    "ray.llm": "dualray has no library for language models",
    "ray.rllib": "dualray has no library for reinforcement learning",
    "ray.scripts": "instead of importing ray.scripts, run the command `ray`, which docs/as_ray.md describes",
    "ray.serve": "dualray has no library for serving models",
    "ray.tests": "dualray does not include Ray's own tests",
    "ray.train": "dualray has only the names of Ray Train that docs/train.md lists",
    "ray.tune": "dualray has no library for hyperparameter tuning",
    "ray.util.client": "dualray has no Ray Client, because a driver always runs on a node of its cluster",
    "ray.util.debug.Suspect": "Ray uses the class Suspect only to find memory leaks in Ray itself",
    "ray.util.serialization.StandaloneSerializationContext": "StandaloneSerializationContext is private to Ray; "
    "use cloudpickle",
    "ray.util.state.StateApiClient": "instead of StateApiClient, use list_tasks() and the other functions of "
    "ray.util.state",
    "ray.util.state.list_cluster_events": "instead of list_cluster_events(), use `dualray report DIR`, which "
    "shows the events of a run",
    "ray.util.debugpy": "dualray has no remote debugger; use sim mode, in which breakpoint() starts pdb in a task",
    "ray.util.horovod": "dualray does not run Horovod",
    "ray.util.iter": "dualray does not have the parallel iterators of ray.util.iter; use dualray.data",
    "ray.util.lightgbm": "dualray does not run LightGBM",
    "ray.util.rpdb": "dualray has no remote debugger; use sim mode, in which breakpoint() starts pdb in a task",
    "ray.util.sgd": "Ray has removed ray.util.sgd; use dualray.train",
    "ray.util.spark": "dualray does not run Spark",
    "ray.util.tpu": "dualray has no helpers for TPU slices; request TPUs with the option resources={'TPU': n}",
    "ray.util.tracing": "instead of ray.util.tracing, use `dualray timeline` and `dualray report`, which show where a "
    "run spends its time",
    "ray.util.xgboost": "dualray does not run XGBoost",
    "ray.widgets": "ray.widgets belongs to Ray's dashboard, which dualray does not have",
    "ray.workflow": "Ray has removed the library ray.workflow",
    "ray.experimental.channel": "dualray has no compiled graphs; run a task graph with its method execute()",
    "ray.experimental.collective": "dualray has no compiled graphs; run a task graph with its method execute()",
    "ray.experimental.compiled_dag_ref": "dualray has no compiled graphs; run a task graph with its method execute()",
    "ray.dag.compiled_dag_node": "dualray has no compiled graphs; run a task graph with its method execute()",
    **OF_DATA,
}
"""The modules and names of Ray that dualray does not have, with the reason, which applies to all their contents."""


class RayIsImportedError(ImportError):
    """The real Ray was imported before `install()`, so `import ray` cannot import dualray any more."""


class AbsentModuleError(ModuleNotFoundError):
    """Ray has a module that dualray does not have; the message says why, and which page lists the modules."""


def absent(name: str) -> str:
    """The message for a name of Ray's that dualray does not have, such as "ray.serve"."""
    parts = name.split(".")
    for end in range(len(parts), 1, -1):
        why = REFUSED.get(".".join(parts[:end]))
        if why is not None:
            return (
                f"{name} is not in dualray, which `import ray` imports in this program: {why}. "
                f"{PAGE} lists the names of Ray that dualray has."
            )
    return (
        f"{name} is not in dualray, which `import ray` imports in this program. {PAGE} lists the names of Ray that "
        "dualray has."
    )


class _Finder:
    """Finds `ray`; of modules in it, it says which are not there. Python's own finder finds the others in its path."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "ray":
            if name.startswith("ray.") and not _exists(name) and not _is_asked():
                raise AbsentModuleError(absent(name), name=name)
            return None
        directory = str(_PACKAGE)
        return importlib.util.spec_from_file_location(
            "ray", _PACKAGE / "__init__.py", submodule_search_locations=[directory]
        )

    @staticmethod
    def find_distributions(context: Any = None) -> Iterable[Any]:
        """Tell `importlib.metadata` the version of `ray`: libraries ask for it, also before they import Ray."""
        from dualray.as_ray.metadata import distributions  # noqa: PLC0415 - few programs ask

        return distributions(context)


def _exists(name: str) -> bool:
    path = _PACKAGE.joinpath(*name.split(".")[1:])
    return path.is_dir() or path.with_suffix(".py").is_file()


def _is_asked() -> bool:
    """Whether a program asks `importlib.util.find_spec` for the module, which answers None."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") in ("importlib._bootstrap", "importlib.util"):
        if frame.f_code is importlib.util.find_spec.__code__:
            return True
        frame = frame.f_back
    return False


def install() -> None:
    """Let `import ray` import dualray in this process, and in its child processes by the environment. The command
    `ray` of its child processes is dualray's, too.

    A second call does nothing.

    Raises:
        RayIsImportedError: the real Ray is imported already; the message names a module that imported it.
    """
    if not is_installed():
        existing = sys.modules.get("ray")
        if existing is not None:
            file = getattr(existing, "__file__", None) or "elsewhere"
            raise RayIsImportedError(
                f"Ray itself is imported already, from {file}, by {_importer(existing)}: call "
                "dualray.as_ray.install() before the first `import ray`, or start the program with "
                "`dualray run --as-ray`"
            )
        sys.meta_path.insert(0, _Finder)
    os.environ[VARIABLE] = "1"
    path = os.environ.get("PATH", os.defpath)
    if str(COMMANDS) not in path.split(os.pathsep):
        os.environ["PATH"] = f"{COMMANDS}{os.pathsep}{path}"
    os.environ[PYTHON_VARIABLE] = sys.executable


def is_installed() -> bool:
    """Return whether `import ray` imports dualray in this process."""
    return _Finder in sys.meta_path


def _importer(ray: ModuleType) -> str:
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] != "ray" and any(value is ray for value in list(vars(module).values())):
            return f"module {name} ({getattr(module, '__file__', None) or 'without a file'})"
    return "a module that no longer refers to Ray"
