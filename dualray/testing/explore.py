"""Explores a scenario: many seeds, each with faults of its own, each judged by the oracles; what fails is made small.

First the scenario runs without faults: that gives the result to compare with, and the places where faults can be
anchored. Then each seed draws its faults (swarm.py) and runs; a run ends with the liveness phase, in which faults stop
and the system must come to rest. What fails is classified and, one seed of each class, shrunk to a file that holds the
expanded list of faults and repeats the failure with one command.

Of some seeds the run is repeated in another process, with another PYTHONHASHSEED: decisions, traces and outcomes of
both must be the same, byte by byte. One whose repetition differs is a failure of its own class; it is not made small.
"""

from __future__ import annotations

import contextlib
import math
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from pathlib import Path

from dualray.shared.scenario.expect import Expect
from dualray.shared.scenario.fault_model import Fault, FaultKind, parse_fault
from dualray.shared.scenario.file import dump_scenario
from dualray.shared.scenario.scenario import Scenario
from dualray.testing.checkers import UNSCHEDULABLE
from dualray.testing.coverage import SITUATIONS
from dualray.testing.determinism import compare_recorded
from dualray.testing.expectations import judge as verdicts_of
from dualray.testing.outcome import STUCK, Outcome, compare
from dualray.testing.pool import Broken, Pool, Run
from dualray.testing.shrink import RUNS_MAX, shrink
from dualray.testing.stories import stories_of
from dualray.testing.swarm import Ground, draw_faults, ground_of
from dualray.testing.workloads import SURVIVORS

ENDLESS = "it does not end"
"""The class of runs that are ended by the wall clock."""

ENDLESS_RUNS_MAX = 20
"""Runs that making one of these small may take: each takes as long as a seed may."""


DIFFERS = "its repetition differs"
"""How the classes of runs begin that were not the same again."""


OUTPUT_LINES_MAX = 10
"""Of what a program printed that fails without any fault: the last ones."""


@dataclass(slots=True)
class Finding:
    """A seed that failed.

    Attributes:
        kind: class of the failure. Seeds of one class are assumed to have one cause.
        problem: what is wrong, as text.
        faults: the faults that the failure needs, as text; after shrinking, the remaining ones.
        replay: command that repeats the failure from a file. Each class has one file; for other seeds the command is
            "".
        traceback, output: see `Ended`; of the shrunk failure, where there is a file.
        story: what happened to the tasks, actors and objects of the shrunk failure, one line each.
    """

    seed: int
    kind: str
    problem: str
    faults: tuple[str, ...]
    replay: str = ""
    traceback: str = ""
    output: str = ""
    story: tuple[str, ...] = ()

    @property
    def is_of_repetition(self) -> bool:
        """Whether the run is right or wrong for all we know, and was not the same again."""
        return self.kind.startswith(DIFFERS)


@dataclass(slots=True, kw_only=True)
class Exploration:
    """What was found so far. `coverage` says, by name, in how many seeds something happened, and how often in all;
    `repeated` is how many seeds have been run again.
    """

    seeds: int = 0
    repeated: int = 0
    seconds: float = 0.0
    faults_planned: int = 0
    faults_performed: int = 0
    findings: list[Finding] = field(default_factory=list)
    coverage: dict[str, tuple[int, int]] = field(default_factory=dict)
    kinds_planned: set[str] = field(default_factory=set)

    @property
    def seeds_per_s(self) -> float:
        """Seeds that a second of wall time takes."""
        return self.seeds / self.seconds if self.seconds else 0.0

    @property
    def differing(self) -> int:
        """Seeds that were not the same again."""
        return sum(finding.is_of_repetition for finding in self.findings)

    @property
    def never_happened(self) -> list[str]:
        """Kinds of faults that were planned and never found a target, and situations that never came about."""
        faults = [f"fault: {kind}" for kind in sorted(self.kinds_planned)]
        return [name for name in (*faults, *SITUATIONS) if name not in self.coverage]


class Judge:
    """Says what is wrong with a run, in view of the one without faults, of which it remembers the outcome."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._references: list[tuple[Scenario, Outcome]] = []

    def reference(self, scenario: Scenario) -> Outcome:
        """The run without faults.

        Raises:
            RuntimeError: it fails, too.
        """
        calm = scenario.with_faults(())
        for known, outcome in self._references:
            if known == calm:
                return outcome
        ran = self._pool.run(calm)
        if isinstance(ran, Broken):
            raise RuntimeError(f"scenario {scenario.name} fails without any fault: {ran.why}")
        wrong = (*ran.violations, *(ran.leaks or ()))
        if wrong:
            raise RuntimeError(f"scenario {scenario.name} fails without any fault: {wrong[0]}")
        self._references.append((calm, ran))
        return ran

    def problem(self, scenario: Scenario, outcome: Outcome | Broken) -> tuple[str, str] | None:
        """The class of a failure and its words; None when all is well."""
        if isinstance(outcome, Broken):
            return (ENDLESS if "did not end" in outcome.why else "it breaks down"), outcome.why
        if outcome.violations:
            return f"violation: {_without_names(outcome.violations[0])}", outcome.violations[0]
        wrong = compare(outcome, self.reference(scenario), must_succeed=_must_succeed(scenario, outcome))
        if wrong:
            at = f" at {outcome.where}" if outcome.where else ""
            kind = f"{outcome.error[0]}{at}" if outcome.error else "wrong result"
            if STUCK in outcome.error:
                kind = f"it does not end: {_reasons(outcome.message)}"
                if _is_starved(outcome):
                    return None
            return kind, wrong[0]
        if outcome.leaks:
            return f"left behind: {_without_names(outcome.leaks[0])}", "; ".join(outcome.leaks[:5])
        return None


def _is_starved(outcome: Outcome) -> bool:
    """Whether it waits for resources that nodes had which are gone for good: then it may wait for ever."""
    lost = outcome.counters["nodes_refused"] > 0 or any(
        fault.startswith("kill node") or (fault.startswith("drain ") and " for " not in fault)
        for fault in outcome.performed
    )
    return lost and "every node that could take it is busy" in outcome.message


def _must_succeed(scenario: Scenario, outcome: Outcome) -> bool:
    """Whether nothing that has happened excuses a failure."""
    if not scenario.expect.same_as_without_faults and scenario.workload.generate not in SURVIVORS:
        return False
    if "ObjectStoreFullError" in outcome.error:
        return not any(fault.startswith("fill ") for fault in outcome.performed)
    if "ObjectLostError" in outcome.error:  # of what was put there is one copy, and nothing to make it again
        return not any(fault.startswith("lose object") for fault in outcome.performed)
    if "ControlPlaneError" in outcome.error or "ControlPlaneError" in outcome.message:
        return not any(fault.startswith(("restart redis", "restart head")) for fault in outcome.performed)
    if UNSCHEDULABLE & set(outcome.error):  # every node that could take it was gone for a while
        takes_away = ("kill node", "reboot", "drain", "pause", "partition", "lose gpu", "restart head", "link")
        return not any(fault.startswith(takes_away) for fault in outcome.performed)
    return True


def _reasons(message: str) -> str:
    """Why it waits, in words that are the same for the same cause."""
    reasons = re.findall(r"which (waits for (?:its arguments|a worker|\w+)|\w+)", message)
    return ", ".join(dict.fromkeys(reasons)) or _without_names(message.partition(" at ")[0])


def _without_names(text: str) -> str:
    """The sentence without what differs from run to run: ids, nodes, numbers."""
    names = r"[0-9a-f]{8}(:[0-9a-f]+)?|(node-)?\d[\d,.]*(/w\d+)?"
    words = re.sub(names, "#", text.partition(": ")[0])
    if words in ("", "#"):  # that is but the name of who says it
        words = re.sub(names, "#", text)
    return words[:120]


def explore(
    scenario: Scenario,
    *,
    directory: Path = Path(),
    seeds: Iterable[int],
    jobs: int = 1,
    seed_timeout_s: float = 60.0,
    stop_after: int = 10,
    shrink_to: Path | None = None,
    shrink_runs_max: int = RUNS_MAX,
    repeat: Fraction = Fraction(0),
    on_progress: Callable[[Exploration], object] = lambda state: None,
    on_note: Callable[[str], object] = lambda words: None,
) -> Exploration:
    """Run the scenario once for each seed, with faults that the seed draws.

    Args:
        directory: the directory of the scenario file.
        jobs: number of processes that work at the same time.
        seed_timeout_s: real time after which a run counts as endless.
        stop_after: number of failing seeds after which no further seed starts.
        shrink_to: a directory for a file of each shrunk failure; None does not shrink.
        shrink_runs_max: most runs to shrink one failure; faults are removed first.
        repeat: the share of the seeds to run twice, with equal results. For 1/20, each seed that 20 divides.

    Raises:
        RuntimeError: the scenario fails without faults.
        ValueError: the script, function or workload does not exist.
    """
    state = Exploration()
    with (
        tempfile.TemporaryDirectory(prefix="dualray-explore-") as records,
        Pool(jobs=jobs, directory=directory, timeout_s=seed_timeout_s) as pool,
    ):
        judge = Judge(pool)
        repetitions = _Repetitions(repeat, Path(records))
        calm = judge.reference(scenario)
        _check_calm(scenario, calm)
        ground = ground_of(calm)
        began_s = time.monotonic()
        for (seed, run), outcome in pool.run_all(_each_run(scenario, ground, seeds, state, stop_after, repetitions)):
            state.seconds = time.monotonic() - began_s
            found = []
            if not run.is_repetition:
                state.seeds += 1
                _count(state, run.faults or (), outcome)
                found.append(judge.problem(scenario, outcome))
            if run.record is not None and repetitions.is_second(seed, run, outcome):
                state.repeated += 1
                found.append(repetitions.problem(seed))
            state.findings += [_finding(seed, run, outcome, *each) for each in filter(None, found)]
            on_progress(state)
        state.findings.sort(key=lambda finding: finding.seed)
        if shrink_to is not None:
            shrinker = _Shrinker(judge, pool, shrink_to, shrink_runs_max, Path(records))
            shrinker.shrink_all(scenario, state.findings, on_note)
    return state


def _finding(seed: int, run: Run, outcome: Outcome | Broken, kind: str, problem: str) -> Finding:
    said = Outcome() if isinstance(outcome, Broken) else outcome
    faults = tuple(str(fault) for fault in run.faults or ())
    return Finding(seed, kind, problem, faults, traceback=said.traceback, output=said.output)


def _check_calm(scenario: Scenario, outcome: Outcome) -> None:
    """What a scenario without faults of its own expects must hold when it is run as it is: how long it takes, too, and
    how many copies, evictions and tries. Else a bug that costs nothing but time could be found by no seed.

    Raises:
        RuntimeError: it does not.
    """
    failing = [] if scenario.planned() else [each for each in verdicts_of(scenario, outcome, outcome) if not each.holds]
    if failing:
        words = "; ".join(f"{each.what}: expected {each.expected}, found {each.found}" for each in failing)
        printed = "".join(f"\n  it printed: {line}" for line in outcome.output.splitlines()[-OUTPUT_LINES_MAX:])
        at = f"\n{outcome.traceback.rstrip()}" if outcome.traceback else ""
        raise RuntimeError(f"scenario {scenario.name} fails without any fault: {words}{printed}{at}")


class _Repetitions:
    """Which seeds are run again, what both runs have left so far, and whether that is the same.

    Both are recorded: decisions are compared, not only what became of them. Who is run again depends on the seed alone,
    not on where an exploration begins.
    """

    def __init__(self, share: Fraction, directory: Path) -> None:
        self._share = share
        self._directory = directory
        self._done: dict[int, list[tuple[Run, Outcome | Broken]]] = {}
        """Of each seed of which not both runs have been compared."""

    def runs(self, seed: int, scenario: Scenario, faults: tuple[Fault, ...]) -> tuple[Run, ...]:
        """What a seed takes: one run, or two."""
        if math.ceil((seed + 1) * self._share) == math.ceil(seed * self._share):
            return (Run(scenario, faults),)
        first, second = self._directory / f"{seed}-first", self._directory / f"{seed}-second"
        return Run(scenario, faults, first), Run(scenario, faults, second, is_repetition=True)

    def is_second(self, seed: int, run: Run, outcome: Outcome | Broken) -> bool:
        """Take in what came of one of the two; whether the other one is there already."""
        done = self._done.setdefault(seed, [])
        done.append((run, outcome))
        return len(done) == 2

    def problem(self, seed: int) -> tuple[str, str] | None:
        """The class of a difference and its words; None when both runs were the same."""
        done = sorted(self._done.pop(seed), key=lambda each: each[0].is_repetition)
        records = [run.record for run, _ in done if run.record is not None]
        try:
            broken = [outcome.why if isinstance(outcome, Broken) else "" for _, outcome in done]
            if all(broken):  # which the first run is a failure for
                return None
            if any(broken):
                words = [why or "it came to its end" for why in broken]
                return f"{DIFFERS}: end", f"the first run: {words[0]}; the second run: {words[1]}"
            outcomes = [outcome for _, outcome in done if isinstance(outcome, Outcome)]
            found = compare_recorded(list(zip(records, outcomes, strict=True)))
            return None if found is None else (f"{DIFFERS}: {found.where}", found.divergence or "")
        finally:
            for record in records:
                shutil.rmtree(record, ignore_errors=True)


def _each_run(
    scenario: Scenario,
    ground: Ground,
    seeds: Iterable[int],
    state: Exploration,
    stop_after: int,
    repetitions: _Repetitions,
) -> Iterator[tuple[tuple[int, Run], Run]]:
    planned = scenario.planned()
    for seed in seeds:
        if len(state.findings) >= stop_after:
            return
        faults = (*planned, *draw_faults(scenario, ground, seed))
        for run in repetitions.runs(seed, scenario, faults):
            yield (seed, run), run


def _count(state: Exploration, faults: tuple[Fault, ...], outcome: Outcome | Broken) -> None:
    state.faults_planned += len(faults)
    state.kinds_planned.update(str(fault.kind) for fault in faults)
    if isinstance(outcome, Broken):
        return
    state.faults_performed += len(outcome.performed)
    happened = dict(outcome.coverage)
    for kind in (FaultKind.REBOOT_NODE,):  # the trace has its first half, a kill
        count = sum(fault.startswith("reboot ") for fault in outcome.performed)
        if count:
            happened[f"fault: {kind}"] = count
    if outcome.error:
        happened[f"program ended with {outcome.error[0]}"] = 1
    for name, times in happened.items():
        in_seeds, in_all = state.coverage.get(name, (0, 0))
        state.coverage[name] = (in_seeds + 1, in_all + times)


@dataclass(frozen=True, slots=True)
class _Shrinker:
    """Makes one scenario file of each class of failures."""

    judge: Judge
    pool: Pool
    directory: Path
    """That of the files."""
    runs_max: int
    records: Path
    """For runs that are recorded on the way."""

    def shrink_all(self, scenario: Scenario, findings: Iterable[Finding], on_note: Callable[[str], object]) -> None:
        """What was not the same again keeps all its faults, for the check to look at."""
        done: set[str] = set()
        for finding in findings:
            if finding.kind in done:
                continue
            done.add(finding.kind)
            faulty = scenario.with_faults(parse_fault(words) for words in finding.faults)
            if finding.is_of_repetition:
                path = self.directory / f"{scenario.name}-seed-{finding.seed}-repeated.yaml"
                _write(path, _file_of(faulty, finding))
                finding.replay = f"dualray scenario check {path}"
                continue
            on_note(f"making seed {finding.seed} small")
            runs_max = min(self.runs_max, ENDLESS_RUNS_MAX) if finding.kind == ENDLESS else self.runs_max
            small = shrink(faulty, partial(_fails_as, self.judge, self.pool, finding.kind), runs_max=runs_max)
            finding.faults = tuple(str(fault) for fault in small.planned())
            if finding.kind != ENDLESS:
                self._tell(finding, small)
            path = self.directory / f"{scenario.name}-seed-{finding.seed}.yaml"
            _write(path, _file_of(small, finding))
            finding.replay = f"dualray scenario run {path}"

    def _tell(self, finding: Finding, small: Scenario) -> None:
        """Run a small failure once more, recorded: its words, its traceback, and the story of what it is about."""
        record = self.records / f"story-{finding.seed}"
        outcome = next(iter(self.pool.run_all([(0, Run(small, record=record))])))[1]
        if isinstance(outcome, Broken):
            return
        found = self.judge.problem(small, outcome)
        if found is not None and found[0] == finding.kind:
            finding.problem = found[1]
        finding.traceback, finding.output = outcome.traceback, outcome.output
        with contextlib.suppress(ValueError, OSError):  # a run that died early has left no record to read
            finding.story = tuple(stories_of(record / "log", f"{outcome.message} {finding.problem}"))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _fails_as(judge: Judge, pool: Pool, kind: str, candidate: Scenario) -> bool:
    """Whether a scenario fails in this way; one that fails without faults is another story."""
    try:
        found = judge.problem(candidate, pool.run(candidate))
    except RuntimeError:
        return False
    return found is not None and found[0] == kind


def _file_of(small: Scenario, finding: Finding) -> str:
    """A scenario file that repeats a failure, and fails."""
    must_succeed = small.expect.same_as_without_faults or small.workload.generate in SURVIVORS
    expect = Expect(all_faults=False, same_as_without_faults=must_succeed)
    words = [f"Found by `dualray explore`, seed {finding.seed}: {finding.kind}.", *finding.problem.splitlines()]
    comment = "".join(f"# {line[:116]}\n" for line in words[:20])
    return comment + dump_scenario(small.model_copy(update={"expect": expect}))
