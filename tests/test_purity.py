"""The core is pure, each guard of that can fail, and imports go down only."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.purity import IMPURE_BUILTINS, IMPURE_PATHS, impurities

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "dualray"
SHARED = PACKAGE / "shared"
MODULES = sorted(SHARED.rglob("*.py"))

# The impurities that the core needs, each with its reason; one that is gone is an error too.
ALLOWED = {
    # A policy is loaded once, when its machine is made, by the dotted path in the config.
    ("dualray/shared/policies/__init__.py", "importlib.import_module"),
    # The codec writes the source of its converters from the dataclasses of the model, and compiles it once, at import.
    ("dualray/shared/model/codec.py", "exec"),
}


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


# --------------------------------------------------------------------------------------------- the syntax tree


def test_the_core_is_where_this_test_looks():
    assert SHARED / "__init__.py" in MODULES
    assert {path.name for path in SHARED.iterdir() if path.is_dir()} >= {"model", "machines", "policies"}


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_module_of_the_core_is_pure(path):
    allowed = {subject for filename, subject in ALLOWED if filename == name(path)}
    found = impurities(path.read_text(encoding="utf-8"), name(path))
    strays = [impurity for impurity in found if impurity.subject not in allowed]
    assert not strays, "\n".join(map(str, strays))
    assert allowed == {impurity.subject for impurity in found}


def test_the_exceptions_name_modules_that_exist():
    assert {filename for filename, _ in ALLOWED} <= set(map(name, MODULES))


PLANTED = {
    "plain": ("import time", "time"),
    "submodule": ("import os.path", "os.path"),
    "combined": ("import json, time", "time"),
    "renamed": ("import datetime as calendar_of_the_day", "datetime"),
    "member": ("from os import path", "os"),
    "member renamed": ("from random import random as draw", "random"),
    "star": ("from socket import *", "socket"),
    "several lines": ("from uuid import (\n    uuid4,\n)", "uuid"),
    "after a semicolon": ("limit = 1; import threading", "threading"),
    "in a function": ("def handle():\n    import asyncio", "asyncio"),
    "in a method": ("class Machine:\n    def handle(self):\n        from subprocess import run", "subprocess"),
    "in a class": ("class Machine:\n    import multiprocessing", "multiprocessing"),
    "in a coroutine": ("async def handle():\n    import selectors", "selectors"),
    "behind a condition": ("if __debug__:\n    import logging", "logging"),
    "for the type checker": (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from redis import Redis",
        "redis",
    ),
    "with a fallback": ("try:\n    import simpy\nexcept ImportError:\n    simpy = None", "simpy"),
    "in a match": ("match 1:\n    case _:\n        import signal", "signal"),
    "in a with": ("with context():\n    import secrets", "secrets"),
    "part of numpy": ("import numpy.random", "numpy.random"),
    "member of numpy": ("from numpy import random", "numpy.random"),
    "member of a part of numpy": ("from numpy.random import default_rng", "numpy.random"),
    "star of numpy": ("from numpy import *", "numpy.random"),
    "attribute of numpy": ("import numpy as np\nseed = np.random.default_rng()", "numpy.random"),
    "file through io": ("from io import open", "io.open"),
    "output through sys": ("import sys\nsys.stdout.write('done')", "sys.stdout"),
    "by name": ('import importlib\nimportlib.import_module("time")', "time"),
    "by name, submodule": ('import importlib\nimportlib.import_module("os.path")', "os.path"),
    "by name, keyword": ('import importlib\nimportlib.import_module(name="time")', "time"),
    "by name, renamed": ('from importlib import import_module as load\nload("time")', "time"),
    "by name, builtin": ('__import__("time")', "time"),
    "by name, handed on": (
        "from importlib import import_module\nmodules = map(import_module, ['time'])",
        "importlib.import_module",
    ),
    "by name, stored": ("import importlib\nload = importlib.import_module", "importlib.import_module"),
    "by a name that is computed": (
        'import importlib\nimportlib.import_module("ti" + "me")',
        "importlib.import_module",
    ),
    "by a name from outside": ("def load(path):\n    return __import__(path)", "__import__"),
}


@pytest.mark.parametrize(("source", "subject"), PLANTED.values(), ids=PLANTED.keys())
def test_planted_import_is_found(source, subject):
    assert [found.subject for found in impurities(source, "planted.py")] == [subject]


@pytest.mark.parametrize("path", IMPURE_PATHS)
def test_each_path_of_the_list_is_found(path):
    owner, _, member = path.rpartition(".")
    source = f"from {owner} import {member}" if owner else f"import {member}"
    assert [found.subject for found in impurities(source, "planted.py")] == [path]


@pytest.mark.parametrize("builtin", IMPURE_BUILTINS)
def test_each_builtin_of_the_list_is_found(builtin):
    called = impurities(f"def handle():\n    return {builtin}('x')", "planted.py")
    handed_on = impurities(f"results = list(map({builtin}, names))", "planted.py")
    assert [found.subject for found in called] == [builtin]
    assert [found.subject for found in handed_on] == [builtin]


def test_a_finding_says_where_and_why():
    (found,) = impurities("x = 1\nif x:\n    import json, time\n", "dualray/shared/planted.py")
    assert str(found) == "dualray/shared/planted.py:3:18: time: a clock"


def test_findings_stand_in_the_order_of_their_lines():
    source = "import time\nimport os\nprint(open('x'))\n"
    assert [found.subject for found in impurities(source, "planted.py")] == ["time", "os", "print", "open"]


@pytest.mark.parametrize(
    "source",
    [
        "import json, hashlib, struct",
        "from dualray.shared.model import time",
        "from . import random",
        "from .time import now_ns",
        "import importlib\nimportlib.import_module('json')",
        "import numpy as np\nzeros = np.zeros(3)",
        "import timeit_of_ours, osmosis",
        '"""import time"""',
        "def handle(event, now_ns, random): return random.choice(event.time)",
        "class Store:\n    def open(self): return self\nStore().open()",
    ],
)
def test_pure_code_has_no_finding(source):
    assert impurities(source, "pure.py") == []


# -------------------------------------------------------------------------------------- the copies of the list


def test_the_list_of_the_linter_is_the_list():
    config = tomllib.loads((SHARED / "ruff.toml").read_text(encoding="utf-8"))
    assert set(config["lint"]["flake8-tidy-imports"]["banned-api"]) == set(IMPURE_PATHS)


def test_the_list_of_the_contract_is_the_list():
    """Its external packages have no parts, so the dotted entries are left to the other two guards."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = [c for c in config["tool"]["importlinter"]["contracts"] if c["id"] == "purity"]
    assert set(contract["forbidden_modules"]) == {path for path in IMPURE_PATHS if "." not in path}


# ------------------------------------------------------------------------------------------ the import contracts


def lint_imports(directory: Path, *arguments: str) -> tuple[int, str]:
    """The exit status of import-linter in `directory`, which holds a pyproject.toml and the package, and its words."""
    finished = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache", "--no-logo", *arguments],
        cwd=directory,
        capture_output=True,
        text=True,
    )
    return finished.returncode, finished.stdout + finished.stderr


@pytest.fixture
def copied_package(tmp_path) -> Path:
    """A copy of the package and its contracts, to plant in."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(PACKAGE, tmp_path / "dualray", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "dualray"


def test_imports_keep_the_contracts():
    status, words = lint_imports(ROOT)
    assert status == 0, words


def test_a_copy_of_the_package_keeps_the_contract(copied_package):
    """The control of the plants below: nothing but the plant is what breaks it."""
    status, words = lint_imports(copied_package.parent, "--contract", "purity")
    assert status == 0, words


def test_contract_finds_a_clock_behind_a_helper(copied_package):
    (copied_package / "pacing.py").write_text("import time\n")
    (copied_package / "shared" / "machines" / "planted.py").write_text("from dualray import pacing\n")
    status, words = lint_imports(copied_package.parent, "--contract", "purity")
    assert status == 1
    assert "dualray.shared is not allowed to import time" in words
    assert "dualray.shared.machines.planted -> dualray.pacing" in words
    assert "dualray.pacing -> time" in words


def test_contract_finds_a_clock_behind_two_helpers(copied_package):
    (copied_package / "pacing.py").write_text("def pause():\n    import time\n")
    (copied_package / "rhythm.py").write_text("from dualray.pacing import pause\n")
    (copied_package / "shared" / "policies" / "planted.py").write_text("import dualray.rhythm\n")
    status, words = lint_imports(copied_package.parent, "--contract", "purity")
    assert status == 1
    assert "dualray.rhythm -> dualray.pacing" in words


def test_contract_finds_a_mode_behind_a_helper(copied_package):
    (copied_package / "bridge.py").write_text("import dualray.real\n")
    (copied_package / "shared" / "machines" / "planted.py").write_text("from dualray import bridge\n")
    status, words = lint_imports(copied_package.parent, "--contract", "package")
    assert status == 1
    assert "dualray.shared is not allowed to import dualray.real" in words
    assert "dualray.shared.machines.planted -> dualray.bridge" in words


def test_contract_finds_a_machine_in_another_process(copied_package):
    (copied_package / "shared" / "machines" / "node" / "planted.py").write_text(
        "from dualray.shared.machines.owner import owner\n"
    )
    status, words = lint_imports(copied_package.parent, "--contract", "machines")
    assert status == 1
    assert "dualray.shared.machines.node.planted -> dualray.shared.machines.owner.owner" in words


def test_contract_finds_a_policy_that_knows_a_machine(copied_package):
    (copied_package / "shared" / "policies" / "planted.py").write_text("from dualray.shared.machines import base\n")
    status, words = lint_imports(copied_package.parent, "--contract", "shared")
    assert status == 1
    assert "dualray.shared.policies.planted -> dualray.shared.machines.base" in words


def test_contract_finds_one_mode_in_the_other(copied_package):
    (copied_package / "sim" / "planted.py").write_text("from dualray import real\n")
    status, words = lint_imports(copied_package.parent, "--contract", "package")
    assert status == 1
    assert "dualray.sim is not allowed to import dualray.real" in words


# ------------------------------------------------------------------------------------------------- the linter's rule


def test_linter_marks_a_planted_import():
    """On standard input, under the name of a module of the core: so nothing is planted in the tree."""
    finished = subprocess.run(
        [
            Path(sys.executable).with_name("ruff"),
            "check",
            "--no-cache",
            "--output-format=concise",
            f"--stdin-filename={SHARED / 'planted.py'}",
            "-",
        ],
        input='"""A plant."""\n\nimport json, time\n\nimport numpy as np\n\nx = json, time, np.random.rand()\n',
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 1, finished.stderr
    assert "TID251 `time` is banned: time is an argument, now_ns" in finished.stdout
    assert "TID251 `numpy.random.rand`" in finished.stdout or "TID251 `numpy.random`" in finished.stdout


def test_linter_lets_the_runners_have_a_clock():
    finished = subprocess.run(
        [
            Path(sys.executable).with_name("ruff"),
            "check",
            "--no-cache",
            "--select=TID251",
            f"--stdin-filename={PACKAGE / 'real' / 'planted.py'}",
            "-",
        ],
        input="import time\n",
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stdout
