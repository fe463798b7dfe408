"""README.md: its program prints what the page shows, in the simulator to the last digit, and its links are whole."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests import commands_page

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"


def test_the_simulated_runs_print_what_the_page_shows(tmp_path: Path):
    text = README.read_text()
    (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (tmp_path / "pi.py").write_text(program)
    shown = re.findall(r"```console\n\$ dualray (run pi.py --mode sim.*?)\n(.*?)```", text, re.DOTALL)
    assert len(shown) == 2
    for command, output in shown:
        done = subprocess.run(
            [sys.executable, "-m", "dualray", *shlex.split(command)],
            cwd=tmp_path,
            env={"PYTHONPATH": str(ROOT), "PATH": ""},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.stdout + done.stderr == output


def test_the_quickstart_prints_what_it_shows(tmp_path: Path):
    text = (ROOT / "docs" / "quickstart.md").read_text()
    steps = re.findall(r"^\$ dualray ([^\n]+)\n((?:(?!\$ |```).*\n)*)", text, re.MULTILINE)
    assert len(steps) == 6
    for command, output in steps:
        if "--seeds" in command:
            continue  # tests/testing/test_explore.py does so
        done = subprocess.run(
            [sys.executable, "-m", "dualray", *shlex.split(command)],
            cwd=tmp_path,
            env={"PYTHONPATH": str(ROOT), "PATH": ""},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout + done.stderr == output


def test_the_start_of_the_site_says_what_the_readme_says():
    readme, index = README.read_text(), (ROOT / "docs" / "index.md").read_text()
    assert readme.partition("## Where to go next")[0].partition("**")[2].replace("](docs/", "](") in index


def test_the_speed_is_that_of_the_page_about_performance():
    table = (ROOT / "docs" / "performance.md").read_text()

    def ratio(row: str) -> str:
        return re.search(rf"^\| {row} \|(?:[^|]+\|){{3}} (\d+) \|", table, re.MULTILINE)[1]  # type: ignore[index]

    tasks, calls = ([ratio(f"{what}_{how}") for how in ("sync", "async")] for what in ("tasks", "actor"))
    said = " ".join(README.read_text().split())
    assert f"runs empty tasks at {tasks[0]} to {tasks[1]} times the rate of Ray" in said
    assert f"calls of an actor at {calls[0]} to {calls[1]} times" in said


def test_the_page_of_commands_is_current():
    assert commands_page.PAGE.read_text() == commands_page.page(), "python -m tests.commands_page --write"


@pytest.mark.parametrize("page", [README, *(ROOT / "docs" / name for name in ("features.md", "coming_from_ray.md"))])
def test_links_lead_somewhere(page: Path):
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
    assert len(links) > 3
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


def test_the_glossary_is_in_order_and_has_each_word_once():
    words = re.findall(r"^\| ([\w ]+) \|", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
    words.remove("word")
    assert [word.lower() for word in words] == sorted({word.lower() for word in words})


def test_the_site_lists_every_page():
    listed = set(re.findall(r"[\w/]+\.md", (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2]))
    docs = ROOT / "docs"
    assert {str(page.relative_to(docs)) for page in docs.rglob("*.md")} == listed
