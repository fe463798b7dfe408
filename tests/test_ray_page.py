"""docs/ray.md lists each difference that the conformance tests know of, and no other."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.conformance.ray_differences import DIFFERENCES, reasons
from tests.structure import ROOT

CONFORMANCE = Path(__file__).parent / "conformance"
SHARE_MAX = 0.15
"""Of the conformance tests, which may not apply to Ray."""


def test_each_difference_is_a_row_of_the_page_and_each_row_is_one():
    page = (ROOT / "docs" / "ray.md").read_text().partition("## What is different")[2]
    rows = [line.removeprefix("- ") for line in page.splitlines() if line.startswith("- ")]
    assert rows == list(DIFFERENCES)


def test_each_test_that_is_named_is_there_and_they_are_few():
    there = {
        f"{path.name}::{node.name}"
        for path in CONFORMANCE.glob("test_*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }
    named = [test for tests in DIFFERENCES.values() for test in tests]
    assert set(named) <= there, f"there is no {sorted(set(named) - there)}"
    assert len(named) == len(reasons()), "a test has two reasons"
    assert len(named) <= SHARE_MAX * len(there)
