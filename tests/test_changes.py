"""The files in changes/ are what the next section of CHANGELOG.md is made of."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FRAGMENTS = [path for path in sorted((ROOT / "changes").iterdir()) if path.name != "README.md"]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]
TYPES = [each["directory"] for each in SETTINGS["type"]]


def test_every_file_names_its_type_and_says_something():
    for path in FRAGMENTS:
        assert re.fullmatch(rf"[a-z0-9-]+\.({'|'.join(TYPES)})\.md", path.name), path.name
        text = path.read_text().strip()
        assert text.endswith("."), f"{path.name} is made of sentences"
        assert len(text) <= 600, f"{path.name}: one sentence or two"


def test_the_changelog_has_the_place_for_them():
    assert (ROOT / "CHANGELOG.md").read_text().count(SETTINGS["start_string"]) == 1


def test_the_draft_has_them_all():
    pytest.importorskip("towncrier", reason="only the development environment has towncrier")
    done = subprocess.run(
        [sys.executable, "-m", "towncrier", "build", "--draft", "--version", "next"],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    for path in FRAGMENTS:
        assert path.read_text().split()[0] in done.stdout
    assert FRAGMENTS or "No significant changes" in done.stdout
