"""Resources in exact ten-thousandths: 0.1 CPU is 1,000 units, and ten of them are one CPU, always.

Memory is counted like any other resource, in bytes: what is demanded of it is for scheduling, and bounds nobody's use.

A `Resources` value is immutable, hashable and sorted by name, so that it can be part of a key. What a node has left
is a plain dict of units.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dualray.shared.units import size_words

UNITS = 10_000
"""Units in 1.0 of a resource."""

CPU = "CPU"
GPU = "GPU"
MEMORY = "memory"
GPU_MASK = "CUDA_VISIBLE_DEVICES"
"""The variable of the environment that says which GPUs a process may use."""


@dataclass(frozen=True, slots=True)
class Resources:
    """An amount of each named resource; absent means none."""

    units: tuple[tuple[str, int], ...] = ()

    def __hash__(self) -> int:
        return hash(self.units)

    def get(self, name: str) -> int:
        """The units of one resource; 0 when absent."""
        for known, amount in self.units:
            if known == name:
                return amount
        return 0

    def as_floats(self) -> dict[str, float]:
        """The amounts as users write them."""
        return {name: amount / UNITS for name, amount in self.units}

    def __str__(self) -> str:
        units = visible(dict(self.units))
        of_bundle = next((_bundle_words(name) for name, _ in self.units if is_of_bundle(name)), "")
        return (", ".join(amount_words(name, amount) for name, amount in units.items()) or "nothing") + of_bundle


NOTHING = Resources()

NODE_PREFIX = "node:"
"""Each node offers 1.0 of `node:` and its IP address, and the head's node of HEAD_NODE: for tasks that name a node."""
HEAD_NODE = "node:__internal_head__"
MEMORY_SHARE_PERCENT = 70
"""Of its memory, a node offers so much to tasks and actors that say `memory=`, unless it is told how much."""


def node_resources(ip_address: str, *, is_head: bool) -> Resources:
    """What a node offers beside what it was told to."""
    names = [NODE_PREFIX + ip_address, HEAD_NODE] if is_head else [NODE_PREFIX + ip_address]
    return Resources(tuple((name, UNITS) for name in sorted(names)))


def ip_offered(total: Resources) -> str:
    """The IP address that a node offers among its resources; "" when there is none."""
    names = [name for name, _ in total.units if name.startswith(NODE_PREFIX) and name != HEAD_NODE]
    return names[0].removeprefix(NODE_PREFIX) if names else ""


def told(total: Resources) -> Resources:
    """What a node offers without what each node offers: what it was told to."""
    return Resources(tuple([row for row in total.units if not row[0].startswith(NODE_PREFIX)]))


def offered_words(total: Resources) -> str:
    """The same, for people."""
    return str(told(total))


def amount_words(name: str, units: int) -> str:
    """An amount of one resource, for people: `2 CPU`, `1.5 GiB of memory`."""
    return f"{size_words(units // UNITS)} of memory" if name == MEMORY else f"{units / UNITS:g} {name}"


def number_words(name: str, amount: float) -> str:
    """An amount as users write it, without the resource's name: `2`, `1.5 GiB`."""
    return size_words(int(amount)) if name == MEMORY else f"{amount:g}"


def free_words(free: int, total: int, name: str) -> str:
    """How much of one resource is free, for people: `2 of 4 CPU free`."""
    return f"{number_words(name, free / UNITS)} of {amount_words(name, total)} free"


def bulk(resources: Resources) -> float:
    """How much it is in all, to compare demands: a GiB of memory weighs as much as a CPU."""
    return sum([amount / 2**30 if name == MEMORY else amount for name, amount in resources.units])


# ---- Bundles: what a placement group has reserved on a node is offered there under names of its own, as in R ----

BUNDLE = "_group_"


def bundle_resources(reserved: Resources, group: bytes, index: int) -> Resources:
    """What a node offers to tasks of a bundle: under the bundle's name, and under that of the whole group, for tasks
    that take any bundle."""
    named = {f"{name}{BUNDLE}{group.hex()}": amount for name, amount in reserved.units}
    named |= {f"{name}{BUNDLE}{index}_{group.hex()}": amount for name, amount in reserved.units}
    return from_units(named)


def demand_in_group(demand: Resources, group: bytes, index: int) -> Resources:
    """What a task demands that runs in a bundle; index -1: in any."""
    if index >= 0:
        return bundle_resources(demand, group, index)
    return from_units({f"{name}{BUNDLE}{group.hex()}": amount for name, amount in demand.units})


def is_of_bundle(name: str) -> bool:
    """Whether the name is that of something reserved by a placement group."""
    return BUNDLE in name


def is_cpu(name: str) -> bool:
    """Whether the name is that of CPUs: a node's own, or those of a bundle."""
    return name == CPU or name.startswith(CPU + BUNDLE)


def in_plain_names(resources: Resources) -> Resources:
    """What a task demanded before it was placed in a bundle."""
    return from_units(visible(dict(resources.units)))


def visible(amounts: Mapping[str, int]) -> dict[str, int]:
    """Amounts by the names that users gave: those of bundles under their plain ones."""
    plain: dict[str, int] = {}
    for name, amount in amounts.items():
        bare = name.partition(BUNDLE)[0]
        plain[bare] = max(plain.get(bare, 0), amount)
    return plain


def _bundle_words(name: str) -> str:
    index, _, group = name.partition(BUNDLE)[2].rpartition("_")
    return f" in {f'bundle {index}' if index else 'a bundle'} of placement group {group[:8]}"


def without_bundles(amounts: Mapping[str, int]) -> dict[str, int]:
    """Amounts without what placement groups have reserved."""
    return {name: amount for name, amount in amounts.items() if not is_of_bundle(name)}


def from_units(amounts: Mapping[str, int]) -> Resources:
    """Resources from units; zero amounts are left out."""
    return Resources(tuple(sorted((name, amount) for name, amount in amounts.items() if amount)))


def fits(free: Mapping[str, int], demand: Resources) -> bool:
    """Whether the demand can be met from what is free."""
    for name, amount in demand.units:  # noqa: SIM110 - asked for every node: a generator takes twice as long
        if free.get(name, 0) < amount:
            return False
    return True


def shortfall(have: Mapping[str, int], demand: Resources) -> Resources:
    """What is missing to meet the demand."""
    return from_units({name: amount - have.get(name, 0) for name, amount in demand.units if amount > have.get(name, 0)})


def add(parts: Iterable[Resources]) -> Resources:
    """The sum of several amounts."""
    total: dict[str, int] = {}
    for part in parts:
        for name, amount in part.units:
            total[name] = total.get(name, 0) + amount
    return from_units(total)
