"""The driver draws on from a generator that the program seeded before the simulation, as in real mode and on Ray."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import dualray as ray
from dualray.random_seeds import has_seeded_random
from dualray.sim.usercode import isolation

Drawn = tuple[float, int, float, list[int]]


@pytest.fixture(autouse=True)
def nothing_is_seeded_in_other_tests() -> Iterator[None]:
    states = random.getstate(), np.random.get_state()
    yield
    ray.shutdown()
    random.setstate(states[0])
    np.random.set_state(states[1])


@pytest.fixture(params=["shared", "interposed"])
def generators(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The generators of the process, and the functions that take their place where these cannot be shared."""
    if request.param == "interposed":
        monkeypatch.setattr(isolation, "find", lambda: None)


def draw() -> Drawn:
    return random.gauss(0, 1), random.randrange(1000), float(np.random.normal()), np.random.permutation(9).tolist()


def drawn_in_a_simulation(seed: int) -> Drawn:
    ray.init(mode="sim", seed=seed)
    try:
        return draw()
    finally:
        ray.shutdown()


def set_seeds() -> None:
    random.seed(7)
    np.random.seed(7)


def set_states() -> None:
    set_seeds()
    random.random(), np.random.random()
    states = random.getstate(), np.random.get_state()
    random.seed(8)
    random.setstate(states[0])
    np.random.set_state(states[1])


def set_seeds_and_draw() -> None:
    set_seeds()
    for _ in range(2000):
        random.random(), np.random.random()


@pytest.mark.parametrize("begin", [set_seeds, set_states, set_seeds_and_draw])
def test_a_seeded_driver_draws_on(begin: Callable[[], None], generators: None) -> None:
    begin()
    expected = draw()
    begin()
    assert drawn_in_a_simulation(seed=1) == expected
    assert drawn_in_a_simulation(seed=2) == expected, "the program has its state from before the simulation"


def test_tasks_have_numbers_of_their_own() -> None:
    set_seeds()
    ray.init(mode="sim")
    drawn = ray.get([ray.remote(draw).remote() for _ in range(2)])
    assert drawn[0] != drawn[1]
    assert draw() not in drawn


def test_one_library_can_be_seeded_alone(generators: None) -> None:
    random.seed(7)
    first, second = (drawn_in_a_simulation(seed) for seed in (1, 2))
    assert first[:2] == second[:2]
    assert first[2:] != second[2:]


@pytest.mark.parametrize("count", [0, 1, 700, 20_000])
def test_numbers_of_a_driver_that_seeds_nothing_follow_from_the_seed(count: int, generators: None) -> None:
    """However many the program has drawn before. In a process of its own, whose generators are new."""
    program = (
        "import dualray, random, numpy\n"
        f"for _ in range({count}): random.random(), numpy.random.random()\n"
        "from tests.sim.usercode.test_random_seeds import drawn_in_a_simulation\n"
        "print(drawn_in_a_simulation(1), drawn_in_a_simulation(2))\n"
    )
    printed = {_printed_by(program) for _ in range(2)}
    assert len(printed) == 1
    first, _, second = printed.pop().strip().partition(") (")
    assert first.strip("()") != second.strip("()")


def test_numpy_may_be_imported_after_dualray_and_before_it() -> None:
    programs = (
        f"{first}\n{second}\nnumpy.random.seed(7)\ndualray.init(mode='sim')\nprint(numpy.random.random())"
        for first, second in (("import dualray", "import numpy"), ("import numpy", "import dualray"))
    )
    expected = f"{np.random.RandomState(7).random_sample()}\n"
    assert [_printed_by(program) for program in programs] == [expected, expected]


def test_seeds_of_earlier_tests_do_not_count(tmp_path: Path) -> None:
    """A test draws the same alone and after others; what it seeds itself counts."""
    (tmp_path / "test_three.py").write_text(
        "import random, dualray, numpy\n\n"
        "def drawn():\n    dualray.init(mode='sim', seed=3)\n    found = random.random(), numpy.random.random()\n"
        "    dualray.shutdown()\n    return found\n\n"
        "def test_seeds():\n    random.seed(7), numpy.random.seed(7)\n    print('seeded', *drawn())\n\n"
        "def test_draws():\n    print('drawn', *drawn())\n"
    )

    def printed(*tests: str) -> list[tuple[str, str]]:
        command = [sys.executable, "-m", "pytest", "-q", "-s", *(f"test_three.py::{test}" for test in tests)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path)
        return re.findall(r"(?:seeded|drawn) (\S+) (\S+)", done.stdout)

    seeded, drawn = printed("test_seeds", "test_draws")
    assert seeded == (str(random.Random(7).random()), str(np.random.RandomState(7).random_sample()))
    assert printed("test_draws") == [drawn]


def test_a_forked_process_has_seeded_nothing() -> None:
    """Python seeds `random` anew in a child."""
    random.seed(7)
    assert has_seeded_random()
    pid = os.fork()
    if pid == 0:
        os._exit(has_seeded_random())
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def _printed_by(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
