"""TensorFlow's stacks of defaults (graph, session, strategy): one for each process, also for virtual ones in a thread.

TensorFlow keeps them for each thread. In sim mode all processes share one: what one of them has entered (`with
graph.as_default()`, the scope of a strategy), and not left before it waits, would be another's. `take_over` puts stacks
in their place that are asked for the process that runs.

The device and the scope of names of eager execution lie in C++, one for each thread, and AutoGraph has a stack, too:
`set_aside` is for a wait within them.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.eager import context
from tensorflow.python.framework import device, ops, stack

from dualray import runtime
from dualray.shared.handles import ProcessKey


class _ByProcess:
    """Of a thread: the values that each process has given an attribute. The driver's stand under None."""

    def __init__(self) -> None:
        self._of_driver: dict[str, Any] = {}
        self._of_workers: weakref.WeakKeyDictionary[ProcessKey, dict[str, Any]] = weakref.WeakKeyDictionary()

    def current(self) -> dict[str, Any]:
        running = runtime.current_or_none()
        if running is None or not running.verbs.is_in_task:
            return self._of_driver
        return self._of_workers.setdefault(running.verbs.key, {})


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


def take_over() -> None:
    """Put our stacks in the place of TensorFlow's, with what lies on those; a second time, nothing happens.

    The process that calls it keeps what it has: the driver, or, in real mode, a worker.
    """
    if isinstance(ops._default_graph_stack, _GraphStack):
        return
    graphs = _GraphStack()
    graphs._global_default_graph = ops._default_graph_stack._global_default_graph
    _replace(ops, "_default_graph_stack", graphs)
    _replace(stack, "_default_session_stack", _SessionStack())


def _replace(module: Any, name: str, ours: Any) -> None:
    old = getattr(module, name)
    ours.stack = old.stack
    ours.enforce_nesting = old.enforce_nesting
    setattr(module, name, ours)


@contextmanager
def set_aside() -> Iterator[None]:
    """Around a wait: what this process has entered on its thread (`with tf.device(...)`) is not for those that run
    meanwhile, and is there again afterwards, whatever they have entered and left."""
    of_thread = context.context()._thread_local_data
    mine = of_thread.device_name, of_thread.device_spec, of_thread.scope_name
    of_thread.device_name, of_thread.device_spec, of_thread.scope_name = "", device.DeviceSpec.from_string(""), ""
    conversions, ag_ctx.stacks.control_status = ag_ctx._control_ctx(), [ag_ctx._default_control_status_ctx()]
    try:
        yield
    finally:
        ag_ctx.stacks.control_status = conversions
        of_thread.device_name, of_thread.device_spec, of_thread.scope_name = mine
