"""Progress bars of tasks, actors and the driver, as in `ray.experimental.tqdm_ray`."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import time

import pytest

import dualray as ray
from dualray.experimental import tqdm_ray
from tests.conformance.support import eventually, get, stderr_so_far


@ray.remote(max_retries=0)
def work(name, steps, pause_s=0.0):
    bar = tqdm_ray.tqdm(desc=name, total=steps)
    for _ in range(steps):
        time.sleep(pause_s)
        bar.update(1)
    bar.close()


@ray.remote
class Walker:
    def walk(self, items):
        return sum(tqdm_ray.tqdm(items, desc="walking", unit="step"))


def test_bars_of_tasks_and_actors_reach_the_driver(start, capfd):
    start()
    walker = Walker.remote()
    assert get(walker.walk.remote([1, 2, 3])) == 6
    get([work.remote("one", 4), work.remote("two", 5)])
    for item in tqdm_ray.tqdm(iter(range(2)), desc="here"):
        assert item < 2
    eventually(lambda: stderr_so_far().count("[00:0") == 4, "the four bars are shown")
    shown = capfd.readouterr().err
    lines = sorted(re.sub(r"\[.*", "", re.sub(r"[ █#]+\|", "", line)) for line in shown.splitlines())
    assert [re.sub(r"\((\w+)[^)]*\)", r"(\1)", line) for line in lines] == [
        "(Walker) walking: 100%| 3/3 ",
        "(work) one: 100%| 4/4 ",
        "(work) two: 100%| 5/5 ",
        "here: 2it ",
    ]
    assert "3/3 [00:00<00:00, " in shown
    assert "step/s]" in shown


def test_a_bar_can_be_an_actor(start, capfd):
    """As the documentation of Ray's bars has it: many tasks advance one bar."""
    start()
    bar = ray.remote(tqdm_ray.tqdm).remote(total=5, desc="shared")

    @ray.remote
    def advance(bar):
        get(bar.update.remote(1))

    get([advance.remote(bar) for _ in range(5)])
    get(bar.close.remote())
    ray.shutdown()
    assert re.search(r"shared: 100%\|.*\| 5/5 \[", capfd.readouterr().err)


def test_without_a_terminal_a_bar_writes_few_lines(start, capfd):
    """Sixty states, one in 0.2 s, are one line at the end, or two in twelve seconds."""
    mode = start().mode
    pause_s = 0.2 if mode == "sim" else 0.02
    get(work.remote("busy", 60, pause_s))
    ray.shutdown()
    lines = [line for line in capfd.readouterr().err.splitlines() if "busy" in line]
    assert "100%" in lines[-1]
    assert len(lines) == (3 if mode == "sim" else 1)


def test_a_bar_that_is_full_and_late_says_its_end_once(start, capfd):
    pause_s = 6 if start().mode == "sim" else 0
    bar = tqdm_ray.tqdm(total=1, desc="late")
    time.sleep(pause_s)
    bar.update(1)
    bar.close()
    ray.shutdown()
    assert capfd.readouterr().err.count("late: 100%") == 1


def test_what_a_bar_cannot_be_is_said(start):
    start()
    with pytest.raises(TypeError, match="tqdm: total='ten' must be a number"):
        tqdm_ray.tqdm(total="ten")
    with pytest.raises(ValueError, match="No iterable provided"):
        list(tqdm_ray.tqdm(total=3))
    with tqdm_ray.tqdm(total=3) as bar:
        bar.total, bar.n = 5, 2
        bar.set_description("x")
        bar.refresh()
        assert (bar.total, bar.n) == (5, 2)


PROGRAM = """
import sys, time
import dualray as ray
from dualray.experimental.tqdm_ray import safe_print, tqdm

@ray.remote
def work(name, signal):
    bars = [tqdm(desc=f"{name}{i}", total=4, position=i, flush_interval_s=0) for i in range(2)]
    for bar in bars:
        bar.update(2)
    print("printed by", name, flush=True)
    ray.get(signal[0])
    for bar in bars:
        bar.close()

@ray.remote
def opened():
    time.sleep(0.5)

ray.init(mode=sys.argv[1], num_cpus=3)
signal = [opened.remote()]
refs = [work.remote(name, signal) for name in ("a", "b")]
bar = tqdm(refs, desc="all", flush_interval_s=0)
for ref in bar:
    ray.get(ref)
    print("one is there", len(refs))
ray.shutdown()
safe_print("the end")
print("again", file=sys.stderr)
"""


def screen(printed):
    """What a terminal shows: the sequences that the bars use, and nothing else."""
    rows, row, column = [""], 0, 0
    for token in re.findall(r"\x1b\[\d*[AJ]|[\r\n]|[^\x1b\r\n]+", printed):
        if token == "\r":
            column = 0
        elif token == "\n":
            row += 1
            rows += [""] * (row + 1 - len(rows))
        elif token.endswith("A") and token[0] == "\x1b":
            row -= int(token[2:-1] or 1)
        elif token == "\x1b[J":
            rows[row] = rows[row][:column]
            del rows[row + 1 :]
        else:
            rows[row] = rows[row][:column].ljust(column) + token + rows[row][column + len(token) :]
            column += len(token)
    return [text for text in rows if text]


def test_on_a_terminal_bars_stand_below_what_is_printed(mode, tmp_path):
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, str(script), mode],
        stdout=theirs,
        stderr=theirs,
        stdin=subprocess.DEVNULL,
        env=os.environ | {"COLUMNS": "100", "LINES": "40", "PYTHONIOENCODING": "utf-8"},
    ) as program:
        os.close(theirs)
        printed = b""
        try:
            while data := os.read(ours, 65536):
                printed += data
        except OSError:  # the program has ended
            pass
        os.close(ours)
    assert program.returncode == 0
    text = printed.decode()
    assert text.count("\x1b[J") > 2
    rows = [re.sub(r"^\([^)]*\) ", "", row) for row in screen(text)]
    assert sorted(row for row in rows if "|" not in row) == [
        *("again", "one is there 2", "one is there 2", "printed by a", "printed by b", "the end")
    ]
    bars = sorted(re.sub(r":.*\| (\d/\d) .*", r" \1", row) for row in rows if "|" in row)
    assert bars == ["a0 2/4", "a1 2/4", "all 2/2", "b0 2/4", "b1 2/4"]
