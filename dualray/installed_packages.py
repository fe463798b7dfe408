"""Which of the packages that a runtime environment asks for are installed: `runtime_env={"pip": [...]}`.

dualray installs nothing. An environment that names packages can be had where they are installed already, in versions
that it accepts; else an error says what to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from dualray.extras import needs

with needs("runtime_env={'pip': [...]}", "runtime-env"):
    from packaging.requirements import InvalidRequirement, Requirement

__all__ = ["missing", "requirements"]

_KEYS = {
    "pip": ("packages", "pip_check", "pip_version", "pip_install_options"),
    "uv": ("packages", "uv_check", "uv_version", "uv_pip_install_options"),
}


def requirements(what: str, tool: str, said: Any) -> tuple[str, ...]:
    """The requirements of the key `pip` or `uv`, as Ray takes them: a list, the path of a file with one a line, or a
    dict with `packages`, which is either.

    Raises:
        TypeError: it is none of these.
        ValueError: a key of the dict is unknown, a requirement is none, or the file is not there.
    """
    if isinstance(said, Mapping):
        unknown = next((key for key in said if key not in _KEYS[tool]), None)
        if unknown is not None:
            raise ValueError(f"{what}: {tool} has no key {unknown!r}. Known: {', '.join(_KEYS[tool])}.")
        if "packages" not in said:
            raise ValueError(f"{what}: {tool}={said!r} needs the key 'packages', a list of requirements")
        return requirements(what, tool, said["packages"])
    if isinstance(said, str | Path):
        return tuple(_checked(f"{what}: {tool}", line) for line in _lines(f"{what}: {tool}", Path(said).expanduser()))
    if not isinstance(said, Sequence) or not all(isinstance(each, str) for each in said):
        raise TypeError(
            f"{what}: {tool}={said!r} must be a list of requirements such as ['numpy>=2'], the path of a requirements "
            "file, or a dict with 'packages'"
        )
    return tuple(_checked(f"{what}: {tool}", each) for each in said)


def missing(asked: Iterable[str]) -> dict[str, str]:
    """Those of these requirements that are not installed, with what is there in their place, in words."""
    found = {}
    for text in asked:
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue  # not asked for on this machine
        try:
            there = version(requirement.name)
        except PackageNotFoundError:
            found[text] = "is not installed"
        else:
            if not requirement.specifier.contains(there, prereleases=True):
                found[text] = f"differs from the installed version ({there})"
    return found


def _checked(what: str, text: str) -> str:
    try:
        requirement = Requirement(text)
    except InvalidRequirement as error:
        raise ValueError(f"{what} has {text!r}, which is not a requirement such as 'numpy>=2': {error}") from None
    if requirement.url is not None:
        raise ValueError(
            f"{what} has {text!r}, but dualray downloads no packages. Install the package on each node, and leave "
            "out the URL of the package"
        )
    return text


def _lines(what: str, path: Path) -> list[str]:
    """The requirements of a file, without comments and without pip's own options."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ValueError(f"{what}={str(path)!r} cannot be read: {error.strerror}") from None
    bare = (line.partition(" #")[0].strip() for line in lines)
    return [line for line in bare if line and not line.startswith(("#", "-"))]
