"""Print what a pyproject.toml depends on, with the extras that are named, one requirement a line.

    python requirements.py pyproject.toml [EXTRA ...]

So an image can install the dependencies before it has the package, and keep them when only the package changes.
"""

import sys
import tomllib
from pathlib import Path


def requirements(pyproject: Path, extras: list[str]) -> list[str]:
    """The requirements, in the file's order.

    Raises:
        SystemExit: the file has no such extra.
    """
    project = tomllib.loads(pyproject.read_text())["project"]
    known = project["optional-dependencies"]
    for extra in extras:
        if extra not in known:
            sys.exit(f"{pyproject} has no extra {extra!r}: it has {', '.join(sorted(known))}")
    return [*project["dependencies"], *(line for extra in extras for line in known[extra])]


if __name__ == "__main__":
    print("\n".join(requirements(Path(sys.argv[1]), sys.argv[2:])))
