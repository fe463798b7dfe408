"""Tools for your own tests: `@simtest`, exploration of seeds, shrinking of failures, checkers and a pytest plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dualray.testing.simtests import SimtestFailure, simtest

__all__ = ["SimtestFailure", "simtest"]


def __getattr__(name: str) -> Any:
    """Import the simulator when it is first asked for: pytest imports this package at each start, for its plugin."""
    if name in __all__:
        from dualray.testing import simtests  # noqa: PLC0415

        return getattr(simtests, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
