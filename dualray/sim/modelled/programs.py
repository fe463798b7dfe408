"""The programs that can be modelled at any size: what `dualray sim workload NAME` runs.

Each is a generator that stands for a driver: it submits calls, pays for them in virtual time, and yields what it waits
for. They have the shapes of those in testing/workloads.py, which are executed; here nothing is but the machines.
"""

from __future__ import annotations

import gc
import inspect
import math
import random
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from dualray.shared.model.config import Config
from dualray.shared.model.demands import parse_resources
from dualray.shared.model.resources import NOTHING
from dualray.shared.model.specs import DEFAULT_STRATEGY, Ref, Strategy, StrategyKind
from dualray.shared.nearest import nearest
from dualray.shared.scenario.fault_model import Fault
from dualray.sim.cost.cost_model import CostModel
from dualray.sim.modelled.cluster import Call, Get, Modelled, ModelledCluster, ModelledDriver, Program, Step, Wait, call
from dualray.sim.network.topologies import Star, Wiring
from dualray.sim.processes.node import Hardware

Steps: TypeAlias = Generator[Step, Any, None]
CHUNK = 1_000
"""Results that a driver gets at a time."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A program with its parameters: what it may call, and how it goes."""

    calls: tuple[Call, ...]
    program: Program


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _drawing(seconds: float, spread: float, seed: int) -> Callable[[], int | None]:
    """Draws of a log-normal distribution with the median `seconds`; None without spread: what the call takes anyway."""
    if not spread:
        return lambda: None
    gauss = random.Random(f"workload:{seed}").gauss
    return lambda: round(seconds * 1e9 * math.exp(spread * gauss(0, 1)))


def _strategy(name: str) -> Strategy:
    if name not in (StrategyKind.DEFAULT, StrategyKind.SPREAD):
        raise ValueError(f"strategy must be DEFAULT or SPREAD, not {name!r}")
    return DEFAULT_STRATEGY if name == StrategyKind.DEFAULT else Strategy(kind=StrategyKind.SPREAD)


def bag(
    *,
    tasks: int = 1_000_000,
    seconds: float = 0.1,
    spread: float = 0.0,
    size: int = 8,
    cpus: float = 1,
    gpus: float = 0,
    memory: int = 0,
    strategy: str = "DEFAULT",
    ahead: int = 0,
    seed: int = 0,
) -> Workload:
    """Independent calls. The driver gets their results in order. With `ahead` > 0, it submits at most `ahead` calls
    before it gets the first result."""
    demand = parse_resources(num_cpus=cpus, num_gpus=gpus, memory=memory, resources=None)
    piece = call("piece", takes_ns=_ns(seconds), sizes=(size,), resources=demand, strategy=_strategy(strategy))

    def program(driver: ModelledDriver) -> Steps:
        draw = _drawing(seconds, spread, seed)
        waiting: deque[Ref] = deque()
        left = tasks
        while left:
            if spread:
                waiting += driver.submit(piece, takes_ns=draw())
                left -= 1
            else:
                made = driver.submit_several(piece, min(left, ahead - len(waiting)) if ahead else left)
                waiting += made
                left -= len(made)
            if driver.owes:
                yield driver.pay()
            if 0 < ahead <= len(waiting):
                yield from _take(driver, waiting, min(CHUNK, ahead))
        yield driver.pay()
        while waiting:
            yield from _take(driver, waiting, CHUNK)

    return Workload((piece,), program)


def _take(driver: ModelledDriver, waiting: deque[Ref], count: int) -> Steps:
    """Get the first results, and let go of them."""
    refs = tuple([waiting.popleft() for _ in range(min(count, len(waiting)))])
    yield Get(refs)
    driver.drop(refs)


def chain(*, length: int = 1_000, seconds: float = 0.1, size: int = 200_000) -> Workload:
    """Each call takes the result of the call before."""
    link = call("link", takes_ns=_ns(seconds), sizes=(size,))

    def program(driver: ModelledDriver) -> Steps:
        before: tuple[Ref, ...] = ()
        for _ in range(length):
            made = driver.submit(link, before)
            driver.drop(before)
            before = made
            if driver.owes:
                yield driver.pay()
        yield Get(before)
        driver.drop(before)

    return Workload((link,), program)


def tree_reduce(*, leaves: int = 4_096, fan_in: int = 2, seconds: float = 0.1, size: int = 200_000) -> Workload:
    """Calls merge the results of the leaves in groups, until one result is left."""
    if fan_in < 2:
        raise ValueError(f"fan_in must be 2 or more, not {fan_in}")
    leaf = call("leaf", takes_ns=_ns(seconds), sizes=(size,))
    node = call("node", takes_ns=_ns(seconds), sizes=(size,))

    def program(driver: ModelledDriver) -> Steps:
        level: list[Ref] = []
        for _ in range(leaves):
            level += driver.submit(leaf)
            if driver.owes:
                yield driver.pay()
        while len(level) > 1:
            above: list[Ref] = []
            for at in range(0, len(level), fan_in):
                group = tuple(level[at : at + fan_in])
                above += driver.submit(node, group)
                driver.drop(group)
                if driver.owes:
                    yield driver.pay()
            level = above
        yield Get(tuple(level))
        driver.drop(level)

    return Workload((leaf, node), program)


def shuffle(
    *, maps: int = 50, reduces: int = 50, seconds: float = 0.1, size: int = 1_000_000, skew: float = 0.0
) -> Workload:
    """Every reducer takes a block of every mapper. With `skew`, sizes and times decrease as 1 / rank ** skew."""
    sizes = tuple([max(1, int(size / rank**skew)) for rank in range(1, reduces + 1)])
    mapper = call("map", takes_ns=_ns(seconds), sizes=sizes, strategy=_strategy("SPREAD"))
    reducer = call("reduce", takes_ns=_ns(seconds), sizes=(8,))

    def program(driver: ModelledDriver) -> Steps:
        rows = []
        for _ in range(maps):
            rows.append(driver.submit(mapper))
            if driver.owes:
                yield driver.pay()
        results: list[Ref] = []
        for index, each in enumerate(sizes):
            blocks = tuple([row[index] for row in rows])
            results += driver.submit(reducer, blocks, takes_ns=_ns(seconds * each / sizes[0]))
            driver.drop(blocks)
            if driver.owes:
                yield driver.pay()
        yield Get(tuple(results))
        driver.drop(results)

    return Workload((mapper, reducer), program)


def map_reduce(
    *, maps: int = 50, reduces: int = 50, seconds: float = 0.1, size: int = 1_000_000, skew: float = 1.0
) -> Workload:
    """A shuffle with skew. The first reducer has the most work."""
    return shuffle(maps=maps, reduces=reduces, seconds=seconds, size=size, skew=skew)


def _actor(name: str, takes_ns: int = 1_000_000, cpus: float = 1, strategy: str = "SPREAD") -> Call:
    demand = parse_resources(num_cpus=cpus, num_gpus=0, memory=0, resources=None)
    return call(name, takes_ns=takes_ns, sizes=(8,), resources=demand, strategy=_strategy(strategy))


def _method(name: str, takes_ns: int, size: int) -> Call:
    return call(name, takes_ns=takes_ns, sizes=(size,), resources=NOTHING)


def parameter_server(
    *,
    workers: int = 64,
    steps: int = 100,
    seconds: float = 0.1,
    spread: float = 0.2,
    size: int = 4_000_000,
    apply_seconds: float = 0.001,
    seed: int = 0,
) -> Workload:
    """Synchronous steps. Every worker reads the parameters of one actor, and the actor applies its gradient."""
    server = _actor("ParameterServer")
    read = _method("ParameterServer.read", _ns(apply_seconds), size)
    apply = _method("ParameterServer.apply", _ns(apply_seconds), 8)
    gradient = call("gradient", takes_ns=_ns(seconds), sizes=(size,))

    def program(driver: ModelledDriver) -> Steps:
        draw = _drawing(seconds, spread, seed)
        handle = driver.create(server)
        for _ in range(steps):
            parameters = driver.invoke(handle, read)
            gradients: list[Ref] = []
            for _ in range(workers):
                gradients += driver.submit(gradient, (parameters,), takes_ns=draw())
                if driver.owes:
                    yield driver.pay()
            applied = driver.invoke(handle, apply, tuple(gradients))
            driver.drop((parameters, *gradients))
            yield Get((applied,))
            driver.drop((applied,))
        driver.drop((handle,))

    return Workload((server, read, apply, gradient), program)


def allreduce(*, members: int = 16, size: int = 64_000_000, rounds: int = 10, add_seconds: float = 0.001) -> Workload:
    """A ring of actors with a CPU each adds up blocks, chunk by chunk. `rounds` sets how often."""
    member = _actor("RingMember")
    chunk = max(1, size // members)
    give = _method("RingMember.give", _ns(add_seconds), chunk)
    take = _method("RingMember.take", _ns(add_seconds), 8)

    def program(driver: ModelledDriver) -> Steps:
        ring = [driver.create(member) for _ in range(members)]
        for _ in range(rounds):
            for _ in range(2 * (members - 1)):
                given = [driver.invoke(each, give) for each in ring]
                taken = [driver.invoke(ring[(rank + 1) % members], take, (given[rank],)) for rank in range(members)]
                driver.drop(given)
                if driver.owes:
                    yield driver.pay()
                yield Get(tuple(taken))
                driver.drop(taken)
        driver.drop(ring)

    return Workload((member, give, take), program)


def rollouts(
    *,
    simulators: int = 128,
    batch: int = 1_024,
    updates: int = 10,
    seconds: float = 1.0,
    spread: float = 0.5,
    size: int = 1_000,
    driver_seconds: float = 0.001,
    seed: int = 0,
) -> Workload:
    """Batches of rollouts of random length on actors. The driver takes each rollout when it ends, and spends
    `driver_seconds` on it."""
    simulator = _actor("Simulator")
    rollout = _method("Simulator.rollout", _ns(seconds), size)

    def program(driver: ModelledDriver) -> Steps:
        draw = _drawing(seconds, spread, seed)
        actors = [driver.create(simulator) for _ in range(simulators)]
        for _ in range(updates):
            left = [driver.invoke(actors[index % simulators], rollout, takes_ns=draw()) for index in range(batch)]
            yield driver.pay()
            while left:
                ready = yield Wait(tuple(left))
                for each in [ref for ref in left if ref.object_id in ready]:
                    left.remove(each)
                    yield Get((each,))
                    driver.drop((each,))
                    yield _ns(driver_seconds)
        driver.drop(actors)

    return Workload((simulator, rollout), program)


PROGRAMS: Mapping[str, Callable[..., Workload]] = {
    "bag": bag,
    "chain": chain,
    "tree-reduce": tree_reduce,
    "shuffle": shuffle,
    "map-reduce": map_reduce,
    "parameter-server": parameter_server,
    "allreduce": allreduce,
    "rollouts": rollouts,
}


def parameters() -> Iterator[tuple[str, str, Any]]:
    """Every program's parameters: program, name, default."""
    for name, make in PROGRAMS.items():
        for parameter in inspect.signature(make).parameters.values():
            yield name, parameter.name, parameter.default


def make_workload(name: str, given: Mapping[str, Any]) -> Workload:
    """A program of that name, with these parameters.

    Raises:
        ValueError: there is no such program or parameter, or a value that it cannot have; the message says the nearest.
    """
    make = PROGRAMS.get(name)
    if make is None:
        known = ", ".join(PROGRAMS)
        raise ValueError(f"there is no workload {name!r}{nearest(name, list(PROGRAMS))}; the workloads are {known}")
    defaults = {parameter.name: parameter.default for parameter in inspect.signature(make).parameters.values()}
    values: dict[str, Any] = {}
    for key, value in given.items():
        if key not in defaults:
            raise ValueError(f"workload {name} has no parameter {key!r}{nearest(key, list(defaults))}")
        values[key] = _parse(f"workload {name}: {key}", value, defaults[key])
    return make(**values)


def run_workload(
    name: str,
    given: Mapping[str, Any],
    *,
    hardware: Sequence[Hardware],
    config: Config | None = None,
    cost_model: CostModel | None = None,
    faults: Sequence[Fault] = (),
    seed: int = 0,
    wiring: Wiring = Star,
) -> Modelled:
    """Model a program of that name on a virtual cluster, without executing anything.

    Args:
        given: its parameters; those that are left out have their defaults.
        hardware: of each node, in order; the driver is on the first.
        config: limits and policies of the core. Default: as everywhere.
        cost_model: what messages and the like cost. Default: as `dualray sim params` shows.
        seed: of what is random in the network, and in the program, unless `given` has a seed of its own.
        wiring: how the nodes are connected. Default: a star.

    Raises:
        ValueError: there is no such program or parameter, a value that it cannot have, or a call that no node could
            ever take.
    """
    if "seed" in {parameter for program, parameter, _ in parameters() if program == name}:
        given = {"seed": seed, **given}
    workload = make_workload(name, given)
    collected = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()  # what there is, is in use: a run makes next to no garbage that is not freed by its counts
    try:
        cluster = ModelledCluster(
            config=config or Config(),
            cost_model=cost_model or CostModel(),
            seed=seed,
            hardware=hardware,
            faults=faults,
            wiring=wiring,
        )
        return cluster.run(workload.program, workload.calls)
    finally:
        gc.unfreeze()
        if collected:
            gc.enable()


def _parse(what: str, value: Any, default: Any) -> Any:
    """A value of the default's type, from text or as it is; whole numbers may be written as 1e6."""
    if isinstance(default, str):
        return str(value)
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{what} must be a number, not {value!r}") from None
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"{what} must be a finite number and not negative, not {value!r}")
    if isinstance(default, int):
        if number != int(number):
            raise ValueError(f"{what} must be a whole number, not {value!r}")
        return int(number)
    return number
