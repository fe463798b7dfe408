"""Scenarios, explorations and records of scripts that say `import ray`, where Ray is not installed or not asked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dualray.testing.explore import explore
from dualray.testing.run import load_scenario, run_scenario

PROGRAM = """\
import ray

@ray.remote(max_retries=3)
def square(x):
    return x * x

print(sum(ray.get([square.remote(x) for x in range(10)])))
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "squares.py").write_text(PROGRAM)
    path = tmp_path / "squares.yaml"
    path.write_text("name: squares\ncluster: {nodes: 3, cpus: 2}\nworkload: {script: squares.py, as_ray: true}\n")
    return path


@pytest.mark.parametrize("mode", ["sim", "real"])
def test_a_scenario_runs_a_script_that_imports_ray(file: Path, mode: str):
    outcome = run_scenario(load_scenario(file), directory=file.parent, mode=mode)
    assert (outcome.error, outcome.result) == ((), 285), outcome.message


def test_it_can_be_explored(file: Path):
    found = explore(load_scenario(file), directory=file.parent, seeds=range(3))
    assert (found.seeds, found.findings) == (3, [])


def test_a_function_is_told_to_import_for_itself(file: Path):
    file.write_text(file.read_text().replace("script: squares.py", "function: 'squares:main'"))
    with pytest.raises(ValueError, match="the key as_ray is only for scripts"):
        load_scenario(file)


def dualray(directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dualray", *words]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=100)


def test_record_takes_the_option_of_run(file: Path):
    done = dualray(file.parent, "record", "--as-ray", "squares.py", "-o", "run.parquet")
    assert (done.returncode, done.stdout) == (0, "285\n"), done.stderr
    assert (file.parent / "run.parquet").exists()


def test_run_names_the_option_when_there_is_no_ray(file: Path):
    hidden = "import sys; sys.modules['ray'] = None; from dualray.cli import app_main; app_main()"
    command = [sys.executable, "-c", hidden, "run", "squares.py", "--mode", "sim"]
    done = subprocess.run(command, cwd=file.parent, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1
    assert done.stderr.endswith("dualray: Ray is not installed; --as-ray lets `import ray` import dualray\n")
