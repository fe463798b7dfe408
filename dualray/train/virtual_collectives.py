"""Exchanges among virtual workers that train: values pass through this module, and the simulation sees their size.

Theory of operation
-------------------
The workers of an attempt number their exchanges, each by itself: as in any collective, all of them must make the same
ones in the same order. A worker gives its part to the Ring, which all workers of the attempt have in common, waits in
the ledger until everybody has come, lets the time of the exchange pass (dualray/sim/network/collectives.py), and takes
what all parts together make. Workers that are in different exchanges at a time are told so, where real ones would hang.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast
from weakref import WeakSet

import numpy as np

from dualray import api, runtime
from dualray.train import session

StepDuration = float | Callable[[int], float]
Values = list[np.ndarray[Any, Any]]
SetAside = Callable[[], AbstractContextManager[None]]
"""Surrounds a wait: what a framework keeps for the thread is not for the workers that run meanwhile."""


class Ring:
    """What the workers of one attempt have in their hands, in this process."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._given: dict[int, dict[int, tuple[str, Any]]] = {}
        self._taken: dict[int, int] = {}
        self._combined: dict[int, Any] = {}

    def give(self, number: int, rank: int, what: str, values: Any) -> None:
        """A worker's part of an exchange, and what it takes that for."""
        self._given.setdefault(number, {})[rank] = what, values

    def take(self, number: int, combine: Callable[[list[Any]], Any]) -> Any:
        """What all parts together make, by rank; forgotten when all have taken it.

        Raises:
            RuntimeError: the workers are in different exchanges.
        """
        if number not in self._combined:
            parts = self._given.pop(number)
            assert len(parts) == self.size, "a worker has taken before all have given"
            by_rank = [parts[rank] for rank in range(self.size)]
            self._combined[number] = _difference(by_rank) or combine([values for _, values in by_rank])
        combined = self._combined[number]
        self._taken[number] = self._taken.get(number, 0) + 1
        if self._taken[number] == self.size:
            del self._combined[number], self._taken[number]
        if isinstance(combined, _Difference):
            raise RuntimeError(combined.words)
        return combined


class _Difference:
    def __init__(self, words: str) -> None:
        self.words = words


def _difference(parts: list[tuple[str, Any]]) -> _Difference | None:
    first = parts[0][0]
    for rank, (what, _) in enumerate(parts):
        if what != first:
            return _Difference(
                f"worker 0 is in {first} and worker {rank} in {what}: every worker must make the same exchanges in "
                "the same order; real workers would wait for each other forever"
            )
    return None


_rings: dict[bytes, tuple[Ring, set[int]]] = {}
"""By ledger, which each attempt has of its own; with the ranks that are in it."""


class VirtualCollectives:
    """One worker's side of the exchanges of its attempt.

    Attributes:
        is_multi_worker: it has made a strategy of many workers.
        splits_next_dataset: the next dataset that Keras distributes is cut for this worker.
        is_replica: it is within `strategy.run`.
        eager: functions of TensorFlow that are not compiled here, since they wait for other workers.
        models: those of PyTorch whose gradients it exchanges.
    """

    def __init__(self, of: session.Session, step_duration: StepDuration, set_aside: SetAside) -> None:
        self._session = of
        self._set_aside = set_aside
        self._context = of.context
        self._step_duration = step_duration
        self._ring = _rings[of.ledger.ref.object_id][0]
        self._number = 0
        self.is_multi_worker = False
        self.splits_next_dataset = False
        self.is_replica = False
        self.eager: WeakSet[Any] = WeakSet()
        self.models: list[Any] = []
        of.modelled.update(steps=0, compute_s=0.0, all_reduce_s=0.0, all_reduce_bytes=0)

    @property
    def rank(self) -> int:
        return self._context.world_rank

    @property
    def size(self) -> int:
        return self._context.world_size

    def compute(self, rows: int) -> None:
        """A step's computation on so many rows takes its time."""
        given = self._step_duration
        duration_s = float(given(rows) if callable(given) else given)
        self._session.modelled["steps"] += 1
        self._session.modelled["compute_s"] += duration_s
        with self._set_aside():
            time.sleep(duration_s)

    def mean(self, values: Values | None) -> Values | None:
        """The sum of all workers' values over the number of workers; None when nobody has any."""
        sums = self._summed(values)
        return None if sums is None else [value / self.size for value in sums]

    def sum(self, values: Values) -> Values:
        """The sum of all workers' values."""
        sums = self._summed(values)
        assert sums is not None, "there are at least this worker's"
        return sums

    def _summed(self, values: Values | None) -> Values | None:
        def combine(parts: list[Values | None]) -> Values | None:
            present = [part for part in parts if part is not None]
            return [sum(of_all[1:], start=of_all[0]) for of_all in zip(*present, strict=True)] if present else None

        size_bytes = sum(value.nbytes for value in values or [])
        takes_s = self._runtime.all_reduce_s(self._nodes, size_bytes)
        sums: Values | None = self._exchange("an all-reduce", values, combine, takes_s)
        self._session.modelled["all_reduce_bytes"] += size_bytes
        return sums

    def gather(self, value: np.ndarray[Any, Any], axis: int) -> np.ndarray[Any, Any]:
        """All workers' values, by rank, one after the other along an axis: half of what an all-reduce of them takes."""
        takes_s = self._runtime.all_reduce_s(self._nodes, value.nbytes * self.size) / 2
        joined: np.ndarray[Any, Any] = self._exchange(
            "an all-gather", value, lambda parts: np.concatenate(parts, axis=axis), takes_s
        )
        return joined

    def from_first(self, values: Values) -> Values:
        """The values of rank 0."""
        takes_s = self._runtime.broadcast_s(self._nodes, sum(value.nbytes for value in values))
        first: Values = self._exchange("a broadcast of variables", values, lambda parts: parts[0], takes_s)
        return first

    @property
    def _nodes(self) -> Sequence[str]:
        return self._context.nodes

    @property
    def _runtime(self) -> Any:
        return cast(Any, runtime.current("a collective"))  # a virtual worker's

    def _exchange(self, what: str, values: Any, combine: Callable[[list[Any]], Any], takes_s: float) -> Any:
        number, self._number = self._number, self._number + 1
        self._ring.give(number, self.rank, what, values)
        with self._set_aside():  # asking for the time may be a wait, too
            began_s = time.monotonic()
            [met] = api.get(self._session.ledger.meet.remote(self.rank, began_s))
            left_s = api.get(met)[0] + takes_s - time.monotonic()
            if left_s > 0:
                time.sleep(left_s)
        self._session.modelled["all_reduce_s"] += takes_s
        return self._ring.take(number, combine)


@contextmanager
def virtual_collectives(step_duration: StepDuration, set_aside: SetAside = nullcontext) -> Iterator[None]:
    """In a virtual worker, around its training function."""
    training = session.current_or_none()
    assert training is not None, "a session has begun"
    key, rank = training.ledger.ref.object_id, training.context.world_rank
    _, members = _rings.setdefault(key, (Ring(training.context.world_size), set()))
    members.add(rank)
    training.virtual = VirtualCollectives(training, step_duration, set_aside)
    try:
        yield
    finally:
        members.discard(rank)
        if not members:
            _rings.pop(key, None)


def current_or_none() -> VirtualCollectives | None:
    """Those of the virtual worker that runs, once it has made a strategy of many workers."""
    training = session.current_or_none()
    found: VirtualCollectives | None = None if training is None else training.virtual
    return found if found is not None and found.is_multi_worker else None
