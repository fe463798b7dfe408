"""Errors of datasets."""

from __future__ import annotations

from collections.abc import Iterable


class MissingColumnError(KeyError, ValueError):
    """The data has no column of this name. `except KeyError` and `except ValueError` both catch it."""

    def __str__(self) -> str:
        return str(self.args[0])


class NotRowsError(TypeError, ValueError):
    """A user's function returned what is no row or batch. Ray's programs catch ValueError, and Python's TypeError."""


def missing(name: str, there: Iterable[str]) -> MissingColumnError:
    """The error for a column that is not there."""
    return MissingColumnError(
        f"the data has no column {name!r}; the columns are {', '.join(map(repr, there)) or 'none'}"
    )


def check_columns(names: Iterable[str | None], there: Iterable[str]) -> None:
    """Raises MissingColumnError for the first name that is not there."""
    have = list(there)
    for name in names:
        if name is not None and name not in have:
            raise missing(name, have)
