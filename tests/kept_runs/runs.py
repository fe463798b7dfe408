"""What the swarm scenarios cost and say, exactly: `python -m tests.kept_runs` holds their runs against what is kept.

A simulation is the same each time, so that each figure of it can be kept: how long it took, what it counted, how many
messages, commands and trace events of each kind there were, and a digest of all that the machines have decided. A
change that costs nothing but time or messages, that places something worse, or says something else, shows here and
nowhere else. Without faults every kind is kept; under faults one line for each seed, and the kinds of all seeds
together. Where the change is meant, `python -m tests.kept_runs --write` keeps the new figures.

The figures are those of one version of Python and of NumPy: how long a message is depends on how they pickle.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import resource
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

import dualray
from dualray.shared.model.codec import pack
from dualray.shared.scenario import Scenario
from dualray.sim.runtime import SimRuntime
from dualray.testing.checkers import watch_choices
from dualray.testing.expectations import judge
from dualray.testing.outcome import Outcome, call
from dualray.testing.run import find_program, load_scenario, outcome_of, read_trace
from dualray.testing.swarm import Ground, draw_faults, ground_of

ROOT = Path(__file__).parents[2]
SCENARIOS = ROOT / "scenarios"
KEPT = SCENARIOS / "swarm_costs.json"
SEEDS = 30
"""Of each scenario that are kept."""
RUN_TIMEOUT_S = 20.0
MEMORY_BYTES_MAX = 6 << 30
"""For one process that runs what may be broken: it fails before the machine does."""
DIFFERENCES_MAX = 12

SEND = "Send"
"""The command whose message is counted, not itself."""


def names() -> list[str]:
    """The scenarios whose runs are kept."""
    return sorted(path.stem for path in SCENARIOS.glob("*_swarm.yaml"))


def written_with() -> dict[str, str]:
    """What the figures depend on, beside the code."""
    return {"python": ".".join(map(str, sys.version_info[:2])), "numpy": np.__version__.partition(".")[0]}


@dataclass(slots=True, kw_only=True)
class Figures:
    """What one run has cost and said.

    Attributes:
        ending: "" or the error and its words.
        result: a digest of what the program returned.
        kinds: commands and messages by kind of the machine that gave them, trace events by kind.
        said: a digest of all decisions by kind of machine, each with its time and process; or of trace and tables;
            and one of what stderr was told.
    """

    ending: str
    result: str
    makespan_ns: int
    counters: dict[str, int]
    kinds: Counter[str] = field(default_factory=Counter)
    said: dict[str, str] = field(default_factory=dict)
    outcome: Outcome

    def calm(self) -> dict[str, Any]:
        """All of it, but what other figures imply."""
        figures = asdict(self)
        del figures["outcome"]
        return {**figures, "kinds": dict(sorted(self.kinds.items()))}

    def line(self) -> dict[str, Any]:
        """What is kept of a run under faults."""
        some = {name: self.counters[name] for name in ("messages", "retries", "transfers", "workers_started")}
        said = _digest(self.said)
        return {"ending": self.ending, "result": self.result, "makespan_ns": self.makespan_ns, **some, "said": said}


def _digest(value: Any) -> str:
    return blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=6).hexdigest()


def figures_of(scenario: Scenario, *, is_logged: bool = True) -> Figures:
    """Run it once.

    Args:
        is_logged: with the decision log, from which kinds and digests come. Without it virtual workers may be folded up
            (shared/machines/plain_worker.py); then the digests are those of the trace and of the tables.
    """
    program = find_program(scenario, SCENARIOS)
    assert not isinstance(program, Path)
    with tempfile.TemporaryDirectory(prefix="dualray-kept-", dir=_memory_directory()) as directory:
        log = Path(directory)
        started = dualray.init(
            mode="sim", seed=scenario.seed, scenario=scenario, decision_log=log if is_logged else None
        )
        assert isinstance(started, SimRuntime)
        cluster = started.cluster
        try:
            watch_choices(cluster.head.machine.scheduler)
            with redirect_stderr(io.StringIO()) as heard:
                result, error, message = call(program)
                outcome = outcome_of(started, result=result, error=error, message=message)
        finally:
            dualray.shutdown()
        figures = Figures(
            ending=f"{error[0]}: {message}" if error else "",
            result=_digest(result),
            makespan_ns=outcome.makespan_ns,
            counters=outcome.counters,
            outcome=outcome,
        )
        if is_logged:
            _count(figures, log)
        else:
            rows = [event.row() for event in cluster.trace_events]
            figures.said = {"trace": _digest(rows), "tables": _digest(cluster.tables)}
        figures.said["stderr"] = _digest(heard.getvalue())
    return figures


def _memory_directory() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _count(figures: Figures, log: Path) -> None:
    """Count what the machines of a run have decided, and what was noted."""
    digests: dict[str, Any] = {}
    for path in sorted(log.glob("*.decisions")):
        with path.open("rb") as data:
            decisions: Iterator[Any] = msgpack.Unpacker(data, raw=False, use_list=False, max_buffer_size=0)
            opening = next(decisions)
            kind, tags = opening["machine"]["kind"], opening["names"]
            digest = digests.setdefault(kind, blake2b(digest_size=6))
            for now_ns, _, commands in decisions:
                if commands:
                    digest.update(pack((path.stem, now_ns, commands)))
                for command in commands:
                    name = tags[command[0]]
                    figures.kinds[f"{kind}: {name} {tags[command[2][0]]}" if name == SEND else f"{kind}: {name}"] += 1
    figures.kinds.update(f"trace: {event.kind}" for event in read_trace(log))
    figures.said = {kind: digest.hexdigest() for kind, digest in digests.items()}


# ---- What is kept, and what is found -------------------------------------------------------------------------------


class Runs:
    """The runs of one scenario: the one without faults, and those of its seeds."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.scenario = load_scenario(SCENARIOS / f"{name}.yaml")
        self._ground: Ground | None = None

    def calm(self) -> Figures:
        """The run without faults. It is the second one: a function that was pickled before is pickled otherwise."""
        figures_of(self.scenario, is_logged=False)
        figures = figures_of(self.scenario)
        self._ground = ground_of(figures.outcome)
        return figures

    def under_faults(self, seed: int) -> Figures:
        """The run of a seed, every other one with the decision log; `calm` goes before."""
        assert self._ground is not None
        faulty = self.scenario.with_faults(draw_faults(self.scenario, self._ground, seed))
        return figures_of(faulty, is_logged=seed % 2 == 0)

    def broken(self, figures: Figures) -> list[str]:
        """What the run without faults breaks of what its scenario expects."""
        outcome = figures.outcome
        return [
            f"{each.what}: expected {each.expected}, found {each.found}"
            for each in judge(self.scenario, outcome, outcome)
            if not each.holds
        ]


def differences(kept: Mapping[str, Any], found: Mapping[str, Any], about: str) -> list[str]:
    """What is not as it was kept, in words, the costs before digests."""
    words = []
    for name in dict.fromkeys((*kept, *found)):
        one, other = kept.get(name), found.get(name)
        if one == other:
            continue
        if name == "said":
            words.append(f"{about}: {_who(one, other) or 'somebody'} decides otherwise, or at another time")
        elif isinstance(one, Mapping) and isinstance(other, Mapping):
            words += differences(one, other, f"{about}, {name}")
        else:
            words.append(f"{about}: {name}: expected {_short(one)}, found {_short(other)}")
    return sorted(words, key=lambda line: "decides otherwise" in line)


def _who(one: Any, other: Any) -> str:
    if not isinstance(one, Mapping) or not isinstance(other, Mapping):
        return ""
    return " and ".join(sorted(kind for kind in {**one, **other} if one.get(kind) != other.get(kind)))


def _short(value: Any) -> str:
    text = f"{value:,}" if isinstance(value, int) else "none" if value is None else str(value)
    return text if len(text) <= 160 else f"...{text[-160:]}"


def compare(kept: Mapping[str, Any], which: Sequence[str], seeds: int) -> Iterator[tuple[str, int, list[str]]]:
    """Hold runs against what is kept: all without faults, then seed after seed. Yields (scenario, seed, what differs);
    the run without faults has the seed -1, and of a scenario that differs there nothing else is run."""
    runs = {name: Runs(name) for name in which}
    alike = []
    for name in which:
        found = runs[name].calm()
        told = [f"{name} without faults: {words}" for words in runs[name].broken(found)]
        told += differences(kept[name]["calm"], found.calm(), f"{name} without faults")
        if not told:
            alike.append(name)
        yield name, -1, told
    together: dict[str, Counter[str]] = {name: Counter() for name in alike}
    for seed in range(seeds):
        for name in alike:
            found = runs[name].under_faults(seed)
            together[name].update(found.kinds)
            yield name, seed, differences(kept[name]["seeds"][str(seed)], found.line(), f"{name}, seed {seed}")
    if seeds == SEEDS:
        for name in alike:
            told = differences(kept[name]["kinds"], dict(together[name]), f"{name}, {seeds} seeds together")
            yield name, seeds, told


def keep(which: Sequence[str]) -> dict[str, Any]:
    """The figures of today's code."""
    kept: dict[str, Any] = {"written_with": written_with()}
    for name in which:
        runs = Runs(name)
        calm = runs.calm()
        found = {str(seed): runs.under_faults(seed) for seed in range(SEEDS)}
        kinds: Counter[str] = Counter()
        for figures in found.values():
            kinds.update(figures.kinds)
        lines = {seed: figures.line() for seed, figures in found.items()}
        kept[name] = {"calm": calm.calm(), "seeds": lines, "kinds": dict(sorted(kinds.items()))}
    return kept


def write(kept: Mapping[str, Any], path: Path) -> None:
    """A line for each figure of a run without faults, and for each seed."""
    text = json.dumps(kept, indent=1)
    for found in kept.values():
        for line in found.get("seeds", {}).values():
            text = text.replace(json.dumps(line, indent=1).replace("\n", "\n   "), json.dumps(line))
    path.write_text(text + "\n")


# ---- The command ---------------------------------------------------------------------------------------------------


@contextmanager
def _watched() -> Iterator[list[str]]:
    """Ends the process when nothing was noted for too long: a loop in broken code ends in no other way."""
    noted: list[str] = [""]
    is_over = threading.Event()

    def watch() -> None:
        last = -1
        while not is_over.wait(RUN_TIMEOUT_S):
            if len(noted) == last:
                print(f"{noted[-1] or 'the first run'}: what comes next does not end within {RUN_TIMEOUT_S:g} s")
                sys.stdout.flush()
                os._exit(1)
            last = len(noted)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield noted
    finally:
        is_over.set()


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.kept_runs", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("scenario", nargs="*", help="names, such as mixed_swarm; default: all")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="of each scenario")
    parser.add_argument("--write", action="store_true", help="keep what today's code does")
    parser.add_argument("--stop", action="store_true", help="at the first run that differs")
    options = parser.parse_args()
    which = options.scenario or names()
    if options.write:
        before = json.loads(KEPT.read_text()) if KEPT.exists() and options.scenario else {}
        write({**before, **keep(which)}, KEPT)
        return 0
    kept = json.loads(KEPT.read_text())
    if kept["written_with"] != written_with():
        print(f"they were kept with {kept['written_with']}, and this is {written_with()}: the figures may differ")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    differing = 0
    with _watched() as noted:
        for name, seed, told in compare(kept, which, min(options.seeds, SEEDS)):
            noted.append(f"{name}, seed {seed}" if seed >= 0 else f"{name} without faults")
            differing += bool(told)
            for words in told[:DIFFERENCES_MAX]:
                print(words)
            if told and options.stop:
                break
    print(f"{len(noted) - 1} runs, of which {differing} differ")
    return int(bool(differing))


if __name__ == "__main__":
    sys.exit(main())
