"""Compares what became of a run with what its scenario expects."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase

from dualray.shared.nearest import nearest
from dualray.shared.scenario.fault_model import parse_fault
from dualray.shared.scenario.scenario import Scenario
from dualray.shared.units import time_words
from dualray.testing.outcome import Outcome

NAMED_MAX = 10
"""Names of tasks that a remark lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One expectation: what was expected, what was found, and whether that is the same."""

    what: str
    expected: str
    found: str
    holds: bool


def judge(
    scenario: Scenario, outcome: Outcome, reference: Outcome | None = None, *, mode: str = "sim"
) -> list[Verdict]:
    """Every expectation of the scenario, with its verdict; `reference` is the run without faults, if it is needed."""
    verdicts = [_ending(scenario, outcome)]
    expect = scenario.expect
    if expect.has_result:
        verdicts.append(
            _verdict("result", _short(expect.result), _short(outcome.result), expect.result == outcome.result)
        )
    verdicts += _figures(scenario, outcome)
    if reference is not None:
        same = outcome.succeeded and reference.succeeded and outcome.result == reference.result
        wanted, found = (
            _short(each.result) if each.succeeded else f"it fails with {each.error[0]}" for each in (reference, outcome)
        )
        wanted = wanted if reference.succeeded else f"a result; even without faults, {wanted}"
        verdicts.append(_verdict("result without faults", wanted, found, same))
    if mode == "sim":
        verdicts += _of_simulation(scenario, outcome)
    return verdicts + list(_of_every_run(scenario, outcome))


def unused_rows(scenario: Scenario, outcome: Outcome, profiled: Sequence[str]) -> list[str]:
    """Rows of `durations` and `memory`, and names of a profile, that have said nothing of any task, in words."""
    names = sorted(outcome.starts)
    remarks = []
    for table, rows in (
        ("durations", scenario.durations),
        ("memory", scenario.memory),
        ("gpu_memory", scenario.gpu_memory),
    ):
        for row in rows:
            if (table, row) not in outcome.rows_used:
                matching = [name for name in names if fnmatchcase(name, row)]
                first = "duration=, the profile or an earlier row" if table == "durations" else "an earlier row"
                remarks.append(f"{table}: {_why_unused([row], matching, first, names)}")
    unused = [name for name in profiled if ("profile", name) not in outcome.rows_used]
    unknown, known = [name for name in unused if name not in names], [name for name in unused if name in names]
    for some, matching in ((unknown, []), (known, known)):
        if some:
            remarks.append(f"profile: {_why_unused(some, matching, 'duration=', names)}")
    return remarks


def _why_unused(rows: Sequence[str], matching: Sequence[str], first: str, names: Sequence[str]) -> str:
    said = _listed([repr(row) for row in rows])
    if matching:
        return f"{said} had no effect, because {first} takes precedence for {_listed(matching)}"
    near = get_close_matches(rows[0], names, n=1, cutoff=0.5)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return f"{said} matched no task{hint}; tasks were: {_listed(names) or 'none'}"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return f"{', '.join(names[:NAMED_MAX])}{more}"


def _verdict(what: str, expected: str, found: str, holds: bool) -> Verdict:
    return Verdict(what=what, expected=expected, found=found, holds=holds)


def _ending(scenario: Scenario, outcome: Outcome) -> Verdict:
    expected = scenario.expect.error
    said = _one_line(outcome.message)
    found = f"{outcome.error[0]}{f': {said}' if said else ''}" if outcome.error else "it succeeds"
    if expected is None:
        return _verdict("ending", "it succeeds", found, outcome.succeeded)
    matches = expected.match is None or re.search(expected.match, outcome.message, re.DOTALL) is not None
    words = expected.type + (f" with {expected.match!r}" if expected.match is not None else "")
    return _verdict("ending", words, found, expected.type in outcome.error and matches)


def _figures(scenario: Scenario, outcome: Outcome) -> Iterator[Verdict]:
    given = outcome.result if isinstance(outcome.result, dict) else {}
    for name, bounds in scenario.expect.figures.items():
        value = given.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            known = ", ".join(given) or "none"
            yield _verdict(name, str(bounds), f"no such number; the program returned {known}", False)
        else:
            yield _verdict(name, str(bounds), f"{value:g}", bounds.has(value))


def _of_simulation(scenario: Scenario, outcome: Outcome) -> Iterator[Verdict]:
    expect = scenario.expect
    least_ns, most_ns = expect.makespan.min, expect.makespan.max
    if least_ns is not None or most_ns is not None:
        holds = (least_ns is None or outcome.makespan_ns >= least_ns) and (
            most_ns is None or outcome.makespan_ns <= most_ns
        )
        bounds_ns = (("at least", least_ns), ("at most", most_ns))
        words = " and ".join(f"{side} {time_words(bound_ns)}" for side, bound_ns in bounds_ns if bound_ns is not None)
        yield _verdict("makespan", words, time_words(outcome.makespan_ns), holds)
    for name, bounds in expect.counters.items():
        value = outcome.counters.get(name, 0)
        yield _verdict(name, str(bounds), f"{value:,}", bounds.has(value))


def _of_every_run(scenario: Scenario, outcome: Outcome) -> Iterator[Verdict]:
    if scenario.expect.no_leak and outcome.leaks is not None:
        found = "; ".join(outcome.leaks[:3]) or "nothing"
        yield _verdict("left at the end", "nothing", found, not outcome.leaks)
    if scenario.expect.all_faults and scenario.faults:
        # Spot machines come and go whether the run still needs them or not.
        traces = [item for item in scenario.faults if item.trace is not None]
        spot = {str(fault) for item in traces for fault in item.faults(scenario.cluster, scenario.seed)}
        idle = [f"'{words}' found no target" for words in outcome.missed if words not in spot]
        idle += [_why_outstanding(words, outcome) for words in outcome.outstanding if words not in spot]
        yield _verdict("faults", "all happen", "; ".join(idle) or "all happened", not idle)
    yield _verdict("invariants", "all hold", "; ".join(outcome.violations[:3]) or "all hold", not outcome.violations)


def _why_outstanding(words: str, outcome: Outcome) -> str:
    """Why the time of a fault has not come."""
    fault = parse_fault(words)
    if fault.at_ns is not None:
        return f"'{words}' comes after the program's end: the program took {time_words(outcome.makespan_ns)}"
    if fault.task_name is not None:
        times = outcome.starts.get(fault.task_name, 0)
        known = "" if times else nearest(fault.task_name, outcome.starts)
        return f"'{words}' never happened: {fault.task_name} started {times} times{known}"
    times = outcome.events.get(fault.event, 0)
    return f"'{words}' never happened: there were {times} such events"


def _one_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:200] if lines else ""


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."
