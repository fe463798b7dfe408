"""The module names that pickles hold, wherever the code lies.

A pickled function names the functions that build it again, each by its module. A function's id is a digest of its
pickle, and a simulation counts the bytes of every message. So these names are part of what dualray promises: they are
those of 0.1.0, and do not change when a file moves.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


def keep_name(module: str, *targets: Any) -> None:
    """Have pickle and cloudpickle find functions and classes under `module`, which needs no file.

    Only processes that have imported the targets' own module can read such a pickle; every process of dualray has.
    """
    home = sys.modules.setdefault(module, ModuleType(module, "Names that stand in pickles (pickled_names.py)."))
    for target in targets:
        setattr(home, target.__name__, target)
        target.__module__ = module
