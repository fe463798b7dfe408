"""Where a task that is cancelled must not be interrupted."""

from __future__ import annotations

from types import FrameType

IMPORT_PATIENCE_S = 60.0
"""How long a task that is cancelled is left alone while it imports: a module may wait for what never comes."""

_IMPORTER = "<frozen importlib._bootstrap>"


def is_importing(frame: FrameType | None) -> bool:
    """Whether a module is being imported there. One that is left in the middle is imported anew by whoever needs it
    next in this process, and many cannot be: what they registered elsewhere is there already."""
    while frame is not None:
        if frame.f_code.co_filename == _IMPORTER:
            return True
        frame = frame.f_back
    return False
