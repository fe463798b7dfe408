from __future__ import annotations

import os
import signal
import socket
import sys

import numpy as np
import psutil
import pytest

import dualray as ray
from dualray.exceptions import DualrayError, TaskError, WorkerCrashedError
from tests.conformance.support import MIB, eventually, get, in_words, is_on_ray

pytestmark = pytest.mark.usefixtures("cluster")


def exit_at_once():
    os._exit(3)


def kill_oneself():
    os.kill(os.getpid(), signal.SIGKILL)


def leave():
    sys.exit(7)


def raise_it():
    raise SystemExit(5)


ends = pytest.mark.parametrize(
    ("end", "words"),
    [
        (exit_at_once, "exited with code 3"),
        (kill_oneself, "SIGKILL"),
        (leave, "exited with code 7"),
        (raise_it, "exited with code 5"),
    ],
    ids=["os._exit", "SIGKILL", "sys.exit", "SystemExit"],
)


@ray.remote
def die(end, tally):
    tally.add(ray.get_runtime_context().get_attempt())
    end()


@ray.remote
def survive_at(attempt, end, tally):
    tally.add(ray.get_runtime_context().get_attempt())
    if ray.get_runtime_context().get_attempt() < attempt:
        end()
    return "alive"


@ray.remote
def echo(value):
    return value


@ends
def test_a_task_whose_worker_dies_is_tried_again_max_retries_times(end, words, tally):
    with pytest.raises(WorkerCrashedError):
        get(die.options(max_retries=2).remote(end, tally))
    assert tally.notes == ["0", "1", "2"]


def test_three_retries_are_the_default(tally):
    with pytest.raises(WorkerCrashedError):
        get(die.remote(exit_at_once, tally))
    assert tally.count == 4


@ends
def test_the_error_names_function_and_exit(end, words, tally):
    with pytest.raises(WorkerCrashedError) as caught:
        get(die.options(max_retries=1).remote(end, tally))
    message = str(caught.value)
    for each in (words, "die (task ", "tried 2 times"):
        assert in_words(each) in message
    assert isinstance(caught.value, DualrayError)
    assert not isinstance(caught.value, TaskError)


def test_without_retries_the_task_runs_once(tally):
    with pytest.raises(WorkerCrashedError):
        get(die.options(max_retries=0).remote(exit_at_once, tally))
    assert tally.count == 1


@ends
def test_a_retry_that_succeeds_is_the_result(end, words, tally):
    assert get(survive_at.remote(2, end, tally)) == "alive"
    assert tally.notes == ["0", "1", "2"]


def test_minus_one_means_retries_without_end(tally):
    assert get(survive_at.options(max_retries=-1).remote(6, exit_at_once, tally)) == "alive"
    assert tally.count == 7


def test_every_result_of_a_crashed_task_has_the_error(tally):
    for ref in die.options(max_retries=0, num_returns=2).remote(exit_at_once, tally):
        with pytest.raises(WorkerCrashedError):
            get(ref)


def test_what_depends_on_a_crashed_task_has_its_error(tally):
    lost = die.options(max_retries=0).remote(exit_at_once, tally)
    with pytest.raises(WorkerCrashedError, match=in_words("exited with code 3")):
        get(echo.remote(lost))


def test_others_do_not_notice(tally):
    others = [echo.remote(index) for index in range(20)]
    crashed = [die.options(max_retries=1).remote(exit_at_once, tally) for _ in range(3)]
    more = [echo.remote(index) for index in range(20, 40)]
    assert get(others + more) == list(range(40))
    for ref in crashed:
        with pytest.raises(WorkerCrashedError):
            get(ref)
    assert tally.count == 6


def test_results_outlive_the_worker_that_made_them(tally):
    @ray.remote
    def make():
        return np.arange(MIB), "small"

    large = make.remote()
    small = echo.remote("value")
    ray.wait([large, small], num_returns=2, timeout=10)
    for _ in range(3):
        with pytest.raises(WorkerCrashedError):
            get(die.options(max_retries=0).remote(exit_at_once, tally))
    array, text = get(large)
    assert (array == np.arange(MIB)).all()
    assert (text, get(small)) == ("small", "value")


def test_arguments_are_there_for_a_retry(tally):
    @ray.remote
    def add_up(large, small, inside):
        tally.add()
        if tally.count < 3:
            os._exit(1)
        return float(large.sum()) + small + ray.get(inside[0], timeout=10)

    assert get(add_up.remote(np.ones(MIB), ray.put(2), [ray.put(3)])) == MIB + 5


def test_children_of_a_dead_parent_do_not_disturb_its_retry(tally):
    @ray.remote
    def parent():
        children = [echo.remote(index) for index in range(4)]
        if tally.add() == 1:
            os._exit(1)
        return ray.get(children, timeout=10)

    assert get(parent.remote()) == [0, 1, 2, 3]


class Stop(BaseException):
    """As a library raises that lets no `except Exception` hold it up."""


def test_a_base_exception_is_an_error_of_its_task():
    @ray.remote(num_cpus=1)
    def stop():
        raise Stop("now")

    with pytest.raises(Stop) as caught:
        get(stop.remote())
    assert isinstance(caught.value, TaskError)
    assert get(echo.remote(1)) == 1


def test_an_actor_survives_a_base_exception():
    @ray.remote
    class Stopping:
        def __init__(self):
            self.calls = 0

        def stop(self):
            self.calls += 1
            raise Stop("now")

        def count(self):
            return self.calls

    @ray.remote
    class Awaiting:
        async def stop(self):
            raise Stop("now")

    actor = Stopping.remote()
    for ref in (actor.stop.remote(), Awaiting.remote().stop.remote()):
        with pytest.raises(Stop):
            get(ref)
    assert get(actor.count.remote()) == 1


def test_a_base_exception_ends_a_generator():
    @ray.remote
    def stop_at(last):
        yield from range(last)
        raise Stop("now")

    items = stop_at.remote(2)
    assert [get(next(items)) for _ in range(2)] == [0, 1]
    with pytest.raises(Stop):
        get(next(items))


# ---- retry_exceptions ----------------------------------------------------------------------------------------------


@ray.remote
def raise_before(attempt, tally):
    tally.add()
    if ray.get_runtime_context().get_attempt() < attempt:
        raise ValueError(f"attempt {ray.get_runtime_context().get_attempt()}")
    return "done"


def test_an_exception_is_not_retried(tally):
    with pytest.raises(ValueError, match="attempt 0"):
        get(raise_before.remote(1, tally))
    assert tally.count == 1


def test_retry_exceptions_retries_exceptions_too(tally):
    assert get(raise_before.options(retry_exceptions=True).remote(2, tally)) == "done"
    assert tally.count == 3


def test_after_the_last_retry_the_exception_is_raised(tally):
    with pytest.raises(ValueError, match="attempt 1") as caught:
        get(raise_before.options(retry_exceptions=True, max_retries=1).remote(9, tally))
    assert isinstance(caught.value, TaskError)
    assert tally.count == 2


# ---- Signals that a program sends to its workers  ------------------------------------------------------------------


@ray.remote(max_restarts=1, max_task_retries=1)
class Victim:
    def pid(self):
        return os.getpid()

    def address(self):
        return socket.gethostbyname(socket.gethostname())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_program_kills_a_worker_by_its_pid(number):
    victim = Victim.remote()
    pid = get(victim.pid.remote())
    os.kill(pid, 0)
    os.kill(pid, number)
    eventually(lambda: get(victim.pid.remote()) != pid, "the actor has another process")
    assert pid != os.getpid()
    if is_on_ray():  # the next process is there before the last one is gone
        eventually(lambda: not psutil.pid_exists(pid), "the process is gone")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def test_a_task_kills_a_worker_by_its_pid():
    @ray.remote
    def kill(pid):
        os.kill(pid, signal.SIGKILL)

    victim = Victim.remote()
    pid = get(victim.pid.remote())
    get(kill.remote(pid))
    eventually(lambda: get(victim.pid.remote()) != pid, "the actor has another process")


def test_host_names_resolve():
    assert get(Victim.remote().address.remote()).count(".") == 3
