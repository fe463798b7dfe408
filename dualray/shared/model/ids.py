"""Ids: derived, never drawn.

A task's id is a part of a digest of (parent task, parent attempt, counter // 5), for five tasks find room in one
digest, and to make it takes longer than anything else about an id; an object's id is its task's id and an index. A
program whose tasks are deterministic and submit from one thread therefore gives the same ids in both modes, in every
run. Ids are plain bytes or strings under distinct names: they hash, sort, pickle and print at the speed of the
built-in types, and mypy keeps them apart.

    TaskID    16 bytes   12 bytes digest + 4 bytes job; the root of a job is the digest of its seed and number
    ObjectID  20 bytes   TaskID + 4 bytes: bit 31 = made by put, bits 24..30 = the putting attempt, rest = index;
                         from attempt 128 on, a digest of task and attempt stands for the TaskID
    ActorID   16 bytes   the TaskID of the task that constructs the actor
    PlacementGroupID   16 bytes, derived like a TaskID
    NodeID    "node-3"                    named by the cluster
    Address   "head", "driver-1", "node-3", "node-3/w7", "node-3~1/w2" (after one reboot of the node)
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from struct import Struct
from typing import NewType

TaskID = NewType("TaskID", bytes)
ObjectID = NewType("ObjectID", bytes)
ActorID = NewType("ActorID", bytes)
FunctionID = NewType("FunctionID", bytes)
PlacementGroupID = NewType("PlacementGroupID", bytes)
NodeID = NewType("NodeID", str)
Address = NewType("Address", str)
"""Whom a message goes to: the head, a node manager, a worker or a driver."""
LeaseID = NewType("LeaseID", str)
RequestID = NewType("RequestID", str)
WaitID = NewType("WaitID", int)

HEAD = Address("head")
FIRST_DRIVER = Address("driver-1")
"""Of a cluster that `init` has started: the only one."""

_TASK_ID_BYTES = 16
_DIGEST_BYTES = 12
_CHILD = Struct(">IQ")
_CHILDREN = 5
"""Ids that are cut from one digest, which has 64 bytes at most."""
_FIRST = bytes(4)
_PUT_BIT = 1 << 31
_ATTEMPT_SHIFT = 24
_ATTEMPT_MASK = 0x7F
_INDEX_MAX = (1 << _ATTEMPT_SHIFT) - 1

_LENT_BY = "lent by "


def root_task_id(seed: str, job: int) -> TaskID:
    """The id of a driver's own, implicit task: the parent of what the driver submits."""
    digest = blake2b(f"{seed}:{job}".encode(), digest_size=_DIGEST_BYTES, person=b"dualray-root").digest()
    return TaskID(digest + job.to_bytes(4, "big"))


def child_task_id(parent: TaskID, parent_attempt: int, counter: int) -> TaskID:
    """The id of the `counter`-th task that one attempt of `parent` submits: of the same job."""
    return ChildIds(parent, parent_attempt).of(counter)


class ChildIds:
    """`child_task_id` of many tasks of one attempt, in a fifth of the time when they are asked for in order."""

    __slots__ = ("_block", "_digest", "_job", "attempt", "parent")

    def __init__(self, parent: TaskID, attempt: int) -> None:
        self.parent = parent
        self.attempt = attempt
        self._job = parent[_DIGEST_BYTES:]
        self._block = -1
        self._digest = b""

    def of(self, counter: int) -> TaskID:
        """The id of the `counter`-th task."""
        block = counter // _CHILDREN
        if block != self._block:
            said = self.parent + _CHILD.pack(self.attempt, block)
            self._digest = blake2b(said, digest_size=_CHILDREN * _DIGEST_BYTES).digest()
            self._block = block
        begin = (counter - block * _CHILDREN) * _DIGEST_BYTES
        return TaskID(self._digest[begin : begin + _DIGEST_BYTES] + self._job)


def job_of(any_id: bytes) -> int:
    """The job of a task, an actor or an object: the number of the driver that it goes back to; 0: none."""
    return int.from_bytes(any_id[_DIGEST_BYTES:_TASK_ID_BYTES], "big")


def own_namespace(job: int) -> str:
    """The namespace of a job whose driver has not said one."""
    return f"job-{job:08x}"


def job_of_driver(driver: Address) -> int:
    """The number in a driver's address, such as `driver-3` or `driver-3@node-1`."""
    return int(driver.partition("@")[0].removeprefix("driver-"))


def return_object_id(task: TaskID, index: int) -> ObjectID:
    """The id of a task's `index`-th return value, counted from 0."""
    return ObjectID(task + (index.to_bytes(4, "big") if index else _FIRST))


def put_object_id(task: TaskID, attempt: int, counter: int) -> ObjectID:
    """The id of the `counter`-th object that one attempt of a task puts.

    Raises:
        OverflowError: after 16,777,215 puts by one attempt of one task.
    """
    if counter > _INDEX_MAX:
        raise OverflowError(f"task {task.hex()} has put {counter} objects, but a task can put at most {_INDEX_MAX}")
    if attempt > _ATTEMPT_MASK:
        task = child_task_id(task, attempt, 0)  # no task has this id: those that are submitted are counted from 1
    return ObjectID(task + (_PUT_BIT | (attempt & _ATTEMPT_MASK) << _ATTEMPT_SHIFT | counter).to_bytes(4, "big"))


def stream_handle_id(task: TaskID) -> ObjectID:
    """The object that stands for the consumer of a task's items: when its last reference goes, nobody takes any more.
    No `put` has this id: those are counted from 1."""
    return put_object_id(task, 0, 0)


def stream_room_id(task: TaskID) -> ObjectID:
    """The object for which a task waits that has made as many items ahead of its consumer as it may."""
    return put_object_id(task, 1, 0)


def return_index(object_id: ObjectID) -> int:
    """Which of its task's return values an object is; 0 is the first."""
    return int.from_bytes(object_id[_TASK_ID_BYTES:], "big")


def exception_id(task: TaskID) -> ObjectID:
    """The key under which the exception that ended a task travels: no value of the task has it."""
    return return_object_id(task, _PUT_BIT - 1)


def task_of(object_id: ObjectID) -> TaskID:
    """The task that returns the object; of one that was put, the task that put it, in its first 128 attempts."""
    return TaskID(object_id[:_TASK_ID_BYTES])


def is_put(object_id: ObjectID) -> bool:
    """Whether the object came from `put`: then no task can make it again."""
    return bool(object_id[_TASK_ID_BYTES] & 0x80)


def actor_handle_id(actor: ActorID) -> ObjectID:
    """The object that stands for an actor's handle: references to it keep the actor alive."""
    return return_object_id(TaskID(actor), 0)


def function_id(pickled: bytes) -> FunctionID:
    """The id under which the function table holds a pickled function or class."""
    return FunctionID(blake2b(pickled, digest_size=_TASK_ID_BYTES, person=b"dualray-func").digest())


def worker_address(node: NodeID, incarnation: int, counter: int) -> Address:
    """The address of a node's `counter`-th worker; never used twice, also after the node's reboot."""
    life = f"~{incarnation}" if incarnation else ""
    return Address(f"{node}{life}/w{counter}")


def node_of(address: Address) -> NodeID:
    """The node on which a worker, or a node manager, lives."""
    return NodeID(address.partition("/")[0].partition("~")[0])


def incarnation_of(address: Address) -> int:
    """In which life of its node a worker was started."""
    return int(address.partition("/")[0].partition("~")[2] or 0)


def lives_on(address: Address, node: NodeID, incarnation: int) -> bool:
    """Whether a process died with this life of a node, or an earlier one."""
    return "/" in address and node_of(address) == node and incarnation_of(address) <= incarnation


def lived_on(address: Address, lives: Mapping[NodeID, int]) -> bool:
    """The same of several nodes, each with its life."""
    if "/" not in address:
        return False
    incarnation = lives.get(node_of(address))
    return incarnation is not None and incarnation_of(address) <= incarnation


def lent_by(lender: Address) -> Address:
    """Who pins, in the store, what a process has lent."""
    return Address(_LENT_BY + lender)


def is_driver(address: Address) -> bool:
    """Whether a process is a driver: it has no node manager, and is not the head."""
    return address.startswith("driver-")


def short(any_id: bytes | str) -> str:
    """An id for messages that people read: the first 8 hex digits and, of an object, its index."""
    if isinstance(any_id, str):
        return any_id
    if len(any_id) <= _TASK_ID_BYTES:
        return any_id.hex()[:8]
    return f"{any_id.hex()[:8]}:{any_id[_TASK_ID_BYTES:].hex().lstrip('0') or '0'}"
