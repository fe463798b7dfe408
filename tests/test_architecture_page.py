"""docs/architecture.md and docs/failure_tests.md lead to files and tests that exist."""

from __future__ import annotations

import re

import pytest

from tests.structure import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
LINKS = sorted(set(re.findall(r"\]\(([^)#]+)\)", PAGE)))
FAILURES = re.findall(
    r"`(tests/[\w/]+\.py)`((?:[:,] `test_\w+`)*)", (ROOT / "docs" / "failure_tests.md").read_text(encoding="utf-8")
)
TESTS = sorted(set(re.findall(r"`(tests/[\w/.]+)`", PAGE)))


@pytest.mark.parametrize("link", LINKS)
def test_a_link_leads_somewhere(link):
    assert (ROOT / "docs" / link).exists()


@pytest.mark.parametrize("path", TESTS)
def test_tests_that_are_named_exist(path):
    assert (ROOT / path).exists()


def test_there_are_twenty_ways_in():
    table = PAGE.partition("## I want to change X")[2].partition("\n## ")[0]
    assert len(re.findall(r"(?m)^\| (?!I want)[^-|]", table)) >= 20


@pytest.mark.parametrize(("path", "names"), FAILURES, ids=lambda text: text[:60])
def test_a_test_of_a_failure_is_in_the_file_that_is_named(path, names):
    source = (ROOT / path).read_text(encoding="utf-8")
    assert [name for name in re.findall(r"test_\w+", names) if f"def {name}(" not in source] == []


def test_every_row_of_failures_names_a_test():
    rows = [line for line in (ROOT / "docs" / "failure_tests.md").read_text().splitlines() if line.startswith("| ")]
    assert len(rows) > 20
    assert [row for row in rows[1:] if "`tests/" not in row] == []
