"""A pytest plugin for sktime's suite, which leaves sktime's backend of Ray out of its CI: it puts the backend in again.

Tests that use another backend, or none, are not run: they do not depend on Ray.
"""

from __future__ import annotations

from importlib import import_module

import pytest


def pytest_configure() -> None:
    import_module("sktime.utils.parallel").SKIP_FIXTURES.remove("ray")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    others = [item for item in items if not _uses_ray(item)]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if item not in set(others)]


def _uses_ray(item: pytest.Item) -> bool:
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return "_ray_" in item.name or any(isinstance(each, dict) and "ray" in each.values() for each in parameters)
