"""`ray.init(logging_config=)`: records of the program and its workers, in both modes."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from dualray.as_ray.structured_logs import LoggingConfig
from tests.structure import ROOT

PROGRAM = """\
import dualray.as_ray

dualray.as_ray.install()
import logging
import sys

import ray


def note():
    logging.getLogger("noted").warning("the hook of the program")


ray.init(num_cpus=2, runtime_env={"worker_process_setup_hook": note} if len(sys.argv) > 1 else None, **CONFIG)


@ray.remote
def task(number):
    logging.getLogger("library").info("task %d", number, extra={"user": "somebody"})
    logging.getLogger("library").debug("a detail")
    try:
        1 / 0
    except ZeroDivisionError:
        logging.getLogger("library").exception("it failed")


@ray.remote
class Actor:
    def method(self):
        logging.warning("method")
        print("printed")


logging.getLogger("program").info("driver")
ray.get(task.remote(3))
actor = Actor.options(name="named").remote()
ray.get(actor.method.remote())
ray.shutdown()
"""
CONFIG = 'logging_config=ray.LoggingConfig(encoding="{}", additional_log_standard_attrs=["name"])'


def logged(config: str, mode: str, *arguments: str, **variables: str) -> list[str]:
    """What the program and its workers write to stderr, by line."""
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("**CONFIG", config), *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "DUALRAY_MODE": mode, **variables},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == "printed", "no name of a process stands before the line"
    return ran.stderr.splitlines()


@pytest.mark.parametrize("mode", ["real", "sim"])
def test_records_as_json(mode):
    lines = [line for line in logged(CONFIG.format("JSON"), mode) if line.startswith("{")]
    rows = {row["message"]: row for row in map(json.loads, lines)}
    assert "a detail" not in rows, "it is below INFO"
    assert rows["driver"]["levelname"] == "INFO" and rows["driver"]["name"] == "program"
    assert rows["driver"]["worker_id"].startswith("driver") and "task_id" not in rows["driver"]
    task = rows["task 3"]
    assert task["task_name"] == "task" and task["user"] == "somebody" and task["name"] == "library"
    assert task["process"] != rows["driver"]["process"] and task["node_id"] == "node-0"
    assert len(task["task_id"]) > 30 and task["job_id"] == rows["driver"]["job_id"] and "actor_id" not in task
    assert "ZeroDivisionError" in rows["it failed"]["exc_text"]
    method = rows["method"]
    assert method["actor_name"] == "named" and method["task_name"] == "Actor.method" and method["actor_id"]
    assert rows["driver"]["timestamp_ns"] <= task["timestamp_ns"] <= method["timestamp_ns"]


@pytest.mark.parametrize("mode", ["real", "sim"])
def test_records_as_text(mode):
    lines = logged(CONFIG.format("TEXT"), mode)
    [line] = [line for line in lines if "task 3" in line]
    assert "\tINFO " in line and " -- task 3 name=library user=somebody job_id=" in line
    assert " task_name=task " in line and " timestamp_ns=" in line


def test_a_variable_says_it_and_the_setup_hook_of_the_program_runs_too():
    lines = logged("", "real", "with a hook", RAY_LOGGING_CONFIG_ENCODING="JSON")
    messages = [json.loads(line)["message"] for line in lines if line.startswith("{")]
    assert {"driver", "task 3", "method", "the hook of the program"} <= set(messages)


def test_the_private_module_has_the_public_class():
    program = (
        "import ray\n"
        "from ray._private.ray_logging.logging_config import LoggingConfig\n"
        "assert LoggingConfig is ray.LoggingConfig\n"
        "from ray._private.ray_logging import setup_logger\n"
    )
    command = [sys.executable, "-m", "dualray.as_ray", "-c", program]
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60)
    assert "AssertionError" not in done.stderr
    assert "setup_logger is not in dualray" in done.stderr


def test_values_that_are_refused():
    with pytest.raises(ValueError, match=r"Invalid encoding type: encoding='XML' must be 'TEXT' or 'JSON'"):
        LoggingConfig(encoding="XML")
    with pytest.raises(ValueError, match=r"Unknown python logging standard attribute: .*'colour'.*funcName"):
        LoggingConfig(additional_log_standard_attrs=["name", "colour"])
    assert LoggingConfig.from_dict({"encoding": "JSON", "more": 1}).to_dict() == {
        "encoding": "JSON",
        "log_level": "INFO",
        "additional_log_standard_attrs": [],
    }
