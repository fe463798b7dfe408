"""The colours of functions, the same in the report and on the live page.

The functions that a run calls first have a colour each, in the order of their first calls; later ones share grey. That
order is known while the run goes on, and does not change afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

__all__ = ["FUNCTIONS_MAX", "OTHERS", "PALETTE", "colours_of"]

PALETTE: Final = ("#4269d0", "#3ca951", "#9c6b4e", "#a463f2", "#17a2b8", "#e07b39", "#97bbf5", "#7f8c4d", "#d36ba6")
"""No red: red marks what was lost or has failed."""
OTHERS: Final = "#9498a0"
FUNCTIONS_MAX: Final = len(PALETTE)
"""Functions with a colour of their own."""


def colours_of(names: Iterable[str]) -> dict[str, str]:
    """The colour of each function that has one.

    Args:
        names: of the tasks of a run, in the order in which it submitted them.
    """
    return dict(zip(dict.fromkeys(filter(None, names)), PALETTE, strict=False))
