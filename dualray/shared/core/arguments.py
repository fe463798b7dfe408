"""The arguments of a call, from what the user passed to a payload and references, and back.

References that are arguments themselves become dependencies: the payload says at which places (positions or names)
which of them stands, as place, number, place, number..., and their values are put there before the function runs.
References inside other arguments travel as they are and are noted as nested. Values too large to travel with a task are
put into the store on their own and become dependencies too.

A reference to a value that is here, very small, and refers to nothing, need not be a dependency: the value travels in
the payload. A number or a short text stands in the place of its reference, as if the user had passed it; another value
is pickled in the payload and has a number below zero, -1 for the first. The task then has nothing to wait for, to hold
or to fetch on its account.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dualray.exceptions import SerializationError
from dualray.shared.core.layout import PLAIN_TYPES, SMALL_TYPES, Serialized, deserialize, deserialize_all, plain_bytes
from dualray.shared.core.serialization import NOT_PLAIN, learn_plain, plain_values, serialize
from dualray.shared.handles import Reference
from dualray.shared.model.ids import ObjectID
from dualray.shared.model.specs import Ref


@dataclass(slots=True, kw_only=True)
class Arguments:
    """Packed arguments; no payload when there are none. `put` holds the references that packing has made: the task
    takes them over. `embedded` are those whose values are in the payload, some perhaps more than once."""

    payload: bytes
    deps: list[Ref]
    put: list[Ref]
    nested: tuple[Ref, ...] = ()
    embedded: Sequence[Ref] = ()


def pack_arguments(
    name: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    inline_bytes_max: int,
    put: Callable[[Serialized], Ref],
    drop: Callable[[ObjectID], object],
    look: Callable[[Sequence[Reference]], Sequence[bytes | None]],
) -> Arguments:
    """Pickle the arguments of a call to `name`: `put` stores one that is large. When that fails for a later one, `drop`
    takes back the references to those that were stored. `look` gives the pickled values of those references that may
    travel in the payload.

    Raises:
        SerializationError: an argument cannot be pickled; the message says which, and which part of it.
        ObjectStoreFullError: a large argument has found no room; whatever else `put` raises is raised too.
    """
    if not args and not kwargs:
        return NO_ARGUMENTS
    arguments = Arguments(payload=b"", deps=[], put=[])
    packing = _Packing(args, kwargs, arguments)
    packed = packing.packed
    packing.replace_references(look, inline_bytes_max // 2)
    try:
        for place, value in _each(packed) if not _are_plain(*packed) else ():
            if type(value) is np.ndarray and value.nbytes > inline_bytes_max:  # there is no need to try
                packing.store_if_large(place, value, name, put, inline_bytes_max)
        if _are_plain(*packed):
            arguments.payload = plain_bytes(packing.whole())
            if len(arguments.payload) <= inline_bytes_max:
                return arguments
        try:
            serialized = serialize(packing.whole())
        except SerializationError:
            for place, value in _each(packed):
                serialize(value, f"argument {place!r} of {name}")
            raise
        if serialized.size_bytes > inline_bytes_max:
            for place, value in _each(packed):
                if type(value) not in SMALL_TYPES:
                    packing.store_if_large(place, value, name, put, inline_bytes_max)
            serialized = serialize(packing.whole())
    except BaseException:
        for ref in arguments.put:
            drop(ref.object_id)
        raise
    arguments.payload = serialized.to_bytes()
    if serialized.refs:
        dependencies = frozenset(arguments.deps)
        arguments.nested = tuple([ref for ref in serialized.refs if ref not in dependencies])
    return arguments


def pack_plain(args: Sequence[Any], kwargs: Mapping[str, Any], inline_bytes_max: int) -> bytes:
    """The payload of a call with these arguments, if nothing among them is to be replaced or stored; else nothing."""
    if not _are_plain(args, kwargs):
        return b""
    payload = plain_bytes((list(args), dict(kwargs), []))
    return payload if len(payload) <= inline_bytes_max else b""


def _are_plain(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether there is nothing among the arguments to be replaced, and marshal is enough: it is not where a name is of
    a class of its own, as members of a StrEnum are."""
    for value in args:
        if type(value) not in PLAIN_TYPES:
            return False
    return not kwargs or (
        PLAIN_TYPES.issuperset(map(type, kwargs.values())) and _NAME_TYPES.issuperset(map(type, kwargs))
    )


class _Packing:
    """Arguments of a call, of which those that are references give way to the numbers of their values."""

    def __init__(self, args: Sequence[Any], kwargs: Mapping[str, Any], arguments: Arguments) -> None:
        self.packed: tuple[list[Any], dict[str, Any]] = (list(args), dict(kwargs))
        self._arguments = arguments
        self._indices: dict[Ref, int] = {}
        self._places: list[int | str] = []
        self._embedded: list[bytes] = []

    def whole(self) -> tuple[Any, ...]:
        """What is pickled."""
        return (*self.packed, self._places, self._embedded) if self._embedded else (*self.packed, self._places)

    def store_if_large(
        self, place: int | str, value: Any, name: str, put: Callable[[Serialized], Ref], inline_bytes_max: int
    ) -> None:
        """Have an argument of `name` stored on its own if it is too large to travel with the others."""
        alone = serialize(value, f"argument {place!r} of {name}")
        if alone.size_bytes > inline_bytes_max:
            ref = put(alone)
            self._arguments.put.append(ref)
            self.depend(place, ref)

    def depend(self, place: int | str, ref: Ref) -> None:
        """Make a reference a dependency."""
        index = self._indices.get(ref)
        if index is None:
            index = self._indices[ref] = len(self._arguments.deps)
            self._arguments.deps.append(ref)
        self._put(place, index)

    def _put(self, place: int | str, index: int) -> None:
        self._places.append(place)
        self._places.append(index)
        (self.packed[0] if type(place) is int else self.packed[1])[place] = None  # type: ignore[index]

    def replace_references(
        self, look: Callable[[Sequence[Reference]], Sequence[bytes | None]], bytes_left: int
    ) -> None:
        """Take references out, the values of some in, up to so many bytes."""
        args, kwargs = self.packed
        places: list[int | str] = []
        references: list[Reference] = []
        last: type[Any] = int
        is_value = False
        for position, value in enumerate(args):
            kind = type(value)
            if kind is not last:
                last, is_value = kind, _stands_for_value(kind)
            if is_value:
                places.append(position)
                references.append(value)
        for name, value in kwargs.items():
            if _stands_for_value(type(value)):
                places.append(name)
                references.append(value)
        if not references:
            return
        indices, embedded, known = self._indices, self._embedded, plain_values
        gone_in: list[Ref] = []
        for place, reference, data in zip(places, references, look(references), strict=True):
            ref = reference.ref
            if data is not None and bytes_left >= 0:
                plain = known.get(data, known)
                if plain is known:
                    plain = learn_plain(data)
                if plain is not NOT_PLAIN:
                    bytes_left -= len(data)
                    gone_in.append(ref)
                    if type(place) is int:
                        args[place] = plain
                    else:
                        kwargs[place] = plain  # type: ignore[index]  # it is a name
                    continue
            index = indices.get(ref)
            if index is None:
                if data is None or bytes_left < 0:
                    self.depend(place, ref)
                    continue
                bytes_left -= len(data)
                embedded.append(data)
                gone_in.append(ref)
                index = indices[ref] = -len(embedded)
            self._put(place, index)
        self._arguments.embedded = gone_in


def _stands_for_value(kind: type[Any]) -> bool:
    return kind not in SMALL_TYPES and issubclass(kind, Reference) and kind.is_value


NO_ARGUMENTS = Arguments(payload=b"", deps=[], put=[])
_NAME_TYPES = frozenset({str})
_UNCHANGED = 3
"""Parts of a payload without values that were embedded."""


def unpack_arguments(payload: bytes, values: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call; `values` are those of its dependencies, in order. An empty payload holds none."""
    if not payload:
        return [], {}
    unpickled: tuple[Any, ...] = deserialize(payload)
    if len(unpickled) == _UNCHANGED and not unpickled[2]:  # the way of most calls
        return unpickled[0], unpickled[1]
    args, kwargs, places, *rest = unpickled
    if rest:  # the first of these has the number -1
        values = [*values, *deserialize_all(rest[0][::-1])]
    for place, index in zip(places[::2], places[1::2], strict=True):
        (args if type(place) is int else kwargs)[place] = values[index]
    return args, kwargs


def _each(packed: tuple[list[Any], dict[str, Any]]) -> list[tuple[int | str, Any]]:
    """Every argument with its place: its position, or its name."""
    places: list[tuple[int | str, Any]] = list(enumerate(packed[0]))
    places.extend(packed[1].items())
    return places
