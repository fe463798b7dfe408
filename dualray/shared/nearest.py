"""The known name nearest to a misspelled one, for messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a sentence: `. Did you mean 'x'?`, or the names that are known."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if close:
        return f". Did you mean {close[0]!r}?"
    return f"; known are {', '.join(map(str, names))}" if names else ""
