"""The live page, clicked through in a real Chromium (Debian: `apt-get install chromium`)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import dualray as ray
from dualray.dashboard.feeds import DirectoryFeed
from tests.dashboard.support import BROWSER, BROWSERS, Served, browser, served, wide_trace
from tests.report.support import simulate, two_steps

if TYPE_CHECKING:
    from playwright.sync_api import Page

WIDTHS = (400, 700, 1280, 1600)

pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason=f"no browser on PATH: install one of {', '.join(BROWSERS)}"),
    pytest.mark.timeout(180),
]


@ray.remote
class Counter:
    def add(self, amount: int) -> int:
        return amount


def work() -> Any:
    counter = Counter.remote()  # type: ignore[attr-defined]
    return two_steps(8), ray.get(counter.add.remote(1))


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as launched:
        yield launched


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("runs")
    simulate(work, directory / "calm")
    simulate(work, directory / "killed", faults=["kill node-2 when augment starts 3"])
    with served(DirectoryFeed(directory / "killed"), DirectoryFeed(directory / "calm")) as found:
        for source in (0, 1):
            found.until(lambda head: head["state"] == "over", source)
        yield found


class Opened:
    """A page that is open, and what has gone wrong in it."""

    def __init__(self, chromium: Any, link: str, **options: Any) -> None:
        self.context = chromium.new_context(viewport={"width": 1280, "height": 900}, **options)
        self.context.set_default_timeout(60_000)
        self.page: Page = self.context.new_page()
        self.wrong: list[str] = []
        self.asked: list[str] = []
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on(
            "console", lambda said: self.wrong.append(said.text) if said.type in ("error", "warning") else None
        )
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(link)
        self.page.wait_for_selector("#list tbody tr")

    def text(self, selector: str) -> str:
        return self.page.inner_text(selector)

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """The page allows no script from outside, so it is asked again and again."""
        end_s = time.monotonic() + 30
        while not holds():
            assert time.monotonic() < end_s, what
            self.page.wait_for_timeout(20)


@pytest.fixture
def opened(chromium: Any, page: Served) -> Iterator[Opened]:
    found = Opened(chromium, page.link)
    yield found
    assert found.wrong == []
    assert [url for url in found.asked if not url.startswith((f"http://{page.host}/", "data:"))] == []
    found.context.close()


def test_the_token_leaves_the_address_and_a_reload_keeps_it(opened: Opened, page: Served) -> None:
    assert opened.page.url == f"http://{page.host}/"
    opened.page.reload()
    opened.page.wait_for_selector("#list tbody tr")
    assert all("token" not in url.partition("#")[0] for url in opened.asked)


def test_a_wrong_token_is_said_to_be_one(chromium: Any, page: Served) -> None:
    context = chromium.new_context()
    shown = context.new_page()
    shown.goto(f"http://{page.host}/#token=wrong")
    shown.wait_for_selector("#error:not([hidden])")
    assert "dualray dashboard" in shown.inner_text("#error")
    context.close()


def test_what_happened_is_told_in_words_and_drawn(opened: Opened) -> None:
    opened.until(lambda: "node-2 was killed" in opened.text("#happened"), "the fault is not told")
    assert "over" in opened.text("#state")
    assert "virtual time" in opened.text("#clock")
    assert "dead" in opened.text("#nodes")
    for name in ("timeline-0", "timeline-1", "demand-0", "demand-1"):
        box = opened.page.locator(f"#{name}").bounding_box()
        assert box is not None
        assert box["width"] > 500
        colours = opened.page.evaluate(
            f"""(() => {{ const canvas = document.getElementById('{name}');
            const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
            return new Set(new Uint32Array(data.buffer)).size; }})()"""
        )
        assert colours > 3, name
    assert "1 fault." in opened.page.get_attribute("#timeline-0", "aria-label")  # type: ignore[operator]


def test_search_filter_and_sort_find_tasks(opened: Opened) -> None:
    opened.page.keyboard.press("/")
    opened.page.keyboard.type("digest node-1")
    rows = opened.page.locator("#list tbody tr")

    def shows_them_alone() -> bool:
        cells = rows.all_inner_texts()
        return bool(cells) and all("digest" in row and "node-1" in row for row in cells)

    opened.until(lambda: " of " in opened.text("#found"), "the search has found nothing")
    opened.until(shows_them_alone, "the list shows others, too")
    opened.page.fill("#search", "no such task")
    opened.until(lambda: opened.text("#found").startswith("0 of"), "the search has found something")
    opened.page.fill("#search", "")
    opened.page.select_option("#filter", "FINISHED")
    opened.until(lambda: opened.page.locator("#list tbody tr").count() > 0, "nothing has finished")
    opened.page.get_by_role("button", name="lasted").click()
    opened.page.wait_for_selector("#list th[aria-sort=ascending]")


def test_lists_of_actors_objects_workers_and_logs(opened: Opened) -> None:
    for name, words in (("actors", "Counter"), ("objects", "made by load"), ("workers", "node-0/w0")):
        opened.page.click(f"#tab-{name}")
        opened.until(lambda words=words: words in opened.text("#list"), words)  # type: ignore[misc]
    opened.page.click("#tab-logs")
    opened.until(lambda: "a simulation has none" in opened.text("#log-note"), "the logs are not explained")


def test_a_task_tells_its_story_and_leads_on(opened: Opened) -> None:
    opened.page.locator("#list tbody tr", has_text="augment").first.locator("button").click()
    opened.until(lambda: "submits it" in opened.text("#detail"), "there is no story")
    opened.page.locator("#detail-links button", has_text="worker").click()
    opened.until(lambda: opened.text("#detail-title").startswith("Worker node-"), "the link leads nowhere")
    opened.page.keyboard.press("Escape")
    assert not opened.page.evaluate("document.getElementById('detail').open")


def test_a_bar_can_be_pointed_at_clicked_zoomed_and_moved(opened: Opened) -> None:
    box = opened.page.locator("#timeline-0").bounding_box()
    assert box is not None
    span = opened.page.evaluate(
        """(() => { const run = dualray.runs[0], g = run.timeline.geometry, bars = run.bars; let best = 0;
        for (let i = 1; i < bars.count; i++) {
          if (bars.until[i] - bars.from[i] > bars.until[best] - bars.from[best]) best = i;
        }
        const middle = (bars.from[best] + bars.until[best]) / 2;
        return [84 + (middle - g.view.from) / g.span * (g.width - 84),
          18 + (bars.line[bars.row[best]] + .5) * g.each]; })()"""
    )
    opened.page.mouse.move(box["x"] + span[0], box["y"] + span[1])
    opened.page.wait_for_selector("#tip:not([hidden])")
    assert " on node-" in opened.text("#tip")
    opened.page.mouse.click(box["x"] + span[0], box["y"] + span[1])
    opened.until(lambda: opened.text("#detail-title").endswith(", task"), "the bar leads nowhere")
    opened.page.keyboard.press("Escape")
    opened.page.focus("#timeline-0")
    opened.page.keyboard.press("+")
    opened.until(lambda: " to " in opened.text("#shown"), "the keys do not zoom")
    zoomed = opened.text("#shown")
    opened.page.keyboard.press("ArrowLeft")
    opened.until(lambda: opened.text("#shown") != zoomed, "the keys do not move")
    opened.page.keyboard.press("Home")
    opened.until(lambda: opened.text("#shown") == "", "the whole run does not come back")


def test_everything_can_be_reached_by_keyboard(opened: Opened) -> None:
    reached = set()
    for _ in range(60):
        opened.page.keyboard.press("Tab")
        reached.add(opened.page.evaluate("document.activeElement.id || document.activeElement.className"))
    assert {"zoom-in", "whole", "timeline-0", "tab-tasks", "search", "filter", "id"} <= reached


def test_two_runs_stand_side_by_side(opened: Opened) -> None:
    table = opened.text("#comparison")
    assert "killed" in table
    assert "calm" in table
    assert opened.page.locator("#comparison tr", has_text="faults").inner_text().split() == ["faults", "1", "0"]
    opened.page.click("#runs button >> nth=1")
    opened.until(lambda: "No fault" in opened.text("#happened"), "the other run is not shown")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_fits_its_window_in_light_and_dark(
    chromium: Any, page: Served, width: int, scheme: str, tmp_path: Path
) -> None:
    found = Opened(chromium, page.link, color_scheme=scheme)
    found.page.set_viewport_size({"width": width, "height": 900})
    found.until(
        lambda: bool(found.page.evaluate("document.documentElement.scrollWidth <= innerWidth")),
        "the page can be scrolled sideways",
    )
    ground = found.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(243, 245, 248)" if scheme == "light" else "rgb(13, 17, 23)")
    if kept := os.environ.get("DUALRAY_SCREENSHOTS"):
        found.page.screenshot(path=Path(kept) / f"{width}_{scheme}.png", full_page=True)
    assert found.wrong == []
    found.context.close()


def test_the_page_says_when_its_server_is_gone(chromium: Any, tmp_path: Path) -> None:
    with served(DirectoryFeed(wide_trace(tmp_path, 20))) as page:
        found = Opened(chromium, page.link)
    found.until(lambda: "has ended" in found.text("#error"), "the end of the server is not said")
    found.context.close()


def test_a_hundred_thousand_tasks_are_filtered_and_drawn(
    chromium: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = 100_000
    with served(DirectoryFeed(wide_trace(tmp_path, tasks))) as page:
        page.until(lambda head: head["state"] == "over", timeout_s=120)
        found = Opened(chromium, page.link)
        found.until(lambda: found.page.evaluate("dualray.runs[0].tables.spans.size") == tasks, "not all came")
        frames = sorted(found.page.evaluate("Array.from({length: 9}, () => dualray.frame())"))
        found.page.fill("#search", "score node-17/")
        lists = sorted(found.page.evaluate("Array.from({length: 9}, () => dualray.filter())"))
        assert found.text("#found").startswith("500 of 100,000 tasks")
        found.page.focus("#timeline-0")
        for _ in range(5):
            found.page.keyboard.press("+")
        zoomed = sorted(found.page.evaluate("Array.from({length: 9}, () => dualray.frame())"))
        found.context.close()
    with capsys.disabled():
        print(
            f"\n{tasks:,} tasks: a filter takes {lists[4]:.0f} ms (at most {lists[-1]:.0f}), a frame of the timeline "
            f"{frames[4]:.0f} ms (at most {frames[-1]:.0f}), zoomed {zoomed[4]:.0f} ms"
        )
