"""Small scenarios with faults have the same outcome in a simulation and on real processes: tests/both_modes."""

from __future__ import annotations

import pytest

from tests.both_modes.runs import FAULTS_MAX, KINDS, compare, drawn

NUMBERS = (0, *(pytest.param(number, marks=pytest.mark.slow) for number in (2, 4)))
"""The command takes as many as are asked for."""


@pytest.mark.timeout(180)
@pytest.mark.parametrize("number", NUMBERS)
def test_a_drawn_scenario_has_the_same_outcome_in_both_modes(number: int) -> None:
    found = compare(number)
    assert found.is_same, str(found)
    assert found.simulated.startswith("result ")


def test_a_number_draws_the_same_scenario_each_time() -> None:
    drawn_faults = [tuple(map(str, drawn(7).planned())) for _ in range(2)]
    assert drawn_faults[0] == drawn_faults[1]
    assert 1 <= len(drawn_faults[0]) <= FAULTS_MAX


def test_the_faults_of_many_numbers_are_of_most_kinds() -> None:
    kinds = {fault.kind for number in range(0, 140, 7) for fault in drawn(number).planned()}
    assert len(kinds & set(KINDS)) >= len(KINDS) * 2 // 3, sorted(kinds)
