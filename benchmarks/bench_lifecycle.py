"""Real mode beside Ray: starting and stopping."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.conftest import Measure, Row, start

INIT = Row(name="init", operation="init()", unit="s", rounds=3)
SHUTDOWN = Row(name="shutdown", operation="shutdown()", unit="s", rounds=3)


@pytest.fixture(autouse=True)
def stopped_afterwards(api: Any) -> Iterator[None]:
    yield
    api.shutdown()


def test_init(api: Any, measure: Measure) -> None:
    measure(INIT, api.__name__, lambda: start(api), setup=api.shutdown)


def test_shutdown(api: Any, measure: Measure) -> None:
    measure(SHUTDOWN, api.__name__, api.shutdown, setup=lambda: start(api))
