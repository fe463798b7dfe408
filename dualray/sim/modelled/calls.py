"""A modelled program makes calls of known duration and sizes, and waits for their results."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import TypeAlias

from dualray.shared.model.ids import (
    FunctionID,
)
from dualray.shared.model.resources import CPU, UNITS, Resources
from dualray.shared.model.specs import (
    DEFAULT_STRATEGY,
    FunctionTemplate,
    Ref,
    Strategy,
)

_ONE_CPU = Resources(((CPU, UNITS),))


@dataclass(frozen=True, slots=True)
class Get:
    """What a modelled program yields to wait until all of these are in reach of it, as `dualray.get` does."""

    refs: tuple[Ref, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """What a modelled program yields to wait until so many are ready: it is sent those that are, as `dualray.wait`."""

    refs: tuple[Ref, ...]
    num_ready: int = 1


Step: TypeAlias = int | Get | Wait
"""What a modelled program yields: nanoseconds to compute for, or what it waits for."""


@dataclass(frozen=True, slots=True)
class Call:
    """A function, or an actor's method, of which calls are modelled.

    Attributes:
        template: name, resources, retries and strategy, as of any remote function.
        takes_ns: how long a call takes that is not told otherwise.
        sizes: bytes of each of its results, likewise.
    """

    template: FunctionTemplate
    takes_ns: int
    sizes: tuple[int, ...]


def call(
    name: str,
    *,
    takes_ns: int,
    sizes: tuple[int, ...] = (0,),
    resources: Resources = _ONE_CPU,
    placement: Resources | None = None,
    max_retries: int = 3,
    strategy: Strategy = DEFAULT_STRATEGY,
) -> Call:
    """A function, or method, to make calls of; `sizes` are those of its results."""
    template = FunctionTemplate(
        function_id=FunctionID(blake2b(name.encode(), digest_size=16, person=b"dualray-model").digest()),
        name=name,
        resources=resources,
        placement=resources if placement is None else placement,
        num_returns=len(sizes),
        max_retries=max_retries,
        strategy=strategy,
    )
    return Call(template, takes_ns, sizes)
