"""Addresses of clusters that are more than text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class ClusterAddress(str):
    """The address of a cluster that brings along the settings with which `init` is to be called: of one that is not
    running yet, as a `Cluster` of sim mode is before `init`."""

    __slots__ = ("settings",)

    settings: Mapping[str, Any]
