"""What `pip install dualray` brings, and what dualray says where an extra is needed."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from dualray.extras import BRINGS
from tests.structure import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BESIDE_NUMPY = {
    "annotated-types",
    "click",
    "cloudpickle",
    "greenlet",
    "msgpack",
    "psutil",
    "pydantic",
    "pydantic-core",
    "pyyaml",
    "simpy",
    "typing-extensions",
    "typing-inspection",
}
"""Twelve packages. Whatever a single command needs is the extra of that command."""


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def brought(requirements: list[str]) -> set[str]:
    """The names of these, and of all that they need, as they are installed here."""
    found: set[str] = set()
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        requirement = waiting.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        if plain(requirement.name) not in found:
            found.add(plain(requirement.name))
            waiting += map(Requirement, distribution(requirement.name).requires or ())
    return found


def test_an_install_of_the_core_brings_these_packages_and_no_other():
    assert brought(PROJECT["dependencies"]) - {"numpy"} == BESIDE_NUMPY
    assert len(BESIDE_NUMPY) == 12


def test_the_page_on_installing_has_each_extra_that_users_need():
    page = (ROOT / "docs" / "install.md").read_text()
    for name in PROJECT["optional-dependencies"].keys() - BETWEEN_US - {"report"}:
        assert f"`{name}`" in page, name
    for name in BRINGS:
        assert name in PROJECT["optional-dependencies"]


BETWEEN_US = {"bench", "dev", "dev-all", "docs", "mutants", "test"}
"""The extras that only a checkout needs."""


def modules_of(path: Path) -> set[str]:
    """The first names of all modules that a file imports, at its top or later."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


def test_whatever_dualray_imports_is_a_dependency_or_of_an_extra():
    lists = [PROJECT["dependencies"]]
    lists += [lines for name, lines in PROJECT["optional-dependencies"].items() if name not in BETWEEN_US]
    declared = {plain(Requirement(line).name) for lines in lists for line in lines}
    known = packages_distributions()
    # `ray` is Ray's own when it is installed; pytest is there when its plugin is loaded.
    files = [path for path in (ROOT / "dualray").rglob("*.py") if "site" not in path.parts]
    imported = {name for path in files for name in modules_of(path)}
    foreign = imported - sys.stdlib_module_names - {"dualray", "pytest", "ray"}
    assert len(foreign) > 15
    assert {name for name in foreign if not {plain(each) for each in known.get(name, [name])} & declared} == set()


WITHOUT = """
import importlib.util
import sys
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name in {modules!r} else find_spec(name, *more)
sys.modules.update(dict.fromkeys({modules!r}))  # as if they were not installed
import dualray as ray
{program}
"""
LOCAL = """
@ray.remote
def double(number):
    return 2 * number

for mode in ("sim", "real"):
    ray.init(mode=mode, num_cpus=2)
    assert ray.get([double.remote(number) for number in range(9)]) == [2 * number for number in range(9)]
    ray.shutdown()
print("it works")
"""
EVERY_EXTRA = sorted({name for names in BRINGS.values() for name in names} | {"pyarrow", "starlette", "rich", "typer"})


def without(modules: list[str], program: str) -> subprocess.CompletedProcess[str]:
    text = WITHOUT.format(modules=modules, program=program)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DUALRAY_")}
    command = [sys.executable, "-c", text]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=100, env=environment | {"PYTHONPATH": str(ROOT)}
    )


def test_both_modes_run_without_any_extra():
    done = without(EVERY_EXTRA, LOCAL)
    assert done.stdout == "it works\n", done.stderr


@pytest.mark.parametrize(
    ("extra", "program", "what"),
    [
        ("metrics", "ray.init(mode='real', num_cpus=1, metrics_port=0)", "metrics_port= needs prometheus_client"),
        (
            "runtime-env",
            "ray.init(mode='sim'); ray.remote(runtime_env={'pip': ['numpy']})(len).remote(())",
            "runtime_env={'pip': [...]} needs packaging",
        ),
    ],
)
def test_whoever_needs_an_extra_is_told_how_to_install_it(extra: str, program: str, what: str):
    done = without(list(BRINGS[extra]), program)
    assert done.returncode == 1
    said = done.stderr.splitlines()[-1]
    assert said.endswith(f"{what}, which is not installed: pip install 'dualray[{extra}]'"), done.stderr


CLUSTER = """
from dualray.cluster_utils import Cluster

with Cluster(initialize_head=True, connect=True, head_node_args={"num_cpus": 1}) as cluster:
    cluster.add_node(num_cpus=1, resources={"far": 1})
    print(ray.get(ray.remote(resources={"far": 1})(len).remote("seven77")))
"""


@pytest.mark.slow
def test_a_cluster_of_several_nodes_needs_no_extra():
    done = without(EVERY_EXTRA, CLUSTER)
    assert done.stdout == "7\n", done.stderr


@pytest.mark.parametrize(
    ("words", "modules", "said"),
    [
        (["predict", "run.parquet"], ["pyarrow"], "run.parquet needs pyarrow, which is not installed"),
        (["calibrate"], ["scipy"], "calibrate needs scipy, which is not installed"),
        (["calibrate"], ["plotly", "scipy"], "calibrate needs plotly and scipy, which are not installed"),
        (["record", __file__], ["pyarrow"], "--output needs pyarrow, which is not installed"),
    ],
)
def test_a_command_of_the_extra_whatif_says_so_before_it_begins(words: list[str], modules: list[str], said: str):
    program = f"sys.argv[1:] = {words!r}\nfrom dualray.cli import app_main\napp_main()"
    done = without(modules, program)
    assert (done.returncode, done.stderr) == (2, f"dualray: {said}: pip install 'dualray[whatif]'\n")
