"""Policies alone: what they choose, and say, of clusters and demands that a seed draws.

In a run of a cluster a policy meets few situations, and most of them have one answer. Here nodes come, go and fill up,
and each policy is asked between any two such steps.
"""

from __future__ import annotations

import random
from dataclasses import replace
from hashlib import blake2b
from typing import Any, TypeVar

from dualray.shared.model.errors import ErrorKind
from dualray.shared.model.ids import (
    Address,
    NodeID,
    ObjectID,
    PlacementGroupID,
    TaskID,
    put_object_id,
    return_object_id,
)
from dualray.shared.model.resources import CPU, GPU, MEMORY, UNITS, Resources, from_units
from dualray.shared.model.specs import (
    GroupStrategy,
    LabelOperator,
    LabelTerm,
    LeaseShape,
    NodeInfo,
    PlacementGroupSpec,
    Strategy,
    StrategyKind,
)
from dualray.shared.policies import load_policy
from dualray.shared.policies.affinity import AffinityPlacement
from dualray.shared.policies.broadcast import ChainBroadcast, Source
from dualray.shared.policies.bundles import choose_nodes, why_never
from dualray.shared.policies.eviction.lru import LruEviction
from dualray.shared.policies.feasibility import why_infeasible
from dualray.shared.policies.hybrid import HybridPlacement
from dualray.shared.policies.labels import LabelPlacement
from dualray.shared.policies.locality import LocalityPlacement
from dualray.shared.policies.placement import Candidate, Candidates, ClusterView, PlacementPolicy, scores_of
from dualray.shared.policies.reconstruction import LineageReconstruction
from dualray.shared.policies.retry import BoundedRetry
from dualray.shared.policies.spread import SpreadPlacement
from dualray.shared.policies.worker_killing import MemoryUser, NewestTaskFirst

CHOICES = "choices"
STEPS = 300
NODES = 7
SEARCHED = 200
"""Bundles of a group for whose places all nodes are searched."""
NAMES = ("lru", "spill", "none", "dualray.shared.policies.lru:None", "dualray.none:None", ":None", "dualray:")

T = TypeVar("T")


class _History:
    """A lineage, as a policy asks for it."""

    def __init__(self, drawer: _Drawer) -> None:
        self.tasks = [TaskID(b"task-%011d" % number) for number in range(6)]
        self.known = {
            task: [self.result(drawer.of(*self.tasks[:place])) for _ in range(drawer.up_to(3))] if place else []
            for place, task in enumerate(self.tasks)
            if drawer.is_so(0.9)
        }
        self.here = {self.result(task) for task in self.tasks if drawer.is_so(0.3)}  # membership only
        self.over = {task for task in self.tasks if drawer.is_so(0.1)}  # membership only
        if drawer.is_so(0.3):
            self.known.setdefault(self.tasks[1], []).append(put_object_id(self.tasks[0], 0, 1))

    @staticmethod
    def result(task: TaskID) -> ObjectID:
        return return_object_id(task, 0)

    def dependencies(self, task: TaskID) -> list[ObjectID] | None:
        """What a task was given."""
        return self.known.get(task)

    def is_available(self, object_id: ObjectID) -> bool:
        """Whether it is there."""
        return object_id in self.here

    def is_cancelled(self, task: TaskID) -> bool:
        return False

    def may_run_again(self, task: TaskID) -> bool:
        """Whether it has an attempt left."""
        return task not in self.over


class _Drawer:
    """A cluster that changes, and what is asked of policies meanwhile."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(f"choices:{seed}")
        self._candidates = Candidates()
        self._infos: dict[NodeID, NodeInfo] = {}
        self._hybrid, self._spread = HybridPlacement(), SpreadPlacement()
        self._has_fine_demands = seed % 3 == 0
        """So that there are more demands than policies have indices for."""
        self.said: list[str] = []

    def is_so(self, chance: float) -> bool:
        return self._random.random() < chance

    def of(self, *those: T) -> T:
        return self._random.choice(those)

    def up_to(self, most: int) -> int:
        return self._random.randrange(most + 1)

    def step(self) -> None:
        """Something happens, and somebody is asked."""
        self.of(self._node_changes, self._node_fills, self._node_fills, self._node_fills)()
        asks = (self._place, self._place, self._place, self._reserve, self._fetch, self._evict, self._end, self._remake)
        self.of(*asks)()

    def _node(self) -> NodeID:
        return NodeID(f"node-{self.up_to(NODES)}")

    def _node_changes(self) -> None:
        node = self._node()
        if node in self._infos and self.is_so(0.4):
            del self._infos[node]
            self._candidates.remove(node)
            return
        total = {CPU: self.up_to(4) * UNITS, GPU: self.of(0, 0, 1, 2) * UNITS, "disk": self.of(0, 0, 3)}
        total[MEMORY] = self.of(0, 0, 5)
        labels = tuple((key, self.of("a", "b")) for key in ("zone", "rack") if self.is_so(0.6))
        info = NodeInfo(node=node, incarnation=0, total=from_units(total), store_bytes=0, labels=labels)
        self._infos[node] = info
        free = {
            name: self.up_to(amount // UNITS) * UNITS if amount >= UNITS else amount for name, amount in total.items()
        }
        self._candidates[node] = Candidate(node=node, total=dict(info.total.units), free=free, labels=info.all_labels())

    def _node_fills(self) -> None:
        candidate = self._candidates.get(self._node())
        if candidate is not None:
            name = self.of(CPU, CPU, GPU)
            free = dict(candidate.free)
            free[name] = self.up_to(2 * candidate.total.get(name, 0) // UNITS) * UNITS // 2
            candidate.free = free
            self._candidates.touch(candidate.node)

    def _demand(self) -> Resources:
        if self._has_fine_demands and self.is_so(0.7):
            return from_units({CPU: self.up_to(120) * UNITS // 40})
        amounts = {CPU: self.of(0, 1, 1, 2, 3, 5) * UNITS, GPU: self.of(0, 0, 0, 1, 2) * UNITS // self.of(1, 2)}
        amounts |= {"disk": self.of(0, 0, 0, 1, 4), "magic": self.of(*[0] * 9, 1), MEMORY: self.of(0, 0, 0, 2)}
        return from_units(amounts)

    def _term(self) -> LabelTerm:
        operator = self.of(*LabelOperator)
        has_values = operator in (LabelOperator.IN, LabelOperator.NOT_IN)
        values = self.of(("a",), ("b",), ("a", "c")) if has_values else ()
        return LabelTerm(key=self.of("zone", "rack", "row"), operator=operator, values=values)

    def _terms(self) -> tuple[LabelTerm, ...]:
        return tuple(self._term() for _ in range(self.of(0, 1, 1, 2)))

    def _place(self) -> None:
        kind = self.of(StrategyKind.DEFAULT, StrategyKind.SPREAD, StrategyKind.NODE_AFFINITY, StrategyKind.NODE_LABELS)
        strategy = Strategy(kind=kind)
        policies: tuple[PlacementPolicy, ...] = (self._hybrid, LocalityPlacement(self._hybrid), self._spread)
        policy = self.of(*policies)
        if kind is StrategyKind.SPREAD:
            policy = self._spread
        elif kind is StrategyKind.NODE_AFFINITY:
            strategy = replace(strategy, node=self._node(), soft=self.is_so(0.5))
            policy = AffinityPlacement(self._hybrid)
        elif kind is StrategyKind.NODE_LABELS:
            strategy = replace(strategy, labels=self._terms(), preferred=self._terms())
            policy = LabelPlacement(policy)
        demand = self._demand()
        shape = LeaseShape(resources=demand, placement=demand, strategy=strategy)
        view = ClusterView(
            candidates=self._candidates,
            spread_threshold_percent=self.of(0, 50, 50, 100),
            local_bytes={node: self.up_to(3) for node in self._candidates if self.is_so(0.4)},
            round_robin=self.up_to(20),
        )
        via = self.of(None, self._node())
        if not self._candidates:
            self.said.append(str(why_infeasible(shape, ())))
            return
        self.said += [str(policy.choose(shape, view, via)), str(scores_of(policy, shape, view, via))]
        self.said.append(str(why_infeasible(shape, tuple(self._infos.values()))))

    def _reserve(self) -> None:
        bundles = tuple(self._demand() for _ in range(1 + self.up_to(4)))
        if self.is_so(0.1):  # too many to search for places for all, or too many to find them
            bundles = tuple(from_units({CPU: self.of(1, 1, 2) * UNITS}) for _ in range(self.of(10, SEARCHED + 1)))
        spec = PlacementGroupSpec(
            group_id=PlacementGroupID(b"group"),
            bundles=bundles,
            strategy=self.of(*GroupStrategy),
            owner=Address("driver-1"),
            selectors=self.of((), tuple(self._terms() for _ in bundles)),
        )
        nodes = list(self._candidates)
        placed = {index: self.of(*nodes) for index in range(len(bundles)) if nodes and self.is_so(0.15)}
        self.said.append(str(choose_nodes(spec, placed, self._candidates)))
        self.said.append(str(why_never(spec, placed, tuple(self._infos.values()))))

    def _fetch(self) -> None:
        sources = [Source(NodeID("first"), self.up_to(2), 0)]
        sources += [Source(NodeID(f"node-{place}"), self.up_to(2), self.up_to(3)) for place in range(self.up_to(5))]
        self._random.shuffle(sources)
        chosen = ChainBroadcast().choose(sources, size_bytes=self.of(1, 7, 8, 9, 20), piece_bytes=self.of(1, 4, 8))
        self.said.append(str(chosen))

    def _evict(self) -> None:
        stored = [(ObjectID(b"object-%d" % place), self.up_to(3)) for place in range(self.up_to(6))]
        self.said.append(str(LruEviction().choose(stored, self.up_to(9))))

    def _end(self) -> None:
        users = [
            MemoryUser(
                worker=Address(f"node-0/w{place}"),
                size_bytes=self.up_to(4),
                is_idle=self.is_so(0.3),
                is_actor=self.is_so(0.3),
            )
            for place in range(self.up_to(4))
        ]
        self.said.append(str(NewestTaskFirst().choose(users, self.up_to(3))))
        for kind in ErrorKind:
            retries_left, retry_exceptions = self.of(-1, 0, 1, 2), self.is_so(0.5)
            is_so = BoundedRetry().should_retry(kind=kind, retries_left=retries_left, retry_exceptions=retry_exceptions)
            self.said.append(str(is_so))

    def _remake(self) -> None:
        history = _History(self)
        self.said.append(str(LineageReconstruction().plan(history.result(self.of(*history.tasks)), history)))
        try:
            self.said.append(type(load_policy(self.of(*NAMES))).__name__)
        except ValueError as error:
            self.said.append(str(error))


def choices(seed: int) -> dict[str, Any]:
    """What is kept of so many choices: how many answers there were, and a digest of them."""
    drawer = _Drawer(seed)
    for _ in range(STEPS):
        drawer.step()
    said = blake2b("\n".join(drawer.said).encode(), digest_size=6).hexdigest()
    return {"answers": len(drawer.said), "said": said}
