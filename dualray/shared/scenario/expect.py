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
        raise ValueError(f"{value!r} must be a whole number, or bounds such as {{min: 1, max: 5}}")
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
        raise ValueError("nothing can meet this: min is above max")


def _check_bounds(bounds: Bounds) -> Bounds:
    _check_order(bounds.min, bounds.max)
    if bounds.max is not None and bounds.max < 0:
        raise ValueError("nothing can meet this: a count is never below 0")
    return bounds


Count = Annotated[Bounds, BeforeValidator(_bounds), AfterValidator(_check_bounds)]

COUNTERS = {
    "tasks": "calls that were submitted, constructors of actors included",
    "failed": "attempts that ended with an error",
    "tasks_lost": "tasks that never ended, or failed with an error that is neither their own nor a cancellation (a "
    "worker, a node or an object was lost, nothing could run them); what owners that died had asked for is not counted",
    "retries": "attempts after one that was lost or raised",
    "reconstructions": "attempts that made a lost object again",
    "evictions": "objects that left a full store",
    "transfers": "objects that were sent from one store to another",
    "bytes_moved": "bytes that arrived in a store from another one",
    "workers_started": "worker processes that were started",
    "workers_ended": "worker processes that ended while the program ran",
    "nodes_refused": "lives of nodes that were taken for dead, and heard again",
    "nodes_left": "lives of nodes that ended in good order",
    "nodes_launched": "nodes that the autoscaler launched, those that never came up included",
    "launches_refused": "launches that the provider refused",
    "node_seconds": "for which launched nodes were paid, from their launch on, rounded; see `paid_least`",
    "messages": "messages between processes",
    "messages_held": "messages that a partition, a pause or a loss has held up",
    "messages_dropped": "messages lost with a node, or dropped by a bad link",
    "messages_doubled": "messages that came twice, and were taken once",
    "transfers_lost": "transfers that ended with a node",
    "faults": "faults that were performed",
}
"""What a run counts."""


class ErrorExpected(Model):
    """The program is to end with an error."""

    type: str = Field(description="the class's name, such as ObjectStoreFullError; a base class will do")
    match: str | None = Field(default=None, description="a regular expression that its message contains")

    @field_validator("type")
    @classmethod
    def _is_spelled_right(cls, value: str) -> str:
        """A program has errors of its own; a name that is all but one of ours is a slip."""
        ours = [name for name, item in vars(exceptions).items() if isinstance(item, type)]
        if value not in ours and (near := get_close_matches(value, ours, n=1, cutoff=0.9)):
            raise ValueError(f"nothing raises {value!r}. Did you mean {near[0]!r}?")
        return value

    @field_validator("match")
    @classmethod
    def _is_regular(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                re.compile(value)
            except re.error as error:
                raise ValueError(f"{value!r} is no regular expression: {error}") from None
        return value


class Expect(Model):
    """What must hold in the end. Without `error` the program must succeed."""

    result: Any = Field(default=None, description="what the program returns; a script: its last line, as JSON")
    figures: dict[str, NumberBounds] = Field(
        default_factory=dict, description="numbers, by name, of the mapping that the program returns"
    )
    makespan: TimeBounds = TimeBounds()
    error: ErrorExpected | None = None
    counters: dict[str, Count] = Field(default_factory=dict)
    no_leak: bool = Field(default=True, description="at the end no object, lease, task or payload is left")
    all_faults: bool = Field(default=True, description="each planned fault must have happened")
    same_as_without_faults: bool = Field(default=False, description="the result is that of a run without faults")

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
                raise ValueError(f"{name} stands here and in counters; write it once")
        rest = {name: value for name, value in said.items() if name not in short}
        return {**rest, "counters": {**counters, **short}} if short else said

    @field_validator("counters")
    @classmethod
    def _known(cls, value: dict[str, Bounds]) -> dict[str, Bounds]:
        for name in value:
            if name not in COUNTERS:
                raise ValueError(f"there is no counter {name!r}{nearest(name, COUNTERS)}")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Expect:
        if self.error is not None and (self.has_result or self.figures or self.same_as_without_faults):
            raise ValueError("nothing can meet this: a program that ends with an error has no result")
        return self

    @property
    def has_result(self) -> bool:
        """Whether a result is named, be it null."""
        return "result" in self.model_fields_set
