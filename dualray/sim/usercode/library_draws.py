"""PyTorch's and TensorFlow's random numbers: each fiber draws from its own, as from Python's (generators.py).

Both libraries keep one generator for the whole process, and PyTorch's begins with a seed of the system, as do the
operations of TensorFlow: no two runs of a simulation would be the same. Here both are seeded from the fiber's seed
before the fiber first runs, or when it has imported the library, and put aside while other fibers run.

    PyTorch      `torch.default_generator`, with a state of 5 kB
    TensorFlow   the seed of the eager context, and the generator of the seeds of its operations. An operation has its
                 own generator for each seed that it was called with, which processes that set one seed would share:
                 these are forgotten when such a process runs on.

A driver that has set a seed before the simulation (`torch.manual_seed(0)`) draws on from there. When the simulation
ends, both libraries have the state that they had before it.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from copy import copy
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, Final

from dualray.sim.kernel.fibers import Fiber
from dualray.sim.usercode.asyncio_substitution import ChangingLoader
from dualray.sim.usercode.generators import Streams, streams_of

__all__ = ["LibraryDraws", "put_aside", "put_in"]

_modules: Final = sys.modules
_TORCH: Final = "torch"
_TENSORFLOW: Final = "tensorflow"
_CONTEXT: Final = "tensorflow.python.eager.context"
_SEEDS_OF_PROGRAMS: Final = 1 << 47
"""A smaller seed is one that the program has set: the system's have 64 bits."""


class _Running:
    """The streams of the fiber that runs; None while no fiber runs."""

    streams: Streams | None = None


_RUNNING: Final = _Running()


class LibraryDraws(MetaPathFinder):
    """Sees that the libraries are seeded when a fiber imports them, and that their state outlasts a simulation.

    user_fiber: the fiber that the caller runs in, if it is user code.
    """

    def __init__(self, user_fiber: Callable[[], Fiber | None]) -> None:
        self._user_fiber = user_fiber
        self._before = Streams(b"")

    def begin(self) -> None:
        """A simulation begins: keep what the libraries have."""
        sys.meta_path.insert(0, self)
        self._before = Streams(b"")
        _keep(self._before)
        context = _tensorflow_context()
        if context is not None:
            _forget_kernels(context)
            context._rng = copy(getattr(context, "_rng", None))

    def end(self) -> None:
        """It ends. Idempotent."""
        if self not in sys.meta_path:
            return
        sys.meta_path.remove(self)
        _RUNNING.streams = None
        torch, context = _torch(), _tensorflow_context()
        if torch is not None and self._before.torch is not None:
            torch.default_generator.set_state(self._before.torch)
        if context is not None and self._before.tensorflow is not None:
            context._seed, context._rng = self._before.tensorflow
            _forget_kernels(context)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in (_TORCH, _TENSORFLOW):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            loader = spec.loader

            def change(module: ModuleType) -> None:
                assert module.__spec__ is not None
                module.__spec__.loader = module.__loader__ = loader
                fiber = self._user_fiber()
                if fiber is not None:  # the other library goes on where it is
                    _RUNNING.streams = streams_of(fiber)
                    (_put_in_torch if fullname == _TORCH else _put_in_tensorflow)(fiber, _RUNNING.streams)

            spec.loader = ChangingLoader(loader, change)
        return spec


def put_in(fiber: Fiber) -> None:
    """The fiber runs, and one of the libraries is there."""
    streams = _RUNNING.streams = streams_of(fiber)
    _put_in_torch(fiber, streams)
    _put_in_tensorflow(fiber, streams)


def _put_in_torch(fiber: Fiber, streams: Streams) -> None:
    torch = _torch()
    if torch is None:
        return
    generator = torch.default_generator
    if streams.torch is not None:
        generator.set_state(streams.torch)
    elif not (_is_drivers(fiber) and generator.initial_seed() < _SEEDS_OF_PROGRAMS):
        generator.manual_seed(streams.seed_of(b"torch") % 2**63 | _SEEDS_OF_PROGRAMS)


def _put_in_tensorflow(fiber: Fiber, streams: Streams) -> None:
    context = _tensorflow_context()
    if context is None:
        return
    if streams.tensorflow is not None:
        context._seed, context._rng = streams.tensorflow
        if context._seed != _own_seed(streams):
            _forget_kernels(context)
    elif not (_is_drivers(fiber) and context._seed is not None):
        context._seed = _own_seed(streams)
        context._rng = random.Random(context._seed)


def _is_drivers(fiber: Fiber) -> bool:
    return bool(getattr(fiber.owner, "is_driver", False))


def put_aside() -> None:
    """The fiber that was put in is suspended, or has ended."""
    if _RUNNING.streams is not None:
        _keep(_RUNNING.streams)
        _RUNNING.streams = None


def _keep(streams: Streams) -> None:
    torch, context = _torch(), _tensorflow_context()
    if torch is not None:
        streams.torch = torch.default_generator.get_state()
    if context is not None:
        streams.tensorflow = context._seed, getattr(context, "_rng", None)


def _torch() -> Any:
    """PyTorch, if it has been imported."""
    torch = _modules.get(_TORCH)
    return torch if hasattr(torch, "default_generator") else None


def _tensorflow_context() -> Any:
    """TensorFlow's eager context, if TensorFlow has been imported."""
    return _modules[_CONTEXT].context() if hasattr(_modules.get(_TENSORFLOW), "random") else None


def _own_seed(streams: Streams) -> int:
    """The seed of TensorFlow's operations, of 31 bits."""
    return streams.seed_of(_TENSORFLOW.encode()) % 2**31


def _forget_kernels(context: Any) -> None:
    """Have TensorFlow's operations begin anew with their seeds."""
    if context._context_handle is not None:
        context.clear_kernel_cache()
