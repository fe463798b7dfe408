"""Resources in exact ten-thousandths: 0.1 CPU is 1,000 units, and ten of them are one CPU, always.

A `Resources` value is immutable, hashable and sorted by name, so that it can be part of a key. What a node has left
is a plain dict of units.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

UNITS = 10_000
"""Units in 1.0 of a resource."""

CPU = "CPU"
GPU = "GPU"
GPU_MASK = "CUDA_VISIBLE_DEVICES"
"""The variable of the environment that says which GPUs a process may use."""
AMOUNT_MAX = 1_000_000
"""More of one resource than this in one demand is taken for a mistake."""


@dataclass(frozen=True, slots=True)
class Resources:
    """An amount of each named resource; absent means none."""

    units: tuple[tuple[str, int], ...] = ()

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
        return ", ".join(f"{amount / UNITS:g} {name}" for name, amount in self.units) or "nothing"


NOTHING = Resources()


def from_units(amounts: Mapping[str, int]) -> Resources:
    """Resources from units; zero amounts are left out."""
    return Resources(tuple(sorted((name, amount) for name, amount in amounts.items() if amount)))


def parse_resources(
    *, num_cpus: float | None, num_gpus: float | None, resources: Mapping[str, float] | None
) -> Resources:
    """What a user wrote, checked and rounded to ten-thousandths.

    Raises:
        ValueError: an amount that is negative, absurd (over 1,000,000), below 0.0001, or above 1 and not whole for
            GPUs; CPU or GPU inside `resources`; an empty name.
        TypeError: an amount that is no number, a name that is no string, or `resources` that is no mapping.
    """
    if resources is not None and not isinstance(resources, Mapping):
        raise TypeError(f"resources={resources!r} must be a dict of name to amount, such as {{'disk': 1}}")
    amounts: dict[str, int] = {}
    for option, name, amount in (("num_cpus", CPU, num_cpus), ("num_gpus", GPU, num_gpus)):
        if amount is not None:
            amounts[name] = _units_of(option, amount)
    for name, amount in (resources or {}).items():
        if not isinstance(name, str):
            raise TypeError(f"resources={dict(resources or {})!r}: the name {name!r} must be a string")
        if not name:
            raise ValueError(f"resources={dict(resources or {})!r}: an empty resource name")
        if name in (CPU, GPU):
            raise ValueError(f"resources names {name!r}; use num_{name.lower()}s= for it")
        amounts[name] = _units_of(f"resources[{name!r}]", amount)
    gpu = amounts.get(GPU, 0)
    if gpu > UNITS and gpu % UNITS:
        raise ValueError(f"num_gpus={gpu / UNITS:g}: more than one GPU must be a whole number of GPUs")
    return from_units(amounts)


def _units_of(option: str, amount: float) -> int:
    if isinstance(amount, bool) or not isinstance(amount, int | float):
        raise TypeError(f"{option}={amount!r} must be a number")
    if not 0 <= amount <= AMOUNT_MAX:  # NaN fails this comparison too
        raise ValueError(f"{option}={amount!r} must be between 0 and {AMOUNT_MAX:,}")
    units = round(amount * UNITS)
    if amount and not units:
        raise ValueError(f"{option}={amount!r} is below the smallest step, 0.0001")
    return units


def fits(free: Mapping[str, int], demand: Resources) -> bool:
    """Whether the demand can be met from what is free."""
    return all(free.get(name, 0) >= amount for name, amount in demand.units)


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
