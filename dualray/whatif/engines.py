"""What `dualray calibrate` measures: real mode on this machine, or Ray.

An engine has one place or two: where the program of one node runs, and that of two nodes. Each is recorded, if it can
be with one worker, and run unrecorded. On a Ray cluster that there is already, both run as it is.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol, Self

from dualray import api
from dualray.cluster_utils import Cluster
from dualray.exceptions import DualrayError
from dualray.recording.usage import machine_words
from dualray.scheduling_strategies import NodeAffinitySchedulingStrategy
from dualray.whatif.micro import THERE

STORE_BYTES = 512 << 20

There = Mapping[str, Any]
"""By which options a task goes to the other node."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a program is measured: on so many nodes, of so many CPUs each. Both give what the program is to know."""

    nodes: int
    cpus: float
    recorded: Callable[[Path], AbstractContextManager[There]]
    measured: Callable[[], AbstractContextManager[There]]


class Engine(Protocol):
    """What is measured; entered while it is."""

    name: str
    words: str

    def alone(self) -> Place: ...
    def pair(self) -> Place | None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...


def engine_of(name: str, address: str | None = None) -> Engine:
    """An engine by its name.

    Raises:
        ValueError: there is none of this name, or real mode was given an address.
        DualrayError: Ray is not installed, or there is no such cluster.
    """
    if name == "ray":
        return RayEngine() if address is None else JoinedRay(address)
    if name != "dualray":
        raise ValueError(f"--engine={name!r} must be dualray or ray")
    if address is not None:
        raise ValueError(f"--address={address!r} is for --engine ray; --engine dualray measures this machine")
    return OwnEngine()


def _cores() -> int:
    return len(os.sched_getaffinity(0))


@contextmanager
def _running(mode: str, there: There, **settings: Any) -> Iterator[There]:
    if "address" not in settings:
        settings["object_store_memory"] = STORE_BYTES
    api.init(mode=mode, log_to_driver=False, **settings)
    try:
        if mode == "ray":
            _start_workers()
        yield there
    finally:
        api.shutdown()


def _start_workers() -> None:
    """Ray starts a worker in about a second: what is measured is to find them there."""

    @api.remote
    def hold(seconds: float) -> None:
        time.sleep(seconds)

    for _ in range(2):
        api.get([hold.remote(_HOLD_S) for _ in range(round(api.cluster_resources().get("CPU", 1)))])


_HOLD_S = 0.5
_OTHER: There = {"resources": {THERE: 1}}


class _OfThisMachine:
    """An engine that this process starts, on this machine. `_cluster` makes the two nodes."""

    name: str
    mode: str

    def __init__(self) -> None:
        self.words = machine_words()
        self._two: Any = None

    def alone(self) -> Place:
        """One node of as many CPUs as there are cores."""
        cores = _cores()
        return Place(
            1,
            cores,
            lambda path: _running(self.mode, {}, num_cpus=1, record=path),
            lambda: _running(self.mode, {}, num_cpus=cores),
        )

    def pair(self) -> Place:
        """Two nodes of one CPU each, of which the second has the resource THERE."""
        return Place(
            2,
            1,
            lambda path: _running(self.mode, _OTHER, num_cpus=1, resources={THERE: 1}, record=path),
            self._on_two,
        )

    def _on_two(self) -> AbstractContextManager[There]:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is left."""


class OwnEngine(_OfThisMachine):
    """Real mode."""

    name, mode = "dualray", "real"

    def _on_two(self) -> AbstractContextManager[There]:
        return _running(self.mode, _OTHER, address=self._two.address)

    def __enter__(self) -> Self:
        self._two = Cluster()
        self._two.add_node(num_cpus=1, object_store_memory=STORE_BYTES)
        self._two.add_node(num_cpus=1, object_store_memory=STORE_BYTES, resources={THERE: 1})
        return self

    def __exit__(self, *_: object) -> None:
        self._two.shutdown()


class RayEngine(_OfThisMachine):
    """Ray, started for it. A cluster of two nodes is there only while it is measured: Ray takes many processes."""

    name, mode = "ray", "ray"

    def __init__(self) -> None:
        super().__init__()
        self.words = f"{_ray_words()} on {self.words}"

    @contextmanager
    def _on_two(self) -> Iterator[There]:
        os.environ.setdefault("RAY_AUTH_MODE", "disabled")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Ray's own
            from ray.cluster_utils import Cluster as OfRay  # noqa: PLC0415 - only who measures Ray has it

            of_node = {"num_cpus": 1, "object_store_memory": STORE_BYTES}
            cluster = OfRay(initialize_head=True, head_node_args={**of_node, "include_dashboard": False})
        try:
            cluster.add_node(**of_node, resources={THERE: 1})
            cluster.wait_for_nodes()
            with _running(self.mode, _OTHER, address=cluster.address) as there:
                yield there
        finally:
            cluster.shutdown()


class JoinedRay:
    """A Ray cluster that there is already."""

    name = "ray"

    def __init__(self, address: str) -> None:
        self._address = address
        self.words = f"{_ray_words()}, the cluster at {address}"
        with self._joined() as _:
            rows = [row for row in api.nodes() if row["Alive"]]
            own = api.get_runtime_context().get_node_id()
        self._cpus = next(row["Resources"].get("CPU", 0.0) for row in rows if row["NodeID"] == own)
        self._others = [row["NodeID"] for row in rows if row["NodeID"] != own and row["Resources"].get("CPU", 0) >= 1]
        if self._cpus < 1:
            raise DualrayError(f"this machine's node of the cluster at {address} has no CPU; use a node that has a CPU")

    @contextmanager
    def _joined(self, path: Path | None = None, there: There | None = None) -> Iterator[There]:
        record = {} if path is None else {"record": path}
        with _running("ray", there or {}, address=self._address, **record) as given:
            yield given

    def alone(self) -> Place:
        """The cluster as it is: Ray may use all of its nodes."""
        return Place(1 + len(self._others), self._cpus, self._joined, self._joined)

    def pair(self) -> Place | None:
        """The driver's node, and another one; None: there is none."""
        if not self._others:
            return None
        other = {"scheduling_strategy": NodeAffinitySchedulingStrategy(self._others[0], soft=False)}
        return Place(2, self._cpus, lambda path: self._joined(path, other), lambda: self._joined(None, other))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """The cluster goes on."""


def _ray_words() -> str:
    try:
        import ray  # noqa: PLC0415 - only who measures Ray has it
    except ImportError:
        _no_ray()
    return f"Ray {ray.__version__}"


def _no_ray() -> NoReturn:
    raise DualrayError('--engine ray needs Ray, which is not installed: pip install "dualray[ray]"')
