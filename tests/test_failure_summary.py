"""The summary at the end of a failed run of pytest. The tests run pytest on test files of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.failure_summary import LINES_MAX, Failure, summary_lines

_CONFTEST = """
import pytest
from tests.failure_summary import FailureSummary

def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(FailureSummary(config))
"""
_FAILS = """
import pytest

def test_sum():
    total = 1 + 1
    assert total == 3, "not three"

def test_other():
    pass
"""
_FAILS_AROUND = """
@pytest.fixture
def before():
    raise OSError("no disk")

@pytest.fixture
def after():
    yield
    raise OSError("disk is full")

def test_before(before):
    pass

def test_after(after):
    pass
"""


def _summary(directory: Path, test: str, *arguments: str, conftest: str = "") -> list[str]:
    """The last lines that pytest prints for one test file."""
    (directory / "conftest.py").write_text(_CONFTEST + conftest)
    (directory / "test_it.py").write_text(test)
    command = [sys.executable, "-m", "pytest", "-p", "xdist", "--rootdir", ".", "-c", os.devnull, *arguments]
    path = os.pathsep.join(path for path in sys.path if path)
    environment = os.environ | {"PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    process = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode in (1, 2, 3), process.stdout + process.stderr
    return process.stdout.splitlines()[-LINES_MAX:]


def test_failed_tests_are_named_last_with_place_and_error(tmp_path):
    lines = _summary(tmp_path, _FAILS + _FAILS_AROUND, "-n", "0")
    heading = lines.index("3 failed:")
    title, place, first, second, *around = (line.strip() for line in lines[heading + 1 :])
    assert title == "test_it.py::test_sum"
    assert place.endswith("test_it.py:6")
    assert (first, second) == ("AssertionError: not three", "assert 2 == 3")
    assert [around[0], around[2]] == ["test_it.py::test_before (setup)", "OSError: no disk"]
    assert [around[3], around[5]] == ["test_it.py::test_after (teardown)", "OSError: disk is full"]


def test_a_worker_of_xdist_that_dies_is_named_with_its_test(tmp_path):
    dies = "\nimport os\n\ndef test_dies():\n    os._exit(9)\n"
    lines = _summary(tmp_path, _FAILS + dies, "-n", "1")
    assert lines[-8:-6] == ["2 failed:", "test_it.py::test_sum"]
    assert lines[-3] == "test_it.py::test_dies"
    assert "crashed while running" in lines[-1]


def test_an_internal_error_names_the_test_that_ran(tmp_path):
    fails = "\n@pytest.hookimpl(wrapper=True)\ndef pytest_runtest_makereport(item):\n    yield\n    1 / 0\n"
    lines = _summary(tmp_path, _FAILS, "-n", "1", conftest=fails)
    titles = [line for line in lines if line.startswith("internal error of pytest")]
    assert titles[0] == "internal error of pytest, while test_it.py::test_sum ran"
    assert "ZeroDivisionError: division by zero" in " ".join(lines[lines.index(titles[0]) :])


def test_a_file_that_cannot_be_collected_is_named(tmp_path):
    *_, heading, title, _place, error = _summary(tmp_path, "raise OSError('no disk')\n", "-n", "0")
    assert (heading, title) == ("1 failed:", "test_it.py (collection)")
    assert error.strip().endswith("OSError: no disk")


def test_many_failures_and_long_errors_fit():
    text = tuple(str(number) for number in range(1000))
    one = summary_lines([Failure("a", text)])
    assert len(one) <= LINES_MAX
    assert [one[2].strip(), one[-1].strip()] == ["0", "999"]
    many = summary_lines([Failure(f"test {number}", text) for number in range(50)])
    assert len(many) <= LINES_MAX
    assert many[:3] == ["50 failed:", "test 0", "    999"]
    assert many[-1] == "and 33 more"
