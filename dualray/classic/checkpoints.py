"""Actors that come back as they were: `checkpoint_interval`.

Theory of operation. After every so many calls an actor's state is saved in the control plane, and the calls since then
are kept there with their arguments. An actor that is restarted is made from the last state, or by its constructor
where there is none yet, and those calls are made again, in their order. What it had answered, and not reported, when
it died, comes as a call again: it gets the answer that it had. So each call counts once.

A class says how it is saved: `__ray_save__(self)` returns what is kept, `__ray_restore__(self, kept)` takes it, on an
object that was made without its constructor. A class without them is pickled whole.

Relies on: calls that run one at a time; ids of tasks, which a repeated call has in common with the first.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from dualray import runtime
from dualray.exceptions import SerializationError
from dualray.shared.core.layout import Serialized, deserialize_own
from dualray.shared.core.serialization import serialize

CHECKPOINTS_TABLE = "classic_checkpoints"
_FLUSHED_TABLE = "classic_flushed"
"""Always empty: reading it waits until all that was written is there."""
_ANSWERS_MAX = 64
"""Last answers of an actor that are kept: more than a worker ever owes a report of."""


def check_interval(value: Any, what: str) -> int:
    """A `checkpoint_interval`.

    Raises:
        TypeError, ValueError: it cannot be one.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{what}: checkpoint_interval={value!r} must be an int")
    if value < 1 and value != -1:
        raise ValueError(f"{what}: checkpoint_interval={value!r} must be at least 1, or -1 for no checkpoints")
    return value


class Keeper:
    """Keeps the state of one actor.

    Args:
        interval: calls from one checkpoint to the next.
    """

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._actor = runtime.current("checkpoint_interval").verbs.context().actor_id or ""
        self._checkpoint = b""
        self._calls: list[bytes] = []
        """Since the checkpoint: names and arguments, pickled."""
        self._answers: dict[str, bytes] = {}
        """Of the last calls, by task: what they returned or raised, pickled."""

    def restored(self, cls: Any, construct: Callable[[], Any], call: Callable[[Any, str], Callable[..., Any]]) -> Any:
        """The actor's instance: a new one, or, after a restart, one in the state in which the last one was.

        Args:
            construct: calls the constructor.
            call: gives, of an instance and a name, what is called in place of the method.
        """
        running = runtime.current("checkpoint_interval")
        row = running.read_table(CHECKPOINTS_TABLE).get(self._actor) if running.verbs.context().is_restarted else None
        if row is None:
            return construct()
        self._checkpoint, self._calls, self._answers = deserialize_own(b64decode(row["state"]))
        if not self._checkpoint:
            instance = construct()
        else:
            kept = deserialize_own(self._checkpoint)
            instance = kept
            if hasattr(cls, "__ray_restore__"):
                instance = cls.__new__(cls)
                instance.__ray_restore__(kept)
        for made in self._calls:
            name, args, kwargs = deserialize_own(made)
            try:
                call(instance, name)(*args, **kwargs)
            except Exception:  # noqa: BLE001 - it was its answer then, too
                continue
        return instance

    def call(self, instance: Any, name: str, function: Callable[..., Any], args: Sequence[Any], kwargs: Any) -> Any:
        """Call a method, and keep that it was called. What was answered already is answered again."""
        task = runtime.current("checkpoint_interval").verbs.context().task_id or ""
        answer: Any = None
        error: BaseException | None = None
        if task in self._answers:
            answer, error = deserialize_own(self._answers[task])
        else:
            made = serialize((name, args, kwargs), f"arguments of {name}")  # as they are before the call
            try:
                answer = function(*args, **kwargs)
            except Exception as raised:  # noqa: BLE001 - it is the user's: raised below
                error = raised
            with suppress(SerializationError):  # one that cannot travel: its task fails, and says so
                self._answers[task] = serialize((answer, error)).to_bytes()
            self._keep(instance, made)
        if error is not None:
            raise error
        return answer

    def _keep(self, instance: Any, made: Serialized) -> None:
        if made.refs or len(self._calls) + 1 >= self._interval:  # references would not outlive this process
            save = getattr(instance, "__ray_save__", None)
            self._checkpoint = serialize(instance if save is None else save(), "the state of an actor").to_bytes()
            self._calls.clear()
        else:
            self._calls.append(made.to_bytes())
        while len(self._answers) > _ANSWERS_MAX:
            del self._answers[next(iter(self._answers))]
        state = serialize((self._checkpoint, self._calls, self._answers)).to_bytes()
        running = runtime.current("checkpoint_interval")
        running.write_row(CHECKPOINTS_TABLE, self._actor, {"state": b64encode(state).decode()})
        running.read_table(_FLUSHED_TABLE)
