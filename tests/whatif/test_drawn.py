"""The generator of programs of benchmarks.fidelity."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from benchmarks import fidelity_drawn, fidelity_programs
from benchmarks.fidelity_drawn import ASLEEP, COUNT, LONGEST_S, SHAPES, SHORTEST_S, SIZES, drawn, names_of

fidelity: Any = import_module("benchmarks.fidelity")  # beside a folder of that name, which type checkers find first


def test_a_seed_says_which_programs_they_are():
    assert [drawn(name) for name in names_of(7)] == [drawn(name) for name in names_of(7)]
    assert [drawn(name) for name in names_of(7)] != [drawn(name) for name in names_of(8)]
    assert len(names_of(7)) == COUNT == len(SHAPES)


@pytest.mark.parametrize("seed", range(0, 200, 20))
def test_each_seed_has_each_shape_once_and_stays_within_bounds(seed):
    programs = [drawn(name) for name in names_of(seed)]
    assert sorted(it.shape for it in programs) == sorted(SHAPES)
    for program in programs:
        assert 8 <= program.calls <= 200
        assert all(SHORTEST_S <= each <= LONGEST_S for each in program.seconds)
        assert program.asleep in ASLEEP
        assert program.size_bytes in SIZES
        assert program.shape in str(program)


@pytest.mark.parametrize("name", ["drawn 7", "drawn 7.8", "drawn x.1", "bag, tiny"])
def test_other_names_are_refused(name):
    with pytest.raises(ValueError, match=r"is no program: say `drawn SEED.INDEX`, with an index from 0 to 7"):
        fidelity_drawn.program(name)


def test_the_page_counts_every_row_and_names_each_miss():
    names = ["bag, small", *names_of(7)[:1]]
    row = [1.0, 0.9, 1.1]
    predictions = {
        "programs": {name: {"recorded_s": 2.0, **dict.fromkeys(fidelity.RUN, row)} for name in names},
        "machine": "a machine", "date": "2026-01-01", "noise": 0.0, "held_out_error": 0.05,
    }  # fmt: skip
    measured = {cluster: {name: [1.05, 1.06] for name in names} for cluster in fidelity.RUN}
    measured["2 nodes"]["bag, small"] = [1.3]
    slowed: dict[str, dict[str, list[float]]] = {cluster: {} for cluster in fidelity.RUN}
    text = fidelity.page(predictions, measured, 0.0, slowed)
    count = 2 * len(fidelity.RUN)
    assert f"- For {count} pairs of a program and a cluster, the **median absolute error of the predicted times" in text
    assert "For randomly generated programs, the median error was " in text
    assert f"The 90 % intervals contain **{count - 1} of {count}** measured times" in text
    assert "- bag, small on 2 nodes: 1.30 s (repeats 1.30 to 1.30), and the interval is 0.90 to 1.10" in text
    assert f"- {names[1]}: {drawn(names[1])}" in text
    assert fidelity_programs.program("bag, small") is fidelity_programs.PROGRAMS["bag, small"]
