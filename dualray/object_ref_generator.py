"""ObjectRefGenerator: references to the items of a generator that runs as a task."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, NoReturn

from dualray import runtime
from dualray.object_ref import CountedReference, ObjectRef
from dualray.user_verbs import Reference, UserVerbs


class ObjectRefGenerator(CountedReference):
    """The result of calling a remote generator: an iterator of references to its items.

        for ref in produce.remote():
            print(dualray.get(ref))

    `async for` works too. If the generator raises an error, its earlier items stay valid, `get` of the next reference
    raises the error, and then the iteration ends. For `dualray.wait`, a generator is ready when its next item exists or
    when the generator has ended. If you drop an ObjectRefGenerator early, dualray frees the items that you have not
    taken, and closes the generator at its next item, as Python does.

    You cannot pass an ObjectRefGenerator to another process. Pass its references to the other process instead.
    """

    __slots__ = ("_completed", "_item", "_reference")

    is_value = False

    def __init__(
        self, refs: Sequence[Reference], verbs: UserVerbs, reference: type[ObjectRef[Any]] = ObjectRef
    ) -> None:
        completed, item, handle = refs
        super().__init__(handle, verbs)
        self._reference = reference
        self._completed: ObjectRef[None] = reference(completed, verbs)
        self._item: ObjectRef[Any] | None = reference(item, verbs)
        """To the next item; None: there are no more."""

    def __del__(self) -> None:
        # The references go first: what is left when nobody takes items any more decides whether it goes on.
        self._item = None
        self._completed = None  # type: ignore[assignment]
        super().__del__()

    def __iter__(self) -> Iterator[ObjectRef[Any]]:
        return self

    def __next__(self) -> ObjectRef[Any]:
        ref = self._next_sync()
        assert ref is not None
        return ref

    def _next_sync(self, timeout_s: float | None = None) -> ObjectRef[Any] | None:
        """The next item's reference, waiting at most `timeout_s` seconds for it; None when it has not come.

        Raises:
            StopIteration: there are no more.
        """
        timeout_ns = None if timeout_s is None else round(timeout_s * 1e9)
        while (item := self._item) is not None:
            self._check_usable()
            if not self.holder.wait([item.ref], num_returns=1, timeout_ns=timeout_ns, fetch_local=False):
                return None
            if self._take(item):
                return item
        raise StopIteration

    def _take(self, item: ObjectRef[Any]) -> bool:
        """Take the next item, which is ready; False when there are no more, or another thread has taken it."""
        is_taken, behind = self.holder.take_item(item.ref)
        if not is_taken:
            return False
        if behind is None:
            self._item = None
            return False
        self._item = self._reference(behind, self.holder)
        return True

    def __aiter__(self) -> AsyncIterator[ObjectRef[Any]]:
        return self

    async def __anext__(self) -> ObjectRef[Any]:
        from dualray.aio import until_ready  # noqa: PLC0415 - it imports asyncio, which most programs do without

        while (item := self._item) is not None:
            self._check_usable()
            await until_ready(item.ref, self.holder)
            if self._take(item):
                return item
        raise StopAsyncIteration

    async def _next_async(self) -> ObjectRef[Any]:
        return await self.__anext__()

    def completed(self) -> ObjectRef[None]:
        """Return a reference that is ready when the generator has ended. `get` of it raises the generator's error."""
        return self._completed

    def send(self, value: Any) -> NoReturn:
        """Not supported: the generator runs in another process. Ray refuses it, too."""
        raise NotImplementedError(
            f"{self!r} has no send(). To send values to the running task, pass an actor or a queue to the task as "
            "an argument"
        )

    def throw(self, *error: Any) -> NoReturn:
        """Not supported, see `send`."""
        raise NotImplementedError(f"{self!r} has no throw(): dualray.cancel(generator) ends the task of a generator")

    def close(self) -> NoReturn:
        """Not supported, see `send`."""
        raise NotImplementedError(f"{self!r} has no close(): dualray.cancel(generator) ends the task of a generator")

    @property
    def _generator_ref(self) -> ObjectRef[None]:
        """As `completed()`, under the name that Ray's own tests use."""
        return self._completed

    def is_finished(self) -> bool:
        """Return, without waiting, whether the generator has ended and you have taken all its items."""
        item = self._item
        if item is None:
            return True
        self._check_usable()
        if self.holder.wait([item.ref], num_returns=1, timeout_ns=0, fetch_local=False):
            return self.holder.has_ended_before(item.ref)
        return False

    def next_ready(self) -> bool:
        """Return, without waiting, whether the next item exists. After the last item, the result is False."""
        item = self._item
        if item is None or not self.holder.wait([item.ref], num_returns=1, timeout_ns=0, fetch_local=False):
            return False
        return not self.holder.has_ended_before(item.ref)

    @property
    def waited_for(self) -> ObjectRef[Any]:
        """What `wait` looks at: the next item, or, behind the last, the end."""
        return self._item if self._item is not None else self._completed

    def task_id(self) -> str:
        """The task's id in hex."""
        return str(self.ref.object_id[:16].hex())

    def __repr__(self) -> str:
        return f"ObjectRefGenerator({self.ref.object_id[:16].hex()})"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{self!r} cannot be passed to another process: only the process that made the call can read its "
            "items. Pass the references that the generator yields, or make the call with num_returns='dynamic', "
            "which returns one reference"
        )

    def __copy__(self) -> ObjectRefGenerator:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> ObjectRefGenerator:
        return self


class DynamicObjectRefGenerator:
    """The references to all items of a generator, in order, which `get` returns for a call with num_returns="dynamic".

    You can iterate over it more than once, take its `len`, and pass it to tasks.
    """

    __slots__ = ("_refs",)

    def __init__(self, refs: Sequence[ObjectRef[Any]]) -> None:
        self._refs = list(refs)

    @staticmethod
    def collect(refs: Sequence[Reference]) -> DynamicObjectRefGenerator:
        """Of a generator that has ended in this process."""
        verbs = runtime.current("the end of a dynamic generator").verbs
        made = []
        for ref in refs:
            verbs.adopt(ref)
            made.append(ObjectRef[Any](ref, verbs))
        return DynamicObjectRefGenerator(made)

    def __iter__(self) -> Iterator[ObjectRef[Any]]:
        yield from self._refs

    def __len__(self) -> int:
        return len(self._refs)

    def __getitem__(self, index: int) -> ObjectRef[Any]:
        return self._refs[index]

    def __repr__(self) -> str:
        return f"DynamicObjectRefGenerator({len(self._refs)} items)"

    def __reduce__(self) -> tuple[Any, ...]:
        return DynamicObjectRefGenerator, (self._refs,)
