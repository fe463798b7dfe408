"""What the swarm scenarios cost and say, exactly: `python -m tests.kept_runs` holds their runs against what is kept.

A simulation is the same each time, so that each figure of it can be kept: how long it took, what it counted, how many
messages, commands and trace events of each kind there were, and a digest of all that the machines have decided. A
change that costs nothing but time or messages, that places something worse, or says something else, shows here and
nowhere else. Without faults every kind is kept; under faults one line for each seed, and the kinds of all seeds
together. Where the change is meant, `python -m tests.kept_runs --write` keeps the new figures.

So are runs of the machines alone, whose messages are shuffled (shuffled.py): what real processes do, and simulated ones
do not, happens there; histories that no cluster has, told to one machine (distorted.py); and what policies choose
(choices.py).

The figures are those of one version of Python, NumPy and cloudpickle: how long a message is depends on how they pickle.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import json
import multiprocessing
import resource
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

import msgpack
import numpy as np

import dualray
from dualray.shared.model.codec import pack
from dualray.shared.model.demands import parse_resources
from dualray.shared.scenario.fault_model import parse_fault
from dualray.shared.scenario.scenario import Scenario
from dualray.sim.modelled.programs import run_workload
from dualray.sim.processes.node import Hardware
from dualray.sim.runtime import SimRuntime
from dualray.testing.checkers import watch_choices
from dualray.testing.expectations import judge
from dualray.testing.failures import call
from dualray.testing.outcome import Outcome
from dualray.testing.run import find_program, load_scenario, outcome_of, read_trace
from dualray.testing.swarm import Ground, draw_faults, ground_of
from tests.kept_runs.choices import CHOICES, choices
from tests.kept_runs.distorted import DISTORTED, distorted
from tests.kept_runs.shuffled import SHUFFLED, shuffled

ROOT = Path(__file__).parents[2]
SCENARIOS = ROOT / "scenarios"
KEPT = SCENARIOS / "swarm_costs.json"
SEEDS = 30
"""Of each scenario that are kept."""
RUN_TIMEOUT_S = 20.0
MEMORY_BYTES_MAX = 6 << 30
"""For one process that runs what may be broken: it fails before the machine does."""
DIFFERENCES_MAX = 12

MODELLED: dict[str, dict[str, Any]] = {
    "bag": {"tasks": 400, "seconds": 0.0005},
    "chain": {"length": 20},
    "shuffle": {"maps": 6, "reduces": 6},
    "parameter-server": {"workers": 6, "steps": 3},
    "rollouts": {"simulators": 6, "batch": 18, "updates": 2},
}
MODELLED_NODES = 5
MODELLED_FAULTS: tuple[tuple[str, ...], ...] = (
    (),
    ("kill node-2 at 50ms",),
    ("pause node-1 at 30ms for 20s", "reboot node-3 at 40ms for 1s"),
)
"""Programs by name, with what they are given, and the faults under which each runs."""
MODELS = tuple((name, faults) for name in MODELLED for faults in MODELLED_FAULTS)

APART_FROM_SCENARIOS: dict[str, tuple[Callable[[int], dict[str, Any]], int]] = {
    CHOICES: (choices, 1),
    SHUFFLED: (shuffled, 30),
    DISTORTED: (distorted, 30),
}
"""Runs of another kind, and how many of them for each seed of the scenarios."""

SEND = "Send"
"""The command whose message is counted, not itself."""


def names() -> list[str]:
    """The scenarios whose runs are kept."""
    return sorted(path.stem for path in SCENARIOS.glob("*_swarm.yaml"))


def written_with() -> dict[str, str]:
    """What the figures depend on, beside the code."""
    numpy = ".".join(np.__version__.split(".")[:2])
    return {"python": ".".join(map(str, sys.version_info[:2])), "numpy": numpy, "cloudpickle": version("cloudpickle")}


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

    def calm(self) -> dict[str, Any]:
        """All of it, but what other figures imply."""
        return {**asdict(self), "kinds": dict(sorted(self.kinds.items()))}

    def line(self) -> dict[str, Any]:
        """What is kept of a run under faults."""
        some = {name: self.counters[name] for name in ("messages", "retries", "transfers", "workers_started")}
        said = _digest(self.said)
        return {"ending": self.ending, "result": self.result, "makespan_ns": self.makespan_ns, **some, "said": said}


def _digest(value: Any) -> str:
    return blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=6).hexdigest()


def figures_of(scenario: Scenario, *, is_logged: bool = True) -> tuple[Figures, Outcome]:
    """Run it once.

    Args:
        is_logged: with the decision log, from which kinds and digests come. Without it virtual workers may be folded up
            (shared/machines/owner/plain_worker.py); then the digests are those of the trace and of the tables.
    """
    program = find_program(scenario, SCENARIOS)
    assert not isinstance(program, Path)
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory)
        started = dualray.init(
            mode="sim", seed=scenario.seed, scenario=scenario, decision_log=log if is_logged else None
        ).runtime
        assert isinstance(started, SimRuntime)
        cluster = started.cluster
        try:
            watch_choices(cluster.head.control.scheduler)
            with contextlib.redirect_stderr(io.StringIO()) as heard:
                outcome = outcome_of(started, call(program))
        finally:
            dualray.shutdown()
        figures = Figures(
            ending=f"{outcome.error[0]}: {outcome.message}" if outcome.error else "",
            result=_digest(outcome.result),
            makespan_ns=outcome.makespan_ns,
            counters={name: value for name, value in outcome.counters.items() if name != "tasks_lost"},  # it follows
        )
        if is_logged:
            _count(figures, log)
        else:
            rows = [event.row() for event in cluster.trace_events]
            figures.said = {"trace": _digest(rows), "tables": _digest(cluster.tables.all())}
        figures.said["stderr"] = _digest(heard.getvalue())
    return figures, outcome


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


CALM, TOGETHER = -1, -2
"""What can be asked for in place of a seed: the run without faults, and the kinds of all seeds so far."""


class Runs:
    """The runs of one scenario, in the order in which they are asked for, the one without faults first."""

    def __init__(self, name: str) -> None:
        self.scenario = load_scenario(SCENARIOS / f"{name}.yaml")
        self._ground: Ground | None = None
        self._kinds: Counter[str] = Counter()

    def run(self, seed: int) -> dict[str, Any] | str:
        """What is kept of a run, or why it is no run to keep."""
        if seed == TOGETHER:
            return dict(sorted(self._kinds.items()))
        if seed == CALM:
            return self._calm()
        assert self._ground is not None
        faulty = self.scenario.with_faults(draw_faults(self.scenario, self._ground, seed))
        figures, _ = figures_of(faulty, is_logged=seed % 2 == 0)
        self._kinds.update(figures.kinds)
        return figures.line()

    def _calm(self) -> dict[str, Any] | str:
        """The run without faults. It is the second one: a function that was pickled before is pickled otherwise."""
        figures_of(self.scenario, is_logged=False)
        figures, outcome = figures_of(self.scenario)
        for each in judge(self.scenario, outcome, outcome):
            if not each.holds:
                return f"{each.what}: expected {each.expected}, found {each.found}"
        self._ground = ground_of(outcome)
        return figures.calm()


def modelled(index: int) -> dict[str, Any]:
    """What a program costs that is modelled, not executed: its workers are folded up, and write no rows."""
    name, faults = MODELS[index]
    total = parse_resources(num_cpus=4, num_gpus=0, resources=None)
    hardware = [Hardware(total=total, store_bytes=64 << 20)] * MODELLED_NODES
    return asdict(
        run_workload(name, MODELLED[name], hardware=hardware, faults=[parse_fault(words) for words in faults])
    )


class Apart:
    """A process of its own for runs: what is pickled depends on what was pickled before, and a run may never end. A
    context manager."""

    def __init__(self, run: Callable[[int], dict[str, Any] | str]) -> None:
        context = multiprocessing.get_context("fork")
        self._questions, questions = context.Pipe()
        self._process = context.Process(target=self._serve, args=(run, questions, self._questions), daemon=True)
        self._process.start()
        questions.close()

    @staticmethod
    def _serve(run: Callable[[int], dict[str, Any] | str], questions: Connection, other_end: Connection) -> None:
        other_end.close()
        gc.disable()  # when references in circles go, is said here
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
        with contextlib.suppress(EOFError):
            while True:
                question = questions.recv()
                answer: dict[str, Any] | str
                try:
                    answer = run(question)
                except Exception as error:  # noqa: BLE001  # the one who asked is told
                    answer = f"{type(error).__name__}: {error}"
                questions.send(answer)
                gc.collect()
                gc.freeze()  # what is left stays: it is not looked through again

    def ask(self, question: int) -> dict[str, Any] | str:
        """What a run has cost, or why it has not come to its end."""
        self._questions.send(question)
        if not self._questions.poll(RUN_TIMEOUT_S):
            return f"it does not end within {RUN_TIMEOUT_S:g} s"
        try:
            answer: dict[str, Any] | str = self._questions.recv()
        except (EOFError, ConnectionError):
            return "its process has ended"
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()
        self._questions.close()


def differences(kept: Mapping[str, Any], found: Mapping[str, Any], about: str) -> list[str]:
    """What is not as it was kept, in words, the costs before digests."""
    words = []
    for name in dict.fromkeys((*kept, *found)):
        one, other = kept.get(name), found.get(name)
        if one == other:
            continue
        if name == "hash":
            words.append(f"{about}: somebody decides otherwise, or at another time")
        elif name == "said":
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


def compare(kept: Mapping[str, Any], which: Sequence[str], seeds: int) -> Iterator[tuple[str, list[str]]]:
    """Hold runs against what is kept: all without faults, then seed after seed. Yields which run it was, and what
    differs; of a scenario that differs without faults nothing else is run."""
    with contextlib.ExitStack() as stack:
        models = stack.enter_context(Apart(modelled))
        for index, (name, faults) in enumerate(MODELS):
            words = f"{name}, {' and '.join(faults) or 'without faults'}"
            yield words, _differing(models, index, kept["modelled"][words], f"modelled {words}")
        scenarios = [name for name in which if name not in APART_FROM_SCENARIOS]
        apart = {name: stack.enter_context(Apart(Runs(name).run)) for name in scenarios}
        alike = []
        for name in scenarios:
            if name not in kept:
                yield name, [f"{name}: nothing is kept of it yet; --write keeps it"]
                continue
            told = _differing(apart[name], CALM, kept[name]["calm"], f"{name} without faults")
            if not told:
                alike.append(name)
            yield f"{name} without faults", told
        for name, (run, per_seed) in APART_FROM_SCENARIOS.items():
            others = stack.enter_context(Apart(run))
            for seed in range(seeds * per_seed if name in which else 0):
                about = f"{name}, seed {seed}"
                yield about, _differing(others, seed, kept[name]["seeds"][str(seed)], about)
        for seed in range(seeds):
            for name in alike:
                about = f"{name}, seed {seed}"
                yield about, _differing(apart[name], seed, kept[name]["seeds"][str(seed)], about)
        for name in alike if seeds == SEEDS else ():
            about = f"{name}, {seeds} seeds together"
            yield about, _differing(apart[name], TOGETHER, kept[name]["kinds"], about)


def _differing(apart: Apart, question: int, kept: Mapping[str, Any], about: str) -> list[str]:
    found = apart.ask(question)
    return [f"{about}: {found}"] if isinstance(found, str) else differences(kept, found, about)


def keep(which: Sequence[str]) -> dict[str, Any]:
    """The figures of today's code.

    Raises:
        RuntimeError: a run breaks down.
    """
    kept: dict[str, Any] = {"written_with": written_with(), "modelled": {}}
    with Apart(modelled) as models:
        for index, (name, faults) in enumerate(MODELS):
            kept["modelled"][f"{name}, {' and '.join(faults) or 'without faults'}"] = _sound(models.ask(index))
    for name, (run, per_seed) in APART_FROM_SCENARIOS.items():
        with Apart(run) as others:
            runs = range(SEEDS * per_seed if name in which else 0)
            if runs:
                kept[name] = {"seeds": {str(seed): _sound(others.ask(seed)) for seed in runs}}
    for name in [name for name in which if name not in APART_FROM_SCENARIOS]:
        with Apart(Runs(name).run) as apart:
            calm = _sound(apart.ask(CALM))
            seeds = {str(seed): _sound(apart.ask(seed)) for seed in range(SEEDS)}
            kept[name] = {"calm": calm, "seeds": seeds, "kinds": _sound(apart.ask(TOGETHER))}
    return kept


def _sound(found: dict[str, Any] | str) -> dict[str, Any]:
    if isinstance(found, str):
        raise RuntimeError(found)
    return found


def write(kept: Mapping[str, Any], path: Path) -> None:
    """A line for each figure of a run without faults, and for each seed."""
    text = json.dumps(kept, indent=1)
    for found in kept.values():
        for line in found.get("seeds", {}).values():
            text = text.replace(json.dumps(line, indent=1).replace("\n", "\n   "), json.dumps(line))
    path.write_text(text + "\n")


# ---- The command ---------------------------------------------------------------------------------------------------


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.kept_runs", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "scenario", nargs="*", help="names, such as mixed_swarm, and choices, shuffled, distorted; default: all"
    )
    parser.add_argument("--seeds", type=int, default=SEEDS, help="of each scenario")
    parser.add_argument("--write", action="store_true", help="keep what today's code does")
    parser.add_argument("--stop", action="store_true", help="at the first run that differs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dualray-kept-") as tempfile.tempdir:  # for runs that are killed, too
        return _run(options)


def _run(options: argparse.Namespace) -> int:
    which = options.scenario or [*names(), *APART_FROM_SCENARIOS]
    if options.write:
        before = json.loads(KEPT.read_text()) if KEPT.exists() and options.scenario else {}
        write({**before, **keep(which)}, KEPT)
        return 0
    kept = json.loads(KEPT.read_text())
    if kept["written_with"] != written_with():
        print(f"they were kept with {kept['written_with']}, and this is {written_with()}: the figures may differ")
    runs = differing = 0
    for _, told in compare(kept, which, min(options.seeds, SEEDS)):
        runs += 1
        differing += bool(told)
        for words in told[:DIFFERENCES_MAX]:
            print(words)
        if told and options.stop:
            break
    print(f"{runs} runs, of which {differing} differ")
    return int(bool(differing))


if __name__ == "__main__":
    sys.exit(main())
