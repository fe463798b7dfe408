"""docs/architecture.md leads to files and tests that exist."""

from __future__ import annotations

import re

import pytest

from tests.structure import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
LINKS = sorted(set(re.findall(r"\]\(([^)#]+)\)", PAGE)))
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
