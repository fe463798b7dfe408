"""`@simtest` runs a user's own test with many seeds on a simulated cluster, with random faults for each seed.

    @dualray.testing.simtest(seeds=200, nodes=11, faults="swarm")
    def test_training_survives():
        assert train() == EXPECTED

A simtest runs once without faults, which must pass, and then once for each seed. The error of a failing seed contains
the seed, its faults, the command that repeats it, the error of the program or of dualray's checks, and what happened to
the affected tasks and objects. Options of pytest (pytest_plugin.py) set the number of seeds (`--dualray-seeds N`), run
one seed (`--dualray-replay SEED`), set its faults (`--dualray-faults`), and remove faults from a failing seed while it
still fails (`--dualray-shrink`).
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import dualray
from dualray.shared.scenario.fault_model import Fault, parse_fault
from dualray.shared.scenario.scenario import Scenario
from dualray.sim.runtime import SimRuntime
from dualray.testing.failures import ERROR_CHARACTERS_MAX, Ended
from dualray.testing.outcome import Outcome
from dualray.testing.run import outcome_of
from dualray.testing.shrink import shrink
from dualray.testing.stories import stories_of
from dualray.testing.swarm import draw_faults, ground_of


class SimtestFailure(AssertionError):
    """A seed of a `simtest` failed. The message contains the seed, its faults, and the command that repeats it."""


SEEDS_VARIABLE = "PYTEST_DUALRAY_SEEDS"
REPLAY_VARIABLE = "PYTEST_DUALRAY_REPLAY"
SHRINK_VARIABLE = "PYTEST_DUALRAY_SHRINK"
FAULTS_VARIABLE = "PYTEST_DUALRAY_FAULTS"
"""What the pytest plugin says to tests, also in the processes of pytest-xdist."""

IS_SIMTEST = "is_dualray_simtest"
"""The attribute by which the pytest plugin knows these tests."""

_OURS = str(Path(dualray.__file__).parent)

BETWEEN_FAULTS = ";"
"""In `--dualray-faults`: a comma stands within some."""

SWARM = "swarm"
"""There, random faults for each seed."""


def simtest(
    *,
    seeds: int = 100,
    nodes: int = 5,
    num_cpus: float = 4,
    num_gpus: float = 0,
    object_store_memory: str = "2GiB",
    faults: Literal["swarm"] | Sequence[str | Fault] = SWARM,
    time_limit: str = "24h",
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Run a test function once for each of many seeds, each on a simulated cluster with faults.

    dualray starts the cluster before it calls the function. The test first runs without faults, and must pass then.

    Args:
        seeds: the number of seeds. Each seed determines random faults and the random numbers of the tasks.
        nodes: the number of nodes.
        num_cpus: the number of CPUs of each node.
        num_gpus: the number of GPUs of each node.
        object_store_memory: the capacity of each node's object store, with a unit.
        faults: with "swarm", each seed has its own random faults. With a list such as ["kill node-1 at 3s"], each seed
            has the same faults, and the test fails if one of them happens in no seed.
        time_limit: the virtual time after which a run fails, with a unit such as "60s".

    Raises:
        ValueError: dualray does not understand a fault.

    Raises (from the decorated test):
        SimtestFailure: a seed failed, leaked something or broke an invariant, or the test ran on the installed Ray.
    """

    if isinstance(faults, str) and faults != "swarm":
        raise ValueError(f"simtest: faults={faults!r} must be 'swarm', or a list such as ['kill node-1 at 3s']")
    said = () if isinstance(faults, str) else [it if isinstance(it, Fault) else parse_fault(it) for it in faults]

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        scenario = Scenario.model_validate(
            {
                "name": test.__name__,
                "cluster": {"nodes": nodes, "cpus": num_cpus, "gpus": num_gpus, "object_store": object_store_memory},
                "workload": {"function": f"{test.__module__}:{test.__name__}"},
                "time_limit": time_limit,
            }
        )

        @functools.wraps(test)
        def run(*args: Any, **kwargs: Any) -> None:
            __tracebackhide__ = True
            _run(scenario, functools.partial(test, *args, **kwargs), seeds, None if faults == "swarm" else tuple(said))

        vars(run)[IS_SIMTEST] = True
        return run

    return decorate


def _run(scenario: Scenario, test: Callable[[], Any], seeds: int, faults: tuple[Fault, ...] | None) -> None:
    """`faults` are those of each seed; None: drawn for each."""
    __tracebackhide__ = True  # pytest shows the test, not this module
    calm = _attempt(scenario, test)
    if not calm.starts and _runs_installed_ray():
        raise SimtestFailure(
            "the test ran on the installed Ray, so dualray simulated no task and caused no fault: start pytest "
            "with --dualray-as-ray, or write `import dualray as ray`"
        )
    ground = ground_of(calm)
    replay = os.environ.get(REPLAY_VARIABLE)
    asked = os.environ.get(FAULTS_VARIABLE)
    if asked is not None:
        faults = None if asked == SWARM else parse_faults(asked)
    never = {str(fault) for fault in faults or ()}
    count = int(os.environ.get(SEEDS_VARIABLE, seeds))
    for seed in range(count) if replay is None else (int(replay),):
        drawn = draw_faults(scenario, ground, seed) if faults is None else faults
        faulty = scenario.with_faults(drawn).model_copy(update={"seed": seed})
        try:
            outcome = _attempt(faulty, test)
            never &= {*outcome.missed, *outcome.outstanding}
        except SimtestFailure as failure:
            small = faulty
            if SHRINK_VARIABLE in os.environ:
                fails = functools.partial(_fails, test, faulty, _signature(failure))
                small = faulty.with_faults(shrink(faulty, fails).planned())
            raise SimtestFailure(
                f"seed {seed} fails: {failure}\n{_about(small, test, is_drawn=faults is None or asked is not None)}"
            ) from failure.__cause__
    if never:
        raise SimtestFailure(
            f"these faults did not happen with any seed: {', '.join(sorted(never))}. Either the test ended before "
            "the faults, or no task or actor has the name in the fault"
        )


def _runs_installed_ray() -> bool:
    """Whether the program has started Ray itself. dualray's own `ray` is the cluster of the test, and has ended."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(getattr(ray, "is_initialized", bool)())


def read_faults(text: str) -> str:
    """The faults of `--dualray-faults`, which are in its value or in the file that it names.

    Raises:
        ValueError: one of the faults is not understood.
    """
    if os.path.isfile(text):  # noqa: PTH113 - many faults are too long for the name of a file, which Path refuses
        lines = (line.partition("#")[0].strip() for line in Path(text).read_text().splitlines())
        text = BETWEEN_FAULTS.join(line for line in lines if line)
    if text != SWARM:
        parse_faults(text)
    return text


def parse_faults(text: str) -> tuple[Fault, ...]:
    """Several faults.

    Raises:
        ValueError: one of them is not understood.
    """
    return tuple(parse_fault(fault) for fault in text.split(BETWEEN_FAULTS) if fault.strip())


def _about(small: Scenario, test: Callable[[], Any], *, is_drawn: bool) -> str:
    """Under which faults a seed fails, how to repeat it, and what happened to whom.

    is_drawn: these faults do not stand in the test itself.
    """
    faults = [str(fault) for fault in small.planned()]
    repeat = f"pytest -k {small.name} --dualray-replay {small.seed}"
    if is_drawn or SHRINK_VARIABLE in os.environ:
        repeat += f" --dualray-faults {shlex.quote(f'{BETWEEN_FAULTS} '.join(faults))}"
    words = ["faults:" if faults else "faults: none", *(f"  {fault}" for fault in faults), f"repeat it: {repeat}"]
    with tempfile.TemporaryDirectory(prefix="dualray-simtest-") as record:
        try:
            _attempt(small, test, Path(record))
        except SimtestFailure as failure:
            stories = stories_of(Path(record), str(failure), is_whole=REPLAY_VARIABLE in os.environ)
            words += ["what happened (times since the start of the first node):", *stories] if stories else []
    return "\n".join(words)


def _fails(test: Callable[[], Any], drawn: Scenario, signature: tuple[str, ...], candidate: Scenario) -> bool:
    """Whether it fails in the same way, on the cluster of the test: who repeats it has no other."""
    try:
        _attempt(drawn.with_faults(candidate.planned()), test)
    except SimtestFailure as failure:
        return _signature(failure) == signature
    return False


def _signature(failure: SimtestFailure) -> tuple[str, ...]:
    """What two failures have in common that are the same: the error's class and the line of the test, or, where an
    oracle speaks, its words without names and numbers."""
    cause = failure.__cause__
    if cause is None:
        return (re.sub(r"[0-9a-f]{8,}|[0-9]+", "#", str(failure).partition(";")[0]),)
    lines = [
        f"{frame.filename}:{frame.lineno}"
        for frame in traceback.extract_tb(cause.__traceback__)
        if not frame.filename.startswith(_OURS)
    ]
    return (type(cause).__name__, *lines[-1:])


def _attempt(scenario: Scenario, test: Callable[[], Any], record: Path | None = None) -> Outcome:
    """Run the test once; `record` is a directory for what happens.

    Raises:
        SimtestFailure: it raised, an oracle has found something, or something was left behind.
    """
    __tracebackhide__ = True
    started = dualray.init(mode="sim", scenario=scenario, seed=scenario.seed, decision_log=record).runtime
    assert isinstance(started, SimRuntime)
    try:
        try:
            test()
        except Exception as error:
            words = str(error)[:ERROR_CHARACTERS_MAX] or repr(error)
            raise SimtestFailure(f"{type(error).__name__}: {words}") from error
        outcome = outcome_of(started, Ended())
    finally:
        dualray.shutdown()
    wrong = (*outcome.violations, *(outcome.leaks or ()))
    if wrong:
        raise SimtestFailure("; ".join(wrong[:5]))
    return outcome
