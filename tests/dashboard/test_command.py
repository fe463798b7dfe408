"""`dualray dashboard` as a user types it: what it refuses, what it prints, and what it leaves when it ends."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from http.client import HTTPConnection
from pathlib import Path

import pytest

from dualray.cli import dashboard
from tests.cli.test_app import in_process
from tests.report.support import simulate, two_steps

SCRIPT = """
import sys
import dualray as ray


@ray.remote(duration=1.0)
def step(number):
    return number


ray.init(num_cpus=1)
print("arguments:", sys.argv[1:])
ray.get([step.remote(number) for number in range(5)])
"""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["no-such-run"], "'no-such-run' does not exist"),
        (["no-such.yaml"], "there is no file 'no-such.yaml'"),
        (["--no-such-option"], "no option '--no-such-option'"),
        (["--pace", "0"], "--pace 0.0 must be more than 0"),
        (["{empty}"], "decision_log="),
        (["{log}", "{log}", "{log}"], "at most 2 runs side by side"),
        (["{log}", "--host", "203.0.113.1"], "the dashboard cannot listen at 203.0.113.1"),
    ],
)
def test_what_cannot_be_shown_is_refused_with_the_way_out(tmp_path: Path, words: list[str], said: str) -> None:
    (tmp_path / "empty").mkdir()
    simulate(lambda: two_steps(1), tmp_path / "log")
    places = {"empty": tmp_path / "empty", "log": tmp_path / "log"}
    assert said in in_process("dashboard", *[word.format(**places) for word in words], code=2)


def test_without_the_extra_its_name_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard, "EXTRA", ("starlette_that_is_not_there", "uvicorn"))
    assert "pip install 'dualray[dashboard]'" in in_process("dashboard", code=2)


ENDINGS = (signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow))


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_script_is_started_shown_and_cleared_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: signal.Signals
) -> None:
    made = tmp_path / "made"
    made.mkdir()
    script = tmp_path / "steps.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "dualray", "dashboard", "--pace", "2"]
    monkeypatch.setenv("TMPDIR", str(made))
    shown = subprocess.Popen(
        [*command, str(script), "--mode", "sim", "--given", "7"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with shown:
        try:
            assert shown.stdout is not None
            line = shown.stdout.readline()
            link = re.search(r"http://127\.0\.0\.1:(\d+)/#token=(\S+)", line)
            assert link is not None, (line, shown.poll())
            connection = HTTPConnection("127.0.0.1", int(link[1]), timeout=30)
            head: dict[str, object] = {}
            while not head.get("finished"):
                connection.request("GET", "/api/0/changes", headers={"x-dualray-token": link[2]})
                head = json.loads(connection.getresponse().read())["head"]
                assert head["error"] == ""
            assert head["name"] == "steps.py"
            connection.request("GET", "/api/0/log?name=what+the+program+printed", headers={"x-dualray-token": link[2]})
            assert "arguments: ['--given', '7']" in json.loads(connection.getresponse().read())["text"]
            connection.close()
            shown.send_signal(ending)
            rest, errors = shown.communicate(timeout=60)
            assert (shown.returncode, errors) == (0, "")
            assert link[2] not in rest
            assert list(made.iterdir()) == []
        finally:
            shown.kill()  # if a check has failed


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_dashboard_that_ends_while_its_script_runs_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: signal.Signals
) -> None:
    made = tmp_path / "made"
    made.mkdir()
    script = tmp_path / "steps.py"
    script.write_text(SCRIPT)
    monkeypatch.setenv("TMPDIR", str(made))
    command = [sys.executable, "-m", "dualray", "dashboard", "--pace", "0.01", str(script), "--mode", "sim"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as shown:
        try:
            assert shown.stdout is not None
            assert "/#token=" in shown.stdout.readline()
            output = next(made.glob("dualray-dashboard-*")) / "output"
            while "arguments:" not in output.read_text():
                time.sleep(0.05)
            shown.send_signal(ending)
            assert shown.wait(60) == 0
            assert list(made.iterdir()) == []
        finally:
            shown.kill()  # if a check has failed


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_the_dashboard_serves_ends_it_without_a_warning(tmp_path: Path, ending: signal.Signals) -> None:
    simulate(lambda: two_steps(1), tmp_path / "log")
    command = [sys.executable, "-m", "dualray", "dashboard", str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as shown:
        try:
            assert shown.stdout is not None
            assert "/#token=" in shown.stdout.readline()
            shown.send_signal(ending)
            assert (shown.communicate(timeout=60)[1], shown.returncode) == ("", 0)
        finally:
            shown.kill()  # if a check has failed
