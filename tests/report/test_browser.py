"""The page in a real browser: it draws without the network, and answers to clicks, search and zoom.

Skipped where no Chromium is installed (Debian: `apt-get install chromium`).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import dualray as ray
from dualray.report.page import Check, write_page
from dualray.report.record import read_record
from tests.report.support import MIB, simulate

if TYPE_CHECKING:
    from playwright.sync_api import Page

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)

VIEWPORT: Any = {"width": 1400, "height": 1000}

pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason=f"no browser on PATH: install one of {', '.join(BROWSERS)}"),
    pytest.mark.timeout(180),
]


@ray.remote(duration=0.5, scheduling_strategy="SPREAD", max_retries=-1)
def half(array: Any = None) -> Any:
    return np.zeros(MIB) if array is None else array + 1


@ray.remote(duration=1.0)
def total(*arrays: Any) -> float:
    return float(sum(array.sum() for array in arrays))


def work() -> float:
    result: float = ray.get(total.remote(*[half.remote(half.remote()) for _ in range(12)]))
    return result


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("report")
    simulate(work, directory / "log", faults=["reboot node-2 when half starts 10 for 3s"])
    checks = [Check(what="ending", expected="it succeeds", found="it succeeds", holds=True)]
    path = directory / "report.html"
    write_page(read_record(directory / "log"), path, title="two steps", checks=checks)
    return path


@pytest.fixture(scope="module")
def drawn(browser: Any, report: Path) -> Iterator[Page]:
    """The page, drawn; at the end: it has asked for nothing, and nothing has gone wrong in it."""
    context = browser.new_context(viewport=VIEWPORT, offline=True)
    context.set_default_timeout(60_000)
    page = context.new_page()
    wrong: list[str] = []
    asked: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    page.on("request", lambda request: asked.append(request.url))
    page.goto(report.as_uri())
    page.wait_for_selector("body[data-drawn=yes]")
    yield page
    assert [url for url in asked if not url.startswith(("data:", "blob:", report.as_uri()))] == []
    assert wrong == []
    context.close()


@pytest.fixture
def shown(drawn: Page) -> Page:
    """The page as it looks when it has just been opened."""
    drawn.set_viewport_size(VIEWPORT)
    drawn.fill("#search", "")
    drawn.keyboard.press("Escape")
    drawn.click("#reset")
    drawn.evaluate("window.scrollTo(0, 0)")
    return drawn


def text_of(page: Page, selector: str) -> str:
    return page.inner_text(selector)


def is_open(page: Page) -> bool:
    return bool(page.evaluate("document.getElementById('story').classList.contains('open')"))


def axis_range(page: Page) -> list[float]:
    found: list[float] = page.evaluate("view")
    return found


def boxes_of_bars(page: Page) -> list[list[float]]:
    """Where the bars of the chart of tasks are in the window: x, y, width, height."""
    found: list[list[float]] = page.evaluate(
        """() => { const canvas = byId("gantt"), at = canvas.getBoundingClientRect(), chart = run.figures.gantt;
        return chart.bars.map((bar) => { const [x, y, w, h] = barBox(canvas, chart, view, bar);
        return [x + at.left, y + at.top, w, h]; }); }"""
    )
    return found


def colours_of(page: Page, name: str) -> int:
    """How many colours a chart has: one that drew nothing has one."""
    found: int = page.evaluate(
        """(name) => { const canvas = byId(name);
        const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
        const seen = new Set();
        for (let i = 0; i < data.length; i += 4) seen.add(data[i] << 16 | data[i+1] << 8 | data[i+2]);
        return seen.size; }""",
        name,
    )
    return found


def test_every_chart_is_drawn(shown: Page):
    for name in ("gantt", "path", "where", "usage"):
        box = shown.locator(f"#{name}").bounding_box()
        assert box is not None
        assert box["width"] > 800
        assert box["height"] > 60
        assert name == "where" or colours_of(shown, name) > 5
    assert len(boxes_of_bars(shown)) >= 25
    assert shown.locator("#where .share").count() == 5  # the path, all CPUs, three nodes
    assert shown.locator("#functions li").all_inner_texts() == ["half", "total"]
    assert "all expectations hold" in text_of(shown, "header")
    width = shown.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert width[0] <= width[1], "the page can be scrolled sideways"


def test_click_on_a_bar_tells_its_story(shown: Page):
    x, y, width, height = next(box for box in boxes_of_bars(shown) if box[2] > 20)
    shown.mouse.move(x + width / 2, y + height / 2)
    shown.wait_for_selector("#tip:not([hidden])")
    assert "attempt 0" in text_of(shown, "#tip")
    shown.mouse.click(x + width / 2, y + height / 2)
    shown.wait_for_selector("#story.open")
    story = text_of(shown, "#story")
    assert "driver-1 submits the task." in story
    assert "starts on node-" in story
    shown.click("#close")
    assert not is_open(shown)


def test_search_finds_a_task_by_name_and_by_id(shown: Page):
    shown.fill("#search", "total")
    shown.press("#search", "Enter")
    shown.wait_for_selector("#story.open")
    assert text_of(shown, "#title").startswith("total, task")
    assert "found" in text_of(shown, "#found")
    task = text_of(shown, "#id")
    shown.keyboard.press("Escape")
    assert not is_open(shown)
    shown.fill("#search", task)
    shown.press("#search", "Enter")
    shown.wait_for_selector("#story.open")
    assert text_of(shown, "#id") == task
    shown.fill("#search", "no such thing")
    shown.press("#search", "Enter")
    shown.wait_for_function("document.getElementById('found').textContent === '0 found'")
    assert not is_open(shown)


def test_row_of_the_critical_path_tells_its_story(shown: Page):
    shown.locator("tr[data-task]").first.click()
    shown.wait_for_selector("#story.open")
    assert len(text_of(shown, "#id")) == 32


def test_zoom_of_one_chart_moves_all_and_the_button_brings_the_whole_run_back(shown: Page):
    whole = axis_range(shown)
    before = shown.evaluate("['path', 'usage'].map((name) => byId(name).toDataURL())")
    box = shown.locator("#gantt").bounding_box()
    assert box is not None
    y = box["y"] + box["height"] * 0.6
    shown.mouse.move(box["x"] + box["width"] * 0.2, y)
    shown.mouse.down()
    shown.mouse.move(box["x"] + box["width"] * 0.6, y, steps=8)
    assert shown.locator("#gantt + .mark").is_visible()
    shown.mouse.up()
    zoomed = axis_range(shown)
    assert whole[0] < zoomed[0] < zoomed[1] < whole[1]
    after = shown.evaluate("['path', 'usage'].map((name) => byId(name).toDataURL())")
    assert all(old != new for old, new in zip(before, after, strict=True))
    shown.click("#reset")
    assert axis_range(shown) == whole
    assert shown.evaluate("['path', 'usage'].map((name) => byId(name).toDataURL())") == before


def test_keys_move_and_zoom_the_charts(shown: Page):
    whole = axis_range(shown)
    shown.focus("#path")
    shown.keyboard.press("+")
    shown.keyboard.press("+")
    near = axis_range(shown)
    assert near[1] - near[0] == pytest.approx((whole[1] - whole[0]) / 4)
    shown.keyboard.press("ArrowRight")
    assert axis_range(shown)[0] > near[0]
    shown.keyboard.press("ArrowLeft")
    assert axis_range(shown) == pytest.approx(near)
    for _ in range(40):
        shown.keyboard.press("ArrowRight")
    assert axis_range(shown)[1] == pytest.approx(whole[1]), "it cannot leave the run"
    shown.keyboard.press("0")
    assert axis_range(shown) == whole


def test_page_has_a_dark_look(shown: Page):
    light = shown.evaluate("getComputedStyle(document.body).backgroundColor")
    chart = shown.evaluate("byId('gantt').toDataURL()")
    shown.emulate_media(color_scheme="dark")
    shown.wait_for_function(f"getComputedStyle(document.body).backgroundColor !== '{light}'")
    shown.wait_for_function("(chart) => byId('gantt').toDataURL() !== chart", arg=chart)
    shown.emulate_media(color_scheme="light")


def test_page_fits_a_narrow_window(shown: Page):
    shown.set_viewport_size({"width": 400, "height": 900})
    shown.wait_for_function("document.documentElement.scrollWidth <= window.innerWidth")
