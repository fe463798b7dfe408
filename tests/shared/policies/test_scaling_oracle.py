"""The default scaling policy decides as Ray's autoscaler does, on the cases of tests/scaling_oracle."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from dualray.shared.labels import as_pairs, parse_selector
from dualray.shared.model.resources import Resources, from_units
from dualray.shared.model.specs import GroupStrategy
from dualray.shared.policies.bin_packing import BinPacking
from dualray.shared.policies.scaling import Demand, Gang, NodeGroupSpec, ScaledNode, ScaleView
from tests.scaling_oracle import ANSWERS, CASES, draw


def amounts(resources: dict[str, float]) -> Resources:
    return from_units({name: round(amount * 10_000) for name, amount in resources.items()})


def view_of(case: dict[str, Any]) -> ScaleView:
    groups = {
        group["name"]: NodeGroupSpec(
            name=group["name"],
            total=amounts(group["resources"]),
            labels=as_pairs(group["labels"]),
            least=group["least"],
            most=group["most"],
        )
        for group in case["groups"]
    }
    return ScaleView(
        groups=tuple(groups.values()),
        nodes=[
            ScaledNode(
                name=f"i-{index}",
                group=node["group"],
                total=dict(groups[node["group"]].total.units),
                free=dict.fromkeys(node["free"], 0) | dict(amounts(node["free"]).units),
                labels=dict(groups[node["group"]].labels),
                is_joined=node["is_joined"],
                idle_ns=node["idle_s"] * 10**9,
            )
            for index, node in enumerate(case["nodes"])
        ],
        demands=[
            Demand(
                resources=amounts(demand["resources"]),
                labels=parse_selector("labels", demand["labels"]),
                count=demand["count"],
            )
            for demand in case["demands"]
        ],
        gangs=[
            Gang(
                name=f"gang {index}",
                bundles=tuple(amounts(bundle) for bundle in gang["bundles"]),
                strategy=GroupStrategy(gang["strategy"]),
            )
            for index, gang in enumerate(case["gangs"])
        ],
        requested=[[Demand(resources=amounts(bundle)) for bundle in case["requested"]]] if case["requested"] else (),
        idle_timeout_ns=case["idle_timeout_s"] * 10**9,
    )


def decided(case: dict[str, Any]) -> dict[str, dict[str, int]]:
    """Launches and ends by group."""
    decision = BinPacking().choose(view_of(case))
    ends = Counter(case["nodes"][int(name[2:])]["group"] for name in (*decision.leaving, *decision.cancelled))
    return {"launches": dict(sorted(decision.launches.items())), "ends": dict(sorted(ends.items()))}


def has_too_many(case: dict[str, Any]) -> bool:
    """Whether a group has more nodes than it may have."""
    counts = Counter(node["group"] for node in case["nodes"])
    return any(counts[group["name"]] > group["most"] for group in case["groups"])


def test_the_policy_decides_as_rays_autoscaler() -> None:
    answers = json.loads(ANSWERS.read_text())
    assert len(answers) == CASES
    differ = [number for number in range(CASES) if decided(draw(number)) != answers[number]]
    assert len(differ) == 15, differ
    # One kind of difference: where a group has more nodes than it may have, Ray packs demands onto those that it ends
    # in the same decision. So what was to run there waits, and idle nodes that could take it end, too.
    assert all(has_too_many(draw(number)) for number in differ)
    assert sum(bool(answer["launches"]) for answer in answers) > CASES // 2
    assert sum(bool(answer["ends"]) for answer in answers) > CASES // 20
