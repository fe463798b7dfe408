"""The notes of one process of a run on Ray that is recorded: `init(mode="ray", record=...)`.

Theory of operation. The notes are those of dualray/recording/recorded.py, which says what each holds, so that one file
is made of them in all modes. Here the verbs make them (recorded.py of this package), and what runs in place of the
user's code (calls.py). A process sends what it has noted, every SEND_S, to an actor that the driver has made; the
driver makes the file when it ends.

Ray tells no sizes, so that values are pickled once more to count their bytes. References in them are counted too, and
are not pickled: Ray would keep what they refer to for ever.

A task of Ray's has an id of 24 bytes, and an object one of 28. In the file they have 16 and 20, of which the latter
begin with the former: a constructor's is the id of its actor.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar, Token
from typing import Any, NamedTuple, TypeAlias

import ray
from ray import cloudpickle

from dualray.on_ray.anchors import Watched
from dualray.recording.usage import PeakMemory, Usage
from dualray.shared.handles import Reference
from dualray.shared.model.codec import pack

SEND_S = 0.1
"""How long a process keeps notes before it sends them."""
USAGE_NS = 5_000_000
"""How often a process that runs tasks looks at its CPU time."""
NO_RESULT = "__dualray_no_result__"
"""The attribute that marks a function without a result."""
_CONSTRUCTOR = b"\xff" * 8
_SMALL_BYTES = 64
"""The size of a pickled number, None or truth value."""


class RecordTo(NamedTuple):
    """Where a process sends its notes. It travels with each function and class.

    collector: the actor; None: the run is not recorded. names: what the record calls the nodes, by Ray's ids. driver:
    the driver's execution. plan: who counts the events of a plan of faults; None: there is none.
    """

    collector: Any
    names: Mapping[str, str]
    driver: bytes
    plan: Watched | None = None


class Collector:
    """The actor that keeps the notes of all processes until the driver asks for them."""

    def __init__(self) -> None:
        self._notes: dict[str, list[bytes]] = {}
        self._spent_ns = 0

    def add(self, address: str, notes: bytes, spent_ns: int) -> None:
        """Store the notes of a process, and the time that it spent on them."""
        self._notes.setdefault(address, []).append(notes)
        self._spent_ns += spent_ns

    def take(self) -> tuple[dict[str, bytes], int]:
        """Return the notes that arrived since the last call, by process."""
        taken, self._notes = {address: b"".join(parts) for address, parts in self._notes.items()}, {}
        spent_ns, self._spent_ns = self._spent_ns, 0
        return taken, spent_ns


# ---- Ids and sizes ---------------------------------------------------------------------------------------------------


def task_of(ray_id: bytes) -> bytes:
    """Return the record's id of a task, from the 24 bytes of Ray's id, or from an object that it made."""
    if ray_id[:8] == _CONSTRUCTOR:
        return ray_id[8:24]
    return ray_id[:12] + ray_id[20:24]


def object_of(ray_id: bytes) -> bytes:
    """Return the record's id of an object, from the 28 bytes of Ray's id."""
    return task_of(ray_id) + (int.from_bytes(ray_id[24:28], "little") - 1).to_bytes(4, "big")


def id_of(reference: Any) -> bytes:
    """Return the record's id of the object behind a reference. The handle of an actor is an object too."""
    ray_id: bytes = reference.object_id
    return ray_id + bytes(4) if len(ray_id) == 16 else object_of(ray_id)


class _Counter:
    """A file that counts the bytes written to it."""

    def __init__(self) -> None:
        self.size = 0

    def write(self, data: Any) -> int:
        """Count the bytes of `data`."""
        count = len(data)
        self.size += count
        return count


class _Sizer(cloudpickle.CloudPickler):  # type: ignore[misc]  # it ships no types
    """Pickles to measure the size. It collects references and leaves them out."""

    def __init__(self) -> None:
        self.file = _Counter()
        self.nested: dict[bytes, None] = {}
        super().__init__(self.file, protocol=5, buffer_callback=self._buffer)

    def _buffer(self, buffer: Any) -> None:
        self.file.size += buffer.raw().nbytes

    def persistent_id(self, obj: Any) -> Any:
        """Collect a reference, and do not pickle it."""
        if isinstance(obj, Reference):
            self.nested[id_of(obj.ref)] = None
            return 0
        if isinstance(obj, ray.ObjectRef):
            self.nested[object_of(obj.binary())] = None
            return 0
        return None


_Sized: TypeAlias = tuple[int, tuple[bytes, ...]]
"""The number of bytes of a value, and the references in it."""


def size_of(value: Any) -> tuple[int, tuple[bytes, ...]]:
    """How many bytes a value has, pickled, and which references are in it. Of what cannot be pickled Ray tells."""
    if value is None or type(value) in (int, float, bool):
        return _SMALL_BYTES, ()
    if type(value) in (bytes, str):
        return _SMALL_BYTES + len(value), ()
    sizer = _Sizer()
    try:
        sizer.dump(value)
    except Exception:  # noqa: BLE001 - pickling runs the user's code, and Ray will tell of its failure
        return _SMALL_BYTES, ()
    return sizer.file.size, tuple(sizer.nested)


def sizes_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, tuple[bytes, ...], tuple[bytes, ...]]:
    """Of arguments: bytes, the objects whose values are put in the place of references, and the references inside."""
    size = 0
    deps: list[bytes] = []
    nested: list[bytes] = []
    for value in (*args, *kwargs.values()):
        if isinstance(value, Reference):
            (deps if value.is_value else nested).append(id_of(value.ref))
            continue
        its_size, its_nested = size_of(value)
        size += its_size
        nested += its_nested
    return size, tuple(dict.fromkeys(deps)), tuple(dict.fromkeys(nested))


# ---- Notes -----------------------------------------------------------------------------------------------------------


class Execution(NamedTuple):
    """The task and the attempt that run."""

    task: bytes
    attempt: int


class _Begun(NamedTuple):
    """An attempt that has begun."""

    execution: Execution
    token: Token[Execution]
    began_ns: int
    usage: tuple[int, int] | None


class Notes:
    """The notes of one process. `spent_ns`: the time that the process spent on them."""

    def __init__(self, record_to: RecordTo, address: str) -> None:
        self.record_to = record_to
        self.address = address
        self.spent_ns = 0
        self._pending: deque[tuple[Any, ...]] = deque()
        self._templates: dict[tuple[str, str], int] = {}
        self._running: ContextVar[Execution] = ContextVar("running")
        self._root = Execution(record_to.driver, 0)
        self._usage, self._peak = Usage(), PeakMemory()
        self._usage_at_ns = -USAGE_NS
        self._lock = threading.Lock()
        self._is_due = threading.Event()
        self._sending = threading.Lock()
        self._is_closed = False
        threading.Thread(target=self._send_for_ever, daemon=True, name="dualray-notes").start()

    @property
    def running(self) -> Execution:
        """The task that runs here. In a driver: the driver."""
        return self._running.get(self._root)

    def note(self, *note: Any) -> None:
        """Keep a note."""
        self._pending.append(note)
        if not self._is_due.is_set():
            self._is_due.set()

    def template(self, name: str, words: str) -> int:
        """The number of a template, which is noted when it is new."""
        number = self._templates.get((name, words))
        if number is None:
            number = self._templates[name, words] = len(self._templates)
            self.note("template", number, name, words)
        return number

    def begin(self, task: bytes, attempt: int) -> _Begun:
        """Note that an attempt begins in this context."""
        now_ns = time.time_ns()
        execution = Execution(task, attempt)
        self.note("came", now_ns, ((task, attempt),))
        usage = None
        if now_ns - self._usage_at_ns >= USAGE_NS:
            self._usage_at_ns = now_ns
            usage = self._usage()
            self._peak()
        return _Begun(execution, self._running.set(execution), now_ns, usage)

    def end(self, begun: _Begun, error: str, results: Sequence[Any], *, is_alone: bool = True) -> None:
        """Note that the attempt ended with these results. `is_alone`: the process ran nothing else meanwhile."""
        returned_ns = time.time_ns()
        self.end_sized(begun, error, [size_of(value) for value in results], returned_ns, is_alone=is_alone)
        self.spent_ns += time.time_ns() - returned_ns

    def end_sized(
        self, begun: _Begun, error: str, sized: Sequence[_Sized], returned_ns: int, *, is_alone: bool
    ) -> None:
        """Note that the attempt ended at a time, with results of these sizes."""
        task, attempt = begun.execution
        began_ns = begun.began_ns
        self.note(
            *("run", task, attempt, began_ns, began_ns, returned_ns, returned_ns, 0, error),
            *(tuple([size for size, _ in sized]), tuple(dict.fromkeys(each for _, ids in sized for each in ids))),
        )
        if begun.usage is not None and is_alone and returned_ns - began_ns >= USAGE_NS:
            cpu_ns, delay_ns = self._usage()
            self.note(
                *("usage", began_ns, returned_ns, cpu_ns - begun.usage[0], delay_ns - begun.usage[1], self._peak())
            )
        self.leave(begun)

    def leave(self, begun: _Begun) -> None:
        """Continue with the attempt that ran before in this context."""
        try:
            self._running.reset(begun.token)
        except ValueError:  # a generator is closed in another context than it began in
            self._running.set(self._root)

    def _send_for_ever(self) -> None:
        while True:
            self._is_due.wait()
            time.sleep(SEND_S)
            self._is_due.clear()
            if not self.send():
                return

    def send(self, wait_s: float = 0) -> bool:
        """Send what was noted to the collector; False: the program, or the collector, has ended. `wait_s`: how long to
        wait until it has come, in a process that is about to end."""
        with self._sending:
            return not self._is_closed and self._send(wait_s)

    def close(self) -> None:
        """Send nothing any more: Ray would connect again for a call after the end of the program."""
        with self._sending:
            self._is_closed = True
        self._is_due.set()

    def _send(self, wait_s: float) -> bool:
        notes, spent_ns = self.take()
        if notes:
            try:
                sent = self.record_to.collector.add.remote(self.address, notes, spent_ns)
                if wait_s:
                    ray.get(sent, timeout=wait_s)
            except (ray.exceptions.RayError, RuntimeError, AttributeError):
                return False
        return True

    def take(self) -> tuple[bytes, int]:
        """Return the notes since the last call, and the time spent on them."""
        with self._lock:
            pending = self._pending
            taken = [pending.popleft() for _ in range(len(pending))]
            spent_ns, self.spent_ns = self.spent_ns, 0
        return (pack(taken) if taken else b""), spent_ns


def here(record_to: RecordTo) -> Notes:
    """Return the notes of this worker. Its first task creates them."""
    context = ray.get_runtime_context()
    node = context.get_node_id()
    return Notes(record_to, f"{record_to.names.get(node, node)}/w{context.get_worker_id()[:8]}")


def running_now() -> tuple[bytes, int]:
    """Return the task and the attempt that Ray runs here."""
    core = ray._private.worker.global_worker.core_worker
    return task_of(core.get_current_task_id().binary()), int(core.get_current_task_attempt_number())


def noted(notes: Notes, call: Callable[..., Any], count: int) -> Callable[..., Any]:
    """Note a call. `count`: the number of its results."""

    def run(*args: Any, **kwargs: Any) -> Any:
        begun = notes.begin(*running_now())
        try:
            result = call(*args, **kwargs)
        except BaseException:
            notes.end(begun, "APPLICATION", ())
            raise
        if hasattr(result, "__next__") or hasattr(result, "__anext__"):
            notes.leave(begun)
            if hasattr(result, "__anext__"):
                return _noted_async(notes, begun, result)
            return _noted_items(notes, begun, result) if count == 1 else _noted_results(notes, begun, result)
        several = count > 1 and isinstance(result, list | tuple)
        is_none = count == 0 or NO_RESULT in getattr(call, "__dict__", ())
        notes.end(begun, "", () if is_none else result if several else (result,))
        return result

    return run


def _item(notes: Notes, begun: _Begun, index: int, value: Any, error: str = "") -> None:
    size, nested = (0, ()) if error else size_of(value)
    task, attempt = begun.execution
    notes.note("item", time.time_ns(), task, attempt, task + index.to_bytes(4, "big"), size, nested, 0, error)


def _noted_items(notes: Notes, begun: _Begun, items: Any) -> Any:
    """Yield the items of a generator, and note each."""
    begun = begun._replace(token=notes._running.set(begun.execution))
    index = 0
    error = ""
    try:
        for item in items:
            index += 1
            _item(notes, begun, index, item)
            yield item
    except GeneratorExit:
        items.close()
        raise
    except BaseException:
        error = "APPLICATION"
        _item(notes, begun, index + 1, None, error)
        raise
    finally:
        notes.end(begun, error, (None,))


def _noted_results(notes: Notes, begun: _Begun, results: Any) -> Any:
    """Yield the items of a generator whose items are its results."""
    begun = begun._replace(token=notes._running.set(begun.execution))
    sized: list[_Sized] = []
    error = ""
    try:
        for result in results:
            sized.append(size_of(result))
            yield result
    except GeneratorExit:
        results.close()
        raise
    except BaseException:
        error = "APPLICATION"
        raise
    finally:
        notes.end_sized(begun, error, sized, time.time_ns(), is_alone=True)


async def _noted_async(notes: Notes, begun: _Begun, items: Any) -> Any:
    """The same as `_noted_items`, for an asynchronous generator."""
    begun = begun._replace(token=notes._running.set(begun.execution))
    index = 0
    error = ""
    try:
        async for item in items:
            index += 1
            _item(notes, begun, index, item)
            yield item
    except BaseException as raised:
        if not isinstance(raised, GeneratorExit):
            error = "APPLICATION"
            _item(notes, begun, index + 1, None, error)
        raise
    finally:
        notes.end(begun, error, (None,), is_alone=False)


def words_of_group(
    bundles: Sequence[Mapping[str, float]], strategy: str, *, is_detached: bool, labels: Sequence[str]
) -> str:
    """Return a placement group as the record writes it."""
    words = {"bundles": [dict(each) for each in bundles], "strategy": strategy}
    return json.dumps({**words, "is_detached": is_detached, "labels": list(labels)}, sort_keys=True)
