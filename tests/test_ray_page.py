"""docs/ray.md lists each difference that the conformance tests know of, and no other."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from dualray.shared.scenario.file import parse_growth
from tests.conformance.ray_differences import DIFFERENCES, reasons
from tests.structure import ROOT

CONFORMANCE = Path(__file__).parent / "conformance"
SHARE_MAX = 0.15
"""Of the conformance tests, which may not apply to Ray."""


def test_each_difference_is_a_row_of_the_page_and_each_row_is_one():
    page = (ROOT / "docs" / "ray.md").read_text().partition("## What is different")[2]
    rows = [line.removeprefix("- ") for line in page.splitlines() if line.startswith("- ")]
    assert rows == list(DIFFERENCES)


def test_each_test_that_is_named_is_there_and_they_are_few():
    there = {
        f"{path.name}::{node.name}"
        for path in CONFORMANCE.glob("test_*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }
    named = [test for tests in DIFFERENCES.values() for test in tests]
    assert set(named) <= there, f"there is no {sorted(set(named) - there)}"
    assert len(named) == len(reasons()), "a test has two reasons"
    assert len(named) <= SHARE_MAX * len(there)


def test_the_example_for_kuberay_is_read_whole() -> None:
    """Its fields were compared once with the RayCluster that KubeRay 1.7.0 defines."""
    [example] = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "ray.md").read_text(), re.DOTALL)
    growth = parse_growth(example, "raycluster.yaml")
    (_, head), *others = growth.cluster.each_node()
    [workers] = growth.cluster.scaling_specs()
    assert len(others) == 3
    assert head.total.as_floats() == {"CPU": 2, "memory": 8 * 1024**3}
    assert (workers.name, workers.least, workers.most) == ("workers", 3, 3)
    assert workers.total.as_floats() == {"CPU": 4, "memory": 16 * 1024**3}
    assert growth.cluster.ignored == ("spec.rayVersion",)
