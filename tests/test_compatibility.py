"""The table of docs/api/compatibility.md: each name is what its row says, and each test that it names exists."""

from __future__ import annotations

import ast
import inspect
import re
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import dualray
from dualray import exceptions, util
from dualray.cli.app import GROUPS
from dualray.options import ActorOptions, MethodOptions, TaskOptions
from dualray.util import state

ROOT = Path(__file__).parents[1]
NOT_YET = "not yet"
OPTIONS: dict[str, Any] = {"task": TaskOptions, "actor": ActorOptions, "method": MethodOptions}


class TableRow(NamedTuple):
    name: str
    real: str
    sim: str
    test: str


def rows() -> list[TableRow]:
    text = (ROOT / "docs/api/compatibility.md").read_text().partition("## Left out on purpose")[0]
    return [
        TableRow(*(cell.strip() for cell in line.split("|")[1:5])) for line in text.splitlines() if line[:3] == "| `"
    ]


ROWS = rows()


def is_there(name: str) -> bool:
    """Whether the API has what a row names."""
    if option := re.fullmatch(r"(task|actor|method) option (\w+)", name):
        return option[2] in OPTIONS[option[1]].__dataclass_fields__
    if argument := re.fullmatch(r"init\((\w+)=\)", name):
        return argument[1] in inspect.signature(dualray.init).parameters
    if command := re.fullmatch(r"command (\w+)", name):
        return command[1] in {known for commands in GROUPS.values() for known in commands}
    module, *path = _module_of(name)
    found: Any = import_module(module)
    for part in path:
        if not hasattr(found, part) and part not in getattr(found, "__annotations__", ()):
            return False
        found = getattr(found, part)
    return True


def _module_of(name: str) -> list[str]:
    """The longest part of a dotted name that is a module, and the rest."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:end])
        if path.with_suffix(".py").exists() or (path / "__init__.py").exists():
            return [".".join(parts[:end]), *parts[end:]]
    raise AssertionError(f"{name} names no module")


def test_the_table_is_not_empty_and_names_nothing_twice():
    names = [row.name for row in ROWS]
    assert len(names) > 100
    assert len(names) == len(set(names))


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_each_name_is_what_its_row_says(row):
    name = row.name.strip("`")
    assert row.real
    assert row.sim
    if NOT_YET in (row.real, row.sim):
        assert (row.real, row.sim, row.test) == (NOT_YET, NOT_YET, "-")
        assert not is_there(name), f"{name} is there: change its row"
    else:
        assert is_there(name), f"there is no {name}: change its row"


@pytest.mark.parametrize("row", [row for row in ROWS if row.real != NOT_YET], ids=lambda row: row.name)
def test_each_row_names_a_test_that_exists(row):
    path, _, name = row.test.strip("`").partition("::")
    tree = ast.parse((ROOT / path).read_text())
    assert name in [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def test_rays_names_of_errors_can_be_caught():
    """An `except` clause of a Ray program names them; tests/test_exceptions.py has the whole tree."""
    assert exceptions.RayError is exceptions.DualrayError
    assert exceptions.RayTaskError is exceptions.TaskError
    assert exceptions.RayActorError is exceptions.ActorError


OWN = {
    *("object_id_seed", "decision_log", "record", "limits", "redirect_output", "log_directory"),
    *("num_redis_shards", "metrics_port", "faults", "calibration", "sim_unsafe", "task_profile", "durations"),
}
"""Arguments of `init` that are dualray's own or those of 2017: other pages have them."""
BUGS = {"InvalidTransition", "InvariantViolation"}
"""Errors that nobody should ever see."""


def is_error(each: object) -> bool:
    return isinstance(each, type) and issubclass(each, BaseException)


def test_every_error_utility_and_argument_has_a_row():
    names = {row.name.strip("`") for row in ROWS}
    errors = {name for name, each in vars(exceptions).items() if name[0] != "_" and is_error(each)}
    assert {f"dualray.exceptions.{name}" for name in errors - BUGS} - names == set()
    arguments = set(inspect.signature(dualray.init).parameters) - OWN - {"of_ray"}
    assert {f"init({name}=)" for name in arguments} - names == set()
    assert set(util.__all__) - {name.rpartition(".")[2] for name in names} == set()
    asked = [name for name in vars(state) if name.startswith(("list_", "get_", "summarize_"))]
    assert {f"dualray.util.state.{name}" for name in asked} - names == set()


def test_every_public_name_has_a_row():
    named = {row.name.strip("`").removeprefix("dualray.").partition(".")[0] for row in ROWS}
    assert set(dualray.__all__) - {"__version__", "exceptions"} <= named
    errors = {row.name.strip("`").rpartition(".")[2] for row in ROWS}
    for kind, cls in OPTIONS.items():
        shown = {row.name.strip("`").rpartition(" ")[2] for row in ROWS if row.name.startswith(f"`{kind} option")}
        assert {"num_returns", "label_selector"} & set(cls.__dataclass_fields__) <= shown
    assert {"TaskError", "ActorDiedError", "ObjectLostError"} <= errors
