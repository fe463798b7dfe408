"""Faults that a real cluster's own processes perform: they are told through the doors of its nodes (fault_door.py).

`Links` keeps what all faults of the network come to together, and tells every gateway; `of_store` and `of_object` are
what a node manager does to itself. Names are those of the nodes as they are called now, and `head`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from dualray.cluster_utils import ClusterNode
from dualray.exceptions import DualrayError
from dualray.real.net.fault_door import GATEWAY_DOOR, NODE_DOOR, ask_door
from dualray.shared.model.ids import HEAD
from dualray.shared.scenario.fault_model import ALL, Fault, FaultKind
from dualray.sim.network.conditions import HEALTHY, Impairment

SEALED_TRIES: Final = 25
"""How often it is looked whether an object that was written is sealed, every"""
SEALED_LOOK_S: Final = 0.01


def pairs_of(fault: Fault, places: Sequence[str]) -> list[tuple[str, str]]:
    """Between which places, head included, a PARTITION or CLOG lets nothing pass: from, to."""
    sides = fault.nodes or (fault.node,)
    everybody = (*places, HEAD)
    others = fault.others or tuple(name for name in everybody if name not in sides)
    if fault.kind is FaultKind.CLOG_NODE:
        return [(other, fault.node) for other in others]
    pairs = [(one, other) for one in sides for other in others]
    return pairs if fault.one_way else pairs + [(other, one) for one, other in pairs]


def check_links(fault: Fault, names: Sequence[str]) -> None:
    """Say no to a fault of the network that cannot be performed between these nodes, the head's first.

    Raises:
        ValueError: it is to part the head from the node on whose machine it is.
    """
    if fault.kind in (FaultKind.PARTITION, FaultKind.CLOG_NODE):
        first = names[0]
        for pair in pairs_of(fault, names):
            if set(pair) == {first, HEAD}:
                raise ValueError(
                    f"fault '{fault}': in real mode the head runs on {first}'s machine, so no partition can separate "
                    f"the head from {first}; name the nodes to separate from {first}: 'partition {first} from "
                    f"{names[-1]}'"
                )


class Links:
    """See the module. Any thread.

    Args:
        nodes: the nodes that are there now, by place.
    """

    def __init__(self, nodes: Callable[[], dict[str, ClusterNode]]) -> None:
        self._nodes = nodes
        self._lock = threading.Lock()
        self._faults: list[Fault] = []

    def begin(self, fault: Fault) -> None:
        """From now on it holds, beside others."""
        with self._lock:
            self._faults.append(fault)
            self._tell()

    def end(self, fault: Fault) -> None:
        """It holds no more."""
        with self._lock:
            self._faults.remove(fault)
            self._tell()

    def tell(self) -> None:
        """A node is called otherwise now, or is new: all hear again what holds."""
        with self._lock:
            if self._faults:
                self._tell()

    def _tell(self) -> None:
        nodes = self._nodes()
        names = {place: node.node_id for place, node in nodes.items()} | {HEAD: HEAD}
        parted, worse = [], dict.fromkeys(names, HEALTHY)
        for fault in self._faults:
            if fault.kind is FaultKind.LINK:
                for place in names if fault.node == ALL else (fault.node,):
                    if place in names:  # else its node is off: who takes its place is told
                        worse[place] += impairment_of(fault)
            else:
                pairs = pairs_of(fault, list(nodes))
                parted += [(names[one], names[other]) for one, other in pairs if one in names and other in names]
        links = {names[place]: dataclasses.asdict(it) for place, it in worse.items() if it != HEALTHY}
        for node in nodes.values():
            with contextlib.suppress(OSError):  # it is off, or about to end
                ask_door(node.directory / GATEWAY_DOOR, {"op": "network", "parted": parted, "links": links})


def impairment_of(fault: Fault) -> Impairment:
    """What a LINK fault does to the link of its node."""
    return Impairment(
        bandwidth=fault.bandwidth,
        latency=fault.latency,
        loss=fault.loss,
        drop=fault.drop,
        duplicate=fault.duplicate,
        reorder=fault.reorder,
        delay_ns=fault.delay_ns,
        jitter_ns=fault.jitter_ns,
    )


def tell_node(node: ClusterNode, order: dict[str, Any]) -> bool:
    """Have a node manager perform something on itself; whether there was a target.

    Raises:
        DualrayError: there is no node manager, or it does not answer.
    """
    try:
        return bool(ask_door(node.directory / NODE_DOOR, order)["done"])
    except OSError as error:
        raise DualrayError(f"node {node.node_id} does not accept faults: {error}") from error


def orders_of(fault: Fault, number: int) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """What a node manager is told to begin a fault of its own, and to end it; None: it stays.

    Args:
        number: of the fault, no two alike.
    """
    match fault.kind:
        case FaultKind.FILL_STORE:
            name = f"stranger-{number}"
            return {"op": "fill_store", "share": fault.factor, "name": name}, {"op": "free_store", "name": name}
        case FaultKind.FILL_MEMORY:
            return {"op": "fill_memory", "share": fault.factor}, {"op": "fill_memory", "share": -fault.factor}
        case FaultKind.FILL_DISK:
            return {"op": "fill_disk", "full": True}, {"op": "fill_disk", "full": False}
        case FaultKind.LIMIT_FILES:
            return {"op": "limit_files", "limited": True}, {"op": "limit_files", "limited": False}
        case FaultKind.LOSE_GPU:
            return {"op": "lose_gpu", "gpu": fault.gpu}, None
        case _:
            raise TypeError(f"the process of a node (the node manager) cannot perform the fault {fault.kind}")


def befall_object(node: ClusterNode, fault: Fault, object_id: str) -> bool:
    """Lose or corrupt the copy of an object that a node has, as soon as it is complete; whether it has one."""
    op = "lose" if fault.kind is FaultKind.LOSE_OBJECT else "corrupt"
    for _ in range(SEALED_TRIES):
        if tell_node(node, {"op": op, "id": object_id}):
            return True
        time.sleep(SEALED_LOOK_S)
    return False


def switch_off(node: ClusterNode, *, keep: bool) -> None:
    """The machine loses power; with `keep`, what lies in its object store is there again when it is on."""
    if keep:
        tell_node(node, {"op": "list_store"})
    ask_door(node.directory / GATEWAY_DOOR, {"op": "off"})
    node.cut_power()


def switch_on(node: ClusterNode, *, keep: bool) -> None:
    """It boots again, in its next incarnation."""
    ask_door(node.directory / GATEWAY_DOOR, {"op": "on", "keep": keep})
