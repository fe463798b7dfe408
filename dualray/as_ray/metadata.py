"""Metadata of the package `ray` for `importlib.metadata`, also if Ray is not installed.

Libraries ask it for the version of Ray, or whether Ray is there at all, before they import Ray.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, DistributionFinder
from pathlib import Path
from typing import Any, Final

RAYS_VERSION: Final = "2.60.0"
"""The Ray whose names these are."""

VERSIONS: dict[Any, str] = {}
"""The value of `ray.__version__` when this process started a cluster, by the cluster's address."""

_FILES: Final = {
    "METADATA": f"Metadata-Version: 2.1\nName: ray\nVersion: {RAYS_VERSION}\nSummary: Ray's names, of dualray\n",
    "top_level.txt": "ray\n",
}


def version_here() -> str:
    """The value of `ray.__version__`, which a program may have changed."""
    found: str = getattr(sys.modules.get("ray"), "__version__", RAYS_VERSION)
    return found


class _Ray(Distribution):
    """The installed package `ray`, as far as one can ask."""

    def read_text(self, filename: str) -> str | None:
        """The text of a file of the metadata."""
        return _FILES.get(filename)

    def locate_file(self, path: Any) -> Any:
        """Where a file of the package is."""
        return Path(__file__).parent / "site" / path


def distributions(context: DistributionFinder.Context | None) -> Iterator[Distribution]:
    """Yield `ray` for a search by this name or for all packages, but not for a search in a directory."""
    if context is None or (context.name in (None, "ray") and "path" not in vars(context)):
        yield _Ray()
