"""What machines do with a history that no cluster has: events come twice, late or never, say something else, or were
made up.

In a run of a cluster what a machine hears fits together; most of what it does about news of somebody whom it does not
know, or knows to be dead, or has heard already, is never asked for. Here the events that a machine of a shuffled run
has heard are told to a fresh one, some of them distorted. It may refuse them, and its invariants may break; what it
says and does about them is kept.
"""

from __future__ import annotations

import dataclasses
import random
import re
import types
import typing
from collections.abc import Callable, Sequence
from enum import Enum
from functools import cache
from hashlib import blake2b
from typing import Any

from dualray.shared.machines.owner.plain_worker import PlainWorker
from dualray.shared.model.codec import encode, pack
from dualray.shared.model.commands import ArmTimer
from dualray.shared.model.config import Config
from dualray.shared.model.ids import Address, NodeID
from dualray.shared.proof.decision_log import Decision, MachineSpec
from tests.kept_runs.shuffled import Drawer
from tests.shared import harness as h
from tests.shared import wider as w

DISTORTED = "distorted"
HISTORIES = 50
"""Told for each run of a cluster."""
MORE = 12
"""Events at the end of a history that are about what was heard there."""
SOURCES = 250
"""Events of a run, at most, of whose fields others are made."""
KNOWN = 16
"""Values of each type that are taken from them."""
DEPTH = 3
"""So deep in a value something is changed."""
OTHER_RUNS = 5000
"""What is distorted are not the runs that are kept as they are."""
MACHINE = re.compile(r" at 0x[0-9a-f]+")
"""Where something lies in memory: it says nothing."""
MODULE_OF_EVENT = re.compile(r"\b(dualray\.shared\.model\.events)\.[a-z_]+(?=\.[A-Z])")
"""Nor does the module that an event is written in: it goes by the name of the package, as all import it."""
BAD_NEWS = re.compile("Died|Lost|Failed|Refused|Exited|Left|Gone|Abandoned|Fired|Draining")
LIMITS = tuple(field.name for field in dataclasses.fields(Config) if isinstance(field.default, int))


@cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    if not dataclasses.is_dataclass(kind):
        return hints
    return {field.name: hints[field.name] for field in dataclasses.fields(kind) if field.init}


@cache
def _shape(hint: Any) -> tuple[str, tuple[Any, ...]]:
    """Of what kind a type is, and what it is made of."""
    if isinstance(hint, str):
        return "name", ()
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return "optional", tuple(each for each in inner if each is not type(None))
    if origin is tuple:
        return ("many", inner[:1]) if len(inner) == 2 and inner[1] is Ellipsis else ("tuple", inner)
    if isinstance(hint, typing.NewType):
        return "id", (hint.__supertype__,)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return "enum", tuple(hint)
    if dataclasses.is_dataclass(hint) or (isinstance(hint, type) and issubclass(hint, tuple)):
        return "record", ()
    return "plain", ()


class _Distorter:
    """Changes events, and makes some up, from what others say."""

    def __init__(self, stream: random.Random, events: Sequence[Any], timers: Sequence[str]) -> None:
        self._random = stream
        self._known: dict[Any, list[Any]] = {}
        for event in events if len(events) <= SOURCES else stream.sample(events, SOURCES):
            self._learn(event, type(event), 0)
        if timers:
            self._known["timer"] = list(dict.fromkeys(timers))[-KNOWN:]

    def is_so(self, chance: float) -> bool:
        return self._random.random() < chance

    def _learn(self, value: Any, hint: Any, depth: int) -> None:
        kind, inner = _shape(hint)
        if value is None or depth > DEPTH or kind in ("enum", "plain"):
            return
        if kind == "optional":
            self._learn(value, inner[0], depth)
        elif kind == "many":
            for each in value[:2]:
                self._learn(each, inner[0], depth + 1)
        elif kind in ("id", "name", "record"):
            known = self._known.setdefault(hint, [])
            if len(known) < KNOWN and value not in known:
                known.append(value)
            if kind == "record":
                for name, of in _hints(hint).items():
                    self._learn(getattr(value, name), name if of in (int, str) else of, depth + 1)

    def made(self, hint: Any, depth: int = 0) -> Any:
        """A value of a type: one that somebody has, or another."""
        kind, inner = _shape(hint)
        known = self._known.get(hint)
        if known and self.is_so(0.9):
            return self._random.choice(known)
        if kind == "optional":
            return None if self.is_so(0.4) else self.made(inner[0], depth)
        if kind == "many":
            return tuple(self.made(inner[0], depth + 1) for _ in range(self._random.choice((0, 1, 1, 2))))
        if kind == "tuple":
            return tuple(self.made(each, depth + 1) for each in inner)
        if kind == "enum":
            return self._random.choice(inner)
        if kind == "record":
            return hint(**{name: self._field(name, of, depth + 1) for name, of in _hints(hint).items()})
        return self._plain(inner[0] if kind == "id" else hint)

    def event(self, kind: Any) -> Any:
        """An event of a kind: one that somebody has heard, or a new one."""
        if self._known.get(kind) and self.is_so(0.3):
            return self._random.choice(self._known[kind])
        return kind(**{name: self._field(name, of, 1) for name, of in _hints(kind).items()})

    def _field(self, name: str, hint: Any, depth: int) -> Any:
        known = self._known.get(name) if hint in (int, str) else None
        return self._random.choice(known) if known and self.is_so(0.7) else self.made(hint, depth)

    def _plain(self, hint: Any) -> Any:
        if hint is bool:
            return self.is_so(0.5)
        if hint is int:
            return self._random.choice((0, 1, 1, 2, 3, 10, 300, 900))
        if hint is bytes:
            return b"nobody" * 4
        return "nobody:1" if hint is str else {}

    def changed(self, value: Any, hint: Any, depth: int = 0) -> Any:
        """A value that differs in one place, mostly."""
        kind, inner = _shape(hint)
        if kind == "optional":
            if value is None or self.is_so(0.3):
                return self.made(inner[0]) if value is None else None
            return self.changed(value, inner[0], depth)
        if kind == "many":
            return self._changed_tuple(value, inner[0], depth)
        if kind == "record" and (depth == 0 or self.is_so(0.7)):
            hints = _hints(hint)
            if not hints:
                return value
            name = self._random.choice(list(hints))
            is_other = hints[name] in (int, str) and self.is_so(0.5)
            before = getattr(value, name)
            other = self._field(name, hints[name], depth) if is_other else self.changed(before, hints[name], depth + 1)
            if isinstance(value, tuple):
                return value._replace(**{name: other})  # type: ignore[attr-defined]  # the only tuples are named
            return dataclasses.replace(value, **{name: other})
        if hint is bool:
            return not value
        if hint is int:
            return self._random.choice((value + 1, max(value - 1, 0), 0, 2 * value))
        return self.made(hint)

    def _changed_tuple(self, value: tuple[Any, ...], hint: Any, depth: int) -> tuple[Any, ...]:
        if not value or self.is_so(0.25):
            return (*value, self.made(hint))
        place = self._random.randrange(len(value))
        before, here, after = value[:place], value[place], value[place + 1 :]
        ways: tuple[Callable[[], tuple[Any, ...]], ...] = (
            lambda: (*before, *after),
            lambda: (*before, here, here, *after),
            lambda: (*before, self.changed(here, hint, depth + 1), *after),
            lambda: tuple(reversed(value)),
        )
        return self._random.choice(ways)()

    def history(self, spec: MachineSpec, decisions: Sequence[Any], others: Sequence[Any]) -> list[tuple[int, Any]]:
        """What a machine hears, and when: what it has heard in its run, distorted in some places."""
        told = [(decision.now_ns, decision.event) for decision in decisions]
        for _ in range(self._random.choice((1, 1, 2, 3, 5))):
            place = self._place(told)
            now_ns, event = told[place]
            later = min(place + self._random.choice((1, 2, 5, 20, 100)), len(told))
            match self._random.randrange(9):
                case 0:  # twice
                    told.insert(later, (told[later - 1][0], event))
                case 1 if len(told) > 1:  # never
                    del told[place]
                case 2:  # late
                    told.insert(later, (told[later - 1][0], event))
                    del told[place]
                case 3:  # what somebody else has heard
                    told.insert(later, (told[later - 1][0], self._random.choice(others)))
                case 4 | 5:  # what nobody has
                    kind = self._random.choice(_heard(spec.kind))
                    told.insert(later, (told[later - 1][0], self.event(kind)))
                case 6:  # all that follows, much later
                    told[place:] = [(then + 20_000 * h.MS, each) for then, each in told[place:]]
                case _:
                    told[place] = now_ns, self.changed(event, type(event))
        return told

    def _place(self, told: Sequence[tuple[int, Any]]) -> int:
        """Of an event: what comes seldom is as likely as what comes all the time."""
        kinds: dict[Any, list[int]] = {}
        for place, (_, event) in enumerate(told):
            kinds.setdefault(type(event), []).append(place)
        return self._random.choice(self._random.choice(list(kinds.values())))

    def spec(self, spec: MachineSpec) -> MachineSpec:
        """What a machine is made with; seldom another limit, or less to offer."""
        config = spec.config
        if self.is_so(0.4):
            for _ in range(self._random.choice((1, 1, 3))):
                other: dict[str, Any] = {self._random.choice(LIMITS): self._random.choice((0, 1, 2, 3, 5, 300))}
                config = dataclasses.replace(config, **other)
        if self.is_so(0.1):
            config = dataclasses.replace(config, eviction_policy=self._random.choice(("lru", "spill")))
        if self.is_so(0.1):
            config = dataclasses.replace(config, infeasible="wait")
        if self.is_so(0.05):
            return dataclasses.replace(spec, config=config, incarnation=1, is_driver=not spec.is_driver, total=())
        return dataclasses.replace(spec, config=config)


@cache
def _heard(kind: str) -> tuple[Any, ...]:
    """The kinds of events that a machine can hear, what is bad news several times."""
    table = MachineSpec(kind=kind, address="x", node="x", config=Config()).make().table
    kinds = sorted(table, key=lambda each: each.__name__)
    return (*kinds, *[each for each in kinds if BAD_NEWS.search(each.__name__)] * 3)


def _told(machine: Any, told: Sequence[tuple[int, Any]]) -> list[bytes]:
    """Tell a machine a history, and take down what it says, up to what it cannot bear."""
    said: list[bytes] = []
    for now_ns, event in told:
        try:
            commands = machine.handle(event, now_ns)
        except Exception as error:  # noqa: BLE001  # whatever it is: a machine need not bear what cannot be
            said.append(_words(error))
            break
        said += [pack(encode(command)) for command in commands]
    return said


def _told_more(make: Callable[[], Any], told: list[tuple[int, Any]], more: Sequence[Any]) -> tuple[Any, list[bytes]]:
    """A machine that has heard a history, and then what it can bear of more; and what it says to that."""
    machine, said = make(), []
    _told(machine, told)
    now_ns = told[-1][0]
    for event in more:
        now_ns += 1000
        try:
            commands = machine.handle(event, now_ns)
        except Exception as error:  # noqa: BLE001  # as above; what it was about to do is forgotten
            said.append(_words(error))
            machine = make()
            _told(machine, told)
            continue
        told.append((now_ns, event))
        said += [pack(encode(command)) for command in commands]
    return machine, said


def _look_at(machine: Any) -> list[bytes]:
    """What its invariants say in the end, and what it tells."""
    said: list[bytes] = []
    whole = machine.unfold() if isinstance(machine, PlainWorker) else machine
    for look in (whole.check_invariants, lambda: said.append("\n".join(w.told_by(whole)).encode())):
        try:
            look()
        except Exception as error:  # noqa: BLE001  # as above
            said.append(_words(error))
    return said


def _words(error: Exception) -> bytes:
    words = MACHINE.sub("", f"{type(error).__name__}: {error}")
    return MODULE_OF_EVENT.sub(r"\1", words).encode()


class _Histories:
    """What the machines of one run are told."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(f"distorted:{seed}")
        drawer = Drawer(seed + OTHER_RUNS)
        drivers = drawer.drivers()
        cluster = w.WideCluster(drawer.shape(), drivers=drivers, seed=seed, **drawer.settings())
        for op in drawer.ops():
            if not isinstance(op, w.Flaw | w.Look):
                cluster.do(op)
        self._processes = [process for process in cluster.everyone if process.decisions]
        self._events = [decision.event for process in self._processes for decision in process.decisions]
        decisions = [decision for process in self._processes for decision in process.decisions]
        self._distorter = _Distorter(self._random, self._events, _timers(decisions))

    def tell(self) -> list[bytes]:
        """One history, of one machine: distorted, or with more to hear about what it has just heard."""
        processes = self._processes
        (process,) = self._random.choices(processes, [len(each.decisions) + 20 for each in processes])
        decisions = process.decisions
        if self._random.random() < 0.7:
            decisions = decisions[: self._random.randint(1, len(decisions))]
        spec = self._distorter.spec(process.spec)
        is_plain = spec.kind == "owner" and not spec.is_driver and self._random.random() < 0.3

        def make() -> Any:
            if is_plain:
                return PlainWorker(address=Address(spec.address), node=NodeID(spec.node), config=spec.config)
            return spec.make()

        if self._random.random() < 0.5:
            machine = make()
            said = _told(machine, self._distorter.history(spec, decisions, self._events))
        else:
            machine, said = _told_more(
                make, [(each.now_ns, each.event) for each in decisions], self._more(process.spec, decisions)
            )
        return said + _look_at(machine) if self._random.random() < 0.5 else said

    def _more(self, spec: MachineSpec, decisions: Sequence[Decision]) -> list[Any]:
        """Events about the few things that a machine has just heard of."""
        recent = decisions[-self._random.randint(2, 8) :]
        told = [decision.event for decision in recent]
        distorter = _Distorter(self._random, told, _timers(recent))
        kinds = [self._random.choice(_heard(spec.kind)) for _ in range(self._random.randint(2, 6))]
        return [
            distorter.changed(event, type(event))
            if distorter.is_so(0.3)
            else distorter.event(self._random.choice(kinds))
            for event in self._random.choices(told, k=MORE)
        ]


def _timers(decisions: Sequence[Decision]) -> list[str]:
    commands = [command for decision in decisions for command in decision.commands]
    return [command.timer for command in commands if isinstance(command, ArmTimer)]


def distorted(seed: int) -> dict[str, Any]:
    """What is kept of the histories that were made of one run: how much was said, and a digest of it."""
    histories = _Histories(seed)
    digest, count = blake2b(digest_size=6), 0
    for _ in range(HISTORIES):
        for each in histories.tell():
            count += 1
            digest.update(each)
    return {"answers": count, "said": digest.hexdigest()}
