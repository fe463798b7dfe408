"""docs/ray_names.md, made of Ray's names and of what dualray answers to them: `python -m tests.as_ray.page --write`.

Without `--write` it prints what is counted, and each name that is missing without a reason.
"""

from __future__ import annotations

import inspect
import json
import logging
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "ray_names.md"
RAYS_NAMES = json.loads((ROOT / "tests" / "data" / "rays_names.json").read_text())
OF_LIBRARIES = ("ray.dag", "ray.experimental", "ray.data", "ray.train")
"""Modules with tables of their own: they are not counted with the others."""

_PRIVATE = [f"ray._common.{name}" for name in ("constants", "network_utils", "test_utils", "utils")] + [
    f"ray._private.{name}"
    for name in (
        *("client_mode_hook", "internal_api", "ray_constants", "ray_logging.logging_config", "services"),
        *("runtime_env.constants", "runtime_env.context", "runtime_env.plugin", "state", "state_api_test_utils"),
        *("test_utils", "utils", "worker"),
    )
]
_PRIVATE.append("ray.data._internal.util")

ARGUMENTS = "arguments of ray.init"
WORKS, IGNORED, REFUSED = "works", "accepted and ignored", "refused"

PREFACE = """\
# Names of Ray, and their support in dualray

This page lists the names in the `__all__` lists and in the documentation of Ray {version}
(`tests/data/rays_names.json`), and says which of these names dualray has.
`python -m tests.as_ray.page --write` writes `docs/ray_names.md`, and `tests/as_ray/test_names.py` checks this file.
The page [Run programs that `import ray`](as_ray.md) shows how `import ray` imports dualray.
The page [Compatibility with Ray's core API](api/compatibility.md) names a test for each name of Ray's core API.

Of {counted} names of Ray's API, {works} work in dualray ({share:.1f} %).
Ray's API has {refused} names that raise an error in dualray.
dualray accepts {ignored} arguments of `ray.init` that have no effect in dualray.

"""


class Name(NamedTuple):
    """A name of Ray's, and the answer."""

    name: str
    state: str
    why: str


def rows() -> Iterator[tuple[str, list[Name]]]:
    """Every table: its title, and its names."""
    for module, names in RAYS_NAMES["modules"].items():
        found = import_module(module)
        yield module, [_row(found, f"{module}.{each}", each) for each in names]
    for of_class, names in RAYS_NAMES["members"].items():
        module, _, name = of_class.rpartition(".")
        found = getattr(import_module(module), name)
        yield of_class, [_row(found, f"{of_class}.{each}", each) for each in names]
    yield ARGUMENTS, [_argument(each) for each in RAYS_NAMES[ARGUMENTS]]


def _row(holder: Any, name: str, last: str) -> Name:
    from dualray.as_ray import REFUSED as REASONS

    if (
        hasattr(holder, last)
        or last in getattr(holder, "__annotations__", ())
        or last in getattr(holder, "__slots__", ())
    ):
        return Name(name, WORKS, "")
    parts = name.split(".")
    why = next((REASONS[key] for end in range(len(parts), 1, -1) if (key := ".".join(parts[:end])) in REASONS), "")
    return Name(name, REFUSED, why)


def _argument(name: str) -> Name:
    from dualray import api
    from dualray.as_ray import initializing

    taken = {*initializing._TAKEN, *initializing._OF_THIS_MODULE}
    ignored = name in initializing._IGNORED or (name in api.OF_RAY and name not in taken)
    known = {*inspect.signature(api.init).parameters, *inspect.signature(initializing.init).parameters, *taken}
    if ignored and name != "job_config":
        why = f"dualray ignores `{name}`, and warns once unless the value of `{name}` switches a feature off"
        return Name(f"init({name}=)", IGNORED, why)
    return Name(f"init({name}=)", WORKS if name in known else REFUSED, "")


def page() -> str:
    """The text of docs/ray_names.md."""
    from dualray.as_ray import REFUSED as REASONS

    tables = list(rows())
    counted = [row for title, names in tables if title not in (*OF_LIBRARIES, ARGUMENTS) for row in names]
    states = [row.state for row in counted]
    text = PREFACE.format(
        version=RAYS_NAMES["version"],
        counted=len(counted),
        works=states.count(WORKS),
        share=100 * states.count(WORKS) / len(counted),
        ignored=[row.state for row in tables[-1][1]].count(IGNORED),
        refused=states.count(REFUSED),
    )
    for title, names in tables:
        own = " (a library, not counted)" if title in OF_LIBRARIES else ""
        text += f"## {title}\n\n" if title == ARGUMENTS else f"## `{title}`{own}\n\n"
        works = ", ".join(f"`{row.name.rpartition('.')[2]}`" for row in names if row.state == WORKS)
        of = "These arguments of `ray.init`" if title == ARGUMENTS else f"These names of `{title}`"
        text += f"{of} work in dualray: {works}.\n\n"
        others = [row for row in names if row.state != WORKS]
        if others:
            text += "| name | state | why |\n|---|---|---|\n"
            text += "".join(f"| `{row.name}` | {row.state} | {row.why} |\n" for row in others) + "\n"
    text += "## Why modules and names of Ray are missing\n\n"
    text += "The following table lists modules and names of Ray that dualray does not have, or has only in part.\n\n"
    text += "| name | why |\n|---|---|\n"
    text += "".join(f"| `{name}` | {why} |\n" for name, why in sorted(REASONS.items()))
    text += "\n## Private names of Ray\n\n"
    text += "Of Ray's private modules `ray._private`, `ray._common` and `ray.data._internal`, dualray has only the "
    text += "names in the following table, which test suites of other projects import.\n\n"
    text += "| module | names |\n|---|---|\n"
    for module in _PRIVATE:
        text += f"| `{module}` | {', '.join(f'`{each}`' for each in import_module(module).__all__)} |\n"
    return text


if __name__ == "__main__":
    from dualray.as_ray import install

    logging.disable()
    install()
    if "--write" in sys.argv:
        PAGE.write_text(page())
    sys.stdout.write(page().partition("## ")[0])
    for row in [row for _, names in rows() for row in names]:
        if row.state == REFUSED:
            sys.stdout.write(f"{row.name}: {row.why or 'MISSING, WITHOUT A REASON'}\n")
