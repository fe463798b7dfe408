"""The objects that survive a reboot: they lie in the store of a machine that is off, and return with its next life.

The node manager of that life has everything to find: for each object it reserves room, as for a process that writes
one, and reports it to the head like any other. What the head does not want any more it has deleted. What there is no
room for at once is left out.
"""

from __future__ import annotations

from typing import NamedTuple

from dualray.shared.model.events import ObjectSealed, OwnerDied, SpaceRequested
from dualray.shared.model.ids import Address, ObjectID
from dualray.shared.proof.trace import TraceKind
from dualray.sim.processes.node import NodeProcess
from dualray.sim.processes.object_store import StoredBytes


class _Kept(NamedTuple):
    object_id: ObjectID
    size_bytes: int
    owner: Address
    remakeable: bool
    data: StoredBytes


class KeptStore:
    """See the module. Made while the machine is still on."""

    def __init__(self, node: NodeProcess) -> None:
        found = []
        for stored, _ in node.manager.complete_objects():
            data = node.store.objects.get(stored.object_id)
            if data is None:
                data = node.store.spilled.get(stored.object_id)
            if data is not None:
                found.append(_Kept(stored.object_id, stored.size_bytes, stored.owner, stored.remakeable, data))
        self._found = found

    def put_back(self, node: NodeProcess) -> None:
        """The machine is on again: `node` is its new life."""
        finder = Address(f"found-{node.address}~{node.incarnation}")
        for it in self._found:
            request = SpaceRequested(
                object_id=it.object_id,
                size_bytes=it.size_bytes,
                owner=it.owner,
                requester=finder,
                remakeable=it.remakeable,
            )
            node.handle(request)
        node.cluster.kernel.call_after(0, self._seal, node, finder)

    def _seal(self, node: NodeProcess, finder: Address) -> None:
        """There is room for what there is room for."""
        for it in self._found:
            stored = node.manager.unsealed(it.object_id, finder)
            if stored is not None and stored.request is None:
                node.store.receive(it.object_id, it.data)
                node.trace(TraceKind.OBJECT_STORED, it.object_id, amount=it.size_bytes)
                node.handle(ObjectSealed(object_id=it.object_id, requester=finder))
        node.handle(OwnerDied(address=finder))
