"""What another module imports."""

from __future__ import annotations

LIMIT = 3
_seen = 0


def count() -> int:
    """How often it was called in this process."""
    global _seen  # noqa: PLW0603 - what this is about
    _seen += 1
    return _seen


def doubled(x: int) -> int:
    return 2 * x
