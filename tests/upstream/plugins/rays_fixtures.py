"""The fixtures of Ray's own tests, made anew over Ray's public functions, and modules for its private names.

Ray's tests import helpers of `ray._private` and `ray._common` at their top. Under dualray those that are absent are
functions that raise NotImplementedError, so that the tests that do not call them run, and those that do fail. The same
holds on Ray for `ray.tests`, which no wheel of it has. Where dualray has a module of that name, it is used.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

_ON_RAY = os.environ["UPSTREAM_ENGINE"] == "ray"
_THERE: set[str] = set()
"""Private modules that dualray has; their further names are absent."""

_PRIVATE = (
    ("ray.tests",)
    if _ON_RAY
    else (
        "ray._private",
        "ray._common",
        "ray._raylet",
        "ray.autoscaler",
        "ray.client_builder",
        "ray.core",
        "ray.dashboard",
        "ray.job_submission",
        "ray.scripts",
        "ray.tests",
        "ray.util.client",
    )
)


def _absent(module: str, name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*_args: Any, **_named: Any) -> Any:
        raise NotImplementedError(f"{module}.{name} is private to Ray")

    if name[0].isupper():  # a class: nothing is an instance of it
        return type(name, (), {"__new__": absent})
    absent.__name__ = name
    return absent


def _complete(module: ModuleType) -> None:
    own = vars(module)["__getattr__"]
    vars(module)["__getattr__"] = lambda name: _other(module, own, name)


def _other(module: ModuleType, own: Any, name: str) -> Any:
    """A name that a module of dualray's does not have itself."""
    try:
        return own(name)
    except AttributeError:
        return _absent(module.__name__, name)


def _is_here(name: str) -> bool:
    """Whether dualray has a module of its own under a name of Ray's."""
    site = Path(importlib.import_module("dualray.as_ray").__path__[0]) / "site"
    path = site.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


class _PrivateModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not name.startswith(_PRIVATE):
            return None
        if not _ON_RAY and _is_here(name):
            _THERE.add(name)
            return None
        if name.startswith("ray.tests.test_"):  # one file of Ray's tests takes functions from another
            file = Path("python", *name.split(".")).with_suffix(".py")
            if file.is_file():
                return importlib.util.spec_from_file_location(name, file.resolve())
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = ModuleType(spec.name)
        module.__path__ = []
        vars(module)["__getattr__"] = lambda name: _absent(spec.name, name)
        return module

    def exec_module(self, module: ModuleType) -> None:
        parent, _, last = module.__name__.rpartition(".")
        if parent in sys.modules:
            setattr(sys.modules[parent], last, module)


sys.meta_path.insert(0, _PrivateModules())
if not _ON_RAY:
    for _name in (
        *(f"ray._private.{part}" for part in ("ray_constants", "utils", "services", "worker", "internal_api", "state")),
        *(f"ray._private.{part}" for part in ("test_utils", "client_mode_hook", "state_api_test_utils")),
        *(f"ray._common.{part}" for part in ("utils", "network_utils", "constants", "test_utils")),
        "ray._raylet",
    ):
        _module = importlib.import_module(_name)
        if _name in _THERE:
            _complete(_module)

import ray  # noqa: E402 - the private modules stand first
from ray.cluster_utils import Cluster  # noqa: E402


def _defaults(named: dict[str, Any]) -> dict[str, Any]:
    return {"num_cpus": 1, "object_store_memory": 150 << 20, "namespace": "default_test_namespace"} | named


def _session(name: str, scope: Any = "function", **defaults: Any) -> Any:
    @pytest.fixture(name=name, scope=scope)
    def session(request: pytest.FixtureRequest) -> Iterator[Any]:
        ray.shutdown()
        yield ray.init("local", **_defaults(defaults | (getattr(request, "param", None) or {})))
        ray.shutdown()

    return session


ray_start_regular = _session("ray_start_regular")
ray_start_regular_shared = _session("ray_start_regular_shared", "module")
ray_start_regular_shared_2_cpus = _session("ray_start_regular_shared_2_cpus", "module", num_cpus=2)
ray_start_2_cpus = _session("ray_start_2_cpus", num_cpus=2)
ray_start_4_cpus = _session("ray_start_4_cpus", num_cpus=4)
ray_start_10_cpus = _session("ray_start_10_cpus", num_cpus=10)
ray_start_no_cpu = _session("ray_start_no_cpu", num_cpus=0)


@pytest.fixture
def ray_start_object_store_memory(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield ray.init("local", **_defaults({"object_store_memory": request.param}))
    ray.shutdown()


@pytest.fixture
def ray_start_with_env_vars(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    named = dict(getattr(request, "param", {}))
    for variable, value in named.pop("env_vars", {}).items():
        monkeypatch.setenv(variable, str(value))
    yield ray.init("local", **_defaults(named))
    ray.shutdown()


@contextlib.contextmanager
def _nodes(named: dict[str, Any]) -> Iterator[Any]:
    count = named.pop("num_nodes", 0)
    connects = named.pop("do_init", count > 0)
    named.pop("skip_cluster", None)
    each = _defaults(named)
    namespace = each.pop("namespace")
    cluster = Cluster()
    for number in range(count):
        if number:
            each.pop("_system_config", None)
        cluster.add_node(**each)
        if number == 0 and connects:
            ray.init(address=cluster.address, namespace=namespace)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def _cluster(name: str, scope: Any = "function", **defaults: Any) -> Any:
    @pytest.fixture(name=name, scope=scope)
    def cluster(request: pytest.FixtureRequest) -> Iterator[Any]:
        named = defaults | (getattr(request, "param", None) or {})
        with pytest.MonkeyPatch.context() as patch:
            for variable, value in named.pop("env_vars", {}).items():
                patch.setenv(variable, str(value))
            with _nodes(named) as made:
                yield made

    return cluster


ray_start_cluster = _cluster("ray_start_cluster")
ray_start_cluster_enabled = _cluster("ray_start_cluster_enabled")
ray_start_cluster_head = _cluster("ray_start_cluster_head", num_nodes=1, do_init=True)
ray_start_cluster_init = _cluster("ray_start_cluster_init", num_nodes=1, do_init=True)
ray_start_cluster_2_nodes = _cluster("ray_start_cluster_2_nodes", num_nodes=2, do_init=True)
ray_start_cluster_head_with_env_vars = _cluster("ray_start_cluster_head_with_env_vars", num_nodes=1, do_init=True)
ray_start_cluster_enabled_shared = _cluster("ray_start_cluster_enabled_shared", "module")


@pytest.fixture
def two_node_cluster() -> Iterator[Any]:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    ray.init(address=cluster.address)
    yield cluster, cluster.add_node(num_cpus=8)
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture
def call_ray_start(request: pytest.FixtureRequest) -> Iterator[str | None]:
    """The address of a cluster that Ray's command line starts and stops."""
    default = "ray start --head --num-cpus=1 --min-worker-port=0 --max-worker-port=0 --port 0"
    given = getattr(request, "param", default)
    said: dict[str, Any] = given if isinstance(given, dict) else {"cmd": given}
    variables = {**os.environ, **said.get("env", {})}
    command = said.get("cmd", default).split(" ")
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=variables).stdout
    yield printed.partition("--address='")[2].partition("'")[0] or None
    ray.shutdown()
    subprocess.run(["ray", "stop"], check=True, env=variables)


@pytest.fixture
def shutdown_only() -> Iterator[None]:
    if not _ON_RAY:  # a plain init() joins no Cluster that another test has left, as with Ray's fixtures
        importlib.import_module("dualray.cluster_address").planned.address_of = None
    yield
    ray.shutdown()


@pytest.fixture
def maybe_setup_external_redis() -> None:
    """Nothing: the control plane keeps its own."""


@pytest.fixture
def enable_mac_large_object_store() -> None:
    """Nothing: the tests do not run on macOS."""


@pytest.fixture
def propagate_logs() -> None:
    """Nothing: loggers propagate."""


@pytest.fixture
def enable_pickle_debug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_PICKLE_VERBOSE_DEBUG", "1")


@pytest.fixture
def fs_only_object_spilling_config(tmp_path: Path) -> tuple[dict[str, Any], str]:
    return {}, str(tmp_path)


@pytest.fixture
def object_spilling_config(tmp_path: Path) -> tuple[dict[str, Any], str]:
    return {}, str(tmp_path)


@pytest.fixture
def tmp_working_dir(tmp_path: Path) -> str:
    return str(tmp_path)


@pytest.fixture
def temp_file(tmp_path: Path) -> Path:
    return tmp_path / "file"


@pytest.fixture
def set_enable_auto_connect(monkeypatch: pytest.MonkeyPatch) -> bool:
    """False: Ray's own fixture does not look at its parameter either."""
    if _ON_RAY:
        monkeypatch.setattr("ray._private.auto_init_hook.enable_auto_connect", False)
    else:
        monkeypatch.setenv("RAY_ENABLE_AUTO_CONNECT", "0")
    return False


ray_start_with_dashboard = _session("ray_start_with_dashboard")
shutdown_only_with_initialization_check = shutdown_only
