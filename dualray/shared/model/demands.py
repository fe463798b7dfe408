"""Checks of resources that users write: the demand of a task, the resources of a node, a size of memory.

What is wrong is said here in words, before anything has changed: that is why the wheel does not compile this.
"""

from __future__ import annotations

from collections.abc import Mapping

from dualray.shared.model.accelerators import KINDS
from dualray.shared.model.resources import BUNDLE, CPU, GPU, MEMORY, UNITS, Resources, from_units
from dualray.shared.units import parse_size_bytes

AMOUNT_MAX = 1_000_000
"""More of one resource than this in one demand is taken for a mistake."""
MEMORY_MAX = 2**46
"""As AMOUNT_MAX, in bytes, of memory: 64 TiB."""


def parse_resources(
    *,
    num_cpus: float | None,
    num_gpus: float | None,
    resources: Mapping[str, float] | None,
    memory: float | str | None = None,
    refuses_parts: bool = True,
) -> Resources:
    """What a user wrote, checked and rounded to ten-thousandths; `memory` in bytes, or a text such as "2GiB".
    `refuses_parts`: whether more than one accelerator must be a whole number.

    Raises:
        ValueError: an amount that is negative, absurd (over 1,000,000; of memory over 64 TiB), below 0.0001, or above 1
            and not whole for accelerators; CPU, GPU or memory inside `resources`; an empty name.
        TypeError: an amount that is no number, a name that is no string, or `resources` that is no mapping.
    """
    if resources is not None and not isinstance(resources, Mapping):
        raise TypeError(f"resources={resources!r} must be a dict of name to amount, such as {{'disk': 1}}")
    if resources is not None and any(BUNDLE in str(name) for name in resources):
        raise ValueError(f"resources={dict(resources)!r}: names with {BUNDLE!r} are reserved for dualray")
    amounts: dict[str, int] = {}
    for option, name, amount in (("num_cpus", CPU, num_cpus), ("num_gpus", GPU, num_gpus)):
        if amount is not None:
            amounts[name] = _units_of(option, amount)
    for name, amount in (resources or {}).items():
        if not isinstance(name, str):
            raise TypeError(f"resources={dict(resources or {})!r}: the name {name!r} must be a string")
        if not name:
            raise ValueError(f"resources={dict(resources or {})!r}: the name of a resource must not be empty")
        if name == "bundle":
            raise ValueError(
                f"resources={dict(resources or {})!r}: the name 'bundle' is reserved for bundles of placement groups. "
                f"(The resource should not include `bundle`.)"
            )
        if name in _OPTIONS:
            raise ValueError(f"resources has {name!r}; use {_OPTIONS[name]}= instead")
        amounts[name] = _units_of(f"resources[{name!r}]", amount)
    for name in _KINDS if refuses_parts else ():
        amount = amounts.get(name, 0)
        if amount > UNITS and amount % UNITS:
            said = f"{'num_gpus' if name == GPU else name}={amount / UNITS:g}"
            plural = name if name.endswith("s") else f"{name}s"
            raise ValueError(
                f"{said}: an amount above 1 must be a whole number of {plural}. ({name} resource quantities >1 must "
                f"be whole numbers.)"
            )
    if memory is not None:
        amounts[MEMORY] = memory_bytes("memory", memory) * UNITS
    return from_units(amounts)


_KINDS = {kind.name: kind for kind in KINDS}
"""Resources that are devices."""


def check_accelerators(resources: Mapping[str, float] | None) -> None:
    """Check the amounts of accelerators that a task or actor asks for as `resources`.

    Raises:
        ValueError: a part of an accelerator that cannot be shared, or a number of TPUs that is not 1, 2, 4 or 8.
    """
    for name, amount in (resources or {}).items():
        kind = _KINDS.get(name)
        if kind is None or kind.is_shared:
            continue
        if kind.amounts and amount not in kind.amounts:
            choices = ", ".join(map(str, kind.amounts[:-1]))
            raise ValueError(
                f"resources[{name}]={amount}: a task or actor can hold only {choices} or {kind.amounts[-1]} {name}s. "
                f"(The number of requested '{name}' was set to {amount} which is not a supported chip configuration. "
                f"Supported configs: {kind.amounts})"
            )
        if amount % 1:
            raise ValueError(
                f"resources[{name!r}]={amount!r}: a task or actor cannot hold a fraction of a {name}. ({name} "
                f"resource quantity must be whole numbers. The specified quantity {amount} is invalid.)"
            )


_OPTIONS = {CPU: "num_cpus", GPU: "num_gpus", MEMORY: "memory"}


def parse_named(amounts: Mapping[str, float]) -> Resources:
    """As `parse_resources`, of one mapping in which CPU, GPU and memory stand by their names."""
    custom = {name: amount for name, amount in amounts.items() if name not in _OPTIONS}
    return parse_resources(
        num_cpus=amounts.get(CPU), num_gpus=amounts.get(GPU), memory=amounts.get(MEMORY), resources=custom
    )


def memory_bytes(option: str, value: float | str) -> int:
    """A size of memory as a user wrote it, a number, or a text such as "2GiB", rounded down to whole bytes as
    in Ray.

    Raises:
        ValueError: a number below 0 or above 64 TiB, or a text that is no size.
        TypeError: neither a number nor a text.
    """
    if isinstance(value, str):
        value = int(value) if value.isdecimal() else parse_size_bytes(value, option)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{option}={value!r} must be a number of bytes, or a text such as '2GiB'")
    if not 0 <= value <= MEMORY_MAX:  # NaN fails this comparison too
        raise ValueError(f"{option}={value!r} must be between 0 and {MEMORY_MAX:,} bytes (64 TiB)")
    return int(value // 1)


def _units_of(option: str, amount: float) -> int:
    if isinstance(amount, bool) or not isinstance(amount, int | float):
        raise TypeError(f"{option}={amount!r} must be a number")
    if not 0 <= amount <= AMOUNT_MAX:  # NaN fails this comparison too
        raise ValueError(f"{option}={amount!r} must be between 0 and {AMOUNT_MAX:,}")
    units = round(amount * UNITS)
    if amount and not units:
        name = option.removeprefix("resources['").removesuffix("']")
        raise ValueError(
            f"{option}={amount!r} is below the smallest step, 0.0001. (The precision of the fractional quantity of "
            f"resource {name} cannot go beyond 0.0001.)"
        )
    return units
