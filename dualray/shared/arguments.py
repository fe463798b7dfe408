"""The arguments of a call, from what the user passed to a payload and references, and back.

References that are arguments themselves become dependencies: the payload has placeholders for them, which their values
replace before the function runs. References inside other arguments travel as they are and are noted as nested. Values
too large to travel with a task are put into the store on their own and become dependencies too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dualray.exceptions import SerializationError
from dualray.shared.model.specs import Ref
from dualray.shared.serialization import Reference, Serialized, deserialize, serialize


@dataclass(frozen=True, slots=True)
class _Dep:
    """Stands in a payload for the value of the task's `index`-th dependency."""

    index: int


@dataclass(slots=True)
class Arguments:
    """Packed arguments. `put` holds the references that packing has made: the task takes them over."""

    payload: bytes = b""
    deps: list[Ref] = field(default_factory=list)
    nested: tuple[Ref, ...] = ()
    put: list[Ref] = field(default_factory=list)


def pack_arguments(
    name: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    inline_bytes_max: int,
    put: Callable[[Serialized], Ref],
) -> Arguments:
    """Pickle the arguments of a call to `name`.

    Raises:
        SerializationError: an argument cannot be pickled; the message says which, and which part of it.
    """
    arguments = Arguments()
    positions: dict[Ref, _Dep] = {}

    def depend(ref: Ref) -> _Dep:
        if ref not in positions:
            positions[ref] = _Dep(len(arguments.deps))
            arguments.deps.append(ref)
        return positions[ref]

    def pack(value: Any) -> Any:
        if not _stands_for_a_value(value):
            return value
        value.check()
        return depend(value.ref)

    def promote(value: Any, which: str) -> Any:
        if isinstance(value, _Dep):
            return value
        alone = serialize(value, which)
        if alone.size_bytes <= inline_bytes_max:
            return value
        ref = put(alone)
        arguments.put.append(ref)
        return depend(ref)

    packed = ([pack(value) for value in args], {key: pack(value) for key, value in kwargs.items()})
    try:
        serialized = serialize(packed)
    except SerializationError:
        for position, value in [*enumerate(args), *kwargs.items()]:
            serialize(pack(value), f"argument {position!r} of {name}")
        raise
    if serialized.size_bytes > inline_bytes_max:
        packed = (
            [promote(value, f"argument {index} of {name}") for index, value in enumerate(packed[0])],
            {key: promote(value, f"argument {key!r} of {name}") for key, value in packed[1].items()},
        )
        serialized = serialize(packed)
    arguments.payload = serialized.to_bytes()
    arguments.nested = tuple(ref for ref in serialized.refs if ref not in positions)
    return arguments


def unpack_arguments(payload: bytes, values: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call; `values` are those of its dependencies, in order."""
    args, kwargs = deserialize(payload)

    def unpack(value: Any) -> Any:
        return values[value.index] if type(value) is _Dep else value

    return [unpack(value) for value in args], {key: unpack(value) for key, value in kwargs.items()}


def _stands_for_a_value(value: Any) -> bool:
    return isinstance(value, Reference) and getattr(value, "is_value", False)
