"""The arguments of a call, from what the user passed to a payload and references, and back.

References that are arguments themselves become dependencies: the payload says at which places (positions or names)
which of them stands, as place, number, place, number..., and their values are put there before the function runs.
References inside other arguments travel as they are and are noted as nested. Values too large to travel with a task are
put into the store on their own and become dependencies too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dualray.exceptions import SerializationError
from dualray.shared.model.ids import ObjectID
from dualray.shared.model.specs import Ref
from dualray.shared.serialization import SMALL_TYPES, Reference, Serialized, deserialize, serialize


@dataclass(slots=True)
class Arguments:
    """Packed arguments; no payload when there are none. `put` holds the references that packing has made: the task
    takes them over."""

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
    drop: Callable[[ObjectID], object],
) -> Arguments:
    """Pickle the arguments of a call to `name`: `put` stores one that is large. When that fails for a later one, `drop`
    takes back the references to those that were stored.

    Raises:
        SerializationError: an argument cannot be pickled; the message says which, and which part of it.
        ObjectStoreFullError: a large argument has found no room; whatever else `put` raises is raised too.
    """
    if not args and not kwargs:
        return _NO_ARGUMENTS
    arguments = Arguments()
    indices: dict[Ref, int] = {}
    places: list[int | str] = []
    packed: tuple[list[Any], dict[str, Any]] = (list(args), dict(kwargs))

    def depend(place: int | str, ref: Ref) -> None:
        index = indices.get(ref)
        if index is None:
            index = indices[ref] = len(arguments.deps)
            arguments.deps.append(ref)
        places.extend((place, index))
        _at(packed, place)[place] = None

    def store_if_large(place: int | str, value: Any) -> None:
        alone = serialize(value, f"argument {place!r} of {name}")
        if alone.size_bytes > inline_bytes_max:
            ref = put(alone)
            arguments.put.append(ref)
            depend(place, ref)

    each = _each(packed)
    for place, value in each:
        if type(value) not in SMALL_TYPES and isinstance(value, Reference) and value.is_value:
            value.check()
            depend(place, value.ref)
    try:
        for place, value in each:
            if type(value) is np.ndarray and value.nbytes > inline_bytes_max:  # there is no need to try
                store_if_large(place, value)
        try:
            serialized = serialize((*packed, places))
        except SerializationError:
            for place, value in _each(packed):
                serialize(value, f"argument {place!r} of {name}")
            raise
        if serialized.size_bytes > inline_bytes_max:
            for place, value in _each(packed):
                if type(value) not in SMALL_TYPES:
                    store_if_large(place, value)
            serialized = serialize((*packed, places))
    except BaseException:
        for ref in arguments.put:
            drop(ref.object_id)
        raise
    arguments.payload = serialized.to_bytes()
    if serialized.refs:
        arguments.nested = tuple([ref for ref in serialized.refs if ref not in indices])
    return arguments


_NO_ARGUMENTS = Arguments()


def unpack_arguments(payload: bytes, values: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call; `values` are those of its dependencies, in order. An empty payload holds none."""
    if not payload:
        return [], {}
    args, kwargs, places = deserialize(payload)
    for place, index in zip(places[::2], places[1::2], strict=True):
        _at((args, kwargs), place)[place] = values[index]
    return args, kwargs


def _each(packed: tuple[list[Any], dict[str, Any]]) -> list[tuple[int | str, Any]]:
    """Every argument with its place: its position, or its name."""
    places: list[tuple[int | str, Any]] = list(enumerate(packed[0]))
    places.extend(packed[1].items())
    return places


def _at(packed: tuple[list[Any], dict[str, Any]], place: int | str) -> Any:
    return packed[0] if type(place) is int else packed[1]
