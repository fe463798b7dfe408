"""What another module imports."""

from __future__ import annotations

from typing import Any

LIMIT = 3
_seen = 0


def count() -> int:
    """How often it was called in this process."""
    global _seen  # noqa: PLW0603 - what this is about
    _seen += 1
    return _seen


def doubled(x: int) -> int:
    return 2 * x


class Plain:
    """Nothing but its instances can be changed."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plain) and other.n == self.n

    def __hash__(self) -> int:
        return self.n


class Keeps:
    def __init__(self) -> None:
        self.kept: Any = Plain(3)

    def keep(self, value: Any) -> Any:
        self.kept, value = value, self.kept
        return value

    def run(self, function: Any) -> Any:
        return function()
