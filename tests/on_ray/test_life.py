"""Connections: adopted ones stay, own ones end; what a driver leaves behind is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from typing import Any

import pytest

import dualray
from tests.conformance.support import eventually, get

DRIVER = """
import dualray, time
dualray.init(mode="ray", address={address!r}, namespace="life", log_to_driver=False)

@dualray.remote(num_cpus=0.1)
class Named:
    def ping(self):
        return 1

kept = Named.options(name="kept", lifetime="detached", get_if_exists=True).remote()
gone = Named.options(name="gone").remote()
print(dualray.get([kept.ping.remote(), gone.ping.remote()]), flush=True)
time.sleep({sleep})
"""


def run_driver(address: str, sleep: float) -> subprocess.Popen[str]:
    program = textwrap.dedent(DRIVER).format(address=address, sleep=sleep)
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", program],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path) or "."},
    )


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_driver_that_ends_leaves_detached_actors_alone(ray_head: str, how: signal.Signals):
    with run_driver(ray_head, 100) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "[1, 1]\n"
        driver.send_signal(how)
        driver.wait(30)
    dualray.init(mode="ray", address=ray_head, namespace="life", log_to_driver=False)
    try:
        assert get(dualray.get_actor("kept").ping.remote()) == 1
        eventually(lambda: not is_there("gone"), "the actor of the dead driver is gone")
        dualray.kill(dualray.get_actor("kept"))
        eventually(lambda: not is_there("kept"), "the detached actor is gone")
    finally:
        dualray.shutdown()


def is_there(name: str) -> bool:
    try:
        dualray.get_actor(name)
    except ValueError:
        return False
    return True


def test_a_connection_that_is_there_is_adopted_and_left(ray_head: str):
    import ray

    ray.init(address=ray_head, log_to_driver=False)
    try:
        context = dualray.init(mode="ray")
        assert context["address"] == ray.get_runtime_context().gcs_address
        ref = dualray.put(1)
        dualray.shutdown()
        assert ray.is_initialized()
        with pytest.raises(dualray.exceptions.DualrayError, match="shut down"):
            dualray.get(ref)

        @ray.remote
        def inside() -> Any:
            dualray.init(mode="ray")
            value = dualray.get(dualray.put(5))
            dualray.shutdown()
            return value, ray.is_initialized()

        assert ray.get(inside.remote(), timeout=60) == (5, True)
    finally:
        ray.shutdown()


def test_a_second_init_starts_anew(on_ray: Any, ray_head: str):
    with pytest.raises(dualray.exceptions.AlreadyInitializedError):
        dualray.init(mode="ray", address=ray_head)

    @dualray.remote(num_cpus=0)
    class Named:
        def ping(self) -> int:
            return 1

    actor = Named.options(name="of the first").remote()
    assert get(actor.ping.remote()) == 1
    namespace = dualray.get_runtime_context().namespace
    dualray.shutdown()
    dualray.init(mode="ray", address=ray_head, namespace=namespace, log_to_driver=False)
    eventually(lambda: not is_there("of the first"), "the actor of the first connection is gone")
    with pytest.raises(dualray.exceptions.DualrayError, match="shut down"):
        actor.ping.remote()
