"""The scheduler enters and leaves a process whenever it runs one of its fibers.

Each process has a runtime, modules and an environment of its own. Where there are GPUs, it also sees its own ones.
"""

from __future__ import annotations

import os

from dualray import runtime
from dualray.shared.model.resources import GPU_MASK
from dualray.sim.kernel.fibers import Fiber
from dualray.sim.processes.worker import UserProcess
from dualray.sim.usercode.modules import SHOWN


def enter_process(fiber: Fiber) -> None:
    """User code runs: what it calls is its own process's runtime."""
    owner = fiber.owner
    assert isinstance(owner, UserProcess)
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


def enter_process_with_gpus(fiber: Fiber) -> None:
    """What the environment says of GPUs is each process's own."""
    owner = fiber.owner
    assert isinstance(owner, UserProcess)
    show_gpus(owner.visible_gpus)
    enter_process(fiber)


def show_gpus(mask: str | None) -> None:
    """Have the environment say which GPUs there are to see; None: nothing."""
    if mask is None:
        os.environ.pop(GPU_MASK, None)
    else:
        os.environ[GPU_MASK] = mask


def leave_process_with_gpus(fiber: Fiber) -> None:
    leave_process(fiber)
    owner = fiber.owner
    assert isinstance(owner, UserProcess)
    owner.visible_gpus = os.environ.get(GPU_MASK)
