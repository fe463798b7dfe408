"""Is a scenario the same in every process? Two runs with different PYTHONHASHSEED are compared, decision by decision.

The runs also differ in what no program should depend on: who is logged in, the time zone, where temporary files go, and
a variable of the environment that nobody knows. A thread of user code runs in real time, and may or may not show in two
runs: that one was started is reason enough.

Each run writes the decision log of every machine, and the trace. Their events are sorted into subsystems by what they
are about; each subsystem has a rolling hash over time, process, event and commands. When two hashes differ, the first
event that differs is named: the earliest in virtual time, over all processes. Below it stands the first value whose
bytes differ, if one did before: an argument, or what a task has returned or put. That alone is no difference between
two runs: a set of texts has other bytes in each process, and is the same set.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from dualray.shared.model.codec import encode, pack
from dualray.shared.model.ids import ObjectID, exception_id, is_put, return_index, short, task_of
from dualray.shared.proof.decision_log import Decision, read_log
from dualray.shared.proof.trace import TraceEvent, TraceKind
from dualray.shared.scenario.file import dump_scenario, parse_scenario
from dualray.shared.scenario.scenario import Scenario
from dualray.sim.cluster.value_digests import ask_for_values, read_values
from dualray.testing.outcome import Outcome
from dualray.testing.run import read_trace, run_scenario

HASH_SEEDS = ("1", "2")
SURROUNDINGS: tuple[dict[str, str], ...] = (
    {"USER": "ada", "LOGNAME": "ada", "HOSTNAME": "here", "TZ": "UTC"},
    {"USER": "grace", "LOGNAME": "grace", "HOSTNAME": "there", "TZ": "Asia/Tokyo", "SOMETHING_ELSE": "yes"},
)
"""What differs in the environments of the two runs, beside PYTHONHASHSEED and TMPDIR."""
RUN_TIMEOUT_S = 900.0
EVENT_CHARACTERS_MAX = 240
BEFORE_CHARACTERS = 60
"""Of an event that is shown, and of what stands before the place where two of them part."""
_NAMED = re.compile(r"name='([^']*)'")
RESULT = "result"
"""The subsystem of what the program has returned."""
_AFTER_ALL_NS = (1 << 62) - 1
"""The time of what is known when a run has ended."""

_SUBSYSTEM_WORDS = (
    ("scheduler", ("Lease", "Resources", "Worker", "TasksRecalled", "TasksWanted", "Gpu")),
    ("store", ("Object", "Space", "Locations", "View", "Receive")),
    ("lineage", ("Task", "Value", "Result", "Borrow", "Ref", "Wait")),
    ("membership", ("Node", "Owner", "Peer", "Driver", "Cluster", "Actor", "Started")),
    ("timers", ("Timer",)),
)
"""Which subsystem an event belongs to, by how its class's name begins; the first that fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subsystem:
    """One row of the comparison: the rolling hashes of both runs."""

    name: str
    events: int
    first: str
    second: str

    @property
    def is_equal(self) -> bool:
        """Whether both runs did the same."""
        return self.first == self.second


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What the comparison found; `divergence` names the first event that differs, in words, `where` its subsystem."""

    subsystems: tuple[Subsystem, ...]
    divergence: str | None
    where: str | None = None


def check_determinism(scenario: Scenario, *, directory: Path = Path()) -> Comparison:
    """Run the scenario in two processes with different PYTHONHASHSEED, and compare them.

    Raises:
        RuntimeError: a run broke down, with what it said.
    """
    with tempfile.TemporaryDirectory(prefix="dualray-check-") as temporary:
        runs = [Path(temporary, seed) for seed in HASH_SEEDS]
        with ThreadPoolExecutor(max_workers=len(runs)) as pool:
            done = [
                pool.submit(_run_apart, scenario, directory, run, {**around, "PYTHONHASHSEED": hash_seed})
                for run, hash_seed, around in zip(runs, HASH_SEEDS, SURROUNDINGS, strict=True)
            ]
            for run in done:
                run.result()
        return compare_runs(*runs)


def _run_apart(scenario: Scenario, directory: Path, output: Path, environment: dict[str, str]) -> None:
    output.mkdir()
    (output / "tmp").mkdir()
    (output / "scenario.yaml").write_text(dump_scenario(scenario))
    command = [sys.executable, "-m", "dualray.testing.determinism", str(output), str(directory.resolve())]
    done = subprocess.run(
        command,
        env={
            **os.environ,
            **environment,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "TMPDIR": str(output / "tmp"),
        },
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
    )
    if done.returncode:
        hash_seed = environment["PYTHONHASHSEED"]
        raise RuntimeError(f"the run with PYTHONHASHSEED={hash_seed} failed: {done.stderr[-2000:]}")


def main(output: Path, directory: Path) -> None:
    """One of the two runs, in a process of its own."""
    scenario = parse_scenario((output / "scenario.yaml").read_text(), "scenario.yaml")
    ask_for_values(output / "log")
    outcome = run_scenario(scenario, directory=directory, decision_log=output / "log")
    _write_outcome(output, outcome)


def _write_outcome(run: Path, outcome: Outcome) -> None:
    fields = {name: value for name, value in asdict(outcome).items() if name not in ("where", "traceback", "output")}
    (run / "outcome.json").write_text(json.dumps(fields, sort_keys=True))


# ---- The comparison ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Event:
    """One thing that happened in a process, with what identifies it."""

    time_ns: int
    process: str
    subsystem: str
    digest: bytes
    words: str


def compare_recorded(runs: Sequence[tuple[Path, Outcome]]) -> Comparison | None:
    """Compare two runs by what is recorded in their directories, and by their outcomes. None: every byte is the same.

    To see that takes much less time than to read the logs, which is done only when they differ.
    """
    for directory, outcome in runs:
        _write_outcome(directory, outcome)
    (first, _), (second, _) = runs
    different = [name for name in _files(first) | _files(second) if _bytes(first / name) != _bytes(second / name)]
    if not different:
        return None
    found = compare_runs(first, second)
    if found.where is None:  # no decision, no event, no result: how a machine was made
        name = min(different)
        return replace(found, where="log", divergence=f"the runs had the same events, but {name} differs")
    return found


def _files(run: Path) -> set[str]:
    """What a run has written that must be the same in every other."""
    return {"outcome.json", *(f"log/{path.name}" for path in (run / "log").glob("*"))}


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def compare_runs(first: Path, second: Path) -> Comparison:
    """Compare two runs by their directories: `log/` as `decision_log=` leaves it, and outcome.json."""
    names = sorted({path.name for run in (first, second) for path in (run / "log").glob("*.decisions")})
    hashes: dict[str, tuple[_Rolling, _Rolling]] = {}
    divergences: list[_Divergence] = []
    for name in names:
        pairs = zip_longest(_decisions(first / "log" / name), _decisions(second / "log" / name))
        _fold(pairs, hashes, divergences)
    _fold(zip_longest(_rows(first / "log"), _rows(second / "log")), hashes, divergences)
    outcomes = [json.loads((run / "outcome.json").read_text()) for run in (first, second)]
    _fold([(_streams(outcomes[0]), _streams(outcomes[1]))], hashes, divergences)
    differing = [name for name in outcomes[0] if outcomes[0][name] != outcomes[1][name]]
    _fold([(_result(outcomes[0], differing), _result(outcomes[1], differing))], hashes, divergences)
    subsystems = tuple(
        Subsystem(name=name, events=one.events, first=one.hex, second=other.hex)
        for name, (one, other) in sorted(hashes.items())
    )
    at_first = min(divergences, default=None)
    divergence = None if at_first is None else "\n".join([at_first.words, *_values_before(at_first, first, second)])
    witnessed = [words for outcome in outcomes for words in outcome["witnessed"]]
    if divergence is None and witnessed:
        divergence = (
            f"both runs were the same, but the next run may differ, because a part runs in real time: {witnessed[0]}"
        )
    return Comparison(
        subsystems=subsystems, divergence=divergence, where=at_first.subsystem if at_first is not None else None
    )


def _values_before(divergence: _Divergence, first: Path, second: Path) -> Iterator[str]:
    """Which value was the first to differ when two runs parted, in words."""
    ours, theirs = read_values(first / "log"), read_values(second / "log")
    if not ours or not theirs:
        return
    differing = next((pair for pair in zip(ours, theirs, strict=False) if pair[0][2:] != pair[1][2:]), None)
    if differing is None:
        if divergence.subsystem == RESULT and len(ours) == len(theirs):
            yield "  every argument and every result of the tasks is the same, so the driver's own code differs"
        return
    one, other = differing
    if one.key == other.key and one.time_ns <= divergence.time_ns:
        what = _value_words(one.key, read_trace(first / "log"))
        yield f"  the first value that differs: {what}, from {one.process} at {one.time_ns / 1e9:.9f} s"


def _value_words(key: bytes, trace: Iterable[TraceEvent]) -> str:
    """What a value is of which task, by name and number."""
    task = task_of(ObjectID(key))
    numbers: Counter[str] = Counter()
    who = "the driver"
    for event in trace:
        if event.kind is TraceKind.TASK_SUBMITTED:
            numbers[event.name] += 1
            if event.subject == task.hex():
                who = f"{event.name} number {numbers[event.name]} (task {short(task)})"
    if len(key) == len(task):
        return f"the arguments of {who}"
    if key == exception_id(task):
        return f"the error of {who}"
    if is_put(ObjectID(key)):
        return f"a value that {who} put"
    index = return_index(ObjectID(key))
    return f"the result of {who}" if index == 0 else f"the results of {who}, value {index}"


class _Divergence(NamedTuple):
    """Where two runs of one process part; the least one is the first of a run."""

    time_ns: int
    process: str
    words: str
    subsystem: str


class _Rolling:
    """The hash of one subsystem in one run."""

    def __init__(self) -> None:
        self.events = 0
        self._hash = blake2b(digest_size=8)

    def add(self, event: _Event) -> None:
        self.events += 1
        self._hash.update(event.digest)

    @property
    def hex(self) -> str:
        return self._hash.hexdigest()


def _fold(
    pairs: Iterable[tuple[_Event | None, _Event | None]],
    hashes: dict[str, tuple[_Rolling, _Rolling]],
    divergences: list[_Divergence],
) -> None:
    """Feed the hashes with the events of one process in both runs, and note the first pair that differs."""
    differs = False
    for one, other in pairs:
        for side, event in enumerate((one, other)):
            if event is not None:
                for subsystem in (event.subsystem, "clock"):
                    hashes.setdefault(subsystem, (_Rolling(), _Rolling()))[side].add(event)
        if not differs and (one is None or other is None or one.digest != other.digest):
            differs = True
            either = one or other
            assert either is not None
            at_s = min(event.time_ns for event in (one, other) if event is not None) / 1e9
            sides = parting(*[event.words if event is not None else "nothing more" for event in (one, other)])
            when = "its end" if either.time_ns >= _AFTER_ALL_NS else f"{at_s:.9f} s"
            where = f"{either.process} at {when}, {either.subsystem}"
            words = f"{where}:\n  first run:  {sides[0]}\n  second run: {sides[1]}"
            divergence = f"the first event that differs: {words}"
            divergences.append(_Divergence(round(at_s * 1e9), either.process, divergence, either.subsystem))


def parting(one: str, other: str) -> tuple[str, str]:
    """Shorten two long texts of events that differ: to the beginning of each, its task, and the words around the
    first difference."""
    if max(len(one), len(other)) <= EVENT_CHARACTERS_MAX:
        return one, other
    at = next((at for at, (here, there) in enumerate(zip(one, other, strict=False)) if here != there), 0)
    start = max(0, at - BEFORE_CHARACTERS)
    shown = []
    for words in (one, other):
        named = _NAMED.search(words)
        kind = words.partition("(")[0][:BEFORE_CHARACTERS]
        task = f" of {named.group(1)!r}" if named is not None else ""
        shown.append(f"{kind}{task}: ... {words[start : start + EVENT_CHARACTERS_MAX]}")
    return shown[0], shown[1]


def _decisions(path: Path) -> Iterator[_Event]:
    if not path.exists():
        return
    log = read_log(path.read_bytes())
    for decision in log.decisions:
        yield _decision(log.spec.address, decision)


def _decision(process: str, decision: Decision) -> _Event:
    name = type(decision.event).__name__
    subsystem = next((it for it, starts in _SUBSYSTEM_WORDS if name.startswith(starts)), "other")
    data = pack((decision.now_ns, process, encode(decision.event), [encode(command) for command in decision.commands]))
    words = f"{decision.event} -> {[type(command).__name__ for command in decision.commands]}"
    return _Event(decision.now_ns, process, subsystem, blake2b(data, digest_size=8).digest(), words)


def _rows(directory: Path) -> Iterator[_Event]:
    if not (directory / "cluster.trace").exists():  # a script that has failed before it had a cluster
        return
    for event in read_trace(directory):
        digest = blake2b(pack(event.row()), digest_size=8).digest()
        yield _Event(event.time_ns, event.process, "trace", digest, str(event))


def _streams(outcome: dict[str, object]) -> _Event:
    text = str(outcome["random"])
    return _Event(_AFTER_ALL_NS, "all processes", "rng", text.encode(), f"random streams with the digest {text}")


def _result(outcome: dict[str, object], differing: Sequence[str]) -> _Event:
    """The whole outcome, in the words of those of its fields that differ from the other run's."""
    digest = blake2b(json.dumps(outcome, sort_keys=True).encode(), digest_size=8).digest()
    words = json.dumps({name: outcome[name] for name in differing})
    return _Event(_AFTER_ALL_NS + 1, "the program", RESULT, digest, words)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
