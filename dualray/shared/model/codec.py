"""Events and commands as plain values, and back: the form in which they cross processes and are logged.

A message on the wire is msgpack, never pickle: nothing that a peer sends is executed. For each dataclass an encoder and
a decoder are written once, as Python source, from its type hints: a task's way through a process is two of them, and
generic code would cost more than the rest of that way. Fields of plain type pass as they are. A tag is the position of
the class in the list of names, so both sides must run the same `PROTOCOL_VERSION`; logs carry the list itself.

A `FunctionTemplate` is the same in all calls of a function. It travels as bytes that are made once, and what is read
back from equal bytes is one object.

A converter is written when it is first used: a process meets few of the kinds. `prepare` writes all, for a process that
others are forked from.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any, Final, cast

import msgpack

from dualray.shared.model import commands, events
from dualray.shared.model.commands import Command
from dualray.shared.model.errors import ErrorInfo
from dualray.shared.model.events import Event, Result
from dualray.shared.model.specs import ActorSpec, FunctionTemplate, Strategy

PROTOCOL_VERSION = 18
"""Raised whenever an event, a command or a field of one changes."""

_TEMPLATES_MAX = 4096
"""Templates whose bytes are kept; a program with more remote functions pays again for some."""

Convert = Callable[[Any], Any]


SURROGATES: Final = "surrogatepass"
"""How readers decode texts: one may hold what `os.fsdecode` makes of a file name that is not UTF-8."""

_pack: Callable[[Any], Any] = msgpack.Packer().pack
_pack_surrogates: Callable[[Any], Any] = msgpack.Packer(unicode_errors=SURROGATES).pack


def pack(value: Any) -> bytes:
    """Plain values as bytes."""
    packed: bytes
    try:
        packed = _pack(value)
    except UnicodeEncodeError:  # lone surrogates: the other packer takes them, and is slower for every text
        packed = _pack_surrogates(value)
    return packed


def unpack(data: bytes | memoryview) -> Any:
    """Bytes back as plain values; sequences come back as tuples.

    Raises:
        ValueError: the bytes are no msgpack, or more than one value.
    """
    try:
        return msgpack.unpackb(data, use_list=False, unicode_errors=SURROGATES)
    except ValueError as error:
        raise ValueError(f"{len(data)} bytes are not a msgpack value: {str(error) or type(error).__name__}") from error


_ADDED: dict[type, int] = {
    ActorSpec: 2,
    ErrorInfo: 2,
    FunctionTemplate: 2,
    Strategy: 1,
    commands.StopWorker: 1,
    events.ActorSubscribed: 1,
    events.DrainAsked: 1,
    events.NodeDraining: 1,
    events.NodeEmptied: 1,
    events.NodeReleased: 1,
    events.PeerLost: 1,
    events.WorkerBlocked: 1,
    events.WorkerUnwanted: 1,
}
"""How many of the last fields of a class are younger than 0.1.0. They are written when one of them has another value
than its default: what does not use them keeps its bytes."""


_PLAIN_DEFAULTS = (bool, int, str, type(None))
"""Types of defaults that are written as they are."""


def _added(cls: Any) -> list[dataclasses.Field[Any]]:
    return [field for field in dataclasses.fields(cls) if field.init][-_ADDED[cls] :]


_YOUNGER: frozenset[str] = frozenset(
    {
        "BacklogReported",
        "BacklogWanted",
        "CollectGarbage",
        "CollectionWanted",
        "LaunchNodes",
        "LaunchesFailed",
        "LeasePassedOn",
        "NodesDied",
        "ResourcesWanted",
        "SettleRecords",
        "TasksWanted",
        "TellTaskTimes",
        "TerminateNode",
        "WorkerNotStarted",
    }
)
"""Classes that are younger than 0.1.0. Their tags come last: what does not use them keeps its bytes."""


class _Source:
    """Python source that converts values of a type hint; "" where values pass as they are.

    In the source of a conversion `{}` stands for the value, and other classes' converters are called by name.
    """

    def __init__(self, names: dict[str, Any]) -> None:
        self.names = names
        """What the sources refer to: classes and their converters. Shared by all, and by threads: each entry, once
        made, is as good as the next."""
        self._begun: dict[str, None] = {}
        self._depth = 0

    def encode(self, hint: Any) -> str:
        return self._convert(hint, "encode")

    def decode(self, hint: Any) -> str:
        return self._convert(hint, "decode")

    def _convert(self, hint: Any, way: str) -> str:
        origin = typing.get_origin(hint)
        if isinstance(hint, typing.NewType) or hint in (str, int, bytes, bool, float) or origin is dict:
            return ""
        if origin in (typing.Union, types.UnionType):
            return self._optional_or_union(hint, way)
        if origin is tuple:
            return self._tuple(typing.get_args(hint), way)
        if isinstance(hint, type) and issubclass(hint, Enum):
            if way == "encode":
                return "{}._value_"  # a plain attribute: `value` is a descriptor that takes ten times as long
            self.names[hint.__name__] = hint
            return f"{hint.__name__}({{}})"
        if isinstance(hint, type) and issubclass(hint, tuple):  # a NamedTuple of plain values is msgpack's own
            self.names[hint.__name__] = hint
            return "" if way == "encode" else f"{hint.__name__}(*{{}})"
        if hint is FunctionTemplate:
            return f"{way}_template({{}})"
        if dataclasses.is_dataclass(hint):
            self.converter(hint, way)
            return f"{way}_{cast(type, hint).__name__}({{}})"
        raise TypeError(f"events cannot contain {hint!r}: use plain types, ids, enums, tuples or dataclasses")

    def _optional_or_union(self, hint: Any, way: str) -> str:
        members = [member for member in typing.get_args(hint) if member is not type(None)]
        if len(members) > 1:  # the Event union inside Send
            return f"{way}_any({{}})"
        inner = self._convert(members[0], way)
        return f"(None if {{}} is None else {inner})" if inner else ""

    def _tuple(self, members: tuple[Any, ...], way: str) -> str:
        if len(members) == 2 and members[1] is Ellipsis:
            inner = self._convert(members[0], way)
            if not inner:
                return ""
            self._depth += 1
            name = f"item{self._depth}"
            each = inner.replace("{}", name)
            listed = f"[{each} for {name} in {{}}]"
            return f"({listed} if {{}} else ())" if way == "encode" else f"(tuple({listed}) if {{}} else ())"
        if not any(self._convert(member, way) for member in members):
            return ""
        raise TypeError(f"events cannot contain a tuple of {members!r}")

    def converter(self, cls: Any, way: str, tag: int | None = None) -> str:
        """The name of the converter of a dataclass, which is written when it is first asked for; one with a tag has it
        before the fields."""
        name = f"{way}_{cls.__name__}" if tag is None else f"{way}_tagged_{cls.__name__}"
        if name in self.names or name in self._begun:
            return name
        self._begun[name] = None  # a spec may contain another: the name is bound late
        hints = typing.get_type_hints(cls)
        fields = [field.name for field in dataclasses.fields(cls) if field.init]
        if way == "encode":
            parts = [str(tag)] * (tag is not None) + [
                (self.encode(hints[field]) or "{}").replace("{}", f"v.{field}") for field in fields
            ]
            source = f"def {name}(v):\n    return [{', '.join(parts)}]\n"
            if cls in _ADDED:
                self.names[f"defaults_{name}"] = tuple(field.default for field in _added(cls))
                added = "".join(f"v.{field.name}, " for field in _added(cls))
                short = f"    if ({added}) == defaults_{name}:\n        return [{', '.join(parts[: -_ADDED[cls]])}]\n"
                source = source.replace("    return", f"{short}    return", 1)
        else:
            self.names[cls.__name__] = cls
            parts = [(self.decode(hints[field]) or "{}").replace("{}", field) for field in fields]
            # One field may follow another that has a converter of its own: each is bound before any is converted.
            targets = ["_"] * (tag is not None) + fields
            into = f"({''.join(target + ', ' for target in targets)})"
            filled = f"filled_{name}"
            self.names[filled] = partial(self._filled, cls, tag is not None)
            unpacked = f"    try:\n        {into} = values\n    except ValueError:\n        {into} = {filled}(values)\n"
            if _is_plain(cls, fields):  # setting its fields takes a third of the time of the constructor
                new = f"new_{cls.__name__}"
                self.names[new] = cls.__new__
                made = "".join(f"    made.{field} = {part}\n" for field, part in zip(fields, parts, strict=True))
                source = f"def {name}(values):\n{unpacked}    made = {new}({cls.__name__})\n{made}    return made\n"
            else:
                given = ", ".join(f"{field}={part}" for field, part in zip(fields, parts, strict=True))
                source = f"def {name}(values):\n{unpacked}    return {cls.__name__}({given})\n"
        exec(source, self.names)
        return name

    @staticmethod
    def _filled(kind: Any, is_tagged: bool, values: list[Any]) -> list[Any]:
        """The values of an earlier release, which wrote them when the class had fewer fields, with the defaults of the
        last ones.

        Raises:
            ValueError: there are too many values, or a field is missing that has no default, or none that is plain.
        """
        fields = [field for field in dataclasses.fields(kind) if field.init]
        missing = fields[len(values) - is_tagged :]
        if len(values) - is_tagged > len(fields) or not all(type(each.default) in _PLAIN_DEFAULTS for each in missing):
            raise ValueError(
                f"{kind.__name__} has {len(fields)} fields, but the message has {len(values) - is_tagged} values"
            )
        return [*values, *(each.default for each in missing)]


def _is_plain(cls: Any, fields: list[str]) -> bool:
    """Whether the constructor of a dataclass does nothing but set its fields, and it can be done without."""
    is_changeable = not cls.__dataclass_params__.frozen and len(fields) == len(dataclasses.fields(cls))
    return is_changeable and not hasattr(cls, "__post_init__") and _can_be_bare(cls)


def _can_be_bare(cls: Any) -> bool:
    """Whether an instance can be made without its constructor: not of each compiled class."""
    try:
        cls.__new__(cls)
    except TypeError:  # it wants its fields
        return False
    return True


class _Codec:
    """The converters for every type that occurs in events and commands."""

    def __init__(self) -> None:
        roots = [*typing.get_args(events.Event), *typing.get_args(commands.Command), Result]
        self.by_tag = sorted(set(roots), key=lambda cls: (cls.__name__ in _YOUNGER, cls.__name__))
        self.encoders: dict[Any, Convert] = {}
        self.decoders: list[Convert] = []
        self._packed: dict[FunctionTemplate, bytes] = {}
        self._templates: dict[bytes, FunctionTemplate] = {}
        self._last: tuple[FunctionTemplate | None, bytes] = None, b""
        """The template that was packed last, and its bytes."""
        self._names: dict[str, Any] = {
            "encode_any": self.encode,
            "decode_any": self.decode,
            "encode_template": self._encode_template,
            "decode_template": self._decode_template,
        }
        for tag, cls in enumerate(self.by_tag):
            self.encoders[cls] = partial(self._encode_first, tag)
            self.decoders.append(partial(self._decode_first, tag))

    def prepare(self) -> None:
        """Write the converters that were not used yet."""
        for tag, cls in enumerate(self.by_tag):
            self.encoders[cls] = self._converter(cls, "encode", tag)
            self.decoders[tag] = self._converter(cls, "decode", tag)

    def _converter(self, cls: Any, way: str, tag: int | None = None) -> Convert:
        return cast(Convert, self._names[_Source(self._names).converter(cls, way, tag)])

    def _encode_first(self, tag: int, item: Any) -> Any:
        cls = self.by_tag[tag]
        convert = self.encoders[cls] = self._converter(cls, "encode", tag)
        return convert(item)

    def _decode_first(self, tag: int, fields: Any) -> Any:
        convert = self.decoders[tag] = self._converter(self.by_tag[tag], "decode", tag)
        return convert(fields)

    def encode(self, item: Any) -> list[Any]:
        fields: list[Any] = self.encoders[type(item)](item)
        return fields

    def decode(self, fields: Any) -> Any:
        tag = fields[0]
        if type(tag) is not int or not 0 <= tag < len(self.decoders):
            raise ValueError(f"no event or command has the tag {tag!r}")
        return self.decoders[tag](fields)

    def _encode_template(self, template: FunctionTemplate) -> bytes:
        last = self._last  # read once: threads share it
        if last[0] is template:
            return last[1]
        packed = self._packed.get(template)
        if packed is None:
            if len(self._packed) >= _TEMPLATES_MAX:
                self._packed.clear()
            packed = self._packed[template] = pack(self._converter(FunctionTemplate, "encode")(template))
        self._last = template, packed
        return packed

    def _decode_template(self, packed: bytes) -> FunctionTemplate:
        template = self._templates.get(packed)
        if template is None:
            if len(self._templates) >= _TEMPLATES_MAX:
                self._templates.clear()
            template = self._templates[packed] = self._converter(FunctionTemplate, "decode")(unpack(packed))
        return template


_CODEC = _Codec()
NAMES: tuple[str, ...] = tuple(cls.__name__ for cls in _CODEC.by_tag)
"""The class of each tag, sorted, the younger ones last: written at the head of a log."""

encode: Callable[[Event | Command], list[Any]] = _CODEC.encode
"""An event or command as a list of plain values, the class's tag first."""

prepare: Callable[[], None] = _CODEC.prepare
"""Write every converter now."""


def decode(fields: Any) -> Any:
    """The event or command that `encode` made the list from.

    Raises:
        ValueError: no `encode` has made this.
    """
    try:
        return _CODEC.decode(fields)
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, RecursionError) as error:
        raise ValueError(f"the message is neither an event nor a command: {error}") from error
