"""Twenty bugs, planted one at a time in the shared policies and machines, for exploration to find.

Each is a change of a few lines in a copy of the package (tree.py), of the kind that a review could miss: it says what
is wrong in words, which scenario is explored, and within how many seeds it has to be found. `python -m
tests.planted.find` explores them all; README.md has its table.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.planted.tree import Change

MACHINES = "dualray/shared/machines"
POLICIES = "dualray/shared/policies"
MIXED = "mixed_swarm"
ACTORS = "actors_swarm"
RETRIES = "retries_swarm"
GPUS = "gpus_swarm"
SPILL = "spill_swarm"
PATIENT = "patient_swarm"
ORPHANS = "orphans_swarm"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedBug:
    """One bug.

    Attributes:
        what: what the code does with it, in words.
        scenario: in `scenarios/`, explored as it is.
        seeds: within how many it has to be found.
    """

    name: str
    what: str
    change: Change
    scenario: str = MIXED
    seeds: int = 300


def _change(path: str, old: str, new: str) -> Change:
    return Change(path=path, old=old, new=new)


BUGS: tuple[PlantedBug, ...] = (
    PlantedBug(
        name="lost wake-up",
        what="a process sends tasks to a dead worker, and the tasks wait for ever",
        change=_change(
            f"{MACHINES}/owner/leases.py",
            "        del lease.queue.leases[lease.lease_id]\n        self._withdraw(lease)\n",
            "        del lease.queue.leases[lease.lease_id]\n",
        ),
    ),
    PlantedBug(
        name="lost lease",
        what="the head process does not place an actor again after the actor's node has died",
        change=_change(
            f"{MACHINES}/head/global_scheduler.py",
            "                self.request(_with_count(request, 1))\n",
            "                if is_driver(request.owner):\n                    self.request(_with_count(request, 1))\n",
        ),
        scenario=ACTORS,
    ),
    PlantedBug(
        name="late news believed",
        seeds=1000,
        what="a node that was declared dead reports a copy of an object, and the head process believes the report",
        change=_change(
            f"{MACHINES}/head/directory.py",
            "        if not self.is_alive(event.node, event.incarnation):\n            return\n        if self.is_gone",
            "        if self.is_gone",
        ),
    ),
    PlantedBug(
        name="eviction of a pinned object",
        what="the object store may evict an object that only one process reads",
        change=_change(
            f"{MACHINES}/node/space.py",
            "if stored.state is StoredState.SEALED and not stored.pins\n",
            "if stored.state is StoredState.SEALED and len(stored.pins) < 2\n",
        ),
    ),
    PlantedBug(
        name="double lease",
        what="the node counts a lost GPU as free after the task that used the GPU has ended",
        change=_change(
            f"{MACHINES}/node/local_scheduler.py",
            "        lease.resources = without_gpu(lease.resources, lost)\n",
            "",
        ),
        scenario=GPUS,
    ),
    PlantedBug(
        name="wrong tie-break",
        what="the placement policy takes the last of several equally good nodes instead of the first",
        change=_change(
            f"{POLICIES}/hybrid.py",
            "packed_use, self.candidates.place(candidate.node))\n",
            "packed_use, -self.candidates.place(candidate.node))\n",
        ),
    ),
    PlantedBug(
        name="retry without bound",
        what="dualray retries a failing task more often than `max_retries` allows",
        change=_change(
            f"{MACHINES}/owner/tasks.py",
            "        if record.retries_left != RETRY_FOREVER:\n",
            "        if record.retries_left > 1:\n",
        ),
        scenario=RETRIES,
    ),
    PlantedBug(
        name="reconstruction without bound",
        what="dualray recomputes a lost object although its task has no attempt left",
        change=_change(
            f"{MACHINES}/owner/lineage.py",
            "        return record.state is TaskState.FINISHED and record.retries_left != 0\n",
            "        return record.state is TaskState.FINISHED\n",
        ),
        scenario=RETRIES,
    ),
    PlantedBug(
        name="lineage cut too early",
        what="dualray forgets how to recompute a stored result if its task had arguments",
        change=_change(
            f"{MACHINES}/owner/tasks.py",
            "        if not (stored and (record.stream or any(",
            "        if record.spec.deps or not (stored and (record.stream or any(",
        ),
    ),
    PlantedBug(
        name="stale location",
        what="when a node dies, the head process keeps counting the object copies of the dead node, except copies of "
        "objects for which a process waits",
        change=_change(
            f"{MACHINES}/head/directory.py",
            "            if node in entry.nodes:\n                self._lose_copy(object_id, entry, node)\n"
            "            elif not entry.nodes and entry.subscribers:\n",
            "            if node in entry.nodes and entry.subscribers:\n"
            "                self._lose_copy(object_id, entry, node)\n"
            "            elif not entry.nodes and entry.subscribers:\n",
        ),
    ),
    PlantedBug(
        name="zombie not refused",
        what="the head process accepts messages of a node that was declared dead",
        change=_change(
            f"{MACHINES}/head/membership.py",
            "        if not self.is_alive(event.node, event.incarnation):\n"
            "            self.out.send(Address(event.node), NodeRefused(",
            "        if not self.is_alive(event.node, event.incarnation):\n"
            "            return\n"
            "            self.out.send(Address(event.node), NodeRefused(",
        ),
    ),
    PlantedBug(
        name="calls repeated in the wrong order",
        what="after the death of an actor, dualray repeats the interrupted calls in reverse order",
        change=_change(
            f"{MACHINES}/owner/actor_calls.py",
            "        client.queue.extendleft(reversed(again))\n",
            "        client.queue.extendleft(again)\n",
        ),
        scenario=ACTORS,
    ),
    PlantedBug(
        name="orphan's lease",
        what="the node keeps workers reserved for a dead process",
        change=_change(
            f"{MACHINES}/node/local_scheduler.py",
            "            if lease.worker is not None and is_dead(lease.owner):\n",
            "            if lease.worker is not None and is_dead(lease.owner) and lease.blocked:\n",
        ),
    ),
    PlantedBug(
        name="dead borrower",
        what="dualray counts a dead process as a user of an object for ever",
        change=_change(
            f"{MACHINES}/owner/values.py",
            "                    del value.borrowers[address]\n                    self.references.release(value)\n",
            "                    self.references.release(value)\n",
        ),
        scenario=ACTORS,
    ),
    PlantedBug(
        name="broken pull",
        what="if the sending node of an object dies, the receiving node does not fetch the object from another node",
        change=_change(
            f"{MACHINES}/node/transfer.py",
            "                want.offset = received_bytes\n            self._try_next_source(want)\n",
            "                want.offset = received_bytes\n                self._try_next_source(want)\n",
        ),
    ),
    PlantedBug(
        name="no pin while sending",
        what="the object store may evict an object while the node sends the object to another node",
        change=_change(
            f"{MACHINES}/node/sending.py",
            "        if self.store.is_sealed(event.object_id):\n            self.store.pin(event.object_id, user)\n",
            "        if self.store.is_sealed(event.object_id):\n",
        ),
    ),
    PlantedBug(
        name="line that is left",
        what="a node waits for an object from a sender that never receives the object",
        change=_change(
            f"{MACHINES}/node/sending.py",
            "        while want.askers:\n            self._decline(want.askers.popleft())\n",
            "        want.askers.clear()\n",
        ),
        scenario=PATIENT,
    ),
    PlantedBug(
        name="unloaded while it is read",
        what="after a spill, the object store frees an object although a process has asked for the object",
        change=_change(
            f"{MACHINES}/node/object_store.py",
            "        if stored.pins or stored.freed:\n            stored.has_copy = True\n",
            "        if stored.freed:\n            stored.has_copy = True\n",
        ),
        scenario=SPILL,
    ),
    PlantedBug(
        name="freed while it is read",
        what="the object store deletes an object that its owner has freed, although a process still reads the object",
        change=_change(
            f"{MACHINES}/node/object_store.py",
            "        if not stored.pins and stored.state is not StoredState.SPILLING:\n"
            "            self.space.delete(stored)\n\n    def release_all(",
            "        if stored.state is not StoredState.SPILLING:\n"
            "            self.space.delete(stored)\n\n    def release_all(",
        ),
        scenario=ORPHANS,
    ),
    PlantedBug(
        name="forgotten dead",
        what="the node does not report a killed worker, and other processes wait for the worker's objects",
        change=_change(
            f"{MACHINES}/head/head.py",
            "        self._owners_died(lambda other: other == event.worker)\n"
            "        self._announce(OwnerDied(address=event.worker))\n",
            "        self._owners_died(lambda other: other == event.worker)\n",
        ),
    ),
)
