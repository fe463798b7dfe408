"""The live page, clicked through in a real Chromium (Debian: `apt-get install chromium`)."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

import dualray as ray
from dualray.dashboard.feeds import DirectoryFeed
from dualray.report.critical_path import critical_path
from dualray.report.drawings import Clock
from dualray.report.headline import headline
from dualray.report.histories import Lives
from dualray.report.page import write_page
from dualray.report.record import read_record
from dualray.report.summary import summary
from dualray.report.traces import read_traces
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
    simulate(work, directory / "killed", faults=["kill node-2 when augment starts 1"])
    with served(DirectoryFeed(directory / "killed"), DirectoryFeed(directory / "calm")) as found:
        found.directories = {name: directory / name for name in ("killed", "calm")}
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
    assert "ended" in opened.text("#state")
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
    opened.until(lambda: "A simulation has none" in opened.text("#log-note"), "the logs are not explained")


def test_a_task_tells_its_story_and_leads_on(opened: Opened) -> None:
    opened.page.locator("#list tbody tr", has_text="augment").first.locator("button").click()
    opened.until(lambda: "submits the task" in opened.text("#detail"), "there is no story")
    opened.page.locator("#detail-links button", has_text="worker").click()
    opened.until(lambda: opened.text("#detail-title").startswith("Worker node-"), "the link leads nowhere")
    opened.page.keyboard.press("Escape")
    assert not opened.page.evaluate("document.getElementById('detail').open")


def test_a_sentence_leads_to_the_node_and_the_tasks_that_were_lost(opened: Opened) -> None:
    opened.until(lambda: "node-2 was killed" in opened.text("#happened"), "the fault is not told")
    fault = opened.page.locator("#happened li", has_text="was killed").first
    assert "The head detected this at" in fault.inner_text()
    assert re.search(r"Cost: .* of work was lost, and \d+ tasks ran again, for", fault.inner_text())
    assert opened.page.locator("#happened li", has_text="detected that node-2 is dead").count() == 1
    fault.get_by_role("button", name="augment").first.click()
    opened.until(lambda: opened.text("#detail-title") == "augment, task", "the task is not shown")
    opened.page.locator("#detail-links button", has_text="node-").last.click()
    opened.until(lambda: opened.text("#detail-title").endswith(", node"), "the node is not shown")
    opened.page.keyboard.press("Escape")
    fault.get_by_role("button", name="node-2", exact=True).click()
    opened.until(lambda: opened.text("#detail-title") == "node-2, node", "the node is not shown")


def test_a_node_tells_since_when_why_what_ran_and_what_was_lost(opened: Opened) -> None:
    opened.page.focus("#nodes button[data-id=node-2]")
    opened.page.keyboard.press("Enter")
    opened.until(lambda: opened.text("#detail-title") == "node-2, node", "the node has no dialog")
    names, values = (opened.page.locator(f"#detail-fields {each}").all_inner_texts() for each in ("dt", "dd"))
    fields = dict(zip(names, values, strict=True))
    assert fields["state"] == "dead"
    assert fields["why it ended"] == "killed by a fault"
    assert "later" in fields["the head detected it"]
    assert "finished" in fields["what ran there"]
    assert fields["attempts lost there"] == "1"
    assert "only copies" in fields["objects lost there"]
    opened.page.locator("#detail-links button", has_text="made by").first.click()
    opened.until(lambda: opened.text("#detail-title").startswith("Object made by"), "the object is not shown")


def test_lost_attempts_can_be_filtered(opened: Opened) -> None:
    opened.page.click("#tab-spans")
    opened.until(lambda: "attempts" in opened.text("#found"), "there are no attempts")
    opened.page.select_option("#filter", "LOST_ATTEMPT")
    opened.until(lambda: " of " in opened.text("#found"), "nothing was filtered")
    rows = opened.page.locator("#list tbody tr").all_inner_texts()
    assert rows
    assert all("lost with its worker or node" in row and "node-2" in row for row in rows)
    opened.page.click("#tab-tasks")
    opened.page.locator("#happened li", has_text="was killed").first.get_by_role(
        "button", name="all lost attempts"
    ).click()
    opened.until(lambda: opened.page.input_value("#filter") == "LOST_ATTEMPT", "the link does not filter")
    opened.until(lambda: opened.page.locator("#list tbody tr").all_inner_texts() == rows, "it shows other attempts")
    opened.page.click("#tab-actors")
    opened.until(lambda: "Counter" in opened.text("#list"), "what the link searched for hides the actors")


def test_a_run_that_is_over_says_why_it_took_so_long_as_its_report_does(opened: Opened, page: Served) -> None:
    opened.until(lambda: opened.text("#answers").count("took") == 2, "it does not say why it took so long")
    record = read_record(page.directories["killed"])
    lives = Lives(record)
    sentence = headline(lives, critical_path(lives), summary(record.events), Clock.of(lives))
    assert f"killed: {sentence}" in opened.text("#answers")


def test_colours_are_those_of_the_report(opened: Opened, page: Served) -> None:
    report = page.directories["killed"].with_name("report.html")
    write_page(read_record(page.directories["killed"]), report)
    colours = dict(opened.page.evaluate("[...dualray.runs[0].colours]"))
    shown = opened.context.new_page()
    shown.goto(report.as_uri())
    legend = (
        "[...document.querySelectorAll('.legend i')].map(i => [i.parentElement.innerText.trim(), i.style.background])"
    )
    of_report = {name: colour for name, colour in shown.evaluate(legend) if name in colours}
    assert of_report.keys() >= {"load", "augment", "digest"}
    of_page = dict(opened.page.evaluate(legend.replace(".legend i", "#legend i")))
    assert of_report == {name: of_page[name] for name in of_report}
    shown.close()


def test_a_bar_can_be_pointed_at_clicked_zoomed_and_moved(opened: Opened) -> None:
    place = [0.0, 0.0]

    def points_at_the_longest_bar() -> bool:
        """Move the mouse there. The page may draw anew between the question where the bar is and the move."""
        box = opened.page.locator("#timeline-0").bounding_box()
        assert box is not None
        across, down = opened.page.evaluate(
            """(() => { const run = dualray.runs[0], g = run.timeline.geometry, bars = run.bars; let best = 0;
            for (let i = 1; i < bars.count; i++) {
              if (bars.until[i] - bars.from[i] > bars.until[best] - bars.from[best]) best = i;
            }
            const middle = (bars.from[best] + bars.until[best]) / 2;
            return [84 + (middle - g.view.from) / g.span * (g.width - 84),
              24 + (bars.line[bars.row[best]] + .5) * g.each]; })()"""
        )
        place[:] = [box["x"] + across, box["y"] + down]
        opened.page.mouse.move(*place)
        return bool(opened.page.locator("#tip:not([hidden])").count())

    opened.until(points_at_the_longest_bar, "the bar says nothing")
    assert " on node-" in opened.text("#tip")
    opened.page.mouse.click(*place)
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


def test_the_focus_stays_on_a_node_when_the_table_is_drawn_anew(opened: Opened) -> None:
    button = opened.page.wait_for_selector("#nodes button[data-id=node-2]")
    assert button is not None
    opened.page.focus("#nodes button[data-id=node-2]")
    opened.page.evaluate("window.dispatchEvent(new Event('resize'))")
    opened.until(lambda: not button.evaluate("(each) => each.isConnected"), "nothing was drawn")
    assert opened.page.evaluate("document.activeElement.dataset.id") == "node-2"


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


def test_a_table_that_is_wider_than_a_phone_shows_at_which_edge_it_goes_on(chromium: Any, page: Served) -> None:
    found = Opened(chromium, page.link, color_scheme="light")
    found.page.set_viewport_size({"width": 400, "height": 900})
    nodes, listed = found.page.locator(".wide:has(#nodes)"), found.page.locator(".wide:has(#list)")
    assert nodes.locator(".meter").first.is_hidden()
    assert listed.evaluate("it => it.scrollWidth > it.clientWidth")
    at_start = _brightness_of_edges(listed)
    listed.evaluate("it => { it.scrollLeft = it.scrollWidth }")
    found.until(lambda: _brightness_of_edges(listed) != at_start, "the table does not scroll")
    at_end = _brightness_of_edges(listed)
    assert at_start[1] < at_start[0] - 10, "no shadow at the right edge of a table that goes on there"
    assert at_end[0] < at_end[1] - 10, "no shadow at the left edge of a table that goes on there"
    assert found.wrong == []
    found.context.close()


def test_each_node_is_shown_whole_on_a_phone(chromium: Any, page: Served) -> None:
    found = Opened(chromium, page.link, color_scheme="light")
    found.page.set_viewport_size({"width": 400, "height": 900})
    table = found.page.locator(".wide:has(#nodes)")
    found.until(lambda: bool(table.evaluate("it => it.scrollWidth <= it.clientWidth")), "the table hides something")
    # One evaluation a reading: the page writes its rows anew each second, and a row may go between two questions.
    lasts = found.page.evaluate(
        """() => [...document.querySelectorAll('#nodes tbody tr')].map((row) => {
          const { left, right } = row.lastElementChild.getBoundingClientRect();
          return { node: row.innerText, said: row.lastElementChild.innerText, left, right }; })"""
    )
    (dead,) = (last for last in lasts if "node-2" in last["node"])
    assert "node-0" in lasts[0]["node"]
    for last in (dead, lasts[0]):
        assert 0 < last["left"] < last["right"] <= 400
    assert "dead since" in dead["said"]
    found.page.set_viewport_size({"width": 1280, "height": 900})
    heads = found.page.locator("#nodes thead th").all_inner_texts()
    found.until(lambda: found.page.locator("#nodes thead").bounding_box()["height"] > 10, "no heads")  # type: ignore[index]
    assert heads[-1] == "alive or dead since"
    assert found.wrong == []
    found.context.close()


def test_the_mark_of_a_fault_leaves_the_times_above_it_readable(chromium: Any, page: Served) -> None:
    """The fault comes 7 ms after the beginning of 6 s: its mark stands under the label of 0 s."""
    found = Opened(chromium, page.link, color_scheme="light")
    red = """(from, until) => {
      const canvas = document.getElementById('timeline-0'), ratio = canvas.width / canvas.clientWidth;
      const place = [64, from, 40, until - from].map((each) => each * ratio);
      const { data } = canvas.getContext('2d').getImageData(...place);
      let found = 0;
      for (let at = 0; at < data.length; at += 4) if (data[at + 3] && data[at] - data[at + 1] > 60) found++;
      return found; }"""
    reds = f"[({red})(0, 14), ({red})(14, 24)]"
    found.until(lambda: found.page.evaluate(reds)[1] > 0, "the fault has no mark")
    assert found.page.evaluate(reds)[0] == 0, "the mark lies on the label"
    found.context.close()


def _brightness_of_edges(shown: Any) -> tuple[float, float]:
    """The median brightness, 0 to 255, of the columns of pixels at the left and at the right edge."""
    pixels = np.asarray(Image.open(io.BytesIO(shown.screenshot())).convert("L"))
    return float(np.median(pixels[:, :2])), float(np.median(pixels[:, -2:]))


def test_the_page_says_when_its_server_is_gone(chromium: Any, tmp_path: Path) -> None:
    with served(DirectoryFeed(wide_trace(tmp_path, 20))) as page:
        found = Opened(chromium, page.link)
    found.until(lambda: "has ended" in found.text("#error"), "the end of the server is not said")
    found.context.close()


def test_a_simulation_that_rests_says_at_which_time_and_who_waits_for_an_actor(chromium: Any, tmp_path: Path) -> None:
    """It calls a method of an actor that is busy for minutes; the page shows the time that the clock has reached."""
    script, log, output = tmp_path / "rests.py", tmp_path / "log", tmp_path / "output"
    script.write_text(RESTS)
    log.mkdir()
    with output.open("wb") as sink:
        program = subprocess.Popen(
            [sys.executable, str(script), str(log)], stdout=sink, stderr=sink, env={**os.environ, "DUALRAY_PACE": "20"}
        )
    with served(DirectoryFeed(log, program=program, output=output)) as page:
        found = Opened(chromium, page.link)
        found.until(lambda: "at most 20 s of virtual time" in found.text("#clock"), "the pace is not said")
        found.until(
            lambda: 'waits for its turn at its actor Busy "one"' in found.text("#waits"), "the actor is not named"
        )
        assert 'waits for its turn at its actor Busy "one", since ' in found.text("#list")
        found.page.select_option("#filter", "WAITS_FOR_ACTOR")
        found.until(lambda: "2 of 4 tasks" in found.text("#found"), "who waits for an actor cannot be found")
        found.until(lambda: float(found.text("#clock").split()[0]) >= 600, "the time at which it rests is not shown")
        assert "running" in found.text("#state")
        moment = found.page.evaluate(
            "[document.getElementById('clock').innerText, document.getElementById('waits').innerText]"
        )
        now_s, since_s = float(moment[0].split()[0]), float(re.search(r"for ([\d.]+) s", moment[1])[1])  # type: ignore[index]
        assert 0 <= now_s - since_s < 1, "the page shows two moments"
        assert read_traces(log)[-1].time_ns / 1e9 < now_s - 1, "the trace alone would say which time it is"
        found.context.close()


RESTS = """
import sys

import dualray as ray


@ray.remote
class Busy:
    @ray.method(duration=600.0)
    def work(self):
        return 1


ray.init(mode="sim", num_cpus=2, decision_log=sys.argv[1])
busy = Busy.options(name="one").remote()
ray.get([busy.work.remote() for _ in range(3)])
"""


def test_what_happened_follows_a_run_and_shows_its_cause_at_the_end(chromium: Any, tmp_path: Path) -> None:
    script, log, output = tmp_path / "loses.py", tmp_path / "log", tmp_path / "output"
    script.write_text(LOSES)
    log.mkdir()
    with output.open("wb") as sink:
        program = subprocess.Popen(
            [sys.executable, str(script), str(log)], stdout=sink, stderr=sink, env={**os.environ, "DUALRAY_PACE": "3"}
        )
    with served(DirectoryFeed(log, program=program, output=output)) as page:
        found = Opened(chromium, page.link)

        def scrolled() -> int:
            return int(found.page.evaluate("document.getElementById('happened').scrollTop"))

        found.until(lambda: scrolled() > 0, "the newest sentence is not shown while the run goes on")
        assert "running" in found.text("#state")
        found.until(lambda: "ended" in found.text("#state"), "the run does not end")
        found.until(lambda: scrolled() == 0, "the first sentence is out of sight")
        found.context.close()


LOSES = """
import sys

import dualray as ray


@ray.remote(max_retries=-1, duration=1.0)
def work():
    return 1


faults = [f"kill worker when work starts {4 * number} after 500ms" for number in range(1, 13)]
ray.init(mode="sim", nodes=2, num_cpus=2, decision_log=sys.argv[1], faults=faults)
ray.get([work.remote() for _ in range(50)])
ray.shutdown()
"""


@pytest.mark.parametrize("tasks", [10_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_many_tasks_are_filtered_and_drawn(
    chromium: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], tasks: int
) -> None:
    with served(DirectoryFeed(wide_trace(tmp_path, tasks))) as page:
        page.until(lambda head: head["state"] == "over", timeout_s=120)
        found = Opened(chromium, page.link)
        found.until(lambda: found.page.evaluate("dualray.runs[0].tables.spans.size") == tasks, "not all came")
        frames = sorted(found.page.evaluate("Array.from({length: 9}, () => dualray.frame())"))
        found.page.fill("#search", "score node-17/")
        lists = sorted(found.page.evaluate("Array.from({length: 9}, () => dualray.filter())"))
        assert found.text("#found").startswith(f"{tasks // 200} of {tasks:,} tasks")
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
