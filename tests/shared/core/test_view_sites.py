"""Where a program reads an object is looked for also where no Python code has called: compiled code has no frames."""

from __future__ import annotations

import _thread
import sys
import time
from typing import Any

import pytest

from dualray.shared.core.view_sites import ViewSites
from dualray.shared.model.ids import ObjectID

OBJECT = ObjectID(b"\1" * 20)


def test_a_read_that_no_python_code_asked_for_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    sites = ViewSites()
    raised: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", raised.append)
    threads = _thread._count()
    _thread.start_new_thread(sites.note, (OBJECT, 1, {OBJECT: 1}))  # beneath `note` there is no frame at all
    while _thread._count() > threads:
        time.sleep(0.001)
    assert [str(each.exc_value) for each in raised] == []
    assert sites._sites == {}


def test_a_read_is_noted_where_the_program_stands() -> None:
    sites = ViewSites()
    sites.note(OBJECT, 7, {OBJECT: 1})
    ((file, _, size_bytes),) = sites._sites.values()
    assert (file, size_bytes) == (__file__, 7)
