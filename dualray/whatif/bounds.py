"""What no run of a recorded program can beat on any cluster: its critical path, and the work of its busiest actor.

Both come from the recorded durations alone. The critical path is the time that the program takes with a core for every
task, and with messages that take no time. Calls of one actor from one caller follow one another. The work of an actor
counts the calls that the end of the program waits for. A program that goes on with whichever task is ready first has
no fixed path: of such a program only the actors count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dualray.recording.graph import GET, SUBMIT, WAIT, Graph, Script, TaskNode

_TASK_ID_BYTES = 16
_PUT_BIT = 0x80
"""In the first byte behind the task's id: the object was put, and is there already."""
_DRIVER = b""


def least_ns(graph: Graph) -> int:
    """Less than this the program takes on no cluster."""
    path_ns = 0 if _goes_on_with_the_first(graph) else _Paths(graph).driver_ns()
    return max(path_ns, busiest_actor_ns(graph))


def busiest_actor_ns(graph: Graph) -> int:
    """The work of the actor that has most of it, as far as the end of the program waits for it."""
    work: dict[bytes, int] = {}
    for node in _needed(graph):
        if node.actor in graph.tasks and not node.may_fail and not _is_concurrent(graph, node.actor):
            work[node.actor] = work.get(node.actor, 0) + node.script.compute_ns
    return max(work.values(), default=0)


def _is_concurrent(graph: Graph, actor: bytes) -> bool:
    return bool(graph.templates[graph.tasks[actor].template].words.get("is_concurrent"))


def _maker(graph: Graph, object_id: bytes) -> bytes | None:
    """The task that makes an object with its end; None: the object is there before, or nobody knows."""
    task_id = object_id[:_TASK_ID_BYTES]
    node = graph.tasks.get(task_id)
    if node is None or object_id[_TASK_ID_BYTES] & _PUT_BIT or "streaming" in graph.templates[node.template].words:
        return None
    return task_id


def _scripts(graph: Graph) -> Iterator[Script]:
    yield graph.driver
    for node in graph.tasks.values():
        yield node.script


def _goes_on_with_the_first(graph: Graph) -> bool:
    return any(
        op[1] == WAIT and (op[4] is not None or op[3] < len(op[2])) for script in _scripts(graph) for op in script.ops
    )


def _before_of(graph: Graph) -> dict[bytes, bytes]:
    """Of each call of an actor, the call of the same caller before it; of the first, the constructor."""
    found: dict[bytes, bytes] = {}
    for script in _scripts(graph):
        last: dict[bytes, bytes] = {}
        for op in script.ops:
            if op[1] == SUBMIT and (actor := graph.tasks[op[2]].actor):
                found[op[2]] = last.get(actor, actor)
                last[actor] = op[2]
    return found


def _needed(graph: Graph) -> Iterator[TaskNode]:
    """The tasks that the end of the program waits for."""
    before = _before_of(graph)
    seen: set[bytes] = set()
    left = [*_awaited(graph, graph.driver)]
    while left:
        task_id = left.pop()
        if task_id in seen or task_id not in graph.tasks:
            continue
        seen.add(task_id)
        node = graph.tasks[task_id]
        yield node
        left += [maker for dep in node.deps if (maker := _maker(graph, dep)) is not None]
        left += _awaited(graph, node.script)
        if task_id in before:
            left.append(before[task_id])


def _awaited(graph: Graph, script: Script) -> Iterable[bytes]:
    for op in script.ops:
        if op[1] in (GET, WAIT):
            for object_id in op[2] if op[1] == GET else op[5]:
                maker = _maker(graph, object_id)
                if maker is not None:
                    yield maker


class _Going:
    """One execution on its way: a task that waits for what it needs, or is at some operation of its script."""

    __slots__ = ("at", "missing", "now_ns", "script", "task_id")

    def __init__(self, task_id: bytes, script: Script, now_ns: int) -> None:
        self.task_id = task_id
        self.script = script
        self.now_ns = now_ns
        self.at = 0
        self.missing = 0


class _Paths:
    """When each task would end at the earliest."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._at_once = {task_id for task_id in graph.tasks if _is_concurrent(graph, task_id)}
        self._ends: dict[bytes, int] = {}
        self._waiting: dict[bytes, list[_Going]] = {}
        self._ready: list[_Going] = []

    def driver_ns(self) -> int:
        """When the driver would; 0: it waits for something that never ends in the record."""
        driver = _Going(_DRIVER, self._graph.driver, 0)
        before = _before_of(self._graph)
        self._ready.append(driver)
        while self._ready:
            self._advance(self._ready.pop(), before)
        return self._ends.get(_DRIVER, 0)

    def _advance(self, going: _Going, before: dict[bytes, bytes]) -> None:
        ops = going.script.ops
        while going.at < len(ops):
            op = ops[going.at]
            going.at += 1
            going.now_ns += op[0]
            if op[1] == SUBMIT:
                self._submit(op[2], going.now_ns, before)
            elif op[1] in (GET, WAIT) and self._waits(going, op[2]):
                return
        self._end(going.task_id, going.now_ns + going.script.tail_ns)

    def _submit(self, task_id: bytes, now_ns: int, before: dict[bytes, bytes]) -> None:
        node = self._graph.tasks[task_id]
        if node.may_fail:
            self._end(task_id, now_ns)
            return
        task = _Going(task_id, node.script, now_ns)
        needs = list(node.deps)
        first = before.get(task_id)
        if first is not None and node.actor not in self._at_once:
            needs.append(first + bytes(4))
        if not self._waits(task, needs):
            self._ready.append(task)

    def _waits(self, going: _Going, objects: Iterable[bytes]) -> bool:
        """Whether it has to wait for one of these; it has come as far as the last that has ended."""
        for object_id in objects:
            maker = _maker(self._graph, object_id)
            if maker is None:
                continue
            ended_ns = self._ends.get(maker)
            if ended_ns is None:
                self._waiting.setdefault(maker, []).append(going)
                going.missing += 1
            else:
                going.now_ns = max(going.now_ns, ended_ns)
        return going.missing > 0

    def _end(self, task_id: bytes, ended_ns: int) -> None:
        self._ends[task_id] = ended_ns
        for going in self._waiting.pop(task_id, ()):
            going.now_ns = max(going.now_ns, ended_ns)
            going.missing -= 1
            if not going.missing:
                self._ready.append(going)
