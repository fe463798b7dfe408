"""axe-core, from npm, finds nothing in the live page, the report and the page of a prediction; slow, for it is fetched
over the network."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import dualray as ray
from dualray import whatif
from dualray.dashboard.feeds import DirectoryFeed
from dualray.report.page import Check, write_page
from dualray.report.record import read_record
from tests.dashboard.support import BROWSER, browser, served, wide_trace
from tests.report.support import simulate, two_steps

if TYPE_CHECKING:
    from playwright.sync_api import Page

NPM = shutil.which("npm")
SCHEMES = ("light", "dark")
WIDTHS = (1280, 400)
FETCHED_WITHIN_S = 120

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(BROWSER is None or NPM is None, reason="needs npm and a Chromium on PATH"),
]


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its script, fetched from npm's registry."""
    assert NPM is not None
    directory = tmp_path_factory.mktemp("axe")
    try:
        fetched = subprocess.run(
            [NPM, "pack", "axe-core", "--silent", "--cache", directory / "cache"],
            cwd=directory,
            capture_output=True,
            text=True,
            timeout=FETCHED_WITHIN_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm has not fetched axe-core within {FETCHED_WITHIN_S} s")
    if fetched.returncode:
        pytest.skip(f"npm cannot fetch axe-core: {fetched.stderr[-300:]}")
    with tarfile.open(next(directory.glob("axe-core-*.tgz"))) as packed:
        packed.extract("package/axe.min.js", directory, filter="data")
    return directory / "package" / "axe.min.js"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as launched:
        yield launched


@pytest.fixture(scope="module")
def lossy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has lost a node."""
    directory = tmp_path_factory.mktemp("lossy")
    simulate(lambda: two_steps(4), directory / "run", faults=["kill node-2 when augment starts 2"])
    return directory / "run"


def opened(chromium: Any, link: str, axe: Path, scheme: str, width: int) -> Page:
    # The page's own policy lets no other script in.
    context = chromium.new_context(
        bypass_csp=True, color_scheme=scheme, viewport={"width": width, "height": 900}, reduced_motion="reduce"
    )
    shown: Page = context.new_page()
    shown.goto(link)
    shown.add_script_tag(path=axe)
    return shown


def finds_nothing(shown: Page, clicks: Sequence[str | None]) -> None:
    """Neither at first, nor after each of these was clicked."""
    for opens in clicks:
        if opens is not None:
            shown.locator(opens).first.click()
        found: dict[str, Any] = shown.evaluate("axe.run()")
        violations = [
            (opens, each["impact"], each["id"], node["target"], node["html"][:200])
            for each in found["violations"]
            for node in each["nodes"][:3]
        ]
        assert violations == []
        assert found["passes"]
        shown.keyboard.press("Escape")
    shown.context.close()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_axe_finds_nothing_in_the_live_page(
    chromium: Any, axe: Path, lossy: Path, tmp_path: Path, scheme: str, width: int
) -> None:
    feeds = DirectoryFeed(lossy), DirectoryFeed(wide_trace(tmp_path / "wide", 500))
    with served(*feeds) as page:
        for source in (0, 1):
            page.until(lambda head: head["state"] == "over", source)
        shown = opened(chromium, page.link, axe, scheme, width)
        shown.wait_for_selector("#list tbody tr")
        shown.wait_for_selector("#comparison td")
        shown.wait_for_selector("#answers p")
        shown.wait_for_selector("#happened .cost")
        finds_nothing(shown, (None, "#nodes button", "#happened button", "#tab-spans", "#tab-logs"))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_axe_finds_nothing_in_the_report(
    chromium: Any, axe: Path, lossy: Path, tmp_path: Path, scheme: str, width: int
) -> None:
    checks = [
        Check(what="ending", expected="it succeeds", found="it succeeds", holds=True),
        Check(what="retries", expected="none", found="3", holds=False),
    ]
    write_page(read_record(lossy), tmp_path / "report.html", title="two steps", checks=checks)
    shown = opened(chromium, (tmp_path / "report.html").as_uri(), axe, scheme, width)
    shown.wait_for_selector("body[data-drawn=yes]")
    finds_nothing(shown, (None, "tr.link"))


@pytest.fixture(scope="module")
def prediction(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("prediction")
    ray.init(mode="sim", nodes=3, num_cpus=2, record=directory / "run.parquet", durations="fixed")
    try:
        two_steps(4)
    finally:
        ray.shutdown()
    found = whatif.predict(directory / "run.parquet", nodes=[1, 2], cpus=[2], seeds=1, jobs=1, price=1.0)
    found.write_page(directory / "page.html", deadline="10min")
    return directory / "page.html"


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_axe_finds_nothing_in_the_page_of_a_prediction(
    chromium: Any, axe: Path, prediction: Path, scheme: str, width: int
) -> None:
    shown = opened(chromium, prediction.as_uri(), axe, scheme, width)
    shown.wait_for_selector("#chart0 svg, section svg")
    finds_nothing(shown, (None,))
