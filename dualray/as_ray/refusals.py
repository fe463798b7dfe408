"""How modules under the name `ray` answer names that they do not have."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from types import FrameType, MappingProxyType
from typing import Any

from dualray.as_ray import absent

_IMPORT_FROM = dis.opmap["IMPORT_FROM"]


def refusing(module: str, homes: Mapping[str, str] = MappingProxyType({})) -> Callable[[str], Any]:
    """The `__getattr__` of a module, such as "ray.util".

    It imports a module of its package that is there, for programs that only say `import ray`; of another name it says
    that dualray does not have it, why, and where the names are listed. `homes`: modules from which names are imported
    when they are first used.
    """

    def __getattr__(name: str) -> Any:  # noqa: N807 - it becomes a module's
        if name in homes:
            return getattr(import_module(homes[name]), name)
        if not name.startswith("__"):
            if hasattr(sys.modules[module], "__path__") and find_spec(f"{module}.{name}") is not None:
                return import_module(f"{module}.{name}")
            raise _error_for(sys._getframe(1))(absent(f"{module}.{name}"))
        raise AttributeError(f"module {module!r} has no attribute {name!r} in dualray")

    return __getattr__


def _error_for(caller: FrameType) -> type[Exception]:
    """ImportError for `from ray import tune`: of an AttributeError, Python would drop the message."""
    code = caller.f_code.co_code
    return ImportError if caller.f_lasti >= 0 and code[caller.f_lasti] == _IMPORT_FROM else AttributeError
