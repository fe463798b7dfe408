"""`dataclass` for the hundred kinds of events and commands, which every process of a session defines when it starts.

Comparing and showing them is for tests and errors: one function each does it for all kinds, where dataclasses would
write and compile two for each, half of the time that importing them takes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(*, slots: bool = False, kw_only: bool, init: bool = True) -> Callable[[type], type]:
        """As dataclasses.dataclass. Where they are compiled, they come with a constructor (hatch_build.py)."""

        def make(cls: type) -> type:
            cls.__eq__, cls.__repr__, cls.__hash__ = _equals, _shown, None
            return dataclasses.dataclass(slots=slots, kw_only=kw_only, init=init, eq=False, repr=False)(cls)

        return make


def _equals(self: Any, other: Any) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    names: dict[str, object] = self.__dataclass_fields__
    return all(getattr(self, name) == getattr(other, name) for name in names)


def _shown(self: Any) -> str:
    names: dict[str, object] = self.__dataclass_fields__
    values = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
    return f"{self.__class__.__qualname__}({values})"
