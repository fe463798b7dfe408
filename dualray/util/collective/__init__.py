"""Collective operations between actors or tasks: all-reduce, broadcast, all-gather and others, on arrays in memory.

    from dualray.util import collective

    @dualray.remote
    class Worker:
        def __init__(self, world_size, rank):
            collective.init_collective_group(world_size, rank, backend="gloo")
            self.gradient = numpy.ones(1000)

        def step(self):
            collective.allreduce(self.gradient)  # in place

The functions have the names that they have in Ray. Tensors are numpy arrays, or torch tensors of the CPU. Each
operation changes its tensor in place, and waits until all ranks of the group have called it. The backend "gloo" means
dualray's own transport, through its object store. There is no backend for GPUs.
"""

from __future__ import annotations

from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np

from dualray import api, runtime
from dualray.util.collective.exchange import Group, actor_name, exchange_of, value_of
from dualray.util.collective.types import Backend, ReduceOp

__all__ = [
    "Backend",
    "ReduceOp",
    "allgather",
    "allreduce",
    "barrier",
    "broadcast",
    "create_collective_group",
    "destroy_collective_group",
    "get_collective_group_size",
    "get_group_handle",
    "get_rank",
    "gloo_available",
    "init_collective_group",
    "is_backend_available",
    "is_group_initialized",
    "nccl_available",
    "recv",
    "reduce",
    "reducescatter",
    "send",
]

_TIMEOUT_MS: Final = 30_000
_SPLIT_BYTES: Final = 256 << 10
"""From this size on, each rank reduces a part of the tensor, and the ranks exchange the parts: no rank reads all."""
_REDUCE: Final[dict[ReduceOp, Any]] = {
    ReduceOp.SUM: np.add,
    ReduceOp.PRODUCT: np.multiply,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
}
_groups: WeakKeyDictionary[Any, dict[str, Group]] = WeakKeyDictionary()
"""The groups of this process, by its runtime: in a simulation many processes share this module."""


# ---- Groups --------------------------------------------------------------------------------------------------


def nccl_available() -> bool:
    """Whether there is a backend for GPUs: no."""
    return False


def gloo_available() -> bool:
    """Whether there is a backend for CPUs: yes."""
    return True


def is_backend_available(backend: str) -> bool:
    """Whether a backend of this name can be used."""
    return backend.upper() in ("GLOO", "TORCH_GLOO")


def init_collective_group(
    world_size: int,
    rank: int,
    backend: str = Backend.NCCL,
    group_name: str = "default",
    gloo_timeout: int = _TIMEOUT_MS,
) -> None:
    """Make this process a member of a group. Each of its members calls this once.

    Args:
        world_size: the number of members.
        rank: of this member, from 0 to `world_size - 1`.
        backend: "gloo".
        group_name: a process can be a member of several groups, with a name each.
        gloo_timeout: milliseconds that an operation waits for the other ranks. Default 30,000.

    Raises:
        RuntimeError: this process is a member of a group of this name; the backend is not available.
        ValueError: a rank or a size that makes no sense, or no name.
    """
    if not group_name:
        raise ValueError("group_name must not be empty")
    _check_backend(backend)
    if world_size < 1 or not 0 <= rank < world_size:
        raise ValueError(f"rank={rank} must be between 0 and world_size - 1, and world_size is {world_size}")
    if is_group_initialized(group_name):
        raise RuntimeError(
            f"this process has initialized the collective group {group_name!r} before (Trying to initialize a group a "
            f"second time.); call destroy_collective_group({group_name!r}) first"
        )
    _own()[group_name] = Group(group_name, world_size, rank, gloo_timeout)


def create_collective_group(
    actors: list[Any],
    world_size: int,
    ranks: list[int],
    backend: str = Backend.NCCL,
    group_name: str = "default",
    gloo_timeout: int = _TIMEOUT_MS,
) -> None:
    """Declare that actors are the members of a group. They need not call `init_collective_group`.

    Args:
        actors: the members.
        world_size: their number.
        ranks: of each of them.
        backend: "gloo".
        group_name: of the group.
        gloo_timeout: milliseconds that an operation waits for the other ranks. Default 30,000.

    Raises:
        RuntimeError: there is a group of this name; the ranks are not 0 to `world_size - 1`; the backend is not
            available.
    """
    _check_backend(backend)
    if sorted(ranks) != list(range(world_size)) or len(actors) != world_size:
        raise RuntimeError(
            f"ranks={ranks} must have each rank from 0 to world_size - 1 once, with {len(actors)} actors and "
            f"world_size={world_size}"
        )
    try:
        api.get_actor(actor_name(group_name))
    except ValueError:
        actor = exchange_of(group_name, world_size)
    else:
        raise RuntimeError(f"the collective group {group_name!r} already exists (Trying to initialize a group twice.)")
    members = {each._actor_id.hex(): rank for each, rank in zip(actors, ranks, strict=True)}
    api.get(actor.declare.remote(members, gloo_timeout))
    _declared.setdefault(_process(), {})[group_name] = actor


_declared: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()
"""The actors of groups that a process has declared: they live as long as it refers to them."""


def is_group_initialized(group_name: str = "default") -> bool:
    """Whether this process is a member of the group."""
    return group_name in _own()


def destroy_collective_group(group_name: str = "default") -> None:
    """End this process's membership of a group, or the declaration of a group. Nothing happens if there is none."""
    _own().pop(group_name, None)
    _declared.get(_process(), {}).pop(group_name, None)


def get_rank(group_name: str = "default") -> int:
    """The rank of this process; -1 if it is not a member."""
    return _own()[group_name].rank if is_group_initialized(group_name) else -1


def get_collective_group_size(group_name: str = "default") -> int:
    """The number of members; -1 if this process is not one."""
    return _own()[group_name].world_size if is_group_initialized(group_name) else -1


def get_group_handle(group_name: str = "default") -> Group:
    """This process's membership of a group.

    Raises:
        RuntimeError: it is not a member.
    """
    own = _own()
    if group_name not in own:
        own[group_name] = _joined(group_name)
    return own[group_name]


# ---- Operations ----------------------------------------------------------------------------------------------


def allreduce(tensor: Any, group_name: str = "default", op: ReduceOp = ReduceOp.SUM) -> None:
    """Combine the tensors of all ranks, and write the result into each of them."""
    array, group = _array(tensor), get_group_handle(group_name)
    if array.nbytes < _SPLIT_BYTES or group.world_size == 1:
        array[...] = _reduced(_brought(group, f"allreduce {op.name}", array), op)
        return
    parts = np.array_split(np.ascontiguousarray(array).reshape(-1), group.world_size)
    brought = group.exchange(f"allreduce {op.name}", list(parts))
    mine = _reduced([value_of(items[group.rank]) for items in brought], op)
    done = [value_of(items[0]) for items in group.exchange(f"allreduce {op.name}: the parts", [mine])]
    array[...] = np.concatenate(done).reshape(array.shape)


def barrier(group_name: str = "default") -> None:
    """Wait until all ranks have called this."""
    get_group_handle(group_name).exchange("barrier", [])


def reduce(tensor: Any, dst_rank: int = 0, group_name: str = "default", op: ReduceOp = ReduceOp.SUM) -> None:
    """Combine the tensors of all ranks, and write the result into that of one rank."""
    array, group = _array(tensor), get_group_handle(group_name)
    _check_rank(dst_rank, group)
    brought = group.exchange(f"reduce {op.name} to rank {dst_rank}", [array])
    if group.rank == dst_rank:
        array[...] = _reduced([value_of(items[0]) for items in brought], op)


def broadcast(tensor: Any, src_rank: int = 0, group_name: str = "default") -> None:
    """Write the tensor of one rank into those of all others."""
    array, group = _array(tensor), get_group_handle(group_name)
    _check_rank(src_rank, group)
    brought = group.exchange(f"broadcast from rank {src_rank}", [array if group.rank == src_rank else None])
    if group.rank != src_rank:
        _write(array, value_of(brought[src_rank][0]), "broadcast")


def allgather(tensor_list: list[Any], tensor: Any, group_name: str = "default") -> None:
    """Write the tensor of each rank into the list: that of rank 0 into the first one, and so on.

    Raises:
        RuntimeError: the list has another length than the group.
    """
    arrays, group = [_array(each) for each in tensor_list], get_group_handle(group_name)
    _check_list(arrays, group, "allgather")
    for array, value in zip(arrays, _brought(group, "allgather", _array(tensor, is_written=False)), strict=True):
        _write(array, value, "allgather")


def reducescatter(
    tensor: Any, tensor_list: list[Any], group_name: str = "default", op: ReduceOp = ReduceOp.SUM
) -> None:
    """Combine the lists of all ranks, tensor by tensor, and write into `tensor` the one at this rank's place.

    Raises:
        RuntimeError: the list has another length than the group.
    """
    array, group = _array(tensor), get_group_handle(group_name)
    arrays = [_array(each, is_written=False) for each in tensor_list]
    _check_list(arrays, group, "reducescatter")
    brought = group.exchange(f"reducescatter {op.name}", arrays)
    _write(array, _reduced([value_of(items[group.rank]) for items in brought], op), "reducescatter")


def send(tensor: Any, dst_rank: int, group_name: str = "default") -> None:
    """Send a tensor to another rank, which calls `recv`.

    Raises:
        RuntimeError: the rank is this process's own.
    """
    array, group = _array(tensor, is_written=False), get_group_handle(group_name)
    _check_rank(dst_rank, group, is_other=True)
    group.send(dst_rank, array)


def recv(tensor: Any, src_rank: int, group_name: str = "default") -> None:
    """Write the next tensor that a rank sends to this one into `tensor`.

    Raises:
        RuntimeError: the rank is this process's own.
    """
    array, group = _array(tensor), get_group_handle(group_name)
    _check_rank(src_rank, group, is_other=True)
    _write(array, group.receive(src_rank), "recv")


# ---- Their parts ---------------------------------------------------------------------------------------------


def _process() -> Any:
    """What stands for this process: in a compiled simulation, a worker's runtime cannot be referred to weakly."""
    return runtime.current("collective").verbs


def _own() -> dict[str, Group]:
    return _groups.setdefault(_process(), {})


def _joined(group_name: str) -> Group:
    """This process's membership of a group that another one has declared."""
    actor_id = api.get_runtime_context().get_actor_id()
    try:
        found = api.get(api.get_actor(actor_name(group_name)).declared.remote(actor_id)) if actor_id else None
    except ValueError:
        found = None
    if found is None:
        raise RuntimeError(
            f"the collective group {group_name!r} is not initialized in this process: call init_collective_group() in "
            f"this process, or create_collective_group() with this actor in the driver"
        )
    world_size, rank, timeout_ms = found
    return Group(group_name, world_size, rank, timeout_ms)


def _check_backend(backend: str) -> None:
    if not is_backend_available(Backend(backend)):
        raise RuntimeError(f"the backend {backend} is not available: use backend='gloo', with tensors on the CPU")


def _check_rank(rank: int, group: Group, *, is_other: bool = False) -> None:
    if not 0 <= rank < group.world_size:
        raise ValueError(
            f"rank {rank} is not in the collective group {group.name!r}, which has {group.world_size} ranks"
        )
    if is_other and rank == group.rank:
        raise RuntimeError(
            f"rank {rank} is the rank of this process, which can only send to other ranks and receive from other ranks"
        )


def _check_list(arrays: list[Any], group: Group, verb: str) -> None:
    if len(arrays) != group.world_size:
        raise RuntimeError(
            f"{verb} takes a list of {group.world_size} tensors, one for each rank of the collective group "
            f"{group.name!r}, and got {len(arrays)}"
        )


def _array(tensor: Any, *, is_written: bool = True) -> np.ndarray[Any, Any]:
    """The array of a tensor, in its own memory.

    Raises:
        RuntimeError: it is neither a numpy array nor a torch tensor of the CPU.
        ValueError: it cannot be written.
    """
    array = tensor
    if type(tensor).__module__.partition(".")[0] == "torch" and tensor.device.type == "cpu":
        array = tensor.detach().numpy()
    if not isinstance(array, np.ndarray):
        raise RuntimeError(f"a tensor must be a numpy array or a torch tensor on the CPU, not {type(tensor).__name__}")
    if is_written and not array.flags.writeable:
        raise ValueError(
            "the tensor is read-only, like a result of get() and an argument of a task: copy the tensor first"
        )
    return array


def _brought(group: Group, operation: str, array: np.ndarray[Any, Any]) -> list[Any]:
    """The array of each rank."""
    return [value_of(items[0]) for items in group.exchange(operation, [array])]


def _reduced(values: list[Any], op: ReduceOp) -> Any:
    """The values combined, in the order of the ranks: the same bits for each rank."""
    first, *others = values
    if any(each.shape != first.shape for each in others):
        raise ValueError(
            f"the tensors of the ranks must have the same shape, but have {[each.shape for each in values]}"
        )
    result = first
    for each in others:
        result = _REDUCE[op](result, each)
    return result


def _write(array: np.ndarray[Any, Any], value: Any, verb: str) -> None:
    if array.shape != value.shape:
        raise ValueError(f"{verb}: the tensor has the shape {array.shape}, but the value has the shape {value.shape}")
    array[...] = value
