"""The scheduler enters and leaves a process whenever it runs one of its fibers.

Each process has a runtime, modules and an environment of its own, in which CUDA_VISIBLE_DEVICES says which GPUs it
holds: a worker that holds none sees none.
"""

from __future__ import annotations

import os
from typing import Final

from dualray import runtime
from dualray.shared.model.resources import GPU_MASK
from dualray.sim.kernel.fibers import Fiber
from dualray.sim.processes.worker import UserProcess
from dualray.sim.usercode.modules import SHOWN

_KEY: Final = os.fsencode(GPU_MASK)
_variables: Final[dict[bytes, bytes]] = os.environ._data  # type: ignore[attr-defined]  # looking there takes a tenth


def enter_process(fiber: Fiber) -> None:
    """User code runs: what it calls is its own process's runtime."""
    owner = fiber.owner
    assert isinstance(owner, UserProcess)
    show_gpus(owner.visible_gpus)
    runtime.set_current(owner.runtime)
    if SHOWN.view is not owner.view:
        SHOWN.show(owner.view)
    if owner.environment is not None:
        owner.environment.enter()


def leave_process(fiber: Fiber) -> None:
    """The kernel runs: nobody's runtime is current."""
    runtime.set_current(None)
    owner = fiber.owner
    assert isinstance(owner, UserProcess)
    if owner.environment is not None:
        owner.environment.leave()
    owner.visible_gpus = shown_gpus()


def show_gpus(mask: str | None) -> None:
    """Have the environment say which GPUs there are to see; None: nothing. Most fibers run after one that sees the
    same."""
    if mask is None:
        if _KEY in _variables:
            del os.environ[GPU_MASK]
    elif _variables.get(_KEY) != os.fsencode(mask):
        os.environ[GPU_MASK] = mask


def shown_gpus() -> str | None:
    """What the environment says now."""
    mask = _variables.get(_KEY)
    return None if mask is None else os.fsdecode(mask)
