"""The parts of scenario files: values with their units, names of nodes, and the base of all models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
    WrapSerializer,
    WrapValidator,
)

from dualray.shared.scenario.distributions import Distribution, parse_distribution
from dualray.shared.units import parse_rate_bytes_per_s, parse_size_bytes, parse_time_ns, time_words

HEAD_NAME = "head"
DRIVER_NODE_NAME = "node-0"


def _unit(parse: Callable[[str, str], int], kind: str, example: str) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError(f"{value!r} is not a {kind}; write for example {example}")
        if not isinstance(value, str):
            raise ValueError(f"{value!r} has no unit; write for example {example}")
        return parse(value, f"a {kind}")

    return read


def _text_schema(description: str, *examples: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "description": description, "examples": list(examples)})


Time = Annotated[
    int,
    BeforeValidator(_unit(parse_time_ns, "time", "2.5s")),
    PlainSerializer(time_words),
    _text_schema("a time", "2.5s", "300ms"),
]
Size = Annotated[
    int,
    BeforeValidator(_unit(parse_size_bytes, "size", "1GiB")),
    PlainSerializer(lambda size_bytes: f"{size_bytes}B"),
    _text_schema("a size", "1GiB", "5MB"),
]
Rate = Annotated[
    int,
    BeforeValidator(_unit(parse_rate_bytes_per_s, "rate", "10Gbps")),
    PlainSerializer(lambda bytes_per_s: f"{bytes_per_s}B/s"),
    _text_schema("a rate; bps is bits per second, B/s is bytes per second", "10Gbps", "1.25GB/s"),
]


def _duration(value: Any) -> Distribution:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} has no unit; write for example 2.5s or lognormal(2s, 0.5)")
    return parse_distribution(value)


Duration = Annotated[
    Distribution,
    BeforeValidator(_duration),
    PlainSerializer(str),
    _text_schema("a time or a distribution", "2.5s", "lognormal(2s, 0.5)"),
]


FIXED = "fixed"


class FixedDurations(dict[str, Distribution]):
    """No table of durations, but the word for it that all tasks take the same of which nothing is said."""


def _table_or_word(value: Any, validate: Callable[[Any], Any]) -> Any:
    return FixedDurations() if value == FIXED or isinstance(value, FixedDurations) else validate(value)


def _back(value: Any, serialize: Callable[[Any], Any]) -> Any:
    return FIXED if isinstance(value, FixedDurations) else serialize(value)


def _with_word(schema: dict[str, Any]) -> None:
    table = {key: schema.pop(key) for key in ("type", "additionalProperties") if key in schema}
    schema["anyOf"] = [table, {"const": FIXED}]


Durations = Annotated[
    dict[str, Duration],
    WrapValidator(_table_or_word),
    WrapSerializer(_back),
    Field(json_schema_extra=_with_word),
]


def _names(value: Any) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not names or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{value!r} must be a node such as node-3, a list of nodes, or label=value")
    return tuple(names)


Nodes = Annotated[
    tuple[str, ...],
    BeforeValidator(_names),
    WithJsonSchema(
        {
            "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
            "description": "a node, a list of nodes, or label=value",
        }
    ),
]


class Model(BaseModel):
    """What stands in a scenario file: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, strict=False)
