"""`ray status` and `ray health-check`: the text of `ray status` has Ray's form, which programs read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from dualray import api, autoscaler
from dualray.as_ray.resources import store_bytes, store_bytes_free
from dualray.cli.declare import Commands
from dualray.cli.rays.app import unused_option
from dualray.cli.rays.joining import Address, fail, joined
from dualray.exceptions import DualrayError
from dualray.shared.model.resources import NODE_PREFIX
from dualray.shared.model.specs import NODE_GROUP_LABEL
from dualray.util import state

_BYTES: Final = ("memory", "object_store_memory")
_UNITS: Final = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
_ALL: Final = 1 << 62

app = Commands()


@app.add("status")
def status_command(address: Address = None) -> None:
    """Show a cluster's nodes, resources and waiting tasks, in the form of Ray's command."""
    with joined(address) as running:
        try:
            waits = [str(row["words"]) for row in running.verbs.head_rows("waits")]
            print("\n".join(_lines(api.nodes(), autoscaler.status(), _demands())))
            for words in waits:
                print(f"Waits: {words}")
        except DualrayError as error:
            fail(error)


@app.add("health-check")
def health_check_command(address: Address = None) -> None:
    """Exit with 0 if a cluster answers, else with 1."""
    with joined(address):
        try:
            api.nodes()
        except DualrayError as error:
            fail(error)


app.commands["health-check"].params += [
    unused_option("--component"),
    unused_option("--skip-version-check", is_flag=True),
]


def _lines(
    nodes: Sequence[Mapping[str, Any]], growing: Mapping[str, Sequence[Mapping[str, Any]]], demands: Sequence[str]
) -> list[str]:
    header = f"======== Autoscaler status: {datetime.now()} ========"  # noqa: DTZ005 - as Ray prints it, in local time
    rule = "-" * len(header)
    alive = [row for row in nodes if row["Alive"]]
    active = Counter(row["Labels"].get(NODE_GROUP_LABEL) or str(row["NodeID"]) for row in alive)
    launching = Counter(row["group"] for row in growing["launches"])
    refused = [f" {row['group']}: {row['refused']}" for row in growing["groups"] if row["refused"]]
    requested = [f" {row['demand']}" for row in growing["demands"] if str(row["demand"]).startswith("request of")]
    return [
        *(header, "Node status", rule, "Active:"),
        *([f" {count} {name}" for name, count in active.items()] or [" (no active nodes)"]),
        "Pending:",
        *([f" {name}, {count} launching" for name, count in launching.items()] or [" (no pending nodes)"]),
        "Recent failures:",
        *(refused or [" (no failures)"]),
        *("", "Resources", rule, "Total Usage:"),
        *_usage(),
        *("", "From request_resources:"),
        *(requested or [" (none)"]),
        "Pending Demands:",
        *(demands or [" (no resource demands)"]),
    ]


def _usage() -> list[str]:
    stores, stores_free = store_bytes(), store_bytes_free()
    total = {**api.cluster_resources(), "object_store_memory": sum(stores.values())}
    free = {**api.available_resources(), "object_store_memory": sum(stores_free.values())}
    lines = []
    for name in sorted(name for name in total if not name.startswith((NODE_PREFIX, "accelerator_type:"))):
        used, whole = float(total[name] - free.get(name, 0.0)), float(total[name])
        shown = f"{_size(used)}/{_size(whole)}" if name in _BYTES else f"{used}/{whole}"
        lines.append(f" {shown} {name}")
    return lines


def _size(amount: float) -> str:
    for unit, size in _UNITS:
        if amount >= size:
            return f"{amount / size:.2f}{unit}"
    return f"{int(amount)}B"


def _demands() -> list[str]:
    """What waits for resources, as Ray writes it: `{'CPU': 1.0}: 2+ pending tasks/actors`."""
    waiting: Counter[tuple[tuple[str, float], ...]] = Counter()
    for row in state.live.list(
        "tasks", [("state", "=", "PENDING_NODE_ASSIGNMENT")], _ALL, raise_on_missing_output=False
    ):
        needs = tuple(sorted((str(name), float(amount)) for name, amount in row["required_resources"].items()))
        if needs:
            waiting[needs] += 1
    lines = [f" {dict(needs)}: {count}+ pending tasks/actors" for needs, count in waiting.items()]
    groups = Counter(
        f"{', '.join(_bundle_words(row['bundles']))} ({row['strategy']})"
        for row in state.live.list("placement_groups", [("state", "=", "PENDING")], _ALL, raise_on_missing_output=False)
    )
    return lines + [f" {words}: {count}+ pending placement groups" for words, count in groups.items()]


def _bundle_words(bundles: Sequence[Mapping[str, Any]]) -> list[str]:
    counts = Counter(tuple(sorted(bundle["resources"].items())) for bundle in bundles)
    return [f"{dict(needs)} * {count}" for needs, count in counts.items()]
