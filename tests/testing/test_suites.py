"""`pytest --dualray-mode sim --dualray-seeds N` runs a suite that nobody has edited with many seeds and faults."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SUITE = {
    "conftest.py": """\
import pytest
import ray


@pytest.fixture(scope="session")
def cluster():
    ray.init(num_cpus=2)
    yield
    ray.shutdown()
""",
    "test_totals.py": """\
import os
import time

import pytest
import ray


@ray.remote
class Total:
    def __init__(self):
        self.amount = 0

    def add(self, amount):
        self.amount += amount

    def read(self):
        return self.amount


@ray.remote(max_retries=-1)
def load(total, amount):
    ray.get(total.add.remote(amount))
    time.sleep(0.2)


def test_every_amount_counts_once(cluster):
    total = Total.options(max_restarts=-1, max_task_retries=-1).remote()
    ray.get([load.remote(total, amount) for amount in range(4)])
    assert ray.get(total.read.remote()) == 6


def test_sum(cluster):
    assert ray.get(ray.remote(sum).remote([1, 2])) == 3


@pytest.mark.skip(reason="not now")
def test_later():
    raise AssertionError


@pytest.mark.xfail(strict=True)
def test_known(cluster):
    assert ray.get(ray.remote(sum).remote([1, 2])) == 4


@pytest.mark.parametrize("number", [1, 2])
def test_seed(cluster, number):
    with open(os.environ["SEEN"], "a") as file:
        file.write(f"{number} {ray.get(ray.remote(os.urandom).remote(4)).hex()}\\n")
""",
}

LOG = """\
import time

import ray


@ray.remote(max_restarts=-1, max_task_retries=-1)
class Log:
    def __init__(self):
        self.lines = []

    def write(self, line):
        self.lines.append(line)

    def read(self):
        return self.lines


@ray.remote
def work(log):
    log.write.remote("begins")
    time.sleep(0.02)


def test_work_is_in_the_log(cluster):
    log = Log.remote()
    assert ray.get(log.read.remote()) == []
    ray.get(work.remote(log))
    assert ray.get(log.read.remote()) in (["begins"], ["begins", "begins"])
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    for name, text in SUITE.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def run(suite: Path, *options: str, status: int) -> str:
    """What pytest prints."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(suite), *options]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "SEEN": str(suite / "seen")}
    done = subprocess.run(command, cwd=suite, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


SIM = ("--dualray-as-ray", "--dualray-mode", "sim", "--dualray-nodes", "3")


def test_a_suite_fails_with_some_seeds_and_says_how_to_repeat_it(suite):
    printed = run(suite, *SIM, "--dualray-seeds", "20", "--dualray-faults", "swarm", "--dualray-shrink", status=1)
    assert "1 failed, 3 passed, 1 skipped, 1 xfailed" in printed
    assert re.search(r"test_totals.py::test_every_amount_counts_once: [0-9]+ of 20", printed)
    (repeat,) = re.findall(r"seed [0-9]+ fails with these faults:\n(?:  .+\n)+repeat it: pytest (.*)", printed)
    assert "what happened (times since the start of the first node):" in printed
    again = run(suite, *shlex.split(repeat), status=1)
    assert "assert ray.get(total.read.remote()) == 6" in again
    assert "1 of 1 seeds fail" in again


def test_a_call_that_nobody_waits_for_is_found(suite):
    (suite / "test_log.py").write_text(LOG)
    printed = run(
        suite, *SIM, "--dualray-seeds", "60", "--dualray-faults", "swarm", "--dualray-shrink", "test_log.py", status=1
    )
    (repeat,) = re.findall(r"fails with these faults:\n  hold call when .+\nrepeat it: pytest (.*)", printed)
    again = run(suite, *shlex.split(repeat), status=1)
    assert "1 of 1 seeds fail" in again
    assert re.search(r"Log.write, task .*\n(.*\n)+.*The actor runs Log.read, which driver-1 called later\.\n", again)


def test_each_test_sees_each_seed(suite):
    run(suite, *SIM, "--dualray-seeds", "3", "-k", "test_seed", "-n", "1", status=0)
    seen = (suite / "seen").read_text().splitlines()
    assert len(seen) == 6
    assert len({line.split()[1] for line in seen}) >= 3
    (suite / "seen").unlink()
    run(suite, *SIM, "--dualray-replay", "1", "-k", "test_seed", status=0)
    assert (suite / "seen").read_text().splitlines() == [seen[1], seen[4]]


def test_in_how_many_tests_the_faults_of_a_file_have_happened_is_said(suite):
    faults = "# each in a line\nkill worker when load starts 2 after 100ms\nkill actor Book at 1s  # there is none\n"
    (suite / "faults.txt").write_text(faults)
    printed = run(suite, *SIM, "--dualray-faults", "faults.txt", "--dualray-seeds", "2", status=1)
    assert "test_totals.py::test_every_amount_counts_once: 2 of 2" in printed
    assert "dualray: faults that happened" in printed
    assert "\nkill actor Book at 1s: in no test\n" in printed
    assert "\nkill worker when load starts 2 after 0.1s: in 1 test\n" in printed


def test_many_faults_are_not_taken_for_the_name_of_a_file(suite):
    faults = "; ".join(f"kill worker when nobody starts {number}" for number in range(1, 20))
    assert "1 passed" in run(
        suite, *SIM, "--dualray-replay", "1", "--dualray-faults", faults, "-k", "test_sum", status=0
    )


def test_without_sim_mode_the_options_are_refused(suite):
    printed = run(suite, "--dualray-as-ray", "--dualray-replay", "1", "-k", "test_sum", status=4)
    assert "--dualray-replay changes only tests under @simtest" in printed
    assert "add --dualray-mode sim" in printed
