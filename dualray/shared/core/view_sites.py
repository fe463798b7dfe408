"""Remembers at which line of the program an object of the store was read, as long as a view of it is kept.

A view pins its object: a variable that lives long takes room from everybody else. The error of a full store names
the lines, where the process that meets it keeps views itself.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from dualray.shared.model.errors import ErrorInfo, ErrorKind
from dualray.shared.model.ids import ObjectID, short

_OURS = __file__.rpartition("shared")[0]
_NAMED_MAX = 5
_SPARE = 64


class ViewSites:
    """See the module."""

    __slots__ = ("_sites",)

    def __init__(self) -> None:
        self._sites: dict[ObjectID, tuple[str, int, int]] = {}

    def note(self, object_id: ObjectID, size_bytes: int, views: Mapping[ObjectID, int]) -> None:
        """The caller's program reads an object. `views` are all that the process keeps now."""
        if len(self._sites) > 2 * len(views) + _SPARE:
            self._sites = {kept: site for kept, site in list(self._sites.items()) if kept in views}
        frame = sys._getframe()  # its own, which is ours: beneath it there may be compiled code alone, which has none
        while frame.f_code.co_filename.startswith(_OURS):
            if frame.f_back is None:
                del frame  # one that refers to itself would keep all that the callers hold, until cycles are collected
                return  # an argument, which a worker reads by itself
            frame = frame.f_back
        self._sites[object_id] = (frame.f_code.co_filename, frame.f_lineno, size_bytes)
        del frame

    def with_holders(self, error: ErrorInfo, views: Mapping[ObjectID, int]) -> ErrorInfo:
        """The error, with the lines that keep views in this process, the largest first, if the store is full."""
        if error.kind is not ErrorKind.STORE_FULL:
            return error
        kept = [(object_id, *self._sites[object_id]) for object_id in list(views) if object_id in self._sites]
        if not kept:
            return error
        kept.sort(key=lambda each: (-each[3], each[0]))
        lines = ", ".join(
            f"{short(object_id)} ({size_bytes:,} bytes) read at {file}:{line}"
            for object_id, file, line, size_bytes in kept[:_NAMED_MAX]
        )
        more = f", and {len(kept) - _NAMED_MAX} more" if len(kept) > _NAMED_MAX else ""
        words = (
            f"Variables of this process still use {lines}{more}: delete the variables, or copy the data that they need."
        )
        return ErrorInfo(kind=error.kind, message=f"{error.message} {words}")
