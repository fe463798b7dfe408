"""`psutil` finds the processes of tasks and actors by the pids that these have, in both modes."""

from __future__ import annotations

import os

import psutil
import pytest

import dualray as ray
from dualray.exceptions import ActorDiedError
from tests.conformance.support import eventually, get

pytestmark = pytest.mark.usefixtures("cluster")


@ray.remote
class Actor:
    def pid(self):
        return os.getpid()


def test_a_task_asks_of_its_own_process():
    @ray.remote
    def ask():
        own = psutil.Process(os.getpid())
        known = own.pid == os.getpid(), own.is_running(), psutil.pid_exists(own.pid)
        return *known, own.memory_info().rss > 0, own == psutil.Process(own.pid)

    assert get(ask.remote()) == (True,) * 5


def test_the_driver_ends_a_worker():
    actor = Actor.remote()
    worker = psutil.Process(get(actor.pid.remote()))
    assert worker.is_running()
    worker.kill()
    with pytest.raises(ActorDiedError):
        get(actor.pid.remote())
    eventually(lambda: not worker.is_running(), "the process is gone")
    assert not psutil.pid_exists(worker.pid)
    with pytest.raises(psutil.NoSuchProcess):
        psutil.Process(worker.pid)
