"""Sizes, import circles and folders: what tests/structure.py measures stays within its limits."""

from __future__ import annotations

import ast
import re

import pytest

from tests.structure import EXCEPTIONS, ROOT, Size, Sizes, arrows, circle, imports, python_files, sizes

SENTENCES_MAX = 3
"""Of a folder's docstring."""


@pytest.fixture(scope="module")
def imported() -> dict[str, set[str]]:
    return imports()


def test_sizes_are_within_their_limits():
    above = {size.name: size.amount for size in sizes().above()}
    assert {name: amount for name, amount in above.items() if name not in EXCEPTIONS} == {}
    assert set(EXCEPTIONS) <= set(above), "an exception that is needed no more"


def test_modules_import_in_no_circle(imported):
    assert circle(imported) == []


def test_folders_import_in_no_circle(imported):
    folders: dict[str, set[str]] = {}
    for source, target in arrows(imported):
        folders.setdefault(source, set()).add(target)
    assert circle(folders) == []


def test_each_folder_says_what_is_done_in_it_and_what_is_not():
    for path in python_files():
        if path.name == "__init__.py":
            docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
            summary = docstring.partition("\n\n    ")[0]  # an example may follow
            sentences = [each for each in re.split(r"[.:](?:\s|$)", summary) if each.strip()]
            assert len(sentences) >= 1, path.relative_to(ROOT)


# ---- Each check can fail ---------------------------------------------------------------------------------------------


def test_what_is_too_large_is_found():
    measured = Sizes([Size(661, "a.py")], [Size(41, "a.py:A"), Size(40, "a.py:B")], [Size(61, "a.py:f")])
    assert [size.name for size in measured.above()] == ["a.py", "a.py:A", "a.py:f"]


def test_a_circle_is_found():
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}}) in (
        ["a", "c", "b", "a"],
        ["b", "a", "c", "b"],
        ["c", "b", "a", "c"],
    )
    assert circle({"a": {"b"}, "b": {"c"}}) == []


def test_arrows_lead_between_folders():
    found = arrows(
        {
            "p": set(),
            "p.a": set(),
            "p.a.x": {"p.b.y", "p.a.z"},
            "p.a.z": set(),
            "p.b": set(),
            "p.b.y": set(),
            "p.c": {"p.a.x"},
        }
    )
    assert found == {("p.a", "p.b"): 1, ("p.c", "p.a"): 1}


def test_an_import_for_the_type_checker_counts(imported):
    assert "dualray.options" in imported["dualray.user_verbs"]
