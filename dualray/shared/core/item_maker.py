"""Running a generator: from its first step to its end, each item stored and reported as it is yielded.

Runs where user code runs. What is stored, and how it ends, is as for other tasks (task_runner.py); an item is handed to
the machine at once (ItemMade), which says when the generator is to wait for its consumer, and when nobody wants more.
Then the generator is closed, as Python closes one that nobody holds any more. Under the name `ray` it runs to its end,
as on Ray, unless that is more than UNWANTED_MAX items away: one without an end would keep its worker for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, Final

from dualray.exceptions import rays_words
from dualray.shared.core.failures import as_payload, is_of_task, readable
from dualray.shared.core.layout import Serialized
from dualray.shared.core.serialization import serialize
from dualray.shared.core.tasks_in_hand import CoreTasks
from dualray.shared.machines.owner.remake_costs import RemakeCosts, is_remakeable
from dualray.shared.model.commands import RunTask
from dualray.shared.model.errors import ErrorInfo
from dualray.shared.model.events import ItemMade, ItemsEnded, Result, SpaceWritten, TaskPushed
from dualray.shared.model.ids import ObjectID, return_object_id
from dualray.shared.model.specs import Ref, Streaming, TaskSpec

UNWANTED_MAX: Final = 10_000


class _Turn:
    """Awaited, it lets the other coroutines of the loop go on."""

    def __await__(self) -> Generator[None, None, None]:
        yield


Collect = Callable[[Sequence[Ref]], Any]
"""Makes the one result of a dynamic generator out of its items."""


class ItemMaker:
    """See the module."""

    def __init__(self, core: CoreTasks) -> None:
        self._core = core
        self._host = core.host

    def make_all(
        self,
        task: RunTask | TaskPushed,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        collect: Collect | None,
    ) -> Any:
        """Run a generator to its end; the result of the call: None, or what `collect` makes of the items.

        Raises:
            TypeError: what was called has returned no iterator.
        """
        made = unwanted = 0
        try:
            steps = self._steps(task, self._host.iterate(function, args, kwargs, self._core.execution))
            try:
                for value in steps:
                    made += 1
                    self._make(task, made, value)
                    del value
                    unwanted = 0 if self._is_wanted(task) else unwanted + 1
                    if unwanted > self._unwanted_max(task):
                        break
            except BaseException as exception:
                exception = readable(exception)
                if not _is_item(task.spec) or not is_of_task(exception, self._host):
                    raise
                made += 1
                self._make_failed(task, made, exception)
            finally:
                steps.close()
            return collect(_items(task.spec, made)) if collect is not None else None
        finally:
            self._core.dispatch(ItemsEnded(task_id=task.spec.task_id, attempt=task.attempt))

    def _steps(self, task: RunTask | TaskPushed, items: Any) -> Generator[Any, None, None]:
        """What a generator yields. A task that is cancelled hears of it in its own code: where it computes, or in the
        `yield` that it has not come back from."""
        check_is_iterator(task.spec, items)
        core = self._core
        interrupt: KeyboardInterrupt | None = None
        try:
            while True:
                if task.spec.actor_id is not None:  # a method goes on
                    value = next(items)
                else:
                    core.is_in_user_code = True
                    try:
                        if interrupt is None and core.is_interrupt_due and core.takes_interrupt():
                            interrupt = KeyboardInterrupt()
                        thrown, interrupt = interrupt, None
                        value = next(items) if thrown is None else _throw(items, thrown)
                    finally:
                        core.is_in_user_code = False
                yield value
                del value
                try:
                    self._wait_for_room(task)
                except KeyboardInterrupt as cancelled:
                    interrupt = cancelled
        except StopIteration:
            return
        finally:
            close = getattr(items, "close", None)
            if close is not None:
                close()

    def _wait_for_room(self, task: RunTask | TaskPushed) -> None:
        core = self._core
        room = self._room_for(task)
        if room is None:
            return
        if task.spec.actor_id is not None:
            core.wait([room], num_returns=1, timeout_ns=None, fetch_local=False)
            return
        core.is_in_user_code = True
        try:
            core.wait([room], num_returns=1, timeout_ns=None, fetch_local=False)
        finally:
            core.is_in_user_code = False

    async def make_all_async(self, task: RunTask | TaskPushed, items: Any, collect: Collect | None) -> Any:
        """The same for a method of an actor with coroutines: `items` is what it has returned."""
        made = unwanted = 0
        try:
            try:
                if hasattr(items, "__anext__"):
                    async for value in items:
                        made += 1
                        self._make(task, made, value)
                        del value
                        await self._room_comes(task)
                        unwanted = 0 if self._is_wanted(task) else unwanted + 1
                        if unwanted > self._unwanted_max(task):
                            break
                        if unwanted:
                            await _Turn()
                else:
                    check_is_iterator(task.spec, items)
                    for value in items:
                        made += 1
                        self._make(task, made, value)
                        del value
                        await self._room_comes(task)
                        unwanted = 0 if self._is_wanted(task) else unwanted + 1
                        if unwanted > self._unwanted_max(task):
                            break
                        if unwanted:
                            await _Turn()
            except Exception as exception:
                if not _is_item(task.spec):
                    raise
                made += 1
                self._make_failed(task, made, exception)
            finally:
                if hasattr(items, "aclose"):
                    await items.aclose()
                elif hasattr(items, "close"):
                    items.close()
            return collect(_items(task.spec, made)) if collect is not None else None
        finally:
            self._core.dispatch(ItemsEnded(task_id=task.spec.task_id, attempt=task.attempt))

    async def _room_comes(self, task: RunTask | TaskPushed) -> None:
        room = self._room_for(task)
        if room is not None:
            await self._host.until_ready(room)

    def _room_for(self, task: RunTask | TaskPushed) -> Ref | None:
        core = self._core
        if not task.spec.template.items_ahead_max:
            return None
        with self._host.lock:
            room = core.machine.room_for_item(task.spec.task_id, task.attempt)
        return Ref(room, core.address) if room is not None else None

    def _is_wanted(self, task: RunTask | TaskPushed) -> bool:
        with self._host.lock:
            return self._core.machine.is_item_wanted(task.spec.task_id, task.attempt)

    def _unwanted_max(self, task: RunTask | TaskPushed) -> int:
        """How many items that nobody wants a generator may make before it is closed."""
        if rays_words() is None:
            return 0
        with self._host.lock:
            return UNWANTED_MAX if self._core.machine.has_caller_of_items(task.spec.task_id, task.attempt) else 0

    def _make(self, task: RunTask | TaskPushed, index: int, value: Any) -> None:
        """Store and report an item.

        Raises:
            ValueError: the generator has yielded more than it may.
        """
        spec, core = task.spec, self._core
        if index > core.config.generator_items_max:
            raise ValueError(
                f"{spec.template.name} has yielded more than {core.config.generator_items_max} items; "
                f"limits={{'generator_items_max': ...}} allows more"
            )
        object_id = return_object_id(spec.task_id, index)
        serialized = serialize(value, "item {} of {}", index - 1, spec.template.name)
        inline = serialized.size_bytes <= core.config.inline_bytes_max
        if inline:
            core.payloads[object_id] = serialized.to_bytes()
        else:
            store_item(core, task, object_id, serialized)
        result = Result(object_id=object_id, size_bytes=serialized.size_bytes, inline=inline, nested=serialized.refs)
        self._report(task, result, None)

    def _make_failed(self, task: RunTask | TaskPushed, index: int, exception: BaseException) -> None:
        object_id = return_object_id(task.spec.task_id, index)
        payload, error = as_payload(task.spec.template.name, exception)
        self._core.payloads[object_id] = payload
        self._report(task, Result(object_id=object_id, size_bytes=0, inline=True), error)

    def _report(self, task: RunTask | TaskPushed, result: Result, error: ErrorInfo | None) -> None:
        spec = task.spec
        self._core.dispatch(
            ItemMade(
                task_id=spec.task_id,
                attempt=task.attempt,
                owner=spec.owner,
                result=result,
                error=error,
                ahead_max=spec.template.items_ahead_max,
            )
        )


class AsyncItems:
    """A method of an actor with coroutines, and a generator: called, a coroutine that makes all items."""

    def __init__(
        self,
        maker: ItemMaker,
        task: RunTask | TaskPushed,
        function: Callable[..., Any],
        collect: Collect | None,
    ) -> None:
        self.__wrapped__ = function
        self._maker = maker
        self._task = task
        self._collect = collect

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return await self._maker.make_all_async(self._task, self.__wrapped__(*args, **kwargs), self._collect)


def store_item(core: CoreTasks, task: RunTask | TaskPushed, object_id: ObjectID, serialized: Serialized) -> None:
    """Write a large item into the node's store. To make it again would take more than the time since it was asked for:
    that counts as not measured."""
    core.write_to_store(object_id, serialized, task.spec.owner, remakeable=is_remakeable(task))
    core.dispatch(SpaceWritten(object_id=object_id))


def store_result(core: CoreTasks, task: RunTask | TaskPushed, object_id: ObjectID, serialized: Serialized) -> None:
    """Write a large result of a task into the node's store."""
    remake_ns = 0
    if task.spec.actor_id is None:
        costs = core.remake_costs
        if costs is None:
            costs = core.remake_costs = RemakeCosts()
        remake_ns = costs.of(task, core.now_ns() - core.task_began_ns)
    core.write_to_store(object_id, serialized, task.spec.owner, remakeable=is_remakeable(task), remake_ns=remake_ns)
    core.dispatch(SpaceWritten(object_id=object_id))


def check_is_iterator(spec: TaskSpec, items: Any) -> None:
    """Raise when what was called with num_returns="streaming" or "dynamic" has returned something else."""
    if not isinstance(items, Iterator):
        raise TypeError(
            f"{spec.template.name} has num_returns={spec.template.streaming.value!r}, but returned a "
            f"{type(items).__name__}, not a generator: yield the items, or return iter(...)"
        )


def _throw(items: Any, error: BaseException) -> Any:
    throw = getattr(items, "throw", None)
    if throw is None:
        raise error
    return throw(error)


def _is_item(spec: TaskSpec) -> bool:
    """Whether what a generator raises is its last item, as for dynamic ones; else it is the task's error."""
    return spec.template.streaming is Streaming.DYNAMIC and not spec.template.retry_exceptions


def _items(spec: TaskSpec, count: int) -> list[Ref]:
    return [Ref(return_object_id(spec.task_id, index), spec.owner) for index in range(1, count + 1)]
