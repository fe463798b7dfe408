"""Ten sources of nondeterminism in user code, and three in a machine: each is found, or made deterministic."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from dualray.shared.scenario.file import parse_scenario
from dualray.testing.determinism import check_determinism, parting

ROOT = Path(__file__).parents[2]
FOUND = "the first event that differs"
WITNESSED = "was started on node-"
SAME = None

SOURCES = {
    "set_order": FOUND,
    "wall_clock": FOUND,
    "virtual_clock": SAME,
    "address": FOUND,
    "uuid1": FOUND,
    "listdir": SAME,
    "thread": SAME,
    "os_thread": WITNESSED,
    "unseeded_random": SAME,
    "environment": FOUND,
    "dict_of_sets": FOUND,
    "float_sum": FOUND,
}
POLICIES = ("SetOrderPolicy", "WallClockPolicy", "UnseededRandomPolicy")


@pytest.fixture(autouse=True)
def _from_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


def check(function: str, more: str = ""):
    text = f"name: planted\ncluster: {{nodes: 4, cpus: 2}}\nworkload: {{function: 'tests.testing.{function}'}}\n{more}"
    return check_determinism(parse_scenario(text, "planted.yaml"), directory=ROOT)


FAST = ("set_order", "listdir", "thread")
"""One of each kind: each takes two processes."""


@pytest.mark.parametrize("source", [pytest.param(it, marks=[] if it in FAST else [pytest.mark.slow]) for it in SOURCES])
def test_a_source_in_user_code_is_found_or_made_deterministic(source):
    found = check(f"nondeterminism:{source}")
    expected = SOURCES[source]
    if expected is SAME:
        assert found.divergence is None
    else:
        assert found.divergence is not None
        assert expected in found.divergence


VALUES = {
    "a result": r"the result of name_of number 4 \(task [0-9a-f]{8}\), from node-\d/\S+ at 0\.\d{9} s",
    "a large result": r"the result of name_of number 4 \(task [0-9a-f]{8}\), from node-\d at 0\.\d{9} s",
    "an argument": r"the arguments of name_of number 1 \(task [0-9a-f]{8}\), from driver-1 at 0\.\d{9} s",
    "what is put": r"a value that the driver put, from node-0 at 0\.\d{9} s",
    "an error": r"the error of fails number 1 \(task [0-9a-f]{8}\), from node-0/\S+ at 0\.\d{9} s",
}
FAST_VALUES = ("a result", "what is put")


@pytest.mark.parametrize(
    "where", [pytest.param(it, marks=[] if it in FAST_VALUES else [pytest.mark.slow]) for it in VALUES]
)
def test_the_value_that_differs_is_named(where):
    workload = f"workload: {{function: 'tests.testing.timed_programs:differs', kwargs: {{where: {where}}}}}"
    text = f"name: values\ncluster: {{nodes: 2, cpus: 2}}\n{workload}\n"
    found = check_determinism(parse_scenario(text, "values.yaml"), directory=ROOT).divergence
    assert found is not None
    assert re.fullmatch(f"  the first value that differs: {VALUES[where]}", found.splitlines()[-1]), found


@pytest.mark.parametrize(
    ("where", "line"),
    [
        ("the driver", "  every argument and every result of the tasks is the same, so the driver's own code differs"),
        ("a set", None),
    ],
)
def test_values_alone_are_no_difference(where, line):
    workload = f"workload: {{function: 'tests.testing.timed_programs:differs', kwargs: {{where: {where}}}}}"
    found = check_determinism(parse_scenario(f"name: values\n{workload}\n", "values.yaml"), directory=ROOT).divergence
    assert (found or "").splitlines()[-1:] == ([line] if line else [])


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_a_source_in_a_machine_is_found(policy):
    policies = f"policies: {{placement: 'tests.testing.nondeterminism:{policy}'}}\n"
    found = check("nondeterminism:spread", policies)
    assert found.divergence is not None
    assert FOUND in found.divergence


def test_the_page_has_every_source():
    page = (ROOT / "docs" / "determinism.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ") and "`" in line]
    for source in (*SOURCES, *POLICIES):
        assert any(f"`{source}`" in row for row in rows), source


def test_long_events_are_shown_where_they_part():
    start = "TaskPushed(spec=TaskSpec(template=FunctionTemplate(name='square', resources=" + "x" * 1_000
    one, other = parting(start + "args=bb" + "y" * 1_000, start + "args=dddd" + "y" * 1_000)
    assert one.startswith("TaskPushed of 'square': ... x")
    assert ("args=bb" in one, "args=dddd" in other) == (True, True)
    assert max(len(one), len(other)) < 300
    assert parting("short", "shorter") == ("short", "shorter")


PROGRAM = """\
import time
import dualray as ray

ray.init(mode="sim", nodes=3, seed=3)


@ray.remote(duration="lognormal(5ms, 1)")
def fails(x):
    raise ValueError(x)


@ray.remote(duration="lognormal(5ms, 1)")
def calls(function, x):
    try:
        ray.get(fails.remote(x))
    except ValueError:
        return function, time.perf_counter_ns(), ray.get_runtime_context().get_node_id()


@ray.remote
class Keeper:
    def keep(self, value):
        return [value, lambda: value]


keeper = Keeper.remote()
found = ray.get([calls.remote(lambda: None, x) for x in range(10)])
ray.get([keeper.keep.remote(function) for function, *_ in found])
print([when_and_where for _, *when_and_where in found], time.perf_counter_ns())
"""


def test_times_do_not_depend_on_the_directory_of_the_program(tmp_path):
    """Code and tracebacks hold paths, and what is sent takes longer if it is longer."""
    printed = set()
    for name in ("a", "b" * 40, "c" * 120):
        script = tmp_path / name / "program.py"
        script.parent.mkdir()
        script.write_text(PROGRAM)
        done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        printed.add(done.stdout)
    assert len(printed) == 1, printed
