"""Imports and libraries are not left in the middle, and time goes on there all the same."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dualray
from dualray.sim.usercode import substitutions, switching
from dualray.sim.usercode.substitutions import LIBRARIES

LIBRARY = """
import sys, time
def measured(inside):
    assert not inside, "entered a second time"
    inside.append(1)
    times = [clock() for _ in range(5) for clock in (time.perf_counter, time.time)]
    inside.clear()
    return times
measured(sys.importing)
time.sleep(0.01)
"""


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    yield
    dualray.shutdown()


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Who is in the library now, whichever worker it is."""
    (tmp_path / "measuring_library.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "importing", [], raising=False)
    yield monkeypatch
    sys.modules.pop("measuring_library", None)


def use() -> tuple[list[float], float, float]:
    import measuring_library

    read = measuring_library.measured(sys.importing)  # type: ignore[attr-defined]
    after = time.time()
    return read, after, after - read[-1]


def test_six_workers_at_once_are_each_alone_in_an_import_and_in_a_library(inside: Any, tmp_path: Path) -> None:
    inside.setattr(substitutions, "LIBRARIES", (*LIBRARIES, str(tmp_path)))
    dualray.init(mode="sim", num_cpus=6)
    refs: list[Any] = [dualray.remote(use).remote() for _ in range(6)]
    for read, after, _ in dualray.get(refs):
        intervals, dates = read[::2], [*read[1::2], after]
        assert sorted(set(intervals)) == intervals  # time goes on
        assert sorted(set(dates)) == dates


def test_the_users_own_code_is_left_between_two_reads_and_an_import_in_it_is_not(inside: Any) -> None:
    dualray.init(mode="sim", num_cpus=6)
    refs: list[Any] = [dualray.remote(use).remote() for _ in range(6)]
    with pytest.raises(dualray.exceptions.TaskError, match="entered a second time") as raised:
        dualray.get(refs)
    assert "in use" in str(raised.value)  # the import had gone well


def test_a_library_that_looks_for_ever_is_left(inside: Any, tmp_path: Path) -> None:
    (tmp_path / "waiting_library.py").write_text("import time\ndef wait(flag):\n    while not flag: time.monotonic()\n")
    inside.setattr(substitutions, "LIBRARIES", (*LIBRARIES, str(tmp_path)))
    inside.setattr(switching, "READS_ALONE_MAX", 100)
    dualray.init(mode="sim", num_cpus=2)

    @dualray.remote
    def waits() -> float:
        import waiting_library

        waiting_library.wait(sys.importing)  # type: ignore[attr-defined]
        return time.monotonic()

    @dualray.remote
    def frees() -> None:
        time.sleep(1)
        sys.importing.append(1)  # type: ignore[attr-defined]

    refs: list[Any] = [waits.remote(), frees.remote()]
    assert 1 < dualray.get(refs)[0] < 2


def test_what_a_library_waits_is_not_shorter_for_its_clock_having_gone_ahead(inside: Any, tmp_path: Path) -> None:
    (tmp_path / "sleeping_library.py").write_text(
        "import threading, time\n"
        "def slept(wait):\n"
        "    [time.monotonic() for _ in range(50)]\n"
        "    before = time.monotonic_ns()\n"
        "    wait(0.001)\n"
        "    return time.monotonic_ns() - before\n"
        "def all_slept():\n"
        "    return slept(time.sleep), slept(threading.Event().wait)\n"
    )
    inside.setattr(substitutions, "LIBRARIES", (*LIBRARIES, str(tmp_path)))
    dualray.init(mode="sim", num_cpus=2)

    @dualray.remote
    def sleeps() -> Any:
        import sleeping_library

        return sleeping_library.all_slept()

    ref: Any = sleeps.remote()
    assert min(dualray.get(ref)) >= 1_000_000
