"""TensorFlow 1 for programs that know no other: `import dualray.experimental.tf1 as tf`.

This is `tensorflow.compat.v1` in graph mode. A program that calls `tf.disable_v2_behavior()` itself changes the process
that it runs in, and no other: a function or actor class that refers to this module takes graph mode along, because
every process that loads it imports this module.

Each process has a default graph and a default session of its own. In sim mode all processes share one interpreter, and
one thread: TensorFlow's stacks of defaults are then asked for the process that runs, so that virtual workers build
their networks apart, with equal names for equal variables, as real ones do; also when one of them waits in the middle
of a `with graph.as_default()`.

Raises:
    ModuleNotFoundError: TensorFlow is not installed: `pip install 'dualray[tensorflow]'`.
"""

from __future__ import annotations

import weakref
from typing import Any

from tensorflow.compat import v1
from tensorflow.python.framework import ops, stack

from dualray import runtime


class _ByProcess:
    """Of a thread: the values that each process has given an attribute. The driver's stand under None."""

    def __init__(self) -> None:
        self._of_driver: dict[str, Any] = {}
        self._of_workers: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()

    def current(self) -> dict[str, Any]:
        running = runtime.current_or_none()
        if running is None or not running.verbs.execution.is_task:
            return self._of_driver
        return self._of_workers.setdefault(running.verbs, {})


def _by_process(name: str, default: Any) -> property:
    """An attribute of a stack (which has one `__dict__` a thread) that has one value a process."""

    def places(of: Any) -> dict[str, Any]:
        processes = of.__dict__.get("dualray_processes")
        if processes is None:
            processes = of.__dict__["dualray_processes"] = _ByProcess()
        found: dict[str, Any] = processes.current()
        return found

    def read(of: Any) -> Any:
        found = places(of)
        if name not in found:
            found[name] = default()
        return found[name]

    def write(of: Any, value: Any) -> None:
        places(of)[name] = value

    return property(read, write)


class _GraphStack(ops._DefaultGraphStack):  # type: ignore[misc]  # TensorFlow ships no types
    stack = _by_process("stack", list)
    _global_default_graph = _by_process("graph", lambda: None)


class _SessionStack(stack.DefaultStack):  # type: ignore[misc]  # TensorFlow ships no types
    stack = _by_process("stack", list)


def _take_over(module: Any, name: str, ours: Any) -> None:
    """Put our stack in the place of TensorFlow's, with what lies on that."""
    old = getattr(module, name)
    ours.stack = old.stack
    ours.enforce_nesting = old.enforce_nesting
    setattr(module, name, ours)


_verbosity = v1.logging.get_verbosity()
v1.logging.set_verbosity(v1.logging.ERROR)  # who imports this module knows what it does
v1.disable_v2_behavior()
v1.logging.set_verbosity(_verbosity)
_graphs = _GraphStack()
_graphs._global_default_graph = ops._default_graph_stack._global_default_graph
_take_over(ops, "_default_graph_stack", _graphs)
_take_over(stack, "_default_session_stack", _SessionStack())


def __getattr__(name: str) -> Any:
    return getattr(v1, name)


def __dir__() -> list[str]:
    return dir(v1)
