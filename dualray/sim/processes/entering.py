"""The scheduler enters and leaves a process whenever it runs one of its fibers.

Each process has a runtime, modules and an environment of its own, in which CUDA_VISIBLE_DEVICES says which GPUs it
holds: a worker that holds none sees none. Variables of other accelerators are there while it holds such.
OMP_NUM_THREADS says how many CPUs a worker's task holds, as in real mode, unless the program has said it.
"""

from __future__ import annotations

import os
import sys
from typing import Final

from dualray import runtime
from dualray.shared.model.resources import GPU_MASK
from dualray.sim.kernel.fibers import Fiber
from dualray.sim.processes.worker import UserProcess
from dualray.sim.usercode import library_draws, torch_modes
from dualray.sim.usercode.modules import SHOWN

_KEY: Final = os.fsencode(GPU_MASK)
_KEY_OF_THREADS: Final = b"OMP_NUM_THREADS"
_variables: Final[dict[bytes, bytes]] = os.environ._data  # type: ignore[attr-defined]  # looking there takes a tenth
_modules: Final = sys.modules
_putenv: Final = os.putenv
_unsetenv: Final = os.unsetenv
"""The system's, also while a simulation has put others in their place."""


def enter_process(fiber: Fiber) -> None:
    """User code runs: what it calls is its own process's runtime."""
    owner = fiber.owner
    assert isinstance(owner, UserProcess)
    show_gpus(owner.visible_gpus)
    threads = owner.library_threads
    if threads is not None and _variables.get(_KEY_OF_THREADS, b"") != threads:
        show_threads(threads)
    runtime.set_current(owner.runtime)
    if SHOWN.view is not owner.view:
        SHOWN.show(owner.view)
    if owner.environment is not None:
        owner.environment.enter()
    if owner.device_variables is not None:
        owner.device_variables.enter()
    if owner.streams is not None and fiber.streams is None:
        fiber.streams = owner.streams
    if "torch" in _modules or "tensorflow" in _modules:
        library_draws.put_in(fiber)
    if fiber.torch_mode is not None:
        torch_modes.put_back(fiber)


def leave_process(fiber: Fiber) -> None:
    """The kernel runs: nobody's runtime is current."""
    runtime.set_current(None)
    if "torch" in _modules:
        torch_modes.put_aside(fiber)
        library_draws.put_aside()
    elif "tensorflow" in _modules:
        library_draws.put_aside()
    owner = fiber.owner
    assert isinstance(owner, UserProcess)
    if owner.device_variables is not None:
        owner.device_variables.leave()
    if owner.environment is not None:
        owner.environment.leave()
    owner.visible_gpus = shown_gpus()


def show_gpus(mask: str | None) -> None:
    """Have the environment say which GPUs there are to see; None: nothing. Most fibers run after one that sees the
    same."""
    if mask is None:
        if _KEY in _variables:
            _unset(_KEY)
    elif _variables.get(_KEY) != os.fsencode(mask):
        _set(_KEY, os.fsencode(mask))


def show_threads(count: bytes) -> None:
    """Have the environment say how many threads a library may start; b"": nothing."""
    if count:
        _set(_KEY_OF_THREADS, count)
    elif _KEY_OF_THREADS in _variables:
        _unset(_KEY_OF_THREADS)


def _set(key: bytes, value: bytes) -> None:
    """As `os.environ` does, in a fifth of the time."""
    _variables[key] = value
    _putenv(key, value)


def _unset(key: bytes) -> None:
    del _variables[key]
    _unsetenv(key)


def are_threads_said() -> bool:
    """Whether the program has said how many threads a library may start."""
    return _KEY_OF_THREADS in _variables


def shown_gpus() -> str | None:
    """What the environment says now."""
    mask = _variables.get(_KEY)
    return None if mask is None else os.fsdecode(mask)
