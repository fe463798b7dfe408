"""The clusters and policies of a sweep: every combination of what was asked for."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import product
from pathlib import Path
from typing import Any

from dualray.input_files import read_text
from dualray.shared.policies import load_policy
from dualray.shared.scenario.fault_model import Fault
from dualray.shared.scenario.file import ScenarioError, parse_scenario
from dualray.shared.units import parse_rate_bytes_per_s, parse_size_bytes, parse_time_ns, size_words, time_words
from dualray.whatif.spot import is_spot, load_spot

PLACEMENTS = {
    "hybrid": "dualray.shared.policies.hybrid:HybridPlacement",
    "spread": "dualray.shared.policies.spread:SpreadPlacement",
    "locality": "dualray.shared.policies.locality:LocalityPlacement",
}
"""Short names of placement policies."""
EVICTIONS = ("cost", "lru", "spill")

CONFIGURATIONS_MAX = 10_000
NODES_MAX = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """One cluster with its policies. Bytes, bytes a second, ns; `policy` and `eviction` as they were asked for."""

    nodes: int
    cpus: float
    gpus: float = 0
    store_bytes: int = 2 * 2**30
    network_bytes_per_s: int = 1_250_000_000
    latency_ns: int = 100_000
    """Between two nodes."""
    policy: str = "hybrid"
    eviction: str = "cost"
    faults: str = ""
    """The file of a scenario whose faults are injected; empty: none."""
    memory_bytes: int = 0
    """Of each node, store and workers together; 0: without end."""

    @property
    def words(self) -> str:
        """For people."""
        return self.short(frozenset(it.name for it in fields(self)))

    def short(self, shown: Collection[str]) -> str:
        """Nodes and CPUs, and of the rest those fields that are named."""
        parts = [f"{self.nodes} x {self.cpus:g} CPUs"]
        if self.gpus:
            parts.append(f"{self.gpus:g} GPUs")
        if "store_bytes" in shown:
            parts.append(f"store {size_words(self.store_bytes)}")
        if "network_bytes_per_s" in shown or "latency_ns" in shown:
            parts.append(f"{self.network_bytes_per_s * 8 / 1e9:g} Gbps")
        if "latency_ns" in shown and self.latency_ns != 100_000:
            parts.append(time_words(self.latency_ns))
        if "memory_bytes" in shown and self.memory_bytes:
            parts.append(f"memory {size_words(self.memory_bytes)}")
        parts += [str(getattr(self, name)) for name in ("policy", "eviction") if name in shown]
        if "faults" in shown and self.faults:
            parts.append(self.faults)
        return ", ".join(parts)


def configurations(
    *,
    nodes: Iterable[int] = (1,),
    cpus: Iterable[float],
    gpus: Iterable[float] = (0,),
    store: Iterable[str | int] = ("2GiB",),
    network: Iterable[str] = ("10Gbps",),
    policy: Iterable[str] = ("hybrid",),
    eviction: Iterable[str] = ("cost",),
    faults: Iterable[str | Path] = ("",),
    memory: Iterable[str | int] = (0,),
) -> list[Configuration]:
    """Every combination.

    Args:
        network: bandwidth of each node's card, such as "10Gbps", or with the latency between two nodes,
            "10Gbps/50us" (default 100us).
        policy: `hybrid`, `spread`, `locality`, or the dotted path of one of your own, "package.module:Class".
        eviction: `cost`, `lru`, `spill`, or a dotted path.
        memory: of each node, such as "8GiB", store and workers together; 0: without end.
        faults: scenario files, of which only the faults count, or JSON files that say how many spot machines could be
            had (spot.py); "" means none.

    Raises:
        ValueError: something that cannot be; the message names it.
    """
    found = [
        Configuration(
            nodes=_whole(each[0], "nodes", 1, NODES_MAX),
            cpus=_number(each[1], "cpus"),
            gpus=_number(each[2], "gpus"),
            store_bytes=each[3] if isinstance(each[3], int) else parse_size_bytes(each[3], "store"),
            network_bytes_per_s=_network(each[4])[0],
            latency_ns=_network(each[4])[1],
            policy=_policy(each[5]),
            eviction=_eviction(each[6]),
            faults=str(each[7]),
            memory_bytes=each[8] if isinstance(each[8], int) else parse_size_bytes(each[8], "memory"),
        )
        for each in product(nodes, cpus, gpus, store, network, policy, eviction, faults, memory)
    ]
    if len(found) > CONFIGURATIONS_MAX:
        raise ValueError(
            f"the given values make {len(found):,} configurations, but a prediction has at most "
            f"{CONFIGURATIONS_MAX:,}; give fewer values"
        )
    if not found:
        raise ValueError(
            "there is nothing to predict, because one of the lists of values is empty; give at least one value in each "
            "list"
        )
    for path in dict.fromkeys(each.faults for each in found if each.faults):
        if is_spot(path):
            load_spot(path)
        else:
            faults_of(path)
    return list(dict.fromkeys(found))


def placement_path(policy: str) -> str:
    """The dotted path of a placement policy."""
    return PLACEMENTS.get(policy, policy)


def faults_of(path: str) -> tuple[Fault, ...]:
    """The faults of a scenario file.

    Raises:
        ValueError: the file cannot be read or used.
    """
    try:
        return tuple(parse_scenario(read_text(path), path, lambda name: read_text(Path(path).parent / name)).planned())
    except OSError as error:
        raise ValueError(f"the file {path!r} with faults cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"the file {path!r} with faults cannot be read: it is not text in UTF-8") from None
    except ScenarioError as error:
        raise ValueError(str(error)) from None


def _whole(value: Any, what: str, least: int, most: int) -> int:
    try:
        number = int(value)
    except ValueError:
        raise ValueError(f"{what}: {value!r} is not a whole number") from None
    if not least <= number <= most or number != float(value):
        raise ValueError(f"{what}: {value!r} must be a whole number from {least:,} to {most:,}")
    return number


def _number(value: Any, what: str) -> float:
    try:
        number = float(value)
    except ValueError:
        raise ValueError(f"{what}: {value!r} is not a number") from None
    if not 0 <= number <= 1_000_000:
        raise ValueError(f"{what}: {value!r} must be between 0 and 1,000,000")
    return number


def _network(text: str) -> tuple[int, int]:
    rate, _, latency = text.partition("/") if not text.endswith("/s") else (text, "", "")
    bytes_per_s = parse_rate_bytes_per_s(rate, "network")
    if bytes_per_s <= 0:
        raise ValueError(f"network: {text!r} must have a bandwidth above 0")
    return bytes_per_s, parse_time_ns(latency, "network latency") if latency else 100_000


def _policy(name: str) -> str:
    if name not in PLACEMENTS and ":" not in name:
        raise ValueError(
            f"policy {name!r} is unknown: use one of {', '.join(PLACEMENTS)}, or your own policy as "
            f"'package.module:Class'"
        )
    _check_has(_made(placement_path(name), name), name, "choose")
    return name


def _eviction(name: str) -> str:
    if name not in EVICTIONS and ":" not in name:
        raise ValueError(
            f"eviction policy {name!r} is unknown: use one of {', '.join(EVICTIONS)}, or your own policy as "
            f"'package.module:Class'"
        )
    _check_has(_made(name, name), name, "choose")
    return name


def _made(path: str, name: str) -> object:
    try:
        return load_policy(path)
    except TypeError as error:
        raise ValueError(f"policy {name!r} cannot be created without arguments: {error}") from None
    except ValueError:
        raise
    except Exception as error:  # noqa: BLE001 - it is the user's module, which may do anything when it is imported
        raise ValueError(f"policy {name!r} cannot be loaded: {type(error).__name__}: {error}") from None


def _check_has(policy: object, name: str, *methods: str) -> None:
    missing: Sequence[str] = [method for method in methods if not callable(getattr(policy, method, None))]
    if missing:
        raise ValueError(f"policy {name!r} has no method {missing[0]!r}: docs/whatif.md describes the methods")
