"""multiprocessing.Pool on actors: the interface of the standard library's, over the nodes of a cluster.

    from dualray.util.multiprocessing import Pool

Each process of the pool is an actor that runs chunks of calls; a chunk goes to the actor that has the fewest.
Actors are spread over the nodes and hold no CPUs, unless `ray_remote_args` say so: other tasks run beside a pool,
as in Ray. What the standard library does on threads of its own (callbacks) runs beside the caller: on a thread or,
in sim mode, in a fiber. An actor that dies takes its chunks' results with it: `get` raises ActorDiedError, the pool
goes on with the others.
"""

from __future__ import annotations

import itertools
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from multiprocessing import TimeoutError  # noqa: A004 - the standard library's name, and not the built-in one
from types import TracebackType
from typing import Any, Self

from dualray import api, runtime
from dualray.actor import ActorHandle
from dualray.object_ref import ObjectRef

__all__ = ["AsyncResult", "IMapIterator", "Pool", "TimeoutError"]

_CHUNKS_PER_PROCESS = 4
"""Into how many chunks a map is cut for each process, when the caller does not say: as the standard library does."""
_AHEAD_PER_PROCESS = 2
"""Chunks of an imap that are submitted for each process before the first result is taken."""

Chunk = list[tuple[tuple[Any, ...], dict[str, Any]]]


class _PoolProcess:
    """The actor. It answers a chunk with a list of (whether it raised, result or exception)."""

    def __init__(self, initializer: Callable[..., object] | None, initargs: Sequence[Any]) -> None:
        self._module: str | None = None
        self._globals: dict[str, Any] = {}
        self._set: dict[str, Any] = {}
        """What the initializer has set among the globals of its module."""
        if initializer is not None:
            before = dict(getattr(initializer, "__globals__", {}))
            initializer(*initargs)
            self._module, self._globals = initializer.__module__, getattr(initializer, "__globals__", {})
            self._set = {
                name: value for name, value in self._globals.items() if name not in before or before[name] is not value
            }

    def ping(self) -> None:
        """Answer when the initializer is done."""

    def run(self, func: Callable[..., Any], chunk: Chunk) -> list[tuple[bool, Any]]:
        # Functions of a script are pickled each with the globals that it uses: what the initializer has set is for all.
        own = getattr(func, "__globals__", self._globals)
        if self._set and own is not self._globals and getattr(func, "__module__", None) == self._module:
            own.update(self._set)
        answers: list[tuple[bool, Any]] = []
        for args, kwargs in chunk:
            try:
                answers.append((False, func(*args, **kwargs)))
            except Exception as error:  # noqa: BLE001 - the caller of get() gets it
                answers.append((True, error))
        return answers


class AsyncResult:
    """What `apply_async`, `map_async` and `starmap_async` return."""

    def __init__(self, refs: Sequence[ObjectRef[Any]], *, is_single: bool) -> None:
        self._refs = list(refs)
        self._is_single = is_single

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the result is there, or for `timeout` seconds."""
        if self._refs:
            api.wait(self._refs, num_returns=len(self._refs), timeout=timeout)

    def get(self, timeout: float | None = None) -> Any:
        """The result; of a map, the list of them.

        Raises:
            TimeoutError: (multiprocessing's) it did not come within `timeout` seconds.
            Exception: what the function raised; of a map, the first in order.
        """
        self.wait(timeout)
        if not self.ready():
            raise TimeoutError(f"the result of the pool did not arrive within {timeout} s")
        values = []
        for answers in api.get(self._refs):
            for has_failed, value in answers:
                if has_failed:
                    raise value
                values.append(value)
        return values[0] if self._is_single else values

    def ready(self) -> bool:
        """Whether the result is there."""
        return not self._refs or len(api.wait(self._refs, num_returns=len(self._refs), timeout=0)[0]) == len(self._refs)

    def successful(self) -> bool:
        """Whether nothing was raised.

        Raises:
            ValueError: the result is not there yet.
        """
        if not self.ready():
            raise ValueError(f"{self!r} not ready")
        try:
            self.get()
        except Exception:  # noqa: BLE001 - whatever it is, it is no success
            return False
        return True


class Pool:
    """A pool of actors with the interface of `multiprocessing.Pool`; also a context manager, which terminates it.

    Args:
        processes: how many; default, and at most: one for each CPU of the cluster.
        initializer, initargs: called in each process before anything else. Globals that it sets in its module are there
            for the functions of that module.
        maxtasksperchild: chunks after which a process is replaced by a fresh one; default: never.
        context: ignored, as in Ray's.
        ray_address: of the cluster to join when there was no `init`; default, and "local": start one, with as many CPUs
            as there are processes to be.
        ray_remote_args: options of the actors, such as `{"num_cpus": 1}`; default: no CPUs, spread over the nodes.

    Raises:
        ValueError: a number of processes that is not positive, or more than the cluster has CPUs.
        ActorDiedError: the initializer has raised.
    """

    _raises_in_turn = True
    """Whether `imap` raises what the function has raised; else it is a result like others."""

    def __init__(
        self,
        processes: int | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: Iterable[Any] | None = None,
        maxtasksperchild: int | None = None,
        context: object = None,
        ray_address: str | None = None,
        ray_remote_args: Mapping[str, Any] | None = None,
    ) -> None:
        if processes is not None and (isinstance(processes, bool) or not isinstance(processes, int)):
            raise TypeError(f"processes={processes!r} must be an int, or None for one process on each CPU")
        if processes is not None and processes <= 0:
            raise ValueError(f"processes={processes!r}: Processes in the pool must be >0")
        if initializer is not None and not callable(initializer):
            raise TypeError(f"initializer={initializer!r} must be callable")
        if maxtasksperchild is not None and maxtasksperchild < 1:
            raise ValueError(f"maxtasksperchild={maxtasksperchild!r} must be positive, or None")
        if not api.is_initialized():
            self._start(ray_address, processes)
        processes = _fitting(processes)
        self._verbs = runtime.current("Pool()").verbs
        self._process: Any = api.remote(_PoolProcess).options(**self._options(ray_remote_args or {}))
        self._arguments = initializer, tuple(initargs or ())
        self._maxtasksperchild = maxtasksperchild
        self._actors: list[ActorHandle[Any]] = [self._make() for _ in range(processes)]
        self._chunks_done = [0] * processes
        self._pending: list[dict[ObjectRef[Any], None]] = [{} for _ in range(processes)]
        """Of each process, the chunks that it has and that were not seen to end."""
        self._leaving: list[tuple[ActorHandle[Any], list[ObjectRef[Any]]]] = []
        """Processes that are replaced, with what they still do."""
        self._is_closed = False
        try:
            api.get([actor.ping.remote() for actor in self._actors])
        except BaseException:
            self.terminate()
            raise

    def _options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        if _PLACING.isdisjoint(given) and not self._verbs.captures_children():
            return {"num_cpus": 0, "scheduling_strategy": "SPREAD", **given}
        return {"num_cpus": 0, **given}

    def _start(self, address: str | None, processes: int | None) -> None:
        """Start a cluster, or join the one at the address."""
        if address in (None, "local"):
            api.init(num_cpus=processes)
        else:
            api.init(address=address)

    def _make(self) -> ActorHandle[Any]:
        actor: ActorHandle[Any] = self._process.remote(*self._arguments)
        return actor

    def __getstate__(self) -> dict[str, Any]:
        """A task that is given a pool uses the same processes, and knows nothing of what they have to do."""
        state = self.__dict__ | {"_pending": None, "_leaving": None}
        del state["_verbs"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._verbs = runtime.current("unpickling a Pool").verbs
        self._pending = [{} for _ in self._actors]
        self._leaving = []

    # ---- One call --------------------------------------------------------------------------------------------

    def apply(
        self, func: Callable[..., Any], args: Iterable[Any] | None = None, kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """`func(*args, **kwargs)`, in a process of the pool."""
        return self.apply_async(func, args, kwargs).get()

    def apply_async(
        self,
        func: Callable[..., Any],
        args: Iterable[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        callback: Callable[[Any], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
    ) -> AsyncResult:
        """As `apply`, without waiting. `callback(result)` or `error_callback(exception)` is called when it is there."""
        self._check_open()
        ref = self._submit(func, [(tuple(args or ()), dict(kwargs or {}))])
        return _with_callbacks(AsyncResult([ref], is_single=True), callback, error_callback)

    # ---- Many calls ------------------------------------------------------------------------------------------

    def map(self, func: Callable[[Any], Any], iterable: Iterable[Any], chunksize: int | None = None) -> list[Any]:
        """`[func(x) for x in iterable]`, in the processes of the pool."""
        return list(self.map_async(func, iterable, chunksize).get())

    def map_async(
        self,
        func: Callable[[Any], Any],
        iterable: Iterable[Any],
        chunksize: int | None = None,
        callback: Callable[[list[Any]], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
    ) -> AsyncResult:
        """As `map`, without waiting; callbacks as of `apply_async`."""
        return self._map_async(func, [((value,), {}) for value in iterable], chunksize, callback, error_callback)

    def starmap(
        self, func: Callable[..., Any], iterable: Iterable[Iterable[Any]], chunksize: int | None = None
    ) -> list[Any]:
        """`[func(*args) for args in iterable]`, in the processes of the pool."""
        return list(self.starmap_async(func, iterable, chunksize).get())

    def starmap_async(
        self,
        func: Callable[..., Any],
        iterable: Iterable[Iterable[Any]],
        chunksize: int | None = None,
        callback: Callable[[list[Any]], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
    ) -> AsyncResult:
        """As `starmap`, without waiting; callbacks as of `apply_async`."""
        return self._map_async(func, [(tuple(args), {}) for args in iterable], chunksize, callback, error_callback)

    def _map_async(
        self,
        func: Callable[..., Any],
        calls: Chunk,
        chunksize: int | None,
        callback: Callable[[list[Any]], object] | None,
        error_callback: Callable[[BaseException], object] | None,
    ) -> AsyncResult:
        self._check_open()
        if chunksize is None:
            chunksize = max(1, -(-len(calls) // (len(self._actors) * _CHUNKS_PER_PROCESS)))
        _check_chunksize(chunksize)
        refs = [self._submit(func, chunk) for chunk in _cut(calls, chunksize)]
        return _with_callbacks(AsyncResult(refs, is_single=False), callback, error_callback)

    def imap(self, func: Callable[[Any], Any], iterable: Iterable[Any], chunksize: int | None = 1) -> IMapIterator:
        """The results in order, each as soon as it and those before it are there; `iterable` is read as they are taken.

        `chunksize` None is 1. The iterator's `next(timeout=None)` takes a limit in seconds, as in the standard library.
        """
        return self._imap(func, iterable, chunksize, is_ordered=True)

    def imap_unordered(
        self, func: Callable[[Any], Any], iterable: Iterable[Any], chunksize: int | None = 1
    ) -> IMapIterator:
        """As `imap`, in the order in which chunks end."""
        return self._imap(func, iterable, chunksize, is_ordered=False)

    def _imap(
        self, func: Callable[[Any], Any], iterable: Iterable[Any], chunksize: int | None, *, is_ordered: bool
    ) -> IMapIterator:
        self._check_open()
        if chunksize is None:
            chunksize = 1
        _check_chunksize(chunksize)
        chunks = _cut((((value,), {}) for value in iterable), chunksize)
        submitted = (self._submit(func, chunk) for chunk in chunks)
        return IMapIterator(
            submitted,
            ahead=len(self._actors) * _AHEAD_PER_PROCESS,
            is_ordered=is_ordered,
            raises=self._raises_in_turn,
        )

    # ---- Chunks ----------------------------------------------------------------------------------------------

    def _submit(self, func: Callable[..., Any], chunk: Chunk) -> ObjectRef[Any]:
        """Give a chunk to the process that has the fewest."""
        for pending in self._pending:
            if pending:
                for done in api.wait(list(pending), num_returns=len(pending), timeout=0)[0]:
                    del pending[done]
        index = min(range(len(self._actors)), key=lambda i: (len(self._pending[i]), self._chunks_done[i], i))
        if self._maxtasksperchild is not None and self._chunks_done[index] >= self._maxtasksperchild:
            self._leaving.append((self._actors[index], list(self._pending[index])))
            self._actors[index] = self._make()
            self._chunks_done[index] = 0
            self._pending[index] = {}
        ref: ObjectRef[Any] = self._actors[index].run.remote(func, chunk)
        self._pending[index][ref] = None
        self._chunks_done[index] += 1
        return ref

    # ---- The end ---------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Take no more work; what was submitted goes on."""
        self._is_closed = True

    def terminate(self) -> None:
        """End the processes at once: results that are not there yet never come, `get` raises ActorDiedError."""
        self._is_closed = True
        actors, self._actors = self._actors, []
        leaving, self._leaving = self._leaving, []
        if not self._verbs.is_closed:
            for actor in (*actors, *(actor for actor, _ in leaving)):
                api.kill(actor)

    def join(self) -> None:
        """Wait until the work is done; after `close` or `terminate`. The processes end with it.

        Raises:
            ValueError: the pool is open.
        """
        if not self._is_closed:
            raise ValueError("Pool is still running: call close() or terminate() before join()")
        refs = [ref for _, refs in self._leaving for ref in refs]
        if self._actors:
            refs += [ref for pending in self._pending for ref in pending]
        if refs:
            api.wait(refs, num_returns=len(refs))
        self.terminate()

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.terminate()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ValueError("Pool not running: the pool was closed, and takes no more work")


_PLACING = frozenset({"num_cpus", "num_gpus", "resources", "label_selector", "scheduling_strategy"})
"""Options that say where processes go: then nothing else does."""


def _fitting(processes: int | None) -> int:
    """How many processes there are to be.

    Raises:
        ValueError: more than the cluster has CPUs.
    """
    cpus = int(api.cluster_resources().get("CPU", 0))
    if processes is None:
        return max(1, cpus)
    if processes > cpus:
        raise ValueError(
            f"Tried to start a pool with {processes} processes on an existing cluster, but there are only {cpus} "
            f"CPUs in it: use Pool({max(1, cpus)}), or start the cluster with init(num_cpus={processes})"
        )
    return processes


class IMapIterator:
    """What `imap` and `imap_unordered` return."""

    def __init__(
        self, submitted: Iterator[ObjectRef[Any]], *, ahead: int, is_ordered: bool, raises: bool = True
    ) -> None:
        self._submitted = submitted
        self._raises = raises
        self._is_ordered = is_ordered
        self._refs = list(itertools.islice(submitted, ahead))
        self._answers: deque[tuple[bool, Any]] = deque()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        return self.next()

    def next(self, timeout: float | None = None) -> Any:
        """The next result.

        Raises:
            StopIteration: there are no more.
            TimeoutError: (multiprocessing's) it did not come within `timeout` seconds; it can be asked for again.
            Exception: what the function raised; the results after it can still be had.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._answers:
            if not self._refs:
                raise StopIteration
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready, _ = api.wait(self._refs[:1] if self._is_ordered else self._refs, timeout=left)
            if not ready:
                raise TimeoutError(f"the next result of the pool did not arrive within {timeout} s")
            self._refs.remove(ready[0])
            self._refs.extend(itertools.islice(self._submitted, 1))
            self._answers.extend(api.get(ready[0]))
        has_failed, value = self._answers.popleft()
        if has_failed and self._raises:
            raise value
        return value


def _cut(calls: Iterable[tuple[tuple[Any, ...], dict[str, Any]]], chunksize: int) -> Iterator[Chunk]:
    remaining = iter(calls)
    while chunk := list(itertools.islice(remaining, chunksize)):
        yield chunk


def _check_chunksize(chunksize: int) -> None:
    if isinstance(chunksize, bool) or not isinstance(chunksize, int):
        raise TypeError(f"chunksize={chunksize!r} must be an int")
    if chunksize < 1:
        raise ValueError(f"chunksize={chunksize!r} must be at least 1")


def _with_callbacks(
    result: AsyncResult,
    callback: Callable[[Any], object] | None,
    error_callback: Callable[[BaseException], object] | None,
) -> AsyncResult:
    if callback is None and error_callback is None:
        return result

    def tell() -> None:
        try:
            value = result.get()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the callback's
            then, value = error_callback, error
        else:
            then = callback
        if then is not None:
            try:
                then(value)
            except Exception:  # noqa: BLE001 - nobody waits for a callback: what it raises is shown
                traceback.print_exc()

    runtime.current("a pool's callback").verbs.spawn(tell)
    return result
