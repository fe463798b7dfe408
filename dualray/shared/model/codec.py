"""Events and commands as plain tuples, and back: the form in which they cross processes and are logged.

A message on the wire is msgpack, never pickle: nothing that a peer sends is executed. For each dataclass an encoder and
a decoder are compiled once from its type hints; fields of plain type pass as they are. A tag is the position of the
class in the sorted list of names, so both sides must run the same `PROTOCOL_VERSION`; logs carry the list itself.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable
from enum import Enum
from typing import Any, cast

import msgpack

from dualray.shared.model import commands, events
from dualray.shared.model.commands import Command
from dualray.shared.model.events import Event, Result

PROTOCOL_VERSION = 2
"""Raised whenever an event, a command or a field of one changes."""

Convert = Callable[[Any], Any]


def _same(value: Any) -> Any:
    return value


class _Codec:
    """The converters for every type that occurs in events and commands."""

    def __init__(self) -> None:
        self.encoders: dict[Any, Convert] = {}
        self.decoders: dict[Any, Convert] = {}
        roots = [*typing.get_args(events.Event), *typing.get_args(commands.Command), Result]
        self.by_tag = sorted(set(roots), key=lambda cls: cls.__name__)
        self.tags = {cls: tag for tag, cls in enumerate(self.by_tag)}
        for cls in self.by_tag:
            self._dataclass(cls)

    def _for(self, hint: Any) -> tuple[Convert, Convert]:
        """Encoder and decoder of a type hint; `_same` for both where values pass as they are."""
        origin = typing.get_origin(hint)
        if isinstance(hint, typing.NewType) or hint in (str, int, bytes, bool, float):
            return _same, _same
        if origin in (typing.Union, types.UnionType):
            return self._optional_or_union(hint)
        if origin is tuple:
            return self._tuple(typing.get_args(hint))
        if origin is dict:
            return _same, _same
        if isinstance(hint, type) and issubclass(hint, Enum):
            return (lambda value: value.value), hint
        if dataclasses.is_dataclass(hint):
            return self._dataclass(hint)
        raise TypeError(f"no codec for {hint!r}: use plain types, ids, enums, tuples or dataclasses in events")

    def _optional_or_union(self, hint: Any) -> tuple[Convert, Convert]:
        members = [member for member in typing.get_args(hint) if member is not type(None)]
        if len(members) > 1:  # the Event union inside Send
            return self.encode, self.decode
        encode, decode = self._for(members[0])
        if encode is _same:
            return _same, _same
        return (
            lambda value: None if value is None else encode(value),
            lambda value: None if value is None else decode(value),
        )

    def _tuple(self, members: tuple[Any, ...]) -> tuple[Convert, Convert]:
        if len(members) == 2 and members[1] is Ellipsis:
            encode, decode = self._for(members[0])
            if encode is _same:
                return _same, _same
            return (
                lambda values: [encode(value) for value in values],
                lambda values: tuple([decode(value) for value in values]),
            )
        if all(self._for(member)[0] is _same for member in members):
            return _same, _same
        raise TypeError(f"no codec for the tuple of {members!r}")

    def _dataclass(self, cls: Any) -> tuple[Convert, Convert]:
        known = self.encoders.get(cls)
        if known is not None:
            return known, self.decoders[cls]
        # A spec may contain another: the names are bound late, so that a type may be used inside itself.
        self.encoders[cls] = lambda value: self.encoders[cls](value)
        self.decoders[cls] = lambda value: self.decoders[cls](value)
        hints = typing.get_type_hints(cls)
        names = [field.name for field in dataclasses.fields(cls)]
        converters = [self._for(hints[name]) for name in names]
        self.encoders[cls] = _compile(names, converters, cls, encode=True)
        self.decoders[cls] = _compile(names, converters, cls, encode=False)
        return self.encoders[cls], self.decoders[cls]

    def encode(self, item: Any) -> list[Any]:
        cls = type(item)
        return [self.tags[cls], *self.encoders[cls](item)]

    def decode(self, fields: Any) -> Any:
        tag, *values = fields
        if type(tag) is not int or not 0 <= tag < len(self.by_tag):
            raise ValueError(f"no event or command has the tag {tag!r}")
        return self.decoders[self.by_tag[tag]](values)


def _compile(names: list[str], converters: list[tuple[Convert, Convert]], cls: Any, *, encode: bool) -> Convert:
    """A function from a dataclass to a tuple of plain values, or back."""
    plain = all(converter[0] is _same for converter in converters)
    if encode:
        if plain:
            return lambda item: [getattr(item, name) for name in names]
        pairs = [(name, converter[0]) for name, converter in zip(names, converters, strict=True)]
        return lambda item: [convert(getattr(item, name)) for name, convert in pairs]
    backs = [converter[1] for converter in converters]
    return lambda values: cls(**{name: back(value) for name, back, value in zip(names, backs, values, strict=True)})


_CODEC = _Codec()
NAMES: tuple[str, ...] = tuple(cls.__name__ for cls in _CODEC.by_tag)
"""The class of each tag: written at the head of a log."""


def encode(item: Event | Command) -> list[Any]:
    """An event or command as a list of plain values, the class's tag first."""
    return _CODEC.encode(item)


def decode(fields: Any) -> Any:
    """The event or command that `encode` made the list from.

    Raises:
        ValueError: no `encode` has made this.
    """
    try:
        return _CODEC.decode(fields)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"these values are no event or command: {error}") from error


def pack(value: Any) -> bytes:
    """Plain values as bytes."""
    return cast(bytes, msgpack.packb(value, use_bin_type=True))


def unpack(data: bytes | memoryview) -> Any:
    """Bytes back as plain values; sequences come back as tuples.

    Raises:
        ValueError: the bytes are no msgpack, or more than one value.
    """
    try:
        return msgpack.unpackb(data, raw=False, use_list=False)
    except ValueError as error:
        raise ValueError(f"{len(data)} bytes are no msgpack value: {str(error) or type(error).__name__}") from error
