"""A virtual worker that holds accelerators other than GPUs has variables of its own while it runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

_variables: Final[dict[bytes, bytes]] = os.environ._data  # type: ignore[attr-defined]  # as in entering.py
_putenv: Final = os.putenv
_unsetenv: Final = os.unsetenv
"""The system's, also while a simulation has put others in their place."""


class DeviceVariables:
    """See the module. Whoever runs beside the worker has these variables as they are outside."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self.names = tuple(variables)
        self._own: dict[bytes, bytes | None] = {
            os.fsencode(key): os.fsencode(value) for key, value in variables.items()
        }
        self._outer: dict[bytes, bytes | None] = {}

    def enter(self) -> None:
        """The worker runs."""
        self._outer = _now(self._own)
        _set(self._own)

    def leave(self) -> None:
        """The worker does not run any more."""
        self._own = _now(self._own)
        _set(self._outer)


def _now(names: Mapping[bytes, object]) -> dict[bytes, bytes | None]:
    return {name: _variables.get(name) for name in names}


def _set(variables: Mapping[bytes, bytes | None]) -> None:
    for name, value in variables.items():
        if value is not None:
            _variables[name] = value
            _putenv(name, value)
        elif name in _variables:
            del _variables[name]
            _unsetenv(name)
