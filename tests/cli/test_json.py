"""The keys of every command's JSON are those of docs/api/json.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import dualray as ray
from dualray.cli.app import app
from tests.json_page import DOCUMENTED

SCENARIO = """\
name: small
cluster: {nodes: 2, cpus: 2}
workload: {script: small.py}
faults: [kill worker when square starts 2]
"""
GROWING = """\
name: growing
cluster: {cpus: 2, groups: {small: {max: 3, start_up: 2s}}}
workload: {script: small.py}
"""
PROGRAM = """\
import dualray as ray
@ray.remote
def square(x):
    return x * x
print(sum(ray.get([square.remote(x) for x in range(4)])))
"""


@ray.remote
class Counter:
    def add(self) -> object:
        return np.zeros(200_000)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp("json")
    (made / "small.yaml").write_text(SCENARIO)
    (made / "small.py").write_text(PROGRAM)
    (made / "growing.yaml").write_text(GROWING)
    ray.init(mode="sim", nodes=2, decision_log=made / "log")
    actor: Any = Counter
    kept = ray.get(actor.remote().add.remote())
    ray.shutdown()
    assert kept is not None
    ray.init(mode="sim", record=made / "run.parquet")
    actor = Counter
    ray.get([actor.remote().add.remote() for _ in range(2)])
    ray.shutdown()
    return made


COMMANDS = {
    "config": "config",
    "examples": "examples",
    "doctor": "doctor",
    "explain": "explain Counter log",
    "explore": "explore small.yaml --seeds 2",
    "get task": "get task Counter.add --log log",
    "list actors": "list actors --log log",
    "list nodes": "list nodes --log log",
    "list tasks": "list tasks --log log",
    "memory": "memory --log log",
    "predict": "predict run.parquet --nodes 1,2 --seeds 1 --jobs 1",
    "predict --autoscale": "predict run.parquet --autoscale growing.yaml --seeds 1",
    "predict --causes": "predict run.parquet --nodes 1 --seeds 1 --jobs 1 --causes --memory-needs --what-would-help",
    "replay": "replay log",
    "scenario check": "scenario check small.yaml",
    "scenario list": "scenario list .",
    "scenario run": "scenario run small.yaml",
    "sim params": "sim params",
    "sim workloads": "sim workloads",
    "sim workload": "sim workload bag --tasks 10 --nodes 2",
    "summary": "summary tasks --log log",
}


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_a_command_prints_one_json_value_with_the_keys_of_the_page(
    directory: Path, monkeypatch: pytest.MonkeyPatch, command: str
):
    monkeypatch.chdir(directory)
    done = CliRunner().invoke(app, [*COMMANDS[command].split(), "--json"])
    assert done.exit_code == (0 if command != "doctor" else done.exit_code), done.output
    found = json.loads(done.stdout)
    rows = found if isinstance(found, list) else [found]
    assert rows, "the keys are seen"
    kind = "list of: " if isinstance(found, list) else ""
    for row in rows:
        assert kind + ", ".join(f"`{key}`" for key in sorted(row)) == DOCUMENTED[command].strip()


def test_the_page_has_no_command_that_is_not_tested():
    of_real_clusters = {"calibrate", "chaos", "logs", "status"}  # their tests are in tests/real and tests/whatif
    assert set(DOCUMENTED) == COMMANDS.keys() | of_real_clusters
