"""Environment variables: values that each process makes for itself, and makes anew after a task has used them.

    ray.env.net = ray.EnvironmentVariable(make_net, reset_net)      # on the driver
    ...
    net = ray.env.net                                               # on the driver, in tasks, in actors

What cannot travel, or should not (a TensorFlow graph, a simulator, a connection), is described by a function that makes
it. The definitions travel with remote functions and actor classes; a process calls the initializer when it first reads
the variable. After a task or actor method that has read it, the reinitializer is given the value and returns the one
that the next task will see, so that no task sees what another has done to it. Without a reinitializer, the value is
made anew. On the driver, values stay as they are.

Each process has its own values. In sim mode, where all processes share an interpreter, they are kept apart by runtime.
What is defined before `init` belongs to the next one, and ends with it.
"""

from __future__ import annotations

import traceback
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dualray import runtime
from dualray.options import unknown_name
from dualray.shared.core.layout import deserialize
from dualray.shared.core.serialization import serialize
from dualray.shared.handles import ProcessKey

REGISTER = "register_environment_variable"
REINITIALIZE = "reinitialize_environment_variable"
ERRORS_TABLE = "classic_errors"


class EnvironmentVariable:
    """How a variable is made, and what happens to it after a task has read it.

    Args:
        initializer: called without arguments in each process that reads the variable; its value.
        reinitializer: called with the value after a task that has read it; the value from then on. Default: the
            initializer is called again.

    Raises:
        TypeError: one that cannot be called.
    """

    def __init__(self, initializer: Callable[[], Any], reinitializer: Callable[[Any], Any] | None = None) -> None:
        if not callable(initializer):
            raise TypeError(f"the initializer {initializer!r} (type {type(initializer).__name__}) cannot be called")
        if reinitializer is not None and not callable(reinitializer):
            raise TypeError(
                f"the reinitializer {reinitializer!r} (type {type(reinitializer).__name__}) cannot be called"
            )
        self.initializer = initializer
        self.reinitializer = reinitializer

    def again(self, value: Any) -> Any:
        """The value for the next task."""
        return self.initializer() if self.reinitializer is None else self.reinitializer(value)


@dataclass(slots=True)
class _State:
    """The variables of one process."""

    definitions: dict[str, EnvironmentVariable] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    used: dict[str, None] = field(default_factory=dict)
    """What was read since the last task began."""
    packed: bytes | None = b""
    """The definitions, pickled, b"" when there are none; None when that is still to be done."""


class _States:
    """The state of each process that this interpreter plays."""

    def __init__(self) -> None:
        self._by_process: weakref.WeakKeyDictionary[ProcessKey, _State] = weakref.WeakKeyDictionary()
        self._early = _State()
        """Of the driver, before `init`."""

    def current(self) -> _State:
        running = runtime.current_or_none()
        if running is None:
            return self._early
        state = self._by_process.get(running.verbs.key)
        if state is None:
            state = _State()
            if not running.verbs.is_in_task:  # the driver: it goes on from what it had before `init`
                state, self._early = self._early, state
            self._by_process[running.verbs.key] = state
        return state


_states = _States()


class Environment:
    """`ray.env`: its attributes are the variables."""

    def __setattr__(self, name: str, variable: Any) -> None:
        if not isinstance(variable, EnvironmentVariable):
            raise TypeError(
                f"ray.env.{name} was set to {variable!r} (type {type(variable).__name__}): set ray.env.{name} to "
                "ray.EnvironmentVariable(initializer, reinitializer). The function initializer returns the value"
            )
        state = _states.current()
        state.definitions[name] = variable
        state.values.pop(name, None)
        state.packed = None

    def __getattr__(self, name: str) -> Any:
        state = _states.current()
        if name not in state.values:
            variable = state.definitions.get(name)
            if variable is None:
                if name.startswith("__"):
                    raise AttributeError(name)  # Python looking for a protocol
                raise AttributeError(unknown_name("variable", name, sorted(state.definitions), "ray.env"))
            try:
                state.values[name] = variable.initializer()
            except Exception:
                note_error(REGISTER, f"the initializer of ray.env.{name}", traceback.format_exc())
                raise
        state.used[name] = None
        return state.values[name]

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *_states.current().definitions]


env = Environment()
reusables = env
"""What `env` was called from the summer of 2017 on."""


def note_error(kind: str, what: str, text: str) -> None:
    """Keep an error that no task's result carries, for `error_info`; on the driver it is raised, and that is enough."""
    running = runtime.current_or_none()
    if running is None:
        return
    here = running.verbs.context()
    if here.task_id is None:
        return
    fields = {"kind": kind, "message": text, "task": here.task_id, "what": what}
    running.write_row(ERRORS_TABLE, f"{here.task_id}:{here.attempt}:{what}", fields)


# ---- How definitions travel, and what happens around a task ------------------------------------------------------


def packed_definitions() -> bytes:
    """What a task of this process must know of its variables; equal while they are the same.

    Raises:
        SerializationError: an initializer or reinitializer cannot be pickled.
    """
    state = _states.current()
    if state.packed is None:
        for name, variable in state.definitions.items():
            serialize((variable.initializer, variable.reinitializer), f"the environment variable {name}")
        state.packed = serialize(state.definitions).to_bytes()
    return state.packed


def begin_task(packed: bytes) -> None:
    """A task of a program with these definitions begins in this process."""
    state = _states.current()
    if packed != state.packed and packed:
        known: dict[str, EnvironmentVariable] = deserialize(packed)
        state.definitions |= known
        for name in known:
            state.values.pop(name, None)
        state.packed = packed
    state.used.clear()


def has_used_variables() -> bool:
    """Whether the task that runs has read any."""
    return bool(_states.current().used)


def end_task() -> None:
    """What the task has read is made fit for the next one."""
    state = _states.current()
    while state.used:
        name = next(iter(state.used))
        del state.used[name]
        value = state.values.pop(name, None)
        variable = state.definitions[name]
        try:
            state.values[name] = variable.again(value)
        except Exception:  # noqa: BLE001 - it is the user's: the task has its result, and the next one starts afresh
            note_error(REINITIALIZE, f"the reinitializer of ray.env.{name}", traceback.format_exc())
    state.used.clear()


__all__ = ["Environment", "EnvironmentVariable", "env", "reusables"]
