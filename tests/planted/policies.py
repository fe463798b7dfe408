"""Wrong policies, one bug each. Every process of a cluster loads them by dotted path, as it would a user's own."""

from __future__ import annotations

from collections.abc import Iterable

from dualray.shared.model.errors import ErrorKind
from dualray.shared.model.ids import NodeID, ObjectID, task_of
from dualray.shared.model.resources import fits
from dualray.shared.model.specs import LeaseShape
from dualray.shared.policies.placement import ClusterView, Outcome, Placement, not_placed
from dualray.shared.policies.reconstruction import Lineage, Plan


class TakesBusyForNever:
    """Says that no node can ever take what no node can take now."""

    def choose(self, shape: LeaseShape, view: ClusterView, via: NodeID | None) -> Placement:
        for candidate in view.candidates.values():
            if fits(candidate.free, shape.placement):
                return Placement(Outcome.SUCCESS, candidate.node, "the first that is free")
        return Placement(Outcome.INFEASIBLE, reason="none is free")


class NeverPlaces:
    """Says 'later' to everything: what waits, waits for ever."""

    def choose(self, shape: LeaseShape, view: ClusterView, via: NodeID | None) -> Placement:
        if not_placed(shape, view).outcome is Outcome.INFEASIBLE:
            return not_placed(shape, view)
        return Placement(Outcome.FAILED, reason="always later")


class AlwaysTheFirstNode:
    """Places everything on the first node, whether or not it is free, and names it even when others are idle."""

    def choose(self, shape: LeaseShape, view: ClusterView, via: NodeID | None) -> Placement:
        if not_placed(shape, view).outcome is Outcome.INFEASIBLE:
            return not_placed(shape, view)
        return Placement(Outcome.SUCCESS, next(iter(view.candidates)), "the first")


class EvictsTheNewest:
    """Most recently used first: what is about to be read again goes."""

    def choose(self, evictable: Iterable[tuple[ObjectID, int]], bytes_needed: int) -> list[ObjectID] | None:
        chosen: list[ObjectID] = []
        for object_id, size_bytes in reversed(list(evictable)):
            if bytes_needed <= 0:
                break
            chosen.append(object_id)
            bytes_needed -= size_bytes
        return chosen if bytes_needed <= 0 else None


class EvictsTooLittle:
    """Stops one object early, and says that it is enough."""

    def choose(self, evictable: Iterable[tuple[ObjectID, int]], bytes_needed: int) -> list[ObjectID] | None:
        return []


class EvictsNothing:
    """Says that there is nothing to evict."""

    def choose(self, evictable: Iterable[tuple[ObjectID, int]], bytes_needed: int) -> list[ObjectID] | None:
        return None


class EvictsWhatIsRead:
    """Remembers the first object that it was ever offered, and evicts that, though somebody may read it by now."""

    def __init__(self) -> None:
        self._remembered: ObjectID | None = None

    def choose(self, evictable: Iterable[tuple[ObjectID, int]], bytes_needed: int) -> list[ObjectID] | None:
        offered = [object_id for object_id, _ in evictable]
        if self._remembered is not None:
            return [self._remembered]
        if len(offered) < 2:
            return offered or None
        self._remembered = offered[1]
        return offered[:1]


class NeverRetries:
    """Gives up at the first crash."""

    def should_retry(self, *, kind: ErrorKind, retries_left: int, retry_exceptions: bool) -> bool:
        return False


class RetriesWhatRaised:
    """Takes an exception of the user's for a crash."""

    def should_retry(self, *, kind: ErrorKind, retries_left: int, retry_exceptions: bool) -> bool:
        return retries_left != 0


class RetriesForever:
    """Does not count."""

    def should_retry(self, *, kind: ErrorKind, retries_left: int, retry_exceptions: bool) -> bool:
        return kind is ErrorKind.WORKER_CRASHED


class RemakesWhatIsThere:
    """Makes the arguments again too, whether or not they are there."""

    def plan(self, object_id: ObjectID, lineage: Lineage) -> Plan:
        tasks = [task_of(dep) for dep in lineage.dependencies(task_of(object_id)) or ()]
        return Plan((*tasks, task_of(object_id)))


class GivesUpLostObjects:
    """Says that nothing can be made again."""

    def plan(self, object_id: ObjectID, lineage: Lineage) -> Plan:
        return Plan(impossible="nothing is made again here")


class RemakesNothing:
    """Says that all is planned, and plans nothing."""

    def plan(self, object_id: ObjectID, lineage: Lineage) -> Plan:
        return Plan()
