"""Debuggers, coverage and profilers work inside simulated tasks and actors as in plain code; each is really run."""

from __future__ import annotations

import json
import os
import pstats
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TIMEOUT_S = 60
PROGRAM = """\
import sys

import dualray as ray


def busy(rounds):
    total = 0
    for number in range(rounds):
        total += number
    return total


@ray.remote
def child(number):
    secret = number + 40
    if "break" in sys.argv and number == 2:
        breakpoint()
    return secret


@ray.remote
def parent(count):
    busy(10)
    values = ray.get([child.remote(number) for number in range(count)])
    busy(10)
    return sum(values)


@ray.remote
class Counter:
    def __init__(self):
        self.count = 0

    def add(self, amount):
        self.count += amount
        if amount > 100:
            return "never"
        return self.count


def main():
    ray.init(nodes=2)
    counter = Counter.remote()
    print(ray.get([parent.remote(3) for _ in range(4)]))
    print(ray.get([counter.add.remote(2) for _ in range(3)]))
    ray.shutdown()


main()
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def environment() -> dict[str, str]:
    outside = {
        name: value for name, value in os.environ.items() if not name.startswith(("DUALRAY_", "COVERAGE_", "PYTEST_"))
    }
    return outside | {"DUALRAY_MODE": "sim", "PYTHONPATH": str(ROOT), "PYTHONBREAKPOINT": "", "TERM": "dumb"}


def run(*arguments: str, cwd: Path, typed: str = "", code: int = 0) -> str:
    """What a Python command prints, with `typed` on its standard input."""
    done = subprocess.run(
        [sys.executable, *arguments],
        input=typed,
        capture_output=True,
        text=True,
        env=environment(),
        cwd=cwd,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


# ---- Debuggers -----------------------------------------------------------------------------------------------------


def test_breakpoint_in_a_task(program: Path):
    """Four tasks stop there, one after the other; the first is looked at, and the program goes on."""
    typed = "p secret, number\nup\np len(args)\ndown\nnext\ncontinue\n" + "continue\n" * 3
    said = run(str(program), "break", cwd=program.parent, typed=typed)
    assert said.count("program.py(") >= 4
    assert "(42, 2)" in said
    assert "[123, 123, 123, 123]" in said


@pytest.mark.slow
def test_what_is_changed_in_the_debugger_is_what_the_task_goes_on_with(program: Path):
    typed = "!secret = 1042\ncontinue\n" + "continue\n" * 3
    assert "[1123, 123, 123, 123]" in run(str(program), "break", cwd=program.parent, typed=typed)


def test_pdb_sets_breakpoints_in_tasks_and_methods(program: Path):
    """`python -m pdb`: from the first line on, with breakpoints in a task's body and in an actor's method."""
    line = PROGRAM.splitlines().index("    secret = number + 40") + 1
    method = PROGRAM.splitlines().index("        self.count += amount") + 1
    typed = f"break {line}, number == 1\ntbreak {method}\ncontinue\np number\nwhere\nclear 1\n"
    typed += "continue\np self.count\ncontinue\nquit\n"
    said = run("-m", "pdb", str(program), cwd=program.parent, typed=typed)
    assert "(Pdb) 1\n" in said
    assert "child()" in said
    assert f"program.py({method})add()" in said
    assert "(Pdb) 0\n" in said
    assert "[2, 4, 6]" in said


def test_a_debugger_on_a_terminal(program: Path):
    """The same through a pseudo-terminal, as a person sees it: prompt, answer, prompt."""
    ours, theirs = pty.openpty()
    command = [sys.executable, str(program), "break"]
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment(), cwd=program.parent
    )
    os.close(theirs)
    try:
        shown = talk(ours, ["p secret", "continue", "continue", "continue", "continue"])
        assert process.wait(TIMEOUT_S) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert "(Pdb) p secret\r\n42\r\n(Pdb) " in shown
    assert "[123, 123, 123, 123]" in shown


def talk(terminal: int, lines: list[str]) -> str:
    """Type a line at each prompt, and read until the other side hangs up."""
    shown, deadline_s = "", time.monotonic() + TIMEOUT_S
    waiting = list(lines)
    while time.monotonic() < deadline_s:
        if waiting and shown.count("(Pdb) ") > len(lines) - len(waiting):
            os.write(terminal, (waiting.pop(0) + "\n").encode())
        if not select.select([terminal], [], [], 0.1)[0]:
            continue
        try:
            read = os.read(terminal, 4096)
        except OSError:  # on Linux the end of a terminal whose other side is closed
            break
        if not read:
            break
        shown += read.decode()
    return shown


def test_pytests_debugger(tmp_path: Path):
    """`breakpoint()` in a task under pytest, which gives its terminal back; and `--pdb` after a failure in a task."""
    (tmp_path / "test_it.py").write_text(
        """\
import pytest

import dualray as ray


@pytest.fixture(autouse=True)
def cluster():
    ray.init(nodes=2)
    yield
    ray.shutdown()


@ray.remote
def stops(number):
    secret = number + 40
    breakpoint()
    return secret


@ray.remote
def fails(number):
    secret = number + 60
    raise ValueError(secret)


def test_stops():
    assert ray.get(stops.remote(2)) == 43


def test_fails():
    expected = 67
    ray.get(fails.remote(7))
"""
    )
    typed = "p secret\n!secret += 1\ncontinue\n"
    said = run("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py::test_stops", cwd=tmp_path, typed=typed)
    assert "(Pdb) 42" in said
    assert "1 passed" in said
    command = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--pdb", "test_it.py::test_fails")
    said = run(*command, cwd=tmp_path, typed="up\np locals().get('expected')\n" * 8 + "quit\n", code=2)
    assert "raise ValueError(secret)" in said
    assert "TaskError(ValueError)" in said
    assert "(Pdb) 67" in said


# ---- Coverage and profiles -----------------------------------------------------------------------------------------


def test_coverage(program: Path):
    coverage = ("-m", "coverage")
    run(*coverage, "run", "--concurrency=greenlet", "--include=program.py", str(program), cwd=program.parent)
    run(*coverage, "json", "-o", "found.json", cwd=program.parent)
    found = json.loads((program.parent / "found.json").read_text())
    [file] = found["files"].values()
    lines = PROGRAM.splitlines()
    missing = [lines[number - 1].strip() for number in file["missing_lines"]]
    assert missing == ["breakpoint()", 'return "never"']


@pytest.mark.slow
def test_coverage_that_would_miss_tasks_says_so(program: Path):
    said = run("-m", "coverage", "run", "--include=program.py", str(program), cwd=program.parent)
    if "--concurrency=greenlet" not in said:
        assert sys.version_info >= (3, 12)  # coverage may measure with sys.monitoring there, which knows no threads
    else:
        assert "UserWarning: coverage traces threads" in said


def test_cprofile(program: Path):
    """Calls are counted once each, also of tasks that wait in the middle, and of workers that have copies of one
    function; and time goes to who has used it."""
    run("-m", "cProfile", "-o", "found.prof", str(program), cwd=program.parent)
    stats = pstats.Stats(str(program.parent / "found.prof")).stats  # type: ignore[attr-defined]  # typeshed lacks it
    calls = {
        name: count for (file, _, name), (_, count, *_) in stats.items() if file == "program.py" or file == str(program)
    }
    expected = {"busy": 8, "child": 12, "parent": 4, "__init__": 1, "add": 3, "main": 1}
    assert {name: calls.get(name) for name in expected} == expected


@pytest.mark.slow
def test_a_profile_around_a_get(tmp_path: Path):
    """As in a notebook: only a part of the program is profiled, and the pool of greenlets is older than the profile."""
    program = tmp_path / "part.py"
    body, _, _ = PROGRAM.partition("def main():")
    program.write_text(
        "import cProfile, pstats\n"
        + body
        + "ray.init(nodes=2)\n"
        + "ray.get(parent.remote(1))\n"
        + "with cProfile.Profile() as profile:\n"
        + "    ray.get([parent.remote(3) for _ in range(4)])\n"
        + "stats = pstats.Stats(profile).stats\n"
        + "print({name: row[1] for (_, _, name), row in stats.items() if name in ('busy', 'child', 'parent')})\n"
        + "ray.shutdown()\n"
    )
    said = run(str(program), cwd=tmp_path)
    assert dict(eval(said)) == {"busy": 8, "child": 12, "parent": 4}
