"""A scenario's expectations of its end: result or error, times, counters."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from dualray import exceptions
from dualray.shared.nearest import nearest
from dualray.shared.scenario.values import Model, Time


class Bounds(Model):
    """From `min` to `max`, both included; a plain number stands for both."""

    min: int | None = None
    max: int | None = None

    def has(self, value: int) -> bool:
        """Whether the value lies within."""
        return (self.min is None or value >= self.min) and (self.max is None or value <= self.max)

    def __str__(self) -> str:
        if self.min == self.max and self.min is not None:
            return f"{self.min:,}"
        least = f"at least {self.min:,}" if self.min is not None else ""
        most = f"at most {self.max:,}" if self.max is not None else ""
        return " and ".join(filter(None, (least, most))) or "anything"


def _bounds(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return {"min": value, "max": value}
    if not isinstance(value, dict | Bounds):
        raise ValueError(f"{value!r} must be a whole number, or a range such as {{min: 1, max: 5}}")
    return value


class TimeBounds(Model):
    """Bounds of a time."""

    min: Time | None = None
    max: Time | None = None

    @model_validator(mode="after")
    def _in_order(self) -> TimeBounds:
        _check_order(self.min, self.max)
        return self


class NumberBounds(Model):
    """Bounds of a number that a program returns."""

    min: float | None = None
    max: float | None = None

    @model_validator(mode="after")
    def _in_order(self) -> NumberBounds:
        _check_order(self.min, self.max)
        return self

    def has(self, value: float) -> bool:
        """Whether the value lies within."""
        return (self.min is None or value >= self.min) and (self.max is None or value <= self.max)

    def __str__(self) -> str:
        bounds = (("at least", self.min), ("at most", self.max))
        return " and ".join(f"{side} {bound:g}" for side, bound in bounds if bound is not None) or "anything"


def _check_order(least: float | None, most: float | None) -> None:
    if least is not None and most is not None and least > most:
        raise ValueError("min must not be above max")


def _check_bounds(bounds: Bounds) -> Bounds:
    _check_order(bounds.min, bounds.max)
    if bounds.max is not None and bounds.max < 0:
        raise ValueError("max must be at least 0, because counts are never negative")
    return bounds


Count = Annotated[Bounds, BeforeValidator(_bounds), AfterValidator(_check_bounds)]

COUNTERS = {
    "tasks": "submitted calls, with constructors of actors",
    "failed": "attempts that ended with an error",
    "tasks_lost": "tasks that never ended, or failed because a worker, node or object was lost or nothing could run "
    "them; tasks whose owner died are not counted",
    "retries": "attempts after an attempt that was lost or raised",
    "reconstructions": "attempts that recomputed a lost object",
    "evictions": "objects that a full store evicted",
    "transfers": "objects that one store sent to another",
    "bytes_moved": "bytes that a store received from another",
    "workers_started": "worker processes that were started",
    "workers_ended": "worker processes that ended while the program ran",
    "nodes_refused": "nodes that the head refused because it had declared them dead",
    "nodes_left": "nodes that drained and left",
    "nodes_launched": "nodes that the autoscaler launched, with those that never joined",
    "launches_refused": "launches that the provider refused",
    "node_seconds": "seconds for which launched nodes were paid, from their launch until they have shut down, rounded",
    "messages": "messages between processes",
    "messages_held": "messages that a partition, a pause or a loss delayed",
    "messages_dropped": "messages that were lost with a node or on a bad link",
    "messages_doubled": "messages that arrived twice and were handled once",
    "transfers_lost": "transfers that a dying node cut off",
    "faults": "faults that were performed",
}
"""What a run counts."""


class ErrorExpected(Model):
    """The program is to end with an error."""

    type: str = Field(description="name of the error's class or of a base class, such as ObjectStoreFullError")
    match: str | None = Field(default=None, description="regular expression that the message contains")

    @field_validator("type")
    @classmethod
    def _is_spelled_right(cls, value: str) -> str:
        """A program has errors of its own; a name that is all but one of ours is a slip."""
        ours = [name for name, item in vars(exceptions).items() if isinstance(item, type)]
        if value not in ours and (near := get_close_matches(value, ours, n=1, cutoff=0.9)):
            raise ValueError(f"dualray and Python have no error {value!r}. Did you mean {near[0]!r}?")
        return value

    @field_validator("match")
    @classmethod
    def _is_regular(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                re.compile(value)
            except re.error as error:
                raise ValueError(f"{value!r} is not a regular expression: {error}") from None
        return value


class Expect(Model):
    """What must hold in the end. Without `error` the program must succeed."""

    result: Any = Field(
        default=None, description="value that the function returns, or the last line that a script prints, as JSON"
    )
    figures: dict[str, NumberBounds] = Field(
        default_factory=dict, description="numbers by name, from the mapping that the program returns"
    )
    makespan: TimeBounds = TimeBounds()
    error: ErrorExpected | None = None
    counters: dict[str, Count] = Field(default_factory=dict)
    no_leak: bool = Field(default=True, description="no object, lease, task or payload is left at the end")
    all_faults: bool = Field(default=True, description="every planned fault happened")
    same_as_without_faults: bool = Field(default=False, description="the result equals that of a run without faults")

    @model_validator(mode="before")
    @classmethod
    def _take_counters(cls, said: Any) -> Any:
        """`retries: 0` stands for `counters: {retries: 0}`."""
        counters = said.get("counters", {}) if isinstance(said, dict) else None
        if not isinstance(counters, dict):
            return said
        short = {name: value for name, value in said.items() if name in COUNTERS}
        for name in short:
            if name in counters:
                raise ValueError(f"{name} is given both in expect and in expect.counters; leave one of the two out")
        rest = {name: value for name, value in said.items() if name not in short}
        return {**rest, "counters": {**counters, **short}} if short else said

    @field_validator("counters")
    @classmethod
    def _known(cls, value: dict[str, Bounds]) -> dict[str, Bounds]:
        for name in value:
            if name not in COUNTERS:
                raise ValueError(f"dualray has no counter {name!r}{nearest(name, COUNTERS)}")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Expect:
        if self.error is not None and (self.has_result or self.figures or self.same_as_without_faults):
            raise ValueError("a program that ends with an error has no result; leave out either result or error")
        return self

    @property
    def has_result(self) -> bool:
        """Whether a result is named, be it null."""
        return "result" in self.model_fields_set
