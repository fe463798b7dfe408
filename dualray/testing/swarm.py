"""Draws faults for one seed: their kinds, their number, their targets, and when and how long they last.

"Swarm": a seed first draws which kinds can occur at all, so that some runs have nothing but pauses and others nothing
but lost messages; bugs that need many faults of one kind hide from runs that always mix them all (Groce et al., "Swarm
Testing", 2012). Half of the faults are anchored at a logical event that the fault-free run has shown, such as the start
of a task; the others come at a time within that run. Every fault that can end ends.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from dualray.shared.model.config import Config
from dualray.shared.scenario.fault_model import (
    ALL,
    MAY_END,
    OBJECT_ANCHORS,
    OF_HEAD,
    OF_OBJECTS,
    OF_WORKERS,
    Fault,
    FaultKind,
    check_fault,
)
from dualray.shared.scenario.scenario import Scenario
from dualray.shared.scenario.values import DRIVER_NODE_NAME
from dualray.sim.processes.control_plane import CLIENT_TRIES_NS
from dualray.testing.outcome import Outcome

MILLISECOND_NS = 1_000_000

WEIGHTS = {FaultKind.KILL_WORKER: 8, FaultKind.LOSE_OBJECT: 3, FaultKind.KILL_ACTOR: 2}
"""How much more often some kinds are drawn than others: what they show depends most on the moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What a fault-free run has shown, and faults can be anchored at.

    Attributes:
        ended_ns: when the program had ended.
        starts: how many tasks of each name had started.
        events: how many trace events there were of each kind that can be an anchor.
        actors: classes of which there was an actor.
        longest_ns: how long the longest task of each name took.
    """

    ended_ns: int
    starts: dict[str, int]
    events: dict[str, int]
    actors: tuple[str, ...]
    longest_ns: dict[str, int] = field(default_factory=dict)


def ground_of(outcome: Outcome) -> Ground:
    """What a fault-free run has shown."""
    actors = tuple(dict.fromkeys(name.partition(".")[0] for name in outcome.starts if "." in name))
    events = {name: count for name, count in outcome.events.items() if count}
    return Ground(
        ended_ns=outcome.makespan_ns, starts=outcome.starts, events=events, actors=actors, longest_ns=outcome.longest_ns
    )


class Drawer:
    """Draws the faults of one seed; everything comes from one stream of its own."""

    def __init__(self, scenario: Scenario, ground: Ground, seed: int) -> None:
        self._seed = seed
        self._random = random.Random(f"swarm:{seed}")
        self._scenario = scenario
        self._ground = ground
        self._nodes = dict(scenario.cluster.each_node())
        self._victims = [name for name in self._nodes if name != DRIVER_NODE_NAME]
        self._tables_away_ns = CLIENT_TRIES_NS * 99 // 100
        """How long they may still be, in all: their clients give up after a little more."""

    def draw(self) -> tuple[Fault, ...]:
        """The faults, in no order that matters."""
        swarm = self._scenario.swarm
        held = self._held_calls() if swarm.most and FaultKind.HOLD_CALL in swarm.kinds else ()
        possible = [kind for kind in swarm.kinds if kind is not FaultKind.HOLD_CALL and self._is_possible(kind)]
        if not possible or not swarm.most:
            return held
        kinds = [kind for kind in possible if self._random.random() < 0.5] or [self._random.choice(possible)]
        count = self._random.randint(1, swarm.most)
        faults = []
        for _ in range(count):
            fields = self._what(self._random.choices(kinds, [WEIGHTS.get(kind, 1) for kind in kinds])[0])
            fault = Fault(**(fields | self._anchor(fields)))
            check_fault(fault)
            faults.append(fault)
        return (*held, *faults) if len(faults) < swarm.most else tuple(faults)

    def _held_calls(self) -> tuple[Fault, ...]:
        """In one seed of two, a call that is held. The other faults of the seed are those that it had before there was
        this kind: it has a stream of its own."""
        draw = random.Random(f"swarm calls:{self._seed}")
        methods = [name for name in self._ground.starts if "." in name and not name.endswith(".__init__")]
        if not methods or draw.random() < 0.5:
            return ()
        name = draw.choice(methods)
        lasting_ns = round(self._scenario.swarm.lasting * 2 ** draw.gauss(0, 2) / MILLISECOND_NS) * MILLISECOND_NS
        fault = Fault(
            kind=FaultKind.HOLD_CALL,
            event="task_submitted",
            task_name=name,
            start=draw.randint(1, self._ground.starts[name]),
            for_ns=max(MILLISECOND_NS, lasting_ns),
        )
        return (fault,)

    def _is_possible(self, kind: FaultKind) -> bool:
        if kind in OF_WORKERS:
            return bool(self._ground.starts)
        if kind in OF_OBJECTS:
            return bool(self._of_objects)
        if kind is FaultKind.KILL_ACTOR:
            return bool(self._ground.actors)
        if kind is FaultKind.LOSE_GPU:
            return any(self._nodes[name].gpus >= 1 for name in self._victims)
        if kind is FaultKind.FILL_MEMORY:
            return any(self._nodes[name].memory for name in self._victims)
        if kind in OF_HEAD or kind in (FaultKind.RESTART_REDIS, FaultKind.LINK):
            return True
        return bool(self._victims)

    @property
    def _of_objects(self) -> list[str]:
        """Events about copies of objects that there were."""
        return [event for event in OBJECT_ANCHORS if self._ground.events.get(event)]

    def _what(self, kind: FaultKind) -> dict[str, Any]:
        """The fields of the fault, with an anchor that is still to be drawn."""
        draw = self._random
        fields: dict[str, Any] = {"kind": kind, "at_ns": 0, "for_ns": self._lasting_ns() if kind in MAY_END else None}
        node = draw.choice(self._victims or [DRIVER_NODE_NAME])
        match kind:
            case FaultKind.KILL_WORKER | FaultKind.PAUSE_WORKER:
                fields |= {"at_ns": None, "task_name": self._name()}
            case FaultKind.SLOW_WORKER:
                fields |= {"at_ns": None, "task_name": self._name(), "factor": float(draw.choice((2, 5, 20)))}
            case FaultKind.SLOW_HEAD:
                fields["factor"] = float(draw.choice((10, 100, 1000)))
            case FaultKind.REBOOT_NODE:  # drawn from what is drawn already: one in four
                fields |= {"node": node, "keeps_store": fields["for_ns"] // MILLISECOND_NS % 4 == 0}
            case FaultKind.KILL_ACTOR:
                fields["actor"] = draw.choice(self._ground.actors)
            case FaultKind.PARTITION:
                fields |= self._partition()
            case FaultKind.SLOW_NODE:
                fields |= {"node": node, "factor": float(draw.choice((2, 5, 20)))}
            case FaultKind.FILL_STORE:
                fields |= {"node": node, "factor": draw.choice((0.5, 0.9, 1.0))}
            case FaultKind.FILL_MEMORY:
                fields |= self._memory()
            case FaultKind.SKEW_CLOCK:
                fields |= {"node": node, "skew_ns": draw.choice((-60, -1, 1, 60)) * 10**9}
            case FaultKind.LINK:
                fields |= self._link()
            case FaultKind.LOSE_GPU:
                fields |= self._gpu()
            case FaultKind.PAUSE_HEAD:  # and goes on before the nodes give it up
                fields["for_ns"] = min(fields["for_ns"], self._patience_ns - MILLISECOND_NS)
            case FaultKind.RESTART_HEAD | FaultKind.RESTART_REDIS:
                fields["for_ns"] = min(fields["for_ns"], max(self._tables_away_ns, MILLISECOND_NS))
                self._tables_away_ns -= fields["for_ns"]
            case FaultKind.LOSE_OBJECT:
                pass
            case _:
                fields["node"] = node
        return fields

    @property
    def _patience_ns(self) -> int:
        """How long nodes wait for a silent head."""
        default, given = Config(), self._scenario.config
        timeout_ns = int(given.get("heartbeat_timeout_ns", default.heartbeat_timeout_ns))
        return timeout_ns + int(given.get("suspicion_ns", default.suspicion_ns))

    def _lasting_ns(self) -> int:
        """Log-normal about the scenario's median: some end before anybody has noticed, some long after."""
        median_ns = self._scenario.swarm.lasting
        lasting_ns = median_ns * 2 ** self._random.gauss(0, 2)
        return max(MILLISECOND_NS, round(lasting_ns / MILLISECOND_NS) * MILLISECOND_NS)

    def _partition(self) -> dict[str, Any]:
        count = self._random.randint(1, len(self._victims))
        nodes = tuple(sorted(self._random.sample(self._victims, count)))
        rest = [name for name in self._nodes if name not in nodes]
        if self._random.random() < 0.5 or not rest:
            return {"nodes": nodes}
        others = tuple(sorted(self._random.sample(rest, self._random.randint(1, len(rest)))))
        return {"nodes": nodes, "others": others, "one_way": self._random.random() < 0.5}

    def _link(self) -> dict[str, Any]:
        draw = self._random
        node = ALL if draw.random() < 0.5 else draw.choice(list(self._nodes))
        how = draw.randrange(5)
        if how == 0:
            return {"node": node, "bandwidth": draw.choice((0.5, 0.1, 0.01))}
        if how == 1:
            return {"node": node, "latency": float(draw.choice((10, 100, 1000)))}
        if how == 2:
            return {"node": node, "loss": draw.choice((0.001, 0.01, 0.1))}
        if how == 3:  # and never `drop`: no connection that lives loses a message for good
            share = draw.choice((0.01, 0.1, 1.0))
            return {"node": node, "duplicate": share, "reorder": share}
        return {"node": node, "jitter_ns": draw.choice((1, 10, 100)) * MILLISECOND_NS}

    def _memory(self) -> dict[str, Any]:
        node = self._random.choice([name for name in self._victims if self._nodes[name].memory])
        return {"node": node, "factor": self._random.choice((0.5, 0.9, 1.0))}

    def _gpu(self) -> dict[str, Any]:
        node = self._random.choice([name for name in self._victims if self._nodes[name].gpus >= 1])
        return {"node": node, "gpu": self._random.randrange(int(self._nodes[node].gpus))}

    def _anchor(self, of: dict[str, Any]) -> dict[str, Any]:
        """When the fault with these fields comes."""
        draw = self._random
        if of["kind"] in OF_WORKERS:
            event = draw.choice(("task_started", "task_started", "task_started", "task_ended"))
            name = of["task_name"]
            after_ns = self._within_ns(self._ground.longest_ns.get(name, 0)) if event == "task_started" else 0
            return {"event": event, "start": draw.randint(1, self._ground.starts[name]), "after_ns": after_ns}
        if of["kind"] in OF_OBJECTS:
            event = draw.choice(self._of_objects)
            start = draw.randint(1, self._ground.events[event])
            return {"at_ns": None, "event": event, "start": start, "after_ns": self._within_ns(self._ground.ended_ns)}
        how = draw.random()
        if how < 0.25 and self._ground.starts:
            name = self._name()
            after_ns = self._within_ns(self._ground.longest_ns.get(name, 0))
            start = draw.randint(1, self._ground.starts[name])
            return {"at_ns": None, "task_name": name, "start": start, "after_ns": after_ns}
        if how < 0.5 and self._ground.events:
            event = draw.choice(list(self._ground.events))
            return {"at_ns": None, "event": event, "start": draw.randint(1, self._ground.events[event])}
        within_ns = self._scenario.swarm.within or max(self._ground.ended_ns, MILLISECOND_NS)
        return {"at_ns": draw.randrange(within_ns) // 1000 * 1000}

    def _name(self) -> str:
        """That of a task: half by how many names there are, half by the time that tasks of each took."""
        ground = self._ground
        names = list(ground.starts)
        took_ns = [ground.longest_ns.get(name, 0) * ground.starts[name] for name in names]
        whole_ns = max(1, sum(took_ns))
        return self._random.choices(names, [1 / len(names) + each / whole_ns for each in took_ns])[0]

    def _within_ns(self, whole_ns: int) -> int:
        """At once, or at any moment of that time: what stands for the middle of a task, or of an object's life."""
        if whole_ns < 2_000 or self._random.random() < 1 / 3:
            return 0
        return self._random.randrange(1_000, whole_ns) // 1_000 * 1_000


def draw_faults(scenario: Scenario, ground: Ground, seed: int) -> tuple[Fault, ...]:
    """The faults of one seed."""
    return Drawer(scenario, ground, seed).draw()
