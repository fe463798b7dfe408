"""The actor through which the members of a group pass their tensors, and each member's side of it.

Members call the same operations in the same order. The actor matches the n-th call of each rank with the n-th call of
the others, and answers when all have come. It holds small tensors themselves, and references to large ones: those a
member reads from the store of the node that has them.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from dualray import api
from dualray.exceptions import GetTimeoutError

__all__ = ["Exchange", "Group"]

_INLINE_BYTES: Final = 64 << 10
"""A tensor up to this size goes through the actor itself."""
_MAX_CALLS: Final = 1000


class _Round:
    """One operation: what each rank has brought."""

    def __init__(self, operation: str) -> None:
        self.operation = operation
        self.brought: dict[int, Any] = {}
        self.is_complete = asyncio.Event()
        self.left = 0


class Exchange:
    """The actor of a group. A rank that has left and joins again belongs to the group's next generation."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._generations: dict[int, int] = {}
        self._rounds: dict[tuple[int, int], _Round] = {}
        self._sent: dict[tuple[int, int, int, int], asyncio.Future[Any]] = {}
        self._declared: tuple[dict[str, int], int] | None = None

    async def declare(self, ranks: dict[str, int], timeout_ms: int) -> None:
        """Keep the rank of each member, by the id of its actor."""
        self._declared = ranks, timeout_ms

    async def declared(self, actor_id: str) -> tuple[int, int, int] | None:
        """The world size, the rank of a member and the timeout; None if the actor is no member."""
        if self._declared is None or actor_id not in self._declared[0]:
            return None
        return self._world_size, self._declared[0][actor_id], self._declared[1]

    async def join(self, world_size: int, rank: int) -> int:
        """Count a member in; which generation of the group it belongs to.

        Raises:
            RuntimeError: another member gave another world size.
        """
        if world_size != self._world_size:
            raise RuntimeError(
                f"rank {rank} has world_size={world_size}, but the other ranks of the collective group have "
                f"world_size={self._world_size}"
            )
        generation = self._generations[rank] = self._generations.get(rank, -1) + 1
        return generation

    async def exchange(self, generation: int, count: int, rank: int, operation: str, item: Any) -> list[Any]:
        """Bring a rank's part of its n-th operation; the parts of all ranks.

        Raises:
            RuntimeError: another rank has called another operation.
        """
        key = generation, count
        made = self._rounds.setdefault(key, _Round(operation))
        if made.operation != operation:
            raise RuntimeError(
                f"rank {rank} calls {operation}, but rank {next(iter(made.brought))} calls {made.operation}: all ranks "
                f"of a group must call the same operations in the same order"
            )
        made.brought[rank] = item
        if len(made.brought) == self._world_size:
            made.is_complete.set()
        await made.is_complete.wait()
        made.left += 1
        if made.left == self._world_size:
            self._rounds.pop(key, None)
        return [made.brought[each] for each in range(self._world_size)]

    async def missing(self, generation: int, count: int) -> list[int]:
        """The ranks that have not come to an operation."""
        made = self._rounds.get((generation, count))
        return [each for each in range(self._world_size) if made is None or each not in made.brought]

    async def send(self, generation: int, source: int, target: int, count: int, item: Any) -> None:
        """Keep what a rank sends to another one until that receives it."""
        self._future_of(generation, source, target, count).set_result(item)

    async def receive(self, generation: int, source: int, target: int, count: int) -> Any:
        """What a rank has sent to another one, when it has come."""
        item = await self._future_of(generation, source, target, count)
        self._sent.pop((generation, source, target, count), None)
        return item

    def _future_of(self, generation: int, source: int, target: int, count: int) -> asyncio.Future[Any]:
        key = generation, source, target, count
        if key not in self._sent:
            self._sent[key] = asyncio.get_running_loop().create_future()
        return self._sent[key]


class Group:
    """A process's membership of a group.

    Attributes:
        name: of the group.
        world_size: the number of members.
        rank: of this process, from 0.
        timeout_ms: how long an operation waits for the other ranks.
    """

    def __init__(self, name: str, world_size: int, rank: int, timeout_ms: int) -> None:
        self.name = name
        self.world_size = world_size
        self.rank = rank
        self.timeout_ms = timeout_ms
        self._actor = exchange_of(name, world_size)
        self._generation: int = api.get(self._actor.join.remote(world_size, rank))
        self._count = 0
        self._sent: dict[int, int] = {}
        self._received: dict[int, int] = {}

    def exchange(self, operation: str, parts: list[Any]) -> list[Any]:
        """Bring arrays, or None, and wait for all ranks; each rank's arrays, as references where they are large.

        Raises:
            GetTimeoutError: a rank has not come within the group's timeout; the error names it.
        """
        count, self._count = self._count, self._count + 1
        call = self._actor.exchange.remote(
            self._generation, count, self.rank, operation, [_item(part) for part in parts]
        )
        try:
            found: list[Any] = api.get(call, timeout=self.timeout_ms / 1000)
        except GetTimeoutError as error:
            missing = api.get(self._actor.missing.remote(self._generation, count))
            raise GetTimeoutError(
                f"{operation} of rank {self.rank} in the collective group {self.name!r}: rank {_listed(missing)} "
                f"did not call {operation} within {self.timeout_ms} ms (gloo_timeout of init_collective_group)"
            ) from error
        return found

    def send(self, target: int, part: Any) -> None:
        """Send an array to a rank, without waiting for it."""
        count = self._sent[target] = self._sent.get(target, -1) + 1
        api.get(self._actor.send.remote(self._generation, self.rank, target, count, [_item(part)]))

    def receive(self, source: int) -> Any:
        """Wait for the next array from a rank.

        Raises:
            GetTimeoutError: none has come within the group's timeout.
        """
        count = self._received[source] = self._received.get(source, -1) + 1
        call = self._actor.receive.remote(self._generation, source, self.rank, count)
        try:
            [item] = api.get(call, timeout=self.timeout_ms / 1000)
        except GetTimeoutError as error:
            raise GetTimeoutError(
                f"recv of rank {self.rank} in the collective group {self.name!r}: rank {source} sent nothing within "
                f"{self.timeout_ms} ms (gloo_timeout of init_collective_group)"
            ) from error
        return value_of(item)


def exchange_of(name: str, world_size: int) -> Any:
    """The actor of a group; it is started if there is none."""
    made = api.remote(Exchange).options(
        name=actor_name(name), get_if_exists=True, num_cpus=0, max_concurrency=_MAX_CALLS
    )
    return made.remote(world_size)


def actor_name(name: str) -> str:
    """The name of a group's actor."""
    return f"collective group {name}"


def value_of(item: Any) -> Any:
    """The array that a rank has brought."""
    return api.get(item[0]) if isinstance(item, list) else item


def _item(part: Any) -> Any:
    """How an array goes through the actor: as it is, or as a reference in a list if it is large."""
    return part if part is None or part.nbytes <= _INLINE_BYTES else [api.put(part)]


def _listed(ranks: list[int]) -> str:
    return ", ".join(str(rank) for rank in ranks)
