"""`@simtest` and the pytest plugin, used as a user uses them."""

import re
import subprocess
import sys
import textwrap
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import dualray
from dualray.testing import SimtestFailure, simtest


@dualray.remote(max_retries=-1, duration=0.3)
def square(number):
    return number * number


@simtest(seeds=8, nodes=4, num_cpus=2, faults=["kill node-2 when square starts 5", "kill worker when square starts 3"])
def test_tasks_survive_a_lost_node_and_a_lost_worker():
    assert dualray.get([square.remote(number) for number in range(12)]) == [number**2 for number in range(12)]
    assert [row["NodeID"] for row in dualray.nodes()] == ["node-0", "node-1", "node-2", "node-3"]


def test_what_a_seed_cannot_survive_is_told_with_the_faults_and_the_way_to_repeat_it():
    @simtest(seeds=5, nodes=3, num_cpus=1, faults=["kill worker when once starts 1"])
    def fragile():
        once = dualray.remote(lambda: 1).options(max_retries=0, name="once")
        assert dualray.get(once.remote()) == 1

    with pytest.raises(SimtestFailure) as failed:
        fragile()
    words = str(failed.value)
    assert words.startswith("seed 0 fails: WorkerCrashedError: ")
    assert "\nfaults:\n  kill worker when once starts 1\nrepeat it: pytest -k fragile --dualray-replay 0" in words
    assert not dualray.is_initialized()


def test_a_test_that_fails_without_faults_is_no_finding_of_a_seed():
    @simtest(seeds=5)
    def wrong():
        raise KeyError("oops")

    with pytest.raises(SimtestFailure, match=r"^KeyError: 'oops'"):
        wrong()


def test_the_plugin_replays_one_seed_and_shrinks(tmp_path):
    (tmp_path / "test_user.py").write_text(
        textwrap.dedent("""
            import dualray
            from dualray.testing import simtest

            ran = []

            @simtest(seeds=50, nodes=3, num_cpus=1, faults=["slow node-1 by 2 at 0s", "kill worker when f starts 2"])
            def test_fragile():
                f = dualray.remote(lambda: 1).options(max_retries=0, name="f")
                assert dualray.get([f.remote() for _ in range(3)]) == [1, 1, 1]

            @simtest(seeds=50, faults=[])
            def test_counts():
                ran.append(dualray.is_initialized())

            def test_ran():
                assert len(ran) == 1 + 3
        """)
    )
    options = ["-p", "no:cacheprovider", "-q", "-c", "/dev/null"]

    def pytest_says(*more):
        command = [sys.executable, "-m", "pytest", *options, *more, str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=tmp_path)
        return done.stdout + done.stderr

    words = pytest_says("--dualray-seeds", "3", "--dualray-shrink")
    assert "1 failed, 2 passed" in words
    assert "seed 0 fails: WorkerCrashedError" in words
    assert "faults:\n" in words.replace("E           ", "").replace("E       ", "")
    assert "kill worker when f starts" in words
    assert "slow node-1" not in words.partition("seed 0 fails")[2].partition("repeat it")[0]
    said = words.replace("E           ", "").replace("E       ", "")
    repeat = re.search(r"--dualray-faults '(.*?)'", said)
    assert repeat is not None
    assert "slow node-1" not in repeat[1]
    assert "what happened (times since the start of the first node):" in words
    assert "f, task " in words
    assert "seed 7 fails" in pytest_says("--dualray-replay", "7", "--dualray-faults", repeat[1], "-k", "fragile")
    assert "1 passed" in pytest_says("--dualray-replay", "7", "--dualray-faults", "", "-k", "fragile")
    assert "--dualray-faults: fault 'kill' is not understood" in pytest_says("--dualray-faults", "kill")
    assert "seed 7 fails" in pytest_says("--dualray-replay", "7", "-k", "fragile")


@pytest.mark.parametrize("option", ["--dualray-faults", "--dualray-replay"])
def test_options_that_change_no_collected_test_are_refused(tmp_path, option):
    (tmp_path / "test_user.py").write_text("def test_plain():\n    assert True\n")
    value = "kill worker when f starts 2" if option == "--dualray-faults" else "3"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-c", "/dev/null", option, value]
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, timeout=100, cwd=tmp_path)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    words = f"{option} changes only tests under @simtest, and no collected test is one"
    assert words in done.stdout + done.stderr
    done = subprocess.run([*command, "-n1", str(tmp_path)], capture_output=True, text=True, timeout=100, cwd=tmp_path)
    assert done.returncode == 0
    assert words in done.stdout


def test_a_test_that_runs_on_the_installed_ray_is_told_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: True))

    @simtest(seeds=2, nodes=2)
    def runs_elsewhere():
        pass

    with pytest.raises(SimtestFailure, match=r"ran on the installed Ray, .*--dualray-as-ray"):
        runs_elsewhere()


def test_shrinking_keeps_to_one_failure_and_the_faults_are_said(monkeypatch):
    monkeypatch.setenv("PYTEST_DUALRAY_SHRINK", "1")

    @dualray.remote(max_retries=0, num_cpus=1)
    def work(number):
        time.sleep(0.5)
        return number

    @simtest(seeds=1, nodes=3, num_cpus=1, faults=["kill worker when work starts 1", "kill worker when work starts 2"])
    def fails_in_two_ways():
        lost = 0
        for number in range(2):
            try:
                dualray.get(work.remote(number))
            except dualray.exceptions.WorkerCrashedError:
                lost += 1
        if lost == 2:
            raise KeyError("both")
        assert not lost  # each of the faults alone fails here

    with pytest.raises(SimtestFailure) as failed:
        fails_in_two_ways()
    words = str(failed.value)
    assert "seed 0 fails: KeyError" in words
    both = ("kill worker when work starts 1", "kill worker when work starts 2")
    assert f"\nfaults:\n  {both[0]}\n  {both[1]}\n" in words
    assert f"--dualray-faults '{both[0]}; {both[1]}'" in words


def test_the_faults_of_a_seed_are_in_the_line_that_repeats_it():
    words = found_in(a_task_that_is_not_idempotent_counts_twice)
    repeat = re.search(r"--dualray-replay \d+ --dualray-faults '(.*?)'", words)
    assert repeat is not None
    faults = words.partition("faults:\n")[2].partition("repeat it")[0].split("\n")
    assert [each.strip() for each in repeat[1].split(";")] == [each.strip() for each in faults if each.strip()]


def test_faults_that_never_happen_are_said():
    @simtest(seeds=2, nodes=3, faults=["kill node-1 at 90s", "kill node-2 at 1ms"])
    def ends_soon():
        dualray.get(dualray.remote(lambda: 1).remote())

    with pytest.raises(
        SimtestFailure, match=r"did not happen with any seed: kill node-1 at 90s\. Either the test ended"
    ):
        ends_soon()


def test_faults_that_are_not_understood_are_refused_at_once():
    with pytest.raises(ValueError, match="faults='swarms' must be 'swarm', or a list"):
        simtest(faults="swarms")
    with pytest.raises(ValueError, match="kil node-1"):
        simtest(faults=["kil node-1 at 3s"])


# ---- bugs that only a death in the middle of a task shows --------------------------------------------------------

SEEDS = 50


def found_in(test, **settings):
    """The seed in which a program with a bug fails, and how."""
    decorated = simtest(seeds=SEEDS, nodes=3, num_cpus=2, **settings)(test)
    with pytest.raises(SimtestFailure, match=r"^seed \d+ fails") as failed:
        decorated()
    return str(failed.value)


@dualray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)
class Table:
    """What several tasks share, on the driver's node as any other."""

    def __init__(self):
        self.holder = None
        self.rows = {}

    def take(self, name):
        if self.holder in (None, name):
            self.holder = name
        return self.holder == name

    def give_back(self):
        self.holder = None

    def put(self, key, value):
        self.rows[key] = value

    def add(self, key, amount):
        self.rows[key] = self.rows.get(key, 0) + amount

    def get(self, key):
        return self.rows.get(key, 0)


def remote_table():
    made: Any = Table
    return made.options(max_restarts=0).remote()


def a_holder_of_a_lock_dies_while_it_works():
    @dualray.remote(max_retries=0)
    def locked(table, name):
        for _ in range(100):
            if dualray.get(table.take.remote(name)):
                break
            time.sleep(0.05)
        else:
            return "never had the lock"
        time.sleep(0.2)
        dualray.get(table.give_back.remote())
        return "done"

    table = remote_table()
    for ref in [locked.remote(table, name) for name in range(3)]:
        try:
            assert dualray.get(ref) == "done"
        except dualray.exceptions.DualrayError:
            pass  # this one has died: the others must be able to go on


def a_task_that_is_not_idempotent_counts_twice():
    @dualray.remote(max_retries=-1)
    def transfer(table):
        dualray.get(table.add.remote("from", -1))
        time.sleep(0.2)
        dualray.get(table.add.remote("to", 1))

    table = remote_table()
    try:
        dualray.get([transfer.remote(table) for _ in range(4)])
        rows = dualray.get([table.get.remote("from"), table.get.remote("to")])
    except dualray.exceptions.DualrayError:
        return
    assert rows == [-4, 4]


def an_object_is_made_again_with_another_value_between_two_readers():
    @dualray.remote(max_retries=-1)
    def drawn():
        return np.full(300_000, time.time())  # another one in each attempt

    @dualray.remote(max_retries=-1)
    def read(values, wait_s):
        time.sleep(wait_s)
        return float(values[0])

    ref = drawn.remote()
    first = dualray.get(read.remote(ref, 0.0))
    time.sleep(0.5)
    try:
        assert dualray.get(read.remote(ref, 0.0)) == first
    except dualray.exceptions.DualrayError:
        return


def a_file_is_left_half_written(tmp_path):
    path = tmp_path / "written"

    @dualray.remote(max_retries=0)
    def write():
        with path.open("a") as file:
            for number in range(4):
                file.write(f"{number}\n")
                file.flush()
                time.sleep(0.1)

    path.unlink(missing_ok=True)
    try:
        dualray.get(write.remote())
    except dualray.exceptions.DualrayError:
        pass  # "it has failed: there is nothing", the program believes
    lines = path.read_text().split() if path.exists() else []
    assert lines in ([], ["0", "1", "2", "3"])


def a_claim_of_a_worker_that_died_is_never_taken_over():
    @dualray.remote(max_retries=-1)
    def once(table, part):
        claimed = dualray.get(table.get.remote(f"claim {part}"))
        if claimed:  # by somebody who works on it, surely
            return 0
        dualray.get(table.put.remote(f"claim {part}", 1))
        time.sleep(0.3)
        return 1

    table = remote_table()
    try:
        done = dualray.get([once.remote(table, part) for part in range(4)])
    except dualray.exceptions.DualrayError:
        return
    assert done == [1, 1, 1, 1]


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(a_holder_of_a_lock_dies_while_it_works, marks=pytest.mark.slow),
        a_task_that_is_not_idempotent_counts_twice,
        an_object_is_made_again_with_another_value_between_two_readers,
        a_claim_of_a_worker_that_died_is_never_taken_over,
    ],
)
def test_a_bug_that_only_a_death_in_the_middle_shows_is_found(program):
    assert "AssertionError" in found_in(program)


def test_a_file_that_is_left_half_written_is_found(tmp_path):
    def a_file_is_left() -> None:
        a_file_is_left_half_written(tmp_path)

    words = found_in(a_file_is_left)
    assert "AssertionError" in words
    assert "kill worker when write starts 1 after " in words
