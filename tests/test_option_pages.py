"""docs/api/tasks.md and docs/api/actors.md have a row for each option, with its default."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from dualray.options import ActorOptions, MethodOptions, TaskOptions

PAGES = Path(__file__).parents[1] / "docs" / "api"


def rows(page: str, heading: str) -> dict[str, str]:
    """The default of each option in the tables of a section, as the page writes it."""
    section = re.split(r"^## ", (PAGES / page).read_text().partition(f"## {heading}\n")[2], flags=re.MULTILINE)[0]
    found = {}
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 3 and cells[0].startswith("`"):
            found.update(dict.fromkeys(re.findall(r"`(\w+)`", cells[0]), cells[1]))
    return found


@pytest.mark.parametrize(
    ("page", "heading", "options"),
    [
        ("tasks.md", "Options", TaskOptions),
        ("actors.md", "Options", ActorOptions),
        ("actors.md", "Methods", MethodOptions),
    ],
)
def test_each_option_has_a_row_and_each_row_is_an_option(page: str, heading: str, options: type):
    found = rows(page, heading)
    assert set(found) == {field.name for field in fields(options)}
    for field in fields(options):
        if isinstance(field.default, (bool, int)):
            assert found[field.name].strip("`").split(":")[0] == str(field.default), field.name
