"""axe-core, from npm, finds nothing in the live page; slow, for it is fetched over the network."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dualray.dashboard.feeds import DirectoryFeed
from tests.dashboard.support import BROWSER, browser, served, wide_trace
from tests.report.support import simulate, two_steps

NPM = shutil.which("npm")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(BROWSER is None or NPM is None, reason="needs npm and a Chromium on PATH"),
]


def test_axe_finds_nothing_in_light_and_dark(tmp_path: Path) -> None:
    assert NPM is not None
    subprocess.run([NPM, "install", "--silent", "--no-fund", "--no-audit", "axe-core"], cwd=tmp_path, check=True)
    script = tmp_path / "node_modules" / "axe-core" / "axe.min.js"
    simulate(lambda: two_steps(4), tmp_path / "run", faults=["kill node-2 when augment starts 2"])
    feeds = DirectoryFeed(tmp_path / "run"), DirectoryFeed(wide_trace(tmp_path / "wide", 500))
    with served(*feeds) as page, browser() as launched:
        for scheme in ("light", "dark"):
            # The page's own policy lets no other script in.
            context = launched.new_context(bypass_csp=True, color_scheme=scheme)
            shown = context.new_page()
            shown.goto(page.link)
            shown.wait_for_selector("#list tbody tr")
            shown.wait_for_selector("#comparison td")
            shown.add_script_tag(path=script)
            shown.wait_for_selector("#answers p")
            for opens in (None, "#nodes button", "#happened button", "#tab-spans"):
                if opens is not None:
                    shown.locator(opens).first.click()
                found: dict[str, Any] = shown.evaluate("axe.run()")
                assert [(opens, each["id"], each["nodes"][0]["html"]) for each in found["violations"]] == []
                assert found["passes"]
                shown.keyboard.press("Escape")
            context.close()
