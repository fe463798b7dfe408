"""The keys of the commands' JSON, as docs/api/json.md has them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

PAGE = Path(__file__).parents[1] / "docs" / "api" / "json.md"
DOCUMENTED: Final = dict(re.findall(r"^\| `([^`]+)` \| ([^|]+) \|$", PAGE.read_text(), re.MULTILINE))
"""By command, the cell with its keys."""


def documented_keys(command: str) -> frozenset[str]:
    """The keys of a command's JSON, or of each item of its list."""
    return frozenset(re.findall(r"`([^`]+)`", DOCUMENTED[command]))
