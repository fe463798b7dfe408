"""Modules that Ray has moved to `ray._private`, under their old names: `ray.worker`, `ray.state`, `ray.ray_constants`.

Libraries still read them. As Ray does, dualray logs a warning the first time that a program reads a name.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import Any

_log = logging.getLogger("ray")


class OldModule:
    """One of these modules, such as "worker"."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._warned: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        value = getattr(import_module(f"ray._private.{self._name}"), name)
        if name not in self._warned:
            self._warned.add(name)
            _log.warning("DeprecationWarning: ray.%s.%s is private to Ray, which will remove it.", self._name, name)
        return value
