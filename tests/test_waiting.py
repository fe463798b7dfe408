"""The tables of docs/api/waiting.md and docs/api/complaints.md: every row names a test that exists; whatever waits has
rows."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
WAITS = [
    *("`get(ref)`", "`get` in a task", "`get(borrowed ref)`", "`wait(refs)`", "`put(value)`", "`cancel(ref)`"),
    *("`Cls.remote()`", "`get(actor.method.remote())`", "`get_actor(name)`", "`kill(actor)`"),
    *("`group.wait(timeout_seconds)`", "`get(group.ready())`", "`Queue.get(timeout=)`", "`Queue.put(timeout=)`"),
    *("`Pool.map`, `AsyncResult.get`", "`ActorPool.get_next(timeout=)`", "iteration over a Dataset"),
    *("`init(address=)`", "`shutdown()`", "`next(generator)`", "`await ref`"),
]


class TableRow(NamedTuple):
    call: str
    why: str
    seen: str
    end: str
    test: str


def rows() -> list[TableRow]:
    text = (ROOT / "docs/api/waiting.md").read_text()
    lines = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("| ") and "tests/" in line]
    return [TableRow(*(cell.strip() for cell in cells)) for cells in lines]


ROWS = rows()
COMPLAINTS = [
    line.split("|")[-2].strip()
    for line in (ROOT / "docs/api/complaints.md").read_text().splitlines()
    if line.startswith("| ") and "tests/" in line
]


def test_whatever_waits_has_a_row():
    calls = {row.call for row in ROWS}
    assert [call for call in WAITS if call not in calls] == []
    assert len({(row.call, row.why) for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize("row", ROWS, ids=[f"{row.call} {row.why}" for row in ROWS])
def test_each_row_names_a_test_that_exists(row: TableRow):
    check_exists(row.test)


def test_each_complaint_has_a_test_that_exists():
    assert len(COMPLAINTS) >= 17
    for test in COMPLAINTS:
        check_exists(test)


def check_exists(test: str) -> None:
    named = re.fullmatch(r"`(tests/[\w/]+\.py)::(\w+)`", test)
    assert named is not None, test
    tree = ast.parse((ROOT / named[1]).read_text())
    assert named[2] in [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def test_every_test_of_what_never_hangs_is_named():
    named = {row.test.strip("`") for row in ROWS}
    for name in ("test_nothing_hangs.py", "test_nothing_hangs_alone.py"):
        path = f"tests/conformance/{name}"
        tree = ast.parse((ROOT / path).read_text())
        tests = [f"{path}::{node.name}" for node in tree.body if isinstance(node, ast.FunctionDef)]
        assert [each for each in tests if "::test_" in each and each not in named] == []
