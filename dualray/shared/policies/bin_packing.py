"""The default scaling policy: it packs what waits onto the nodes that are there, then onto as few new ones as it can.

The rule is that of Ray's autoscaler (`ray.autoscaler.v2.scheduler` of Ray 2.60), so that a cluster grows here as there:

1. Each group has its least number of nodes, and not more than its most; what is too much leaves, idle ones first.
2. What `request_resources` asks for is packed as if the nodes were empty; then placement groups, each whole or not at
   all, the most constrained first; then all other demands.
3. To pack: large and constrained requests go first. The node is chosen that scores best when it takes as many of them
   as it can, again and again; nodes that are there go before new ones. A score compares, in this order: labels that
   were asked for; no GPU left idle; how many kinds of its resources are used; where prices are known, the price for
   each request that it takes; the least, then the mean use of its resources.
4. A node leaves that was idle for longer than the idle timeout and took nothing in 2, down to its group's least number.

Beyond that: plain demands launch no more nodes at a time than the speed allows; what a group cannot have now (it was
refused not long ago) is launched of others.

Requests that are alike are counted, not listed, and nodes in the same state are looked at once: a decision takes a time
that grows with the kinds of nodes and requests, and hardly with their numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from dualray.shared.model.resources import GPU, UNITS, Resources, add
from dualray.shared.model.specs import GroupStrategy, LabelTerm, labels_match
from dualray.shared.policies.scaling import (
    SPEED_LEAST,
    Gang,
    NodeGroupSpec,
    ScaleDecision,
    ScaledNode,
    ScaleView,
    Unmet,
    demand_words,
    never_words,
    not_now_words,
    request_words,
    whole_words,
)

_Score = tuple[int, bool, int, float, float, float]

_KNOWN_MOST = 10_000
"""Demands whose words are kept for the next decisions."""


class _Run:
    """Requests that are alike. `apart`: no two of the same name share a node."""

    __slots__ = ("apart", "count", "resources", "terms", "units")

    def __init__(self, resources: Resources, terms: tuple[LabelTerm, ...], count: int, apart: str = "") -> None:
        self.resources = resources
        self.units: list[tuple[str, int]] = [(name, units) for name, units in resources.units if units > 0]
        self.terms = terms
        self.count = count
        self.apart = apart

    def rank(self) -> tuple[bool, int, int, int, tuple[tuple[str, int], ...]]:
        """Large and constrained ones have the highest."""
        units = self.resources.units
        return bool(self.apart), len(self.terms), len(units), sum(amount for _, amount in units), units


class _Place:
    """A node, or one that would be launched, while requests are put there for trial."""

    __slots__ = (
        "free",
        "free_if_empty",
        "group",
        "has_gpu_use",
        "has_terms",
        "holds",
        "is_new",
        "key",
        "kinds",
        "labels",
        "node",
        "spec",
    )

    def __init__(self, node: ScaledNode | None, spec: NodeGroupSpec | None) -> None:
        self.node = node
        self.spec = spec
        self.group = node.group if node is not None else spec.name if spec is not None else ""
        self.is_new = node is None
        self.key: tuple[object, ...] | None = None
        """Its state, while that is known."""
        total: Mapping[str, int] = (
            node.total if node is not None else dict(spec.total.units) if spec is not None else {}
        )
        # Both are copied before they are changed: others may have the same.
        self.free: Mapping[str, int] = node.free if node is not None else total
        self.free_if_empty: Mapping[str, int] = total
        self.labels: Mapping[str, str] = (
            node.labels if node is not None else dict(spec.labels) if spec is not None else {}
        )
        self.holds: tuple[str, ...] = ()
        """Names of requests that keep apart from others of their name, and have one here."""
        # What was put here so far: of demands, and of what was requested.
        self.kinds: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())
        self.has_gpu_use = (False, False)
        self.has_terms = (False, False)

    @property
    def takes_part(self) -> bool:
        """Whether anything was put here."""
        return bool(self.kinds[0] or self.kinds[1])

    def copy(self) -> _Place:
        twin = _Place(self.node, self.spec)
        twin.use_as(self)
        return twin

    def use_as(self, other: _Place) -> None:
        """Hold the same as another one, which was in the same state."""
        self.key = other.key
        self.free = other.free
        self.free_if_empty = other.free_if_empty
        self.holds = other.holds
        self.kinds = other.kinds
        self.has_gpu_use = other.has_gpu_use
        self.has_terms = other.has_terms

    def room(self, as_empty: bool) -> Mapping[str, int]:
        return self.free_if_empty if as_empty else self.free

    def total(self, groups: Mapping[str, NodeGroupSpec]) -> Mapping[str, int]:
        return self.node.total if self.node is not None else dict(groups[self.group].total.units)

    def state(self) -> tuple[object, ...]:
        """What decides what it would take, but for its labels."""
        return (
            self.group,
            tuple(self.free.items()),
            tuple(self.free_if_empty.items()),
            self.holds,
            self.kinds,
            self.has_gpu_use,
            self.has_terms,
        )

    def take(self, run: _Run, count: int, as_empty: bool) -> None:
        self.key = None
        room = dict(self.room(as_empty))
        for name, units in run.units:
            room[name] -= units * count
        if as_empty:
            self.free_if_empty = room
        else:
            self.free = room
        source = int(as_empty)
        kinds, gpus, terms = list(self.kinds), list(self.has_gpu_use), list(self.has_terms)
        # A request for nothing needs its node all the same.
        kinds[source] = kinds[source] | {name for name, _ in run.units} if run.units else kinds[source] | {""}
        gpus[source] = gpus[source] or any(name == GPU for name, _ in run.resources.units)
        terms[source] = terms[source] or bool(run.terms)
        self.kinds = (kinds[0], kinds[1])
        self.has_gpu_use = (gpus[0], gpus[1])
        self.has_terms = (terms[0], terms[1])
        if run.apart:
            self.holds = (*self.holds, run.apart)


class _Fill:
    """What one place would take: of each run by index, how many; and whether more would not have fitted."""

    __slots__ = ("is_bounded_by_room", "score", "taken", "taken_by_run")

    def __init__(self, taken: list[tuple[int, int]], is_bounded_by_room: bool, score: _Score) -> None:
        self.taken = taken
        self.taken_by_run = dict(taken)
        self.is_bounded_by_room = is_bounded_by_room
        self.score = score


class _Bucket:
    """Places in the same state, and what each of them would take now."""

    __slots__ = ("fill", "places")

    def __init__(self, places: list[_Place], fill: _Fill) -> None:
        self.places = places
        self.fill = fill


class _Packing:
    """Nodes, and what was decided so far."""

    def __init__(self, view: ScaleView) -> None:
        self.view = view
        self.groups = {group.name: group for group in view.groups}
        there_are = view.count_by_group()
        self.counts = {name: there_are[name] for name in self.groups}
        self.places = [_Place(node, None) for node in self._that_matter()]
        self.removed: dict[str, str] = {}
        self.is_priced = any(group.price for group in view.groups)
        terms = [term for demand in view.demands for term in demand.labels]
        terms += [term for demands in view.requested for demand in demands for term in demand.labels]
        terms += [term for gang in view.gangs for selector in gang.selectors for term in selector]
        self.label_keys = tuple(dict.fromkeys([term.key for term in terms]))

    def _that_matter(self) -> Sequence[ScaledNode]:
        """The nodes that have room for a demand, or may leave. Most of thousands are in use, and would take most of
        the time of a decision. Requests and placement groups look at all nodes."""
        view = self.view
        is_over = any(self.counts[name] > group.most for name, group in self.groups.items())
        if is_over or view.requested or view.gangs:
            return view.nodes
        least = _least([demand.resources.units for demand in view.demands])
        timeout_ns = view.idle_timeout_ns
        if not view.demands:
            return [node for node in view.nodes if node.idle_ns > timeout_ns]
        (name, units), rest = least[0] if least else ("", 0), least[1:]
        return [
            node
            for node in view.nodes
            if node.idle_ns > timeout_ns or (node.free.get(name, 0) >= units and _has(node.free, rest))
        ]

    # ---- The least and the most ------------------------------------------------------------------------------

    def keep_least(self) -> None:
        """As many nodes of each group as there should be at least, before all others."""
        added = []
        for group in self.view.groups:
            if group.name not in self.view.closed:
                missing = max(group.least - self.counts[group.name], 0)
                added += [_Place(None, group) for _ in range(missing)]
                self.counts[group.name] += missing
        self.places = added + self.places

    def keep_most(self) -> None:
        """What a group has too much of leaves: what has not joined first, then what was idle longest."""
        for group in self.view.groups:
            extra = self.counts[group.name] - group.most
            if extra > 0:
                mine = [place for place in self.places if place.group == group.name]
                for place in sorted(mine, key=self.leaves_first)[:extra]:
                    self.remove(place, f"{group.name} may have {group.most} nodes")

    def remove(self, place: _Place, why: str) -> None:
        self.places.remove(place)
        self.counts[place.group] -= 1
        if place.node is not None:
            self.removed[place.node.name] = why

    def leaves_first(self, place: _Place) -> tuple[bool, int, float]:
        total = place.total(self.groups)
        used = [(units - place.free.get(name, 0)) / units for name, units in total.items() if units > 0]
        is_joined = place.node is not None and place.node.is_joined
        return is_joined, -(place.node.idle_ns if place.node is not None else 0), sum(used) / len(used) if used else 0.0

    # ---- Packing ---------------------------------------------------------------------------------------------

    def pack(self, runs: list[_Run], *, as_empty: bool = False, launches_max: int | None = None) -> list[int]:
        """Put requests on places, and on new ones; how many of each run are left."""
        counts = [run.count for run in runs]
        order = self._on_nodes(runs, counts, as_empty)
        self._on_new(runs, counts, as_empty, order, launches_max)
        self.places = order
        return counts

    def pack_whole(self, runs: list[_Run], *, as_empty: bool = False) -> bool:
        """The same of requests of which all get a place, or none; whether they did."""
        before, counts = self.places, dict(self.counts)
        self.places = [place.copy() for place in before]
        if any(self.pack(runs, as_empty=as_empty)):
            self.places, self.counts = before, counts
            return False
        return True

    def _on_nodes(self, runs: list[_Run], counts: list[int], as_empty: bool) -> list[_Place]:
        if not self.places or not any(counts):
            return self.places
        buckets: dict[tuple[object, ...], list[_Place]] = {}
        least = _least([run.units for run, count in zip(runs, counts, strict=True) if count])
        for place in self.places:
            if _has(place.room(as_empty), least):
                buckets.setdefault(self._state(place), []).append(place)
        waiting: list[_Bucket] = []
        for places in buckets.values():
            fill = self._fill(places[0], runs, counts, as_empty)
            if fill is not None:
                waiting.append(_Bucket(places, fill))
        chosen: dict[int, None] = {}
        order: list[_Place] = []
        while any(counts) and waiting:
            best = _best_bucket(waiting)
            bucket = waiting[best]
            same = bucket.places[: _repeats([each.fill for each in waiting], bucket.fill, counts, len(bucket.places))]
            self._apply(same, bucket.fill, runs, counts, as_empty)
            order += same
            chosen.update([(id(place), None) for place in same])
            gone = bucket.fill.taken
            bucket.places = bucket.places[len(same) :]
            waiting = [each for each in waiting if each.places and self._is_kept(each, gone, runs, counts, as_empty)]
        return order + [place for place in self.places if id(place) not in chosen]

    def _state(self, place: _Place) -> tuple[object, ...]:
        """Two places of the same state are interchangeable: of labels, those count that somebody asks for."""
        node = place.node
        labels: tuple[object, ...] = ()
        if node is not None and self.label_keys:
            labels = tuple([node.labels.get(key) for key in self.label_keys])
        key = place.key
        if key is None:
            key = place.key = place.state()
        return labels, key

    def _is_kept(
        self, bucket: _Bucket, gone: list[tuple[int, int]], runs: list[_Run], counts: list[int], as_empty: bool
    ) -> bool:
        """Bring what places would take up to date, after some requests are gone; whether they would take any."""
        taken = bucket.fill.taken_by_run
        for index, _ in gone:
            if counts[index] <= taken.get(index, 0) and index in taken:
                fill = self._fill(bucket.places[0], runs, counts, as_empty)
                if fill is None:
                    return False
                bucket.fill = fill
                return True
        return True

    def _on_new(
        self, runs: list[_Run], counts: list[int], as_empty: bool, order: list[_Place], launches_max: int | None
    ) -> None:
        launched = 0
        while any(counts) and (launches_max is None or launched < launches_max):
            specs = [group for group in self.view.groups if self.available(group) > 0]
            fills = [self._fill(_Place(None, spec), runs, counts, as_empty) for spec in specs]
            best = _best(fills)
            if best is None:
                return
            spec, fill = specs[best], fills[best]
            assert fill is not None
            room = self.available(spec)
            if launches_max is not None:
                room = min(room, launches_max - launched)
            same = [_Place(None, spec) for _ in range(_repeats(fills, fill, counts, room))]
            self._apply(same, fill, runs, counts, as_empty)
            order += same
            self.counts[spec.name] += len(same)
            launched += len(same)

    def available(self, group: NodeGroupSpec) -> int:
        """How many more nodes of a group there may be."""
        return 0 if group.name in self.view.closed else group.most - self.counts[group.name]

    def _apply(self, same: list[_Place], fill: _Fill, runs: list[_Run], counts: list[int], as_empty: bool) -> None:
        """Put there what each of these takes, which are in the same state."""
        first = same[0]
        for index, count in fill.taken:
            first.take(runs[index], count, as_empty)
            counts[index] -= count * len(same)
        for place in same[1:]:
            place.use_as(first)

    def _fill(self, place: _Place, runs: list[_Run], counts: list[int], as_empty: bool) -> _Fill | None:
        """As much as fits, in order; None when that is nothing."""
        room = place.room(as_empty)
        left = room
        changed: dict[str, int] | None = None
        taken: list[tuple[int, int]] = []
        is_bounded = True
        holds = place.holds
        for index, run in enumerate(runs):
            count = counts[index]
            if not count:
                continue
            fit = count
            for name, units in run.units:
                held = left.get(name, 0)
                if held < units:
                    fit = 0
                    break
                fit = min(fit, held // units)
            if not fit or (run.terms and not labels_match(run.terms, place.labels)):
                continue
            if run.apart:
                if run.apart in holds:
                    continue
                fit = 1
                holds = (*holds, run.apart)
            elif fit == count:
                is_bounded = is_bounded and bool(run.units) and not _fits_more(run, left, fit)
            changed = changed if changed is not None else dict(room)
            left = changed
            for name, units in run.units:
                changed[name] -= units * fit
            taken.append((index, fit))
        if not taken:
            return None
        return _Fill(taken, is_bounded, self._score(place, runs, taken, left, as_empty))

    def _score(
        self, place: _Place, runs: list[_Run], taken: list[tuple[int, int]], left: Mapping[str, int], as_empty: bool
    ) -> _Score:
        source = int(as_empty)
        total = place.total(self.groups)
        kinds = set(place.kinds[source])
        has_gpu_use, has_terms = place.has_gpu_use[source], place.has_terms[source]
        placed = 0
        for index, count in taken:
            run = runs[index]
            kinds.update([name for name, _ in run.units])
            has_gpu_use = has_gpu_use or any(name == GPU for name, _ in run.resources.units)
            has_terms = has_terms or bool(run.terms)
            placed += count
        used = []
        for name, units in total.items():
            if units:
                share = (units - left.get(name, 0)) / units
                used.append(units / UNITS * share**3)
        cost = 0.0
        if self.is_priced and place.is_new:
            cost = -self.groups[place.group].price / placed
        return (
            int(has_terms),
            not total.get(GPU) or has_gpu_use,
            sum(1 for kind in kinds if kind in total),
            cost,
            min(used) if used else 0.0,
            sum(used) / len(used) if used else 0.0,
        )


def _least(demands: Sequence[Sequence[tuple[str, int]]]) -> list[tuple[str, int]]:
    """What even the smallest request takes: a node that has less is not looked at."""
    least: dict[str, int] = dict(demands[0]) if demands else {}
    for demand in demands:
        its = dict(demand)
        if not least.keys() <= its.keys():
            least = {name: units for name, units in least.items() if name in its}
        for name, units in least.items():
            if its[name] < units:
                least[name] = its[name]
    return list(least.items())


def _has(room: Mapping[str, int], least: list[tuple[str, int]]) -> bool:
    for name, units in least:  # noqa: SIM110 - asked for every node: a generator takes twice as long
        if room.get(name, 0) < units:
            return False
    return True


def _fits_more(run: _Run, left: Mapping[str, int], fit: int) -> bool:
    return all(left.get(name, 0) >= units * (fit + 1) for name, units in run.units)


def _best(fills: Sequence[_Fill | None]) -> int | None:
    """The fill that scores best; of those that score alike, the first."""
    best: int | None = None
    for index, fill in enumerate(fills):
        if fill is not None:
            held = None if best is None else fills[best]
            if held is None or fill.score > held.score:
                best = index
    return best


def _best_bucket(waiting: Sequence[_Bucket]) -> int:
    """The bucket whose places score best; of those that score alike, the first."""
    best = 0
    score = waiting[0].fill.score
    for index in range(1, len(waiting)):
        if waiting[index].fill.score > score:
            best, score = index, waiting[index].fill.score
    return best


def _repeats(fills: Sequence[_Fill | None], best: _Fill, counts: Sequence[int], most: int) -> int:
    """How often in a row the same choice would be made: as long as no fill would take less than it does now."""
    if not best.is_bounded_by_room:
        return 1
    goes = dict(best.taken)
    repeats = most
    for fill in fills:
        if fill is None:
            continue
        for index, count in fill.taken:
            gone = goes.get(index, 0)
            if gone:
                if not fill.is_bounded_by_room:
                    return 1
                repeats = min(repeats, (counts[index] - count) // gone + 1)
    return max(1, repeats)


class BinPacking:
    """See the module."""

    def __init__(self) -> None:
        self._words = _Words()

    def choose(self, view: ScaleView) -> ScaleDecision:
        self._words.use(view.groups)
        packing = _Packing(view)
        packing.keep_least()
        packing.keep_most()
        unmet: list[Unmet] = []
        for requested in view.requested:
            runs = _sorted([_Run(demand.resources, demand.labels, demand.count) for demand in requested])
            if not packing.pack_whole(runs, as_empty=True):
                count = sum(run.count for run in runs)
                unmet.append(_unmet_whole(packing, self._words, request_words(count), runs, count))
        for gang in sorted(view.gangs, key=_gang_rank, reverse=True):
            runs = _runs_of_gang(gang)
            for place in packing.places:
                if (
                    place.node is not None
                    and place.node.name in gang.nodes
                    and gang.strategy == GroupStrategy.STRICT_SPREAD
                ):
                    place.holds = (*place.holds, gang.name)
                    place.key = None
            if not packing.pack_whole(runs):
                unmet.append(_unmet_whole(packing, self._words, f"the {gang.name}", runs, len(gang.bundles)))
        runs = _sorted([_Run(demand.resources, demand.labels, demand.count) for demand in view.demands])
        allowed = _allowed(view, packing)
        left = packing.pack(runs, launches_max=allowed)
        waiting = [(run, count) for run, count in zip(runs, left, strict=True) if count]
        if waiting:
            nows = not_now_words(view, packing.counts, is_slow=allowed is not None)
            unmet += [_unmet(packing, self._words, run, count, nows) for run, count in waiting]
        leaving = _idle(packing)
        cancelled: dict[str, str] = {}
        for node in view.nodes:
            if node.name in packing.removed:
                (leaving if node.is_joined else cancelled)[node.name] = packing.removed[node.name]
        launches: dict[str, int] = {}
        for place in packing.places:
            if place.is_new:
                launches[place.group] = launches.get(place.group, 0) + 1
        return ScaleDecision(launches=launches, leaving=leaving, cancelled=cancelled, unmet=unmet)


def _sorted(runs: list[_Run]) -> list[_Run]:
    """Those that are alike together, the most demanding first."""
    merged: dict[tuple[Resources, tuple[LabelTerm, ...], str], _Run] = {}
    for run in runs:
        known = merged.setdefault((run.resources, run.terms, run.apart), run)
        if known is not run:
            known.count += run.count
    return sorted(merged.values(), key=_Run.rank, reverse=True)


def _gang_rank(gang: Gang) -> tuple[int, int]:
    is_constrained = gang.strategy in (GroupStrategy.STRICT_SPREAD, GroupStrategy.STRICT_PACK)
    return len(gang.bundles) if is_constrained else 0, len(gang.bundles)


def _runs_of_gang(gang: Gang) -> list[_Run]:
    """Those of STRICT_PACK are one request; those of STRICT_SPREAD keep apart."""
    selectors = gang.selectors or ((),) * len(gang.bundles)
    if gang.strategy == GroupStrategy.STRICT_PACK:
        terms = tuple(dict.fromkeys(term for selector in selectors for term in selector))
        return [_Run(add(gang.bundles), terms, 1)]
    apart = gang.name if gang.strategy == GroupStrategy.STRICT_SPREAD else ""
    return _sorted([_Run(bundle, terms, 1, apart) for bundle, terms in zip(gang.bundles, selectors, strict=True)])


def _allowed(view: ScaleView, packing: _Packing) -> int | None:
    """How many nodes may be launched for plain demands now."""
    if not view.speed_percent:
        return None
    joined = sum(node.is_joined for node in view.nodes)
    under_way = sum(not node.is_joined for node in view.nodes) + sum(place.is_new for place in packing.places)
    return max(max(SPEED_LEAST, -(-joined * view.speed_percent // 100)) - under_way, 0)


def _idle(packing: _Packing) -> dict[str, str]:
    """Nodes that have been idle for too long. Launches that are not needed go on: what starts may be used."""
    view = packing.view
    leaving: dict[str, str] = {}
    going = dict.fromkeys(packing.groups, 0)
    idle = [
        place
        for place in packing.places
        if place.node is not None and place.node.is_joined and place.node.idle_ns > view.idle_timeout_ns
    ]
    for place in sorted(idle, key=packing.leaves_first):
        node = place.node
        spec = packing.groups.get(place.group)
        if (
            node is None
            or place.takes_part
            or spec is None
            or packing.counts[node.group] - going[node.group] <= spec.least
        ):
            continue
        going[node.group] += 1
        leaving[node.name] = f"idle for {node.idle_ns // 1_000_000_000} s"
    return leaving


# ---- Why not -----------------------------------------------------------------------------------------------------


def _unmet_whole(packing: _Packing, words: _Words, what: str, runs: Sequence[_Run], count: int) -> Unmet:
    """Of `count` bundles that get all or nothing: of each group, why not even the largest, or why not all of them."""
    reasons: dict[str, str] = {}
    for group in packing.view.groups:
        fitting = [run for run in runs if not never_words(group, run.resources, run.terms)]
        its = count if len(fitting) == len(runs) else sum(run.count for run in fitting)
        why = (
            packing.view.closed.get(group.name, "") if fitting else never_words(group, runs[0].resources, runs[0].terms)
        )
        if not why:
            needed, room = words.nodes_for(group, fitting), max(packing.available(group), 0)
            leaving = packing.view.leaving.get(group.name, 0)
            why = whole_words(its, count, needed, room, group.most + leaving, leaving)
        reasons[group.name] = why
    return Unmet(what=what, count=count, reasons=reasons, is_whole=True)


class _Words:
    """What a demand is called, and by group why it can never run there ([]: it can in each): the same in each decision,
    as long as the groups are, and longer in the making than the decision."""

    def __init__(self) -> None:
        self._offers: list[tuple[str, Resources, tuple[tuple[str, str], ...]]] = []
        self._known: dict[tuple[Resources, tuple[LabelTerm, ...]], tuple[str, list[str]]] = {}
        self._needed: dict[tuple[object, ...], int] = {}

    def use(self, groups: Sequence[NodeGroupSpec]) -> None:
        offers = [(group.name, group.total, group.labels) for group in groups]
        if offers != self._offers or len(self._known) + len(self._needed) > _KNOWN_MOST:
            self._offers = offers
            self._known.clear()
            self._needed.clear()

    def of(self, groups: Sequence[NodeGroupSpec], run: _Run) -> tuple[str, list[str]]:
        key = (run.resources, run.terms)
        known = self._known.get(key)
        if known is None:
            whys = [never_words(group, run.resources, run.terms) for group in groups]
            known = self._known[key] = (demand_words(run.resources, run.terms), whys if any(whys) else [])
        return known

    def nodes_for(self, group: NodeGroupSpec, runs: Sequence[_Run]) -> int:
        """How many empty nodes of one group alone these take."""
        key = (group.name, *[(run.resources, run.terms, run.count, bool(run.apart)) for run in runs])
        if key not in self._needed:
            spec = replace(group, least=0, most=sum(run.count for run in runs))
            alone = _Packing(ScaleView(groups=(spec,), nodes=(), idle_timeout_ns=0))
            alone.pack(list(runs))
            self._needed[key] = alone.counts[group.name]
        return self._needed[key]


def _unmet(packing: _Packing, words: _Words, run: _Run, count: int, nows: Mapping[str, str]) -> Unmet:
    """`nows`: of each group, why it has no more nodes now for a demand that it could meet."""
    what, whys = words.of(packing.view.groups, run)
    reasons = {name: never or now for (name, now), never in zip(nows.items(), whys, strict=True)} if whys else nows
    return Unmet(what=what, count=count, reasons=reasons)
