"""PyTorch's `no_grad` and `inference_mode` belong to the process that has entered them.

PyTorch keeps both for each thread, of which all virtual processes have one: without this, a task would run without
gradients while the driver waits for it within `with torch.no_grad():`.
"""

from __future__ import annotations

import sys

from dualray.sim.kernel.fibers import Fiber

__all__ = ["put_aside", "put_back"]

_NO_GRAD = object()
_modules = sys.modules


def put_aside(fiber: Fiber) -> None:
    """Keep the modes of a fiber that stops running, and switch them off for the fibers that run next."""
    torch = _modules.get("torch")
    if torch is None or not hasattr(torch, "is_inference_mode_enabled"):  # it is being imported
        return
    if torch.is_inference_mode_enabled():
        fiber.torch_mode = torch._C._InferenceMode(False)  # when it is dropped, the mode is as before
    elif not torch.is_grad_enabled():
        fiber.torch_mode = _NO_GRAD
        torch._C._set_grad_enabled(True)


def put_back(fiber: Fiber) -> None:
    """Switch the modes of a fiber on again before it runs."""
    mode, fiber.torch_mode = fiber.torch_mode, None
    if mode is _NO_GRAD:
        _modules["torch"]._C._set_grad_enabled(False)
