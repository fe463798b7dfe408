"""Addresses of clusters that are more than text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final


class ClusterAddress(str):
    """The address of a cluster that brings along the settings with which `init` is to be called: of one that is not
    running yet, as a `Cluster` of sim mode is before `init`. A pickle of it has its text alone."""

    __slots__ = ("settings",)

    settings: Mapping[str, Any]

    def __reduce__(self) -> tuple[Any, ...]:
        return str, (str(self),)

    def __copy__(self) -> ClusterAddress:
        return self

    def __deepcopy__(self, _memo: Any) -> ClusterAddress:
        return self


class _Planned:
    """Holds the latest `Cluster` of this process that is not shut down: where "auto" leads in sim mode, and where the
    name `ray` leads without an address."""

    __slots__ = ("address_of",)

    def __init__(self) -> None:
        self.address_of: Callable[[], str | None] | None = None

    def address(self) -> str | None:
        """Its address; None: there is none."""
        return self.address_of() if self.address_of is not None else None


planned: Final = _Planned()
