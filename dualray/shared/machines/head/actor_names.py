"""The directory of names: which actor `get_actor` finds under which name, in which namespace.

Theory of operation. A process that makes a named actor claims the name before it hands the constructor in: the head
answers whether it has it. From then on the name stands for that actor, also while its constructor waits for arguments,
runs, or runs again; it is free when the actor has ended, or when the claimer has died before it could register it. As
in Ray, an actor that is lost with its process or node keeps its name until its last handle is gone or it is killed; a
detached one, which no handle keeps, does not. Each job has a namespace: the one that its driver was started with, or
one of its own, named after the job.

Relies on: actors.py says when an actor ends; a process claims before it registers, and messages stay in order.
Guarantees: a name stands for one actor at most; who claims a name that is taken learns of the actor.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import replace

from dualray.shared.machines.base import Outbox, ensure
from dualray.shared.model.commands import WriteRecord
from dualray.shared.model.errors import ErrorInfo, ErrorKind
from dualray.shared.model.events import ActorNameReported, ActorNameRequested
from dualray.shared.model.ids import ActorID, Address, job_of, own_namespace, short
from dualray.shared.model.specs import NamedActor, TaskSpec

_TABLE = "actor_names"


class _Entry:
    """One name."""

    __slots__ = ("actor", "claimer", "is_lost", "is_registered")

    def __init__(self, actor: NamedActor, claimer: Address) -> None:
        self.actor = actor
        self.claimer = claimer
        self.is_registered = False
        self.is_lost = False
        """The actor is DEAD, and its handles keep the name from others."""


class ActorNames:
    """See the module."""

    def __init__(self, *, out: Outbox) -> None:
        self.out = out
        self.entries: dict[tuple[str, str], _Entry] = {}
        """By namespace and name."""
        self.by_actor: dict[ActorID, tuple[str, str]] = {}
        self.jobs: dict[int, str] = {}
        """Namespaces of the jobs that have said one."""

    def namespace_of(self, job: int) -> str:
        """Where the names of a job's actors stand."""
        return self.jobs.get(job) or own_namespace(job)

    def namespace_of_actor(self, actor_id: ActorID, spec: TaskSpec | None) -> str:
        """The namespace that an actor was made in."""
        chosen = spec.creates.namespace if spec is not None and spec.creates is not None else ""
        return chosen or self.namespace_of(job_of(actor_id))

    def on_requested(self, event: ActorNameRequested) -> None:
        """Find the actor of a name, or give the name to a new one."""
        namespace = event.namespace or self.namespace_of(event.job)
        found = self.entries.get((namespace, event.name))
        answer = ActorNameReported(wait_id=event.wait_id)
        if event.claim is None:
            if found is not None:
                answer.actor = found.actor
            else:
                answer.error = self._unknown(event.name, namespace)
        elif found is not None:
            if event.get_if_exists or found.actor.spec.actor_id == event.claim.spec.actor_id:
                answer.actor = found.actor
                answer.is_new = found.actor.spec.actor_id == event.claim.spec.actor_id
            else:
                answer.error = self._taken(found, event.name, namespace)
        else:
            answer.is_new = True
            answer.actor = self._give(event.claim, (namespace, event.name), event.requester)
        self.out.send(event.requester, answer)

    def _give(self, claim: NamedActor, key: tuple[str, str], claimer: Address) -> NamedActor:
        actor = replace(claim, spec=replace(claim.spec, namespace=key[0]))
        self.entries[key] = _Entry(actor, claimer)
        self.by_actor[actor.spec.actor_id] = key
        self._write(key, actor.spec.actor_id.hex())
        return actor

    def _write(self, key: tuple[str, str], actor: str) -> None:
        namespace, name = key
        fields = (("namespace", namespace), ("name", name), ("actor", actor))
        self.out.add(WriteRecord(table=_TABLE, key=f"{namespace}/{name}", fields=fields))

    def registered(self, actor_id: ActorID) -> None:
        """The constructor of a named actor has been handed in: its claimer may die."""
        key = self.by_actor.get(actor_id)
        if key is not None:
            self.entries[key].is_registered = True

    def lost(self, actor_id: ActorID) -> None:
        """The actor is DEAD, and has handles: its name still leads to it, and no other actor can have the name."""
        key = self.by_actor.get(actor_id)
        if key is not None:
            self.entries[key].is_lost = True

    def is_kept(self, actor_id: ActorID) -> bool:
        """Whether the handles of a DEAD actor keep its name."""
        key = self.by_actor.get(actor_id)
        return key is not None and self.entries[key].is_lost

    def release(self, actor_id: ActorID) -> None:
        """The actor has ended: its name is free."""
        key = self.by_actor.pop(actor_id, None)
        if key is not None:
            del self.entries[key]
            self._write(key, "")

    def claimed_by(self, is_dead: Callable[[Address], bool]) -> list[ActorID]:
        """The actors that were not registered, and that those who are dead had claimed names for."""
        return [
            entry.actor.spec.actor_id
            for entry in self.entries.values()
            if not entry.is_registered and is_dead(entry.claimer)
        ]

    def rows(self) -> list[dict[str, str]]:
        """Every name, in the order in which they were given."""
        return [
            {"namespace": namespace, "name": name, "actor_id": entry.actor.spec.actor_id.hex()}
            for (namespace, name), entry in self.entries.items()
            if not entry.is_lost
        ]

    # ---- In words --------------------------------------------------------------------------------------------

    def _taken(self, entry: _Entry, name: str, namespace: str) -> ErrorInfo:
        spec = entry.actor.spec
        message = (
            f"The name {name!r} is already taken in namespace {namespace!r}, by actor {entry.actor.template.name} "
            f"({short(spec.actor_id)}) of job {job_of(spec.actor_id):08x}. Please use a different name or namespace, "
        )
        if entry.is_lost:
            message += "or delete the last handle of that actor, which has died: its handles still hold the name."
        else:
            message += f"pass get_if_exists=True to share that actor, or end it with kill(get_actor({name!r}))."
        return ErrorInfo(kind=ErrorKind.ACTOR_EXISTS, message=message)

    def _unknown(self, name: str, namespace: str) -> ErrorInfo:
        known = [other for space, other in self.entries if space == namespace]
        elsewhere = [space for space, other in self.entries if other == name]
        said = f"Failed to look up actor with name {name!r} in namespace {namespace!r}"
        words = [f"{said}: the actor was never created, or has ended."]
        nearest = difflib.get_close_matches(name, known, n=1)
        if nearest:
            words.append(f"Did you mean {nearest[0]!r}?")
        elif elsewhere:
            words.append(f"Namespace {elsewhere[0]!r} has an actor with this name: pass namespace={elsewhere[0]!r}.")
        else:
            words.append(f"Names of actors in this namespace: {', '.join(known) or 'none'}.")
        return ErrorInfo(kind=ErrorKind.ACTOR_NOT_FOUND, message=" ".join(words))

    def check_invariants(self) -> None:
        for actor_id, key in self.by_actor.items():
            ensure(
                key in self.entries and self.entries[key].actor.spec.actor_id == actor_id,
                "actor {} has a name that stands for another",
                actor_id,
            )
        ensure(len(self.by_actor) == len(self.entries), "a name stands for no actor")
