"""What Ray's own public tests and other suites import from here: conditions, signals, and programs of their own.

It keeps Ray's name when it is pickled, as a module of the user's: clocks and sleeps in it are those of the program.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import psutil
import ray
from ray.exceptions import RayActorError, RayError

from dualray.as_ray.refusals import refusing

__all__ = [
    "Semaphore",
    "SignalActor",
    "async_wait_for_condition",
    "is_named_tuple",
    "kill_actor_and_wait_for_failure",
    "run_string_as_driver",
    "wait_for_condition",
    "wait_for_pid_to_exit",
]


@ray.remote(num_cpus=0)
class SignalActor:
    """An actor for which others wait until somebody sends."""

    def __init__(self) -> None:
        self.ready_event = asyncio.Event()
        self.num_waiters = 0

    async def send(self, clear: bool = False) -> None:
        """Let all that wait go on, and those that come; with `clear`, those that wait alone."""
        self.ready_event.set()
        if clear:
            self.ready_event.clear()

    async def wait(self, should_wait: bool = True) -> None:
        """Return when it was sent."""
        if should_wait:
            self.num_waiters += 1
            await self.ready_event.wait()
            self.num_waiters -= 1

    async def cur_num_waiters(self) -> int:
        """How many wait now."""
        return self.num_waiters


@ray.remote(num_cpus=0)
class Semaphore:
    """An actor that lets `value` holders in at a time."""

    def __init__(self, value: int = 1) -> None:
        self._sema = asyncio.Semaphore(value=value)

    async def acquire(self) -> None:
        """Return when there is room."""
        await self._sema.acquire()

    async def release(self) -> None:
        """Give room back."""
        self._sema.release()

    async def locked(self) -> bool:
        """Whether there is no room."""
        return self._sema.locked()


def wait_for_condition(
    condition_predictor: Callable[..., bool],
    timeout: float = 10,
    retry_interval_ms: float = 100,
    raise_exceptions: bool = False,
    **kwargs: Any,
) -> None:
    """Call a function with `kwargs` until it returns something true.

    Args:
        condition_predictor: the function; that it raises counts as false, unless `raise_exceptions`.
        timeout: seconds.
        retry_interval_ms: milliseconds between two calls.
        raise_exceptions: let an exception of the function through.
        kwargs: its arguments.

    Raises:
        RuntimeError: it was not true in time; the message has its last exception.
    """
    last: Exception | None = None
    start = time.monotonic()
    while time.monotonic() - start <= timeout:
        try:
            if condition_predictor(**kwargs):
                return
        except Exception as error:
            if raise_exceptions:
                raise
            last = error
        time.sleep(retry_interval_ms / 1000.0)
    raise _not_met(timeout, last)


async def async_wait_for_condition(
    condition_predictor: Callable[..., Any],
    timeout: float = 10,  # noqa: ASYNC109 - Ray's name
    retry_interval_ms: float = 100,
    **kwargs: Any,
) -> None:
    """`wait_for_condition`, of a function or coroutine function, while the event loop goes on.

    Raises:
        RuntimeError: it was not true in time; the message has its last exception.
    """
    last: Exception | None = None
    start = time.monotonic()
    while time.monotonic() - start <= timeout:
        try:
            found = condition_predictor(**kwargs)
            if await found if inspect.isawaitable(found) else found:
                return
        except Exception as error:  # noqa: BLE001 - any may go by
            last = error
        await asyncio.sleep(retry_interval_ms / 1000.0)
    raise _not_met(timeout, last)


def _not_met(timeout: float, last: Exception | None) -> RuntimeError:
    why = f" Last exception: {type(last).__name__}: {last}" if last is not None else ""
    return RuntimeError(f"The condition wasn't met before the timeout of {timeout} s expired.{why}")


def wait_for_pid_to_exit(pid: int, timeout: float = 20) -> None:
    """Return when a process has ended.

    Raises:
        RuntimeError: it has not in time.
    """
    wait_for_condition(lambda: not _exists(pid), timeout=timeout)


def _exists(pid: int) -> bool:
    """Whether there is a process; a virtual one, in a simulation."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return bool(psutil.pid_exists(pid))
    return True


def kill_actor_and_wait_for_failure(actor: Any, timeout: float = 10, retry_interval_ms: float = 100) -> None:
    """Kill an actor for good, and return when its methods fail.

    Raises:
        RuntimeError: they do not in time.
    """
    ray.kill(actor)

    def has_failed() -> bool:
        try:
            ray.get(actor.__ray_ready__.remote(), timeout=1)
        except RayActorError:
            return True
        except RayError:
            return False
        return False

    wait_for_condition(has_failed, timeout, retry_interval_ms)


def run_string_as_driver(driver_script: str, env: dict[str, str] | None = None, encode: str = "utf-8") -> str:
    """What a program prints that runs in a process of its own, under the name `ray`, too.

    Args:
        driver_script: its text.
        env: its environment variables; by default those of this process.
        encode: how the text is encoded.

    Raises:
        subprocess.CalledProcessError: it has failed; `output` has what it printed.
    """
    finished = subprocess.run(
        [sys.executable, "-m", "dualray.as_ray", "-c", driver_script],
        env=dict(os.environ) if env is None else env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    printed = finished.stdout.decode(encode)
    if finished.returncode:
        sys.stdout.write(printed)
        raise subprocess.CalledProcessError(finished.returncode, finished.args, finished.stdout)
    return printed


def is_named_tuple(cls: type) -> bool:
    """Whether a class is one of `collections.namedtuple`."""
    fields = getattr(cls, "_fields", None)
    return cls.__bases__ == (tuple,) and isinstance(fields, tuple) and all(type(each) is str for each in fields)


__getattr__ = refusing("ray._common.test_utils")
