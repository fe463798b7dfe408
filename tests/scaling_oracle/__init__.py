"""Ray's autoscaler as an oracle for the default scaling policy.

    python -m tests.scaling_oracle PYTHON_WITH_RAY

draws 500 cases (groups of nodes, nodes, demands with labels, placement groups, bundles that are asked for), has the
scheduler of Ray's autoscaler decide on each, in the Python that is given, and keeps its answers in `answers.json`.
`tests/shared/policies/test_scaling_oracle.py` gives the same cases to the policy, and compares.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

CASES = 500
ANSWERS = Path(__file__).with_name("answers.json")

Case = dict[str, Any]

_SHAPES = [{"CPU": 1}, {"CPU": 2}, {"CPU": 4}, {"CPU": 0.5}, {"CPU": 1, "GPU": 1}, {"GPU": 2}, {"CPU": 8}, {"disk": 1}]
_SHAPES += [{"CPU": 1, "memory": 4_000_000_000}, {"CPU": 3, "disk": 1}, {"CPU": 16}, {}]
_GROUPS = [{"CPU": 4}, {"CPU": 8}, {"CPU": 16, "memory": 64_000_000_000}, {"CPU": 8, "GPU": 4}, {"CPU": 4, "GPU": 1}]
_GROUPS += [{"CPU": 4, "disk": 2}, {"CPU": 32, "memory": 128_000_000_000}]
_ZONES = ("a", "b")


def draw(number: int) -> Case:
    """One case, from its number."""
    chance = random.Random(f"scaling-{number}")
    groups = []
    for index, resources in enumerate(chance.sample(_GROUPS, chance.randint(1, 4))):
        least = chance.choice([0, 0, 0, 1, 2])
        labels = {"zone": chance.choice(_ZONES)} if chance.random() < 0.4 else {}
        most = least + chance.choice([1, 2, 5, 20])
        groups.append({"name": f"g{index}", "resources": resources, "labels": labels, "least": least, "most": most})
    nodes = [_node(chance, groups) for _ in range(chance.choice([0, 1, 3, 8]))]
    return {
        "groups": groups,
        "nodes": nodes,
        "demands": [_demand(chance) for _ in range(chance.choice([0, 1, 2, 4]))],
        "gangs": [_gang(chance) for _ in range(chance.choice([0, 0, 1, 2]))],
        "requested": [chance.choice(_SHAPES[:8]) for _ in range(chance.choice([0, 0, 0, 3]))],
        "idle_timeout_s": 60,
    }


def _node(chance: random.Random, groups: list[Case]) -> Case:
    group = chance.choice(groups)
    is_joined = chance.random() < 0.8
    idle_s = chance.choice([0, 0, 30, 90, 300]) if is_joined else 0
    free = dict(group["resources"])
    if is_joined and not idle_s:
        free = {name: chance.randint(0, amount) if amount < 100 else amount for name, amount in free.items()}
    return {"group": group["name"], "is_joined": is_joined, "free": free, "idle_s": idle_s}


def _demand(chance: random.Random) -> Case:
    labels = {"zone": chance.choice(_ZONES)} if chance.random() < 0.2 else {}
    return {"resources": chance.choice(_SHAPES), "labels": labels, "count": chance.choice([1, 2, 5, 16, 40])}


def _gang(chance: random.Random) -> Case:
    strategy = chance.choice(["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"])
    if chance.random() < 0.7:
        bundles = [chance.choice(_SHAPES[:6])] * chance.randint(1, 4)
    else:
        bundles = [chance.choice(_SHAPES[:6]) for _ in range(chance.randint(1, 4))]
    return {"strategy": strategy, "bundles": bundles}
