"""`@simtest` and the pytest plugin, used as a user uses them."""

import re
import subprocess
import sys
import textwrap

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
    assert "what happened (times from the first submission):" in words
    assert "f, task " in words
    assert "seed 7 fails" in pytest_says("--dualray-replay", "7", "--dualray-faults", repeat[1], "-k", "fragile")
    assert "1 passed" in pytest_says("--dualray-replay", "7", "--dualray-faults", "", "-k", "fragile")
    assert "--dualray-faults: fault 'kill' is not understood" in pytest_says("--dualray-faults", "kill")
    assert "seed 7 fails" in pytest_says("--dualray-replay", "7", "-k", "fragile")


def test_faults_that_never_happen_are_said():
    @simtest(seeds=2, nodes=3, faults=["kill node-1 at 90s", "kill node-2 at 1ms"])
    def ends_soon():
        dualray.get(dualray.remote(lambda: 1).remote())

    with pytest.raises(
        SimtestFailure, match="these faults happened in no seed: kill node-1 at 90s; the test had ended"
    ):
        ends_soon()


def test_faults_that_are_not_understood_are_refused_at_once():
    with pytest.raises(ValueError, match="faults='swarms' must be 'swarm', or a list"):
        simtest(faults="swarms")
    with pytest.raises(ValueError, match="kil node-1"):
        simtest(faults=["kil node-1 at 3s"])
