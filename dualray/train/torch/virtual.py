"""PyTorch's data-parallel training in sim mode: the gradients are real, the time of their exchange is modelled.

Theory of operation
-------------------
Virtual workers share one interpreter, in which `torch.distributed` has one process group at most. So in a virtual
worker `prepare_model` gives a VirtualParallel. It takes the weights of rank 0 when it is made. After each backward pass
the workers meet, and each gradient becomes the mean of all workers' (`VirtualCollectives`): a step takes
`step_duration` on the slowest worker, and then the time of a ring all-reduce of the gradients' bytes.

DistributedDataParallel exchanges within the backward pass, while it computes. PyTorch keeps that pass's state for each
thread, of which virtual workers have one: here they meet when `torch.autograd.backward` returns.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from dualray.train.virtual_collectives import VirtualCollectives, current_or_none

__all__ = ["install", "parallel"]


@functools.cache
def install() -> None:
    """Once in a process, by the driver. Elsewhere than in a virtual worker that trains nothing is changed."""
    original = torch.autograd.backward

    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> None:
        original(*args, **kwargs)
        collectives = current_or_none()
        if collectives is not None:
            for model in collectives.models:
                model.exchange()

    torch.autograd.backward = backward


def parallel(model: Any, collectives: VirtualCollectives) -> VirtualParallel:
    """A model whose gradients are the means of all workers'."""
    collectives.is_multi_worker = True
    made = VirtualParallel(model, collectives)
    collectives.models.append(made)
    return made


class VirtualParallel(torch.nn.Module):  # type: ignore[misc]  # PyTorch has no types where it is not installed
    """Stands for DistributedDataParallel; see the module."""

    def __init__(self, module: Any, collectives: VirtualCollectives) -> None:
        super().__init__()
        self.module = module
        self.require_backward_grad_sync = True
        self._collectives = collectives
        self._rows: int | None = None
        """Of the batch of a forward pass that no backward pass has followed."""
        self._is_reached = False
        """Whether the backward pass has made a gradient of this model: programs may train several models."""
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._reach)
        state = [*module.parameters(), *module.buffers()]
        of_first = collectives.from_first([_values(each) for each in state])
        with torch.no_grad():
            for mine, first in zip(state, of_first, strict=True):
                mine.copy_(torch.from_numpy(first))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's."""
        if torch.is_grad_enabled() and self.require_backward_grad_sync:
            first = next((each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor)), None)
            self._rows = len(first) if first is not None and first.dim() else 1
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients add up in each worker, and are exchanged after the next backward pass outside."""
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    def _reach(self, _parameter: Any) -> None:
        self._is_reached = True

    def exchange(self) -> None:
        """A backward pass is over: if it reached this model, each gradient becomes the mean of all workers'."""
        if not self._is_reached:
            return
        self._is_reached = False
        rows, self._rows = self._rows, None
        if rows is None:
            return
        trained = [each for each in self.module.parameters() if each.requires_grad]
        gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in trained]
        self._collectives.compute(rows)
        means = self._collectives.mean([_values(each) for each in gradients])
        assert means is not None, "there is at least this worker's"
        for parameter, mean in zip(trained, means, strict=True):
            if parameter.grad is not None:
                parameter.grad.copy_(torch.from_numpy(mean))
            elif mean.any():
                parameter.grad = torch.from_numpy(mean).to(parameter.dtype)


def _values(tensor: Any) -> np.ndarray[Any, Any]:
    """Return a copy of the tensor's values as an array. NumPy has no bfloat16, so such values become float32."""
    still = tensor.detach().cpu()
    if still.dtype in (torch.bfloat16, torch.float16):
        still = still.float()
    copied: np.ndarray[Any, Any] = still.numpy().copy()
    return copied
